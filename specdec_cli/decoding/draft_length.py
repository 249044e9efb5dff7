"""How many tokens to draft in the next round: K, fixed or following what is measured.

K may depend on anything that was decided before the round and on the drafts themselves, never on whether they will be
accepted; so every rule here keeps the output exact.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from statistics import median_low
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
        source: of the draft, where there are several.
        learning: the source learns from rounds that it drafts in, from no others, and by what it reads for that a round
            costs the same whatever K.
    """

    num_drafted: int
    num_accepted: int
    draft_s: float
    verify_s: float
    other_s: float
    whole: bool = True
    source: str = ""
    learning: bool = False


class DraftLength(Protocol):
    """A rule for K."""

    def begin(self) -> None:
        """Another text begins."""
        ...

    def next(self) -> int:
        """Tokens to draft in the next round at most; 0 for a plain step."""
        ...

    def limit(self, source: str) -> int:
        """Of what `next` gave for this round, the tokens that one of several sources may draft; 0 to pass it over."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn from the round that has ended."""
        ...


@dataclass
class Fixed:
    """The same K in every round."""

    num_draft_tokens: int

    def begin(self) -> None:
        """K stays."""

    def next(self) -> int:
        """K."""
        return self.num_draft_tokens

    def limit(self, source: str) -> int:
        """K, whoever drafts."""
        return self.num_draft_tokens

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


@dataclass
class Heuristic:
    """transformers' rule (`num_assistant_tokens_schedule="heuristic"`): two more after a full accept, else one less."""

    num_draft_tokens: int = FIRST

    def begin(self) -> None:
        """K stays as the last text left it."""

    def next(self) -> int:
        """K as it stands."""
        return self.num_draft_tokens

    def limit(self, source: str) -> int:
        """The same, whoever drafts."""
        return self.num_draft_tokens

    def observe(self, outcome: Outcome) -> None:
        """Follow the round."""
        if outcome.num_drafted == 0 or not outcome.whole:
            return
        full = outcome.num_accepted == outcome.num_drafted
        self.num_draft_tokens = self.num_draft_tokens + 2 if full else max(1, self.num_draft_tokens - 1)


class Acceptance:
    """Running estimates, by position, of what becomes of the tokens that are asked for.

    A position is *offered* where the draft is that long (prompt lookup may have nothing to say, a chain may end early),
    and accepted with a probability of its own, given that those before it were. Old rounds fade, since easy and hard
    passages take turns. A position that was seldom judged leans on the rate over all positions, one that was seldom
    asked for on being offered.
    """

    PRIOR_RATE = 0.7
    PRIOR_WEIGHT = 2.0
    FADING = 0.98

    def __init__(self) -> None:
        self._asked, self._offered, self._judged, self._accepted = ([0.0] * LARGEST for _ in range(4))

    @property
    def known(self) -> bool:
        """Whether any drafted token was ever judged."""
        return any(self._judged)

    def observe(self, asked: int, drafted: int, accepted: int) -> None:
        """Count a round."""
        self.fade(self.FADING)
        for i in range(min(drafted + 1, asked, LARGEST)):
            self._asked[i] += 1
            self._offered[i] += i < drafted
        for i in range(min(accepted + 1, drafted, LARGEST)):
            self._judged[i] += 1
            self._accepted[i] += i < accepted

    def fade(self, kept: float) -> None:
        """Let all that was seen weigh less."""
        for counts in (self._asked, self._offered, self._judged, self._accepted):
            counts[:] = [count * kept for count in counts]

    def rates(self) -> list[float]:
        """The probability that a drafted token is accepted, by position."""
        overall = _leaning(sum(self._accepted), sum(self._judged), self.PRIOR_RATE, self.PRIOR_WEIGHT)
        counts = zip(self._accepted, self._judged, strict=True)
        return [_leaning(accepted, judged, overall, self.PRIOR_WEIGHT) for accepted, judged in counts]

    def offers(self) -> list[float]:
        """The probability that a draft is at least so long, for 0, 1, ..., LARGEST tokens."""
        reached = [1.0]
        for offered, asked in zip(self._offered, self._asked, strict=True):
            reached.append(reached[-1] * _leaning(offered, asked, 1.0, self.PRIOR_WEIGHT))
        return reached

    def tokens_per_round(self) -> list[float]:
        """Expected tokens a round for K = 0, 1, ..., LARGEST."""
        expected, kept = [1.0], 1.0
        for rate, reached in zip(self.rates(), self.offers()[1:], strict=True):
            kept *= rate
            expected.append(expected[-1] + reached * kept)
        return expected


def _leaning(count: float, total: float, rate: float, weight: float) -> float:
    return (count + rate * weight) / (total + weight)


class Costs:
    """Seconds of a draft step, and of everything else in a round for each length of draft, as measured lately.

    The cost of the pass over K + 1 tokens is not smooth (kernels change at some sizes), so each K has its own figure.
    One that was never tried is taken for as cheap as the next smaller one that was: what looks good on these terms gets
    tried, and then it is known. And none is taken for dearer than a larger one: then its own figures were disturbed.

    A source that learns has a single figure for every K: what of its tree is judged says nothing about the width of the
    pass.
    """

    KEPT = 5  # latest figures of each kind; their median does not mind one that was disturbed
    TRUSTED = 3  # so many cannot all have been

    def __init__(self) -> None:
        self._draft_step = _Figures(4 * self.KEPT)
        self._plain = _Figures(self.KEPT)
        self._rest: dict[int, _Figures] = {}

    def observe(self, outcome: Outcome, draft_was_current: bool) -> None:
        """Learn from a round; a draft that had to catch up on a pause first says little about a draft step."""
        k, draft_s = outcome.num_drafted, outcome.draft_s
        rest_s = outcome.verify_s + outcome.other_s
        if outcome.learning:
            k, rest_s, draft_s = 1, draft_s + rest_s, 0.0
        if not k:
            self._plain.add(rest_s)
            return
        self._rest.setdefault(k, _Figures(self.KEPT)).add(rest_s)
        if draft_was_current or not self._draft_step.number:
            self._draft_step.add(draft_s / k)

    @property
    def plain_rounds(self) -> int:
        """How many figures there are of rounds that drafted nothing."""
        return self._plain.number

    @property
    def known(self) -> bool:
        """Whether plain steps and rounds that drafted were seen."""
        return self.plain_rounds > 0 and bool(self._rest)

    def rounds_s(self, largest: int, doubtful: bool = False) -> list[float]:
        """Seconds of a round that drafts 0, 1, ..., `largest` tokens; plain steps, at least, must have been seen.

        Args:
            doubtful: leave out, for each length, its own figures where they are too few to be trusted.
        """
        figures = {0: self._plain, **self._rest}
        above, least = {}, math.inf  # of all larger lengths
        for k in sorted(figures, reverse=True):
            above[k], least = least, min(least, figures[k].median)
        seconds, below, rest_s = [], math.inf, math.inf
        for k in range(largest + 1):
            told = rest_s
            if (own := figures.get(k)) is not None:
                rest_s = min(own.median, above[k])
                doubted = doubtful and k and own.number < self.TRUSTED
                told, below = min(below, above[k]) if doubted else rest_s, own.median
            seconds.append(k * self._draft_step.median + told)
        return seconds


class _Figures:
    """The latest few, and their median."""

    def __init__(self, kept: int) -> None:
        self._latest: deque[float] = deque(maxlen=kept)
        self.median = 0.0

    @property
    def number(self) -> int:
        return len(self._latest)

    def add(self, value: float) -> None:
        self._latest.append(value)
        self.median = median_low(self._latest)


class OneSource:
    """The K with the most expected tokens a second, by the extended form on running estimates of one source.

    Begins with a plain step and a round of FIRST, then takes the best K each round. Where plain steps are best,
    drafting is off; it is probed again after some rounds, and after twice as many each time that it still does not pay.
    From time to time another K gets a chance, in case its figures were disturbed.

    Rounds in which a source has nothing to say are part of the reckoning: the rarer its guesses, the less a long draft
    costs on the whole. A source that learns only by drafting is not known by its first rounds: it drafts on at a loss,
    up to what LOAN allows, and what it gains is paid back.

    Args:
        largest: K at most.
    """

    SHORTEST_PAUSE, LONGEST_PAUSE = 8, 128
    PAUSE_A_STEP = 40  # rounds at least, for each plain step's time that a probe costs
    LOAN = 4.0  # plain steps
    SECOND_LOOK = 24  # rounds
    NEW_TEXT = 0.5  # what the texts before weigh, beside what is seen from now on

    def __init__(self, largest: int = LARGEST) -> None:
        self._largest = min(largest, LARGEST)
        self._acceptance = Acceptance()
        self._costs = Costs()
        self._rounds = 0
        self._pause = self._shortest_pause = self.SHORTEST_PAUSE
        self._plain_left = 0
        self._lent = 0.0
        self._asked = 0
        self._was_off = False

    def begin(self) -> None:
        """Another text may be another matter: look again soon whether drafting pays."""
        self._plain_left = min(self._plain_left, self._shortest_pause)
        self._lent *= self.NEW_TEXT
        self._acceptance.fade(self.NEW_TEXT)

    def next(self) -> int:
        """The best K as far as is known."""
        self._asked = self._chosen()
        return self._asked

    def observe(self, outcome: Outcome) -> None:
        """Learn from the round, and decide whether drafting goes on."""
        self._rounds += 1
        if outcome.whole:
            self._costs.observe(outcome, draft_was_current=not self._was_off)
            self._acceptance.observe(self._asked, outcome.num_drafted, outcome.num_accepted)
        self._was_off = self._asked == 0
        if self._plain_left:
            self._plain_left -= 1
        elif outcome.num_drafted and self._costs.known:
            self._judge(outcome)

    def stand_by(self) -> None:
        """A round in which another source drafted."""
        self._rounds += 1
        self._was_off = True
        self._plain_left = max(0, self._plain_left - 1)

    def _judge(self, outcome: Outcome) -> None:
        """Stop drafting for a while where that does not pay."""
        k = outcome.num_drafted
        seconds = self._costs.rounds_s(k)
        extra = seconds[k] / seconds[0] - 1
        if outcome.learning:
            self._lent = min(max(0.0, self._lent + extra - outcome.num_accepted), self.LOAN)
        speeds = self._speeds()
        if max(speeds) > speeds[0]:
            self._pause = self.SHORTEST_PAUSE
        elif not outcome.learning or self._lent + extra > self.LOAN:
            self._shortest_pause = max(self.SHORTEST_PAUSE, round(self.PAUSE_A_STEP * extra))
            self._plain_left = max(self._pause, self._shortest_pause)
            self._pause = min(2 * self._pause, self.LONGEST_PAUSE)

    def _chosen(self) -> int:
        if self._plain_left or not self._costs.plain_rounds:
            return 0
        if not self._acceptance.known:
            return min(FIRST, self._largest)
        speeds = self._speeds()
        best = max(range(len(speeds)), key=speeds.__getitem__)
        if best and self._rounds % self.SECOND_LOOK == 0:
            if self._costs.plain_rounds < self._costs.TRUSTED:
                return 0
            speeds = self._speeds(doubtful=True)
        elif best:
            return best
        # A second look, or the pause is over: one probe.
        return max((k for k in range(1, len(speeds)) if k != best), key=speeds.__getitem__, default=best)

    def _speeds(self, doubtful: bool = False) -> list[float]:
        """Expected tokens a second for each K; see `Costs.rounds_s`."""
        round_s = self._costs.rounds_s(self._largest, doubtful)
        spent, offers = round_s[0], self._acceptance.offers()
        speeds = [1 / spent]
        for k, expected in enumerate(self._acceptance.tokens_per_round()[1 : len(round_s)], start=1):
            spent += offers[k] * (round_s[k] - round_s[k - 1])  # drafts that were shorter anyway cost nothing more
            speeds.append(expected / spent)
        return speeds


class Auto:
    """The best K by `OneSource`, for each of several sources its own: a poor one does not silence a good one.

    Args:
        largest: K at most.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self._alone = OneSource(largest)
        self._sources: dict[str, OneSource] = {}  # as soon as one of several has asked for its limit
        self._limits: dict[str, int] = {}

    def begin(self) -> None:
        """Another text."""
        for rule in (self._alone, *self._sources.values()):
            rule.begin()

    def next(self) -> int:
        """The best K as far as is known; of several sources, the largest."""
        self._limits = {name: rule.next() for name, rule in self._sources.items()}
        return max(self._limits.values()) if self._limits else self._alone.next()

    def limit(self, source: str) -> int:
        """The best K of that source."""
        if source not in self._sources:
            rule = self._sources[source] = deepcopy(self._alone)  # which knows plain steps, at most
            self._limits[source] = rule.next()
        return self._limits[source]

    def observe(self, outcome: Outcome) -> None:
        """Tell those whom the round concerns: all, where nothing was drafted."""
        if not self._sources:
            self._alone.observe(outcome)
        for name, rule in self._sources.items():
            if outcome.num_drafted and outcome.source != name:
                rule.stand_by()
            else:
                rule.observe(outcome)


RULES: dict[str, Callable[[], DraftLength]] = {"auto": Auto, "heuristic": Heuristic}


def draft_length(k: int | str) -> DraftLength:
    """The rule that a value of --k names: a number, "auto" or "heuristic"."""
    return Fixed(k) if isinstance(k, int) else RULES[k]()
