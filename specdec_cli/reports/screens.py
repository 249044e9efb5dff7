"""Whole screens of results: what a command prints in the end, and what `specdec show` prints of the saved document."""

from __future__ import annotations

from typing import IO, Any

from specdec_cli.reports import bench as reports
from specdec_cli.reports.console import table_console


def measurement_screen(document: dict[str, Any], out: IO[str], *, sweep: bool) -> None:
    """The screen of `sweep-k`, or that of `bench`: tables, verdict, and a plot where there are several K."""
    console = table_console(out)
    console.print(reports.sweep_report(document) if sweep else reports.bench_report(document))
    if sweep and len(document["settings"]["ks"]) > 1:
        from specdec_cli.reports.plots import text_plot

        console.print(text_plot(document["results"], console.width), markup=False, soft_wrap=True)
