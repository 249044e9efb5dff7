"""Answers on their way out: text as it streams, or a record of each; and, on request, a line for every round."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from specdec_cli.reports.console import output
from specdec_cli.reports.export import LineFile, to_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class _Nowhere(io.TextIOBase):
    """Swallows what is not for this output format."""

    def write(self, text: str) -> int:
        return len(text)


class AnswerWriter:
    """Writes answers in one format.

    Args:
        out: where to.
        output_format: "text" is streamed to `text`; "json" is one document (a list of several), "jsonl" one a line.
        trace: where a line for every round goes; None for nowhere.

    Attributes:
        text: to stream text to; swallows it in the other formats.
        records: of the answers so far.
    """

    def __init__(self, out: TextIO, output_format: str, trace: LineFile | None = None) -> None:
        self.text = out if output_format == "text" else cast(TextIO, _Nowhere())
        self.records: list[dict[str, Any]] = []
        self._out = out
        self._format = output_format
        self._trace = trace

    def begin(self) -> None:
        """An answer comes: a blank line stands between it and the last."""
        if self.records:
            self.text.write("\n")

    def add_round(self, where: Mapping[str, int], step: DataclassInstance) -> None:
        """A round of it, and which one that is."""
        if self._trace is not None:
            self._trace.write(to_json({**where, **asdict(step)}))

    def add(self, record: dict[str, Any]) -> None:
        """The answer is there."""
        self.records.append(record)
        if self._format == "jsonl":
            self._out.write(to_json(record) + "\n")
            self._out.flush()

    def finish(self) -> None:
        """It was the last."""
        if self._format == "json" and self.records:
            self._out.write(to_json(self.records[0] if len(self.records) == 1 else self.records, indent=2) + "\n")
            self._out.flush()


@contextmanager
def answers_to(path: Path | None, output_format: str, trace: Path | None) -> Iterator[AnswerWriter]:
    """A writer to a file, which appears when it is complete, or to stdout; and to the file of --trace."""
    with ExitStack() as files:
        rounds = files.enter_context(closing(LineFile(trace))) if trace else None  # closed last: it may have failed
        out = files.enter_context(output(path))
        writer = AnswerWriter(out, output_format, rounds)
        yield writer
        writer.finish()
