"""Standard streams and files that nothing is lost in.

What an encoding lacks is written as an escape that JSON knows, and an error says which stream or file it came from:
Python's own names a file only where opening it fails. Standard streams that the caller closed are as /dev/null.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

ESCAPE = "specdec.escape"


def _escape(error: UnicodeError) -> tuple[str, int]:
    r"""`\u00e9` for what cannot be encoded: two such for characters beyond 16 bits, and one for half a pair."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)), error.end


codecs.register_error(ESCAPE, _escape)


class _Named(io.FileIO):
    """Bytes to a file or descriptor, whose errors name it."""

    def __init__(self, place: Path | int, mode: str, called: str) -> None:
        self._called = called
        try:
            super().__init__(place, mode, closefd=not isinstance(place, int))
        except OSError as error:
            raise OSError(error.errno, error.strerror, called) from error

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._called) from error


class _Unheard(io.FileIO):
    """Bytes to a descriptor that may be full or gone: what is told there is no reason to lose a result."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def open_bytes(path: Path, mode: str, called: Path | None = None) -> BinaryIO:
    """A file to write bytes to; errors name `called`, or the path."""
    return io.BufferedWriter(_Named(path, mode, str(called or path)))


def open_text(path: Path, mode: str, called: Path | None = None) -> TextIO:
    """The same for text, in UTF-8."""
    return io.TextIOWrapper(open_bytes(path, mode, called), encoding="utf-8", errors=ESCAPE)


def prepare() -> None:
    """Make the process's own streams such ones; called once, before anything is written."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # or the next file that is opened would be taken for it
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _stream(sys.stdout, partial(_Named, 1, "w", "stdout"))
    sys.stderr = _stream(sys.stderr, partial(_Unheard, 2, "w", closefd=False))


def _stream(before: TextIO | None, make: Callable[[], io.FileIO]) -> TextIO:
    """The stream of a descriptor, buffered and encoded as Python chose."""
    if before is None:
        return io.TextIOWrapper(io.BufferedWriter(make()), encoding="utf-8", errors=ESCAPE)
    if not isinstance(before, io.TextIOWrapper):
        return before
    unbuffered = isinstance(before.buffer, io.FileIO)  # python -u
    if not unbuffered and not isinstance(getattr(before.buffer, "raw", None), io.FileIO):  # a console of Windows
        before.reconfigure(errors=ESCAPE)
        return before
    before.flush()
    return io.TextIOWrapper(
        make() if unbuffered else io.BufferedWriter(make()),
        encoding=before.encoding,
        errors=ESCAPE,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


def leave_stdout() -> None:
    """Nobody reads it any more: what is still buffered, and whatever comes, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
