"""Trees from guesses that know nothing of each other: for each place ahead a distribution, given the text alone.

The best tree of so many tokens has the paths of the highest products of probabilities (for blocks: DDTree). It is found
best first: the next path is one that ends in the next likely token of its last place, or goes on by the likeliest of
the next place. Ranked, never sampled: the tree is a function of the text, as the walk of `decoding.tree` asks for.
"""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from specdec_cli.drafters.base import Draft

WIDEST = 16  # tokens of a place that can be in a tree


def best_first(logits: Tensor, num_nodes: int) -> Draft:
    """The tree of the best paths.

    Args:
        logits: [depth, vocab_size] of each place ahead; -inf for tokens that must not be guessed.
        num_nodes: tokens of the tree, at most.
    """
    width = min(WIDEST, num_nodes, logits.shape[-1])
    best = logits.float().log_softmax(-1).topk(width, dim=-1)
    scores, tokens = best.values.tolist(), best.indices.tolist()
    found: list[int] = []
    parents: list[int] = []
    # (minus the path's score, a number that makes all different, the parent's place and score, depth, rank)
    queue = [(-scores[0][0], 0, -1, 0.0, 0, 0)] if scores else []
    number = 1
    while queue and len(found) < num_nodes:
        minus, _, parent, before, depth, rank = heapq.heappop(queue)
        if minus == float("inf"):
            break
        place = len(found)
        found.append(tokens[depth][rank])
        parents.append(parent)
        if rank + 1 < width:
            heapq.heappush(queue, (-(before + scores[depth][rank + 1]), number, parent, before, depth, rank + 1))
        if depth + 1 < len(scores):
            heapq.heappush(queue, (minus - scores[depth + 1][0], number + 1, place, -minus, depth + 1, 0))
        number += 2
    device = logits.device
    if not found:
        return Draft(torch.empty(0, dtype=torch.long, device=device))
    return Draft(torch.tensor(found, device=device), parents=torch.tensor(parents, device=device))
