"""Which GGUF files are one model, by their names: the parts of a split set, and what only accompanies a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import TypeVar

# Of a split set: what stands before the number, the number, and how many there are.
PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)

AnyPath = TypeVar("AnyPath", bound=PurePath)


def parts_of(path: AnyPath) -> tuple[AnyPath, ...]:
    """All files of the set that one belongs to by its name; itself where its name is none of a set's."""
    part = PART.fullmatch(path.name)
    if part is None:
        return (path,)
    stem, count = part["stem"], int(part["count"])
    return tuple(path.with_name(f"{stem}-{i:05}-of-{count:05}{path.suffix}") for i in range(1, count + 1))


def one_of_each_set(paths: Iterable[Path]) -> list[Path]:
    """Of files by their names those that stand for a model: the first that is here of each set, and no projectors.

    llama.cpp keeps what makes tokens of images in a file of its own, whose name has "mmproj" in it.
    """
    found: dict[str, Path] = {}
    for path in sorted(paths):
        part = PART.fullmatch(path.name)
        if "mmproj" not in path.name.lower():
            found.setdefault(str(path.with_name(f"{part['stem']}-of-{part['count']}") if part else path), path)
    return list(found.values())
