"""The closed form against SPEC.md's figures and against its own limits."""

from __future__ import annotations

import pytest

from specdec_cli.theory import best_num_draft_tokens, break_even_alpha, speedup, tokens_per_round, verify_cost_at


@pytest.mark.parametrize(
    ("alpha", "k", "expected"),
    [(0.8, 4, 3.36), (0.81, 4, 3.428), (1.0, 4, 5.0), (0.0, 4, 1.0), (0.5, 1, 1.5), (0.9, 0, 1.0)],
)
def test_tokens_per_round(alpha: float, k: int, expected: float) -> None:
    assert tokens_per_round(alpha, k) == pytest.approx(expected, abs=5e-4 * expected)


@pytest.mark.parametrize("k", [1, 4, 13])
def test_tokens_per_round_near_one_loses_no_digits(k: int) -> None:
    alpha = 1 - 1e-12
    assert tokens_per_round(alpha, k) == pytest.approx(k + 1, rel=1e-10)


def test_speedup_of_the_worked_example() -> None:
    assert speedup(0.8, 4, 0.05) == pytest.approx(2.80, abs=0.005)


def test_extended_form_counts_verification_and_overhead() -> None:
    closed = speedup(0.8, 4, 0.05)
    extended = speedup(0.8, 4, 0.05, verify_cost=1.2, overhead=0.1)
    assert extended == pytest.approx(closed * 1.2 / 1.5)


@pytest.mark.parametrize(("alpha", "about"), [(0.6, 4), (0.9, 13)])
def test_best_k_is_interior(alpha: float, about: int) -> None:
    assert abs(best_num_draft_tokens(alpha, 0.05) - about) <= 1


def test_best_speedup_at_high_acceptance() -> None:
    assert speedup(0.9, 13, 0.05) == pytest.approx(4.7, abs=0.05)


def test_a_tie_goes_to_the_smaller_k() -> None:
    assert best_num_draft_tokens(0.0, 0.0, [3, 2, 5]) == 2


def test_best_k_by_the_extended_form_is_smaller_where_verification_grows() -> None:
    closed = best_num_draft_tokens(0.9, 0.05)
    growing = best_num_draft_tokens(0.9, 0.05, verify_cost=lambda k: 1 + 0.05 * k, overhead=0.1)
    assert 1 < growing < closed
    by_hand = max(range(1, 65), key=lambda k: speedup(0.9, k, 0.05, 1 + 0.05 * k, 0.1))
    assert growing == by_hand


def test_verify_cost_may_be_a_number_a_mapping_or_a_function() -> None:
    costs = {2: 1.1, 4: 1.2, 8: 5.0}
    by_mapping = best_num_draft_tokens(0.9, 0.05, costs, costs)
    assert by_mapping == best_num_draft_tokens(0.9, 0.05, costs, costs.__getitem__) == 4
    assert best_num_draft_tokens(0.9, 0.05, costs, 1.1) == best_num_draft_tokens(0.9, 0.05, costs) == 8
    assert [verify_cost_at(v, 4) for v in (1.2, costs, lambda k: 1 + k / 20)] == [1.2, 1.2, 1.2]


@pytest.mark.parametrize(
    "call",
    [
        lambda: tokens_per_round(1.1, 4),
        lambda: tokens_per_round(-0.1, 4),
        lambda: tokens_per_round(0.5, -1),
        lambda: speedup(0.5, 4, -0.1),
        lambda: speedup(0.5, 4, 0.1, verify_cost=0.0),
    ],
)
def test_nonsense_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"alpha|negative|costs"):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("k", [1, 4, 13])
@pytest.mark.parametrize("c", [0.0, 0.05, 0.37, 0.999])
def test_break_even_alpha_is_where_nothing_is_gained(k: int, c: float) -> None:
    alpha = break_even_alpha(k, c)
    assert alpha is not None
    assert speedup(alpha, k, c) == pytest.approx(1.0)
    assert speedup(min(1.0, alpha + 1e-3), k, c) > 1.0
    if k == 1:
        assert alpha == pytest.approx(c, abs=1e-12)


def test_no_alpha_pays_for_a_draft_as_slow_as_the_target() -> None:
    assert break_even_alpha(4, 1.0) is None
    for k, c in ((0, 0.1), (1, -0.1)):
        with pytest.raises(ValueError, match="K must be 1 or above and c at least 0"):
            break_even_alpha(k, c)
