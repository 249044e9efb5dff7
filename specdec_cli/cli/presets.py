"""Options of `specdec presets`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from specdec_cli.cli.options.declare import option
from specdec_cli.cli.options.output import ListFormat
from specdec_cli.cli.running import reader_may_leave


@dataclass(frozen=True)
class PresetsOptions:
    """Everything that `specdec presets` takes."""

    output_format: Annotated[ListFormat, option("--format", help="What goes to stdout.")] = ListFormat.table


def presets(options: PresetsOptions) -> int:
    """List the pairs that have a name, with what they need."""
    from specdec_cli.commands import presets as command

    return reader_may_leave(command.run, options.output_format.value)
