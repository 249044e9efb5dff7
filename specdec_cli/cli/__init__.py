"""The command line: options become settings. Torch is imported by the commands that need it, never here.

One module a subcommand; what several of them take stands in `options`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_cli import __version__
from specdec_cli.cli.bench import bench, sweep_k
from specdec_cli.cli.generate import generate
from specdec_cli.cli.pair_check import pair_check
from specdec_cli.cli.predict import predict
from specdec_cli.cli.presets import presets

app = typer.Typer(
    name="specdec",
    help="Speculative decoding on your own machine: a small draft proposes, the target verifies, the output is "
    "distributed exactly as the target's.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specdec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, metavar="", help="Show the version and exit."),
    ] = False,
) -> None:
    pass


app.command(epilog='Example: specdec generate "def fibonacci(n):" --max-new-tokens 64 --show-draft')(generate)
app.command(epilog="Example: specdec bench --limit 6 --max-new-tokens 64")(bench)
app.command("sweep-k", epilog="Example: specdec sweep-k --k 1-8 --limit 6 --plot sweep.png")(sweep_k)
app.command("pair-check", epilog="Example: specdec pair-check -t ./target -d ./draft -d early-exit:4 --probe")(
    pair_check
)
app.command(epilog="Example: specdec predict --alpha 0.8 --cost 0.05 --k 1-16 --simulate 40000")(predict)
app.command(epilog="Example: specdec presets --format json")(presets)
