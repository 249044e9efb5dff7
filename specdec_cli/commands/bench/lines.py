"""Runs as JSON lines, the moment they are measured: the file of --resume, and what --format jsonl writes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Any

from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.errors import UsageError
from specdec_cli.measurement.benchmark import Contest, whole_blocks
from specdec_cli.measurement.runs import Run
from specdec_cli.quantities import counted
from specdec_cli.reports.export import document
from specdec_cli.reports.runs_file import RunsFile, has_torn_line, keep_runs, read_runs


def known_runs(
    request: BenchRequest, head: dict[str, Any], contests: Mapping[float, Contest], report: Callable[[str], None]
) -> list[Run]:
    """What the file of --resume holds of this request; a lower --limit leaves some of it out.

    Args:
        head: environment and settings of this session.
        report: told in a line each what is left out, and why.

    Raises:
        UsageError: the file is of another session, or of another version.
    """
    if request.resume is None:
        return []
    try:
        runs = [Run.from_record(record) for record in read_runs(request.resume, **head)]
    except TypeError as error:
        raise UsageError(
            f"--resume {request.resume} was written by another version of specdec: name a new file"
        ) from error
    whole = whole_blocks(runs, contests)
    finished = {run.block for run in whole}
    kept = [run for run in whole if run.prompt <= len(request.prompts)]
    torn = sum(run.block not in finished for run in runs)
    again = len(runs) - torn - len(whole)
    for number, why in (
        (torn, "their answers were not finished by every draft and K, and are measured anew"),
        (again, "those answers were disturbed, and measured once more"),
        (len(whole) - len(kept), f"--limit leaves out their prompts now ({len(request.prompts)} are used)"),
    ):
        if number:
            report(f"{counted(number, 'run')} of {request.resume} not used: {why}")
    if has_torn_line(request.resume):
        report(f"the last line of {request.resume} was cut off while it was written: dropped")
    return kept


class Lines:
    """Every place that lines go to; there may be none.

    Args:
        stack: closes the files.
        head: environment and settings, which every line of a session or a result begins with.
        known: runs of an earlier session.
    """

    def __init__(self, request: BenchRequest, stack: ExitStack, head: dict[str, Any], known: Sequence[Run]) -> None:
        self._head = head
        self._files: list[RunsFile] = []
        session = document(**head, command=request.command)
        if request.resume is not None:
            keep_runs(request.resume)
            self._files.append(stack.enter_context(closing(RunsFile(request.resume, "a"))))
            if not request.resume.stat().st_size:
                self._files[-1].write("session", session)
        if request.output_format == "jsonl":
            self._files.append(stack.enter_context(closing(RunsFile(request.output, keep=True))))
            self._files[-1].write("session", session)
            for run in known:
                self._files[-1].write("run", asdict(run))

    def add_run(self, run: Run) -> None:
        """Write a run."""
        for file in self._files:
            file.write("run", asdict(run))

    def add_results(self, results: Sequence[dict[str, Any]]) -> None:
        """Write the results, whose samples stand above."""
        for file in self._files:
            for result in results:
                kept = {key: value for key, value in result.items() if key != "samples"}
                file.write("result", document(**self._head, **kept))
