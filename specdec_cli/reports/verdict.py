"""A benchmark's result in words: what was gained, and what took the rest of what the formula promised."""

from __future__ import annotations

from typing import Any

from specdec_cli.settings import FREQUENT, LARGE_HEAD, NOT_QUANTIZED, WHOLE_VOCAB

# Share of a round's time from which on drafting is what a cheaper draft is recommended for.
WORTH_CUTTING = 0.4


def gain(result: dict[str, Any]) -> str:
    """Whether it pays, in one sentence."""
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


def explanation(result: dict[str, Any]) -> str:
    """Where the difference to the closed form went, in milliseconds a round; empty where nothing was measured."""
    cost, predicted = result["cost"], result["predicted"]
    if cost is None or predicted["closed_form"] is None:
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
    if result["speedup"] >= 0.97 * closed:
        return f"The closed form promises {closed:.2f}x, and it holds. {parts}"
    losses = {
        "the growth of the verify pass": growth * rounds,
        "the round's own overhead": overhead * rounds,
        "fewer tokens a round than independent acceptance gives": (formula - rounds) * (draft + step),
    }
    culprit = max(losses, key=lambda name: losses[name])
    return (
        f"The closed form promises {closed:.2f}x; most of the difference is {culprit}. {parts} "
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
        return f"Lossless: the same ids as plain decoding in all {result['prompts']} answers."
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


def recommendation(point: dict[str, Any]) -> str:
    """One line: draft, K and what to expect."""
    interval = point["speedup_ci"]
    expected = f"{point['speedup']:.2f}x" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")
    at = f"Recommended at temperature {point['temperature']:g}"
    if not point["drafted"]:
        return f"{at}: plain decoding; nothing was drafted."
    which = f"{point['draft']} with K = {point['k']}"
    if point["pays"] is False:
        return f"{at}: plain decoding; the best draft, {which}, gives {expected}."
    if point["pays"] is None:
        return f"{at}: nothing yet; {which} gives {expected}, which may be no gain."
    return f"{at}: {which}, expect {expected}."
