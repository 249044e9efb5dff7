"""The header of a GGUF file: its metadata, and where each tensor lies. No tensor is read before it is used.

A model may be split over several files, each of which names its number and how many there are. The first has the
metadata; the tensors are those of all. Any of them stands for the whole set, and one that is not here is refused.

(The gguf package's own reader makes Python objects of every token of the vocabulary, which takes seconds.)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.split_sets import parts_of

# Of metadata values: numbers by their code, then strings and arrays.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
DEFAULT_ALIGNMENT = 32
VERSIONS = (2, 3)
SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in the file.

    Attributes:
        name: the file's.
        shape: rows first, as torch counts.
        kind: gguf's GGMLQuantizationType.
        data: [*shape[:-1], bytes of a row] uint8, mapped.
    """

    name: str
    shape: tuple[int, ...]
    kind: Any
    data: np.ndarray


class UnknownFormatError(SpecdecError):
    """A tensor is stored in a format that a newer gguf package may know."""


class Cursor:
    """Reads one value after the other."""

    def __init__(self, blob: memoryview) -> None:
        self._blob, self.position = blob, 0

    def numbers(self, codes: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{codes}", self._blob, self.position)
        self.position += struct.calcsize(f"<{codes}")
        return found

    def text(self) -> str:
        (length,) = self.numbers("Q")
        self.position += length
        return str(self._blob[self.position - length : self.position], "utf-8")

    def value(self, code: int) -> Any:
        """A metadata value: a number, a string, a list of numbers; of an array of anything else how many there are."""
        if code == STRING:
            return self.text()
        if code != ARRAY:
            return self.numbers(NUMBERS[code])[0]
        item, count = self.numbers("IQ")
        if item in NUMBERS:
            return list(self.numbers(f"{count}{NUMBERS[item]}"))
        for _ in range(count):
            if item == STRING:  # most of a header: a vocabulary and its merges
                self.position += 8 + struct.unpack_from("<Q", self._blob, self.position)[0]
            else:
                self.value(item)
        return count


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, or all files of a split set.

    Attributes:
        paths: of all its files, in their order.
        metadata: by key; arrays of strings are only counted.
        tensors: of all files.
    """

    paths: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]

    @property
    def name(self) -> str:
        """Of the first file, for messages."""
        return self.paths[0].name

    @property
    def architecture(self) -> str:
        """As llama.cpp names it."""
        return str(self.metadata["general.architecture"])

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the architecture's own: "rope.freq_base" for "llama.rope.freq_base"."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def tensor(self, name: str) -> StoredTensor | None:
        """A tensor by its name in the file."""
        return next((t for t in self.tensors if t.name == name), None)


def split_set(path: Path) -> tuple[Path, ...]:
    """All files of the set that one belongs to, by their names, whether they are here or not; itself where it is none.

    Raises:
        SpecdecError: it says that it is a part, and its name does not say which; or the other way round.
    """
    count, names = int(_read(path)[0].get(SPLIT_COUNT, 1)), parts_of(path)
    if count < 2 and len(names) > 1:
        raise SpecdecError(
            f"{path.name} is called one of {len(names)} parts, and its metadata know of none: get the parts anew, or "
            "give it another name if it is the whole model"
        )
    if count < 2:
        return (path,)
    if len(names) > 1 and len(names) != count:
        raise SpecdecError(
            f"{path.name} is called one of {len(names)} parts, and its metadata say that there are {count}: give all "
            "of them the names that they had"
        )
    if len(names) != count:
        raise SpecdecError(
            f"{path.name} is one of {count} parts of a model, and its name does not tell which: call them "
            f"NAME-00001-of-{count:05}.gguf and so on, as they were"
        )
    return names


def read_gguf(path: Path) -> GgufFile:
    """Metadata and tensors of a file, or of the set that it belongs to.

    Raises:
        SpecdecError: a part is missing, or parts do not belong together; one line with the remedy.
        ValueError, KeyError, struct.error: a file is damaged, or of a kind not known here.
        ImportError: the gguf package is missing.
    """
    paths = split_set(path)
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        also = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SpecdecError(
            f"{path.name} is one of {len(paths)} parts, of which {missing[0]}{also} is not here: "
            "put all of them into one folder"
        )
    parts = [_read_part(p) if len(paths) > 1 else _read(p) for p in paths]
    if len(parts) > 1:
        _require_one_set(paths, [metadata for metadata, _ in parts], sum(len(tensors) for _, tensors in parts))
    metadata = parts[0][0]
    if "general.architecture" not in metadata:
        raise ValueError("its metadata name no architecture")
    return GgufFile(paths, metadata, tuple(t for _, tensors in parts for t in tensors))


def _read_part(path: Path) -> tuple[dict[str, Any], list[StoredTensor]]:
    """One of several, named where it is damaged."""
    try:
        return _read(path)
    except (ValueError, LookupError, struct.error) as error:
        raise ValueError(f"part {path.name}: {error}") from error


def _require_one_set(paths: Sequence[Path], parts: Sequence[Mapping[str, Any]], num_tensors: int) -> None:
    """Refuse files that stand side by side, and were not made together."""
    for number, (path, metadata) in enumerate(zip(paths, parts, strict=True)):
        if metadata.get(SPLIT_COUNT) != len(paths) or metadata.get(SPLIT_NUMBER, number) != number:
            raise SpecdecError(f"{path.name} is not the part that its name says: get the {len(paths)} parts anew")
    expected = parts[0].get(SPLIT_TENSORS, num_tensors)
    if expected != num_tensors:
        raise SpecdecError(
            f"{paths[0].name} and its {len(paths) - 1} other parts have {num_tensors} tensors, where {expected} were "
            "split: they are not of one model; get all parts anew"
        )


def _read(path: Path) -> tuple[dict[str, Any], list[StoredTensor]]:
    """Metadata and tensors of one file."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    blob = np.memmap(path, mode="r", dtype=np.uint8)
    cursor = Cursor(memoryview(blob))  # type: ignore[arg-type]  # numpy implements the buffer protocol
    if len(blob) < struct.calcsize("<4sIQQ"):
        raise ValueError("it ends within its header")
    magic, version, num_tensors, num_values = cursor.numbers("4sIQQ")
    if magic != b"GGUF" or version not in VERSIONS:
        raise ValueError(f"it is not a GGUF file of version {' or '.join(map(str, VERSIONS))}")
    metadata = {}
    table = []
    try:
        for _ in range(num_values):
            key, (code,) = cursor.text(), cursor.numbers("I")
            metadata[key] = cursor.value(code)
        for _ in range(num_tensors):
            name, (num_dims,) = cursor.text(), cursor.numbers("I")
            shape = tuple(reversed(cursor.numbers(f"{num_dims}Q")))
            table.append((name, shape, *cursor.numbers("IQ")))
    except struct.error as error:
        raise ValueError("it ends within its header") from error
    alignment = metadata.get("general.alignment") or DEFAULT_ALIGNMENT
    start = -(-cursor.position // alignment) * alignment
    tensors, ends = [], {}
    for name, shape, code, offset in table:
        if code not in iter(GGMLQuantizationType):
            raise UnknownFormatError(
                f"{path.name} has {name} in format {code}, which this gguf package does not know: upgrade gguf, or "
                "use the model's safetensors"
            )
        kind = GGMLQuantizationType(code)
        weights, size = GGML_QUANT_SIZES[kind]
        lines = (*shape[:-1], shape[-1] // weights * size)
        data = blob[start + offset : start + offset + prod(lines)]
        if len(data) < prod(lines):
            raise ValueError(f"it ends within {name}")
        ends[offset] = (offset + prod(lines), name)
        tensors.append(StoredTensor(name, shape, kind, data.reshape(lines)))
    for (_, (end, name)), (begin, (_, other)) in pairwise(sorted(ends.items())):
        if begin < end:
            raise ValueError(f"its {other} begins within {name}")
    if len(ends) < len(tensors):
        raise ValueError("two of its tensors lie at one place")
    return metadata, tensors
