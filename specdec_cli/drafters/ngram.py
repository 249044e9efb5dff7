"""Prompt lookup: what followed the last tokens when they last stood in the text is likely to follow them again.

Good where an answer quotes its prompt (summaries, edits, code), and free where it does not: no match, no draft. The
text is indexed as it is committed, once a token, so a round costs the same at any length of context. The idea is that
of Saxena, "Prompt Lookup Decoding" (2023); the guesses are deterministic, a one-hot distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from specdec_cli.drafters.base import Context, Draft, DrafterParts


class NgramDrafter:
    """Proposes what followed the longest match of the last n tokens, the most recent of its occurrences.

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
        self._follows: dict[tuple[int, ...], int] = {}  # an n-gram -> the place behind its last occurrence
        self._indexed = 0  # tokens of the text that are places in the index

    def reset(self, context: Context) -> None:
        """Forget the text before, and index the prompt."""
        self._follows = {}
        self._indexed = 0
        self._index(context.token_ids)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Copy what followed; where that runs into the end of the text, go on with what was copied."""
        ids = context.token_ids
        self._index(ids)
        place = self._match(ids)
        copied: list[int] = []
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
                    self._follows[tuple(ids[place - n : place])] = place
        self._indexed = len(ids)

    def _match(self, ids: Sequence[int]) -> int | None:
        places = (self._follows.get(tuple(ids[-n:])) for n in self._lengths)
        return next((place for place in places if place is not None), None)


def make(options: Mapping[str, int], parts: DrafterParts) -> NgramDrafter:
    """`--draft ngram`."""
    return NgramDrafter(options["max"], options["min"], parts.device)
