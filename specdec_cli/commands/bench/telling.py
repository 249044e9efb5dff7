"""What is told of it: the dry run's plan; afterwards the document in the format that was asked for, and its plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from specdec_cli.commands.bench.plan import Plan
from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.measurement.benchmark import estimate_s
from specdec_cli.measurement.runs import Run
from specdec_cli.reports import bench as reports
from specdec_cli.reports.console import Aside, PipeConsole, output, write_markdown
from specdec_cli.reports.export import to_json
from specdec_cli.reports.plan import plan_lines
from specdec_cli.reports.rows import to_csv, to_markdown
from specdec_cli.reports.screens import measurement_screen


def tell_plan(plan: Plan, warm: Mapping[float, Sequence[Run]], known: int) -> None:
    """What would be measured, and for how long.

    Args:
        warm: runs of the warm-up, by temperature.
        known: runs that are in the file of --resume already.
    """
    tokens = plan.request.settings.max_new_tokens
    console = PipeConsole(highlight=False)
    for line in plan_lines(
        arms={t: [(arm.name, arm.k) for arm in contest.arms] for t, contest in plan.contests.items()},
        answers=plan.answers,
        tokens=tokens,
        runs=plan.runs,
        known=known,
        resume=plan.request.resume,
        seconds=estimate_s(plan.contests, warm, plan.answers, tokens) * (plan.runs - known) / plan.runs,
    ):
        console.print(line, markup=False, soft_wrap=True)


def tell(request: BenchRequest, document: dict[str, Any], aside: Aside) -> None:
    """The document to --output or stdout; beside it where an exported configuration has stdout for itself.

    As jsonl it went there line by line.
    """
    if request.output_format == "jsonl":
        return
    if request.export is not None and request.output is None:
        if not request.quiet:
            _write(request, document, aside.console.file)
        return
    with output(request.output) as out:
        _write(request, document, out)


def plot(request: BenchRequest, document: dict[str, Any], aside: Aside) -> None:
    """The file of --plot; nothing without it."""
    if request.plot is None:
        return
    from specdec_cli.reports.plots import plot_sweep

    machine = reports.machine(document["environment"])
    plot_sweep(document["results"], request.plot, target=request.target.source, machine=machine)
    aside(f"plot: {request.plot}")


def _write(request: BenchRequest, document: dict[str, Any], out: IO[str]) -> None:
    if request.output_format == "json":
        out.write(to_json(document, indent=2) + "\n")
    elif request.output_format == "csv":
        out.write(to_csv(reports.rows(document)))
    elif request.output_format == "markdown":
        write_markdown(to_markdown(reports.short_rows(document)), out)
    else:
        measurement_screen(document, out, sweep=request.sweep, verbose=request.verbose)
    out.flush()
