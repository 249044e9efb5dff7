"""Records as documents that scripts rely on, and files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TextIO

from specdec_cli import __version__
from specdec_cli.errors import UsageError

SCHEMA = 1


def document(environment: dict[str, object], settings: dict[str, object], **content: object) -> dict[str, Any]:
    """The frame of every JSON document."""
    head = {"schema": SCHEMA, "specdec_version": __version__}
    return {**head, "environment": environment, "settings": settings, **content}


def to_json(record: object, indent: int | None = None) -> str:
    """JSON with text readable as it is; dataclasses become objects."""
    return json.dumps(record, indent=indent, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def check_writable(path: Path, option: str) -> None:
    """Fail before anything is loaded, not after.

    Raises:
        UsageError: the folder is not there or cannot be written to.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder: name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: the folder {path.parent} does not exist")
    places = [path] if path.exists() else []
    if not path.exists() or path.is_file():
        places.append(path.resolve().parent)  # a whole file is written beside its place first
    if not all(os.access(place, os.W_OK) for place in places):
        raise UsageError(f"{option} {path} cannot be written: choose another place")


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A file that appears under its name when it is complete, and not at all if writing it fails.

    What is there and no file (/dev/null, a named pipe) is written to as it is.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as device:
            yield device
        return
    path = path.resolve()  # a link stays a link
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
