"""Options of `specdec generate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli.options.declare import OUTPUT, flag, in_utf8, option
from specdec_cli.cli.options.decoding import (
    ConversationOptions,
    SamplingOptions,
    SpeculationOptions,
    Temperature,
    seed_or_new,
)
from specdec_cli.cli.options.models import ModelChoice, OneDraft, RunningOptions, choose_models
from specdec_cli.cli.options.output import FORMAT, OutputOptions, require_files
from specdec_cli.cli.running import reader_may_leave, starting
from specdec_cli.errors import UsageError
from specdec_cli.settings import NO_DRAFT, GenerationSettings

if TYPE_CHECKING:
    from specdec_cli.prompts import Prompt


class TextFormat(StrEnum):
    """Values of --format where the result is text."""

    text = "text"
    json = "json"
    jsonl = "jsonl"


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """What is answered."""

    prompt: Annotated[
        str | None, typer.Argument(callback=in_utf8, help="The prompt; '-' or nothing reads it from a pipe.")
    ] = None
    prompts: Annotated[
        str | None,
        option(
            "--prompts",
            help="FILE of prompts (lines, or JSONL with prompt, messages or turns), or a built-in set: mixed, editing, "
            "code.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """How answers are made and shown, one after the other."""

    conversation: ConversationOptions
    pair: OneDraft
    loading: RunningOptions
    temperature: Temperature = 0.0
    sampling: SamplingOptions
    speculation: SpeculationOptions
    max_new_tokens: Annotated[int, option("--max-new-tokens", "-n", help="Length limit.")] = (
        GenerationSettings.max_new_tokens
    )
    stop: Annotated[
        list[str] | None,
        option("--stop", callback=in_utf8, help="Text that ends the output and is cut off; repeatable."),
    ] = None
    ignore_eos: Annotated[
        bool, flag("--ignore-eos", help="Run on past the model's end token, to the length limit.")
    ] = GenerationSettings.ignore_end_token
    show_draft: Annotated[bool, flag("--show-draft", panel=OUTPUT, help="Colour the text by where it came from.")] = (
        False
    )
    trace: Annotated[Path | None, option("--trace", panel=OUTPUT, help="Write one JSON line a round.")] = None
    output_format: Annotated[TextFormat, FORMAT] = TextFormat.text
    output: OutputOptions

    def settings(self, models: ModelChoice) -> GenerationSettings:
        """How far each answer goes, and how it speculates."""
        self.speculation.require_use(models)
        return GenerationSettings(
            num_draft_tokens=self.speculation.k_for(models),
            max_new_tokens=self.max_new_tokens,
            stop_strings=tuple(self.stop or ()),
            ignore_end_token=self.ignore_eos,
            seed=seed_or_new(self.sampling.seed),
            draft_stop=self.speculation.draft_stop,
            draft_tree=self.speculation.draft_tree,
        )

    def checked(self) -> dict[str, Any]:
        """What a request is made of but its prompts, checked for contradictions.

        Raises:
            UsageError: there is one.
        """
        models = choose_models(self.pair, self.loading)
        (draft,) = models.drafts
        sampling = self.sampling.settings(self.temperature)
        generation = self.settings(models)
        conversation = self.conversation.settings()
        require_files({"--output": self.output.output, "--trace": self.trace})
        if self.show_draft and self.output_format is not TextFormat.text:
            raise UsageError(
                f"--show-draft marks text, and --format {self.output_format.value} tells the same as 'provenance': "
                "leave it out"
            )
        if self.show_draft and models.kinds == {NO_DRAFT}:
            raise UsageError(f"--show-draft marks drafted text, and --draft {NO_DRAFT} drafts none: leave it out")
        return {
            "target": models.target,
            "draft": draft.model,
            "drafter": draft.spec,
            "sampling": sampling,
            "generation": generation,
            "conversation": conversation,
            "output_format": self.output_format.value,
            "output": self.output.output,
            "trace": self.trace,
            "show_draft": self.show_draft,
            "quiet": self.output.quiet,
            "verbose": self.output.verbose,
        }


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """Everything that `specdec generate` takes."""

    asked: PromptOptions
    answers: AnswerOptions


def generate(options: GenerateOptions) -> int:
    """Generate text, exactly as the target alone would, in fewer of its steps."""
    checked = options.answers.checked()
    prompts = _prompts(options.asked.prompt, options.asked.prompts)
    with starting(options.answers.output.quiet):
        from specdec_cli.commands import generate as command

    return reader_may_leave(command.run, command.GenerateRequest(prompts=prompts, **checked))


def _prompts(prompt: str | None, prompts: str | None) -> Sequence[Prompt]:
    """What to answer: the argument, --prompts, or what stands in the pipe."""
    from specdec_cli.prompts import from_text, load_prompts

    if prompts is not None:
        if prompt is not None:
            raise UsageError("a prompt and --prompts are given both: choose one")
        return load_prompts(prompts)
    if prompt is None or prompt == "-":
        return [from_text(_piped(), " from the pipe")]
    return [from_text(prompt, "")]


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
