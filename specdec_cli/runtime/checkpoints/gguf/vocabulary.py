"""The tokens of a GGUF file and what else its metadata say, without its tensors and without a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from specdec_cli.runtime.checkpoints.gguf.header import STRING, VERSIONS, Cursor

TOKENS = "tokenizer.ggml.tokens"


def metadata_and_tokens(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Metadata, and the token of each id; no tokens where the file has none.

    Raises:
        ValueError, KeyError, IndexError, struct.error, OSError: the file is damaged, or no GGUF file.
    """
    blob = np.memmap(path, mode="r", dtype=np.uint8)
    cursor = Cursor(memoryview(blob))  # type: ignore[arg-type]  # numpy implements the buffer protocol
    magic, version, _, num_values = cursor.numbers("4sIQQ")
    if magic != b"GGUF" or version not in VERSIONS:
        raise ValueError(f"it is not a GGUF file of version {' or '.join(map(str, VERSIONS))}")
    metadata: dict[str, Any] = {}
    tokens: list[str] = []
    for _ in range(num_values):
        key, (code,) = cursor.text(), cursor.numbers("I")
        if key == TOKENS:
            item, count = cursor.numbers("IQ")
            if item != STRING:
                raise ValueError(f"{TOKENS} are no texts")
            tokens = [cursor.text() for _ in range(count)]
        else:
            metadata[key] = cursor.value(code)
    return metadata, tokens
