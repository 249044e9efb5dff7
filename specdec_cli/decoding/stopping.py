"""Where a generation ends: at an end token, at a stop string, or at a length.

A round emits several tokens, so every one of them is looked at, in order: text after an end token inside an accepted
block must never get out, and a stop string may begin in one round and end in another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

FinishReason = Literal["eos", "stop", "length"]


class Detokenizer(Protocol):
    """Turns ids into text as they come."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; empty inside a multi-byte character."""
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

    Attributes:
        text: what stands before the stop string, once one was found. It may end inside the first token that was
            cut off, so it can be longer than what the kept ids decode to.
    """

    def __init__(
        self,
        max_new_tokens: int,
        end_ids: Collection[int] = (),
        stop_strings: Sequence[str] = (),
        detokenizer: Detokenizer | None = None,
    ) -> None:
        if stop_strings and detokenizer is None:
            raise ValueError("stop strings need a detokenizer")
        self._max_new_tokens = max_new_tokens
        self._end_ids = frozenset(end_ids)
        self._stop_strings = tuple(stop_strings)
        self._detokenizer = detokenizer
        self.text: str | None = None
        self._text = ""
        self._text_ends: list[int] = []  # length of the text after each token

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self._max_new_tokens - len(self._text_ends)

    def admit(self, token_ids: Iterable[int]) -> Admitted:
        """Take a round's tokens one by one until something ends the generation."""
        before = len(self._text_ends)
        for kept, token_id in enumerate(token_ids, start=1):
            if self._stop_strings and self._detokenizer is not None and token_id not in self._end_ids:
                # Nothing older than the longest stop string can be part of a new match.
                start = max(0, len(self._text) - max(map(len, self._stop_strings)))
                self._text += self._detokenizer.push(token_id)
                found = find_stop(self._text, self._stop_strings, start)
                if found is not None:
                    whole = self._tokens_before(found)
                    self.text = self._text[:found]
                    return Admitted(max(0, whole - before), max(0, before - whole), "stop")
            self._text_ends.append(len(self._text))
            if token_id in self._end_ids:
                return Admitted(kept, 0, "eos")
            if self.remaining <= 0:
                return Admitted(kept, 0, "length")
        return Admitted(len(self._text_ends) - before, 0, None)

    def _tokens_before(self, place: int) -> int:
        """How many tokens hold nothing of the text from `place` on."""
        ends = self._text_ends
        whole = sum(end <= place for end in ends)
        # A token that added no text may be the first byte of the character at `place`.
        while whole and ends[whole - 1] == (ends[whole - 2] if whole > 1 else 0):
            whole -= 1
        return whole


def find_stop(text: str, stop_strings: Sequence[str], start: int = 0) -> int | None:
    """Where the first stop string begins in `text`, or None."""
    places = [place for stop in stop_strings if (place := text.find(stop, start)) >= 0]
    return min(places, default=None)


def safe_length(text: str, stop_strings: Sequence[str]) -> int:
    """How much of `text` can be shown while its end might be the beginning of a stop string."""
    longest = max(map(len, stop_strings), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(stop.startswith(text[start:]) for stop in stop_strings):
            return start
    return len(text)
