"""What a probe measured, each finding in one line; `reports.pair_check` puts them into its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHOWN_K = (1, 2, 4, 8, 16)


def cache_line(agreement: Mapping[str, float | None], dtype: str, untried: Sequence[int] = ()) -> str:
    """How far a cache is from a computation that cannot go wrong in the same way.

    Args:
        agreement: the two differences, None where they are no number, and the tolerance.
        dtype: what the model computes in.
        untried: windows that no block was tried past.
    """
    block, rollback = agreement["block_against_steps"], agreement["rollback_against_recompute"]
    if block is None or rollback is None:
        return f"in {dtype} its logits are not numbers, or all the same"
    left_out = (
        f"; past its window of {' and '.join(f'{w:,}' for w in untried)} tokens it was not tried" if untried else ""
    )
    return (
        f"a block differs from single steps by {block:.2g} of the logits' spread, a rolled-back cache from a fresh one "
        f"by {rollback:.2g}; rounding to {dtype} explains {agreement['tolerance']:g}{left_out}"
    )


def fidelity_line(found: Mapping[str, Any], quantize: str) -> str:
    """How far a quantised target is from itself."""
    return (
        f"{quantize}: its distributions overlap by {found['overlap']:.3f} with those of the target without "
        f"quantisation, and both choose the same token at {found['greedy_agreement']:.1%} of {found['positions']} "
        "positions"
    )


def speed_line(measured: Mapping[str, Any]) -> str:
    """Everything that was measured of costs and acceptance, and what it promises."""
    cost = measured["cost"]
    shown = ", ".join(f"{v['v']:.2f} (K {v['k']})" for v in cost["v"] if v["k"] in SHOWN_K)
    steps = " and ".join(f"{cost[f'{role}_step_s'] * 1000:.1f} ms" for role in ("target", "draft"))
    parts = [f"steps take {steps}: c {cost['c']:.2f}", f"o {cost['o']:.2f}", f"v {shown}"]
    for best in measured["predicted"]:
        a = next(a for a in measured["acceptance"] if a["temperature"] == best["temperature"])
        alpha, overlap = ("{:.2f} ({:.2f} to {:.2f})".format(a[n], *a[f"{n}_ci"]) for n in ("alpha", "overlap"))
        parts.append(
            f"at temperature {best['temperature']:g} alpha {alpha}, overlap {overlap}, {a['judged']} tokens judged, "
            f"{best['speedup']:.2f}x at K {best['k']}"
        )
    return "; ".join(parts)
