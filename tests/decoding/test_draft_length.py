"""K that follows what is measured: regret against the best fixed K, in simulated rounds with known costs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest
import torch
from laws import SIGNIFICANCE, BagModel, Counting, chi_square_p
from torch import Tensor

from specdec_cli.decoding.draft_length import (
    LARGEST,
    Acceptance,
    Auto,
    Costs,
    DraftLength,
    Fixed,
    Heuristic,
    Outcome,
    draft_length,
)
from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Context, Draft
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.lookahead import Lookahead
from specdec_cli.settings import SamplingSettings


class World:
    """Rounds with known acceptance by position and known costs, in units of a target step.

    Args:
        rates: of each position, given those before; the last one goes on.
        c: a draft step.
        v: the pass over K + 1 tokens, by K.
        noise: relative standard deviation of every time.
        offers: the probability that a draft has each position, given that it has those before; the last one goes on.
        disturbed: the share of times that the machine makes four times as long, which costs nothing here.
        ramp: a source that learns, whose rates are reached after so many rounds of drafting in a text, and evenly.
        tells: whether it says so.
    """

    def __init__(
        self,
        rates: list[float],
        c: float,
        v: Callable[[int], float],
        o: float = 0.03,
        noise: float = 0.05,
        offers: tuple[float, ...] = (1.0,),
        disturbed: float = 0.0,
        ramp: int = 0,
        tells: bool = True,
    ) -> None:
        self.rates, self.c, self.v, self.o, self.noise = rates, c, v, o, noise
        self.offers, self.disturbed = offers, disturbed
        self.ramp, self.tells = ramp, tells

    def cost(self, drafted: int) -> float:
        """Target steps of a round."""
        return drafted * self.c + self.v(drafted) + (self.o if drafted else 0.0)

    def speed(self, length: DraftLength, tokens: int, seed: int) -> tuple[float, list[int]]:
        """Tokens a target step, and every K."""
        rng = random.Random(seed)
        made, spent, ks = 0, 0.0, []
        learnt = 0 if self.ramp else 1

        def around(seconds: float) -> float:
            factor = 4.0 if self.disturbed and rng.random() < self.disturbed else 1.0
            return seconds * factor * max(0.3, rng.gauss(1, self.noise))

        length.begin()
        while made < tokens:
            k = length.next()
            drafted = accepted = 0
            while drafted < k and rng.random() < self.offers[min(drafted, len(self.offers) - 1)]:
                drafted += 1
            known = min(1.0, learnt / max(1, self.ramp))
            while accepted < drafted and rng.random() < known * self.rates[min(accepted, len(self.rates) - 1)]:
                accepted += 1
            learnt += drafted > 0
            times = (drafted * self.c, self.v(drafted), self.o if drafted else 0.0)
            learning = bool(drafted and self.ramp and self.tells)
            length.observe(Outcome(drafted, accepted, *map(around, times), learning=learning))
            made += accepted + 1
            spent += self.cost(drafted)
            ks.append(k)
        return made / spent, ks

    def best_fixed(self) -> tuple[int, float]:
        """By the extended form's own sums, no simulation: (K, tokens a target step)."""

        def speed(k: int) -> float:
            expected, kept, reached, cost = 1.0, 1.0, 1.0, self.cost(0)
            for i in range(k):
                reached *= self.offers[min(i, len(self.offers) - 1)]
                kept *= self.rates[min(i, len(self.rates) - 1)]
                expected += reached * kept
                cost += reached * (self.cost(i + 1) - self.cost(i))
            return expected / cost

        best = max(range(LARGEST + 1), key=speed)
        return best, speed(best)


def smooth(k: int) -> float:
    return 1 + 0.02 * k


def steep(k: int) -> float:
    return 1 + 0.05 * k


def wider(k: int) -> float:
    """As lookahead's pass: whatever K."""
    return 1.5 if k else 1.0


WORLDS = {
    "good draft": World([0.85], 0.1, smooth),
    "cheap and nearly perfect": World([0.97], 0.05, smooth),
    "weak draft": World([0.45], 0.1, smooth),
    "fades by position": World([0.9, 0.7, 0.5, 0.3], 0.05, smooth),
    "grows by position": World([0.5, 0.7, 0.9, 0.95], 0.1, smooth),
    "verify jumps behind four rows": World([0.8], 0.25, lambda k: 1.0 if k < 4 else 1.9),
    "disturbed now and then": World([0.85], 0.1, smooth, disturbed=0.05),
    "seldom a guess": World([0.8, 0.85, 0.9], 0.0, smooth, offers=(0.15, 1.0)),
    "often a guess": World([0.6, 0.8, 0.9], 0.0, steep, offers=(0.7, 1.0)),
    "guesses that are not worth their rows": World([0.1], 0.0, steep, offers=(0.5, 1.0)),
    "guesses of any length": World([0.7], 0.0, steep, offers=(0.6, 0.8, 0.7, 0.6)),
    "a wider pass": World([0.7], 0.0, wider),
    "a wider pass for nothing": World([0.2], 0.0, wider),
}


@pytest.mark.parametrize("name", WORLDS)
def test_auto_comes_within_a_few_per_cent_of_the_best_fixed_k(name: str) -> None:
    world = WORLDS[name]
    _, best = world.best_fixed()
    assert fmean(world.speed(Auto(), 2_000, seed)[0] for seed in range(10)) > 0.95 * best
    assert fmean(world.speed(Auto(), 200, seed)[0] for seed in range(40)) > 0.85 * best  # a short text


def test_auto_finds_the_last_k_before_a_jump_where_a_smooth_curve_would_not() -> None:
    world = WORLDS["verify jumps behind four rows"]
    assert world.best_fixed()[0] == 3
    late = [k for seed in range(5) for k in world.speed(Auto(), 1_500, seed)[1][-50:]]
    assert late.count(3) > 0.8 * len(late)


@pytest.mark.parametrize("c", [0.1, 0.5, 1.0])
def test_a_hopeless_draft_costs_next_to_nothing(c: float) -> None:
    world = World([0.01], c, smooth)
    assert world.best_fixed()[0] == 0
    assert fmean(world.speed(Auto(), 1_000, seed)[0] for seed in range(10)) > 0.97


@pytest.mark.parametrize("c", [0.05, 0.37])
def test_a_hopeless_draft_costs_a_few_per_cent_of_one_short_text(c: float) -> None:
    """And of every further one: a new text is probed again, once."""
    world, length = World([0.01], c, smooth), Auto()
    assert fmean(world.speed(Auto(), 128, seed)[0] for seed in range(20)) > 0.96
    assert fmean(world.speed(length, 128, seed)[0] for seed in range(20)) > 0.97


@pytest.mark.parametrize("v", [1.1, 1.5, 2.0, 3.0, 5.5])
def test_a_hopeless_draft_costs_a_few_per_cent_however_wide_its_pass(v: float) -> None:
    """Of the first text, of each further one, and less of a long one; what is lent to a learning source included."""
    world = World([0.01], 0.0, lambda k: v if k else 1.0, o=0.0, ramp=1)
    assert fmean(world.speed(Auto(), 128, seed)[0] for seed in range(10)) > 0.95
    length = Auto()
    assert fmean(world.speed(length, 128, seed)[0] for seed in range(10)) > 0.96
    assert fmean(world.speed(Auto(), 1_000, seed)[0] for seed in range(3)) > 0.97


LEARNER = World([0.9, 0.9, 0.0], 0.0, wider, ramp=16)


def test_a_source_that_learns_by_drafting_is_not_known_by_its_first_rounds() -> None:
    """Off at first and good later: it ends up drafting. Without a loan, it would be given up early."""
    _, best = LEARNER.best_fixed()
    assert best > 1.7
    found = [LEARNER.speed(Auto(), 400, seed) for seed in range(10)]
    assert fmean(speed for speed, _ in found) > 0.88 * best
    assert all(all(ks[-20:]) for _, ks in found)
    silent = World(LEARNER.rates, 0.0, wider, ramp=LEARNER.ramp, tells=False)
    told, untold = (fmean(world.speed(Auto(), 100, seed)[0] for seed in range(20)) for world in (LEARNER, silent))
    assert told > 1.15 * untold
    assert untold < 1.15


def test_a_new_text_is_probed_soon_whatever_the_pause_was() -> None:
    length = Auto()
    World([0.01], 0.2, smooth).speed(length, 600, 1)
    found = fmean(World([0.9], 0.2, smooth).speed(length, 300, seed)[0] for seed in range(3))
    assert found > 0.75 * World([0.9], 0.2, smooth).best_fixed()[1]


def test_a_round_without_a_guess_is_no_rejection_and_no_pause() -> None:
    """Prompt lookup that finds nothing for long: it is asked every round, and copies at length when it does."""
    length = Auto()
    for _ in range(100):
        asked = length.next()
        length.observe(Outcome(0, 0, 0.0, 1.0, 0.0))
    assert asked > 0
    for _ in range(8):
        length.observe(Outcome(length.next(), length.next(), 0.0, 1.0, 0.0))
    assert length.next() > 8


def test_a_tree_has_one_cost_whatever_of_it_was_judged() -> None:
    costs = Costs()
    costs.observe(Outcome(0, 0, 0.0, 1.0, 0.0), draft_was_current=True)
    for judged in (1, 2, 4, 2):
        costs.observe(Outcome(judged, 1, 0.5, 2.5, 0.0, learning=True), draft_was_current=True)
    assert costs.rounds_s(3) == [1.0, 3.0, 3.0, 3.0]


def turns(sources: dict[str, World], length: DraftLength, tokens: int, seed: int) -> tuple[float, dict[str, int]]:
    """Several sources, the first with a guess drafts: tokens a target step, and the rounds of each."""
    rng = random.Random(seed)
    made, spent, rounds = 0, 0.0, dict.fromkeys(sources, 0)
    length.begin()
    while made < tokens:
        most, outcome, cost = length.next(), Outcome(0, 0, 0.0, 1.0, 0.0), 1.0
        limits = {name: min(most, length.limit(name)) for name in sources}
        for name, world in sources.items():
            drafted = accepted = 0
            while drafted < limits[name] and rng.random() < world.offers[min(drafted, len(world.offers) - 1)]:
                drafted += 1
            while accepted < drafted and rng.random() < world.rates[min(accepted, len(world.rates) - 1)]:
                accepted += 1
            if drafted:
                outcome = Outcome(drafted, accepted, drafted * world.c, world.v(drafted), world.o, source=name)
                cost = world.cost(drafted)
                rounds[name] += 1
                break
        length.observe(outcome)
        made += outcome.num_accepted + 1
        spent += cost
    return made / spent, rounds


LOOKUP = World([0.95], 0.0, smooth, offers=(0.3, 1.0))


@pytest.mark.parametrize("poor", [World([0.02], 0.4, smooth), World([0.3], 0.3, smooth)])
def test_a_poor_source_does_not_silence_a_good_one_before_it(poor: World) -> None:
    alone = fmean(LOOKUP.speed(Auto(), 400, seed)[0] for seed in range(10))
    both = fmean(turns({"lookup": LOOKUP, "model": poor}, Auto(), 400, seed)[0] for seed in range(10))
    assert both > 0.85 * alone


def test_a_good_source_drafts_on_behind_a_poor_one() -> None:
    poor, good = World([0.02], 0.3, smooth), World([0.85], 0.1, smooth)
    alone = fmean(good.speed(Auto(), 400, seed)[0] for seed in range(10))
    found = [turns({"poor": poor, "good": good}, Auto(), 400, seed) for seed in range(10)]
    assert fmean(speed for speed, _ in found) > 0.9 * alone
    assert all(rounds["poor"] < 0.2 * rounds["good"] for _, rounds in found)


def test_two_good_sources_are_better_than_either() -> None:
    lookup, model = World([0.95], 0.0, smooth, offers=(0.1, 1.0)), World([0.8], 0.15, smooth)
    each = [fmean(world.speed(Auto(), 600, seed)[0] for seed in range(10)) for world in (lookup, model)]
    both = fmean(turns({"lookup": lookup, "model": model}, Auto(), 600, seed)[0] for seed in range(10))
    assert both > 1.05 * max(each)


def test_drafts_that_end_early_are_told_from_rejections() -> None:
    seen = Acceptance()
    for _ in range(400):
        seen.observe(asked=6, drafted=2, accepted=2)
    assert seen.rates()[1] == pytest.approx(1.0, abs=0.02)
    assert seen.offers()[:4] == pytest.approx([1.0, 1.0, 1.0, 0.0], abs=0.05)
    assert seen.tokens_per_round()[6] == pytest.approx(3.0, abs=0.2)


def test_auto_turns_drafting_on_again_when_the_text_gets_easy() -> None:
    length = Auto()
    World([0.01], 0.2, smooth).speed(length, 300, 1)
    _, ks = World([0.9], 0.2, smooth).speed(length, 2_000, 2)
    assert fmean(ks[:4]) < 1
    assert fmean(ks[-50:]) > 2


def test_auto_minds_no_single_disturbed_measurement() -> None:
    """One round of each K takes ten times as long; the K that is best otherwise must come back."""
    length, world = Auto(), WORLDS["good draft"]
    disturbed = set()
    for _ in range(60):
        k = length.next()
        slow = 10.0 if k and k not in disturbed else 1.0
        disturbed.add(k)
        length.observe(Outcome(k, k, k * world.c, slow * world.v(k), world.o))
    _, ks = world.speed(length, 2_000, 3)
    best, _ = world.best_fixed()
    assert abs(fmean(ks[-50:]) - best) <= 2.5


def test_rounds_that_a_limit_cut_teach_nothing() -> None:
    length = Auto()
    for _ in range(8):
        length.observe(Outcome(length.next(), length.next(), 0.1, 1.0, 0.0))
    before = length.next()
    for _ in range(5):
        length.observe(Outcome(1, 0, 50.0, 50.0, 50.0, whole=False))
    assert length.next() == before


def test_the_heuristic_is_transformers_rule() -> None:
    length = Heuristic(3)
    seen = []
    for accepted in (3, 5, 2, 0):
        seen.append(length.next())
        length.observe(Outcome(length.next(), accepted, 0.0, 1.0, 0.0))
    assert seen == [3, 5, 7, 6]
    for _ in range(10):
        length.observe(Outcome(length.next(), 0, 0.0, 1.0, 0.0))
    assert length.next() == 1


def test_names_of_the_rules() -> None:
    assert isinstance(draft_length("auto"), Auto)
    assert isinstance(draft_length("heuristic"), Heuristic)
    assert draft_length(7) == Fixed(7)
    assert Fixed(7).next() == 7


# ------------------------------------------------------------------------ a source that learns, in the loop
class Clocked:
    """A target whose passes take a fixed time and some for each token."""

    def __init__(self, target: BagModel, each: float) -> None:
        self._target, self._each, self.now = target, each, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        self.now += 1 + self._each * (len(token_ids) - 1)
        return self._target.forward(token_ids, num_logits)

    def forward_tree(self, token_ids: Tensor, parents: Tensor) -> Tensor:
        self.now += 1 + self._each * (len(token_ids) - 1)
        return self._target.forward_tree(token_ids, parents)


def looking_ahead(
    model: BagModel, each: float, tokens: int, sampling: SamplingSettings, length: DraftLength
) -> tuple[float, list[Step]]:
    """Tokens in the time of a plain step, the prompt's apart; and the rounds."""
    target = Clocked(model, each)
    generation = Generation(
        target, Lookahead(6, 3, 4, model.max_length, model.device), [3, 1, 4, 1, 3], num_draft_tokens=length,
        sampling=sampling, stopping=Stopping(tokens), clock=lambda: target.now,
    )  # fmt: skip
    before = target.now
    steps = list(generation)
    return tokens / (target.now - before), steps


@pytest.mark.parametrize(("period", "each"), [(7, 0.05), (17, 0.02)])
def test_auto_waits_until_lookaheads_pool_has_filled(period: int, each: float) -> None:
    """A text that repeats itself: nothing is accepted before it has, and all afterwards."""
    speed, steps = looking_ahead(
        Counting(period, 0, max_length=400), each, 300, SamplingSettings(temperature=0.0), Auto()
    )
    drafted = [step for step in steps if step.num_draft_tokens]
    assert sum(step.num_accepted for step in drafted[:4]) == 0
    assert all(step.num_accepted == 2 for step in drafted[20:-2])
    assert len(drafted) > len(steps) - 12
    assert speed > 1.8


@pytest.mark.parametrize("each", [0.02, 0.05, 0.1, 0.3])
def test_auto_gives_lookahead_up_where_the_text_repeats_nothing(each: float) -> None:
    """Nearly even odds for 60 tokens, sampled."""
    sampling = SamplingSettings(temperature=1.0)
    models = [BagModel(60, seed, max_length=400, spread=0.1) for seed in range(6)]
    found = [looking_ahead(model, each, 128, sampling, Auto())[0] for model in models]
    assert fmean(found) > 0.95


class Watched(Fixed):
    """Keeps what it is told."""

    def __init__(self, num_draft_tokens: int) -> None:
        super().__init__(num_draft_tokens)
        self.outcomes: list[Outcome] = []

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def test_a_limit_shortens_no_draft_that_is_shorter_anyway() -> None:
    """N-grams of two guesses, where sixteen are asked for: only the last round has no room for them."""
    length = Watched(16)
    _, steps = looking_ahead(Counting(7, 0, max_length=400), 0.0, 60, SamplingSettings(temperature=0.0), length)
    assert [outcome.num_drafted for outcome in length.outcomes[-4:]] == [2, 2, 2, len(steps[-1].draft_token_ids)]
    assert len(steps[-1].draft_token_ids) < 2
    assert [outcome.whole for outcome in length.outcomes] == [True] * (len(steps) - 1) + [False]
    assert all(outcome.learning for outcome in length.outcomes[:-1])


# ---------------------------------------------------------------------------- exact whatever chooses K
DOUBT = 0.2  # some of the draft's tokens are above it, some below


class DropsTheDoubtful(DraftModel):
    """The mistake that --draft-stop invites: the token that the model doubted is left out of the draft."""

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        draft = super().propose(context, num_draft_tokens, generator)
        if len(draft.token_ids) < num_draft_tokens:
            assert draft.probs is not None
            draft = Draft(draft.token_ids[:-1], draft.probs[:-1])
        return draft


def first_tokens(drafter: DraftModel, target: BagModel, k: DraftLength, sampling: SamplingSettings) -> list[int]:
    """First tokens of many texts; a rule for K goes on from text to text."""
    drawn = []
    for seed in range(3_000):
        generation = Generation(
            target, drafter, [1, 2], num_draft_tokens=k, sampling=sampling, stopping=Stopping(12), seed=seed
        )
        drawn.append(next(iter(generation)).token_ids[0])
    return drawn


def exact(target: BagModel, sampling: SamplingSettings) -> dict[int, float]:
    return dict(enumerate(logits_to_probs(target.logits([1, 2])[None], sampling)[0].tolist()))


@pytest.mark.exactness
@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("k", [Fixed(3), "auto", "heuristic"], ids=str)
def test_sampled_tokens_are_the_targets_whatever_chooses_k(k: DraftLength | str, temperature: float) -> None:
    sampling = SamplingSettings(temperature=temperature)
    target, draft = BagModel(8, seed=1, spread=0.8), BagModel(8, seed=2, spread=0.8)
    rule = draft_length(k) if isinstance(k, str) else k
    drawn = first_tokens(DraftModel(draft, sampling, draft_stop=DOUBT), target, rule, sampling)
    assert chi_square_p(drawn, exact(target, sampling)) > SIGNIFICANCE


@pytest.mark.exactness
def test_leaving_out_the_token_that_ended_the_draft_would_be_seen() -> None:
    sampling = SamplingSettings(temperature=1.0)
    target, draft = BagModel(8, seed=1, spread=0.8), BagModel(8, seed=2, spread=0.8)
    drawn = first_tokens(DropsTheDoubtful(draft, sampling, draft_stop=DOUBT), target, Fixed(3), sampling)
    assert chi_square_p(drawn, exact(target, sampling)) < SIGNIFICANCE


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_ends_behind_the_first_token_that_its_model_doubts(temperature: float) -> None:
    """The model's own probability decides, before warping: at temperature 0 the warped one is always 1."""
    sampling = SamplingSettings(temperature=temperature)
    draft = BagModel(8, seed=2, spread=0.8)
    lengths = set()
    for seed in range(40):
        drafter = DraftModel(draft, sampling, draft_stop=0.4)
        drafter.reset(Context([1, seed % 8]))
        found = drafter.propose(Context([1, seed % 8]), 6, torch.Generator().manual_seed(seed)).token_ids.tolist()
        text, sure = [1, seed % 8], []
        for token in found:
            sure.append(float(draft.logits(text).softmax(-1)[token]) >= 0.4)
            text.append(token)
        assert all(sure[:-1])
        assert len(found) == 6 or not sure[-1]
        lengths.add(len(found))
    assert len(lengths) > 1


@pytest.mark.parametrize("value", ["-0.1", "1", "nan"])
def test_draft_stop_is_a_probability(specdec: Callable[..., tuple[int, str, str]], value: str) -> None:
    for command in (["generate", "x"], ["bench"], ["sweep-k"]):
        code, out, err = specdec(*command, "--draft-stop", value)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "--draft-stop" in err


@pytest.mark.parametrize("value", ["0", "-1", "100000", "four", "automatic", ""])
def test_k_is_a_number_or_a_rule(specdec: Callable[..., tuple[int, str, str]], value: str) -> None:
    for command in (["generate", "x"], ["bench"]):
        code, out, err = specdec(*command, f"--k={value}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "--k" in err
        assert "auto" in err


def test_auto_and_heuristic_in_generate_and_bench(specdec: Callable[..., tuple[int, str, str]]) -> None:
    """The same greedy text as with any K, and how many tokens the rounds drafted."""
    generate = ("generate", "def f(x):", "-n", "24", "--dtype", "float32", "--format", "json", "-q")
    texts = {k: json.loads(specdec(*generate, "--k", k)[1])["token_ids"] for k in ("4", "auto", "heuristic")}
    assert texts["auto"] == texts["heuristic"] == texts["4"]
    code, out, err = specdec(
        "bench", "--k", "auto", "--limit", "1", "-n", "24", "--dtype", "float32", "--format", "json", "-q"
    )
    assert code == 0, err
    (result,) = json.loads(out)["results"]
    assert result["k"] == "auto"
    assert len(result["draft_lengths"]) > 1
    assert result["lossless"]["identical"] is True
