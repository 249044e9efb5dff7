"""The closed form of speculative decoding, and the extended form that counts what it leaves out.

With K drafted tokens a round, each accepted independently with probability alpha, a round emits
(Leviathan et al., arXiv 2211.17192, equation 1)

    E = (1 - alpha^(K+1)) / (1 - alpha)

tokens. If a draft step costs c target steps and verifying costs one, the speedup over plain decoding is
E / (K c + 1) (theorem 3.8). The extended form replaces that 1 by what is measured: v = T(K+1)/T(1), the
verify pass in target steps, and o, the round's remaining time in target steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

# The pass over K + 1 tokens in target steps: the same at every K, or of each K.
VerifyCost = float | Mapping[int, float] | Callable[[int], float]


def tokens_per_round(alpha: float, num_draft_tokens: int) -> float:
    """Expected tokens emitted by one round, from 1 (alpha 0) to K + 1 (alpha 1).

    Raises:
        ValueError: alpha outside [0, 1] or a negative K.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is a probability, got {alpha}")
    if num_draft_tokens < 0:
        raise ValueError(f"K cannot be negative, got {num_draft_tokens}")
    # The sum itself, instead of its closed form: nothing cancels as alpha approaches 1.
    return sum(alpha**i for i in range(num_draft_tokens + 1))


def speedup(
    alpha: float, num_draft_tokens: int, draft_cost: float, verify_cost: float = 1.0, overhead: float = 0.0
) -> float:
    """Expected tokens a second over plain decoding's.

    Args:
        alpha: probability that a drafted token is accepted.
        num_draft_tokens: K.
        draft_cost: c, a draft step in target steps.
        verify_cost: v, the pass over K + 1 tokens in target steps; 1 gives the closed form.
        overhead: o, the rest of a round in target steps; 0 gives the closed form.
    """
    round_cost = num_draft_tokens * draft_cost + verify_cost + overhead
    if draft_cost < 0 or overhead < 0 or verify_cost <= 0:
        raise ValueError("costs are counted in target steps: c and o at least 0, v above 0")
    return tokens_per_round(alpha, num_draft_tokens) / round_cost


def best_num_draft_tokens(
    alpha: float,
    draft_cost: float,
    candidates: Iterable[int] = range(1, 65),
    verify_cost: VerifyCost = 1.0,
    overhead: float = 0.0,
) -> int:
    """The K of `candidates` with the highest speedup; the smaller K where two are equal.

    Args:
        alpha, draft_cost, overhead: as in `speedup`.
        candidates: every K to compare.
        verify_cost: v, or v of each K as a function or a mapping.
    """
    return max(
        sorted(candidates), key=lambda k: speedup(alpha, k, draft_cost, verify_cost_at(verify_cost, k), overhead)
    )


def verify_cost_at(verify_cost: VerifyCost, num_draft_tokens: int) -> float:
    """v at one K."""
    if isinstance(verify_cost, Mapping):
        return verify_cost[num_draft_tokens]
    return verify_cost(num_draft_tokens) if callable(verify_cost) else verify_cost


def break_even_alpha(num_draft_tokens: int, draft_cost: float) -> float | None:
    """The alpha at which K drafted tokens a round neither gain nor lose in the closed form; above it they gain.

    That is where alpha + alpha^2 + ... + alpha^K = K c. At K = 1 it is c itself, and it grows with K.

    Args:
        num_draft_tokens: K, 1 or above.
        draft_cost: c, a draft step in target steps.

    Returns:
        None where c is 1 or above: then even a draft that is always right gains nothing.

    Raises:
        ValueError: K below 1 or a negative c.
    """
    if num_draft_tokens < 1 or draft_cost < 0:
        raise ValueError(f"K must be 1 or above and c at least 0, got {num_draft_tokens} and {draft_cost}")
    if draft_cost >= 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):  # halvings: to the last digit
        middle = (low + high) / 2
        if tokens_per_round(middle, num_draft_tokens) < num_draft_tokens * draft_cost + 1:
            low = middle
        else:
            high = middle
    return high
