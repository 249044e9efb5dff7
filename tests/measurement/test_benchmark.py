"""The measuring core on cheap models whose time a fake clock tells: known costs in, known figures out.

Nothing here waits and no measured time is asserted: a forward of n tokens costs what the test says.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from laws import BagModel, GreedyButClaimsOtherwise
from records import run_of, step
from torch import Tensor

from specdec_cli import theory
from specdec_cli.decoding.loop import Step
from specdec_cli.decoding.seeds import answer_seed
from specdec_cli.decoding.tree import Tree
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.measurement import hardware, summary
from specdec_cli.measurement.arms import Arm, LoopArm, PeerArm, count
from specdec_cli.measurement.benchmark import (
    ARMS_PER_BASELINE,
    CONTROLS,
    WARM_UP_TOKENS,
    Contest,
    Session,
    benchmark,
    in_turn,
    warm_up,
    whole_blocks,
)
from specdec_cli.measurement.caveats import ENOUGH_POSITIONS, Caveat, caveats, drift
from specdec_cli.measurement.distribution import SAMPLES, check_first_tokens, least_certain
from specdec_cli.measurement.metrics import add_up
from specdec_cli.measurement.recommendation import TIE, mark_best, recommend
from specdec_cli.measurement.runs import Case, Difference, Run, plain_runs
from specdec_cli.reports import verdict
from specdec_cli.settings import SamplingSettings

GREEDY, SAMPLED = SamplingSettings(temperature=0.0), SamplingSettings(temperature=1.0)
# SPEC.md's worked example.
TARGET_PROBS = (0.30, 0.25, 0.18, 0.12, 0.10, 0.05)
DRAFT_PROBS = (0.44, 0.15, 0.16, 0.05, 0.12, 0.08)
ALPHA = 0.81
CPU = torch.device("cpu")


# ------------------------------------------------------------------------------------ models with a clock
class Clock:
    """Seconds that pass when a model says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(BagModel):
    """A cheap model whose passes and roll-backs take known time.

    Args:
        pass_s: seconds of a pass over n tokens.
        cut_s: seconds of a roll-back.
        probs: the same distribution everywhere, instead of one that depends on the text.
    """

    def __init__(
        self,
        clock: Clock,
        pass_s: Callable[[int], float] = lambda n: 1.0,
        cut_s: float = 0.0,
        *,
        seed: int = 1,
        probs: Sequence[float] | None = None,
        vocab_size: int = 6,
        max_length: int = 200,
    ) -> None:
        super().__init__(vocab_size, seed, max_length)
        self._clock, self._pass_s, self._cut_s = clock, pass_s, cut_s
        self._row = None if probs is None else torch.tensor(probs).log()

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        self._clock.now += self._pass_s(len(token_ids))
        return super().forward(token_ids, num_logits)

    def roll_back(self, num_tokens: int) -> None:
        self._clock.now += self._cut_s
        super().roll_back(num_tokens)

    def logits(self, ids: Sequence[int]) -> Tensor:
        return super().logits(ids) if self._row is None else self._row


@dataclass(frozen=True)
class Dialogue:
    """A prompt of given ids; a later turn follows all answers."""

    ids: tuple[int, ...] = (1, 2, 3)
    category: str = ""
    turns: int = 1

    def prompt_ids(self, answers: Sequence[Sequence[int]]) -> Sequence[int]:
        return [*self.ids, *(i for answer in answers for i in answer)]


def contest_of(
    target: BagModel, drafts: dict[str, BagModel], ks: Sequence[int], sampling: SamplingSettings, clock: Clock
) -> Contest:
    arms: list[Arm] = [
        LoopArm(name, k, target, DraftModel(model, sampling), sampling, clock)
        for name, model in drafts.items()
        for k in ks
    ]
    return Contest(LoopArm("none", 0, target, NoDrafter(CPU), sampling, clock), arms, sampling)


def measured(
    contests: dict[float, Contest],
    dialogues: Sequence[Dialogue],
    target: BagModel,
    *,
    tokens: int = 40,
    rounding: float = 0.0,
    session: Session | None = None,
    on_run: Callable[[Run], None] = lambda run: None,
) -> Session:
    session = session or Session()
    benchmark(
        contests, dialogues, target=target, rounding=rounding, max_new_tokens=tokens, seed=70, session=session,
        on_run=on_run,
    )  # fmt: skip
    return session


def plain_twin() -> tuple[Clock, Timed, Timed]:
    """A target and a draft that always agree: T(n) = 10 + (n - 1) / 2, a draft step of 1/2, cuts of 1 and of 2."""
    clock = Clock()
    target = Timed(clock, lambda n: 10 + (n - 1) / 2, cut_s=1.0)
    return clock, target, Timed(clock, lambda n: 0.5, cut_s=2.0)


# ----------------------------------------------------------------------------------------- known costs
def test_known_costs_come_out_as_computed_by_hand() -> None:
    """Of 40 tokens at K 4: a plain round is a pass of 10 and a cut of 1. A speculative one is four draft steps of 1/2,
    a pass of 12 over five tokens, the target's cut of 1 and the draft's of 2; and there are eight of them.
    """
    clock, target, draft = plain_twin()
    session = measured({0.0: contest_of(target, {"d": draft}, [4], GREEDY, clock)}, [Dialogue()] * 3, target)
    (result,) = summary.results(session.runs)
    assert result["cost"] == {
        "target_step_s": 11.0, "draft_step_s": 0.5, "verify_s": 12.0, "other_s": 3.0,
        "c": pytest.approx(0.5 / 11), "v": pytest.approx(13 / 11), "o": pytest.approx(2 / 11),
    }  # fmt: skip
    assert result["speedup"] == pytest.approx(40 * 11 / (8 * 17))
    assert result["speedup_ci"] == pytest.approx((40 * 11 / (8 * 17),) * 2)
    assert result["baseline_tokens_per_s"] == pytest.approx(1 / 11)
    assert result["speculative_tokens_per_s"] == pytest.approx(5 / 17)
    assert (result["tokens_per_round"], result["tokens_per_round_formula"]) == (5, 5)
    assert result["predicted"] == {
        "closed_form": pytest.approx(5 / (4 * 0.5 / 11 + 1)),
        "extended": pytest.approx(5 * 11 / 17),
        "measured_over_closed_form": pytest.approx(result["speedup"] / (5 / (4 * 0.5 / 11 + 1))),
        "measured_over_extended": pytest.approx(1.0),
    }
    assert result["acceptance"] == {
        "alpha": 1.0, "alpha_ci": (pytest.approx(0.9615, abs=1e-3), 1.0), "overlap": 1.0,
        "accepted_over_drafted": 1.0, "judged": 96, "per_position_joint": [1.0] * 4,
        "per_position_conditional": [1.0] * 4,
    }  # fmt: skip


def test_prefill_is_apart_and_counts_end_to_end() -> None:
    """The prompt of three is read but for its last token: 10.5 and a cut of 1 by the target, 1/2 by the draft."""
    clock, target, draft = plain_twin()
    session = measured({0.0: contest_of(target, {"d": draft}, [4], GREEDY, clock)}, [Dialogue()], target)
    plain, speculative = session.runs
    assert (plain.prefill_s, speculative.prefill_s) == (11.5, 12.0)
    assert (plain.first_token_s, speculative.first_token_s) == (11.5 + 11, 12.0 + 17)
    assert (plain.decode_s, speculative.decode_s) == (440, 136)
    (result,) = summary.results(session.runs)
    assert result["first_token_s"] == {"baseline": 22.5, "speculative": 29.0}
    assert result["end_to_end_speedup"] == pytest.approx(451.5 / 148)


@pytest.mark.parametrize("tokens", [7, 40])
def test_a_round_is_exactly_its_parts(tokens: int) -> None:
    """summary.py's identity, with rejections and rounds cut short: K c + v + o target steps are a whole round."""
    clock = Clock()
    target = Timed(clock, lambda n: 9 + n**1.5, cut_s=0.7, probs=TARGET_PROBS)
    draft = Timed(clock, lambda n: 1 + 0.3 * n, cut_s=0.2, probs=DRAFT_PROBS)
    session = measured(
        {1.0: contest_of(target, {"d": draft}, [3], SAMPLED, clock)}, [Dialogue()] * 20, target, tokens=tokens
    )
    (result,) = summary.results(session.runs)
    mine = [run for run in session.runs if run.k]
    assert sum(run.whole_rounds for run in mine) < sum(run.rounds for run in mine)
    seconds = sum(run.whole_draft_s + run.whole_verify_s + run.whole_other_s for run in mine)
    cost = result["cost"]
    steps = 3 * cost["c"] + cost["v"] + cost["o"]
    assert steps * cost["target_step_s"] == pytest.approx(seconds / sum(run.whole_rounds for run in mine))
    assert cost["target_step_s"] == pytest.approx(10.7)
    assert cost["verify_s"] == pytest.approx(9 + 8)
    assert cost["o"] == pytest.approx(0.2 / 10.7)
    assert result["predicted"]["extended"] == pytest.approx(
        theory.tokens_per_round(result["acceptance"]["alpha"], 3) / steps
    )


def test_other_time_below_a_plain_rounds_counts_as_it_is() -> None:
    """Noise can make it so; the extended form must not round it up to 0 and so predict less."""
    like = Run("none", 0, 0.0, 1, 1, "", 10, 0, 1, 0.0, 100.0, 20.0, 10)
    faster = replace(
        like, arm="d", k=1, draft_s=5.0, verify_s=50.0, other_s=5.0, rounds=5, drafted=5, accepted=5, whole_rounds=5,
        whole_drafted=5, whole_draft_s=5.0, whole_verify_s=50.0, whole_other_s=5.0, judged_at=(5,), accepted_at=(5,),
        overlap_sum=5.0, lengths=((1, 5),),
    )  # fmt: skip
    (result,) = summary.results([like, faster])
    assert result["cost"]["o"] == pytest.approx((1 - 2) / 12)
    assert result["predicted"]["extended"] == pytest.approx(result["speedup"]) == pytest.approx(2.0)


def test_a_drifting_machine_slows_both_sides_alike() -> None:
    """Every block twice as slow as the one before: speeds fall, ratios stay."""
    clock, target, draft = plain_twin()
    blocks: list[str] = []

    def slower(run: Run) -> None:
        if run.arm == "none":
            blocks.append(run.arm)

    speed = lambda: 2.0 ** len(blocks)  # noqa: E731
    target._pass_s, draft._pass_s = lambda n: speed() * 10, lambda n: speed() * 0.5
    target._cut_s = draft._cut_s = 0.0
    session = measured(
        {0.0: contest_of(target, {"d": draft}, [4], GREEDY, clock)}, [Dialogue()] * 6, target, on_run=slower
    )
    (result,) = summary.results(session.runs)
    assert result["speedup_range"] == (pytest.approx(40 * 10 / (8 * 12)),) * 2
    plain = plain_runs(session.runs)
    assert plain[0].tokens_per_s > 30 * plain[-1].tokens_per_s


# ---------------------------------------------------------------------------------------------- alpha
def short_generations(number: int, tokens: int) -> list[Run]:
    """SPEC.md's pair at K 4, in generations so short that most rounds are cut at their end."""
    clock = Clock()
    target, draft = Timed(clock, probs=TARGET_PROBS), Timed(clock, probs=DRAFT_PROBS)
    arm = LoopArm("d", 4, target, DraftModel(draft, SAMPLED), SAMPLED, clock)
    baseline = LoopArm("none", 0, target, NoDrafter(CPU), SAMPLED, clock)
    cases = [Case(i, 1, "", (1, 2), seed=i) for i in range(1, number + 1)]
    plain = [replace(baseline.run(cases[0], tokens), prompt=case.prompt) for case in cases]
    return [*plain, *(arm.run(case, tokens) for case in cases)]


def test_alpha_is_the_known_one_where_other_figures_are_not() -> None:
    runs = short_generations(700, tokens=6)
    (result,) = summary.results(runs)
    found = result["acceptance"]
    mine = [run for run in runs if run.k]
    assert sum(run.whole_rounds for run in mine) < 0.6 * sum(run.rounds for run in mine)
    error = math.sqrt(ALPHA * (1 - ALPHA) / found["judged"])
    assert abs(found["alpha"] - ALPHA) < 4 * error
    low, high = found["alpha_ci"]
    assert low < ALPHA < high
    assert 3 * error < high - low < 6 * error
    assert found["overlap"] == pytest.approx(ALPHA, abs=1e-5)
    # What others call acceptance, and what the formula gives backwards from all rounds, cut ones counted in.
    assert found["accepted_over_drafted"] < ALPHA - 10 * error
    assert result["tokens_per_round"] < theory.tokens_per_round(ALPHA - 10 * error, 4)
    assert result["tokens_per_round_formula"] == pytest.approx(theory.tokens_per_round(found["alpha"], 4))
    for i, (joint, conditional) in enumerate(
        zip(found["per_position_joint"], found["per_position_conditional"], strict=True), start=1
    ):
        rounds = sum(run.whole_rounds for run in mine)
        assert abs(joint - ALPHA**i) < 4 * math.sqrt(ALPHA**i * (1 - ALPHA**i) / rounds)
        assert abs(conditional - ALPHA) < 4 * math.sqrt(ALPHA * (1 - ALPHA) / (rounds * ALPHA ** (i - 1)))


def test_overlap_expects_what_alpha_does() -> None:
    """Where the overlap differs from position to position. Given the overlaps, the accepted are a sum of independent
    coins, whose variance is largest where all overlaps are equal.
    """
    clock = Clock()
    target, draft = Timed(clock, seed=1), Timed(clock, seed=2)
    draft._weights = target._weights + draft._weights / 2
    session = measured(
        {1.0: contest_of(target, {"d": draft}, [4], SAMPLED, clock)}, [Dialogue()] * 20, target, tokens=50
    )
    (result,) = summary.results(session.runs)
    found = result["acceptance"]
    mean = found["overlap"]
    assert 0.3 < mean < 0.9
    assert abs(found["alpha"] - mean) < 4 * math.sqrt(mean * (1 - mean) / found["judged"])
    overlaps = {run.overlap_sum / sum(run.judged_at) for run in session.runs if run.k}
    assert len(overlaps) == 20


def counted(steps: Sequence[Step], k: int = 4) -> Run:
    generation: Any = SimpleNamespace(token_ids=[i for s in steps for i in s.token_ids], prefill_s=2.0)
    arm: Any = SimpleNamespace(name="d", k=k)
    return count(steps, arm, 1.0, Case(1, 1, "", (1,), 0), generation)


def test_counts_of_explicit_rounds_are_those_made_by_hand() -> None:
    """The last round is cut: what it says of acceptance, position and cost is left out, its tokens and time are not."""
    steps = [
        step(3, 3, overlap=(0.9, 0.8, 0.7), seconds=(1, 10, 2)),
        step(3, 0, overlap=(0.1, 0.5, 0.5), seconds=(1, 10, 2)),
        step(3, 1, overlap=(0.6, 0.3, 0.5), seconds=(1, 10, 2)),
        step(2, 2, overlap=(1.0, 1.0), seconds=(5, 50, 7), cut=True, finish_reason="length"),
    ]
    run = counted(steps, k=3)
    assert (run.rounds, run.new_tokens, run.drafted, run.accepted) == (4, 10, 11, 6)
    assert (run.whole_rounds, run.whole_drafted) == (3, 9)
    assert (run.judged_at, run.accepted_at) == ((3, 2, 1), (2, 1, 1))
    assert run.overlap_sum == pytest.approx(0.9 + 0.8 + 0.7 + 0.1 + 0.6 + 0.3)
    assert (run.draft_s, run.verify_s, run.other_s) == (8, 80, 13)
    assert (run.whole_draft_s, run.whole_verify_s, run.whole_other_s) == (3, 30, 6)
    assert run.first_token_s == 2.0 + 13
    plain = Run("none", 0, 1.0, 1, 1, "", 10, 0, 1, 0.0, 100.0, 0.0, 10)
    (result,) = summary.results([plain, run])
    found = result["acceptance"]
    assert found["alpha"] == pytest.approx(4 / 6)
    assert found["overlap"] == pytest.approx(3.4 / 6)
    assert found["accepted_over_drafted"] == pytest.approx(6 / 11)
    assert found["per_position_joint"] == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert found["per_position_conditional"] == pytest.approx([2 / 3, 1 / 2, 1.0])
    assert result["tokens_per_round"] == 10 / 4
    assert add_up(steps).alpha == found["alpha"]  # generate's figures are the same


def test_positions_that_no_round_reached_have_no_conditional_rate() -> None:
    run = counted([step(3, 0, seconds=(1, 1, 1)), step(3, 1, seconds=(1, 1, 1))], k=3)
    plain = Run("none", 0, 1.0, 1, 1, "", 10, 0, 1, 0.0, 100.0, 0.0, 10)
    (result,) = summary.results([plain, run])
    assert result["acceptance"]["per_position_joint"] == [0.5, 0.0, 0.0]
    assert result["acceptance"]["per_position_conditional"] == [0.5, 0.0]


def test_rounds_that_were_all_cut_leave_alpha_and_costs_open() -> None:
    run = counted([step(2, 1, cut=True, seconds=(1, 1, 1), finish_reason="length")])
    plain = Run("none", 0, 1.0, 1, 1, "", 2, 0, 1, 0.0, 20.0, 0.0, 2)
    (result,) = summary.results([plain, run])
    assert result["cost"] is None
    assert result["acceptance"]["alpha"] is None
    assert set(result["predicted"].values()) == {None}
    assert result["speedup"] == pytest.approx(20 / 3)
    assert verdict.explanation(result) == ""


# ------------------------------------------------------------------------------------------- fairness
@dataclass
class Fake:
    """An arm that generates nothing and remembers what it was given."""

    name: str
    k: int
    calls: list[tuple[str, Case, int]] = field(default_factory=list)
    interrupt_at: int | None = None
    token_ids: tuple[int, ...] = (1, 2)
    peer_of: str | None = None

    def run(self, case: Case, max_new_tokens: int) -> Run:
        self.calls.append((self.name + str(self.k), case, max_new_tokens))
        if self.interrupt_at == len(self.calls):
            raise KeyboardInterrupt
        return Run(
            self.name, self.k, 1.0, case.prompt, case.turn, case.category, max_new_tokens, 1.0, 1.0, 0.0, 1.0, 0.0,
            max_new_tokens, token_ids=self.token_ids,
        )  # fmt: skip


def fakes(number: int, interrupt_at: int | None = None) -> tuple[Contest, list[tuple[str, Case, int]]]:
    """Plain decoding and so many arms; every call in order, of which one may be interrupted."""
    calls: list[tuple[str, Case, int]] = []
    arms: list[Arm] = [Fake(chr(ord("a") + i), 1 + i, calls, interrupt_at) for i in range(number)]
    return Contest(Fake("none", 0, calls, interrupt_at), arms, SAMPLED), calls


def order(number_of_arms: int, block: int) -> str:
    contest, _ = fakes(number_of_arms)
    return "".join("." if arm.name == "none" else arm.name for arm in in_turn(contest, block))


def test_with_one_arm_plain_and_speculative_alternate() -> None:
    assert [order(1, block) for block in range(4)] == [".a", "a.", ".a", "a."]


@pytest.mark.parametrize("arms", range(1, 11))
def test_every_arm_stands_at_every_place_equally_often(arms: int) -> None:
    orders = [order(arms, block) for block in range(2 * arms)]
    assert len({"".join(sorted(o)) for o in orders}) == 1  # every block has every arm, and as many plain ones
    places = [Counter(o.index(chr(ord("a") + i)) for o in orders) for i in range(arms)]
    assert all(place == places[0] for place in places)
    ranks = [Counter(o.replace(".", "").index(chr(ord("a") + i)) for o in orders) for i in range(arms)]
    assert ranks == [dict.fromkeys(range(arms), 2)] * arms


@pytest.mark.parametrize("arms", range(1, 11))
def test_plain_decoding_is_never_far(arms: int) -> None:
    for block in range(2 * arms):
        groups = order(arms, block).split(".")
        assert max(map(len, groups)) == min(arms, ARMS_PER_BASELINE)
        assert len(groups) - 1 == math.ceil(arms / ARMS_PER_BASELINE)
    assert {order(arms, block)[0] == "." for block in (0, 1)} == {True, False}  # first in even blocks, last in odd ones


def test_all_arms_of_a_block_get_the_same_and_each_prompt_its_own_seed() -> None:
    contest, calls = fakes(5)
    session = measured({1.0: contest}, [Dialogue((1, 2), "x"), Dialogue((3,), "y")], Timed(Clock()), tokens=17)
    names = "none0 a1 b2 c3 d4 none0 e5 e5 none0 d4 c3 b2 a1 none0 none0 none0"
    assert [name for name, _, _ in calls] == names.split()
    assert [case for _, case, _ in calls[:7]] == [Case(1, 1, "x", (1, 2), seed=answer_seed(70, 1))] * 7
    assert [case for _, case, _ in calls[7:14]] == [Case(2, 1, "y", (3,), seed=answer_seed(70, 2))] * 7
    assert {tokens for _, _, tokens in calls} == {17}
    assert (len(session.runs), len(session.controls)) == (14, 2)
    assert [case.prompt for _, case, _ in calls[14:]] == [1, 2]


def test_controls_are_of_the_first_temperature_and_the_first_prompts() -> None:
    first, calls = fakes(1)
    second, _ = fakes(1)
    session = measured({1.0: first, 0.7: second}, [Dialogue()] * (CONTROLS + 2), Timed(Clock()))
    assert [run.prompt for run in session.controls] == list(range(1, CONTROLS + 1))
    assert [name for name, _, _ in calls[-CONTROLS:]] == ["none0"] * CONTROLS


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_both_sides_make_the_same_number_of_tokens_past_end_tokens(sampling: SamplingSettings) -> None:
    clock = Clock()
    target, draft = Timed(clock, seed=1), Timed(clock, seed=2)
    contest = contest_of(target, {"d": draft}, [2, 5], sampling, clock)
    runs = measured({sampling.temperature: contest}, [Dialogue()] * 3, target, tokens=23).runs
    assert {run.new_tokens for run in runs} == {len(run.token_ids) for run in runs} == {23}


def test_end_tokens_end_both_sides_where_they_are_to() -> None:
    clock = Clock()
    target, draft = Timed(clock, seed=1), Timed(clock, seed=2)
    contest = contest_of(target, {"d": draft}, [3], GREEDY, clock)
    whole = contest.baseline.run(Case(1, 1, "", (1, 2, 3), 0), 30).token_ids
    end = whole[6]
    length = whole.index(end) + 1
    for arm in (contest.baseline, *contest.arms):
        assert isinstance(arm, LoopArm)
        arm.end_ids = frozenset({end})
    runs = measured({0.0: contest}, [Dialogue()], target, tokens=30).runs
    assert [run.token_ids for run in runs] == [whole[:length]] * 2


def test_nothing_is_carried_from_one_run_to_the_next() -> None:
    """Symptom 14: identical runs give identical records, times included."""
    clock = Clock()
    target = Timed(clock, lambda n: 10 + n, cut_s=1.0, seed=1)
    draft = Timed(clock, lambda n: 1 + n / 4, cut_s=0.5, seed=2)
    contest = contest_of(target, {"d": draft}, [4], SAMPLED, clock)
    cases = [Case(1, 1, "", (1, 2, 3), 5), Case(2, 1, "", (4,), 6), Case(1, 1, "", (1, 2, 3), 5)]
    first, other, again = (contest.arms[0].run(case, 30) for case in cases)
    assert first.token_ids == again.token_ids != other.token_ids
    assert replace(first, **rounded(first)) == replace(again, **rounded(again))
    different = contest.arms[0].run(replace(cases[0], seed=9), 30)
    assert different.token_ids != first.token_ids


def rounded(run: Run) -> dict[str, Any]:
    return {name: round(value, 6) for name, value in asdict(run).items() if name.endswith("_s")}


def test_warm_up_runs_every_arm_once_on_few_tokens() -> None:
    contest, calls = fakes(3)
    warm = warm_up(contest, Dialogue((5, 6)), max_new_tokens=100)
    assert [name for name, _, _ in calls] == ["none0", "a1", "b2", "c3"]
    assert {tokens for _, _, tokens in calls} == {WARM_UP_TOKENS}
    assert {case.prompt_ids for _, case, _ in calls} == {(5, 6)}
    warm_up(contest, Dialogue(), max_new_tokens=3)
    assert calls[-1][2] == 3
    assert len(warm) == 4


def test_a_peer_is_timed_as_a_whole() -> None:
    clock = Clock()

    def generate(prompt_ids: Sequence[int], new_tokens: int, seed: int) -> Sequence[int]:
        assert (prompt_ids, seed) == ((1, 2), 9)
        clock.now += 40
        return [7] * new_tokens

    run = PeerArm("transformers assisted", "d", 4, 0.0, generate, clock).run(Case(3, 2, "x", (1, 2), 9), 10)
    assert (run.arm, run.k, run.prompt, run.turn, run.category) == ("transformers assisted", 4, 3, 2, "x")
    assert run.peer_of == "d"
    assert (run.new_tokens, run.end_to_end_tokens_per_s, run.token_ids) == (10, 0.25, (7,) * 10)


# ----------------------------------------------------------------------------------------- losslessness
class WrongBlocks(Timed):
    """Passes over several tokens go wrong once the cache holds so many: the symptom of a broken kernel."""

    wrong_from = 14

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        logits = super().forward(token_ids, num_logits)
        return -logits if len(token_ids) > 1 and self.length > self.wrong_from else logits


def test_greedy_text_of_a_right_model_is_identical_at_every_k() -> None:
    clock = Clock()
    target, draft = Timed(clock, seed=1), Timed(clock, seed=2)
    session = measured({0.0: contest_of(target, {"d": draft}, [1, 2, 7], GREEDY, clock)}, [Dialogue()] * 2, target)
    for result in summary.results(session.runs):
        assert 0 < result["acceptance"]["alpha"] < 1
        assert result["lossless"] == {
            "checked": True, "identical": True, "first_difference": None, "differences": 0, "unexplained": 0,
        }  # fmt: skip


def test_a_wrong_pass_over_several_tokens_is_told_with_its_place_and_gap() -> None:
    clock = Clock()
    target, draft = WrongBlocks(clock, seed=1), Timed(clock, seed=2)
    contest = contest_of(target, {"d": draft}, [4], GREEDY, clock)
    session = measured({0.0: contest}, [Dialogue()], target, rounding=2.0**-8)
    plain, speculative = session.runs
    found = speculative.first_difference
    assert plain.first_difference is None
    assert found is not None
    place = found.position
    assert place > 4
    assert plain.token_ids[:place] == speculative.token_ids[:place]
    assert (found.plain_id, found.speculative_id) == (plain.token_ids[place], speculative.token_ids[place])
    assert found.plain_id != found.speculative_id
    best, second = target.logits([1, 2, 3, *plain.token_ids[:place]]).topk(2).values.tolist()
    assert found.gap == pytest.approx(best - second, rel=1e-4)
    assert not found.near_tie
    (result,) = summary.results(session.runs)
    lossless = result["lossless"]
    assert (lossless["identical"], lossless["differences"], lossless["unexplained"]) == (False, 1, 1)
    assert lossless["first_difference"] == {"prompt": 1, **asdict(found)}
    assert f"first at prompt 1, token {place + 1}" in verdict.losslessness(result)
    assert verdict.losslessness(result).startswith("NOT lossless: 1 answers")


class NearTie(Timed):
    """Two best logits of 2 and 2 - gap, which a pass over several tokens exchanges; or a third one wins there."""

    gap = 0.01
    wins_in_blocks = 1

    def logits(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([2.0, 2.0 - self.gap, 0.5, 0.0, -1.0, -1.0])

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        logits = super().forward(token_ids, num_logits)
        if num_logits > 1:
            logits[:, self.wins_in_blocks] = 2.5
        return logits


@pytest.mark.parametrize(
    ("gap", "rounding", "wins", "excused"),
    [
        (0.01, 2**-8, 1, True),  # 4 roundings of 2 are 0.031
        (0.031, 2**-8, 1, True),
        (0.032, 2**-8, 1, False),
        (0.01, 0.0, 1, False),  # float32: nothing is excused
        (0.01, 2**-8, 2, False),  # the tie is between two others
    ],
)
def test_a_difference_is_excused_only_within_rounding(gap: float, rounding: float, wins: int, excused: bool) -> None:
    clock = Clock()
    target, draft = NearTie(clock), Timed(clock, probs=TARGET_PROBS)
    target.gap, target.wins_in_blocks = gap, wins
    session = measured(
        {0.0: contest_of(target, {"d": draft}, [2], GREEDY, clock)}, [Dialogue()], target, rounding=rounding
    )
    found = session.runs[1].first_difference
    assert found is not None
    assert found.near_tie is excused
    assert (found.position, found.plain_id, found.speculative_id) == (0, 0, wins)
    assert found.gap == pytest.approx(gap, rel=1e-3)
    (result,) = summary.results(session.runs)
    assert result["lossless"]["unexplained"] == (not excused)
    assert verdict.losslessness(result).startswith("1 of 1 answers take another turn" if excused else "NOT lossless")


def test_the_gap_is_of_penalised_logits() -> None:
    """With a penalty of 2 the best logit of 2 counts 1 once its token was seen."""
    clock = Clock()
    sampling = SamplingSettings(temperature=0.0, repetition_penalty=2.0)
    target, draft = NearTie(clock), Timed(clock, probs=TARGET_PROBS)
    target.wins_in_blocks = 5
    session = measured({0.0: contest_of(target, {"d": draft}, [2], sampling, clock)}, [Dialogue((0, 3))], target)
    found = session.runs[1].first_difference
    assert found is not None
    assert (found.position, found.plain_id) == (0, 1)
    assert found.gap == pytest.approx(1.99 - 1.0, rel=1e-3)


@pytest.mark.parametrize(("length", "ids"), [(9, (5, None)), (12, (None, 5))])
def test_a_text_that_ends_elsewhere_is_a_difference(length: int, ids: tuple[int | None, int | None]) -> None:
    """Symptom 7: what runs past the end token has the same beginning."""
    plain = Fake("none", 0, token_ids=(5,) * 10)
    other = Fake("d", 1, token_ids=(5,) * length)
    session = measured({0.0: Contest(plain, [other], GREEDY)}, [Dialogue()], Timed(Clock()), rounding=1.0)
    found = session.runs[1].first_difference
    assert found is not None
    assert (found.position, found.plain_id, found.speculative_id) == (min(10, length), *ids)
    assert not found.near_tie


def test_sampled_texts_are_not_compared() -> None:
    clock = Clock()
    target, draft = Timed(clock, seed=1), Timed(clock, seed=2)
    session = measured({1.0: contest_of(target, {"d": draft}, [2], SAMPLED, clock)}, [Dialogue()], target)
    (result,) = summary.results(session.runs)
    assert result["lossless"]["checked"] is False
    assert result["lossless"]["identical"] is None
    assert verdict.losslessness(result) == ""


@pytest.mark.parametrize(
    "sampling", [SAMPLED, SamplingSettings(0.7, top_k=4, top_p=0.9, repetition_penalty=1.3)], ids=["plain", "warped"]
)
def test_first_tokens_of_the_real_rule_pass_and_those_of_a_lying_draft_do_not(sampling: SamplingSettings) -> None:
    target, draft = BagModel(6, seed=1), BagModel(6, seed=2)
    right = check_first_tokens(target, DraftModel(draft, sampling), [3, 1], sampling, 3)
    assert (right.samples, right.passed) == (SAMPLES, True)
    assert right.p_value is not None
    assert right.p_value > 1e-4
    wrong = check_first_tokens(target, GreedyButClaimsOtherwise(draft, sampling), [3, 1], sampling, 3)
    assert (wrong.samples, wrong.passed) == (SAMPLES, False)
    assert wrong.p_value is not None
    assert wrong.p_value < 1e-6


def test_a_distribution_too_sharp_to_test_passes_and_says_so() -> None:
    sampling = SamplingSettings(temperature=1.0, top_k=1)
    found = check_first_tokens(BagModel(6, 1), DraftModel(BagModel(6, 2), sampling), [3, 1], sampling, 2, samples=20)
    assert (found.samples, found.p_value, found.passed) == (20, None, True)


def test_the_check_takes_the_prompt_whose_first_token_is_least_certain() -> None:
    target = BagModel(6, seed=1)
    prompts = [[0], [1], [2], [3], [4, 5]]
    entropies = [float(torch.distributions.Categorical(logits=target.logits(ids)).entropy()) for ids in prompts]
    assert max(entropies) > 1.2 * min(entropies)
    assert least_certain(target, prompts, SAMPLED) == prompts[entropies.index(max(entropies))]
    certain = SamplingSettings(temperature=1.0, top_k=1)
    assert least_certain(target, prompts, certain) in prompts  # a probability of 0 is no obstacle


# ----------------------------------------------------------------------------- interruption and resuming
@pytest.mark.parametrize("call", range(1, 10))
def test_an_interruption_keeps_whole_blocks(call: int) -> None:
    """Three prompts with plain decoding and two arms: nine calls, then the controls."""
    contest, calls = fakes(2, interrupt_at=call)
    told: list[Run] = []
    session = measured({1.0: contest}, [Dialogue()] * 3, Timed(Clock()), on_run=told.append)
    assert session.interrupted
    assert len(calls) == call
    assert len(session.runs) == (call - 1) // 3 * 3
    assert told == session.runs


def test_an_interrupted_control_leaves_every_block() -> None:
    contest, _ = fakes(2, interrupt_at=10)
    session = measured({1.0: contest}, [Dialogue()] * 3, Timed(Clock()))
    assert (session.interrupted, len(session.runs), session.controls) == (True, 9, [])


@pytest.mark.parametrize("kept", range(10))
def test_what_a_file_holds_is_not_measured_again(kept: int) -> None:
    """Whatever number of runs was written before the end."""
    first, _ = fakes(2)
    dialogues = [Dialogue()] * 3
    all_runs = measured({1.0: first}, dialogues, Timed(Clock())).runs
    contest, calls = fakes(2)
    again = Session(
        whole_blocks([Run.from_record(json.loads(json.dumps(asdict(r)))) for r in all_runs[:kept]], {1.0: contest})
    )
    assert len(again.runs) == kept // 3 * 3
    measured({1.0: contest}, dialogues, Timed(Clock()), session=again)
    assert len(calls) == 9 - kept // 3 * 3 + 3  # and the controls
    assert again.runs == all_runs  # the order of blocks is that of an unbroken session, too


def test_torn_blocks_never_add_up_to_a_whole_one() -> None:
    """Two kills inside the same block, then a third session that finished it."""
    contest, _ = fakes(2)
    block = measured({1.0: contest}, [Dialogue()], Timed(Clock())).runs
    assert whole_blocks([*block[:2], *block[:1]], {1.0: contest}) == []
    assert whole_blocks([*block[:2], *block[:2], *block], {1.0: contest}) == block


def test_a_run_survives_json() -> None:
    run = replace(counted([step(3, 2), step(3, 0)]), first_difference=Difference(3, 1, None, 0.5, False))
    assert Run.from_record(json.loads(json.dumps(asdict(run)))) == run


@pytest.mark.parametrize("missing", ["k", "peer_of"])
def test_a_record_of_another_version_is_refused(missing: str) -> None:
    record = asdict(counted([step(3, 2)]))
    assert Run.from_record(record)
    with pytest.raises(TypeError, match="unheard_of"):
        Run.from_record(record | {"unheard_of": 1})
    with pytest.raises(TypeError, match=missing):
        Run.from_record({key: value for key, value in record.items() if key != missing})


class Sent(Fake):
    """Answers with ids that tell whose they are."""

    def run(self, case: Case, max_new_tokens: int) -> Run:
        return replace(super().run(case, max_new_tokens), token_ids=(100 + self.k, case.turn))


def test_a_second_turn_follows_plain_decodings_first_answer_also_after_a_resume() -> None:
    calls: list[tuple[str, Case, int]] = []
    contest = Contest(Sent("none", 0, calls), [Sent("a", 1, calls)], SAMPLED)
    dialogues = [Dialogue((1, 2), turns=3), Dialogue((7,), turns=2)]
    runs = measured({1.0: contest}, dialogues, Timed(Clock())).runs
    prompts = {(case.prompt, case.turn): case.prompt_ids for _, case, _ in calls}
    assert prompts == {
        (1, 1): (1, 2), (1, 2): (1, 2, 100, 1), (1, 3): (1, 2, 100, 1, 100, 2), (2, 1): (7,), (2, 2): (7, 100, 1),
    }  # fmt: skip
    assert len({case.prompt_ids for _, case, _ in calls}) == 5  # both arms got the same
    assert {case.seed for _, case, _ in calls} == {answer_seed(70, *place) for place in prompts}
    assert len({case.seed for _, case, _ in calls}) == 5
    before = list(calls)
    calls.clear()
    measured({1.0: contest}, dialogues, Timed(Clock()), session=Session(runs[:2]))
    assert {(case.prompt, case.turn) for _, case, _ in calls} == prompts.keys()  # (1, 1) by its control
    assert [call for call in calls if call[1].turn > 1] == [call for call in before if call[1].turn > 1]


# ----------------------------------------------------------------------------------------------- results


def test_results_stand_by_temperature_draft_and_k_then_by_category() -> None:
    runs = []
    for t in (0.8, 0.0):
        for prompt, category in ((1, "math"), (2, "code"), (3, "code")):
            seconds = 10.0 * prompt
            runs.append(run_of("none", 0, seconds, prompt=prompt, temperature=t, category=category))
            for name in ("z", "b"):
                for k in (8, 2):
                    runs.append(
                        run_of(name, k, seconds / prompt, prompt=prompt, temperature=t, category=category, judged=9)
                    )
    found = summary.results(runs)
    assert [(r["temperature"], r["draft"], r["k"], r["category"]) for r in found] == [
        (t, name, k, category)
        for t in (0.8, 0.0) for name in ("z", "b") for k in (2, 8) for category in ("all", "code", "math")
    ]  # fmt: skip
    whole, code, math_only = found[:3]
    assert (whole["prompts"], code["prompts"], math_only["prompts"]) == (3, 2, 1)
    assert whole["speedup"] == pytest.approx(6 ** (1 / 3))
    assert code["speedup"] == pytest.approx(6**0.5)
    assert math_only["speedup"] == pytest.approx(1.0)
    assert math_only["speedup_ci"] is None
    assert [sample["prompt"] for sample in code["samples"]] == [2, 3]
    assert "token_ids" not in code["samples"][0]


def test_a_single_category_is_no_category() -> None:
    runs = [run_of("none", 0, 10, category="code"), run_of("d", 2, 5, category="code", judged=4)]
    assert [r["category"] for r in summary.results(runs)] == ["all"]


def test_a_run_is_set_beside_all_plain_runs_of_its_block() -> None:
    """Tokens over seconds of both, and not of another prompt's."""
    runs = [run_of("none", 0, 10), run_of("none", 0, 30), run_of("none", 0, 500, prompt=2)]
    runs += [run_of("d", 2, 10, judged=4), run_of("d", 2, 500, prompt=2, judged=4)]
    (result,) = summary.results(runs)
    assert result["speedup_range"] == (pytest.approx(1.0), pytest.approx(2.0))


def test_peers_are_compared_end_to_end_with_the_arm_of_their_own_kind() -> None:
    runs = [
        run_of("none", 0, 19),
        run_of("d", 4, 9, judged=4),
        run_of("e", 4, 4, judged=4),
        run_of("d", "auto", 2, judged=4, drafted=8, whole_drafted=8, lengths=((2, 4),)),
        run_of("transformers generate", 0, 40, prefill_s=0.0, peer_of="none"),
        run_of("transformers assisted by d", 4, 30, prefill_s=0.0, peer_of="d"),
        run_of(
            "transformers assisted by e", 4, 20, prefill_s=0.0, peer_of="e",
            first_difference=Difference(1, 2, 3, 0.1, True),
        ),
    ]  # fmt: skip
    found = {peer["peer"]: peer for peer in summary.peer_results(runs)}
    assert {name: peer["specdec_over_peer"] for name, peer in found.items()} == pytest.approx(
        {"transformers generate": 2.0, "transformers assisted by d": 3.0, "transformers assisted by e": 4.0}
    )
    assert found["transformers generate"]["end_to_end_tokens_per_s"] == pytest.approx(0.25)
    assert [peer["identical"] for peer in found.values()] == [True, True, False]
    # a peer is no result, whatever its name
    assert [(r["draft"], r["k"]) for r in summary.results(runs)] == [("d", 4), ("d", "auto"), ("e", 4)]


def test_a_peer_is_told_from_a_draft_of_the_same_name_and_k() -> None:
    runs = [run_of("none", 0, 10), run_of("assisted", 4, 5, judged=4), run_of("assisted", 4, 20, peer_of="assisted")]
    (result,) = summary.results(runs)
    assert (result["prompts"], result["speedup"]) == (1, pytest.approx(2.0))
    (peer,) = summary.peer_results(runs)
    assert peer["end_to_end_tokens_per_s"] == pytest.approx(10 / 21)
    assert peer["specdec_over_peer"] == pytest.approx(21 / 6)


def test_a_block_without_its_peer_is_not_whole() -> None:
    calls: list[tuple[str, Case, int]] = []
    own, peer = Fake("assisted", 4, calls), Fake("assisted", 4, calls, peer_of="assisted")
    contests = {0.0: Contest(Fake("none", 0, calls), [own, peer], GREEDY)}
    block = [run_of("none", 0, 10), run_of("assisted", 4, 5), run_of("assisted", 4, 20, peer_of="assisted")]
    assert whole_blocks(block, contests) == block
    assert whole_blocks([*block[:2], block[1]], contests) == []


# ----------------------------------------------------------------------------------------------- caveats
def plain_at(*speeds: float) -> list[Run]:
    return [run_of("none", 0, 10 / speed, prompt=i) for i, speed in enumerate(speeds, start=1)]


def kinds(found: Sequence[Caveat]) -> list[str]:
    assert all(caveat.remedy and caveat.detail for caveat in found)
    return [caveat.kind for caveat in found]


STEADY = plain_at(10, 10.1, 9.9, 10, 10.2, 9.8)


def test_steady_runs_have_no_caveat() -> None:
    speculative = [run_of("d", 4, 0.5, prompt=i, judged=100) for i in range(1, 7)]
    assert caveats([*STEADY, *speculative], STEADY[:3], others_share=0.1, interrupted=False) == []


@pytest.mark.parametrize(
    ("speeds", "wanted"),
    [
        ((7.9, 10, 10, 10), ["first_run_slow"]),
        ((8.1, 10, 10, 10), []),
        ((10, 7, 10, 10), []),  # slow, and not the first
        ((5, 10), []),  # too few to tell
    ],
)
def test_a_slow_first_run(speeds: tuple[float, ...], wanted: list[str]) -> None:
    assert kinds(caveats(plain_at(*speeds), [])) == wanted


def test_outliers_are_counted() -> None:
    (found,) = caveats([*STEADY, *plain_at(2.0)], [])
    assert found.kind == "outliers"
    assert found.detail.startswith("1 of 7 plain runs")


@pytest.mark.parametrize(("factor", "word"), [(1.06, "6% faster"), (0.94, "6% slower"), (1.04, None), (0.96, None)])
def test_drift_beyond_5_percent(factor: float, word: str | None) -> None:
    controls = [replace(run, verify_s=run.verify_s / factor) for run in STEADY[:3]]
    assert drift(STEADY, controls) == pytest.approx(factor - 1)
    found = caveats(STEADY, controls)
    assert kinds(found) == (["drift"] if word else [])
    assert word is None or word in found[0].detail


def test_drift_needs_controls() -> None:
    assert drift(STEADY, []) is None
    assert drift(STEADY, [run_of("none", 0, 1, prompt=99)]) is None


@pytest.mark.parametrize("answers", [1, 5, 6])
def test_few_answers_make_intervals_too_narrow(answers: int) -> None:
    runs = [run_of(arm, k, 0.5, prompt=i, judged=400) for i in range(answers) for arm, k in (("none", 0), ("d", 4))]
    assert kinds(caveats(runs, [])) == (["few_answers"] if answers < 6 else [])


def test_too_few_judged_positions_name_the_worst_point() -> None:
    def runs(judged: int) -> list[Run]:
        return [*STEADY, run_of("d", 4, 1, judged=500), run_of("d", 2, 1, judged=judged), run_of("d", 2, 1, judged=100)]

    found = caveats(runs(99), [])[-1]
    assert found.kind == "few_tokens"
    assert f"{ENOUGH_POSITIONS - 1} judged positions (d, K 2)" in found.detail
    assert "few_tokens" not in kinds(caveats(runs(100), []))
    # (a peer tells nothing of acceptance)
    assert "few_tokens" not in kinds(caveats([*STEADY, run_of("transformers assisted", 4, 1, peer_of="d")], []))


@pytest.mark.parametrize(("share", "wanted"), [(None, []), (0.1, []), (0.11, ["shared_cores"])])
def test_shared_cores(share: float | None, wanted: list[str]) -> None:
    found = caveats(STEADY, [], others_share=share)
    assert kinds(found) == wanted
    assert not wanted or "11%" in found[0].detail


def test_interrupted_sessions_say_so() -> None:
    (found,) = caveats(STEADY, [], interrupted=True)
    assert found.kind == "interrupted"
    assert "--resume" in found.remedy


# ---------------------------------------------------------------------------------------- recommendation
def points(*speeds: tuple[int, Sequence[float]], draft: str = "d", temperature: float = 0.0) -> list[dict[str, Any]]:
    """Results whose answers had these speedups, over plain decoding of ten seconds."""
    runs = []
    for prompt in range(1, len(speeds[0][1]) + 1):
        runs.append(run_of("none", 0, 10, prompt=prompt, temperature=temperature))
        runs += [
            run_of(draft, k, 10 / at[prompt - 1], prompt=prompt, temperature=temperature, judged=9, accepted=5)
            for k, at in speeds
        ]
    return summary.results(runs)


def best(results: list[dict[str, Any]]) -> list[int]:
    mark_best(results)
    return [r["k"] for r in results if r["best"]]


def test_the_best_is_the_fastest() -> None:
    assert best(points((2, [1.5, 1.6]), (4, [1.9, 2.1]), (6, [1.7, 1.8]))) == [4]


def test_a_smaller_k_ties_where_answers_do_not_tell_them_apart() -> None:
    """2 % slower on average, but faster on some answers."""
    assert best(points((2, [2.04, 1.88, 2.0]), (4, [2.0, 2.05, 1.98]))) == [2]


def test_a_smaller_k_that_is_slower_on_every_answer_does_not_tie() -> None:
    """2 % slower as before, and on each: the answers differ far more from one another than the two K do."""
    slow = [1.0, 2.0, 3.0, 1.5]
    assert best(points((2, [0.98 * s for s in slow]), (4, slow))) == [4]


def test_a_tie_has_a_limit_however_wide_the_intervals() -> None:
    noisy = [1.0, 3.0, 2.0]
    just = (1 - TIE) * (1 + 1e-9)
    assert best(points((2, [3.0 * just, 1.0 * just, 2.0 * just]), (4, noisy))) == [2]
    below = (1 - TIE) * (1 - 1e-3)
    assert best(points((2, [3.0 * below, 1.0 * below, 2.0 * below]), (4, noisy))) == [4]


def test_with_one_answer_the_limit_alone_decides() -> None:
    assert best(points((2, [1.98]), (4, [2.0]))) == [2]
    assert best(points((2, [1.9]), (4, [2.0]))) == [4]


def test_the_smallest_of_several_ties_and_never_a_larger_k() -> None:
    assert best(points((1, [1.0, 1.0]), (2, [2.0, 1.97]), (3, [1.97, 2.0]), (4, [2.0, 1.99]))) == [2]
    assert best(points((2, [2.0, 2.0]), (4, [1.99, 2.0]))) == [2]


def test_the_forms_have_marks_of_their_own() -> None:
    results = points((2, [1.5, 1.5]), (4, [2.0, 2.0]), (6, [1.7, 1.7]))
    for result, (closed, extended) in zip(results, [(3.0, 1.0), (2.5, 2.0), (2.0, 2.5)], strict=True):
        result["predicted"] |= {"closed_form": closed, "extended": extended}
    mark_best(results)
    assert [r["closed_form_best"] for r in results] == [True, False, False]
    assert [r["best"] for r in results] == [False, True, False]
    assert [r["predicted_best"] for r in results] == [False, False, True]
    for result in results:
        result["predicted"] |= {"closed_form": None, "extended": None}
    mark_best(results)
    assert not any(r["closed_form_best"] or r["predicted_best"] for r in results)


def test_each_draft_and_temperature_has_its_best_and_each_temperature_its_recommendation() -> None:
    hot = {"temperature": 0.8}
    results = [
        *points((2, [1.5, 1.6]), (4, [1.9, 2.1])),
        *points((2, [2.5, 2.6]), (4, [1.2, 1.3]), draft="e"),
        *points((2, [0.7, 0.8]), (4, [0.5, 0.6]), **hot),
    ]
    mark_best(results)
    assert [(r["draft"], r["temperature"], r["k"]) for r in results if r["best"]] == [
        ("d", 0.0, 4), ("e", 0.0, 2), ("d", 0.8, 2),
    ]  # fmt: skip
    first, second = recommend(results)
    assert (first["temperature"], first["draft"], first["k"], first["pays"]) == (0.0, "e", 2, True)
    assert (second["temperature"], second["draft"], second["k"], second["pays"]) == (0.8, "d", 2, False)
    assert first["speedup"] == pytest.approx(math.sqrt(2.5 * 2.6))
    assert first["speedup_ci"] == pytest.approx((2.5, 2.6))


def test_another_drafts_smaller_k_is_no_tie() -> None:
    results = [*points((4, [2.0, 2.01])), *points((1, [2.01, 1.99]), draft="e")]
    (point,) = recommend(results)
    assert (point["draft"], point["k"]) == ("d", 4)


def test_it_is_open_whether_it_pays_where_the_interval_holds_1() -> None:
    (point,) = recommend(points((2, [0.8, 1.6, 1.1])))
    assert point["pays"] is None
    assert "may be no gain" in verdict.recommendation(point)


def test_categories_get_no_mark() -> None:
    runs = []
    for prompt, category in ((1, "a"), (2, "b")):
        runs += [
            run_of("none", 0, 10, prompt=prompt, category=category),
            run_of("d", 2, 5, prompt=prompt, category=category, judged=3),
        ]
    results = summary.results(runs)
    mark_best(results)
    assert [(r["category"], r["best"]) for r in results] == [("all", True), ("a", False), ("b", False)]
    assert len(recommend(results)) == 1


# ----------------------------------------------------------------------------------------- verdict in words
def result_of(
    *, speedup: float, interval: tuple[float, float] | None = None, k: int = 4, c: float = 0.1, v: float = 1.0,
    o: float = 0.0, tokens: float = 3.36, formula: float = 3.36,
) -> dict[str, Any]:  # fmt: skip
    """A target step of 10 ms, so that a tenth of a step is 1 ms."""
    return {
        "k": k, "speedup": speedup, "speedup_ci": interval, "prompts": 6, "drafted": 90 * k,
        "cost": {"target_step_s": 0.01, "c": c, "v": v, "o": o},
        "predicted": {"closed_form": formula / (k * c + 1)},
        "tokens_per_round": tokens, "tokens_per_round_formula": formula, "draft_lengths": [[k, 90]],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("speedup", "interval", "beginning"),
    [
        (1.8, (1.6, 2.0), "Speculation pays here: 1.80x plain decoding (95 %: 1.60 to 2.00)."),
        (0.8, (0.7, 0.9), "Speculation does not pay here: 0.80x plain decoding (95 %: 0.70 to 0.90)."),
        (1.1, (0.9, 1.3), "No gain that could be told from none: 1.10x plain decoding (95 %: 0.90 to 1.30)."),
        (1.8, None, "Speculation pays here: 1.80x plain decoding."),
        (0.8, None, "Speculation does not pay here: 0.80x plain decoding."),
    ],
)
def test_whether_it_pays(speedup: float, interval: tuple[float, float] | None, beginning: str) -> None:
    assert verdict.gain(result_of(speedup=speedup, interval=interval)) == beginning


def test_where_nothing_was_drafted_no_speedup_is_a_gain() -> None:
    """A draft whose context the prompts exceed, or prompt lookup without a match: what differs is noise."""
    runs = []
    for prompt in range(1, 7):
        runs.append(run_of("none", 0, 10, prompt=prompt))
        runs.append(run_of("d", 4, 8, prompt=prompt, drafted=0, whole_drafted=0, lengths=((0, 4),)))
    results = summary.results(runs)
    (result,) = results
    assert result["speedup_ci"][0] > 1
    assert (result["drafted"], result["cost"], result["acceptance"]["alpha"]) == (0, None, None)
    assert result["draft_lengths"] == [[0, 24]]
    assert verdict.gain(result) == (
        "Nothing was drafted: this is plain decoding on both sides, which came out at 1.25x (95 %: 1.25 to 1.25)."
    )
    assert verdict.explanation(result) == ""
    (point,) = recommend(results)
    assert point["pays"] is False
    assert verdict.recommendation(point) == "At temperature 0 it does not pay: nothing was drafted."
    assert [c.kind for c in caveats(runs, []) if c.kind in ("nothing_drafted", "few_tokens")] == ["nothing_drafted"]


def test_a_draft_that_drafted_nothing_is_not_recommended_before_one_that_did() -> None:
    idle = {"drafted": 0, "whole_drafted": 0}
    runs = []
    for prompt in range(1, 4):
        runs += [run_of("none", 0, 10, prompt=prompt), run_of("d", 4, 5, prompt=prompt, judged=9, accepted=5)]
        runs.append(run_of("idle", 4, 4, prompt=prompt, **idle))
    (point,) = recommend(summary.results(runs))
    assert (point["draft"], point["pays"]) == ("d", True)


def test_of_trees_the_pass_is_as_wide_as_what_was_read() -> None:
    steps = [replace(step(2, 1), tree=Tree((0, 1, 5, 6, 7), (-1, 0, -1, 2, 3))), step(0, 0)]
    run = counted(steps, k=2)
    assert (run.whole_drafted, run.whole_read) == (2, 5)
    assert "for the pass over 3.5 tokens" in verdict.explanation(result_of(speedup=2.39) | {"tokens_per_pass": 3.5})


def test_the_closed_form_holds() -> None:
    text = verdict.explanation(result_of(speedup=2.39, v=1.01))
    assert text == (
        "The closed form promises 2.40x, and it holds within 5%. A round takes 14.1 ms: 4.0 drafting, 10.0 one target "
        "step, +0.1 for the pass over 5 tokens, +0.0 for everything else."
    )


@pytest.mark.parametrize(
    ("result", "culprit", "figure"),
    [
        (result_of(speedup=1.8, v=1.4, o=0.1), "the growth of the verify pass", "+4.0 for the pass over 5 tokens"),
        (result_of(speedup=1.8, v=1.1, o=0.4), "the round's own overhead", "+4.0 for everything else"),
        (
            result_of(speedup=1.8, v=1.05, tokens=2.5),
            "fewer tokens a round than independent acceptance gives",
            "It emits 2.50 tokens; independent acceptance would give 3.36.",
        ),
    ],
)
def test_what_took_the_rest(result: dict[str, Any], culprit: str, figure: str) -> None:
    text = verdict.explanation(result)
    assert text.startswith(f"The closed form promises 2.40x; most of the difference is {culprit}. ")
    assert figure in text
    assert "Drafting" not in text


@pytest.mark.parametrize(("speedup", "holds"), [(2.29, True), (2.51, True), (2.27, False), (2.53, False)], ids=str)
def test_the_closed_form_holds_within_a_band_on_both_sides(speedup: float, holds: bool) -> None:
    """Symptom: "the closed form promises 3.24x, and it holds" beside 15.85x."""
    assert ("it holds within 5%" in verdict.explanation(result_of(speedup=speedup))) == holds


@pytest.mark.parametrize(
    ("result", "culprit"),
    [
        (result_of(speedup=2.8, v=0.8), "a verify pass cheaper than a plain step"),
        (result_of(speedup=2.8, o=-0.2), "less around a round than around a plain step"),
        (result_of(speedup=2.8, tokens=4.0), "more tokens a round than independent acceptance gives"),
    ],
)
def test_what_gave_more_than_was_promised(result: dict[str, Any], culprit: str) -> None:
    text = verdict.explanation(result)
    assert text.startswith(
        f"The closed form promises 2.40x, and 2.80x was measured; most of the difference is {culprit}. "
    )


def test_costly_drafting_is_named_whether_the_closed_form_holds_or_not() -> None:
    named = "Drafting is most of the round: a faster draft, or a smaller K, would gain most."
    dear = result_of(speedup=0.96, c=0.6, k=4)
    assert "and it holds" in verdict.explanation(dear)
    assert named in verdict.explanation(dear)
    assert named in verdict.explanation(result_of(speedup=0.7, c=0.6, k=4, v=1.3))
    assert named not in verdict.explanation(result_of(speedup=0.96, c=0.2, k=4))


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (
            {"samples": 500, "p_value": 0.31, "passed": True},
            "First tokens are distributed as the target's: chi-square over 500 samples, p = 0.31.",
        ),
        (
            {"samples": 500, "p_value": 1.2e-7, "passed": False},
            "First tokens are distributed NOT as the target's: chi-square over 500 samples, p = 1.2e-07.",
        ),
        (
            {"samples": 500, "p_value": None, "passed": True},
            "First tokens are all but certain here, so that there is no distribution to test: raise --temperature.",
        ),
    ],
)
def test_distributions_in_words(check: dict[str, Any], text: str) -> None:
    assert verdict.losslessness({"lossless": {"checked": True, "distribution": check}}) == text


@pytest.mark.parametrize(
    ("pays", "text"),
    [
        (True, "it pays: K 3 with d gives 1.50x plain decoding (95 %: 1.20 to 1.80). To use it:"),
        (
            None,
            (
                "it is open whether it pays: K 3 with d gives 1.50x plain decoding (95 %: 1.20 to 1.80), "
                "which may be no gain. To try it:"
            ),
        ),
        (
            False,
            "it does not pay: the best, K 3 with d, gives 1.50x plain decoding (95 %: 1.20 to 1.80). Decode plainly:",
        ),
    ],
)
def test_recommendations_in_words(pays: bool | None, text: str) -> None:
    point = {"temperature": 0.8, "draft": "d", "k": 3, "speedup": 1.5, "speedup_ci": (1.2, 1.8), "pays": pays}
    point |= {"drafted": 90}
    assert verdict.recommendation(point) == f"At temperature 0.8 {text}"


# ---------------------------------------------------------------------------------------------- hardware
def test_copy_bandwidth_counts_reading_and_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "COPIED_BYTES", 1000)
    times = iter(range(0, 10_000, 2))
    assert hardware.copy_bandwidth(CPU, lambda: float(next(times))) == 2 * 1000 / 2.0


def test_the_environment_names_machine_and_software() -> None:
    found = hardware.environment(CPU, CPU)
    assert found["devices"] == ["cpu"]
    assert found["torch"] == torch.__version__
    assert found["threads"] == 1
    assert found["cpu"]
    json.dumps(found)


def test_peak_memory_is_at_least_what_is_held() -> None:
    held = torch.ones(50_000_000, dtype=torch.uint8)
    peak = hardware.peak_memory(CPU)
    assert peak is not None
    assert peak > held.numel()


def test_what_other_processes_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 s on all cores 60 were idle; of the 40 busy ones 30 were this process's."""
    readings = iter([(10.0, 200.0, 5.0), (50.0, 260.0, 35.0)])
    monkeypatch.setattr(hardware.OtherProcesses, "_seconds", staticmethod(lambda: next(readings)))
    with hardware.OtherProcesses() as others:
        assert others.share is None
    assert others.share == pytest.approx(0.1)


def test_the_share_of_other_processes_is_read_from_the_system() -> None:
    with hardware.OtherProcesses() as others:
        sum(i * i for i in range(200_000))
        torch.ones(1_000_000).sum()
    assert others.share is None or 0 <= others.share <= 1
