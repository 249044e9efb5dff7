"""Options of `specdec show`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.cli.options.declare import OUTPUT, option
from specdec_cli.cli.options.output import Output, require_files
from specdec_cli.cli.running import reader_may_leave


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Everything that `specdec show` takes."""

    file: Annotated[
        Path,
        typer.Argument(
            help="A saved result (--format json or jsonl of any command), a file of --resume, or a --trace.",
            show_default=False,
        ),
    ]
    plot: Annotated[
        Path | None,
        option("--plot", panel=OUTPUT, help="Draw speedup against K (bench, sweep-k, predict): FILE.png or FILE.svg."),
    ] = None
    output: Output = None


def show(options: ShowOptions) -> int:
    """Show a saved result again: tables, verdict and plot, without measuring."""
    from specdec_cli.commands import show as command

    require_files({"--output": options.output, "--plot": options.plot})
    if options.plot is not None:
        from specdec_cli.reports.plots import check_plot

        check_plot(options.plot, "--plot")
    return reader_may_leave(command.run, command.ShowRequest(options.file, options.plot, options.output))
