"""The document of a session, made again of its runs: what a file of lines does not hold is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from specdec_cli.measurement import summary
from specdec_cli.measurement.caveats import caveats
from specdec_cli.measurement.plausibility import contention_of, disturbed, judge
from specdec_cli.measurement.recommendation import mark_best, recommend
from specdec_cli.measurement.runs import Block, Run, plain_runs


def whole_document(session: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any] | None:
    """What `bench` and `sweep-k` would have told at their end; None where no block is whole.

    Args:
        session: its frame, with environment and settings.
        runs: in any order, blocks that were measured again included.
    """
    kept = whole_blocks(runs)
    if not kept:
        return None
    results = summary.results(kept, compared=session["settings"]["simulated_acceptance"] is None)
    judgement = judge(results, kept)
    mark_best(results)
    told = judgement.measurable
    found = caveats(
        kept,
        [],
        disturbed=disturbed(kept) if told else None,
        others_share=contention_of(kept) if told else None,
    )
    return {
        **session,
        "results": results,
        "baseline_samples": summary.samples(plain_runs(kept)),
        "recommendation": recommend(results),
        "measurable": judgement.measurable,
        "reasons": [asdict(reason) for reason in judgement.reasons],
        "repeated": len({run.block for run in kept if run.repeat}),
        "peers": summary.peer_results(kept),
        "memory": None,
        "bandwidth": None,
        "warnings": [asdict(caveat) for caveat in found],
        "quantisation": None,
    }


def whole_blocks(runs: Sequence[Run]) -> list[Run]:
    """The last measurement of each block that every arm of its temperature has a run in."""
    blocks: dict[Block, list[Run]] = {}
    for run in runs:
        blocks.setdefault(run.block, []).append(run)
    arms: dict[float, set[Any]] = {}
    for run in runs:
        arms.setdefault(run.temperature, set()).add(run.arm_id)
    kept = []
    for (temperature, _, _), of in blocks.items():
        last = max(run.repeat for run in of)
        here = [run for run in of if run.repeat == last]
        both = any(run.is_plain for run in here) and any(run.is_speculative for run in here)
        if both and {run.arm_id for run in here} == arms[temperature]:
            kept += here
    return kept
