"""A benchmark's result in words: what was gained, and what took the rest of what the formula promised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_cli.settings import FREQUENT, LARGE_HEAD, NOT_QUANTIZED, WHOLE_VOCAB

# Share of a round's time from which on drafting is what a cheaper draft is recommended for.
WORTH_CUTTING = 0.4
# How far a measured speedup may be from what a form promises, on either side, for the form to hold.
HOLDS_WITHIN = 0.05


def gain(result: dict[str, Any]) -> str:
    """Whether it pays, in one sentence; or that it was not measured."""
    if not result.get("measurable", True):
        return not_measurable(result["reasons"])
    speedup, interval = result["speedup"], result["speedup_ci"]
    range_text = f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    if not result["drafted"]:
        return (
            f"Nothing was drafted: this is plain decoding on both sides, which came out at {speedup:.2f}x{range_text}."
        )
    low, high = interval or (speedup, speedup)
    if low > 1:
        return f"Speculation pays here: {speedup:.2f}x plain decoding{range_text}."
    if high < 1:
        return f"Speculation does not pay here: {speedup:.2f}x plain decoding{range_text}."
    return f"No gain that could be told from none: {speedup:.2f}x plain decoding{range_text}."


def not_measurable(reasons: Sequence[dict[str, Any]]) -> str:
    """That nothing follows from the figures, why, and what to do."""
    return f"Not measurable now: {reasons[0]['detail']}; {reasons[0]['remedy']}."


def left_out(result: dict[str, Any]) -> str:
    """That one point is no measurement beside others that are."""
    reason = result["reasons"][0]
    return f"K {result['k']} is left out of the recommendation: {reason['detail']}; {reason['remedy']}."


def explanation(result: dict[str, Any]) -> str:
    """Where the difference to the closed form went, in milliseconds a round; empty where nothing was measured."""
    cost, predicted = result["cost"], result["predicted"]
    if cost is None or predicted["closed_form"] is None or not result.get("measurable", True):
        return ""
    step = cost["target_step_s"] * 1000
    lengths = result["draft_lengths"]
    k = sum(length * rounds for length, rounds in lengths) / max(1, sum(rounds for _, rounds in lengths))
    draft, growth, overhead = k * cost["c"] * step, (cost["v"] - 1) * step, cost["o"] * step
    rounds, formula = result["tokens_per_round"], result["tokens_per_round_formula"]
    closed = predicted["closed_form"]
    parts = (
        f"A round takes {draft + step + growth + overhead:.1f} ms: {draft:.1f} drafting, {step:.1f} one target step, "
        f"{growth:+.1f} for the pass over {result.get('tokens_per_pass', k + 1):.3g} tokens, "
        f"{overhead:+.1f} for everything else."
    )
    if draft > step + growth + overhead:
        parts += " Drafting is most of the round: a faster draft, or a smaller K, would gain most."
    measured = result["speedup"]
    if abs(measured / closed - 1) <= HOLDS_WITHIN:
        return f"The closed form promises {closed:.2f}x, and it holds within {HOLDS_WITHIN:.0%}. {parts}"
    losses = {
        ("the growth of the verify pass", "a verify pass cheaper than a plain step"): growth * rounds,
        ("the round's own overhead", "less around a round than around a plain step"): overhead * rounds,
        (
            "fewer tokens a round than independent acceptance gives",
            "more tokens a round than independent acceptance gives",
        ): (formula - rounds) * (draft + step),
    }
    if measured < closed:
        (culprit, _), more = max(losses, key=lambda names: losses[names]), ""
    else:
        (_, culprit), more = min(losses, key=lambda names: losses[names]), f", and {measured:.2f}x was measured"
    return (
        f"The closed form promises {closed:.2f}x{more}; most of the difference is {culprit}. {parts} "
        f"It emits {rounds:.2f} tokens; independent acceptance would give {formula:.2f}."
    )


def cheaper_draft(result: dict[str, Any], draft: dict[str, Any]) -> str:
    """What would make this draft cheaper without changing the output's distribution; empty where that gains little.

    Args:
        draft: what is recorded of it in `settings`.
    """
    cost = result["cost"]
    if cost is None or "head_share" not in draft:
        return ""
    lengths = result["draft_lengths"]
    k = sum(length * rounds for length, rounds in lengths) / max(1, sum(rounds for _, rounds in lengths))
    if k * cost["c"] < WORTH_CUTTING * (k * cost["c"] + cost["v"] + cost["o"]):
        return ""
    found = []
    share, rows = draft["head_share"], draft["head_rows"]
    if draft["vocab"] == WHOLE_VOCAB and share >= LARGE_HEAD and rows > FREQUENT:
        found.append(f"the draft's head is {share:.0%} of the bytes of its step: try --draft-vocab {FREQUENT}")
    if draft["quantize"] == NOT_QUANTIZED and draft["device"] == "cpu":
        found.append("its weights are not rounded: try --draft-quantize auto")
    if not found:
        return ""
    return f"A cheaper draft would gain most ({'; '.join(found)}); the output's distribution stays."


def losslessness(result: dict[str, Any], token: str = "token") -> str:
    """What was checked of exactness; empty where nothing was."""
    lossless = result["lossless"]
    check = lossless.get("distribution")
    if check is not None:
        if check["p_value"] is None:
            return (
                "First tokens are all but certain here, so that there is no distribution to test: raise --temperature."
            )
        verdict = "as the target's" if check["passed"] else "NOT as the target's"
        samples, p_value = check["samples"], f"p = {check['p_value']:.3g}"
        return f"First tokens are distributed {verdict}: chi-square over {samples} samples, {p_value}."
    if not lossless["checked"]:
        return ""
    if lossless["identical"]:
        return f"Lossless: the same ids as plain decoding in {_all(result['prompts'])}."
    first = lossless["first_difference"]
    where = f"prompt {first['prompt']}, {token} {first['position'] + 1}"
    gap = f"the target's two best logits are {first['gap']:.3g} apart there"
    if lossless["unexplained"]:
        count = lossless["differences"]
        return f"NOT lossless: {count} answers differ from plain decoding's, first at {where}; {gap}."
    return (
        f"{lossless['differences']} of {result['prompts']} answers take another turn at a near tie, which 16-bit "
        f"rounding decides (first at {where}; {gap}); use --dtype float32 for identical text."
    )


def _all(answers: int) -> str:
    return "the one answer" if answers == 1 else f"all {answers} answers"


def recommendation(point: dict[str, Any]) -> str:
    """Does it pay, with which draft at which K, and how sure is that: in plain words."""
    interval = point["speedup_ci"]
    sure = f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})" if interval else " (one answer: no interval)"
    at, which = f"At temperature {point['temperature']:g}", f"K {point['k']} with {point['draft']}"
    gain = f"{point['speedup']:.2f}x plain decoding{sure}"
    if not point["drafted"]:
        return f"{at} it does not pay: nothing was drafted."
    if point["pays"] is False:
        return f"{at} it does not pay: the best, {which}, gives {gain}. Decode plainly:"
    if point["pays"] is None:
        doubt = "which may be no gain" if interval else "and one answer tells little: raise --limit"
        return f"{at} it is open whether it pays: {which} gives {gain}, {doubt}. To try it:"
    return f"{at} it pays: {which} gives {gain}. To use it:"
