"""Drafts that branch: several guesses for a position, all verified in one pass, one path of them kept.

A tree is given by the place of each token's parent among the tree's tokens, -1 for the root, which is the last
committed token. A parent stands before its children, and no two children of a token are alike.

Trees here are deterministic, so the rule is the plainest there is: after the root, and after each token of the tree,
draw from the target's distribution there. Starting at the root, go to the child that carries the drawn token; where no
child does, that token is emitted and the round ends. Each emitted token was drawn from the target, given the tokens
before it: nothing else has to be shown. The names are those of `specdec_cli.decoding.acceptance`: a token that a child
carries is *accepted*, the last one *recovered*, or the *bonus* where the walk had come to a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_cli.decoding.sampling import sample

ROOT = -1


@dataclass(frozen=True)
class Tree:
    """A draft's tokens and their parents, on the host."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]

    def walk(self, drawn: Sequence[int], most: int) -> list[int]:
        """Places of the accepted tokens, the root's child first.

        Args:
            drawn: the token drawn after the root, and after each token of the tree.
            most: accepted tokens at most, whatever was drawn.
        """
        children: dict[tuple[int, int], int] = {}
        for place, child in enumerate(zip(self.parents, self.token_ids, strict=True)):
            children.setdefault(child, place)
        path: list[int] = []
        at = ROOT
        while len(path) < most and (child_at := children.get((at, drawn[at + 1]))) is not None:
            path.append(child_at)
            at = child_at
        return path

    def branch(self, path: Sequence[int], most: int) -> list[int]:
        """A path continued by first children, to a leaf or `most` tokens: what could have been accepted there."""
        first: dict[int, int] = {}
        for place, parent in enumerate(self.parents):
            first.setdefault(parent, place)
        branch = list(path)
        while len(branch) < most and (child := first.get(branch[-1] if branch else ROOT)) is not None:
            branch.append(child)
        return branch

    def overlap(self, branch: Sequence[int], target_probs: Sequence[float]) -> tuple[float, ...]:
        """At each token of a branch, the probability that its place is taken by it or one of its siblings.

        Args:
            branch: places, each the parent of the next.
            target_probs: of each token of the tree, after its parent.
        """
        sums: dict[int, float] = {}
        for parent, prob in zip(self.parents, target_probs, strict=True):
            sums[parent] = sums.get(parent, 0.0) + prob
        return tuple(sums[self.parents[place]] for place in branch)


class TreeVerdict(NamedTuple):
    """What the target says of a tree; who is accepted follows from it by `Tree.walk`."""

    drawn: Tensor  # [num_tree_tokens + 1] int64, after the root and after each token
    target_prob: Tensor  # [num_tree_tokens] of each token, after its parent


def verify_tree(
    target_probs: Tensor,
    token_ids: Tensor,
    parents: Tensor,
    generator: torch.Generator,
    simulated_acceptance: float | None = None,
    one_hot: bool = False,
) -> TreeVerdict:
    """Draw after the root and after every token of a tree, without leaving the device.

    Args:
        target_probs: [num_tree_tokens + 1, vocab_size] float32, the row after the root and after each token.
        token_ids: [num_tree_tokens] int64.
        parents: [num_tree_tokens] int64.
        generator: on the device of `target_probs`.
        simulated_acceptance: draw the first child's token with this probability, and else none of the children's;
            exact for no distribution, and only good for timing models whose weights are random.
        one_hot: the rows are, as at temperature 0, where drawing by the cumulative sum of many rows would be a waste.
    """
    target_prob = target_probs[parents + 1, token_ids]
    if simulated_acceptance is None:
        drawn = target_probs.argmax(-1) if one_hot else sample(target_probs, generator)
        return TreeVerdict(drawn, target_prob)
    num_tokens = len(token_ids)
    # Where the target would have nothing but a child's token, anything else is as good: the text is nonsense anyway.
    others = (target_probs + 1e-12).index_put((parents + 1, token_ids), target_probs.new_zeros(()))
    places = torch.arange(num_tokens, device=parents.device)
    first = torch.full((num_tokens + 1,), num_tokens, device=parents.device)
    first = first.scatter_reduce(0, parents + 1, places, "amin")  # num_tokens where there is no child
    coin = torch.rand(first.shape, generator=generator, device=first.device)
    accepted = (coin < simulated_acceptance) & (first < num_tokens)
    first_token = token_ids[first.clamp(max=num_tokens - 1)]
    return TreeVerdict(torch.where(accepted, first_token, sample(others, generator)), target_prob)


def ancestors(parents: Tensor) -> Tensor:
    """[num_tree_tokens, num_tree_tokens] bool: whether a row's token is, or descends from, a column's.

    Args:
        parents: [num_tree_tokens] int64.
    """
    places = torch.arange(len(parents), device=parents.device)
    reach = (parents[:, None] == places) | (places[:, None] == places)
    for _ in range(len(parents).bit_length()):  # each time twice as many generations
        reach = (reach.float() @ reach.float()) > 0
    return reach
