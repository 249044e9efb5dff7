"""The header of a GGUF file: its architecture, and where each tensor lies. No tensor is read before it is used.

(The gguf package's own reader makes Python objects of every token of the vocabulary, which takes seconds.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

# Of metadata values: numbers by their code, then strings and arrays.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
DEFAULT_ALIGNMENT = 32
VERSIONS = (2, 3)


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


class _Cursor:
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
        """A metadata value; None for an array, which is passed over."""
        if code == STRING:
            return self.text()
        if code != ARRAY:
            return self.numbers(NUMBERS[code])[0]
        item, count = self.numbers("IQ")
        if item in NUMBERS:
            self.position += count * struct.calcsize(f"<{NUMBERS[item]}")
        else:
            for _ in range(count):
                if item == STRING:  # most of a header: a vocabulary and its merges
                    self.position += 8 + struct.unpack_from("<Q", self._blob, self.position)[0]
                else:
                    self.value(item)
        return None


def read_gguf(path: Path) -> tuple[str, list[StoredTensor]]:
    """The architecture and the tensors.

    Raises:
        ValueError, KeyError, struct.error: the file is damaged, or of a kind not known here.
        ImportError: the gguf package is missing.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    blob = np.memmap(path, mode="r", dtype=np.uint8)
    cursor = _Cursor(memoryview(blob))  # type: ignore[arg-type]  # numpy implements the buffer protocol
    magic, version, num_tensors, num_values = cursor.numbers("4sIQQ")
    if magic != b"GGUF" or version not in VERSIONS:
        raise ValueError(f"it is not a GGUF file of version {' or '.join(map(str, VERSIONS))}")
    metadata = {}
    for _ in range(num_values):
        key, (code,) = cursor.text(), cursor.numbers("I")
        metadata[key] = cursor.value(code)
    table = []
    for _ in range(num_tensors):
        name, (num_dims,) = cursor.text(), cursor.numbers("I")
        shape = tuple(reversed(cursor.numbers(f"{num_dims}Q")))
        table.append((name, shape, *cursor.numbers("IQ")))
    alignment = metadata.get("general.alignment") or DEFAULT_ALIGNMENT
    start = -(-cursor.position // alignment) * alignment
    tensors = []
    for name, shape, code, offset in table:
        kind = GGMLQuantizationType(code)
        weights, size = GGML_QUANT_SIZES[kind]
        lines = (*shape[:-1], shape[-1] // weights * size)
        data = blob[start + offset : start + offset + prod(lines)]
        if len(data) < prod(lines):
            raise ValueError(f"it ends within {name}")
        tensors.append(StoredTensor(name, shape, kind, data.reshape(lines)))
    return metadata["general.architecture"], tensors
