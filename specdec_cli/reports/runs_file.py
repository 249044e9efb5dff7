"""Runs as JSON lines, written as they come, so that what a killed benchmark has measured can be read and resumed.

The first line is the session's (environment and settings), then one line a run, in whole blocks, then the results.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.reports.export import LineFile, to_json, whole_file

# What may differ between a session and the one that resumes it: the prompts that are measured, and how many.
MAY_DIFFER = ("limit",)
# Of the environment, what moves the times.
MUST_AGREE = ("cpu", "threads", "devices", "torch", "transformers")


def read_runs(path: Path, settings: dict[str, Any], environment: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of whole blocks in a file; none where it does not exist yet.

    Args:
        settings, environment: of this session; they must be those of the file.

    Raises:
        UsageError: the file is of another session, or no file of runs.
    """
    records = _records(path)
    if not records:
        return []
    before = {k: v for k, v in records[0]["settings"].items() if k not in MAY_DIFFER}
    now = {k: v for k, v in json.loads(to_json(settings)).items() if k not in MAY_DIFFER}
    if now.keys() > before.keys():  # what the file's version did not know it did in its own way
        raise UsageError(f"--resume {path} was written by another version of specdec: name a new file")
    changed = sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
    there = records[0].get("environment") or {}
    changed += [k for k in MUST_AGREE if there.get(k) != environment.get(k)]
    if changed:
        raise UsageError(
            f"--resume {path} was measured with another {', '.join(changed)}: repeat that command, or name a new file"
        )
    return _runs(records)


def runs_in(path: Path) -> list[dict[str, Any]]:
    """The same whatever session they are of, for a plan; see `read_runs`."""
    return _runs(_records(path))


def has_torn_line(path: Path) -> bool:
    """Whether the process that wrote the file was ended within a line."""
    if not path.is_file():
        return False
    content = path.read_bytes()
    return _end(content) < len(content)


def _runs(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    runs = [record for record in records if record["kind"] == "run"]
    return [{key: value for key, value in run.items() if key != "kind"} for run in runs]


def seed_of(path: Path) -> int | None:
    """The seed of a file's session, for whoever goes on with it; None where there is no file yet.

    Raises:
        UsageError: no file of runs.
    """
    records = _records(path)
    return records[0]["settings"].get("seed") if records else None


def _records(path: Path) -> list[dict[str, Any]]:
    """Every line that was finished."""
    if not path.exists() or path.stat().st_size == 0:
        return []
    name = f"--resume {path}"
    records: list[dict[str, Any]] = []
    try:
        content = path.read_bytes()
        # Not splitlines, which also cuts at characters that JSON leaves as they are.
        lines = content[: _end(content)].decode("utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read ({error}): choose another file") from error
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{name}, line {number} is not JSON: choose another file") from error
        if not isinstance(record, dict) or "kind" not in record:
            raise UsageError(f"{name}, line {number} was not written by bench or sweep-k: choose another file")
        records.append(record)
    if not records or records[0]["kind"] != "session" or not isinstance(records[0].get("settings"), dict):
        raise UsageError(f"{name} does not begin with a session: choose another file")
    return records


class RunsFile:
    """Writes lines, each of which arrives at once.

    Args:
        path: the file; None for stdout.
        mode: "w" anew, "a" behind what is there.
        keep: what a file could not take goes to stdout in the end.
    """

    def __init__(self, path: Path | None, mode: str = "w", keep: bool = False) -> None:
        self._file = None if path is None else LineFile(path, mode)
        self._kept: list[str] | None = [] if keep else None

    def write(self, kind: str, record: dict[str, Any]) -> None:
        """Add one line."""
        line = to_json({"kind": kind, **record})
        if self._file is None:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            return
        self._file.write(line)
        if self._kept is not None:
            self._kept.append(line)

    def close(self) -> None:
        """The last line was written.

        Raises:
            OSError: the file could not take it all; names it.
        """
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError:
            sys.stdout.writelines(line + "\n" for line in self._kept or [])
            raise


def keep_runs(path: Path) -> None:
    """Make room for a session that goes on: cut a last line that was not finished, and the results so far."""
    if not path.is_file():
        return
    content = path.read_bytes()
    lines = content[: _end(content)].splitlines(keepends=True)
    kept = b"".join(line for line in lines if json.loads(line)["kind"] != "result")
    if kept == content[: len(kept)]:  # what goes stands at the end, as it does unless a session was resumed before
        os.truncate(path, len(kept))
        return
    with whole_file(path) as file:
        file.write(kept.decode("utf-8"))


def _end(content: bytes) -> int:
    """Where finished lines end; the process may have been killed while it wrote another."""
    return content.rfind(b"\n") + 1
