"""The simulated rule: SPEC.md's worked example, the closed form, and the law of what is emitted."""

from __future__ import annotations

import itertools
import random

import pytest
from scipy.stats import chisquare

from specdec_cli.simulation import leftover, overlap, position_with, simulate
from specdec_cli.theory import tokens_per_round

TARGET = [0.30, 0.25, 0.18, 0.12, 0.10, 0.05]
DRAFT = [0.44, 0.15, 0.16, 0.05, 0.12, 0.08]
PAIRS = list(itertools.product([0.2, 0.5, 0.8, 0.95], [1, 4, 10]))


def test_the_worked_example_in_numbers() -> None:
    assert overlap(TARGET, DRAFT) == pytest.approx(0.810)
    rest = leftover(TARGET, DRAFT)
    assert rest == pytest.approx([0, 0.53, 0.11, 0.37, 0, 0], abs=0.005)
    assert sum(rest) == pytest.approx(1)


@pytest.mark.exactness
def test_the_worked_example_run() -> None:
    seen = simulate(TARGET, DRAFT, 4, 200_000, random.Random(0))
    assert seen.rounds == 200_000
    assert seen.emitted == pytest.approx(TARGET, abs=1.5e-3)
    assert seen.tokens_per_round == pytest.approx(3.428, abs=0.012)
    assert seen.alpha == pytest.approx(0.81, abs=3e-3)
    total = seen.rounds * seen.tokens_per_round
    assert chisquare([e * total for e in seen.emitted], [p * total for p in TARGET]).pvalue > 1e-4


@pytest.mark.exactness
@pytest.mark.parametrize(("alpha", "k"), PAIRS)
def test_tokens_a_round_are_the_closed_forms(alpha: float, k: int) -> None:
    seen = simulate(*position_with(alpha), k, 40_000, random.Random(0))
    assert abs(seen.tokens_per_round - tokens_per_round(alpha, k)) < 4 * seen.standard_error
    assert seen.alpha == pytest.approx(alpha, abs=0.01)
    assert seen.emitted[0] == pytest.approx(alpha, abs=0.01)


def test_the_standard_error_is_that_of_the_mean() -> None:
    """A hundred simulations scatter as far as each says of itself."""
    means = [simulate(*position_with(0.7), 5, 400, random.Random(seed)) for seed in range(100)]
    middle = sum(s.tokens_per_round for s in means) / len(means)
    scatter = (sum((s.tokens_per_round - middle) ** 2 for s in means) / (len(means) - 1)) ** 0.5
    assert scatter == pytest.approx(means[0].standard_error, rel=0.25)


@pytest.mark.parametrize(("alpha", "k", "tokens"), [(1.0, 3, 4.0), (0.0, 3, 1.0)])
def test_the_limits_are_exact(alpha: float, k: int, tokens: float) -> None:
    seen = simulate(*position_with(alpha), k, 100, random.Random(0))
    assert (seen.tokens_per_round, seen.standard_error, seen.alpha) == (tokens, 0.0, alpha)


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    assert overlap(TARGET, TARGET) == pytest.approx(1)
    assert leftover(TARGET, TARGET) == [0.0] * 6
    assert simulate(TARGET, TARGET, 4, 1000, random.Random(0)).alpha == 1


def test_one_seed_one_result() -> None:
    assert simulate(TARGET, DRAFT, 4, 50, random.Random(3)) == simulate(TARGET, DRAFT, 4, 50, random.Random(3))
    assert simulate(TARGET, DRAFT, 4, 50, random.Random(3)) != simulate(TARGET, DRAFT, 4, 50, random.Random(4))


@pytest.mark.parametrize(
    ("target", "draft", "k", "rounds"),
    [
        ([0.5, 0.5], [1.0], 4, 10),
        ([0.5, 0.6], [0.5, 0.5], 4, 10),
        ([0.5, 0.5], [1.5, -0.5], 4, 10),
        (TARGET, DRAFT, 0, 10),
        (TARGET, DRAFT, 4, 1),
    ],
)
def test_nonsense_is_refused(target: list[float], draft: list[float], k: int, rounds: int) -> None:
    with pytest.raises(ValueError, match=r"distributions|must be"):
        simulate(target, draft, k, rounds, random.Random(0))
