"""Tools that tests of distributions share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch
from scipy.stats import chisquare
from torch import Tensor

# Seeds are fixed, so a test passes or fails for good; a right sampler fails one in ten thousand choices of seed.
SIGNIFICANCE = 1e-4


def chi_square_p(observed: Sequence[Hashable], expected: Mapping[Hashable, float]) -> float:
    """p-value of the observations under the expected probabilities; cells expecting fewer than 5 are merged.

    An observation that has no cell counts against the merged rest, whose probability is what the cells leave.
    """
    total = len(observed)
    counts = Counter(observed)
    large = [cell for cell, p in expected.items() if p * total >= 5]
    seen = [counts[cell] for cell in large]
    wanted = [expected[cell] * total for cell in large]
    rest_wanted = total - sum(wanted)
    if rest_wanted < 5:  # too little for a cell of its own: join it with the smallest
        smallest = int(np.argmin(wanted))
        seen[smallest] += total - sum(seen)
        wanted[smallest] += rest_wanted
    else:
        seen.append(total - sum(seen))
        wanted.append(rest_wanted)
    assert len(seen) >= 3, "too few cells to test anything"
    return float(chisquare(seen, np.array(wanted) * (total / sum(wanted))).pvalue)


class BagModel:
    """A causal model in a few lines: logits depend on every token that is in the cache, and on their order.

    A stale or a missing cache entry changes them by whole units, so that a fault in the loop's bookkeeping shows in
    the distribution. It costs microseconds, which lets tests draw tens of thousands of samples through the real loop.
    """

    device = torch.device("cpu")

    def __init__(self, vocab_size: int, seed: int, max_length: int = 64, spread: float = 1.5) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size = vocab_size
        self.max_length = max_length
        self._weights = torch.randn(vocab_size, vocab_size, generator=generator) * spread
        self._ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self._ids)

    def reset(self) -> None:
        self._ids = []

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        self._ids += token_ids.tolist()
        assert len(self._ids) <= self.max_length, "the loop ran past the context"
        ends = range(len(self._ids) - num_logits + 1, len(self._ids) + 1)
        return torch.stack([self.logits(self._ids[:end]) for end in ends])

    def roll_back(self, num_tokens: int) -> None:
        assert 0 <= num_tokens <= len(self._ids)
        del self._ids[len(self._ids) - num_tokens :]

    def logits(self, ids: Sequence[int]) -> Tensor:
        """[vocab_size], the recent tokens weighing more than the old."""
        decay = 0.6 ** torch.arange(len(ids) - 1, -1, -1, dtype=torch.float32)
        return decay @ self._weights[list(ids)]
