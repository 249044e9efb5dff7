"""Drafts of heads that guess a block at once: exact as chain, as tree, and drawn in turn."""

from __future__ import annotations

import laws
import pytest
import torch
from torch import Tensor

from specdec_cli.decoding.model import Tap
from specdec_cli.drafters.base import Context, Drafter
from specdec_cli.drafters.block_head import BlockDrafter
from specdec_cli.drafters.composition import Composition
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness
VOCAB_SIZE = 5
SAMPLINGS = {
    "T .7": SamplingSettings(temperature=0.7),
    "T 1": SamplingSettings(temperature=1.0),
    "T 1.3": SamplingSettings(temperature=1.3),
    "top-k": SamplingSettings(temperature=1.0, top_k=3),
    "top-p": SamplingSettings(temperature=1.3, top_p=0.8),
    "penalty": SamplingSettings(temperature=1.0, repetition_penalty=1.4),
}


class Block:
    """Three slots on the sum of all states and tokens, and a table of what stood before."""

    taps = (Tap(1),)
    drafts_by = "block-head"
    device = torch.device("cpu")
    most = 3

    def __init__(self, conditions: bool = False, trust: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.conditions = conditions
        self._slots = torch.randn(3, VOCAB_SIZE, VOCAB_SIZE, generator=generator)
        self._of_token, self._before = torch.randn(2, VOCAB_SIZE, VOCAB_SIZE, generator=generator)
        self._trust = trust
        self.read_so_far: list[tuple[Tensor, int]] = []

    @property
    def length(self) -> int:
        return len(self.read_so_far)

    def reset(self) -> None:
        self.read_so_far = []

    def read(self, states: Tensor, token_ids: Tensor) -> None:
        assert len(states) == len(token_ids) > 0
        self.read_so_far += zip(states, token_ids.tolist(), strict=True)

    def guess(self, states: Tensor, token_ids: Tensor, number: int) -> Tensor:
        assert 1 <= number <= self.most
        self.read(states, token_ids)
        total = torch.zeros(VOCAB_SIZE)
        for state, token in self.read_so_far:
            total = 0.5 * total + 0.2 * state.clamp(-3, 3) + self._of_token[token]
        logits = self._slots[:number] @ total + self._trust * states[-1]
        logits[:, -1] = -torch.inf  # it has no word for the last id
        return logits

    def conditioned(self, logits: Tensor, slot: int, previous: Tensor) -> Tensor:
        return logits + 2 * self._before[previous]


@pytest.mark.parametrize("kind", ["chain", "tree", "in turn"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_tokens_are_distributed_as_the_target_s(sampling: SamplingSettings, kind: str) -> None:
    target = laws.BagModel(VOCAB_SIZE, seed=3)
    drafter = BlockDrafter(Block(kind == "in turn", trust=0.5), sampling, tree_nodes=6 * (kind == "tree"))
    observed = laws.sampled_triples(target, drafter, laws.PROMPT, sampling, 2, 700)
    assert laws.chi_square_p(observed, laws.exact_triples(target, laws.PROMPT, sampling)) > laws.SIGNIFICANCE


def test_the_test_would_see_blocks_that_were_not_drawn_in_turn() -> None:
    """The distributions that are handed over are those of another token before."""

    class Unconditioned(BlockDrafter):
        def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> object:  # type: ignore[override]
            draft = super().propose(context, num_draft_tokens, generator)
            return draft if draft.probs is None else type(draft)(draft.probs.argmax(-1), draft.probs)

    sampling, target = SAMPLINGS["T 1"], laws.BagModel(VOCAB_SIZE, seed=3)
    wrong: Drafter = Unconditioned(Block(True, trust=0.7), sampling)  # type: ignore[assignment]
    observed = laws.sampled_triples(target, wrong, laws.PROMPT, sampling, 2, 700)
    assert laws.chi_square_p(observed, laws.exact_triples(target, laws.PROMPT, sampling)) < laws.SIGNIFICANCE


@pytest.mark.parametrize("prompt", [laws.PROMPT, (2,)], ids=["five", "one"])
@pytest.mark.parametrize("kind", ["chain", "tree", "in turn"])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_text_is_plain_decoding_s(k: int, kind: str, prompt: tuple[int, ...]) -> None:
    plain = laws.BagModel(VOCAB_SIZE, seed=5)
    expected = list(prompt)
    for _ in range(40):
        expected.append(int(plain.logits(expected).argmax()))
    made = BlockDrafter(Block(kind == "in turn"), laws.GREEDY, tree_nodes=9 * (kind == "tree"))
    found, steps = laws.generate(laws.BagModel(VOCAB_SIZE, seed=5), made, k=k, prompt=prompt)
    assert found == expected[len(prompt) :]
    assert max(len(step.draft_token_ids) for step in steps) == min(k, 3), "no more than a block has"


@pytest.mark.parametrize("first", [False, True], ids=["alone", "behind ngram"])
def test_the_head_holds_the_states_of_what_was_committed_and_nothing_else(first: bool) -> None:
    head = Block()
    drafter: Drafter = BlockDrafter(head, laws.GREEDY)
    if first:
        drafter = Composition([("ngram", NgramDrafter(3, 3, torch.device("cpu"))), ("head", drafter)])
    target = laws.BagModel(VOCAB_SIZE, seed=5)
    found, _ = laws.generate(target, drafter, k=3)
    ids = [*laws.PROMPT, *found]
    assert 10 < head.length < len(ids)
    for i, (state, token) in enumerate(head.read_so_far):
        assert token == ids[i + 1]
        torch.testing.assert_close(state, target.logits(ids[: i + 1]))
