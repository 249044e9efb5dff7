"""Where results go, and in which form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Annotated

from specdec_cli.cli.options.declare import OUTPUT, flag, option
from specdec_cli.errors import UsageError


class ReportFormat(StrEnum):
    """Values of --format where the result is a measurement, or a prediction."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    markdown = "markdown"


class ListFormat(StrEnum):
    """Values of --format where the result is a list or a table, for people or for programs."""

    table = "table"
    json = "json"


FORMAT = option("--format", panel=OUTPUT, help="What goes to stdout.")
Output = Annotated[Path | None, option("--output", "-o", panel=OUTPUT, help="Write there instead of stdout.")]


@dataclass(frozen=True)
class OutputOptions:
    """What every subcommand takes that runs a while; --format, whose values differ, stands before it."""

    output: Output = None
    quiet: Annotated[
        bool, flag("--quiet", "-q", panel=OUTPUT, help="No notes, no progress and no summary on stderr.")
    ] = False
    verbose: Annotated[bool, flag("--verbose", "-v", panel=OUTPUT, help="Tell what only experts read, too.")] = False


def require_files(files: Mapping[str, Path | None]) -> None:
    """See to it that everything that is to be written has a place of its own.

    Args:
        files: by option; None where it was not given.

    Raises:
        UsageError: a file cannot be written, or two options name the same.
    """
    from specdec_cli.reports.export import check_writable

    given = {option: path for option, path in files.items() if path is not None}
    for option_name, path in given.items():
        check_writable(path, option_name)
    for (one, path), (another, other) in combinations(given.items(), 2):
        if path.resolve() == other.resolve():
            raise UsageError(f"{one} and {another} name the same file: choose two")
