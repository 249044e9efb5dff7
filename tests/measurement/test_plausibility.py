"""What no machine can have done: told from records made by hand, and repeated by a benchmark whose clock is a fake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from records import run_of

from specdec_cli.errors import INTERRUPTED, SLOWER, SpecdecError
from specdec_cli.measurement import summary
from specdec_cli.measurement.arms import Arm
from specdec_cli.measurement.benchmark import CONTROLS, REPEATS, Contest, Session, benchmark, whole_blocks
from specdec_cli.measurement.hardware import LEAST_CORE_S, OtherProcesses
from specdec_cli.measurement.outcome import exit_code
from specdec_cli.measurement.plausibility import MOST_CONTENTION, UNSTEADY, Judgement, disturbed, judge
from specdec_cli.measurement.recommendation import mark_best, recommend
from specdec_cli.measurement.runs import Case, Run
from specdec_cli.reports import verdict
from specdec_cli.settings import SamplingSettings


# ---------------------------------------------------------------------------------------- records made by hand
def answers(*speedups: float, k: int = 2, tokens_a_round: int = 3, **more: Any) -> list[Run]:
    """Blocks of plain decoding, 30 tokens in 30 s, beside one arm that is so many times as fast."""
    runs = []
    for prompt, speedup in enumerate(speedups, start=1):
        plain = run_of("none", 0, 30.0, prompt=prompt, new_tokens=30, rounds=30, **more)
        rounds = 30 // tokens_a_round
        fast = run_of(
            "d", k, 30.0 / speedup, prompt=prompt, new_tokens=30, rounds=rounds, whole_rounds=rounds,
            judged=9, accepted=8, **more,
        )  # fmt: skip
        runs += [plain, fast]
    return runs


def judged(runs: Sequence[Run], contention: float | None = None) -> tuple[list[dict[str, Any]], Judgement]:
    results = summary.results(runs)
    judgement = judge(results, runs, contention)
    mark_best(results)
    return results, judgement


def details(judgement: Judgement) -> str:
    assert all(reason.remedy for reason in judgement.reasons)
    return "; ".join(reason.detail for reason in judgement.reasons)


@pytest.mark.parametrize(
    ("speedups", "measurable"),
    [
        ((2.9, 2.8, 3.0), True),
        ((3.2, 3.2, 3.2), True),  # a pass over three tokens may be a little cheaper than one over one
        ((3.5,) * 6, False),  # a round of .86 of a step, six times
        ((3.5, 2.6) * 3, True),  # the same, and the interval reaches what can be
        ((3.5,) * 3, True),  # .86 in three answers may be noise
        ((4.44,), False),  # symptom: an export with K from one prompt at 4.44x of at most 3
        ((3.6,), True),
    ],
    ids=str,
)
def test_a_speedup_above_the_tokens_a_round_is_no_measurement(speedups: Sequence[float], measurable: bool) -> None:
    (result,), judgement = judged(answers(*speedups))
    assert (judgement.measurable, result["measurable"], result["best"]) == (measurable,) * 3
    assert len(recommend([result])) == measurable
    if not measurable:
        assert f"d at K 2 gives {result['speedup']:.2f}x from 3.00 tokens a round" in details(judgement)


def test_a_verify_pass_below_a_step_is_no_measurement_although_drafting_hides_it() -> None:
    """A third of a step goes into two drafted tokens, and the pass over three takes .6 of the one over one."""
    runs = answers(*(3 / 0.95,) * 6)
    slow = [
        replace(r, draft_s=3.5, verify_s=6.0, whole_draft_s=3.5, whole_verify_s=6.0) if r.k else r
        for r in runs
    ]  # fmt: skip
    (result,), judgement = judged(slow)
    assert result["cost"]["v"] == pytest.approx(0.6)
    assert not judgement.measurable
    assert "the pass over K + 1 tokens of d at K 2 takes 0.60 of the pass over one" in details(judgement)


def test_an_interval_that_spans_a_factor_of_ten_is_no_measurement() -> None:
    """Symptom: "expect 15.85x (2.32 to 228.50)"."""
    runs = answers(0.1, 2.9, 0.1, 2.9)
    (result,), judgement = judged(runs)
    assert result["speedup_ci"][1] / result["speedup_ci"][0] > 10
    assert not judgement.measurable
    assert "a factor of 29" in details(judgement)
    assert "raise --limit" in judgement.reasons[0].remedy
    assert judged(answers(0.5, 2.9, 0.5, 2.9))[1].measurable


@pytest.mark.parametrize(
    ("share", "measurable"), [(None, True), (0.0, True), (0.99 * MOST_CONTENTION, True), (0.48, False)]
)
def test_other_processes_on_the_cores(share: float | None, measurable: bool) -> None:
    of_blocks = judged(answers(2.0, 2.1, contention=share))[1]
    of_the_session = judged(answers(2.0, 2.1), share)[1]
    assert of_blocks == of_the_session
    assert of_blocks.measurable == measurable
    if not measurable:
        assert "other processes took 48% of the cores' time" in details(of_blocks)
    # What blocks say of themselves counts: those that were disturbed have been replaced.
    assert judged(answers(2.0, 2.1, contention=0.0), 0.48)[1].measurable


def test_one_impossible_k_is_left_out_beside_others() -> None:
    runs = [
        *answers(2.0, 2.1, k=1),
        *(r for r in answers(4.44, 4.5, k=2) if r.k),
        *(r for r in answers(1.9, 2.0, k=3) if r.k),
    ]
    results, judgement = judged(runs)
    assert judgement.measurable
    assert [r["measurable"] for r in results] == [True, False, True]
    assert [(point["k"], point["pays"]) for point in recommend(results)] == [(1, True)]
    assert verdict.left_out(results[1]).startswith("K 2 is left out of the recommendation: d at K 2 gives 4.47x from")


def test_where_most_k_are_impossible_none_is_believed() -> None:
    runs = [*answers(2.0, k=1), *(r for k in (2, 3) for r in answers(4.44, k=k) if r.k)]
    results, judgement = judged(runs)
    assert not judgement.measurable
    assert recommend(results) == []
    assert not any(r["best"] for r in results)


def test_each_temperature_is_judged_for_itself() -> None:
    results, judgement = judged([*answers(2.0), *answers(4.44, temperature=0.8)])
    assert judgement.measurable
    assert [point["temperature"] for point in recommend(results)] == [0.0]


def test_simulated_acceptance_and_categories_are_judged_alike() -> None:
    """Anything up to the tokens a round is possible, whatever accepted them; and a category goes with its whole."""
    runs = [replace(run, category="ab"[run.prompt % 2]) for run in answers(14.0, 13.9, k=16, tokens_a_round=15)]
    assert judged(runs)[1].measurable
    results, _ = judged([replace(run, rounds=3) if run.k else run for run in runs])
    assert [r["category"] for r in results] == ["all", "a", "b"]
    assert [r["measurable"] for r in results] == [False] * 3


# ------------------------------------------------------------------------------------------ disturbed blocks
@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda runs: runs, ""),
        (lambda runs: [replace(run, contention=0.48) for run in runs], "other processes took 48%"),
        (lambda runs: [*runs, replace(runs[0], verify_s=30.0 * UNSTEADY * 1.01)], "1.5 times as fast once as another"),
        (lambda runs: [*runs, replace(runs[0], verify_s=30.0 * UNSTEADY * 0.99)], ""),
        (lambda runs: [runs[0], replace(runs[1], verify_s=7.0)], "a round took 0.70 of a step at K 2"),
        (lambda runs: [runs[0], replace(runs[1], verify_s=7.0, peer_of="d")], ""),
    ],
)
def test_what_disturbs_a_block(change: Callable[[list[Run]], list[Run]], seen: str) -> None:
    found = disturbed([*change(answers(2.0)), *(replace(run, prompt=2) for run in answers(2.0))])
    assert list(found) == ([(0.0, 1, 1)] if seen else [])
    assert not seen or seen in found[0.0, 1, 1]


class Machine:
    """A clock's worth of arms: plain decoding of a second a token, and one that is twice as fast.

    Args:
        slow: for each time that a block is measured, from the first, whether something slows its plain runs.
        interrupt_at: the number of a run at which Ctrl-C is pressed.
    """

    def __init__(self, slow: Callable[[Case, int], bool], interrupt_at: int = 0) -> None:
        self.slow, self.interrupt_at = slow, interrupt_at
        self.calls: list[tuple[str, int]] = []
        self.cases: list[Case] = []
        arms: list[Arm] = [MachineArm(self, "d", 2)]
        self.contests = {1.0: Contest(MachineArm(self, "none", 0), arms, SamplingSettings(temperature=1.0))}

    def measure(self, turns: Sequence[int], session: Session | None = None, **more: Any) -> Session:
        session = session or Session()
        more.setdefault("repeats", REPEATS)
        benchmark(
            self.contests, [Prompt(n) for n in turns], target=None, rounding=None, max_new_tokens=30, seed=0,  # type: ignore[arg-type]
            session=session, on_run=more.pop("on_run", lambda run: None), **more,
        )  # fmt: skip
        return session


class Prompt:
    """A prompt of so many turns."""

    category = ""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def prompt_ids(self, told: Sequence[Sequence[int]]) -> Sequence[int]:
        return [1, *(i for answer in told for i in answer)]


class MachineArm:
    """One of its arms; the texts of a prompt's turn are always the same."""

    peer_of = None

    def __init__(self, machine: Machine, name: str, k: int) -> None:
        self.machine, self.name, self.k = machine, name, k

    def run(self, case: Case, max_new_tokens: int) -> Run:
        machine = self.machine
        before = machine.calls.count((self.name, case.prompt))
        machine.calls.append((self.name, case.prompt))
        machine.cases.append(case)
        if len(machine.calls) == machine.interrupt_at:
            raise KeyboardInterrupt
        plain, fast = answers(2.0)
        run = plain if self.k == 0 else fast
        slow = self.k == 0 and machine.slow(case, before)
        return replace(
            run, prompt=case.prompt, turn=case.turn, temperature=1.0, verify_s=run.verify_s * (9 if slow else 1),
            token_ids=(10 * case.prompt + case.turn,),
        )  # fmt: skip


def test_a_disturbed_block_is_measured_again_at_the_end_and_takes_its_old_place() -> None:
    machine = Machine(lambda case, before: case.prompt == 2 and before == 0)
    told: list[dict[Any, str]] = []
    written: list[Run] = []
    session = machine.measure([1, 1, 1], on_repeat=lambda found: told.append(dict(found)), on_run=written.append)
    assert [run.prompt for run in session.runs] == [1, 1, 2, 2, 3, 3]
    assert [run.repeat for run in session.runs] == [0, 0, 1, 1, 0, 0]
    assert [list(found) for found in told] == [[(1.0, 2, 1)]]
    assert "a round took" in told[0][1.0, 2, 1]
    assert [(run.prompt, run.repeat) for run in written] == [
        (1, 0), (1, 0), (2, 0), (2, 0), (3, 0), (3, 0), (2, 1), (2, 1),
    ]  # fmt: skip
    assert disturbed(session.runs) == {}
    assert whole_blocks(written, machine.contests) == session.runs  # as --resume reads it


def test_twice_is_enough_and_once_where_it_mends_nothing() -> None:
    stubborn = Machine(lambda case, before: case.prompt == 1 or (case.prompt == 2 and before == 0))
    session = stubborn.measure([1, 1])
    assert [run.repeat for run in session.runs] == [2, 2, 1, 1]
    assert list(disturbed(session.runs)) == [(1.0, 1, 1)]
    steady = Machine(lambda case, before: True)
    assert {run.repeat for run in steady.measure([1, 1]).runs} == {1}
    assert len(steady.calls) == 2 * 2 * 2 + min(2, CONTROLS)
    untouched = Machine(lambda case, before: True)
    assert {run.repeat for run in untouched.measure([1, 1], repeats=0).runs} == {0}
    assert REPEATS == 2


def test_a_later_turn_is_repeated_after_the_same_answer() -> None:
    machine = Machine(lambda case, before: case.turn == 2 and before == 1)
    machine.measure([2])
    second = [case for case in machine.cases if case.turn == 2]
    assert len(second) == 4  # both arms, twice
    assert {case.prompt_ids for case in second} == {(1, 11)}


def test_a_resumed_session_repeats_what_the_file_holds_of_disturbed_blocks() -> None:
    """And a repetition that was killed leaves the block as it was before."""
    written: list[Run] = []
    Machine(lambda case, before: case.prompt == 2).measure([1, 1], on_run=written.append, repeats=1)
    assert [run.repeat for run in written] == [0, 0, 0, 0, 1, 1]
    alone = Machine(lambda case, before: False)
    assert [run.repeat for run in whole_blocks(written[:-1], alone.contests)] == [0] * 4
    session = alone.measure([1, 1], Session(whole_blocks(written, alone.contests)))
    assert [run.repeat for run in session.runs] == [0, 0, 2, 2]
    assert alone.calls[:2] in ([("none", 2), ("d", 2)], [("d", 2), ("none", 2)])
    assert len(alone.calls) == 2 + 2  # and the controls


def test_an_interrupted_repetition_keeps_every_block() -> None:
    machine = Machine(lambda case, before: case.prompt == 1, interrupt_at=6)
    session = machine.measure([1, 1])
    assert session.interrupted
    assert [run.repeat for run in session.runs] == [0] * 4


# ------------------------------------------------------------------------------------------- other processes
@pytest.mark.parametrize(
    ("needed", "busy", "idle", "own", "contention"),
    [
        (1.0, 20.0, 0.0, 10.0, 0.5),  # two processes spin beside two threads on two cores
        (0.5, 20.0, 0.0, 10.0, 0.0),  # one beside one thread: each has a core
        (0.5, 20.0, 0.0, 6.6, 0.17),  # two beside one thread
        (1.0, 4.0, 16.0, 0.5, 0.0),  # others leave most of the cores idle
        (1.0, LEAST_CORE_S * 0.9, 0.0, 0.1, None),  # too short to tell
    ],
)
def test_contention_is_what_this_process_had_use_for(
    needed: float, busy: float, idle: float, own: float, contention: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([(0.0, 0.0, 0.0), (busy, idle, own)])
    monkeypatch.setattr(OtherProcesses, "_seconds", staticmethod(lambda: next(readings)))
    with OtherProcesses(needed) as others:
        pass
    assert others.contention == (None if contention is None else pytest.approx(contention))


@pytest.mark.parametrize("cores_needed", [None, 1.0])
def test_runs_of_a_block_carry_its_contention(cores_needed: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter(range(100))
    monkeypatch.setattr(OtherProcesses, "_seconds", staticmethod(lambda: (float(next(busy)), 0.0, 0.0)))
    session = Machine(lambda case, before: False).measure([1], cores_needed=cores_needed)
    assert {run.contention for run in session.runs} == {None if cores_needed is None else 1.0}


# ---------------------------------------------------------------------------------------------- what follows
def outcome(runs: Sequence[Run], **asked: Any) -> int:
    results, judgement = judged(runs)
    document = {
        "results": results,
        "recommendation": recommend(results),
        "reasons": [vars(r) for r in judgement.reasons],
    }
    wanted: dict[str, Any] = {"interrupted": False, "least_speedup": None, "recommended_alone": True, "exports": False}
    return exit_code(document, **wanted | asked)


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"exports": True}, "--export"),
        ({"least_speedup": 1.0}, "--fail-if-slower"),
        ({"least_speedup": 1.0, "recommended_alone": False}, "--fail-if-slower"),
    ],
)
def test_what_needs_a_measurement_fails_without_one(asked: dict[str, Any], option: str) -> None:
    with pytest.raises(SpecdecError, match=f"^{option}: not measurable now: d at K 2 gives 4.44x") as failed:
        outcome(answers(4.44), **asked)
    assert failed.value.exit_code == 1
    assert outcome(answers(2.0), **asked) == 0
    assert outcome(answers(4.44)) == 0  # a table alone was asked for
    assert outcome(answers(4.44), **asked, interrupted=True) == INTERRUPTED
    if option == "--fail-if-slower":
        assert outcome(answers(0.9), **asked) == SLOWER
    with pytest.raises(SpecdecError, match="--fail-if-slower"):  # one temperature of two, and both were asked about
        outcome([*answers(2.0), *answers(4.44, temperature=0.8)], least_speedup=1.0)
