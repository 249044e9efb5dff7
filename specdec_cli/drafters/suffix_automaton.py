"""How often every short piece of a growing text occurred, and what followed it most often. Needs no torch.

A suffix automaton (Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985) has a state for
each set of substrings that end at the same places of the text, at most two for each token, however long the text.
Links lead from a state to that of its longest shorter suffix. Here a state also counts those places. An appended token
adds one to the count of each of its suffixes; since that could be the whole text ("aaaa..."), pieces longer than
`depth` are not counted, and an append costs at most `depth` updates beside the automaton's own growth.
"""

from __future__ import annotations

from collections.abc import Sequence


class SuffixAutomaton:
    """The text so far.

    Args:
        depth: length of the longest piece that is counted.
    """

    def __init__(self, depth: int) -> None:
        if depth < 2:
            raise ValueError(f"the depth is 2 or above, got {depth}")
        self._depth = depth
        self.length = 0
        # One entry a state; state 0 is the empty piece, which is never counted.
        self._next: list[dict[int, int]] = [{}]
        self._link: list[int] = [-1]
        self._longest: list[int] = [0]  # length of the longest of a state's pieces
        self._count: list[int] = [0]
        self._best: list[int | None] = [None]  # the token that followed most often; of several, the last to do so
        self._whole = 0  # the state of the whole text
        self._place = (0, 0)  # state and length of the text's last `depth` tokens

    def append(self, token: int) -> None:
        """Add a token to the text's end."""
        self._grow(token)
        self.length += 1
        before, _ = settled = self._settle(*self._place)
        self._place = self._step(*settled, token)
        for state in self.suffixes(self._place[0]):
            self._count[state] += 1
        for state in self.suffixes(before):
            best, follower = self._best[state], self._next[state]
            if best is None or self._count[follower[token]] >= self._count[follower[best]]:
                self._best[state] = token

    def count(self, piece: Sequence[int]) -> int:
        """How often a piece of 1 to `depth` tokens occurred."""
        state = 0
        for token in piece:
            if token not in self._next[state]:
                return 0
            state = self._next[state][token]
        return self._count[state]

    def continuation(self, most_per_matched_token: int, most: int, least_probability: float) -> list[int]:
        """What is likely to follow the text, judged by what followed its longest suffix that occurred before.

        Args:
            most_per_matched_token: a match of n tokens is trusted for n times so many.
            most: tokens at most.
            least_probability: stop where the product of the shares, of each token among all that followed there,
                falls below it.
        """
        ends = set(self.suffixes(self._place[0]))  # they occur once more, at the end, where nothing follows
        state, length = self._known(*self._settle(*self._place))
        most = min(most, length * most_per_matched_token)
        tokens: list[int] = []
        probability = 1.0
        while len(tokens) < most and (token := self._best[state]) is not None and state:
            followed = self._count[state] - (state in ends)
            probability *= self._count[self._next[state][token]] / followed
            if probability < least_probability:
                break
            tokens.append(token)
            state, length = self._known(*self._step(state, length, token))
        return tokens

    def suffixes(self, state: int) -> list[int]:
        """The states of a piece and of its suffixes, the longest first, without the empty one."""
        found = []
        while state > 0:
            found.append(state)
            state = self._link[state]
        return found

    def _known(self, state: int, length: int) -> tuple[int, int]:
        """The longest suffix that something followed and that is short enough for its continuation to be counted."""
        state, length = self._settle(state, min(length, self._depth - 1))
        while state and self._best[state] is None:
            state = self._link[state]
            length = self._longest[state]
        return state, length

    def _step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """One token on, by at most `depth` tokens."""
        return self._settle(self._next[state][token], min(length + 1, self._depth))

    def _settle(self, state: int, length: int) -> tuple[int, int]:
        """The state of the last `length` tokens of one of a state's pieces."""
        while state and length <= self._longest[self._link[state]]:
            state = self._link[state]
        return state, length

    def _grow(self, token: int) -> None:
        """The automaton's own step."""
        state = self._whole
        self._whole = added = self._add(self._longest[state] + 1, {}, 0, None)
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = added
            state = self._link[state]
        if state < 0:
            self._link[added] = 0
            return
        found = self._next[state][token]
        if self._longest[found] == self._longest[state] + 1:
            self._link[added] = found
            return
        # Of the pieces in `found`, the shorter ones occur here too and the longer ones do not: they part.
        shorter = self._add(self._longest[state] + 1, dict(self._next[found]), self._count[found], self._best[found])
        self._link[shorter] = self._link[found]
        self._link[found] = self._link[added] = shorter
        while state >= 0 and self._next[state].get(token) == found:
            self._next[state][token] = shorter
            state = self._link[state]

    def _add(self, longest: int, followers: dict[int, int], count: int, best: int | None) -> int:
        self._next.append(followers)
        self._link.append(-1)
        self._longest.append(longest)
        self._count.append(count)
        self._best.append(best)
        return len(self._next) - 1
