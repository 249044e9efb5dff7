"""Prompt lookup: what followed the last tokens when they last stood in the text is likely to follow them again.

Good where an answer quotes its prompt (summaries, edits, code), and free where it does not: no match, no draft. The
text is indexed as it is committed, once a token, so a round costs the same at any length of context. The idea is that
of Saxena, "Prompt Lookup Decoding" (2023); the guesses are deterministic, a one-hot distribution.

Where a match occurs several times, the copy goes on: an answer that quotes works through its source in order, so the
first occurrence behind the last copy is the likely one. Otherwise it is the most recent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import torch

from specdec_cli.drafters.base import Context, Draft, DrafterParts


class NgramDrafter:
    """Proposes what followed the longest match of the last n tokens; of its occurrences, the one where a copy goes on.

    Args:
        longest, shortest: the range of n, tried from the longest down.
        device: where drafts are made.
    """

    def __init__(self, longest: int, shortest: int, device: torch.device) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"n-grams are 1 token or more, the shortest no longer than the longest: {shortest, longest}"
            )
        self.device = device
        self._lengths = range(longest, shortest - 1, -1)
        self.reset(Context(()))

    def reset(self, context: Context) -> None:
        """Forget the text before, and index the prompt."""
        self._follows: dict[tuple[int, ...], list[int]] = {}  # an n-gram -> the places behind its occurrences, in order
        self._indexed = 0  # tokens of the text that are places in the index
        self._lag: int | None = None  # how far behind the text's end the last copy began
        self._index(context.token_ids)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Copy what followed; where that runs into the end of the text, go on with what was copied."""
        ids = context.token_ids
        self._index(ids)
        place = self._match(ids) if num_draft_tokens else None
        copied: list[int] = []
        if place is not None:
            self._lag = len(ids) - place
        while place is not None and len(copied) < num_draft_tokens:
            # Like an overlapping copy of LZ77: behind "a b a b" follows "a b a b ...", not just "a b".
            copied.append(ids[place] if place < len(ids) else copied[place - len(ids)])
            place += 1
        return Draft(torch.tensor(copied, dtype=torch.long, device=self.device))

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        """Nothing to forget: only what is committed was indexed."""

    def _index(self, ids: Sequence[int]) -> None:
        for place in range(self._indexed, len(ids)):
            for n in self._lengths:
                if n <= place:
                    self._follows.setdefault(tuple(ids[place - n : place]), []).append(place)
        self._indexed = len(ids)

    def _match(self, ids: Sequence[int]) -> int | None:
        for n in self._lengths:
            if places := self._follows.get(tuple(ids[-n:])):
                at = len(places) if self._lag is None else bisect_left(places, len(ids) - self._lag)
                return places[min(at, len(places) - 1)]
        return None


def make(options: Mapping[str, int], parts: DrafterParts) -> NgramDrafter:
    """`--draft ngram`."""
    return NgramDrafter(options["max"], options["min"], parts.device)
