"""What fits the terminal: tables that lose columns where it is narrow, and names that are never broken.

A table's width is known only when it is rendered. So these are renderables of rich, which ask for it then.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

ENDLESS = 10_000  # columns, to ask how wide something would like to be
# What the short headings stand for, by the columns that must be there for it to be told.
LEGEND = (
    (("alpha",), "alpha accepted"),
    (("c", "v", "o"), "c draft, v verify, o rest in target steps"),
    (("closed", "ext."), "closed, ext. formulas"),
)


class Sentence:
    """Text that is broken at blanks only: a path or an id that is wider than the terminal sticks out, whole."""

    def __init__(self, text: str, style: str = "") -> None:
        self.text, self._style = text, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        lines = textwrap.wrap(self.text, options.max_width, break_long_words=False, break_on_hyphens=False)
        yield unbroken("\n".join(lines), self._style)


def unbroken(text: str, style: str = "") -> Text:
    """Text that is not broken at all, to be copied: where it is too wide, the terminal wraps it."""
    return Text(text, style=style, overflow="ignore", no_wrap=True)


class FittingTable:
    """A table of short cells that is whole at any width.

    Where it is too wide it loses columns from the right, of those that may go. If that is not enough, the names in its
    first column become numbers, which are told above it.

    Args:
        headings: of the columns.
        rows: cells, as many as headings.
        styles: of the rows.
        may_go: headings of the columns that may be left out.
        left: headings of the columns that stand to the left; all others to the right.
        named: the first column holds names, which may be long.
        legend: a line below it for its short headings.
        title: above it.
        gap: spaces between columns.
    """

    def __init__(
        self,
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        styles: Sequence[str] = (),
        may_go: Sequence[str] = (),
        left: Sequence[str] = (),
        named: bool = False,
        legend: bool = True,
        title: str | None = None,
        gap: int = 1,
    ) -> None:
        self._headings, self._rows, self._styles = headings, rows, styles or [""] * len(rows)
        self._may_go, self._left, self._named, self._title, self._gap = may_go, left, named, title, gap
        self._has_legend = legend

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        kept, names = list(self._headings), [row[0] for row in self._rows]
        for heading in [*reversed([h for h in self._headings if h in self._may_go]), None]:
            table = self._table(kept, names)
            if natural_width(console, options, table) <= options.max_width:
                break
            if heading is None and self._named:
                numbers = {name: str(i) for i, name in enumerate(dict.fromkeys(names), start=1)}
                yield from (unbroken(f"{number}: {name}") for name, number in numbers.items())
                table = self._table(kept, [numbers[name] for name in names])
            elif heading is not None:
                kept.remove(heading)
        yield table
        if self._has_legend and (legend := self._legend(kept)):
            yield Text(legend, style="dim")

    def _table(self, kept: Sequence[str], names: Sequence[str]) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, self._gap, 0, 0) if self._gap else 0,
            title=self._title, title_justify="left",
        )  # fmt: skip
        for heading in kept:
            table.add_column(heading, justify="left" if heading in self._left else "right", no_wrap=True)
        places = [self._headings.index(heading) for heading in kept]
        for row, name, style in zip(self._rows, names, self._styles, strict=True):
            cells = [name, *row[1:]]
            table.add_row(*(Text(cells[i]) for i in places), style=style)
        return table

    def _legend(self, kept: Sequence[str]) -> str:
        """A line for what stands in the table, of what has a short heading."""
        parts = []
        for headings, words in LEGEND:
            there = [heading for heading in headings if heading in kept]
            if len(there) == len(headings):
                parts.append(words)
            elif there:  # the words of those that went go too
                meanings = dict(part.split(" ", 1) for part in words.removesuffix(" in target steps").split(", "))
                tail = " in target steps" if "c" in there else ""
                parts.append(", ".join(f"{h} {meanings.get(h, 'formula')}" for h in there) + tail)
        return "; ".join(parts)


def natural_width(console: Console, options: ConsoleOptions, what: RenderableType) -> int:
    """Columns that something takes where nothing of it is broken."""
    return Measurement.get(console, options.update(width=ENDLESS, max_width=ENDLESS), what).maximum
