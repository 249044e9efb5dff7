"""Options of `specdec generate`."""

from __future__ import annotations

import secrets
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.cli import options as o
from specdec_cli.errors import UsageError
from specdec_cli.settings import AUTO, GenerationSettings, SamplingSettings


class TextFormat(StrEnum):
    """Values of --format where the result is text."""

    text = "text"
    json = "json"
    jsonl = "jsonl"


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt; '-' or nothing reads it from a pipe.", show_default=False),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="FILE of prompts (lines, or JSONL with prompt, messages or turns), or a built-in set: mixed, editing, "
            "code.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of the conversation.", show_default=False)] = None,
    raw: Annotated[bool, o.flag("--raw", help="Send the prompt as it is, without the chat template.")] = False,
    preset: o.PresetOption = None,
    target: o.TargetOption = None,
    draft: o.DraftOption = None,
    device: o.DeviceOption = "auto",
    draft_device: o.DraftDeviceOption = None,
    dtype: o.DtypeOption = o.Dtype.auto,
    draft_dtype: o.DraftDtypeOption = None,
    quantize: o.QuantizeOption = o.Quantize.keep,
    draft_quantize: o.DraftQuantizeOption = o.DraftQuantize.keep,
    draft_vocab: o.DraftVocabOption = AUTO,
    revision: o.RevisionOption = None,
    draft_revision: o.DraftRevisionOption = None,
    offline: o.OfflineOption = False,
    trust_remote_code: o.TrustOption = False,
    graphs: o.GraphsOption = o.Graphs.auto,
    compile: o.CompileOption = False,
    temperature: o.TemperatureOption = 0.0,
    top_k: o.TopKOption = 0,
    top_p: o.TopPOption = 1.0,
    min_p: o.MinPOption = 0.0,
    repetition_penalty: o.PenaltyOption = 1.0,
    seed: o.SeedOption = None,
    k: o.KOption = None,
    draft_stop: o.DraftStopOption = 0.0,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Length limit.")] = 128,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text that ends the output and is cut off; repeatable.", show_default=False),
    ] = None,
    ignore_eos: Annotated[
        bool, o.flag("--ignore-eos", help="Run on past the model's end token, to the length limit.")
    ] = False,
    show_draft: Annotated[
        bool,
        o.flag("--show-draft", panel=o.OUTPUT, help="Colour the text by where it came from."),
    ] = False,
    output_format: Annotated[
        TextFormat, typer.Option("--format", help="What goes to stdout.", rich_help_panel=o.OUTPUT)
    ] = TextFormat.text,
    output: o.OutputOption = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write one JSON line a round.", rich_help_panel=o.OUTPUT, show_default=False),
    ] = None,
    quiet: o.QuietOption = False,
) -> int:
    """Generate text, exactly as the target alone would, in fewer of its steps."""
    from specdec_cli.prompts import from_text, load_prompts
    from specdec_cli.reports.export import check_writable

    models = o.choose_models(
        preset=preset, target=target, drafts=[draft] if draft is not None else [], device=device,
        draft_device=draft_device, dtype=dtype, draft_dtype=draft_dtype, revision=revision,
        draft_revision=draft_revision, offline=offline, trust_remote_code=trust_remote_code,
        quantize=quantize, draft_quantize=draft_quantize, draft_vocab=draft_vocab, graphs=graphs, compile=compile,
        draft_stop=draft_stop,
    )  # fmt: skip
    (drafter,) = models.drafts
    sampling = SamplingSettings(temperature, top_k, top_p, min_p, repetition_penalty)
    generation = GenerationSettings(
        num_draft_tokens=o.parse_k(k, models.k),
        max_new_tokens=max_new_tokens,
        stop_strings=tuple(stop or ()),
        ignore_end_token=ignore_eos,
        seed=secrets.randbelow(2**32) if seed is None else seed,
        draft_stop=draft_stop,
    )
    for path, option in ((output, "--output"), (trace, "--trace")):
        if path is not None:
            check_writable(path, option)
    if output is not None and trace is not None and output.resolve() == trace.resolve():
        raise UsageError("--output and --trace name the same file: choose two")
    if show_draft and output_format is not TextFormat.text:
        raise UsageError(
            f"--show-draft marks text, and --format {output_format.value} tells the same as 'provenance': leave it out"
        )
    if prompts is not None:
        if prompt is not None:
            raise UsageError("a prompt and --prompts are given both: choose one")
        todo = load_prompts(prompts)
    elif prompt is None or prompt == "-":
        todo = [from_text(_piped(), " from the pipe")]
    else:
        todo = [from_text(prompt, "")]
    o.silence_libraries(quiet)

    from specdec_cli.commands import generate as command

    return o.reader_may_leave(
        command.run,
        command.GenerateRequest(
            target=models.target,
            draft=drafter.model,
            drafter=drafter.spec,
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
