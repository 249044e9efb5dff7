"""What a benchmark's document means for a script that waits for its exit code."""

from __future__ import annotations

from typing import Any

from specdec_cli.errors import INTERRUPTED, SLOWER, SpecdecError
from specdec_cli.measurement.summary import ALL


def exit_code(
    document: dict[str, Any], *, interrupted: bool, least_speedup: float | None, recommended_alone: bool, exports: bool
) -> int:
    """0, or why not: interrupted before everything was measured, or slower than asked.

    Args:
        document: with `results`, `recommendation` and `reasons`.
        least_speedup: None asks for none.
        recommended_alone: the least speedup is asked of the recommended points, not of every one.
        exports: a recommendation is to be exported.

    Raises:
        SpecdecError: the output was not the target's, which no speed makes up for; or what was asked for cannot be
            told, since the figures are no measurement.
    """
    whole = [r for r in document["results"] if r["category"] == ALL]
    wrong = [r for r in whole if r["lossless"]["unexplained"]]
    wrong += [r for r in whole if not r["lossless"].get("distribution", {"passed": True})["passed"]]
    if wrong:
        raise SpecdecError(
            f"not lossless with --draft {wrong[0]['draft']} at K {wrong[0]['k']}: this is a fault of specdec, or the "
            "model's pass over several tokens is wrong (see specdec pair-check --probe); please report it"
        )
    if interrupted:
        return INTERRUPTED
    if exports and not document["recommendation"]:
        raise _not_measurable("--export", document)
    if least_speedup is not None:
        told = document["recommendation"] if recommended_alone else [r for r in whole if r["measurable"]]
        wanted = {r["temperature"] for r in whole} if recommended_alone else whole
        if len(told) < len(wanted):
            raise _not_measurable("--fail-if-slower", document)
    points = document["recommendation"] if recommended_alone else whole
    if least_speedup is not None and any(point["speedup"] < least_speedup for point in points):
        return SLOWER
    return 0


def _not_measurable(option: str, document: dict[str, Any]) -> SpecdecError:
    reason = document["reasons"][0]
    return SpecdecError(f"{option}: not measurable now: {reason['detail']}; {reason['remedy']}")
