"""Options of `specdec models`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.cli.options.output import FORMAT, ListFormat, Output, require_files
from specdec_cli.cli.running import reader_may_leave


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """Everything that `specdec models` takes."""

    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            show_default=False,
            help="Folders to look into as well, with the folders in them, or .gguf files.",
        ),
    ] = None
    output_format: Annotated[ListFormat, FORMAT] = ListFormat.table
    output: Output = None


def models(options: ModelsOptions) -> int:
    """List the models that are here (hub cache, folders, GGUF files), and the pairs that they make."""
    require_files({"--output": options.output})

    from specdec_cli.commands import models as command

    return reader_may_leave(
        command.run, command.ModelsRequest(options.folders or [], options.output_format.value, options.output)
    )
