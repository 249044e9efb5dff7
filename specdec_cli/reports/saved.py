"""What an earlier command saved, read back: which command's it is, and the documents or lines that the file holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli import __version__
from specdec_cli.errors import UsageError
from specdec_cli.reports.export import SCHEMA

MEASUREMENT, RUNS, PREDICTION, CHECK, ANSWERS, TRACE, COMPARISON = (
    "measurement", "runs", "prediction", "check", "answers", "trace", "comparison",
)  # fmt: skip
SENTENCES = {
    MEASUREMENT: "a result of bench or sweep-k",
    RUNS: "runs of bench or sweep-k, line by line",
    PREDICTION: "a result of predict",
    CHECK: "a result of pair-check",
    ANSWERS: "answers of generate",
    TRACE: "a trace of generate",
    COMPARISON: "a result of compare",
}
# By which keys a record is known; the first that it has all of decides.
_KNOWN: tuple[tuple[str, frozenset[str]], ...] = (
    (RUNS, frozenset({"kind"})),
    (MEASUREMENT, frozenset({"settings", "results", "recommendation"})),
    (COMPARISON, frozenset({"settings", "rows", "differences"})),
    (PREDICTION, frozenset({"settings", "estimate"})),
    (CHECK, frozenset({"settings", "pairs"})),
    (ANSWERS, frozenset({"settings", "text", "provenance"})),
    (TRACE, frozenset({"round", "draft_token_ids", "num_accepted"})),
)
_HAVE_SCHEMA = (MEASUREMENT, COMPARISON, PREDICTION, CHECK, ANSWERS)
_FAULTS = (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration, ArithmeticError)


@dataclass(frozen=True)
class Saved:
    """A file that a command wrote.

    Attributes:
        path: of the file.
        kind: what of; a key of `SENTENCES`.
        records: the one document, or every answer or line.
    """

    path: Path
    kind: str
    records: Sequence[dict[str, Any]]

    @property
    def said(self) -> str:
        """What it is, for a message."""
        return SENTENCES[self.kind]

    @contextmanager
    def as_written(self) -> Iterator[None]:
        """While something is made of its records: what is missing there, or is something else, is told in one line.

        Raises:
            UsageError: something is.
        """
        try:
            yield
        except UsageError:
            raise
        except _FAULTS as error:
            cause = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"
            raise UsageError(
                f"{self.path} is {self.said}, but not a whole one, or of another version of specdec ({cause}): measure "
                "or save it again"
            ) from error


def read_saved(path: Path) -> Saved:
    """What a file holds.

    Raises:
        UsageError: it cannot be read, was not written by specdec, by a version with another format, or holds several
            kinds of things.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no result of specdec (byte {error.start:,} is not UTF-8): name a file of "
            "--format json or jsonl, or a trace"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    records = _records(path, text)
    kinds = dict.fromkeys(_kind(path, record) for record in records)
    if len(kinds) > 1:
        told = " and ".join(SENTENCES[kind] for kind in kinds)
        raise UsageError(f"{path} holds {told}: name a file that one command wrote")
    (kind,) = kinds
    _require_schema(path, kind, records)
    if kind in (MEASUREMENT, COMPARISON, CHECK) and len(records) > 1:
        raise UsageError(f"{path} holds {len(records):,} documents of one kind: split it, one a file")
    if kind == PREDICTION:
        records = [_one_prediction(records)]
    return Saved(path, kind, records)


def _records(path: Path, text: str) -> list[dict[str, Any]]:
    if not text.strip():
        raise UsageError(f"{path} is empty: name a file of --format json or jsonl, or a trace")
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = _lines(path, text)
    records = found if isinstance(found, list) else [found]
    if not records or not all(isinstance(record, dict) for record in records):
        raise UsageError(f"{path} is no result of specdec: name a file of --format json or jsonl, or a trace")
    return records


def _lines(path: Path, text: str) -> list[Any]:
    """JSON line by line; a last line that was not finished is left out, as a killed command leaves it."""
    # Not splitlines, which also cuts at characters that JSON leaves as they are.
    whole, _, rest = text.rpartition("\n")
    lines = [(n, line) for n, line in enumerate(whole.split("\n"), start=1) if line.strip()]
    if not lines:
        _line(rest, str(path))  # which is no JSON, as was seen
    return [_line(line, f"{path}, line {n}") for n, line in lines]


def _line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: name a file of --format json or jsonl, or a trace") from error


def _kind(path: Path, record: Mapping[str, Any]) -> str:
    kind = next((kind for kind, keys in _KNOWN if keys <= record.keys()), None)
    if kind is None:
        raise UsageError(f"{path} is no result of specdec: name a file of --format json or jsonl, or a trace")
    return kind


def _require_schema(path: Path, kind: str, records: Sequence[Mapping[str, Any]]) -> None:
    for record in records:
        if kind in _HAVE_SCHEMA or record.get("kind") in ("session", "result"):
            schema = record.get("schema")
            if schema != SCHEMA:
                theirs = record.get("specdec_version", "unknown")
                raise UsageError(
                    f"{path} has format {schema!r} (of specdec {theirs}), and specdec {__version__} reads {SCHEMA}: "
                    "use the version that wrote it"
                )


def _one_prediction(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document, which --format jsonl writes as a line for each K."""
    first = records[0]
    if "results" in first:
        return first
    frame = {key: first[key] for key in ("schema", "specdec_version", "environment", "settings", "estimate")}
    return {**frame, "results": [{k: v for k, v in record.items() if k not in frame} for record in records]}
