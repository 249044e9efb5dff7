"""What a probe's figures promise, by the extended form: the best K, its speedup, and whether to use the pair at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from specdec_cli.measurement.probe import Acceptance, Costs
from specdec_cli.measurement.statistics import CONFIDENCE
from specdec_cli.theory import speedup

# Single steps that scatter more than the first are told beside the figures; more than the second, and other programs
# were measured as much as the models.
SCATTERED, DISTURBED = 0.25, 1.0
# A predicted gain below this is within what machines differ by from one minute to the next.
WORTH_USING = 1.05


def predict(alpha: float, costs: Costs, overhead_s: float) -> list[float]:
    """The extended form's speedup for K from 1, with measured c, v and o.

    Args:
        alpha: of a drafted token.
        overhead_s: seconds of a round outside both models.
    """
    overhead = overhead_s / costs.target_step_s
    return [speedup(alpha, k, costs.c, v, overhead) for k, v in enumerate(costs.v, start=1)]


def best_k(speedups: Sequence[float]) -> int:
    """The K, from 1, with the highest of them; the smaller where two are equal."""
    return 1 + max(range(len(speedups)), key=lambda i: (speedups[i], -i))


def recommendation(acceptance: Acceptance, costs: Costs) -> tuple[bool | None, str]:
    """One sentence: use it with K = n and expect about x, or do not, and why.

    Returns:
        whether to use it, None where that could not be told; and the sentence.
    """
    if acceptance.alpha is None or acceptance.alpha_ci is None:
        return None, (
            "It could not be told, since no whole round drafted anything (the texts end too soon, or are longer than "
            "the draft's context): give others with --prompts."
        )
    if costs.scatter > DISTURBED:
        return None, (
            f"It could not be told: the same step of the target took times that are {costs.scatter:.0%} apart; close "
            "other programs and measure again."
        )
    speedups = predict(acceptance.alpha, costs, acceptance.other_s)
    k = best_k(speedups)
    gain = speedups[k - 1]
    at = f"at temperature {acceptance.temperature:g}"
    low, high = (predict(bound, costs, acceptance.other_s)[k - 1] for bound in acceptance.alpha_ci)
    between = f"{low:.2f}x to {high:.2f}x by alpha's {CONFIDENCE:.0%} interval"
    if costs.scatter > SCATTERED:
        between += f"; timings scatter by {costs.scatter:.0%}, so close other programs"
    if gain >= WORTH_USING:
        return True, f"Use it with --k {k}: expect about {gain:.2f}x {at} ({between})."
    o = acceptance.other_s / costs.target_step_s
    if costs.c >= acceptance.alpha:
        why = f"a draft step costs {costs.c:.2f} target steps, more than an alpha of {acceptance.alpha:.2f} pays for"
    else:
        why = (
            f"alpha is {acceptance.alpha:.2f} where a draft step costs {costs.c:.2f} target steps, verifying "
            f"{costs.v[k - 1]:.2f} and the rest of a round {o:.2f}"
        )
    return False, f"Do not use it: at best {gain:.2f}x ({between}) {at}, K {k}, since {why}."


def record(found: Sequence[Acceptance], costs: Costs) -> dict[str, Any]:
    """Everything measured, and what the extended form makes of it, for JSON."""
    predicted = []
    for acceptance in found:
        if acceptance.alpha is not None:
            speedups = predict(acceptance.alpha, costs, acceptance.other_s)
            k = best_k(speedups)
            every = [{"k": n, "speedup": gain} for n, gain in enumerate(speedups, start=1)]
            predicted.append(
                {"temperature": acceptance.temperature, "k": k, "speedup": speedups[k - 1], "speedups": every}
            )
    return {
        "acceptance": [asdict(a) for a in found],
        "cost": {
            "target_step_s": costs.target_step_s,
            "draft_step_s": costs.draft_step_s,
            "scatter": costs.scatter,
            "c": costs.c,
            "v": [{"k": k, "v": v} for k, v in enumerate(costs.v, start=1)],
            "o": found[0].other_s / costs.target_step_s,
        },
        "predicted": predicted,
    }
