"""Records as documents that scripts rely on, and files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TextIO

from specdec_cli import __version__
from specdec_cli.errors import UsageError
from specdec_cli.streams import open_bytes, open_text

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


def is_device(path: Path) -> bool:
    """What is there and no file (/dev/null, a named pipe): written to as it is, never replaced."""
    return path.exists() and not path.is_file()


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A file that appears under its name when it is complete, and not at all if writing it fails.

    Raises:
        OSError: it cannot be written; names the path.
    """
    with _in_place(path) as place, open_text(place, "w", called=path) as file:
        yield file


def write_whole(path: Path, content: bytes) -> None:
    """The same for bytes that are there already."""
    with _in_place(path) as place, open_bytes(place, "w", called=path) as file:
        file.write(content)


@contextmanager
def _in_place(path: Path) -> Iterator[Path]:
    """Where to write what `path` is to hold."""
    if is_device(path):
        yield path
        return
    place = path.resolve()  # a link stays a link
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, place)
    finally:
        with suppress(OSError):  # it may never have been there
            partial.unlink()


class LineFile:
    """A file of lines that are written as they come. Where that fails, work goes on without it, and `close` says so.

    Args:
        path: where they go.
        mode: "w" anew, "a" behind what is there.
    """

    def __init__(self, path: Path, mode: str = "w") -> None:
        self._file = open_text(path, mode)
        self._failure: OSError | None = None

    def write(self, line: str) -> None:
        """Add a line, and see to it that it arrives."""
        if self._failure is None:
            self._attempt(lambda: self._file.write(line + "\n"))
            self._attempt(self._file.flush)

    def close(self) -> None:
        """The last line was written.

        Raises:
            OSError: a line could not be written; names the file.
        """
        self._attempt(self._file.close)
        if self._failure is not None:
            raise self._failure

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except OSError as error:
            self._failure = self._failure or error
