"""What a person says in a chat, line by line: typed at a terminal, or from a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from specdec_cli.errors import UsageError
from specdec_cli.settings import is_unicode

PROMPT = "> "


class Stopped(KeyboardInterrupt):
    """Ctrl-C while nothing is answered: the line is given up, and not the chat."""


class Lines(Protocol):
    """Where lines come from."""

    @property
    def is_terminal(self) -> bool:
        """Whether a person types them, who can mend what was wrong."""

    def read(self) -> str | None:
        """The next line with something in it; None where there are no more.

        Raises:
            UsageError: it is not UTF-8.
        """


def lines_of_stdin() -> Lines:
    """A terminal's, or a pipe's."""
    return _Typed() if sys.stdin is not None and sys.stdin.isatty() else _Piped()


class _Typed:
    """Lines that are edited by readline, where Python has it: arrow keys, history."""

    is_terminal = True

    def __init__(self) -> None:
        with suppress(ImportError):  # not on Windows
            import readline  # noqa: F401

    def read(self) -> str | None:
        while True:
            if sys.stdout.isatty():
                line = self._ask(PROMPT)
            else:  # stdout is for answers
                sys.stderr.write(PROMPT)
                sys.stderr.flush()
                line = self._ask("")
            if line is None or line.strip():
                break
        if line is not None and not is_unicode(line):
            raise UsageError("what was typed is not UTF-8: type it again")
        return line

    def _ask(self, prompt: str) -> str | None:
        try:
            return input(prompt)
        except EOFError:
            sys.stderr.write("\n")
            return None


class _Piped:
    """Lines as they come: each is a turn."""

    is_terminal = False

    def read(self) -> str | None:
        stdin: Any = sys.stdin
        if stdin is None:
            return None
        for line in stdin.buffer:
            try:
                text = str(line, "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UsageError("a piped line is not UTF-8: convert it first") from error
            if text.strip():
                return text
        return None


class CtrlC:
    """Ctrl-C stops an answer between two rounds, so that nothing is left half done; once more, and all ends.

    Attributes:
        stopped: it was pressed during this answer.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._answering = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For as long as the chat lasts; not where the caller has it ignored."""
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN:
            yield
            return
        signal.signal(signal.SIGINT, self._pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def during_an_answer(self) -> Iterator[None]:
        """While one is made."""
        self.stopped, self._answering = False, True
        try:
            yield
        finally:
            self._answering = False

    def _pressed(self, *_: object) -> None:
        if not self._answering:
            raise Stopped
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True
