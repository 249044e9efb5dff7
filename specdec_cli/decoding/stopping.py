"""Where a generation ends: at an end token, at a stop string, or at a length.

A round emits several tokens, so every one of them is looked at, in order: text after an end token inside an accepted
block must never get out, and a stop string may begin in one round and end in another.

Stop strings are searched in the text as it is shown, and in the text with the names of its special tokens in it:
`<|eot|>\nuser` is found, although no special token is shown. A name is one piece: no stop string begins or ends inside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

FinishReason = Literal["eos", "stop", "length"]
Span = tuple[int, int]  # from, to


class Detokenizer(Protocol):
    """Turns ids into text as they come."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; empty inside a multi-byte character, and of a special token."""
        ...


class Admitted(NamedTuple):
    """What became of one round's tokens."""

    kept: int  # how many of them stay
    withdrawn: int  # how many tokens of earlier rounds go, since a stop string began there
    reason: FinishReason | None


class Stopping:
    """Watches one generation.

    Args:
        max_new_tokens: tokens to emit at most.
        end_ids: any of them ends the generation, and is kept.
        stop_strings: the first to appear ends the generation; it is cut off, with the tokens that hold any of it.
        detokenizer: needed for stop strings alone; fresh for this generation.
        special_tokens: names of the tokens that the detokenizer leaves out, which stop strings may hold.

    Attributes:
        text: what stands before the stop string, once one was found, without special tokens. It may end inside the
            first token that was cut off, so it can be longer than what the kept ids decode to.
    """

    def __init__(
        self,
        max_new_tokens: int,
        end_ids: Collection[int] = (),
        stop_strings: Sequence[str] = (),
        detokenizer: Detokenizer | None = None,
        special_tokens: Mapping[int, str] | None = None,
    ) -> None:
        if stop_strings and detokenizer is None:
            raise ValueError("stop strings need a detokenizer")
        self._max_new_tokens = max_new_tokens
        self._end_ids = frozenset(end_ids)
        self._stop_strings = tuple(stop_strings)
        self._longest = max(map(len, stop_strings), default=0)
        self._detokenizer = detokenizer
        self._special_tokens = special_tokens or {}
        self.text: str | None = None
        self._shown = ""  # the text without special tokens,
        self._text = ""  # and with their names,
        self._names: list[Span] = []  # which stand here
        self._text_ends: list[int] = []  # length of `_text` after each token

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self._max_new_tokens - len(self._text_ends)

    def admit(self, token_ids: Iterable[int]) -> Admitted:
        """Take a round's tokens one by one until something ends the generation."""
        before = len(self._text_ends)
        for kept, token_id in enumerate(token_ids, start=1):
            found = self._search(token_id)
            if found is not None:
                whole = self._tokens_before(found)
                self.text = self._without_names(found)
                return Admitted(max(0, whole - before), max(0, before - whole), "stop")
            self._text_ends.append(len(self._text))
            if token_id in self._end_ids:
                return Admitted(kept, 0, "eos")
            if self.remaining <= 0:
                return Admitted(kept, 0, "length")
        return Admitted(len(self._text_ends) - before, 0, None)

    @property
    def held_back(self) -> int:
        """Characters at the end of the text that is shown which may turn out to begin a stop string."""
        shown = safe_length(self._shown, self._stop_strings)
        named = self._without_names(safe_length(self._text, self._stop_strings, self._names))
        return len(self._shown) - min(shown, len(named))

    def _search(self, token_id: int) -> int | None:
        """Add a token's text; where in `_text` the stop string begins that is complete now."""
        if self._detokenizer is None or not self._stop_strings:
            return None
        # Nothing older than the longest stop string can be part of a new match.
        start, shown_start = (max(0, len(text) - self._longest) for text in (self._text, self._shown))
        ends = token_id in self._end_ids
        if not ends:
            piece = self._detokenizer.push(token_id)
            self._text += piece
            self._shown += piece
        name_starts = len(self._text)
        if token_id in self._special_tokens:
            self._text += self._special_tokens[token_id]
            self._names.append((name_starts, len(self._text)))
        found = find_stop(self._text, self._stop_strings, start, self._names)
        if ends and found == name_starts:  # its own name; but a stop string may end with it
            found = None
        if self._names and found is None:  # else both texts are the same
            shown = find_stop(self._shown, self._stop_strings, shown_start)
            found = None if shown is None else self._with_names(shown)
        return found

    def _without_names(self, end: int) -> str:
        """The text up to there as it is shown."""
        return self._shown[: end - sum(behind - begin for begin, behind in self._names if behind <= end)]

    def _with_names(self, place: int) -> int:
        """Where in the text a place of what is shown lies; behind the names that stand there."""
        for begin, behind in self._names:
            if begin <= place:
                place += behind - begin
        return place

    def _tokens_before(self, place: int) -> int:
        """How many tokens hold nothing of the text from `place` on."""
        ends = self._text_ends
        whole = sum(end <= place for end in ends)
        # A token that added no text may be the first byte of the character at `place`.
        while whole and ends[whole - 1] == (ends[whole - 2] if whole > 1 else 0):
            whole -= 1
        return whole


def find_stop(text: str, stop_strings: Sequence[str], start: int = 0, names: Sequence[Span] = ()) -> int | None:
    """Where the first stop string begins in `text`, or None.

    Args:
        start: search from here.
        names: pieces of the text that no stop string may begin or end in.
    """
    places = (_find(text, stop, start, names) for stop in stop_strings)
    return min((place for place in places if place is not None), default=None)


def _find(text: str, stop: str, start: int, names: Sequence[Span]) -> int | None:
    while (place := text.find(stop, start)) >= 0:
        if not _inside(place, names) and not _inside(place + len(stop), names):
            return place
        start = place + 1
    return None


def _inside(place: int, names: Sequence[Span]) -> bool:
    return any(begin < place < end for begin, end in names)


def safe_length(text: str, stop_strings: Sequence[str], names: Sequence[Span] = ()) -> int:
    """How much of `text` can be shown while its end might be the beginning of a stop string; `names` as above."""
    longest = max(map(len, stop_strings), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(stop.startswith(text[start:]) for stop in stop_strings) and not _inside(start, names):
            return start
    return len(text)
