"""Tools that tests of the loop and of distributions share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch
from scipy.stats import chisquare
from torch import Tensor

from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.model import CachedModel, Tap
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Context, Draft, Drafter
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.settings import SamplingSettings

# Seeds are fixed, so a test passes or fails for good; a right sampler fails one in ten thousand choices of seed.
SIGNIFICANCE = 1e-4
GREEDY = SamplingSettings(temperature=0.0)
PROMPT = (3, 1, 2, 1, 3)  # something to look up from the first round on


def generate(
    target: CachedModel,
    drafter: Drafter,
    *,
    k: int = 4,
    sampling: SamplingSettings = GREEDY,
    prompt: Sequence[int] = PROMPT,
    max_new_tokens: int = 40,
    end_ids: Sequence[int] = (),
    seed: int = 0,
    simulated_acceptance: float | None = None,
) -> tuple[list[int], list[Step]]:
    """Emitted ids and the rounds."""
    generation = Generation(
        target, drafter, prompt, num_draft_tokens=k, sampling=sampling, stopping=Stopping(max_new_tokens, end_ids),
        seed=seed, simulated_acceptance=simulated_acceptance,
    )  # fmt: skip
    steps = list(generation)
    return generation.token_ids, steps


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
    It reads trees too. Tapped, it gives the logits behind each token as that token's state.
    """

    device = torch.device("cpu")
    block_limit = 2**31

    def __init__(self, vocab_size: int, seed: int, max_length: int = 64, spread: float = 1.5) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size = vocab_size
        self.max_length = max_length
        self._weights = torch.randn(vocab_size, vocab_size, generator=generator) * spread
        self._ids: list[int] = []
        self._taps: tuple[Tap, ...] = ()
        self._states: list[Tensor] = []

    @property
    def length(self) -> int:
        return len(self._ids)

    def reset(self) -> None:
        self._ids = []

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        self._ids += token_ids.tolist()
        assert len(self._ids) <= self.max_length, "the loop ran past the context"
        if self._taps:
            ends = range(len(self._ids) - len(token_ids) + 1, len(self._ids) + 1)
            self._states += [self.logits(self._ids[:end]) for end in ends]
        ends = range(len(self._ids) - num_logits + 1, len(self._ids) + 1)
        return torch.stack([self.logits(self._ids[:end]) for end in ends])

    def tap(self, taps: Sequence[Tap]) -> None:
        self._taps = tuple(taps)
        self._states = []

    def take_states(self) -> Tensor:
        assert self._taps, "nothing was tapped"
        states, self._states = torch.stack(self._states), []
        return states

    def roll_back(self, num_tokens: int) -> None:
        assert 0 <= num_tokens <= len(self._ids)
        del self._ids[len(self._ids) - num_tokens :]

    def require_trees(self, asked_by: str) -> None:
        """It can."""

    def forward_tree(self, token_ids: Tensor, parents: Tensor) -> Tensor:
        ids, of = token_ids.tolist(), parents.tolist()
        paths = [[*self._ids, ids[0]]]
        for token, parent in zip(ids[1:], of, strict=True):
            paths.append([*paths[parent + 1], token])
        assert max(map(len, paths)) <= self.max_length, "a branch ran past the context"
        self._ids += ids
        logits = torch.stack([self.logits(path) for path in paths])
        if self._taps:
            self._states += [*logits]
        return logits

    def keep_path(self, num_tokens: int, path: Sequence[int]) -> None:
        block = self._ids[len(self._ids) - num_tokens :]
        self._ids[len(self._ids) - num_tokens :] = [block[place] for place in path]

    def logits(self, ids: Sequence[int]) -> Tensor:
        """[vocab_size], the recent tokens weighing more than the old."""
        decay = 0.6 ** torch.arange(len(ids) - 1, -1, -1, dtype=torch.float32)
        return decay @ self._weights[list(ids)]


def exact_triples(model: BagModel, prompt: Sequence[int], sampling: SamplingSettings) -> dict[tuple[int, ...], float]:
    """Probability of every first three tokens, by enumeration of the plain target."""

    def row(ids: list[int]) -> list[float]:
        return logits_to_probs(model.logits(ids)[None], sampling, torch.tensor([ids]))[0].tolist()

    exact = {}
    size = range(model.vocab_size)
    for a, p in enumerate(row([*prompt])):
        if not p:
            continue
        for b, q in enumerate(row([*prompt, a])):
            if q:
                last = row([*prompt, a, b])
                exact |= {(a, b, c): p * q * last[c] for c in size if last[c]}
    return exact


def sampled_triples(
    target: BagModel, drafter: Drafter, prompt: Sequence[int], sampling: SamplingSettings, k: int, number: int
) -> list[tuple[int, ...]]:
    """First three tokens of many generations, each with a seed of its own and room for whole blocks."""
    triples = []
    for seed in range(number):
        generation = Generation(
            target, drafter, prompt, num_draft_tokens=k, sampling=sampling, stopping=Stopping(16), seed=seed
        )
        for _ in generation:
            if len(generation.token_ids) >= 3:
                break
        triples.append(tuple(generation.token_ids[:3]))
    return triples


class Counting(BagModel):
    """Says the next number, whatever stands before the last."""

    def logits(self, ids: Sequence[int]) -> Tensor:
        return torch.eye(self.vocab_size)[(ids[-1] + 1) % self.vocab_size] * 50


class GreedyButClaimsOtherwise(DraftModel):
    """Symptom 6's mistake: drafts by argmax and reports the sampling distribution."""

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        draft = super().propose(context, num_draft_tokens, generator)
        assert draft.probs is not None
        return Draft(draft.probs.argmax(-1), draft.probs)
