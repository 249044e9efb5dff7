"""What no machine can have done: blocks that something disturbed, and figures that are no measurement.

A round reads every weight that a step of plain decoding reads, and more tokens with them. So a round that takes less
than a step, a speedup above the tokens a round, or a verify pass below a step were not measured: something else took
the cores while plain decoding ran. Kernels for several tokens may really be a little cheaper than those for one (a
tenth of a step was seen); more than that is refused.

Everything here is computed from records, so that a file of runs is judged as the session was that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specdec_cli.measurement.runs import Block, Run, plain_runs
from specdec_cli.measurement.statistics import ENOUGH_ANSWERS, geometric_mean
from specdec_cli.measurement.summary import ALL, block, cost, decoding

# Of a target step: what a round, or its verify pass, takes at least.
LEAST_ROUND = 0.9
# The same where few answers leave the noise of a single run in it.
LEAST_OF_FEW = 0.8
# An interval of the speedup that spans this factor or more tells nothing.
WIDEST_INTERVAL = 10.0
# Of the cores' time: what other processes may take of what this one has threads for.
MOST_CONTENTION = 0.2
# Between the plain runs of one block.
UNSTEADY = 1.5

ALONE = "stop other programs and repeat the command (with --resume FILE, disturbed answers only)"
MORE = "raise --limit or --max-new-tokens, and repeat"


@dataclass(frozen=True)
class Reason:
    """Why a figure is no measurement.

    Attributes:
        detail: what was seen.
        remedy: what to do about it.
    """

    detail: str
    remedy: str


@dataclass(frozen=True)
class Judgement:
    """Whether a session measured anything that can be recommended from.

    Attributes:
        measurable: at least one point is.
        reasons: why some points are not, or none; each once.
    """

    measurable: bool
    reasons: tuple[Reason, ...]


def disturbed(runs: Sequence[Run]) -> dict[Block, str]:
    """The blocks that something disturbed, and what was seen of it.

    Args:
        runs: of whole blocks.
    """
    blocks: dict[Block, list[Run]] = {}
    for run in runs:
        blocks.setdefault(run.block, []).append(run)
    return {place: seen for place, of in blocks.items() if (seen := _disturbance(of))}


def contention_of(runs: Sequence[Run]) -> float | None:
    """`Run.contention` over all blocks that tell, by their time; None where none does."""
    known = [(run.contention, run.prefill_s + run.decode_s) for run in runs if run.contention is not None]
    seconds = sum(time for _, time in known)
    return sum(share * time for share, time in known) / seconds if seconds else None


def judge(results: Sequence[dict[str, Any]], runs: Sequence[Run], contention: float | None = None) -> Judgement:
    """Set `measurable` and `reasons` in every result; where most points of a temperature are refused, all of them are.

    Args:
        results: of `summary.results`.
        runs: what they were computed from.
        contention: of the whole session, for runs whose blocks were too short to tell; see `Run.contention`.
    """
    told = contention_of(runs)
    everywhere = [*_crowded(contention if told is None else told)]
    refused = {_point(r): [*everywhere, *_refusals(r, runs)] for r in results if r["category"] == ALL}
    for temperature in {temperature for _, _, temperature in refused}:
        here = [point for point in refused if point[2] == temperature]
        if 2 * sum(bool(refused[point]) for point in here) > len(here):
            seen = next(reasons[0] for point in here if (reasons := refused[point]))
            for point in here:
                refused[point] = refused[point] or [seen]
    for result in results:
        reasons = refused[_point(result)]
        result |= {"measurable": not reasons, "reasons": [asdict(reason) for reason in reasons]}
    every = dict.fromkeys(reason for reasons in refused.values() for reason in reasons)
    return Judgement(not all(refused.values()), tuple(every))


def _disturbance(of: Sequence[Run]) -> str:
    """What disturbed the runs of one block; empty where nothing is seen."""
    share = of[0].contention
    if share is not None and share > MOST_CONTENTION:
        return _taken(share)
    plain = plain_runs(of)
    speeds = [run.tokens_per_s for run in plain]
    if max(speeds) > UNSTEADY * min(speeds):
        return f"plain decoding was {max(speeds) / min(speeds):.1f} times as fast once as another time"
    rounds = [(_round_cost(run, plain), run) for run in of if run.is_speculative]
    least, run = min(rounds, key=lambda entry: entry[0], default=(1.0, None))
    return f"a round took {least:.2f} of a step at K {run.k}" if run is not None and least < LEAST_OF_FEW else ""


def _refusals(result: Mapping[str, Any], runs: Sequence[Run]) -> list[Reason]:
    """Everything about one point that physics refuses."""
    here = [run for run in runs if run.temperature == result["temperature"]]
    mine = [r for r in here if r.is_speculative and (r.arm, r.k) == (result["draft"], result["k"])]
    plain = {run.block: block(plain_runs(here), run) for run in mine}
    which = f"{result['draft']} at K {result['k']}"
    found = []
    if (least := _too_cheap([_round_cost(run, plain[run.block]) for run in mine])) is not None:
        found.append(
            f"{which} gives {result['speedup']:.2f}x from {result['tokens_per_round']:.2f} tokens a round, so that a "
            f"round takes {least:.2f} of a plain step that reads the same weights"
        )
    spent = [cost([run], plain[run.block]) for run in mine]
    if not found and (least := _too_cheap([one.v for one in spent if one is not None and one.v > 0])) is not None:
        found.append(
            f"the pass over K + 1 tokens of {which} takes {least:.2f} of the pass over one that reads the same weights"
        )
    reasons = [Reason(detail, ALONE) for detail in found]
    low, high = result["speedup_ci"] or (1.0, 1.0)
    if high >= WIDEST_INTERVAL * low:
        detail = f"the speedup of {which} lies between {low:.2f}x and {high:.2f}x, a factor of {high / low:.0f}"
        reasons.append(Reason(detail, f"{ALONE}, or {MORE}"))
    return reasons


def _round_cost(run: Run, plain: Sequence[Run]) -> float:
    """What a round took, in plain steps of the same block."""
    return run.decode_s / run.rounds * decoding(plain)


def _too_cheap(costs: Sequence[float]) -> float | None:
    """The mean of what rounds or passes took, in steps, where it is below the least by more than its interval."""
    if not costs:
        return None
    found = geometric_mean(costs)
    _, high = found.interval or (found.value, found.value)
    few = len(costs) < ENOUGH_ANSWERS and found.value >= LEAST_OF_FEW
    return None if few or high >= LEAST_ROUND else found.value


def _crowded(share: float | None) -> list[Reason]:
    return [Reason(_taken(share), ALONE)] if share is not None and share > MOST_CONTENTION else []


def _taken(share: float) -> str:
    return f"other processes took {share:.0%} of the cores' time, which this one needed"


def _point(result: Mapping[str, Any]) -> tuple[Any, Any, float]:
    return result["draft"], result["k"], result["temperature"]
