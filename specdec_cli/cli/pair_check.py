"""Options of `specdec pair-check`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from specdec_cli.cli import options as o
from specdec_cli.errors import UsageError
from specdec_cli.settings import AUTO

CHECKS = "Checks"


class CheckFormat(StrEnum):
    """Values of --format where the result is a list of checks."""

    table = "table"
    json = "json"
    markdown = "markdown"


def pair_check(
    preset: o.PresetOption = None,
    target: o.TargetOption = None,
    draft: o.DraftsOption = None,
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
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens that memory is counted for (default: 4096, or the pair's context if shorter).",
            rich_help_panel=CHECKS,
            show_default=False,
        ),
    ] = None,
    probe: Annotated[
        bool,
        o.flag("--probe", panel=CHECKS, help="Load both and measure: caches, acceptance, costs, predicted speedup."),
    ] = False,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="For --probe: FILE of lines or JSONL, or a built-in set: mixed, editing, code.",
            rich_help_panel=CHECKS,
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, o.flag("--strict", panel=CHECKS, help="A warning counts as incompatible.")] = False,
    output_format: Annotated[
        CheckFormat, typer.Option("--format", help="What goes to stdout.", rich_help_panel=o.OUTPUT)
    ] = CheckFormat.table,
    output: o.OutputOption = None,
    quiet: o.QuietOption = False,
) -> int:
    """Will these work together, here, and is it worth trying: told without reading a weight.

    Exit code: 0 every draft is compatible, 3 one is not, 1 it could not be told, 4 --probe ran out of memory.
    """
    from specdec_cli.reports.export import check_writable

    models = o.choose_models(
        preset=preset, target=target, drafts=draft or [], device=device,
        draft_device=draft_device, dtype=dtype, draft_dtype=draft_dtype,
        quantize=quantize, draft_quantize=draft_quantize, draft_vocab=draft_vocab, revision=revision,
        draft_revision=draft_revision, offline=offline, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    nothing_to_compare = [_nothing_to_compare(choice, probe) for choice in models.drafts]
    if all(nothing_to_compare):
        raise UsageError(nothing_to_compare[0])
    if context is not None and context < 1:
        raise UsageError(f"--context must be 1 or above, not {context}")
    if prompts is not None and not probe:
        raise UsageError("--prompts is for what is measured: add --probe")
    if output is not None:
        check_writable(output, "--output")
    o.silence_libraries(quiet)

    from specdec_cli.commands import pair_check as command

    return o.reader_may_leave(
        command.run,
        command.PairCheckRequest(
            target=models.target,
            drafts=tuple(
                (choice.spec, choice.model)
                for choice, nothing in zip(models.drafts, nothing_to_compare, strict=True)
                if not nothing
            ),
            left_out=tuple(filter(None, nothing_to_compare)),
            context=context,
            probe=probe,
            prompts=prompts,
            strict=strict,
            output_format=output_format.value,
            output=output,
            quiet=quiet,
        ),
    )


def _nothing_to_compare(choice: o.DraftChoice, probe: bool) -> str:
    """Why there is nothing to tell of a draft here, with the remedy; empty where there is."""
    if choice.model is None and choice.spec.own_layers is None:
        return (
            f"--draft {choice.name} is no model, so there is nothing to compare: name a folder, file or hub id, "
            "or early-exit:N (specdec bench measures this one)"
        )
    if choice.model is None and not probe:
        return f"--draft {choice.name} is the target itself, so there is nothing to compare: add --probe to measure"
    return ""
