"""Medusa's heads as the drafter: one state of the target, a guess for each of the next places, no cache.

No head knows what the others guess, so drawing each would break nearly every chain. The likeliest token of each is
drafted, or with a budget of tokens the best tree of them: both are functions of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from specdec_cli.decoding.head import MedusaHeads
from specdec_cli.drafters.base import Context, Draft, DrafterParts
from specdec_cli.drafters.best_first import best_first


class MedusaDrafter:
    """Drafts as many tokens as there are heads, at most.

    Args:
        heads: over the target's ids.
        draft_stop: a chain ends behind a token that its head gave less than this probability; 0 never ends it.
        tree_nodes: tokens of a tree; 0 drafts chains.
    """

    def __init__(self, heads: MedusaHeads, draft_stop: float = 0.0, tree_nodes: int = 0) -> None:
        self.taps = heads.taps
        self._heads = heads
        self._draft_stop = draft_stop
        self._tree_nodes = tree_nodes
        self._state: Tensor | None = None  # [1, width], of the last token in the target's cache

    @property
    def device(self) -> torch.device:
        return self._heads.device

    def reset(self, context: Context) -> None:
        """The prompt's last state but one token is all that counts."""
        self._state = None
        self._take(context)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Guess tokens; none at the first token of a text, of which there is no state yet."""
        self._take(context)
        if self._state is None or num_draft_tokens <= 0:
            return Draft(torch.empty(0, dtype=torch.long, device=self.device))
        logits = self._heads.guesses(self._state)[:num_draft_tokens]
        if self._tree_nodes:
            return best_first(logits, self._tree_nodes)
        token_ids = logits.argmax(-1)
        if self._draft_stop > 0.0:
            sure = logits.softmax(-1).gather(-1, token_ids[:, None])[:, 0] >= self._draft_stop
            token_ids = token_ids[: 1 + int(sure.long().cumprod(0).sum())]
        return Draft(token_ids)

    def observe(self, num_accepted: int, predictions: object = ()) -> None:
        """There is nothing to forget."""

    def _take(self, context: Context) -> None:
        if context.states is None:
            raise ValueError("a trained head reads the target's hidden states, and nothing taps them")
        rows = context.states.take()
        if rows is not None:
            self._state = rows[-1:]


def make(options: Mapping[str, int], parts: DrafterParts) -> MedusaDrafter:
    """`--draft HEAD`, where these are Medusa's heads."""
    if parts.draft_tree:
        parts.target.require_trees(f"--draft-tree {parts.draft_tree}")
    return MedusaDrafter(cast(MedusaHeads, parts.head), parts.draft_stop, parts.draft_tree)
