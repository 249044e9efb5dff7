"""How a pair decodes, and from which prompts: options to settings."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated

from specdec_cli.cli.options.declare import SAMPLING, SPECULATION, flag, in_utf8, option, refuse_given
from specdec_cli.cli.options.models import ModelChoice
from specdec_cli.drafters.spec import MODEL
from specdec_cli.errors import UsageError
from specdec_cli.settings import K_RULES, NO_DRAFT, GenerationSettings, KChoice, SamplingSettings

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
        if models.kinds.isdisjoint((MODEL, "early-exit")):
            refuse_given(
                self,
                ("draft_stop",),
                f"is for a draft with probabilities (a model, or early-exit:N), not for --draft {models.draft_names}: "
                "leave it out",
            )


@dataclass(frozen=True)
class ConversationOptions:
    """What surrounds a prompt when a model reads it."""

    system: Annotated[
        str | None, option("--system", callback=in_utf8, help="System message of every conversation.")
    ] = None
    raw: Annotated[bool, flag("--raw", help="Send prompts as they are, without the chat template.")] = False
