"""Drafts of a head that goes on with its own states: exact as chain and as tree, whatever the head says."""

from __future__ import annotations

from collections.abc import Sequence

import laws
import pytest
import torch
from torch import Tensor

from specdec_cli.decoding.model import Tap
from specdec_cli.drafters.base import Context, Drafter, States
from specdec_cli.drafters.composition import Composition
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.recurrent_head import RecurrentHeadDrafter
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness

SAMPLINGS = {
    "T .7": SamplingSettings(temperature=0.7),
    "T 1": SamplingSettings(temperature=1.0),
    "T 1.3": SamplingSettings(temperature=1.3),
    "top-k": SamplingSettings(temperature=1.0, top_k=3),
    "top-p": SamplingSettings(temperature=1.3, top_p=0.8),
    "penalty": SamplingSettings(temperature=1.0, repetition_penalty=1.4),
}
VOCAB_SIZE = 5


class BagHead:
    """A recurrent head in a few lines: every pair in its cache, and their order, changes what it says by whole units.

    It has no word for the last id.
    """

    taps = (Tap(1),)
    drafts_by = "recurrent-head"
    device = torch.device("cpu")

    def __init__(self, seed: int = 0, trust: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._of_token, self._of_state = torch.randn(2, VOCAB_SIZE, VOCAB_SIZE, generator=generator)
        self._trust = trust  # how much of the state, which is the target's logits, is said again
        self.pairs: list[tuple[Tensor, int]] = []

    @property
    def length(self) -> int:
        return len(self.pairs)

    def reset(self) -> None:
        self.pairs = []

    def read(self, states: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        assert len(states) == len(token_ids) > 0
        self.pairs += zip(states, token_ids.tolist(), strict=True)
        return self._row(self.pairs)

    def step(self, hidden: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.read(hidden, token_ids)

    def step_tree(self, hidden: Tensor, token_ids: Tensor, seen: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        assert (seen.sum(-1) == depth + 1).all(), "a token sees its ancestors and itself"
        context = self.pairs[: len(self.pairs) - (seen.shape[1] - len(token_ids))]
        self.pairs += zip(hidden, token_ids.tolist(), strict=True)
        entries = self.pairs[len(context) :]
        rows = [self._row([*context, *(e for e, s in zip(entries, row, strict=True) if s)]) for row in seen.tolist()]
        logits, states = zip(*rows, strict=True)
        return torch.cat(logits), torch.cat(states)

    def roll_back(self, num_pairs: int) -> None:
        assert 0 <= num_pairs <= len(self.pairs)
        del self.pairs[len(self.pairs) - num_pairs :]

    def _row(self, pairs: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        sums = torch.zeros(VOCAB_SIZE)
        for state, token in pairs:
            sums = 0.6 * sums + self._of_token[token] + 0.3 * self._of_state @ state.clamp(-3, 3)
        logits = (sums + self._trust * pairs[-1][0]).clone()
        logits[-1] = -torch.inf
        return logits[None], sums.tanh()[None]


def drafter(sampling: SamplingSettings, tree: int = 0, **more: float) -> RecurrentHeadDrafter:
    return RecurrentHeadDrafter(BagHead(trust=0.7), sampling, tree_nodes=tree, **more)


@pytest.mark.parametrize("tree", [0, 5], ids=["chain", "tree"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_tokens_are_distributed_as_the_target_s(sampling: SamplingSettings, tree: int) -> None:
    """The first three tokens, over the real loop, against the target's own distribution by enumeration."""
    target = laws.BagModel(VOCAB_SIZE, seed=3)
    observed = laws.sampled_triples(target, drafter(sampling, tree), laws.PROMPT, sampling, 2, 700)
    expected = laws.exact_triples(target, laws.PROMPT, sampling)
    assert laws.chi_square_p(observed, expected) > laws.SIGNIFICANCE


def test_the_test_would_see_distributions_that_were_not_sampled_from() -> None:
    class Wrong(RecurrentHeadDrafter):
        def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> object:  # type: ignore[override]
            draft = super().propose(context, num_draft_tokens, generator)
            assert draft.probs is not None or not len(draft.token_ids)
            return draft if draft.probs is None else type(draft)(draft.probs.argmax(-1), draft.probs)

    sampling, target = SAMPLINGS["T 1"], laws.BagModel(VOCAB_SIZE, seed=3)
    wrong: Drafter = Wrong(BagHead(trust=0.7), sampling)  # type: ignore[assignment]
    observed = laws.sampled_triples(target, wrong, laws.PROMPT, sampling, 2, 700)
    assert laws.chi_square_p(observed, laws.exact_triples(target, laws.PROMPT, sampling)) < laws.SIGNIFICANCE


@pytest.mark.parametrize("prompt", [laws.PROMPT, (2,), (1, 4)], ids=["five", "one", "two"])
@pytest.mark.parametrize("tree", [0, 1, 7, 40])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_greedy_text_is_plain_decoding_s(k: int, tree: int, prompt: tuple[int, ...]) -> None:
    plain = laws.BagModel(VOCAB_SIZE, seed=5)
    expected = list(prompt)
    for _ in range(40):
        expected.append(int(plain.logits(expected).argmax()))
    for trust in (0.0, 50.0):
        made = RecurrentHeadDrafter(BagHead(trust=trust), laws.GREEDY, tree_nodes=tree)
        found, steps = laws.generate(laws.BagModel(VOCAB_SIZE, seed=5), made, k=k, prompt=prompt)
        assert found == expected[len(prompt) :]
        assert any(step.num_accepted for step in steps)
        if not tree:
            assert any(step.num_accepted < len(step.draft_token_ids) for step in steps)


@pytest.mark.parametrize("tree", [0, 7], ids=["chain", "tree"])
@pytest.mark.parametrize("first", [False, True], ids=["alone", "behind ngram"])
def test_between_rounds_the_head_holds_the_target_s_states_and_nothing_else(tree: int, first: bool) -> None:
    """After every round its pairs are those of a head that reads the text afresh."""
    target, head = laws.BagModel(VOCAB_SIZE, seed=5), BagHead()
    made: Drafter = RecurrentHeadDrafter(head, laws.GREEDY, tree_nodes=tree)
    if first:
        made = Composition([("ngram", NgramDrafter(3, 3, torch.device("cpu"))), ("head", made)])
    seen = 0
    whole = made.observe

    def observe(num_accepted: int, predictions: Sequence[int] = ()) -> None:
        nonlocal seen
        whole(num_accepted, predictions)
        texts.append((head.length, list(head.pairs)))
        seen += 1

    texts: list[tuple[int, list[tuple[Tensor, int]]]] = []
    made.observe = observe  # type: ignore[method-assign]
    found, _ = laws.generate(target, made, k=4)
    ids = [*laws.PROMPT, *found]
    assert seen > 5
    for length, pairs in texts:
        for i, (state, token) in enumerate(pairs):
            assert token == ids[i + 1]
            torch.testing.assert_close(state, target.logits(ids[: i + 1]))
        assert length == len(pairs)
    assert texts[-1][0] > texts[0][0]


def test_a_tree_holds_the_likeliest_tokens_and_their_parents() -> None:
    """Against all paths, by enumeration: the best by the product of the head's own probabilities."""
    head, states = BagHead(), States()
    made = RecurrentHeadDrafter(head, laws.GREEDY, tree_nodes=9)
    ids = [3, 1, 2]
    states.add(torch.randn(2, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)))
    made.reset(Context(ids, states=states))
    before = list(head.pairs)
    draft = made.propose(Context(ids, states=states), 3, torch.Generator())
    assert draft.parents is not None
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))

    head.pairs = list(before)
    rows = made._pending if made._pending is not None else draft  # the prompt's last pair was read by the draft
    assert rows is draft
    scores: dict[tuple[int, ...], float] = {}
    last = head.length

    def walk(path: tuple[int, ...], score: float, logits: Tensor, hidden: Tensor) -> None:
        for token, value in enumerate(logits[0].log_softmax(-1).tolist()):
            if value == -float("inf"):
                continue
            scores[*path, token] = score + value
            if len(path) < 2:
                here = head.length
                walk((*path, token), score + value, *head.step(hidden, torch.tensor([token])))
                head.roll_back(head.length - here)

    again = States()
    again.add(torch.randn(2, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)))
    rows_again = again.take()
    assert rows_again is not None
    walk((), 0.0, *head.read(rows_again[last:], torch.tensor(ids[last + 1 :])))
    best = sorted(scores, key=lambda path: -scores[path])[:9]
    assert sorted(paths) == sorted(best)


def test_a_chain_ends_behind_a_token_that_the_head_doubts() -> None:
    states = States()
    states.add(torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)))
    made = drafter(laws.GREEDY, draft_stop=0.99)
    context = Context([1, 2, 3, 4], states=states)
    made.reset(context)
    assert len(made.propose(context, 5, torch.Generator()).token_ids) == 1


def test_a_head_without_states_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nothing taps"):
        drafter(laws.GREEDY).reset(Context([1, 2]))
