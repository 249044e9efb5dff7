"""Options of `specdec pair-check`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from specdec_cli.cli.options.declare import InPanel, flag, option, refuse_given
from specdec_cli.cli.options.decoding import TemplateOptions
from specdec_cli.cli.options.models import DraftChoice, LoadingOptions, SeveralDrafts, choose_models
from specdec_cli.cli.options.output import FORMAT, OutputOptions, require_files
from specdec_cli.cli.running import reader_may_leave, starting
from specdec_cli.errors import UsageError

CHECKS = "Checks"


class CheckFormat(StrEnum):
    """Values of --format where the result is a list of checks."""

    table = "table"
    json = "json"
    markdown = "markdown"


@dataclass(frozen=True, kw_only=True)
class PairCheckOptions:
    """Everything that `specdec pair-check` takes."""

    pair: SeveralDrafts
    loading: LoadingOptions
    context: Annotated[
        int | None,
        option(
            "--context",
            panel=CHECKS,
            help="Tokens that memory is counted for (default: 4096, or the pair's context if shorter).",
        ),
    ] = None
    probe: Annotated[
        bool,
        flag("--probe", panel=CHECKS, help="Load both and measure: caches, acceptance, costs, predicted speedup."),
    ] = False
    prompts: Annotated[
        str | None,
        option(
            "--prompts",
            panel=CHECKS,
            help="For --probe: FILE of lines or JSONL, or a built-in set: mixed, editing, code.",
        ),
    ] = None
    template: Annotated[TemplateOptions, InPanel(CHECKS)]
    strict: Annotated[bool, flag("--strict", panel=CHECKS, help="A warning counts as incompatible.")] = False
    output_format: Annotated[CheckFormat, FORMAT] = CheckFormat.table
    output: OutputOptions


def pair_check(options: PairCheckOptions) -> int:
    """Check whether target and draft fit together and are worth trying, without reading weights.

    Exit code: 0 every draft is compatible, 3 one is not, 1 it could not be told, 4 --probe ran out of memory.
    """
    models = choose_models(options.pair, options.loading)
    nothing_to_compare = [_nothing_to_compare(draft, options.probe) for draft in models.drafts]
    if all(nothing_to_compare):
        raise UsageError(nothing_to_compare[0])
    if options.context is not None and options.context < 1:
        raise UsageError(f"--context must be 1 or above, not {options.context}")
    if options.prompts is not None and not options.probe:
        raise UsageError("--prompts is for what is measured: add --probe")
    if not options.probe:
        refuse_given(options.template, ("template_arg", "plain_content"), "is for what is measured: add --probe")
    conversation = options.template.settings()
    require_files({"--output": options.output.output})
    with starting(options.output.quiet):
        from specdec_cli.commands import pair_check as command

    return reader_may_leave(
        command.run,
        command.PairCheckRequest(
            target=models.target,
            drafts=tuple(
                (draft.spec, draft.model)
                for draft, nothing in zip(models.drafts, nothing_to_compare, strict=True)
                if not nothing
            ),
            left_out=tuple(filter(None, nothing_to_compare)),
            context=options.context,
            probe=options.probe,
            prompts=options.prompts,
            conversation=conversation,
            strict=options.strict,
            output_format=options.output_format.value,
            output=options.output.output,
            quiet=options.output.quiet,
            verbose=options.output.verbose,
        ),
    )


def _nothing_to_compare(choice: DraftChoice, probe: bool) -> str:
    """Why there is nothing to tell of a draft here, with the remedy; empty where there is."""
    if choice.model is None and choice.spec.own_layers is None:
        return (
            f"--draft {choice.name} is no model, so there is nothing to compare: name a folder, file or hub id, "
            "or early-exit:N (specdec bench measures this one)"
        )
    if choice.model is None and not probe:
        return f"--draft {choice.name} is the target itself, so there is nothing to compare: add --probe to measure"
    return ""
