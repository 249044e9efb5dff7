"""Runs as JSON lines, the moment they are measured: the file of --resume, and what --format jsonl writes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Any

from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.errors import UsageError
from specdec_cli.measurement.benchmark import Contest, whole_blocks
from specdec_cli.measurement.runs import Run
from specdec_cli.reports.export import document
from specdec_cli.reports.runs_file import RunsFile, keep_runs, read_runs


def known_runs(request: BenchRequest, head: dict[str, Any], contests: Mapping[float, Contest]) -> list[Run]:
    """What the file of --resume holds of this request; a lower --limit leaves some of it out.

    Args:
        head: environment and settings of this session.

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
    return [run for run in whole_blocks(runs, contests) if run.prompt <= len(request.prompts)]


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
