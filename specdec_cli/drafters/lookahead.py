"""The target guesses for itself: Jacobi iteration beside every verify pass (Fu et al., arXiv 2402.02057).

A window of guessed tokens lies ahead of the text, in columns one place apart, each column a trajectory: where it
starts, and what the target said would follow, pass after pass. The first tokens of the columns form a chain behind the
text, the rest of a column hangs behind its first. Each pass predicts one more token for every column; a column that is
full then gives an n-gram to a pool, and loses its first token, since the text has moved on by one. What the pool has
for the last committed token is read in the same pass.

All of it is one tree to the target: columns and n-grams that begin alike share tokens, and the window's tokens are
guesses like any others. So the pass is wide, up to window * (ngram - 1) + candidates * (ngram - 1) + 1 tokens, and that
is what this source costs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch

from specdec_cli.drafters.base import Context, Draft, DrafterParts
from specdec_cli.drafters.trie import Trie


class Lookahead:
    """Drafts trees, and learns from what the target predicts behind each of their tokens.

    Args:
        window: columns.
        ngram: tokens of an n-gram, the first of which is matched; at least 2.
        candidates: n-grams kept and tried for a first token, the latest first.
        max_length: tokens that the target has positions for.
        device: where drafts are made.
    """

    def __init__(self, window: int, ngram: int, candidates: int, max_length: int, device: torch.device) -> None:
        if window < 1 or ngram < 2 or candidates < 1:
            raise ValueError(f"a window of 1 or more, n-grams of 2, 1 candidate: {window, ngram, candidates}")
        self.device = device
        self._window = window
        self._ngram = ngram
        self._candidates = candidates
        self._max_length = max_length
        self.reset(Context(()))

    def reset(self, context: Context) -> None:
        """Forget pool and window."""
        self._pool: dict[int, list[tuple[int, ...]]] = {}  # first token -> the others, the latest first
        self._columns: list[list[int]] = []  # all of one length, below that of an n-gram
        self._start = 0  # place in the text that the first column's first token is a guess for
        self._ends: list[int] = []  # of each column, where its last token stands in the tree
        self._random = random.Random(0)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """N-grams that begin with the last token, cut to what is asked for, and the window behind them."""
        self._ends = []
        trie = Trie()
        if num_draft_tokens:
            ids = context.token_ids
            for candidate in self._pool.get(ids[-1], ()):
                _plant(trie, -1, candidate[:num_draft_tokens])
            self._move_window(ids)
            first = -1
            for column in self._columns:
                first = trie.add(first, column[0])
                self._ends.append(_plant(trie, first, column[1:]))
        if not trie.token_ids:
            return Draft(torch.empty(0, dtype=torch.long, device=self.device))
        token_ids, parents = torch.tensor([trie.token_ids, trie.parents], device=self.device)
        return Draft(token_ids, parents=parents, wants_predictions=True)

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        """Every column of the last draft goes on with what the target predicts behind it."""
        if not self._ends:
            return
        for column, end in zip(self._columns, self._ends, strict=True):
            column.append(predictions[end + 1])
        if len(self._columns[0]) == self._ngram:
            for column in self._columns:
                self._remember(column.pop(0), tuple(column))
            self._start += 1

    def _remember(self, first: int, others: tuple[int, ...]) -> None:
        known = [ngram for ngram in self._pool.get(first, ()) if ngram != others]
        self._pool[first] = [others, *known][: self._candidates]

    def _next(self, token_id: int, ids: Sequence[int]) -> int:
        """What the pool has behind a token, or any of the text's."""
        known = self._pool.get(token_id)
        return known[0][0] if known else self._random.choice(ids)

    def _move_window(self, ids: Sequence[int]) -> None:
        """Drop the columns that the text has passed, and add as many behind; fewer where the context ends."""
        room = self._max_length - len(ids)
        if room < self._ngram - 1:  # no whole column fits, so there is nothing more to learn
            self._columns = []
            return
        if not self._columns:
            self._columns, self._start = [[self._random.choice(ids)]], len(ids)
        # What lies behind the last column is its own continuation; only the last token of that is a new guess.
        columns = self._columns[len(ids) - self._start :] or self._columns[-1:]
        height = len(columns[0])
        wanted = self._window + self._ngram - 1 - height  # while columns grow, each pass costs one of them
        while len(columns) < wanted:
            columns.append([*columns[-1][1:], self._next(columns[-1][-1], ids)])
        self._columns, self._start = columns[: room - height + 1], len(ids)


def _plant(trie: Trie, at: int, token_ids: Sequence[int]) -> int:
    """Add a path behind a token; the place of its last."""
    for token_id in token_ids:
        at = trie.add(at, token_id)
    return at


def make(options: Mapping[str, int], parts: DrafterParts) -> Lookahead:
    """`--draft lookahead`."""
    parts.target.require_trees("--draft lookahead")
    return Lookahead(
        options["window"], options["ngram"], options["candidates"], parts.target.max_length, parts.target.device
    )
