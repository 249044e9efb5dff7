"""Drafts of heads that guess each place alone: exact as chain and as tree, and the tree is the best there is."""

from __future__ import annotations

from itertools import product

import laws
import pytest
import torch
from torch import Tensor

from specdec_cli.decoding.model import Tap
from specdec_cli.drafters.base import Context, States
from specdec_cli.drafters.best_first import best_first
from specdec_cli.drafters.medusa_head import MedusaDrafter
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


class Heads:
    """Three heads on the state, which is the target's logits."""

    taps = (Tap(1),)
    drafts_by = "medusa-head"
    device = torch.device("cpu")

    def __init__(self, seed: int = 0) -> None:
        self._matrices = torch.randn(3, VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))

    def guesses(self, state: Tensor) -> Tensor:
        assert state.shape == (1, VOCAB_SIZE)
        return self._matrices @ state[0].clamp(-3, 3)


@pytest.mark.parametrize("tree", [0, 6], ids=["chain", "tree"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_tokens_are_distributed_as_the_target_s(sampling: SamplingSettings, tree: int) -> None:
    target = laws.BagModel(VOCAB_SIZE, seed=3)
    drafter = MedusaDrafter(Heads(), tree_nodes=tree)
    observed = laws.sampled_triples(target, drafter, laws.PROMPT, sampling, 2, 700)
    assert laws.chi_square_p(observed, laws.exact_triples(target, laws.PROMPT, sampling)) > laws.SIGNIFICANCE


@pytest.mark.parametrize("prompt", [laws.PROMPT, (2,)], ids=["five", "one"])
@pytest.mark.parametrize("tree", [0, 1, 9, 60])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_text_is_plain_decoding_s(k: int, tree: int, prompt: tuple[int, ...]) -> None:
    plain = laws.BagModel(VOCAB_SIZE, seed=5)
    expected = list(prompt)
    for _ in range(40):
        expected.append(int(plain.logits(expected).argmax()))
    drafter = MedusaDrafter(Heads(), tree_nodes=tree)
    found, steps = laws.generate(laws.BagModel(VOCAB_SIZE, seed=5), drafter, k=k, prompt=prompt)
    assert found == expected[len(prompt) :]
    if tree != 1:
        assert max(len(step.draft_token_ids) for step in steps) == min(k, 3), "no more than there are heads"


def test_every_round_reads_the_last_cached_token_s_state() -> None:
    drafter = MedusaDrafter(Heads())
    states = States()
    states.add(torch.eye(VOCAB_SIZE)[:3])
    drafter.reset(Context((1, 2, 3, 4), states=states))
    first = drafter.propose(Context((1, 2, 3, 4), states=states), 3, torch.Generator())
    assert first.token_ids.tolist() == Heads().guesses(torch.eye(VOCAB_SIZE)[2:3]).argmax(-1).tolist()
    states.add(torch.eye(VOCAB_SIZE)[3:5])
    second = drafter.propose(Context((1, 2, 3, 4, 0, 1), states=states), 2, torch.Generator())
    assert second.token_ids.tolist() == Heads().guesses(torch.eye(VOCAB_SIZE)[4:5])[:2].argmax(-1).tolist()
    assert second.probs is None


def test_a_chain_ends_behind_an_unlikely_token() -> None:
    states = States()
    states.add(torch.eye(VOCAB_SIZE)[:1])
    lengths = []
    for stop in (0.0, 0.4, 0.6, 1.0):
        drafter = MedusaDrafter(Heads(), draft_stop=stop)
        drafter.reset(Context((1, 2), states=states))
        states.add(torch.eye(VOCAB_SIZE)[:1])
        lengths.append(len(drafter.propose(Context((1, 2), states=states), 3, torch.Generator()).token_ids))
    assert lengths[0] == 3
    assert lengths[-1] == 1
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nodes", [1, 4, 12, 200])
def test_the_tree_has_the_best_paths(nodes: int, seed: int) -> None:
    """By enumeration of all of them; a path's parents are all in the tree, since they are no worse."""
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) * 2
    probs = logits.softmax(-1)
    every = sorted(
        (
            (float(torch.stack([probs[i, t] for i, t in enumerate(path)]).prod()), path)
            for depth in (1, 2, 3)
            for path in product(range(4), repeat=depth)
        ),
        reverse=True,
    )
    draft = best_first(logits, nodes)
    assert draft.parents is not None
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist(), strict=True):
        assert -1 <= parent < len(paths)
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths) == min(nodes, 4 + 16 + 64)
    assert set(paths) == {path for _, path in every[: len(paths)]}


def test_tokens_without_a_word_are_in_no_tree() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf, 0.0, -torch.inf]])
    draft = best_first(logits, 50)
    assert sorted(draft.token_ids.tolist()) == [0, 1, 1, 2]
