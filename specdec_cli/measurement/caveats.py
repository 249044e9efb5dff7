"""What a reader of a benchmark's figures must know before believing them: a closed list, each with its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from specdec_cli.measurement.runs import ArmId, Block, Run, plain_runs
from specdec_cli.measurement.statistics import ENOUGH_ANSWERS, geometric_mean, outliers
from specdec_cli.measurement.summary import block, decoding
from specdec_cli.quantities import counted

# Below so many judged positions the interval of alpha is wider than the differences people look for.
ENOUGH_POSITIONS = 200
SLOW_FIRST_RUN = 0.8
DRIFT = 0.05
SHARED_CORES = 0.1


@dataclass(frozen=True)
class Caveat:
    """Something that makes the figures less trustworthy.

    Attributes:
        kind: first_run_slow, outliers, disturbed, drift, few_answers, nothing_drafted, few_tokens, shared_cores,
            threads or interrupted.
        detail: what was seen.
        remedy: what to do about it.
    """

    kind: str
    detail: str
    remedy: str


def drift(runs: Sequence[Run], controls: Sequence[Run]) -> float | None:
    """How much faster plain decoding was at the end than at first on the same prompts: .05 is 5 %."""
    plain = plain_runs(runs)
    pairs = [(control, block(plain, control)) for control in controls]
    ratios = [control.tokens_per_s / decoding(before) for control, before in pairs if before]
    return geometric_mean(ratios).value - 1 if ratios else None


def caveats(
    runs: Sequence[Run],
    controls: Sequence[Run],
    *,
    disturbed: Mapping[Block, str] | None = None,
    others_share: float | None = None,
    threads_and_cores: tuple[int, int] | None = None,
    interrupted: bool = False,
) -> list[Caveat]:
    """Everything on the list that applies.

    Args:
        runs, controls: of the session.
        disturbed: blocks that stayed so however often they were measured, with what was seen.
        others_share: of all cores' time, what other processes took; None where it was not measured.
        threads_and_cores: that the CPU computed with, and that it has; None where that does not matter.
        interrupted: not everything was measured.
    """
    found = [
        *_slow_start(plain_runs(runs)),
        *_far_out(plain_runs(runs)),
        *_disturbed(runs, disturbed or {}),
        *_drifted(drift(runs, controls)),
        *_few_answers(runs),
        *_nothing_drafted(runs),
        *_few_tokens(runs),
    ]
    if others_share is not None and others_share > SHARED_CORES:
        detail = f"other processes took {others_share:.0%} of the cores' time"
        found.append(Caveat("shared_cores", detail, "stop them and repeat, since waiting for a core slows every step"))
    if threads_and_cores is not None and len(set(threads_and_cores)) > 1:
        threads, cores = threads_and_cores
        detail = f"torch computes with {counted(threads, 'thread')} on {counted(cores, 'physical core')}"
        found.append(Caveat("threads", detail, f"set OMP_NUM_THREADS={cores} and repeat, unless it is meant so"))
    if interrupted:
        found.append(Caveat("interrupted", "not everything was measured", "repeat, with --resume FILE to go on"))
    return found


def _slow_start(plain: Sequence[Run]) -> list[Caveat]:
    speeds = [run.tokens_per_s for run in plain]
    if len(speeds) < 3 or speeds[0] >= SLOW_FIRST_RUN * median(speeds[1:]):
        return []
    detail = f"the first plain run was slow ({speeds[0]:.1f} tokens/s, the others {median(speeds[1:]):.1f})"
    return [Caveat("first_run_slow", detail, "repeat the command now that its files are cached")]


def _far_out(plain: Sequence[Run]) -> list[Caveat]:
    far = outliers([run.decode_s / run.new_tokens for run in plain])
    if not far:
        return []
    detail = f"{len(far)} of {len(plain)} plain runs stand far outside the others"
    return [Caveat("outliers", detail, "close other programs and repeat, or raise --limit")]


def _disturbed(runs: Sequence[Run], found: Mapping[Block, str]) -> list[Caveat]:
    if not found:
        return []
    answers = counted(len({run.block for run in runs}), "answer")
    detail = f"{len(found)} of {answers} stayed disturbed ({next(iter(found.values()))})"
    return [Caveat("disturbed", detail, "stop other programs and repeat")]


def _drifted(moved: float | None) -> list[Caveat]:
    if moved is None or abs(moved) <= DRIFT:
        return []
    detail = f"plain decoding was {abs(moved):.0%} {'faster' if moved > 0 else 'slower'} at the end than at first"
    return [Caveat("drift", detail, "let the machine settle and repeat; trust the ratios more than the speeds")]


def _few_answers(runs: Sequence[Run]) -> list[Caveat]:
    answers = len({(run.prompt, run.turn) for run in runs if run.k})
    if not answers or answers >= ENOUGH_ANSWERS:
        return []
    detail = f"the intervals rest on {answers} answer{'s' if answers > 1 else ''}, and are too narrow then"
    return [Caveat("few_answers", detail, "raise --limit")]


def _arms(runs: Sequence[Run]) -> dict[tuple[ArmId, float], list[Run]]:
    """Speculative runs of specdec's own, by arm and temperature."""
    arms: dict[tuple[ArmId, float], list[Run]] = {}
    for run in runs:
        if run.is_speculative:
            arms.setdefault((run.arm_id, run.temperature), []).append(run)
    return arms


def _nothing_drafted(runs: Sequence[Run]) -> list[Caveat]:
    idle = list(dict.fromkeys(arm.name for (arm, _), of in _arms(runs).items() if not any(run.drafted for run in of)))
    if not idle:
        return []
    detail = f"nothing was drafted by {', '.join(idle)}"
    return [Caveat("nothing_drafted", detail, "see specdec pair-check for its context, or choose another --draft")]


def _few_tokens(runs: Sequence[Run]) -> list[Caveat]:
    drafting = {key: of for key, of in _arms(runs).items() if any(run.drafted for run in of)}
    judged = {key: sum(sum(run.judged_at) for run in of) for key, of in drafting.items()}
    if not judged or min(judged.values()) >= ENOUGH_POSITIONS:
        return []
    arm, _ = key = min(judged, key=lambda entry: judged[entry])
    detail = f"alpha rests on {judged[key]} judged positions ({arm.name}, K {arm.k})"
    return [Caveat("few_tokens", detail, "raise --limit or --max-new-tokens")]
