"""Whole screens of results: what a command prints in the end, and what `specdec show` prints of the saved document."""

from __future__ import annotations

from typing import IO, Any

from specdec_cli.reports import bench as reports
from specdec_cli.reports.console import table_console


def measurement_screen(document: dict[str, Any], out: IO[str], *, sweep: bool, verbose: bool = False) -> None:
    """The screen of `sweep-k`, or that of `bench`: tables, a plot where there are several K, and the answer last."""
    report = reports.sweep_report if sweep else reports.bench_report
    table_console(out).print(report(document, verbose), crop=False)
