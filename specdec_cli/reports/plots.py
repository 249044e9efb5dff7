"""Speedup against K, measured or predicted, drawn to a file by matplotlib, or in a terminal by plain characters.

Points are what was measured, curves what the forms say. Drafts differ by colour and by marker, forms by line style, so
that a grey print tells them apart; the colours (Okabe and Ito) are told apart also by those who see fewer of them.

Matplotlib is an extra and is imported late. Nothing here touches pyplot, and with it global state or a display.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_cli.errors import SpecdecError, UsageError
from specdec_cli.reports.export import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from specdec_cli.prediction import Curve

SUFFIXES = (".png", ".svg")
LABEL_WIDTH = 15  # of a text plot
INSTALL = "pip install 'specdec-cli[plot]'"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", (0, (8, 2)), (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
CHARACTERS_PER_INCH = 14  # of the small print
INK, QUIET, FAINT = "#222222", "#5f5f5f", "#dddddd"
# A panel's legend, under its title and out of the way of what is drawn.
ABOVE: Any = {"bbox_to_anchor": (-0.015, 1.0), "borderaxespad": 0.2, "title_fontproperties": {"weight": "bold"}}
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a path may hold dollar signs
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "specdec",  # the same data, the same file
}


@dataclass(frozen=True)
class Point:
    """One draft, K and temperature: speedups over plain decoding.

    Attributes:
        low, high: the interval of the measured one; the same where there is none.
        closed_form, extended: what the forms say; None where there was too little to say.
        best: the K to use of this draft at this temperature.
        measurable: whether it may be; see `measurement.plausibility`.
    """

    draft: str
    temperature: float
    k: int
    speedup: float
    low: float
    high: float
    closed_form: float | None
    extended: float | None
    best: bool
    measurable: bool = True


def check_plot(path: Path, option: str) -> None:
    """Fail before anything is measured, not after.

    Raises:
        UsageError: the file's suffix is none that can be drawn.
        SpecdecError: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{option} {path} must end in {' or '.join(SUFFIXES)}, the formats that can be drawn")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise SpecdecError(f"{option} needs matplotlib: {INSTALL}") from error


def points_of(results: Sequence[Mapping[str, Any]]) -> dict[float, dict[str, list[Point]]]:
    """Results over all prompts, by temperature and draft, each by K.

    Where no result of a draft says that it is the best (`best`), the highest is.
    """
    found: dict[float, dict[str, list[Point]]] = {}
    for result in sorted((r for r in results if r["category"] == "all"), key=lambda r: (r["temperature"], r["k"])):
        speedup = result["speedup"]
        low, high = result["speedup_ci"] or (speedup, speedup)
        predicted = result["predicted"]
        point = Point(
            result["draft"], result["temperature"], result["k"], speedup, low, high,
            predicted["closed_form"], predicted["extended"], bool(result.get("best")),
            bool(result.get("measurable", True)),
        )  # fmt: skip
        found.setdefault(point.temperature, {}).setdefault(point.draft, []).append(point)
    return found


def best_of(points: Sequence[Point]) -> Point | None:
    """The one that is marked, else the highest; None where nothing was measured."""
    measured = [point for point in points if point.measurable]
    return max(measured, key=lambda point: (point.best, point.speedup), default=None)


# -------------------------------------------------------------------------------------------- text
def text_plot(results: Sequence[Mapping[str, Any]], width: int = 80) -> str:
    """Bars of plain characters, a block for each temperature and draft, all on one scale.

    A bar of `#` reaches the measured speedup, `=` stand where its interval lies, `c` and `e` at the closed and the
    extended form's, `|` at break-even; `*` is the K to use.
    """
    panels = points_of(results)
    points = [point for by_draft in panels.values() for drafted in by_draft.values() for point in drafted]
    highest = max([1.0, *(y for p in points for y in (p.high, p.closed_form, p.extended) if y is not None)])
    columns = max(10, width - LABEL_WIDTH - 1)
    lines = []
    for temperature, by_draft in panels.items():
        for draft, drafted in by_draft.items():
            lines.append(f"temperature {temperature:g}, draft {_short(draft, width - 26)}")
            best = best_of(drafted)
            for point in drafted:
                mark = "*" if point is best else " "
                bar = _bar(point, columns / highest)
                lines.append(f"{f'K {point.k}':>6} {point.speedup:5.2f}x{mark} {bar}".rstrip())
            lines.append("")
    lines += textwrap.wrap("# measured, = 95 % interval, e extended, c closed form, | break-even, * best", width)
    return "\n".join(lines)


def _bar(point: Point, scale: float) -> str:
    def column(speedup: float) -> int:
        return max(0, round(speedup * scale) - 1)

    end = 1 + max(column(y) for y in (1.0, point.high, point.closed_form, point.extended) if y is not None)
    bar = ["#" if i <= column(point.speedup) else " " for i in range(end)]
    if point.low < point.high:
        bar[column(point.low) : column(point.high) + 1] = "=" * (column(point.high) - column(point.low) + 1)
    for character, speedup in (("|", 1.0), ("c", point.closed_form), ("e", point.extended)):
        if speedup is not None:
            bar[column(speedup)] = character
    return "".join(bar)


# ---------------------------------------------------------------------------------------- matplotlib
def plot_sweep(results: Sequence[Mapping[str, Any]], path: Path, *, machine: str, target: str = "") -> None:
    """Draw measured speedup against K, one panel a temperature, one colour a draft.

    Args:
        results: as `bench` and `sweep-k` give them; those over all prompts are drawn.
        path: a .png or .svg file, see `check_plot`.
        machine: where and how it was measured, for the line under the heading.
        target: the target's name, for the heading.
    """
    panels = points_of(results)
    drafts = list(dict.fromkeys(draft for by_draft in panels.values() for draft in by_draft))
    title = "Speedup against K" + (f", target {_short(target, 30)}" if target else "")
    with _figure(path, max(7.0, 4.9 * len(panels)), 4.6 + 0.2 * len(drafts), title, machine) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for ax, (temperature, by_draft) in zip(axes, panels.items(), strict=True):
            _draw_panel(ax, temperature, {draft: by_draft[draft] for draft in drafts if draft in by_draft}, drafts)
        axes[0].set_ylabel("speedup over plain decoding")
        points = [point for by_draft in panels.values() for points in by_draft.values() for point in points]
        heights = [y for p in points for y in (p.low, p.high, p.closed_form, p.extended) if y is not None]
        _scale_heights(axes, [1.0, *heights])  # break-even is on it
        _explain_lines(figure, axes[0])


def _draw_panel(ax: Axes, temperature: float, by_draft: Mapping[str, Sequence[Point]], drafts: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    ks = sorted({point.k for points in by_draft.values() for point in points})
    _panel(ax)
    ax.axhline(1.0, color=INK, linewidth=1.2, linestyle=":", zorder=1)
    _count_k(ax, ks)
    step = min(0.13, 0.6 / len(by_draft)) * min((b - a for a, b in pairwise(ks)), default=1)
    entries = []
    for place, (draft, points) in enumerate(by_draft.items()):
        number = drafts.index(draft)
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        # Side by side, or the intervals of drafts that are alike would hide each other.
        _draw_draft(ax, points, colour, marker, (place - (len(by_draft) - 1) / 2) * step)
        best = best_of(points)
        what = "not measurable" if best is None else f"best {best.speedup:.2f}x at K {best.k}"
        label = f"{_short(draft)}: {what}"
        entries.append(Line2D([], [], color=colour, marker=marker, linestyle="", markersize=6, label=label))
    title = f"temperature {temperature:g}"
    ax.legend(handles=entries, title=title, alignment="left", loc="lower left", handletextpad=0.2, **ABOVE)


def _draw_draft(ax: Axes, points: Sequence[Point], colour: str, marker: str, aside: float) -> None:
    hollow: dict[str, Any] = {"marker": marker, "markerfacecolor": "white", "markersize": 5}
    for form, style in (("closed_form", "--"), ("extended", "-")):
        known = [point for point in points if getattr(point, form) is not None]
        ks = [float(point.k) for point in known]
        heights = [getattr(point, form) for point in known]
        if len(known) == 1:  # a curve of one point cannot be seen
            ks, heights = [ks[0] - 0.15, ks[0] + 0.15], heights * 2
        highest = {"markevery": [heights.index(max(heights))]} | hollow if len(known) > 1 else {}
        ax.plot(ks, heights, style, color=colour, linewidth=1.4, alpha=0.85, **highest)
    places = [point.k + aside for point in points]
    # A bootstrap's interval need not hold the figure itself.
    errors = [[max(0.0, p.speedup - p.low) for p in points], [max(0.0, p.high - p.speedup) for p in points]]
    ax.errorbar(places, [point.speedup for point in points], yerr=errors, color=colour, **_measured(marker), zorder=3)
    if best := best_of(points):
        ax.plot(
            [best.k + aside], [best.speedup], marker, color="none", markeredgecolor=colour, markersize=12,
            markeredgewidth=1.5, zorder=4,
        )  # fmt: skip


def _measured(marker: str) -> dict[str, Any]:
    point = {"fmt": marker, "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 0.8}
    return point | {"elinewidth": 1.4, "capsize": 2.5}


def _panel(ax: Axes) -> None:
    ax.grid(axis="y", color=FAINT, linewidth=0.7)
    ax.set_axisbelow(True)


def _count_k(ax: Axes, ks: Sequence[int]) -> None:
    """The axis of K, with as many of them named as have room."""
    ax.set_xlabel("K, tokens drafted a round")
    span = max(ks) - min(ks)
    ax.set_xlim(min(ks) - max(0.5, span * 0.05), max(ks) + max(0.5, span * 0.05))
    ticks: list[int] = []
    for k in ks:
        if not ticks or k - ticks[-1] >= span / 16:
            ticks.append(k)
    ax.set_xticks(ticks)


def _scale_heights(axes: Sequence[Axes], speedups: Sequence[float]) -> None:
    """One scale that holds all of them."""
    low, high = min(speedups), max(speedups)
    room = max(0.05, (high - low) * 0.06)
    axes[0].set_ylim(low - room, high + room)
    axes[0].yaxis.set_major_formatter(lambda y, _: f"{y:.2f}x")  # ticks may be quarters


def _explain_lines(figure: Figure, ax: Axes) -> None:
    from matplotlib.lines import Line2D

    nowhere = [float("nan")]
    measured = ax.errorbar(
        nowhere, nowhere, yerr=nowhere, color=QUIET, label="measured, 95 % interval", **_measured("o")
    )
    hollow: dict[str, Any] = {"linestyle": "", "marker": "o", "markerfacecolor": "white", "markersize": 5}
    lines = [
        Line2D([], [], color=QUIET, linestyle="-", linewidth=1.4, label="extended form"),
        Line2D([], [], color=QUIET, linestyle="--", linewidth=1.4, label="closed form"),
        Line2D([], [], color=QUIET, **hollow, label="form's best"),
        Line2D([], [], color=INK, linestyle=":", linewidth=1.2, label="break-even"),
    ]
    figure.legend(
        handles=[measured, *lines],
        loc="outside lower left",
        ncols=5,
        columnspacing=1.0,
        handlelength=1.7,
        handletextpad=0.5,
    )


def plot_theory(tokens: Sequence[Curve], speedups: Sequence[Curve], path: Path, *, alpha: float, costs: str) -> None:
    """Draw the two panels everyone knows: tokens a pass against alpha, and speedup against K with the optimum marked.

    Args:
        tokens, speedups: the curves of each panel, see `prediction.curves`.
        path: a .png or .svg file, see `check_plot`.
        alpha: marked in the first panel.
        costs: what the second holds for, for the line under the heading.
    """
    rows = max(len(tokens), len(speedups))
    with _figure(path, 10.0, 4.6 + 0.2 * rows, "Speculative decoding by formula", costs) as figure:
        left, right = figure.subplots(1, 2)
        for ax, curves in ((left, tokens), (right, speedups)):
            _panel(ax)
            entries = [_draw_curve(ax, curve, i) for i, curve in enumerate(curves)]
            ax.legend(
                handles=entries, title="tokens a pass of the target" if ax is left else "speedup over plain decoding",
                alignment="left", loc="lower left", handlelength=3.6, **ABOVE,
            )  # fmt: skip
        left.axvline(alpha, color=INK, linewidth=1.2, linestyle=":", zorder=1)
        left.set(xlabel="alpha, the probability that a drafted token is accepted", xlim=(0, 1.01))
        left.set_ylim(1, max(max(curve.ys) for curve in tokens) * 1.03)
        right.axhline(1.0, color=INK, linewidth=1.2, linestyle=":", zorder=1)
        _count_k(right, [int(x) for x in speedups[0].xs])
        _scale_heights([right], [1.0, *(y for curve in speedups for y in curve.ys)])
        dotted = f"dotted: alpha {alpha:g} on the left, break-even on the right"
        points = "points: the accept/reject rule simulated; " if any(curve.simulated for curve in tokens) else ""
        figure.supxlabel(points + dotted, x=0.01, ha="left", fontsize=9, color=QUIET)


def _draw_curve(ax: Axes, curve: Curve, number: int) -> Line2D:
    from matplotlib.lines import Line2D

    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    width = 2.4 if curve.chosen else 1.3
    look: dict[str, Any] = {"color": colour, "linewidth": width, "linestyle": LINES[number % len(LINES)]}
    ax.plot(curve.xs, curve.ys, **look)
    point: dict[str, Any] = {"marker": marker, "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 0.8}
    for x, y in curve.simulated:
        ax.plot([x], [y], color=colour, **point, zorder=3)
    name = curve.name
    if curve.best is not None:
        k, height = curve.best
        ax.plot([k], [height], color=colour, **point | {"markersize": 9}, zorder=4)
        name += f": best {height:.2f}x at K {k:g}"
    drawn = point if curve.simulated or curve.best is not None else {}
    return Line2D([], [], **look, **drawn, label=name)


@contextmanager
def _figure(path: Path, width: float, height: float, title: str, subtitle: str) -> Iterator[Figure]:
    """A figure of so many inches under a heading, written when it is complete."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    lines = textwrap.wrap(subtitle, int(width * CHARACTERS_PER_INCH))
    head = 0.42 + 0.17 * len(lines)
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height + head))
        engine = ConstrainedLayoutEngine(rect=(0.0, 0.0, 1.0, height / (height + head)), w_pad=0.1, h_pad=0.06)
        figure.set_layout_engine(engine)
        left, top = 0.1 / width, 1 - 0.1 / (height + head)
        figure.text(left, top, title, va="top", fontsize=13, fontweight="bold")
        figure.text(left, top - 0.28 / (height + head), "\n".join(lines), va="top", fontsize=9, color=QUIET)
        yield figure
        drawn = io.BytesIO()
        kind = path.suffix.lower().removeprefix(".")
        figure.savefig(drawn, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    write_whole(path, drawn.getvalue())


def _short(name: str, length: int = 40) -> str:
    """A name that fits a legend: a long path keeps its end."""
    return name if len(name) <= length else "..." + name[-(length - 3) :]
