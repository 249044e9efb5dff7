"""Options of `specdec compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.cli.options.output import FORMAT, ListFormat, Output, require_files
from specdec_cli.cli.running import reader_may_leave


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Everything that `specdec compare` takes."""

    a: Annotated[
        Path, typer.Argument(metavar="A", show_default=False, help="A saved result of bench or sweep-k, the reference.")
    ]
    b: Annotated[Path, typer.Argument(metavar="B", show_default=False, help="Another, to stand beside it.")]
    output_format: Annotated[ListFormat, FORMAT] = ListFormat.table
    output: Output = None


def compare(options: CompareOptions) -> int:
    """Set two saved results side by side: ratios with intervals, and what differs in machine and settings."""
    require_files({"--output": options.output})

    from specdec_cli.commands import compare as command

    return reader_may_leave(
        command.run, command.CompareRequest(options.a, options.b, options.output_format.value, options.output)
    )
