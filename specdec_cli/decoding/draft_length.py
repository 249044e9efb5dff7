"""How many tokens to draft in the next round: K, fixed or following what is measured.

K may depend on anything that was decided before the round and on the drafts themselves, never on whether they will be
accepted; so every rule here keeps the output exact.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

FIRST = 4
LARGEST = 16


@dataclass(frozen=True)
class Outcome:
    """What a round has shown.

    Attributes:
        num_drafted, num_accepted: tokens.
        draft_s, verify_s, other_s: seconds.
        whole: no limit shortened the round, so that its counts speak of acceptance.
    """

    num_drafted: int
    num_accepted: int
    draft_s: float
    verify_s: float
    other_s: float
    whole: bool = True


class DraftLength(Protocol):
    """A rule for K."""

    def next(self) -> int:
        """Tokens to draft in the next round at most; 0 for a plain step."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn from the round that has ended."""
        ...


@dataclass
class Fixed:
    """The same K in every round."""

    num_draft_tokens: int

    def next(self) -> int:
        """K."""
        return self.num_draft_tokens

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


@dataclass
class Heuristic:
    """transformers' rule (`num_assistant_tokens_schedule="heuristic"`): two more after a full accept, else one less."""

    num_draft_tokens: int = FIRST

    def next(self) -> int:
        """K as it stands."""
        return self.num_draft_tokens

    def observe(self, outcome: Outcome) -> None:
        """Follow the round."""
        if outcome.num_drafted == 0 or not outcome.whole:
            return
        full = outcome.num_accepted == outcome.num_drafted
        self.num_draft_tokens = self.num_draft_tokens + 2 if full else max(1, self.num_draft_tokens - 1)


@dataclass
class Acceptance:
    """A running estimate of the probability that position i is accepted, given that those before it were.

    Old rounds fade, since easy and hard passages take turns. A position that was seldom judged leans on the rate over
    all positions.
    """

    judged: list[float] = field(default_factory=lambda: [0.0] * LARGEST)
    accepted: list[float] = field(default_factory=lambda: [0.0] * LARGEST)

    PRIOR_RATE = 0.7
    PRIOR_WEIGHT = 2.0
    FADING = 0.98

    def observe(self, outcome: Outcome) -> None:
        """Count a whole round."""
        self.judged = [n * self.FADING for n in self.judged]
        self.accepted = [n * self.FADING for n in self.accepted]
        for i in range(min(outcome.num_accepted + 1, outcome.num_drafted, LARGEST)):
            self.judged[i] += 1
            self.accepted[i] += i < outcome.num_accepted

    def rates(self) -> list[float]:
        """One for each position."""
        overall = _leaning(sum(self.accepted), sum(self.judged), self.PRIOR_RATE, self.PRIOR_WEIGHT)
        return [_leaning(a, n, overall, self.PRIOR_WEIGHT) for a, n in zip(self.accepted, self.judged, strict=True)]

    def tokens_per_round(self) -> list[float]:
        """Expected tokens a round for K = 0, 1, ..., LARGEST."""
        expected, reached = [1.0], 1.0
        for rate in self.rates():
            reached *= rate
            expected.append(expected[-1] + reached)
        return expected


def _leaning(accepted: float, judged: float, rate: float, weight: float) -> float:
    return (accepted + rate * weight) / (judged + weight)


class Costs:
    """Seconds of a draft step, and of everything else in a round for each K, as measured lately.

    The cost of the pass over K + 1 tokens is not smooth (kernels change at some sizes), so each K has its own figure.
    One that was never tried is taken for as cheap as the next smaller one that was: what looks good on these terms gets
    tried, and then it is known. And none is taken for dearer than a larger one: then its own figures were disturbed.
    """

    KEPT = 5  # latest figures of each kind; their median does not mind one that was disturbed

    def __init__(self) -> None:
        self._draft_step: deque[float] = deque(maxlen=4 * self.KEPT)
        self._rest: dict[int, deque[float]] = {}

    def observe(self, outcome: Outcome, draft_was_current: bool) -> None:
        """Learn from a round; a draft that had to catch up on plain steps first says nothing about a draft step."""
        k = outcome.num_drafted
        self._rest.setdefault(k, deque(maxlen=self.KEPT)).append(outcome.verify_s + outcome.other_s)
        if k and draft_was_current:
            self._draft_step.append(outcome.draft_s / k)

    @property
    def known(self) -> set[int]:
        """Every K that was tried."""
        return set(self._rest)

    def round_s(self, k: int) -> float:
        """Seconds that a round of K drafted tokens takes; infinite where nothing at all is known."""
        smaller = max((known for known in self._rest if known <= k), default=None)
        if smaller is None or (k and not self._draft_step):
            return math.inf
        rest = min(median(figures) for known, figures in self._rest.items() if known >= smaller)
        return k * (median(self._draft_step) if k else 0.0) + rest


class Auto:
    """The K with the most expected tokens a second, by the extended form on running estimates.

    Begins with a plain step and a round of FIRST, then takes the best K each round. Where plain steps are best,
    drafting is off; it is probed again after some rounds, and after twice as many each time that it still does not pay.
    From time to time the best of the other lengths gets another chance, in case its figures were disturbed.

    Args:
        largest: K at most.
    """

    SHORTEST_PAUSE, LONGEST_PAUSE = 8, 128
    SECOND_LOOK = 24  # rounds

    def __init__(self, largest: int = LARGEST) -> None:
        self._largest = min(largest, LARGEST)
        self._acceptance = Acceptance()
        self._costs = Costs()
        self._rounds = 0
        self._pause = self.SHORTEST_PAUSE
        self._plain_left = 0
        self._last_k = 0

    def next(self) -> int:
        """The best K as far as is known."""
        if self._rounds == 0:
            return 0
        if self._rounds < 3:  # the first drafting round prefills what its drafter lacks: one is not enough
            return min(FIRST, self._largest)
        if self._plain_left > 0:
            return 0
        rates = self._rates()
        best = max(range(len(rates)), key=lambda k: rates[k])
        if best == 0 and self._last_k == 0:  # the pause is over: one probe
            return max(range(1, len(rates)), key=lambda k: rates[k])
        if best and self._rounds % self.SECOND_LOOK == 0:
            others = [k for k in range(1, len(rates)) if k != best]
            return max(others, key=lambda k: rates[k], default=best)
        return best

    def observe(self, outcome: Outcome) -> None:
        """Learn from the round, and decide whether drafting goes on."""
        self._rounds += 1
        if outcome.whole:
            self._costs.observe(outcome, draft_was_current=self._last_k > 0)
            if outcome.num_drafted:
                self._acceptance.observe(outcome)
        self._last_k = outcome.num_drafted
        if self._plain_left:
            self._plain_left -= 1
        elif self._rounds >= 3 and outcome.num_drafted:
            rates = self._rates()
            if max(rates) > rates[0]:
                self._pause = self.SHORTEST_PAUSE
            else:
                self._plain_left, self._pause = self._pause, min(2 * self._pause, self.LONGEST_PAUSE)

    def _rates(self) -> Sequence[float]:
        """Expected tokens a second for each K."""
        expected = self._acceptance.tokens_per_round()
        return [expected[k] / self._costs.round_s(k) for k in range(self._largest + 1)]


RULES: dict[str, Callable[[], DraftLength]] = {"auto": Auto, "heuristic": Heuristic}


def draft_length(k: int | str) -> DraftLength:
    """The rule that a value of --k names: a number, "auto" or "heuristic"."""
    return Fixed(k) if isinstance(k, int) else RULES[k]()
