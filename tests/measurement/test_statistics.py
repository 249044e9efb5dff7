"""Numbers with their uncertainty, each beside what scipy says when it is asked directly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from specdec_cli.measurement.statistics import (
    CONFIDENCE,
    RESAMPLES,
    SEED,
    chi_square,
    geometric_mean,
    outliers,
    proportion,
)

RATIOS = [1.4, 2.1, 1.1, 1.9, 1.6, 0.9, 1.7, 2.4]


def test_geometric_mean_is_scipys() -> None:
    estimate = geometric_mean(RATIOS)
    assert estimate.value == pytest.approx(float(stats.gmean(RATIOS)))
    assert (estimate.low, estimate.high) == (0.9, 2.4)


def test_the_interval_is_scipys_bootstrap_of_the_logarithms() -> None:
    interval = geometric_mean(RATIOS).interval
    assert interval is not None
    wanted = stats.bootstrap(
        (np.log(RATIOS),), np.mean, confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval  # fmt: skip
    assert interval == pytest.approx((math.exp(wanted.low), math.exp(wanted.high)))
    assert geometric_mean(RATIOS).interval == interval  # and not another one each time
    low, high = interval
    assert low < float(stats.gmean(RATIOS)) < high


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Of many samples from one distribution; a little less often than 95 %, as percentile bootstraps are."""
    generator = np.random.default_rng(3)
    hits = 0
    for _ in range(150):
        interval = geometric_mean(np.exp(generator.normal(0.5, 0.3, size=30)).tolist()).interval
        assert interval is not None
        hits += interval[0] < math.exp(0.5) < interval[1]
    assert stats.binomtest(hits, 150, 0.93).pvalue > 1e-3


def test_more_answers_narrow_the_interval() -> None:
    few, many = geometric_mean(RATIOS).interval, geometric_mean(RATIOS * 9).interval
    assert few is not None
    assert many is not None
    assert many[1] / many[0] < (few[1] / few[0]) ** 0.5


def test_one_ratio_has_no_interval_and_equal_ones_an_empty_one() -> None:
    assert geometric_mean([1.5]).interval is None
    assert geometric_mean([2.0, 2.0, 2.0]).interval == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [1.0, -2.0]])
def test_ratios_must_be_above_0(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        geometric_mean(ratios)


# ----------------------------------------------------------------------------------------------- rates
def test_a_rate_of_one_answer_has_wilsons_interval() -> None:
    found = proportion([30], [40])
    wanted = stats.binomtest(30, 40).proportion_ci(0.95, method="wilson")
    assert found == (0.75, pytest.approx((wanted.low, wanted.high)))


def test_a_rate_weighs_trials_not_answers() -> None:
    found = proportion([9, 10], [10, 90])
    assert found is not None
    assert found[0] == pytest.approx(0.19)


def test_trials_of_one_answer_are_alike_so_the_interval_is_wider_than_wilsons() -> None:
    """The same 240 of 320: in eight answers that are alike, and in eight that are not."""
    trials = [40] * 8
    alike, clustered = [30] * 8, [40, 40, 40, 40, 20, 20, 20, 20]
    wilson = stats.binomtest(240, 320).proportion_ci(0.95, method="wilson")
    even, uneven = proportion(alike, trials), proportion(clustered, trials)
    assert even == (0.75, pytest.approx((wilson.low, wilson.high)))
    assert uneven is not None
    rate, (low, high) = uneven
    assert rate == 0.75
    wanted = stats.bootstrap(
        (np.array(clustered) / 40,), np.mean, confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval  # fmt: skip
    assert (low, high) == pytest.approx((wanted.low, wanted.high), abs=0.02)
    assert high - low > 2 * (wilson.high - wilson.low)


def test_an_interval_of_a_rate_stays_between_0_and_1_and_is_never_empty() -> None:
    """Where every trial succeeded a bootstrap alone would claim to be certain."""
    found = proportion([5, 7], [5, 7])
    assert found is not None
    rate, (low, high) = found
    assert (rate, high) == (1.0, 1.0)
    assert 0.6 < low < 0.9


def test_answers_without_trials_do_not_count() -> None:
    assert proportion([3, 0, 0], [4, 0, 0]) == proportion([3], [4])
    assert proportion([3, 0, 5], [4, 0, 8]) == proportion([3, 5], [4, 8])
    assert proportion([0, 0], [0, 0]) is None
    assert proportion([], []) is None


# -------------------------------------------------------------------------------------------- outliers
def test_outliers_stand_ten_deviations_away() -> None:
    """Median 10, median absolute deviation 1, which is 1.4826 standard deviations of a normal distribution."""
    values = [9.0, 9.0, 10.0, 11.0, 11.0]
    border = 10 + 14.826
    assert outliers([*values, 9.0, border - 0.1]) == []
    assert outliers([*values, 9.0, border + 0.1]) == [6]
    assert outliers([10 - 14.9, *values, 11.0]) == [0]


def test_too_few_or_equal_values_have_no_outliers() -> None:
    assert outliers([]) == outliers([1.0, 100.0]) == []
    assert outliers([5.0] * 9 + [100.0]) == []  # no spread to measure by


# ------------------------------------------------------------------------------------------ chi-square
def test_chi_square_is_scipys_where_every_cell_is_large() -> None:
    observed, probs = [45, 30, 25], [0.5, 0.25, 0.25]
    assert chi_square(observed, probs) == pytest.approx(float(stats.chisquare(observed, [50, 25, 25]).pvalue))


@pytest.mark.parametrize(
    ("observed", "probs", "cells"),
    [
        ([50, 38, 6, 3, 3], [0.5, 0.4, 0.04, 0.03, 0.03], ([50, 38, 12], [50, 40, 10])),
        ([55, 40, 2, 3], [0.6, 0.37, 0.02, 0.01], ([55, 45], [60, 40])),  # 3 are too few for a cell of their own
    ],
)
def test_small_cells_are_merged(
    observed: list[int], probs: list[float], cells: tuple[list[float], list[float]]
) -> None:
    assert chi_square(observed, probs) == pytest.approx(float(stats.chisquare(*cells).pvalue))


def test_what_cannot_happen_and_did_refutes() -> None:
    assert chi_square([60, 39, 1], [0.6, 0.4, 0.0]) == 0.0
    right = chi_square([60, 40, 0], [0.6, 0.4, 0.0])
    assert right == pytest.approx(1.0)


@pytest.mark.parametrize(("observed", "probs"), [([99, 1], [0.99, 0.01]), ([1] * 10, [0.1] * 10), ([9, 0], [1.0, 0.0])])
def test_a_sharp_distribution_or_a_small_sample_leaves_nothing_to_test(observed: list[int], probs: list[float]) -> None:
    assert chi_square(observed, probs) is None


def test_p_values_of_the_true_distribution_are_uniform() -> None:
    """Cells merged and all, so that 1e-4 means one false alarm in ten thousand."""
    probs = [0.3, 0.25, 0.18, 0.12, 0.1, 0.03, 0.01, 0.01]
    generator = np.random.default_rng(5)
    found = [chi_square(generator.multinomial(400, probs).tolist(), probs) for _ in range(400)]
    assert stats.kstest([p for p in found if p is not None], "uniform").pvalue > 1e-3
