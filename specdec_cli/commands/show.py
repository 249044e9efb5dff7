"""`specdec show`: the screen of a command once more, from what it saved. Nothing is measured, no weight is read."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.text import Text

from specdec_cli.commands.saved import is_sweep, measurement_of
from specdec_cli.errors import UsageError
from specdec_cli.reports.console import PipeConsole, each, output, table_console
from specdec_cli.reports.saved import (
    ANSWERS,
    CHECK,
    COMPARISON,
    MEASUREMENT,
    PREDICTION,
    RUNS,
    TRACE,
    Saved,
    read_saved,
)


@dataclass(frozen=True)
class ShowRequest:
    """Everything that the command line decides."""

    file: Path
    plot: Path | None = None
    output: Path | None = None


def run(request: ShowRequest) -> int:
    """Read it, show it, plot it; the exit code."""
    saved = read_saved(request.file)
    if request.plot is not None and saved.kind not in (MEASUREMENT, RUNS, PREDICTION):
        raise UsageError(
            f"--plot is for results of bench, sweep-k and predict, and {saved.path} is {saved.said}: leave it out"
        )
    show = _screens()[saved.kind]
    with output(request.output) as out:
        screen = _Screen(out)  # so that a file that is not whole leaves nothing half shown
        with saved.as_written():
            show(saved, screen)
        out.write(screen.getvalue())
        out.flush()
    each(lambda: _plot(request, saved))
    return 0


class _Screen(io.StringIO):
    """Keeps what is written, in the form that another stream would get."""

    def __init__(self, like: IO[str]) -> None:
        super().__init__()
        self._like = like

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream."""
        return getattr(self._like, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether it is a terminal, which has colours and a width."""
        return self._like.isatty()

    def fileno(self) -> int:
        """Of the stream, whose width is asked for."""
        return self._like.fileno()


def _screens() -> dict[str, Callable[[Saved, IO[str]], None]]:
    return {
        MEASUREMENT: _measurement,
        RUNS: _measurement,
        PREDICTION: _prediction,
        CHECK: _check,
        ANSWERS: _answers,
        TRACE: _trace,
        COMPARISON: _comparison,
    }


def _measurement(saved: Saved, out: IO[str]) -> None:
    from specdec_cli.reports.screens import measurement_screen

    document = measurement_of(saved)
    measurement_screen(document, out, sweep=is_sweep(document))


def _prediction(saved: Saved, out: IO[str]) -> None:
    from specdec_cli.reports.predict import predict_report

    table_console(out).print(predict_report(saved.records[0]), crop=False)


def _check(saved: Saved, out: IO[str]) -> None:
    from specdec_cli.reports.pair_check import print_pairs

    print_pairs(saved.records[0], PipeConsole(file=out, highlight=False))


def _answers(saved: Saved, out: IO[str]) -> None:
    from specdec_cli.reports.tables import generation_summary

    console = PipeConsole(file=out, highlight=False)
    for number, record in enumerate(saved.records):
        text = record["text"]
        out.write(("\n" if number else "") + text + ("" if text.endswith("\n") or not text else "\n"))
        console.print(generation_summary(record), style="dim")


def _trace(saved: Saved, out: IO[str]) -> None:
    from specdec_cli.reports.trace import trace_report

    table_console(out).print(trace_report(saved.records))


def _comparison(saved: Saved, out: IO[str]) -> None:
    from specdec_cli.reports.comparison import comparison_report

    table_console(out).print(comparison_report(saved.records[0]))


def _plot(request: ShowRequest, saved: Saved) -> None:
    if request.plot is None:
        return
    with saved.as_written():
        draw = _drawn(saved)
    draw(request.plot)
    PipeConsole(stderr=True, highlight=False).print(Text(f"plot: {request.plot}", style="dim"), soft_wrap=True)


def _drawn(saved: Saved) -> Callable[[Path], None]:
    """What draws it to a file."""
    from specdec_cli.reports.plots import plot_sweep, plot_theory

    if saved.kind != PREDICTION:
        from specdec_cli.reports.bench import machine

        document = measurement_of(saved)
        if not all(isinstance(result["k"], int) for result in document["results"]):
            raise UsageError(f"--plot draws speedup against K, and K of {saved.path} is a rule: leave it out")
        target, where = document["settings"]["target"]["source"], machine(document["environment"])
        return lambda path: plot_sweep(document["results"], path, target=target, machine=where)
    return _theory(saved.records[0], plot_theory)


def _theory(record: dict[str, Any], plot: Callable[..., None]) -> Callable[[Path], None]:
    from specdec_cli.prediction import PLOTTED_ROUNDS, Costs, curves
    from specdec_cli.reports.predict import headline

    settings = record["settings"]
    verify = {int(k): v for k, v in settings["verify"].items()}
    costs = Costs(settings["cost"], verify.__getitem__, settings["overhead"])
    simulated = bool(settings["simulate"])
    tokens, speedups = curves(
        settings["alpha"], costs, tuple(settings["k"]), simulated, random.Random(settings["seed"])
    )
    note = f"; {PLOTTED_ROUNDS:,} rounds simulated a point, seed {settings['seed']}" if simulated else ""
    return lambda path: plot(tokens, speedups, path, alpha=settings["alpha"], costs=headline(record) + note)
