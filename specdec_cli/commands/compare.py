"""`specdec compare`: two saved results of bench or sweep-k side by side. Nothing is measured."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.commands.saved import measurement_of
from specdec_cli.reports.bench import machine
from specdec_cli.reports.comparison import comparison_report
from specdec_cli.reports.console import output, table_console
from specdec_cli.reports.export import document, to_json
from specdec_cli.reports.saved import Saved, read_saved


@dataclass(frozen=True)
class CompareRequest:
    """Everything that the command line decides."""

    a: Path
    b: Path
    output_format: str = "table"
    output: Path | None = None


def run(request: CompareRequest) -> int:
    """Read both, compare them, tell it; the exit code."""
    made = _compared(read_saved(request.a), read_saved(request.b))
    with output(request.output) as out:
        if request.output_format == "json":
            out.write(to_json(made, indent=2) + "\n")
        else:
            table_console(out).print(comparison_report(made))
        out.flush()
    return 0


def _compared(a: Saved, b: Saved) -> dict[str, Any]:
    """The document; its keys are listed in docs/scripting.md."""
    ours, theirs = measurement_of(a), measurement_of(b)
    from specdec_cli.measurement.comparison import compare

    heads, found = {}, {}
    for letter, saved, measured, other in (("a", a, ours, ours), ("b", b, theirs, ours)):
        with saved.as_written():  # the first beside itself, so that a fault is told of the file that has it
            heads[letter] = _head(measured)
            found = compare(other, measured)
    environment: dict[str, object] = {"python": platform.python_version(), "platform": platform.platform()}
    return document(environment, {"a": str(a.path), "b": str(b.path)}, **heads, **found)


def _head(measured: dict[str, Any]) -> dict[str, Any]:
    """Where and with what it was measured."""
    return {
        "specdec_version": measured["specdec_version"],
        "machine": machine(measured["environment"]),
        "target": measured["settings"]["target"]["source"],
    }
