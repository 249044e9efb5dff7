"""How a pair decodes, and from which prompts: options to settings."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from specdec_cli.cli.options.declare import SAMPLING, SPECULATION, flag, in_utf8, option, refuse_given
from specdec_cli.cli.options.models import ModelChoice
from specdec_cli.drafters.spec import MODEL
from specdec_cli.errors import UsageError
from specdec_cli.settings import (
    K_RULES,
    NO_DRAFT,
    ConversationSettings,
    GenerationSettings,
    KChoice,
    SamplingSettings,
    is_unicode,
)

Temperature = Annotated[float, option("--temperature", panel=SAMPLING, help="0 is greedy.")]


@dataclass(frozen=True)
class SamplingOptions:
    """How logits become probabilities at a temperature, and what is drawn from them.

    The temperature is an option of each subcommand: some take several.
    """

    top_k: Annotated[int, option("--top-k", panel=SAMPLING, help="Keep the k most likely tokens; 0: all.")] = (
        SamplingSettings.top_k
    )
    top_p: Annotated[
        float, option("--top-p", panel=SAMPLING, help="Keep the most likely tokens up to this mass; 1: all.")
    ] = SamplingSettings.top_p
    min_p: Annotated[
        float,
        option("--min-p", panel=SAMPLING, help="Keep tokens at least this likely, relative to the best; 0: all."),
    ] = SamplingSettings.min_p
    repetition_penalty: Annotated[
        float, option("--repetition-penalty", panel=SAMPLING, help="Divides the logits of tokens already seen; 1: off.")
    ] = SamplingSettings.repetition_penalty
    seed: Annotated[
        int | None,
        option("--seed", panel=SAMPLING, help="Same seed, same text; without it a new one, told in JSON."),
    ] = None

    def settings(self, temperature: float) -> SamplingSettings:
        """At one of the subcommand's temperatures."""
        return SamplingSettings(temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty)


def seed_or_new(seed: int | None) -> int:
    """The seed that was asked for, else a new one."""
    return secrets.randbelow(2**32) if seed is None else seed


@dataclass(frozen=True)
class SpeculationOptions:
    """How much is drafted."""

    k: Annotated[
        str | None,
        option(
            "--k",
            "-k",
            panel=SPECULATION,
            metavar="<int>",
            help="Tokens drafted a round (default: the preset's, or 4); or auto, or heuristic.",
        ),
    ] = None
    draft_stop: Annotated[
        float,
        option(
            "--draft-stop",
            panel=SPECULATION,
            help="End a draft behind a token that its own model gave less than this probability; 0: never.",
        ),
    ] = GenerationSettings.draft_stop
    draft_tree: Annotated[
        int,
        option(
            "--draft-tree",
            panel=SPECULATION,
            metavar="<nodes>",
            help="Let a trained head draft a tree of so many tokens, K deep, in place of a chain; 0: a chain.",
        ),
    ] = GenerationSettings.draft_tree

    def k_for(self, models: ModelChoice) -> KChoice:
        """The value of --k where it is one number or a rule, else what the preset says.

        Raises:
            UsageError: it is neither.
        """
        if self.k is None:
            return models.k
        if self.k in K_RULES:
            return self.k
        try:
            return int(self.k)
        except ValueError as error:
            raise UsageError(f"--k must be a number of 1 or above, {' or '.join(K_RULES)}, not '{self.k}'") from error

    def require_use(self, models: ModelChoice) -> None:
        """Refuse what none of these drafts heeds.

        Raises:
            UsageError: there is something.
        """
        if models.kinds == {NO_DRAFT}:
            refuse_given(self, ("k",), f"is how much is drafted, and --draft {NO_DRAFT} drafts nothing: leave it out")
        if MODEL not in models.kinds:
            refuse_given(
                self,
                ("draft_tree",),
                f"is for a draft that is a trained head, not for --draft {models.draft_names}: leave it out",
            )
        if models.kinds.isdisjoint((MODEL, "early-exit")):
            refuse_given(
                self,
                ("draft_stop",),
                f"is for a draft with probabilities (a model, or early-exit:N), not for --draft {models.draft_names}: "
                "leave it out",
            )


@dataclass(frozen=True)
class TemplateOptions:
    """What a chat template is told, and what it makes of a prompt's text."""

    template_arg: Annotated[
        list[str] | None,
        option(
            "--template-arg",
            metavar="NAME=VALUE",
            callback=in_utf8,
            help="A variable of the chat template, as enable_thinking=false: JSON, or else text; repeatable.",
        ),
    ] = None
    plain_content: Annotated[
        bool, flag("--plain-content", help="Text of a prompt stays text, also where it spells a control token.")
    ] = False

    def settings(self) -> ConversationSettings:
        """Of conversations without a system message.

        Raises:
            UsageError: --template-arg is not what it must be.
        """
        return ConversationSettings(
            template_args=template_args(self.template_arg or ()), plain_content=self.plain_content
        )


@dataclass(frozen=True)
class ConversationOptions(TemplateOptions):
    """What surrounds a prompt when a model reads it."""

    system: Annotated[
        str | None, option("--system", callback=in_utf8, help="System message of every conversation.")
    ] = None
    raw: Annotated[bool, flag("--raw", help="Send prompts as they are, without the chat template.")] = False

    def __post_init__(self) -> None:
        if self.raw and self.system is not None:
            raise UsageError("--system needs the chat template that --raw leaves out: leave one of them out")

    def settings(self) -> ConversationSettings:
        """All of it."""
        return replace(super().settings(), system=self.system, raw=self.raw)


def template_args(words: Sequence[str]) -> dict[str, Any]:
    """The variables that --template-arg names, with their values.

    Raises:
        UsageError: one has no value or no name, comes twice, or has a value that a template would take for another.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not name.isidentifier() or not equals:
            raise UsageError(f"--template-arg {word} must be NAME=VALUE, as enable_thinking=false")
        if name in found:
            raise UsageError(f"--template-arg {name} is given twice: choose one")
        if text in ("True", "False", "None"):
            right = {"True": "true", "False": "false", "None": "null"}[text]
            raise UsageError(
                f"--template-arg {word} would be the word '{text}' to a template: write {name}={right}, or "
                f"'{name}=\"{text}\"' for the word"
            )
        found[name] = _value(text)
        if not is_unicode(json.dumps(found[name], ensure_ascii=False)):
            raise UsageError(f"--template-arg {name} is not UTF-8: convert it first")
    return found


def _value(text: str) -> Any:
    """What JSON says it is, else the text."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> None:
    """NaN and Infinity, which Python reads, are no JSON."""
    raise ValueError(name)
