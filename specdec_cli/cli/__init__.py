"""The command line: options become settings. Torch is imported by the commands that need it, never here.

One module a subcommand: its options, as a dataclass, and the function that makes settings of them, checks those against
each other and runs the command. What several of them take stands in `options`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from specdec_cli import __version__
from specdec_cli.cli.bench import bench
from specdec_cli.cli.chat import chat
from specdec_cli.cli.compare import compare
from specdec_cli.cli.generate import generate
from specdec_cli.cli.models import models
from specdec_cli.cli.options.declare import Subcommand, everyday_first, flat
from specdec_cli.cli.pair_check import pair_check
from specdec_cli.cli.predict import predict
from specdec_cli.cli.presets import presets
from specdec_cli.cli.show import show
from specdec_cli.cli.sweep_k import sweep_k

IN_PANELS_OF_ITS_OWN = ("predict", "presets")

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


def _add(command: Callable[[Any], int], name: str, example: str) -> None:
    flattened = flat(command) if name in IN_PANELS_OF_ITS_OWN else everyday_first(flat(command))
    app.command(name, cls=Subcommand, epilog=f"Example: specdec {name} {example}")(flattened)


_add(generate, "generate", '"def fibonacci(n):" --max-new-tokens 64 --show-draft')
_add(chat, "chat", "-t ./target -d ./draft --show-draft")
_add(bench, "bench", "--limit 6 --max-new-tokens 64")
_add(sweep_k, "sweep-k", "--k 1-8 --limit 6 --plot sweep.png")
_add(pair_check, "pair-check", "-t ./target -d ./draft -d early-exit:4 --probe")
_add(predict, "predict", "--alpha 0.8 --cost 0.05 --k 1-16 --simulate 40000")
_add(presets, "presets", "--format json")
_add(models, "models", "~/models --format json")
_add(compare, "compare", "before.json after.json")
_add(show, "show", "result.json --plot result.png")
