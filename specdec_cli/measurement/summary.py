"""Raw runs become results: speedups with intervals, acceptance, costs, and what the formula had promised.

Costs are counted in target steps. T(1), the target step, is a round of plain decoding: the pass over one token and the
loop's own work around it. A speculative round of K drafts is then made of

    K c    drafting,
    v      the pass over K + 1 tokens together with what a plain round would spend around it, so v = 1 at K = 0,
    o      what the round spends beyond that,

in units of T(1), and the measured time of a round is K c + v + o exactly. So where the extended form departs from the
measured speedup, the tokens a round are not what independent acceptance gives, or rounds were cut short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from specdec_cli import theory
from specdec_cli.measurement.runs import ArmId, Run, plain_runs
from specdec_cli.measurement.statistics import geometric_mean, proportion

ALL = "all"


@dataclass(frozen=True)
class Cost:
    """Seconds of a plain and of a speculative round, and their ratios; see the head of this module."""

    target_step_s: float
    draft_step_s: float
    verify_s: float
    other_s: float
    c: float
    v: float
    o: float


def results(runs: Sequence[Run], compared: bool = True) -> list[dict[str, Any]]:
    """One result for each draft, K and temperature over all prompts; then one a category, where there are several.

    Args:
        runs: of whole blocks; each result has its own as `samples`, see `samples`.
        compared: whether greedy texts were compared with plain decoding's.
    """
    found = []
    # By draft in the order of the first block, which is not rotated, and by K.
    speculative = [run for run in runs if run.is_speculative]
    drafts = list(dict.fromkeys(run.arm for run in speculative))
    tried = {(drafts.index(run.arm), run.k) for run in speculative}
    points = sorted(tried, key=lambda point: (point[0], isinstance(point[1], str), point[1]))
    for temperature in dict.fromkeys(run.temperature for run in runs):
        here = [run for run in runs if run.temperature == temperature]
        categories = sorted({run.category for run in here if run.category})
        for wanted in (ArmId(drafts[i], k) for i, k in points):
            for category in [ALL, *(categories if len(categories) > 1 else [])]:
                chosen = [run for run in here if category in (ALL, run.category)]
                mine = [run for run in chosen if run.arm_id == wanted]
                if not mine:  # interrupted before this temperature
                    continue
                found.append(_result(mine, plain_runs(chosen), category, compared))
    return found


def peer_results(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Other tools' figures of the same session, end to end, and specdec's own speed as a multiple of theirs.

    `identical` says whether their ids are those of specdec's plain decoding; None where both sample.
    """
    found = []
    for temperature, peer in dict.fromkeys((run.temperature, run.arm_id) for run in runs if run.peer_of is not None):
        assert peer.peer_of is not None
        here = [run for run in runs if run.temperature == temperature]
        theirs = [run for run in here if run.arm_id == peer]
        ours = [run for run in here if run.arm_id == ArmId(peer.peer_of, peer.k)]
        ratios = [end_to_end(block(ours, run)) / run.end_to_end_tokens_per_s for run in theirs if block(ours, run)]
        estimate = geometric_mean(ratios) if ratios else None
        found.append(
            {
                "peer": peer.name,
                "draft": peer.peer_of,
                "k": peer.k,
                "temperature": temperature,
                "end_to_end_tokens_per_s": geometric_mean([run.end_to_end_tokens_per_s for run in theirs]).value,
                "specdec_over_peer": estimate and estimate.value,
                "specdec_over_peer_ci": estimate and estimate.interval,
                "specdec_over_peer_range": estimate and (estimate.low, estimate.high),
                "identical": all(run.first_difference is None for run in theirs) if temperature == 0 else None,
            }
        )
    return found


def bandwidth(results: Sequence[dict[str, Any]], step_bytes: int, copy_bytes_per_s: float) -> dict[str, Any]:
    """What share of the device's speed of copying a target step reached; None where no step was measured.

    Args:
        step_bytes: of weights that a step reads.
    """
    steps = [r["cost"]["target_step_s"] for r in results if r["cost"]]
    share = step_bytes / min(steps) / copy_bytes_per_s if steps else None
    return {"step_bytes": step_bytes, "copy_bytes_per_s": copy_bytes_per_s, "share": share}


def samples(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Runs as records, without their token ids."""
    return [{key: value for key, value in asdict(run).items() if key != "token_ids"} for run in runs]


def block(runs: Sequence[Run], like: Run) -> list[Run]:
    """Those of the same prompt, turn and temperature."""
    return [run for run in runs if run.block == like.block]


def end_to_end(runs: Sequence[Run]) -> float:
    """Tokens a second, prefill included, over some runs together."""
    return sum(run.new_tokens for run in runs) / sum(run.prefill_s + run.decode_s for run in runs)


def decoding(runs: Sequence[Run]) -> float:
    """Tokens a second of decoding over some runs together."""
    return sum(run.new_tokens for run in runs) / sum(run.decode_s for run in runs)


def cost(runs: Sequence[Run], plain: Sequence[Run]) -> Cost | None:
    """Costs of the whole rounds of `runs` beside those of plain decoding; None where none of them drafted anything."""
    rounds = sum(run.whole_rounds for run in runs)
    steps = sum(run.rounds for run in plain)
    drafted = sum(run.whole_drafted for run in runs)
    if not drafted or not steps:
        return None
    around = sum(run.other_s + run.draft_s for run in plain) / steps
    step = sum(run.verify_s for run in plain) / steps + around
    draft = sum(run.whole_draft_s for run in runs) / drafted
    verify = sum(run.whole_verify_s for run in runs) / rounds
    other = sum(run.whole_other_s for run in runs) / rounds
    return Cost(step, draft, verify, other, draft / step, (verify + around) / step, (other - around) / step)


def _result(runs: Sequence[Run], plain: Sequence[Run], category: str, compared: bool) -> dict[str, Any]:
    baselines = [decoding(block(plain, run)) for run in runs]
    speedup = geometric_mean([run.tokens_per_s / b for run, b in zip(runs, baselines, strict=True)])
    whole_story = geometric_mean([run.end_to_end_tokens_per_s / end_to_end(block(plain, run)) for run in runs])
    judged = [sum(run.judged_at) for run in runs]
    accepted = [sum(run.accepted_at) for run in runs]
    alpha = proportion(accepted, judged)
    drafted = sum(run.drafted for run in runs)
    rounds = sum(run.rounds for run in runs)
    whole_rounds = sum(run.whole_rounds for run in runs)
    read = sum(run.whole_read for run in runs)
    first = runs[0]
    checked = compared and first.temperature == 0
    lengths = _lengths(runs)
    spent = cost(runs, plain)
    predicted = _predicted(alpha[0] if alpha else None, lengths, spent, speedup.value)
    differences = [(run, run.first_difference) for run in runs if run.first_difference is not None]
    return {
        "draft": first.arm,
        "k": first.k,
        "category": category,
        "temperature": first.temperature,
        "prompts": len(runs),
        "new_tokens": sum(run.new_tokens for run in runs),
        "baseline_tokens_per_s": geometric_mean(baselines).value,
        "speculative_tokens_per_s": geometric_mean([run.tokens_per_s for run in runs]).value,
        "speedup": speedup.value,
        "speedup_ci": speedup.interval,
        "speedup_range": (speedup.low, speedup.high),
        "end_to_end_speedup": whole_story.value,
        "first_token_s": {
            "baseline": fmean(run.first_token_s for run in plain),
            "speculative": fmean(run.first_token_s for run in runs),
        },
        "acceptance": {
            "alpha": alpha and alpha[0],
            "alpha_ci": alpha and alpha[1],
            "overlap": sum(run.overlap_sum for run in runs) / sum(judged) if sum(judged) else None,
            "accepted_over_drafted": sum(run.accepted for run in runs) / drafted if drafted else None,
            "judged": sum(judged),
            **_by_position(runs, whole_rounds),
        },
        "drafted": drafted,
        "tokens_per_round": sum(run.new_tokens for run in runs) / rounds,
        "tokens_per_round_formula": _expected(alpha[0], lengths) if alpha else None,
        "draft_lengths": [list(entry) for entry in lengths.items()],
        **({"tokens_per_pass": 1 + read / whole_rounds} if read > sum(run.whole_drafted for run in runs) else {}),
        "cost": spent and asdict(spent),
        "predicted": predicted,
        "lossless": {
            "checked": checked,
            "identical": not differences if checked else None,
            "first_difference": {"prompt": differences[0][0].prompt, **asdict(differences[0][1])}
            if differences
            else None,
            "differences": len(differences),
            "unexplained": sum(not d.near_tie for _, d in differences),
        },
        **({"sources": sources} if (sources := _sources(runs)) else {}),
        "samples": samples(runs),
    }


def _sources(runs: Sequence[Run]) -> dict[str, dict[str, int]]:
    """Counts of each source over all runs, where several took turns."""
    total: dict[str, dict[str, int]] = {}
    for run in runs:
        for name, counts in run.sources.items():
            mine = total.setdefault(name, dict.fromkeys(counts, 0))
            for what, count in counts.items():
                mine[what] += count
    return total


def _by_position(runs: Sequence[Run], whole_rounds: int) -> dict[str, list[float]]:
    """Of each drafted position: accepted in what share of rounds, and of the rounds that got so far."""
    width = max((len(run.judged_at) for run in runs), default=0)

    def total(counts: Sequence[tuple[int, ...]]) -> list[int]:
        return [sum(c[i] for c in counts if i < len(c)) for i in range(width)]

    accepted, judged = total([run.accepted_at for run in runs]), total([run.judged_at for run in runs])
    return {
        "per_position_joint": [a / whole_rounds for a in accepted],
        "per_position_conditional": [a / j for a, j in zip(accepted, judged, strict=True) if j],
    }


def _lengths(runs: Sequence[Run]) -> dict[int, int]:
    """Whole rounds by how many tokens they drafted."""
    total: Counter[int] = Counter()
    for run in runs:
        total.update(dict(run.lengths))
    return dict(sorted(total.items()))


def _expected(alpha: float, lengths: dict[int, int]) -> float:
    """Tokens a round by the closed form, over rounds that drafted so many tokens each."""
    rounds = sum(lengths.values())
    return sum(theory.tokens_per_round(alpha, length) * n for length, n in lengths.items()) / rounds


def _predicted(
    alpha: float | None, lengths: dict[int, int], spent: Cost | None, measured: float
) -> dict[str, float | None]:
    """Both forms: E / (K c + 1) and E / (K c + v + o), with the means of E and K where K varies from round to round."""
    if alpha is None or spent is None:
        return dict.fromkeys(("closed_form", "extended", "measured_over_closed_form", "measured_over_extended"))
    expected = _expected(alpha, lengths)
    drafting = sum(length * n for length, n in lengths.items()) / sum(lengths.values()) * spent.c
    closed = expected / (drafting + 1)
    extended = expected / (drafting + spent.v + spent.o)  # o alone may be below 0, by noise
    return {
        "closed_form": closed,
        "extended": extended,
        "measured_over_closed_form": measured / closed,
        "measured_over_extended": measured / extended,
    }
