"""A head that guesses a whole block in one pass as the drafter: P-EAGLE, DFlash, DSpark.

Where no slot knows the others, the likeliest token of each is drafted, or the best tree of them: drawing each alone
would break nearly every chain. Where a slot can be told what was drawn before it, the block is drawn in turn above
temperature 0, and the rule gets the distributions that it was drawn from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from specdec_cli.decoding.head import BlockHead
from specdec_cli.decoding.sampling import greedy, logits_to_probs, sample
from specdec_cli.drafters.base import Context, Draft, DrafterParts
from specdec_cli.drafters.best_first import best_first
from specdec_cli.settings import SamplingSettings


class BlockDrafter:
    """Drafts with a head whose cache holds the target's states of what was committed, and nothing else.

    Args:
        head: over the target's ids.
        sampling: the target's settings.
        draft_stop: a chain ends behind a token that the head gave less than this probability; 0 never ends it.
        tree_nodes: tokens of a tree; 0 drafts chains.
    """

    def __init__(
        self, head: BlockHead, sampling: SamplingSettings, draft_stop: float = 0.0, tree_nodes: int = 0
    ) -> None:
        self.taps = head.taps
        self._head = head
        self._sampling = sampling
        self._draft_stop = draft_stop
        self._tree_nodes = tree_nodes
        self._pending: Tensor | None = None  # a prompt's last state, [1, width], which waits for the first draft

    @property
    def device(self) -> torch.device:
        return self._head.device

    def reset(self, context: Context) -> None:
        """Read the prompt's states but the last, which the first draft begins with."""
        self._head.reset()
        rows = _states(context)
        self._pending = None if rows is None else rows[-1:]
        if rows is not None and len(rows) > 1:
            self._head.read(rows[:-1], self._behind(context, len(rows) - 1))

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Guess tokens, no more than a block has; none at the first token of a text, of which there is no state yet."""
        none = Draft(torch.empty(0, dtype=torch.long, device=self.device))
        if num_draft_tokens <= 0:
            return none
        rows = [part for part in (self._pending, _states(context)) if part is not None]
        if not rows:
            return none
        self._pending = None
        states = torch.cat(rows)
        number = min(num_draft_tokens, self._head.most)
        logits = self._head.guess(states, self._behind(context, len(states)), number)
        if self._tree_nodes:
            return best_first(logits, self._tree_nodes)
        if self._head.conditions:
            return self._in_turn(logits, context, generator)
        token_ids = logits.argmax(-1)
        if self._draft_stop > 0.0:
            sure = logits.softmax(-1).gather(-1, token_ids[:, None])[:, 0] >= self._draft_stop
            token_ids = token_ids[: 1 + int(sure.long().cumprod(0).sum())]
        return Draft(token_ids)

    def observe(self, num_accepted: int, predictions: object = ()) -> None:
        """There is nothing to forget: no guess is ever cached."""

    def _in_turn(self, logits: Tensor, context: Context, generator: torch.Generator) -> Draft:
        sampling = self._sampling
        prefix = None
        if sampling.repetition_penalty != 1.0:
            prefix = torch.tensor([context.token_ids], dtype=torch.long, device=self.device)
        previous = torch.tensor(context.token_ids[-1:], dtype=torch.long, device=self.device)
        token_ids: list[Tensor] = []
        probs: list[Tensor] = []
        for slot in range(len(logits)):
            row = self._head.conditioned(logits[slot : slot + 1], slot, previous)
            if sampling.temperature == 0.0:
                previous = greedy(row, sampling, prefix)
            else:
                probs.append(logits_to_probs(row, sampling, prefix))
                previous = sample(probs[-1], generator)
            token_ids.append(previous)
            if self._draft_stop > 0.0 and bool(row.softmax(-1)[0, previous[0]] < self._draft_stop):
                break
            if prefix is not None:
                prefix = torch.cat([prefix, previous[None]], -1)
        return Draft(torch.cat(token_ids), torch.cat(probs) if probs else None)

    def _behind(self, context: Context, number: int) -> Tensor:
        """The tokens behind the next so many states."""
        first = self._head.length + 1
        return torch.tensor(context.token_ids[first : first + number], dtype=torch.long, device=self.device)


def _states(context: Context) -> Tensor | None:
    if context.states is None:
        raise ValueError("a trained head reads the target's hidden states, and nothing taps them")
    return context.states.take()


def make(options: Mapping[str, int], parts: DrafterParts) -> BlockDrafter:
    """`--draft HEAD`, where the head is of such a kind."""
    if parts.draft_tree:
        parts.target.require_trees(f"--draft-tree {parts.draft_tree}")
    return BlockDrafter(cast(BlockHead, parts.head), parts.sampling, parts.draft_stop, parts.draft_tree)
