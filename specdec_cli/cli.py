"""The command line: options become settings. Torch is imported by the commands that need it, never here."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from specdec_cli import __version__
from specdec_cli.errors import InterruptedByUser, UsageError
from specdec_cli.settings import NO_DRAFT, GenerationSettings, ModelSettings, SamplingSettings

app = typer.Typer(
    name="specdec",
    help="Speculative decoding on your own machine: a small draft proposes, the target verifies, the output is "
    "distributed exactly as the target's.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

T = TypeVar("T")
MODELS, SAMPLING, SPECULATION, OUTPUT = "Models", "Sampling", "Speculation", "Output"


class Dtype(StrEnum):
    """Values of --dtype."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class TextFormat(StrEnum):
    """Values of --format where the result is text."""

    text = "text"
    json = "json"
    jsonl = "jsonl"


class ListFormat(StrEnum):
    """Values of --format where the result is a list."""

    table = "table"
    json = "json"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specdec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _complete_preset(incomplete: str) -> list[str]:
    from specdec_cli.presets import preset_files

    return [name for name in preset_files() if name.startswith(incomplete)]


@app.command(epilog='Example: specdec generate "def fibonacci(n):" --max-new-tokens 64 --show-draft')
def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt; '-' or nothing reads it from a pipe.", show_default=False),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="File of prompts: lines, or JSONL with prompt, messages or turns.", show_default=False),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of the conversation.", show_default=False)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send the prompt as it is, without the chat template.")] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            "-p",
            help="A pair by name or YAML file (default: demo, unless --target is given).",
            autocompletion=_complete_preset,
            rich_help_panel=MODELS,
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", help="Folder, .gguf file or hub id.", rich_help_panel=MODELS, show_default=False
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            "-d",
            help="A model with the target's tokenizer, or 'none' for plain decoding.",
            rich_help_panel=MODELS,
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel=MODELS)] = "auto",
    draft_device: Annotated[
        str | None,
        typer.Option(help="The draft's device, if another.", rich_help_panel=MODELS, show_default=False),
    ] = None,
    dtype: Annotated[
        Dtype,
        typer.Option(help="auto: the checkpoint's where it is fast here, else float32.", rich_help_panel=MODELS),
    ] = Dtype.auto,
    draft_dtype: Annotated[
        Dtype | None,
        typer.Option(help="The draft's type, if another.", rich_help_panel=MODELS, show_default=False),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(help="Hub branch, tag or commit.", rich_help_panel=MODELS, show_default=False),
    ] = None,
    draft_revision: Annotated[
        str | None, typer.Option(help="The same for the draft.", rich_help_panel=MODELS, show_default=False)
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Never touch the network.", rich_help_panel=MODELS)
    ] = False,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run a checkpoint's own Python code.", rich_help_panel=MODELS),
    ] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING)] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0: all.", rich_help_panel=SAMPLING)] = 0,
    top_p: Annotated[
        float,
        typer.Option(help="Keep the most likely tokens up to this mass; 1: all.", rich_help_panel=SAMPLING),
    ] = 1.0,
    min_p: Annotated[
        float,
        typer.Option(help="Keep tokens at least this likely, relative to the best; 0: all.", rich_help_panel=SAMPLING),
    ] = 0.0,
    repetition_penalty: Annotated[
        float,
        typer.Option(help="Divides the logits of tokens already seen; 1: off.", rich_help_panel=SAMPLING),
    ] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Same seed, same text; without it a new one, told in JSON.",
            rich_help_panel=SAMPLING,
            show_default=False,
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k",
            "-k",
            help="Tokens drafted a round (default: the preset's, or 4).",
            rich_help_panel=SPECULATION,
            show_default=False,
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Length limit.")] = 128,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text that ends the output and is cut off; repeatable.", show_default=False),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Run on past the model's end token, to the length limit.")
    ] = False,
    show_draft: Annotated[
        bool,
        typer.Option("--show-draft", help="Colour the text by where it came from.", rich_help_panel=OUTPUT),
    ] = False,
    output_format: Annotated[
        TextFormat, typer.Option("--format", help="What goes to stdout.", rich_help_panel=OUTPUT)
    ] = TextFormat.text,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write there instead of stdout.",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write one JSON line a round.", rich_help_panel=OUTPUT, show_default=False),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No notes and no summary on stderr.", rich_help_panel=OUTPUT)
    ] = False,
) -> int:
    """Generate text, exactly as the target alone would, in fewer of its steps."""
    from specdec_cli.presets import DEFAULT, load_preset
    from specdec_cli.prompts import from_text, read_prompts
    from specdec_cli.reports.export import check_writable

    if preset is not None and target is not None:
        raise UsageError("--preset and --target are given both: choose one (--draft may stand beside either)")
    pair = load_preset(preset or DEFAULT) if target is None else None
    if draft is None and pair is None:
        raise UsageError(f"--draft is missing: name a small model with the target's tokenizer, or {NO_DRAFT}")
    drafter = draft or (pair.draft if pair else NO_DRAFT)
    own_draft = pair is not None and draft is None
    target_settings = ModelSettings(
        source=target or (pair.target if pair else ""),
        revision=revision or (pair.revision if pair else None),
        device=device, dtype=dtype.value, offline=offline, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    draft_settings = None
    if drafter != NO_DRAFT:
        draft_settings = ModelSettings(
            source=drafter,
            revision=draft_revision or (pair.draft_revision if pair and own_draft else None),
            device=draft_device or device, dtype=(draft_dtype or dtype).value,
            offline=offline, trust_remote_code=trust_remote_code,
        )  # fmt: skip
    sampling = SamplingSettings(temperature, top_k, top_p, min_p, repetition_penalty)
    generation = GenerationSettings(
        num_draft_tokens=k if k is not None else (pair.k if pair else 4),
        max_new_tokens=max_new_tokens,
        stop_strings=tuple(stop or ()),
        ignore_end_token=ignore_eos,
        seed=secrets.randbelow(2**32) if seed is None else seed,
    )
    for path, option in ((output, "--output"), (trace, "--trace")):
        if path is not None:
            check_writable(path, option)
    if output is not None and trace is not None and output.resolve() == trace.resolve():
        raise UsageError("--output and --trace name the same file: choose two")
    if prompts is not None:
        if prompt is not None:
            raise UsageError("a prompt and --prompts are given both: choose one")
        todo = read_prompts(prompts)
    elif prompt is None or prompt == "-":
        todo = [from_text(_piped(), " from the pipe")]
    else:
        todo = [from_text(prompt, "")]
    # Both are read when the libraries are imported, which is only now.
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    if quiet or not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")

    from specdec_cli.commands import generate as command

    return _reader_may_leave(
        command.run,
        command.GenerateRequest(
            target=target_settings,
            draft=draft_settings,
            drafter=drafter,
            prompts=todo,
            sampling=sampling,
            generation=generation,
            system=system,
            raw=raw,
            output_format=output_format.value,
            output=output,
            trace=trace,
            show_draft=show_draft,
            quiet=quiet,
        ),
    )


@app.command(epilog="Example: specdec presets --format json")
def presets(
    output_format: Annotated[ListFormat, typer.Option("--format", help="What goes to stdout.")] = ListFormat.table,
) -> int:
    """List the pairs that have a name, with what they need."""
    from specdec_cli.commands import presets as command

    return _reader_may_leave(command.run, output_format.value)


def _reader_may_leave(run: Callable[[T], int], request: T) -> int:
    """Run a command; `| head` closing the pipe is no error, and not the exit code 1 that Typer makes of it."""
    try:
        return run(request)
    except KeyboardInterrupt as error:  # Typer would end with 130, but silently
        raise InterruptedByUser("interrupted") from error
    except BrokenPipeError:
        # Whatever is still buffered has nowhere to go, and Python would complain about that when it exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
        return 0


def _piped() -> str:
    """What stands in the pipe.

    Raises:
        UsageError: stdin is a terminal, or not UTF-8.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("there is no prompt: give it as an argument, through a pipe, or with --prompts FILE")
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"the piped prompt is not UTF-8 (byte {error.start:,}): convert it first") from error
