"""The accept/reject rule on independent positions, run token by token instead of calculated.

What the formulas claim can so be watched: tokens a round against the closed form, and what is emitted against the
target's distribution. Plain Python, since the formulas and their check must start fast; `decoding.acceptance` is the
same rule on tensors.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Simulation:
    """What so many rounds came to.

    Attributes:
        rounds: how many there were.
        tokens_per_round: their mean.
        standard_error: of that mean.
        alpha: accepted / (accepted + rejected); tokens behind a rejection are never judged.
        emitted: for each token, its share of all that was emitted.
    """

    rounds: int
    tokens_per_round: float
    standard_error: float
    alpha: float
    emitted: tuple[float, ...]


def overlap(target_probs: Sequence[float], draft_probs: Sequence[float]) -> float:
    """The acceptance probability of a position, sum min(p, q)."""
    return math.fsum(map(min, target_probs, draft_probs))


def leftover(target_probs: Sequence[float], draft_probs: Sequence[float]) -> list[float]:
    """What a rejected position is drawn from, norm(max(0, p - q)); all zero where p = q and nothing is rejected."""
    rest = [max(0.0, p - q) for p, q in zip(target_probs, draft_probs, strict=True)]
    total = math.fsum(rest)
    return [r / total for r in rest] if total else rest


def position_with(alpha: float) -> tuple[list[float], list[float]]:
    """Target's and draft's probabilities of a position that is accepted with probability alpha.

    The draft is sure of one token, which the target has with probability alpha.
    """
    return [alpha, 1.0 - alpha], [1.0, 0.0]


def simulate(
    target_probs: Sequence[float],
    draft_probs: Sequence[float],
    num_draft_tokens: int,
    num_rounds: int,
    rng: random.Random,
) -> Simulation:
    """Run rounds whose every position has the same two distributions.

    Args:
        target_probs, draft_probs: [vocab_size] each, summing to 1.
        num_draft_tokens: K, 1 or above.
        num_rounds: 2 or more, for a standard error.
        rng: every random draw.

    Raises:
        ValueError: what is no pair of distributions, or too few tokens or rounds.
    """
    for probs in (target_probs, draft_probs):
        if len(probs) != len(target_probs) or min(probs) < 0 or not math.isclose(math.fsum(probs), 1.0):
            raise ValueError("target_probs and draft_probs must be distributions over the same tokens")
    if num_draft_tokens < 1 or num_rounds < 2:
        raise ValueError(f"K must be 1 and rounds 2 or above, got {num_draft_tokens} and {num_rounds}")
    draft, target = list(accumulate(draft_probs)), list(accumulate(target_probs))
    recovered = list(accumulate(leftover(target_probs, draft_probs)))
    accept = [min(1.0, p / q) if q else 0.0 for p, q in zip(target_probs, draft_probs, strict=True)]
    uniform, last = rng.random, len(draft) - 1

    def draw(cumulative: list[float]) -> int:
        return bisect_right(cumulative, uniform() * cumulative[-1], 0, last)

    counts = [0] * len(draft)
    accepted = rejected = squares = 0
    for _ in range(num_rounds):
        survived = 0
        while survived < num_draft_tokens:
            token = draw(draft)
            if uniform() >= accept[token]:
                break
            counts[token] += 1
            survived += 1
        if survived < num_draft_tokens:
            counts[draw(recovered)] += 1
            rejected += 1
        else:
            counts[draw(target)] += 1  # the bonus
        accepted += survived
        squares += (survived + 1) ** 2
    emitted = accepted + num_rounds
    mean = emitted / num_rounds
    variance = (squares - num_rounds * mean * mean) / (num_rounds - 1)
    return Simulation(
        rounds=num_rounds,
        tokens_per_round=mean,
        standard_error=math.sqrt(max(0.0, variance) / num_rounds),
        alpha=accepted / (accepted + rejected),
        emitted=tuple(count / emitted for count in counts),
    )
