"""Options of `specdec presets`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from specdec_cli.cli.options import reader_may_leave


class ListFormat(StrEnum):
    """Values of --format where the result is a list."""

    table = "table"
    json = "json"


def presets(
    output_format: Annotated[ListFormat, typer.Option("--format", help="What goes to stdout.")] = ListFormat.table,
) -> int:
    """List the pairs that have a name, with what they need."""
    from specdec_cli.commands import presets as command

    return reader_may_leave(command.run, output_format.value)
