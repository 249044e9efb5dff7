"""What the formulas promise for one alpha at every K, beside a simulation of the rule; no models, no torch."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from specdec_cli import roofline, theory
from specdec_cli.errors import UsageError
from specdec_cli.simulation import position_with, simulate

MOST_ROUNDS = 10_000_000
PLOTTED_ROUNDS = 4_000  # a point; their scatter is smaller than the point
SHORTEST_S, LONGEST_S = 1e-30, 1e30  # of a step that is estimated
PLOTTED_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
PLOTTED_KS = 5

_PAIR = re.compile(r"(?P<k>\d{1,9})=(?P<v>\d+\.?\d*|\.\d+)", re.ASCII)


@dataclass(frozen=True)
class Costs:
    """What a round is made of, in target steps.

    Attributes:
        draft: c.
        verify: v, or v of each K.
        overhead: o.
    """

    draft: float
    verify: theory.VerifyCost = 1.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        for option, value, what in (
            ("--cost", self.draft, "a draft step in target steps"),
            ("--overhead", self.overhead, "a round's remaining time in target steps"),
        ):
            if not 0 <= value < math.inf:
                raise UsageError(f"{option} must be 0 or above ({what}), not {value:g}")

    def verify_at(self, k: int) -> float:
        """v of one K."""
        return theory.verify_cost_at(self.verify, k)


@dataclass(frozen=True)
class Estimate:
    """Two models and a machine, from which costs follow.

    Raises:
        UsageError: a step would take no time at all, or for ever, as far as numbers reach.
    """

    target: roofline.Model
    draft: roofline.Model
    machine: roofline.Machine

    def __post_init__(self) -> None:
        for option, model in (("--target-params", self.target), ("--draft-params", self.draft)):
            # No real pair comes near these, and infinities would end up in JSON.
            if not SHORTEST_S <= roofline.step_s(model, self.machine) <= LONGEST_S:
                raise UsageError(
                    f"{option} with this --bandwidth and --flops gives no time that makes sense: check them"
                )

    def costs(self, overhead: float) -> Costs:
        """c and v(K) by the roofline."""
        return Costs(
            draft=roofline.draft_cost(self.target, self.draft, self.machine),
            verify=lambda k: roofline.verify_cost(self.target, self.machine, k),
            overhead=overhead,
        )

    def record(self) -> dict[str, Any]:
        """Every figure of the estimate."""
        sides = {"target": self.target, "draft": self.draft}
        return {
            **{name: self._record_of(model) for name, model in sides.items()},
            "bandwidth_bytes_per_s": self.machine.bytes_per_s,
            "flop_per_s": self.machine.flop_per_s,
            "flop_per_byte": self.machine.flop_per_byte,
        }

    def _record_of(self, model: roofline.Model) -> dict[str, Any]:
        return {
            "parameters": model.parameters,
            "dtype": model.dtype,
            "bytes": model.bytes,
            "memory_s": roofline.memory_s(model, self.machine),
            "arithmetic_s": roofline.arithmetic_s(model, self.machine),
            "step_s": roofline.step_s(model, self.machine),
        }


@dataclass(frozen=True)
class Curve:
    """A line of a plot.

    Attributes:
        name: what it is for.
        xs, ys: the formula.
        simulated: (x, y) of what was simulated.
        best: (x, y) of the optimum; None where there is none to mark.
        chosen: whether it is the one that was asked for.
    """

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    simulated: tuple[tuple[float, float], ...] = ()
    best: tuple[float, float] | None = None
    chosen: bool = False


def parse_verify(text: str) -> theory.VerifyCost:
    """v from `1.1`, or from `4=1.05,8=1.3`: v at some K, straight lines between, v 1 at K 0, the last slope beyond.

    Raises:
        UsageError: anything else, or a v that is not above 0.
    """
    pairs = [_PAIR.fullmatch(part) for part in text.split(",")]
    points = {int(pair["k"]): float(pair["v"]) for pair in pairs if pair}
    if len(points) == len(pairs) and min(points) >= 1 and min(points.values()) > 0:
        return _Interpolated(((0, 1.0), *sorted(points.items())))
    try:
        v = float(text)
    except ValueError:
        v = math.nan
    if not 0 < v < math.inf:
        raise UsageError(
            f"--verify must be above 0 (the pass over K + 1 tokens in target steps), as 1.1 or as 4=1.05,8=1.3 "
            f"for some K, not '{' '.join(text.split())}'"
        )
    return v


@dataclass(frozen=True)
class _Interpolated:
    """Straight lines through points, the last of them prolonged, unless it falls: then level."""

    points: tuple[tuple[int, float], ...]

    def __call__(self, k: int) -> float:
        (k0, v0), (k1, v1) = next(((a, b) for a, b in pairwise(self.points) if k <= b[0]), self.points[-2:])
        slope = (v1 - v0) / (k1 - k0)
        return v1 + max(0.0, slope) * (k - k1) if k > k1 else v0 + slope * (k - k0)


def predictions(
    alpha: float, costs: Costs, ks: Iterable[int], num_rounds: int, rng: random.Random
) -> list[dict[str, Any]]:
    """One result for each K, with the names that `specdec bench` gives to the same things.

    Args:
        num_rounds: to simulate of each K; 0 for none.
    """
    results: list[dict[str, Any]] = []
    for k in ks:
        verify = costs.verify_at(k)
        run = simulate(*position_with(alpha), k, num_rounds, rng) if num_rounds else None
        results.append(
            {
                "k": k,
                "alpha": alpha,
                "tokens_per_round_formula": theory.tokens_per_round(alpha, k),
                "cost": {"c": costs.draft, "v": verify, "o": costs.overhead},
                "predicted": {
                    "closed_form": theory.speedup(alpha, k, costs.draft),
                    "extended": theory.speedup(alpha, k, costs.draft, verify, costs.overhead),
                },
                "simulated": run
                and {
                    "rounds": run.rounds,
                    "tokens_per_round": run.tokens_per_round,
                    "standard_error": run.standard_error,
                    "alpha": run.alpha,
                },
            }
        )
    every = [result["k"] for result in results]
    closed = theory.best_num_draft_tokens(alpha, costs.draft, every)
    extended = theory.best_num_draft_tokens(alpha, costs.draft, every, costs.verify, costs.overhead)
    for result in results:
        result |= {"predicted_best": result["k"] == extended, "closed_form_best": result["k"] == closed}
    return results


def curves(
    alpha: float, costs: Costs, ks: Sequence[int], simulated: bool, rng: random.Random
) -> tuple[list[Curve], list[Curve]]:
    """The two panels everyone knows: tokens a pass against alpha for some K, speedup against K for some alpha."""
    grid = tuple(i / 100 for i in range(101))
    tokens = []
    for k in _some(ks):
        name = f"K {k}: {theory.tokens_per_round(alpha, k):.2f} at alpha {alpha:g}"
        heights = tuple(theory.tokens_per_round(a, k) for a in grid)
        tokens.append(Curve(name, grid, heights, _dots(k, simulated, rng)))
    nearest = min(PLOTTED_ALPHAS, key=lambda a: abs(a - alpha))
    alphas = sorted(alpha if a == nearest else a for a in PLOTTED_ALPHAS)
    speedups = []
    for a in alphas:
        best = theory.best_num_draft_tokens(a, costs.draft, ks, costs.verify, costs.overhead)
        heights = tuple(theory.speedup(a, k, costs.draft, costs.verify_at(k), costs.overhead) for k in ks)
        curve = Curve(f"alpha {a:g}", tuple(ks), heights, best=(best, heights[ks.index(best)]))
        speedups.append(replace(curve, chosen=a == alpha))
    return tokens, speedups


def _dots(k: int, simulated: bool, rng: random.Random) -> tuple[tuple[float, float], ...]:
    if not simulated:
        return ()
    alphas = [i / 10 for i in range(1, 10)]
    return tuple((a, simulate(*position_with(a), k, PLOTTED_ROUNDS, rng).tokens_per_round) for a in alphas)


def _some(ks: Sequence[int]) -> list[int]:
    """A few of them, each about so many times the one before."""
    ratio = (ks[-1] / ks[0]) ** (1 / (PLOTTED_KS - 1))
    return sorted({min(ks, key=lambda k: abs(k - wanted)) for wanted in (ks[0] * ratio**i for i in range(PLOTTED_KS))})
