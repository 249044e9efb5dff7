"""The protocol between the loop and every source of guesses.

The loop asks for a draft, judges it, and reports how much of it was kept. It never asks what kind of drafter
it has, and a drafter never knows how its guesses are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from specdec_cli.decoding.model import CachedModel, ChainModel, Tap
from specdec_cli.settings import SamplingSettings


class States:
    """The target's hidden states of committed tokens, in their order, until the drafter that reads them is asked."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        """[n, width], of the tokens behind those before."""
        self._rows.append(rows)

    def take(self) -> Tensor | None:
        """[n, width] of all tokens that entered the target's cache since this was last asked; None where none did."""
        rows, self._rows = self._rows, []
        if len(rows) < 2:
            return rows[0] if rows else None
        return torch.cat(rows)


@dataclass(frozen=True)
class Context:
    """What a drafter may look at.

    Attributes:
        token_ids: every committed id, prompt included; the last one is in no cache yet.
        limit: how many tokens one of several sources, by its name, may draft; None: as many as are asked for.
        states: what the drafter's taps give of the target, of all committed tokens but the last; None without taps.
    """

    token_ids: Sequence[int]
    limit: Callable[[str], int] | None = None
    states: States | None = None


@dataclass(frozen=True)
class Draft:
    """Guesses for the next tokens.

    Attributes:
        token_ids: [num_draft_tokens] int64 on the drafter's device; may be shorter than asked for, or empty.
        probs: [num_draft_tokens, vocab_size] float32, the distributions that the ids were sampled from; None
            for a deterministic drafter, whose distribution is one-hot.
        parents: [num_draft_tokens] int64, the place of each token's parent, see `specdec_cli.decoding.tree`; None for
            a chain, and where there are none. A tree is deterministic, and what of it lies deeper than was asked for
            is read, never accepted.
        source: which of several sources guessed, as records name it; empty where there is one.
        wants_predictions: see `Drafter.observe`. Who wants them learns from the rounds that it drafts in, and is not
            judged by its first ones.
    """

    token_ids: Tensor
    probs: Tensor | None = None
    parents: Tensor | None = None
    source: str = ""
    wants_predictions: bool = False

    def __post_init__(self) -> None:
        if self.parents is not None and self.probs is not None:
            raise ValueError("the tokens of a tree are guesses, not samples: leave probs out")

    def on(self, device: torch.device) -> Draft:
        """The same, on that device."""
        if self.token_ids.device == device:
            return self
        probs, parents = (None if part is None else part.to(device) for part in (self.probs, self.parents))
        return replace(self, token_ids=self.token_ids.to(device), probs=probs, parents=parents)


class Drafter(Protocol):
    """A source of guesses.

    One that reads the target's hidden states names them in an attribute `taps` (see `taps_of`).
    """

    @property
    def device(self) -> torch.device:
        """Where drafts are made, and where the generator given to `propose` must live."""
        ...

    def reset(self, context: Context) -> None:
        """Start a new text: read its prompt, so that the first draft costs no more than the later ones.

        The target has read all but the prompt's last token by then. What is left of the text before is forgotten,
        unless the drafter is there to learn from one text to the next.
        """
        ...

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Guess at most `num_draft_tokens` tokens (0 or more) that follow the context.

        The context may have grown by more than the last draft of this drafter: another may have been asked meanwhile.
        """
        ...

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        """Learn how many tokens of the last draft were kept, and forget the others.

        Args:
            num_accepted: of a tree, the length of the path that was kept.
            predictions: where the draft wants them, the target's most likely token behind the last committed one, then
                behind each drafted one.
        """
        ...


def taps_of(drafter: Drafter) -> tuple[Tap, ...]:
    """Which of the target's hidden states a drafter reads; none, and at no cost, where it does not say."""
    taps: tuple[Tap, ...] = getattr(drafter, "taps", ())
    return taps


@dataclass(frozen=True)
class DrafterParts:
    """What a drafter can be made of; each takes what it needs.

    Attributes:
        target: whose next tokens are guessed; a drafter of trees calls its `require_trees` when it is made.
        draft: the model that --draft names; None where it names none.
        sampling: how the target's logits are warped.
        draft_stop: a chain of sampled tokens ends behind one that its model gave less than this probability (before
            warping); 0 never ends it.
        early_exit: given a number of layers, the first so many of the target as a model of its own, on the target's
            weights and cache; raises UsageError or IncompatiblePairError where that cannot be.
    """

    target: CachedModel
    draft: ChainModel | None
    sampling: SamplingSettings
    early_exit: Callable[[int], ChainModel]
    draft_stop: float = 0.0

    @property
    def device(self) -> torch.device:
        """Where drafts are made."""
        return self.target.device if self.draft is None else self.draft.device
