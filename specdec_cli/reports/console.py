"""Where output goes: to stdout or a file, whole or not there; and what is told beside it, on stderr."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Column
from rich.text import Text

from specdec_cli.activity import Advance, watch
from specdec_cli.reports.export import is_device, whole_file
from specdec_cli.reports.fitting import Sentence
from specdec_cli.streams import leave_stdout, open_text

PLAIN_WIDTH = 100  # of tables in a file
# What stands for a mark of ours where the encoding lacks it: as wide, so that columns stay.
ASCII_MARKS = ((" ± ", "+/-"), ("°", "^"), ("→", ">"), (", …", "..."), ("…", "."), ("‹", "<"), ("›", ">"))


def in_marks_of(out: IO[str], text: str) -> str:
    """A text with the marks that a stream can write."""
    for mark, plain in _missing_marks(getattr(out, "encoding", None) or "utf-8"):
        text = text.replace(mark, plain)
    return text


@cache
def _missing_marks(encoding: str) -> list[tuple[str, str]]:
    """Those of `ASCII_MARKS` that the encoding lacks."""
    return [pair for pair in ASCII_MARKS if b"?" in pair[0].encode(encoding, "replace")]


class PipeConsole(Console):
    """A console whose reader may leave, and whose encoding may be any.

    The BrokenPipeError goes on, where rich would end the process with code 1. Marks become ASCII where rules do.
    """

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the error."""
        raise

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Called by rich for whatever is shown, and for its parts."""
        for text, style, control in super().render(renderable, options):
            yield Segment(in_marks_of(self.file, text), style, control)


class _Clock(ProgressColumn):
    """Seconds so far, and those that are left where that can be known."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Called by rich."""
        left = task.time_remaining if task.total and task.percentage < 100 else None
        return Text(f"{task.elapsed or 0:.0f} s" + ("" if left is None else f", {left:.0f} s left"), style="dim")


class Aside:
    """What a person is told beside the output, on stderr; called with a line, it tells that.

    The newest one shows what `activity` announces.

    Args:
        quiet: tell nothing.

    Attributes:
        console: for what is told with --quiet too.
    """

    def __init__(self, quiet: bool) -> None:
        self.console = PipeConsole(stderr=True, highlight=False)
        self._quiet = quiet
        self._running: Progress | None = None
        watch(self.doing)

    def __call__(self, line: str) -> None:
        """Tell a line, as it is."""
        if not self._quiet:
            if self.console.is_terminal:  # which would break it within a word
                self.console.print(Sentence(line, "dim"), crop=False)
            else:
                self.console.print(line, markup=False, soft_wrap=True)

    def notes(self, lines: Iterable[str]) -> None:
        """Tell what is worth knowing about what was loaded."""
        for line in lines:
            self(f"note: {line}")

    def show(self, what: RenderableType, style: str | None = None) -> None:
        """Show something that rich renders."""
        if not self._quiet:
            self.console.print(what, style=style)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Bars that leave nothing behind; on a terminal alone."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with self._one_line(*columns) as progress:
            yield progress

    @contextmanager
    def doing(self, what: str, total: float | None) -> Iterator[Advance]:
        """A line that leaves nothing behind, on a terminal alone; of what is done within something else, the inner."""
        if self._running is not None:
            with self._instead(self._running, what, total) as advance:
                yield advance
            return
        words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        with self._one_line(SpinnerColumn("line"), words, _Clock()) as progress:
            task = progress.add_task(what, total=total)
            yield lambda amount: progress.advance(task, amount)

    @contextmanager
    def _instead(self, progress: Progress, what: str, total: float | None) -> Iterator[Advance]:
        """A line in place of those that are there, for a while."""
        outer = [task.id for task in progress.tasks if task.visible]
        for other in outer:
            progress.update(other, visible=False)
        inner = progress.add_task(what, total=total)
        try:
            yield lambda amount: progress.advance(inner, amount)
        finally:
            progress.remove_task(inner)
            for other in outer:
                progress.update(other, visible=True)

    @contextmanager
    def _one_line(self, *columns: ProgressColumn) -> Iterator[Progress]:
        disable = self._quiet or not self.console.is_terminal
        # Stdout is not rich's to redirect: what goes there is the output, and the line is gone before it comes.
        with Progress(
            *columns, console=self.console, transient=True, disable=disable, redirect_stdout=False,
            redirect_stderr=False,
        ) as progress:  # fmt: skip
            self._running = progress
            try:
                yield progress
            finally:
                self._running = None


@contextmanager
def output(path: Path | None) -> Iterator[TextIO]:
    """The file of --output, which appears when it is complete; stdout without one, or where it cannot be written.

    Raises:
        OSError: the file cannot be written; names it. Stdout has what was to go there.
    """
    if path is None:
        yield sys.stdout
        return
    kept = _Kept(path)
    try:
        yield cast(TextIO, kept)
        kept.deliver()
    finally:
        kept.leave()


class _Kept(io.TextIOBase):
    """Text on its way to a file, kept until it has arrived; a device or a pipe gets it at once."""

    encoding = "utf-8"  # of the file

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text: list[str] = []
        self._failure: OSError | None = None
        self._device: TextIO | None = None
        if is_device(path):
            self._attempt(self._open)

    def write(self, text: str) -> int:
        self._text.append(text)
        if self._device is not None:
            device = self._device
            self._attempt(lambda: device.write(text))
        return len(text)

    def flush(self) -> None:
        if self._device is not None:
            self._attempt(self._device.flush)

    def deliver(self) -> None:
        """It is complete."""
        self.flush()
        if self._device is None and self._failure is None:
            self._attempt(self._write)
        if self._failure is not None:
            sys.stdout.writelines(self._text)
            sys.stdout.flush()
            raise self._failure

    def leave(self) -> None:
        """Close what is open, whatever came of it."""
        if self._device is not None:
            with suppress(OSError):  # was told before
                self._device.close()

    def _open(self) -> None:
        self._device = open_text(self._path, "w")

    def _write(self) -> None:
        with whole_file(self._path) as file:
            file.writelines(self._text)

    def _attempt(self, step: Callable[[], object]) -> None:
        if self._failure is not None:
            return
        try:
            step()
        except BrokenPipeError:  # the reader of a pipe has left: that is no failure
            raise
        except OSError as error:
            self._failure = error


def each(*steps: Callable[[], None]) -> None:
    """Take every step, though one before it failed to write what it should; a reader who leaves is no failure.

    Raises:
        OSError: of the first that failed.
    """
    failure: OSError | None = None
    for step in steps:
        try:
            step()
        except BrokenPipeError:
            leave_stdout()
        except OSError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def write_markdown(text: str, out: IO[str]) -> None:
    """Tables with the marks that the stream has."""
    out.write(in_marks_of(out, text))


def table_console(out: IO[str]) -> PipeConsole:
    """A console for tables: as wide as the terminal or COLUMNS, and of one width where neither says anything."""
    width = None if out.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return PipeConsole(file=out, highlight=False, width=width)
