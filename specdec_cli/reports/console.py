"""Where output goes: to stdout or a file, whole or not there; and what is told beside it, on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specdec_cli.reports.export import whole_file

PLAIN_WIDTH = 100  # of tables in a file


class PipeConsole(Console):
    """A console whose reader may leave: the BrokenPipeError goes on, where rich would end the process with code 1."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the error."""
        raise


class Aside:
    """What a person is told beside the output, on stderr; called with a line, it tells that.

    Args:
        quiet: tell nothing.

    Attributes:
        console: for what is told with --quiet too.
    """

    def __init__(self, quiet: bool) -> None:
        self.console = PipeConsole(stderr=True, highlight=False)
        self._quiet = quiet

    def __call__(self, line: str) -> None:
        """Tell a line, as it is."""
        if not self._quiet:
            self.console.print(line, style="dim", markup=False, soft_wrap=True)

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
        disable = self._quiet or not self.console.is_terminal
        with Progress(*columns, console=self.console, transient=True, disable=disable) as progress:
            yield progress


@contextmanager
def output(path: Path | None) -> Iterator[TextIO]:
    """The file of --output, which appears when it is complete; stdout without one."""
    if path is None:
        yield sys.stdout
        return
    with whole_file(path) as file:
        yield file


def table_console(out: IO[str]) -> PipeConsole:
    """A console for tables: as wide as the terminal or COLUMNS, and of one width where neither says anything."""
    width = None if out.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return PipeConsole(file=out, highlight=False, width=width)
