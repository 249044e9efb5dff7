"""Numbers with their uncertainty. The arithmetic is scipy's; what is decided here is what is resampled.

Speedups are ratios, so they are averaged geometrically, and a prompt is one observation: tokens of one prompt are no
independent samples of what the next prompt will bring. So intervals come from resampling prompts (bootstrap,
Efron 1979), those of alpha too; with fewer than two prompts alpha falls back on the binomial interval (Wilson 1927).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy import stats

Interval = tuple[float, float]
# With fewer answers, resampling them covers the truth less often than the 95 % it says.
ENOUGH_ANSWERS = 6
CONFIDENCE = 0.95
Z = 1.959964  # of the normal distribution at 95 %
RESAMPLES = 4_000
SEED = 20_191
# Of Iglewicz and Hoaglin's modified z-score: hyperfine's, ten standard deviations if the values are normal.
OUTLIER_DEVIATIONS = 10


@dataclass(frozen=True)
class Estimate:
    """A figure and where it may lie.

    Attributes:
        value: the estimate.
        interval: 95 %; None where there is too little to tell.
        low, high: the smallest and the largest observation.
    """

    value: float
    interval: Interval | None
    low: float
    high: float


def geometric_mean(ratios: Sequence[float]) -> Estimate:
    """Mean of ratios, one a prompt, with a bootstrap interval over prompts.

    Raises:
        ValueError: no ratios, or one that is not above 0.
    """
    if not ratios or min(ratios) <= 0:
        raise ValueError("a geometric mean needs ratios above 0")
    interval = None
    if len(ratios) >= 2:
        found = stats.bootstrap(
            (np.log(ratios),), np.mean, confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile",
            vectorized=True, rng=np.random.default_rng(SEED),
        ).confidence_interval  # fmt: skip
        interval = (float(np.exp(found.low)), float(np.exp(found.high)))
    return Estimate(float(stats.gmean(ratios)), interval, min(ratios), max(ratios))


def ratio_of_means(below: Sequence[float], above: Sequence[float]) -> tuple[float, Interval | None]:
    """Geometric mean of `above` over that of `below`, which were measured apart, with a bootstrap interval over both.

    Raises:
        ValueError: no values, or one that is not above 0.
    """
    if not below or not above or min(*below, *above) <= 0:
        raise ValueError("a ratio of geometric means needs values above 0")
    value = float(stats.gmean(above) / stats.gmean(below))
    if len(below) < 2 or len(above) < 2:
        return value, None
    found = stats.bootstrap(
        (np.log(above), np.log(below)), lambda a, b, axis: a.mean(axis) - b.mean(axis), vectorized=True,
        confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(SEED),
    ).confidence_interval  # fmt: skip
    return value, (float(np.exp(found.low)), float(np.exp(found.high)))


def proportion(successes: Sequence[int], trials: Sequence[int]) -> tuple[float, Interval] | None:
    """A rate over all trials, with an interval that knows that trials of one prompt are alike.

    Args:
        successes, trials: one entry a prompt.

    Returns:
        the rate and its 95 % interval: the wider of the bootstrap's over prompts and Wilson's; None without trials.
    """
    total = sum(trials)
    if not total:
        return None
    wilson = stats.binomtest(sum(successes), total).proportion_ci(CONFIDENCE, method="wilson")
    low, high = float(wilson.low), float(wilson.high)
    counted = [(s, t) for s, t in zip(successes, trials, strict=True) if t]
    if len(counted) >= 2:
        found = stats.bootstrap(
            tuple(np.array(column, dtype=float) for column in zip(*counted, strict=True)),
            lambda s, t, axis: s.sum(axis) / t.sum(axis), paired=True, vectorized=True,
            confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(SEED),
        ).confidence_interval  # fmt: skip
        low, high = min(low, float(found.low)), max(high, float(found.high))
    return sum(successes) / total, (low, high)


def clustered_mean(groups: Sequence[Sequence[float]]) -> tuple[float, Interval] | None:
    """Mean of probabilities that come in groups of prompts, and its 95 % interval.

    Positions of one prompt are alike, so the variance is that of a ratio of sums over prompts (Cochran, Sampling
    Techniques, 6.3), or that of independent positions where this is larger; the interval ends at 0 and 1.

    Returns:
        None without any value.
    """
    values = [value for group in groups for value in group]
    if not values:
        return None
    n, mean = len(values), sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / max(1, n - 1) / n
    filled = [group for group in groups if group]
    if len(filled) > 1:
        spread = sum((sum(group) - mean * len(group)) ** 2 for group in filled)
        variance = max(variance, len(filled) / (len(filled) - 1) * spread / n**2)
    reach = Z * sqrt(variance)
    return mean, (max(0.0, mean - reach), min(1.0, mean + reach))


def outliers(values: Sequence[float]) -> list[int]:
    """Places of the values that stand far outside the others, by the modified z-score."""
    if len(values) < 3:
        return []
    median = float(np.median(values))
    spread = float(stats.median_abs_deviation(values, scale="normal"))
    if spread == 0:
        return []
    return [i for i, value in enumerate(values) if abs(value - median) > OUTLIER_DEVIATIONS * spread]


def chi_square(observed: Sequence[int], expected_probs: Sequence[float]) -> float | None:
    """p-value of counts under probabilities; cells that expect fewer than 5 are merged.

    Args:
        observed: a count for each outcome.
        expected_probs: the probability of each, summing to 1.

    Returns:
        0 where something happened that cannot; None where fewer than two cells are left, so that there is nothing to
        test.
    """
    total = sum(observed)
    if any(count and not p for count, p in zip(observed, expected_probs, strict=True)):
        return 0.0
    large = [i for i, p in enumerate(expected_probs) if p * total >= 5]
    seen = [float(observed[i]) for i in large]
    wanted = [expected_probs[i] * total for i in large]
    rest_seen, rest_wanted = total - sum(seen), total - sum(wanted)
    if rest_wanted >= 5 or not wanted:
        seen.append(rest_seen)
        wanted.append(rest_wanted)
    else:  # too little for a cell of its own
        seen[-1] += rest_seen
        wanted[-1] += rest_wanted
    if len(seen) < 2:
        return None
    scale = total / sum(wanted)
    return float(stats.chisquare(seen, [w * scale for w in wanted]).pvalue)
