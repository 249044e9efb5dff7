"""Plots: what is on them, read back from the SVG's text and from the terminal's characters; and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from specdec_cli import theory
from specdec_cli.errors import SpecdecError, UsageError
from specdec_cli.reports.plots import _draw_draft, check_plot, plot_sweep, points_of, text_plot

MACHINE = "a machine of 2 cores"


def result(k: int, speedup: float, **more: Any) -> dict[str, Any]:
    """One result over all prompts."""
    closed = theory.speedup(0.8, k, 0.1)
    base: dict[str, Any] = {
        "draft": "demo:draft", "k": k, "category": "all", "temperature": 0.0, "speedup": speedup,
        "speedup_ci": (speedup - 0.1, speedup + 0.1), "predicted": {"closed_form": closed, "extended": closed * 0.9},
    }  # fmt: skip
    return base | more


SWEEP = [result(1, 1.3), result(2, 1.6, best=True), result(4, 1.65), result(8, 0.9)]
UNKNOWN = {"closed_form": None, "extended": None}


def svg_text(path: Path) -> list[str]:
    return ["".join(e.itertext()) for e in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def draw(folder: Path, results: list[dict[str, Any]], **more: str) -> list[str]:
    path = folder / "plot.svg"
    plot_sweep(results, path, machine=MACHINE, **more)
    return svg_text(path)


# To a file


def test_a_plot_says_what_it_shows(tmp_path: Path) -> None:
    texts = draw(tmp_path, SWEEP, target="demo:target")
    assert {"Speedup against K, target demo:target", MACHINE, "temperature 0"} <= set(texts)
    assert {"K, tokens drafted a round", "speedup over plain decoding"} <= set(texts)
    assert {"measured, 95 % interval", "extended form", "closed form", "form's best", "break-even"} <= set(texts)
    assert {"1", "2", "4", "8"} <= set(texts)
    assert "demo:draft: best 1.60x at K 2" in texts  # as marked, though K 4 is a little higher


def test_what_is_no_measurement_is_not_best(tmp_path: Path) -> None:
    doubtful = [r | {"best": False, "measurable": False} for r in SWEEP]
    assert "demo:draft: not measurable" in draw(tmp_path, doubtful)
    assert "*" not in text_plot(doubtful).rpartition("#")[0]
    one = [r | {"best": False, "measurable": r["k"] != 4} for r in SWEEP]
    assert "demo:draft: best 1.60x at K 2" in draw(tmp_path, one)


def test_without_a_mark_the_highest_is_best(tmp_path: Path) -> None:
    assert "demo:draft: best 1.65x at K 4" in draw(tmp_path, [r | {"best": False} for r in SWEEP])


def test_the_hollow_marks_stand_where_each_form_is_highest() -> None:
    from matplotlib.figure import Figure

    forms = [{"closed_form": c, "extended": e} for c, e in ((1.5, 1.4), (2.0, 1.6), (2.4, 1.9), (2.2, 2.1))]
    results = [r | {"predicted": p} for r, p in zip(SWEEP, forms, strict=True)]
    ax = Figure().subplots()
    _draw_draft(ax, points_of(results)[0.0]["demo:draft"], "#000000", "o", 0.0)
    lines: Any = ax.lines[:2]
    marked = {line.get_linestyle(): line.get_xdata()[line.get_markevery()[0]] for line in lines}
    assert marked == {"--": 4, "-": 8}


def test_a_panel_a_temperature_and_a_line_a_draft(tmp_path: Path) -> None:
    more = [r | {"temperature": 0.8} for r in SWEEP] + [result(4, 1.1, draft="ngram", temperature=0.8)]
    texts = draw(tmp_path, SWEEP + more)
    assert [t for t in texts if t.startswith("temperature")] == ["temperature 0", "temperature 0.8"]
    best = [t for t in texts if ": best" in t]
    assert best == ["demo:draft: best 1.60x at K 2"] * 2 + ["ngram: best 1.10x at K 4"]


def test_only_results_over_all_prompts_are_drawn(tmp_path: Path) -> None:
    one_category = result(3, 77.0, category="code")
    assert draw(tmp_path, [*SWEEP, one_category]) == draw(tmp_path, SWEEP)
    assert text_plot([*SWEEP, one_category]) == text_plot(SWEEP)


@pytest.mark.parametrize(
    "results",
    [
        [result(4, 1.2)],
        [result(4, 1.2, speedup_ci=None, predicted=UNKNOWN)],
        [result(4, 1.2, speedup_ci=(1.25, 1.3))],
        [result(k, 1.0, draft=f"/a/$HOME/_{'long' * 30}_$x") for k in range(1, 101)],
        [result(k, 1.0 + k / 10, draft=f"draft {n}") for k in (1, 2) for n in range(9)],
    ],
    ids=["one-point", "nothing-known", "interval-beside", "awkward-name", "more-drafts-than-colours"],
)
def test_what_is_unusual_is_drawn_too(tmp_path: Path, results: list[dict[str, Any]]) -> None:
    texts = draw(tmp_path, results)
    assert sum(": best" in t for t in texts) == len({r["draft"] for r in results})
    assert all(len(line) <= 80 for line in text_plot(results, 80).splitlines())


def test_a_png_is_one_and_the_same_data_give_the_same_svg(tmp_path: Path) -> None:
    plot_sweep(SWEEP, tmp_path / "plot.PNG", machine=MACHINE)
    assert (tmp_path / "plot.PNG").read_bytes().startswith(b"\x89PNG\r\n")
    for name in ("a.svg", "b.svg"):
        plot_sweep(SWEEP, tmp_path / name, machine=MACHINE)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_no_display_and_no_global_state_is_touched(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from specdec_cli.reports import plots\n"
        "assert 'matplotlib' not in sys.modules, 'imported too early'\n"
        f"plots.plot_sweep({SWEEP!r}, Path({str(tmp_path / 'x.png')!r}), machine='m')\n"
        "assert 'matplotlib.pyplot' not in sys.modules, 'pyplot is in'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["plot.txt", "plot", "plot.pdf", ".png"])
def test_another_suffix_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"--plot .* must end in \.png or \.svg"):
        check_plot(Path(name), "--plot")


@pytest.mark.parametrize("name", ["plot.png", "a b.SVG"])
def test_png_and_svg_are_taken(name: str) -> None:
    check_plot(Path(name), "--plot")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SpecdecError, match=r"--plot needs matplotlib: pip install 'specdec-cli\[plot\]'"):
        check_plot(Path("plot.png"), "--plot")


# In a terminal


def bars(text: str) -> dict[int, tuple[str, str]]:
    """K to (figure with its mark, bar)."""
    rows = re.findall(r"^ +K (\d+) +([\d.]+x\*?) +(\S.*)$", text, re.MULTILINE)
    return {int(k): (figure, bar) for k, figure, bar in rows}


def test_a_text_plot_marks_figures_best_and_break_even() -> None:
    text = text_plot(SWEEP, 80)
    assert text.splitlines()[0] == "temperature 0, draft demo:draft"
    found = bars(text)
    assert {k: figure for k, (figure, _) in found.items()} == {1: "1.30x", 2: "1.60x*", 4: "1.65x", 8: "0.90x"}
    assert len({bar.index("|") for _, bar in found.values()}) == 1
    assert text.isascii()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_text_plot_is_to_scale(width: int) -> None:
    """Each mark stands where its figure is, in units of the break-even column."""
    text = text_plot(SWEEP, width)
    assert max(map(len, text.splitlines()[:-1])) <= width
    found = bars(text)
    for item in SWEEP:
        _, bar = found[item["k"]]
        unit = bar.index("|") + 1
        closed, extended = item["predicted"]["closed_form"], item["predicted"]["extended"]
        for speedup, column in ((closed, bar.index("c")), (extended, bar.index("e"))):
            assert (column + 1) / unit == pytest.approx(speedup, abs=1.5 / unit)
    _, bar = found[2]
    assert (bar.rindex("=") + 1) / (bar.index("|") + 1) == pytest.approx(1.7, abs=1.5 / (bar.index("|") + 1))


def test_without_interval_and_forms_the_bar_is_the_figure() -> None:
    text = text_plot([result(1, 2.0, speedup_ci=None, predicted=UNKNOWN)], 80)
    _, bar = bars(text)[1]
    assert set(bar) == {"#", "|"}
    assert len(bar) == 2 * (bar.index("|") + 1)
