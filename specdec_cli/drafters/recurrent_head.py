"""A trained head that goes on with its own states as the drafter: EAGLE's, and layers for multi-token prediction.

It reads the target's states of what was committed, then drafts from its own. As a chain it samples, and hands over the
distributions it sampled from. As a tree it is EAGLE-2's (Li et al., arXiv 2406.16858): the likeliest children of the
likeliest tokens, of which the likeliest stay, by the product of the head's own probabilities. A tree is ranked and
never sampled, so it is a function of the text, which is all that the walk of `decoding.tree` asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from specdec_cli.decoding.head import RecurrentHead
from specdec_cli.decoding.sampling import greedy, logits_to_probs, sample
from specdec_cli.drafters.base import Context, Draft, DrafterParts
from specdec_cli.settings import SamplingSettings

WIDEST = 10  # children of a token, and tokens of a generation that have children: EAGLE-2's


class RecurrentHeadDrafter:
    """Drafts with a head and its own cache, which holds the target's states of everything committed, and nothing else.

    Args:
        head: over the target's ids.
        sampling: the target's settings.
        draft_stop: a chain ends behind a token that the head gave less than this probability; 0 never ends it.
        tree_nodes: tokens of a tree; 0 drafts chains.
    """

    def __init__(
        self, head: RecurrentHead, sampling: SamplingSettings, draft_stop: float = 0.0, tree_nodes: int = 0
    ) -> None:
        self.taps = head.taps
        self._head = head
        self._sampling = sampling
        self._draft_stop = draft_stop
        self._tree_nodes = tree_nodes
        self._pending: Tensor | None = None  # a prompt's last state, [1, width], which waits for the first draft
        self._right = 0  # pairs made of the target's states

    @property
    def device(self) -> torch.device:
        return self._head.device

    def reset(self, context: Context) -> None:
        """Read the prompt's pairs but the last, which the first draft begins with."""
        self._head.reset()
        rows = _states(context)
        self._pending = None if rows is None else rows[-1:]
        if rows is not None and len(rows) > 1:
            self._head.read(rows[:-1], self._behind(context, len(rows) - 1))
        self._right = self._head.length

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Guess tokens; none at the first token of a text, of which there is no state yet."""
        if num_draft_tokens <= 0:
            return self._none()
        rows = [part for part in (self._pending, _states(context)) if part is not None]
        if not rows:
            return self._none()
        self._pending = None
        read = torch.cat(rows)
        logits, hidden = self._head.read(read, self._behind(context, len(read)))
        self._right = self._head.length
        if self._tree_nodes:
            return self._tree(logits, hidden, num_draft_tokens)
        return self._chain(logits, hidden, num_draft_tokens, context, generator)

    def observe(self, num_accepted: int, predictions: object = ()) -> None:
        """Forget the pairs made of own states, accepted or not: the target's take their place."""
        self._head.roll_back(self._head.length - self._right)

    def _none(self) -> Draft:
        return Draft(torch.empty(0, dtype=torch.long, device=self.device))

    def _behind(self, context: Context, number: int) -> Tensor:
        """The tokens of the next so many pairs."""
        first = self._head.length + 1
        return torch.tensor(context.token_ids[first : first + number], dtype=torch.long, device=self.device)

    def _chain(
        self, logits: Tensor, hidden: Tensor, number: int, context: Context, generator: torch.Generator
    ) -> Draft:
        sampling = self._sampling
        prefix = None
        if sampling.repetition_penalty != 1.0:
            prefix = torch.tensor([context.token_ids], dtype=torch.long, device=self.device)
        token_ids: list[Tensor] = []
        probs: list[Tensor] = []
        while True:
            if sampling.temperature == 0.0:
                token = greedy(logits, sampling, prefix)  # [1]
            else:
                probs.append(logits_to_probs(logits, sampling, prefix))
                token = sample(probs[-1], generator)
            token_ids.append(token)
            if len(token_ids) == number:
                break
            if self._draft_stop > 0.0 and bool(logits.softmax(-1)[0, token[0]] < self._draft_stop):
                break
            if prefix is not None:
                prefix = torch.cat([prefix, token[None]], -1)
            logits, hidden = self._head.step(hidden, token)
        return Draft(torch.cat(token_ids), torch.cat(probs) if probs else None)

    def _tree(self, logits: Tensor, hidden: Tensor, depth: int) -> Draft:
        """EAGLE-2's: generation by generation, the widest of each go on; then the best of all that were seen."""
        width = min(WIDEST, self._tree_nodes)
        tokens, scores, parents = [], [], []  # of each generation, [m] each; parents are places among all of them
        first, seen = 0, torch.empty(1, 0, dtype=torch.bool, device=self.device)  # of the rows that have children
        row_scores, row_places = logits.new_zeros(1), torch.tensor([-1], device=self.device)
        for generation in range(depth):
            best = logits.log_softmax(-1).topk(min(width, logits.shape[-1]), dim=-1)
            score = (row_scores[:, None] + best.values).flatten()
            of = torch.arange(len(row_scores), device=self.device).repeat_interleave(best.values.shape[-1])
            tokens.append(best.indices.flatten())
            scores.append(score)
            parents.append(row_places[of])
            if generation + 1 == depth:
                break
            chosen = _ranked(score)[:width]
            row_scores, row_places = score[chosen], first + chosen
            first += len(score)
            own = torch.eye(len(chosen), dtype=torch.bool, device=self.device)
            seen = torch.cat([seen[of[chosen]], own], -1) if generation else own
            logits, hidden = self._head.step_tree(hidden[of[chosen]], tokens[-1][chosen], seen, generation)
        return _best(torch.cat(tokens), torch.cat(scores), torch.cat(parents), self._tree_nodes)


def _states(context: Context) -> Tensor | None:
    if context.states is None:
        raise ValueError("a trained head reads the target's hidden states, and nothing taps them")
    return context.states.take()


def _ranked(scores: Tensor) -> Tensor:
    """Places from the best to the worst; of equal ones the first stays first, so that no child precedes its parent."""
    return scores.argsort(descending=True, stable=True)


def _best(tokens: Tensor, scores: Tensor, parents: Tensor, number: int) -> Draft:
    """The best tokens of a tree as a tree: no child is better than its parent, so all parents are among them.

    Tokens that the head has no word for are at -inf, and left out.
    """
    kept = _ranked(scores)[:number].sort().values
    kept = kept[scores[kept].isfinite()]
    places = torch.full((len(scores) + 1,), -1, device=kept.device)
    places[kept] = torch.arange(len(kept), device=kept.device)  # the last one stays -1, for the root
    return Draft(tokens[kept], parents=places[parents[kept]])


def make(options: Mapping[str, int], parts: DrafterParts) -> RecurrentHeadDrafter:
    """`--draft HEAD`, where the head is of such a kind."""
    head = cast(RecurrentHead, parts.head)
    if parts.draft_tree:
        parts.target.require_trees(f"--draft-tree {parts.draft_tree}")
    return RecurrentHeadDrafter(head, parts.sampling, parts.draft_stop, parts.draft_tree)
