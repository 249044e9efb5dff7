"""K that follows what is measured: regret against the best fixed K, in simulated rounds with known costs."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import fmean

import pytest

from specdec_cli.decoding.draft_length import LARGEST, Auto, DraftLength, Fixed, Heuristic, Outcome, draft_length


class World:
    """Rounds with known acceptance by position and known costs, in units of a target step.

    Args:
        rates: of each position, given those before; the last one goes on.
        c: a draft step.
        v: the pass over K + 1 tokens, by K.
        noise: relative standard deviation of every time.
    """

    def __init__(self, rates: list[float], c: float, v: Callable[[int], float], o: float = 0.03, noise: float = 0.05):
        self.rates, self.c, self.v, self.o, self.noise = rates, c, v, o, noise

    def speed(self, length: DraftLength, tokens: int, seed: int) -> tuple[float, list[int]]:
        """Tokens a target step, and every K."""
        rng = random.Random(seed)
        made, spent, ks = 0, 0.0, []

        def around(seconds: float) -> float:
            return seconds * max(0.3, rng.gauss(1, self.noise))

        while made < tokens:
            k = length.next()
            accepted = 0
            while accepted < k and rng.random() < self.rates[min(accepted, len(self.rates) - 1)]:
                accepted += 1
            draft, verify, other = around(k * self.c), around(self.v(k)), around(self.o if k else 0.0)
            length.observe(Outcome(k, accepted, draft, verify, other))
            made += accepted + 1
            spent += draft + verify + other
            ks.append(k)
        return made / spent, ks

    def best_fixed(self) -> tuple[int, float]:
        """By the extended form's own sums, no simulation: (K, tokens a target step)."""

        def speed(k: int) -> float:
            expected, reached = 1.0, 1.0
            for i in range(k):
                reached *= self.rates[min(i, len(self.rates) - 1)]
                expected += reached
            return expected / (k * self.c + self.v(k) + (self.o if k else 0.0))

        best = max(range(LARGEST + 1), key=speed)
        return best, speed(best)


def smooth(k: int) -> float:
    return 1 + 0.02 * k


WORLDS = {
    "good draft": World([0.85], 0.1, smooth),
    "cheap and nearly perfect": World([0.97], 0.05, smooth),
    "weak draft": World([0.45], 0.1, smooth),
    "fades by position": World([0.9, 0.7, 0.5, 0.3], 0.05, smooth),
    "verify jumps behind four rows": World([0.8], 0.25, lambda k: 1.0 if k < 4 else 1.9),
}


@pytest.mark.parametrize("name", WORLDS)
def test_auto_comes_within_a_few_per_cent_of_the_best_fixed_k(name: str) -> None:
    world = WORLDS[name]
    _, best = world.best_fixed()
    assert fmean(world.speed(Auto(), 2_000, seed)[0] for seed in range(10)) > 0.96 * best
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


def test_auto_turns_drafting_on_again_when_the_text_gets_easy() -> None:
    length = Auto()
    World([0.01], 0.2, smooth).speed(length, 300, 1)
    _, ks = World([0.9], 0.2, smooth).speed(length, 2_000, 2)
    assert fmean(ks[:20]) < 1
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
