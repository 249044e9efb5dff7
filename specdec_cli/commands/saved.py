"""Documents of bench and sweep-k, from a saved result or from the lines of a session."""

from __future__ import annotations

from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.reports.saved import MEASUREMENT, RUNS, Saved


def measurement_of(saved: Saved) -> dict[str, Any]:
    """The document.

    Raises:
        UsageError: the file holds something else, or no whole block.
    """
    if saved.kind == MEASUREMENT:
        return saved.records[0]
    if saved.kind != RUNS:
        raise UsageError(f"{saved.path} is {saved.said}: name a result of bench or sweep-k")
    from specdec_cli.measurement.readback import whole_document
    from specdec_cli.measurement.runs import Run

    with saved.as_written():
        session, *lines = saved.records
        if session["kind"] != "session":
            raise UsageError(f"{saved.path} does not begin with a session: name a whole file of --format jsonl")
        runs = [{key: value for key, value in line.items() if key != "kind"} for line in lines if line["kind"] == "run"]
        document = whole_document({k: v for k, v in session.items() if k != "kind"}, [*map(Run.from_record, runs)])
    if document is None:
        raise UsageError(f"{saved.path} holds no block that was measured to its end: go on with --resume {saved.path}")
    return document


def is_sweep(document: dict[str, Any]) -> bool:
    """Whether its screen is that of sweep-k; early documents do not say."""
    command = document.get("command")
    return len(document["settings"]["ks"]) > 1 if command is None else command == "sweep-k"
