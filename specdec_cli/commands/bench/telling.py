"""What is told of it: the document in the format that was asked for, and its plot."""

from __future__ import annotations

from typing import IO, Any

from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.reports import bench as reports
from specdec_cli.reports.console import Aside, output, write_markdown
from specdec_cli.reports.export import to_json
from specdec_cli.reports.rows import to_csv, to_markdown
from specdec_cli.reports.screens import measurement_screen


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
