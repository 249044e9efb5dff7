"""EAGLE's heads in every published layout give the logits that other people's code gave."""

from __future__ import annotations

from collections.abc import Sequence

import heads
import pytest
import torch
from torch import Tensor

from specdec_cli.runtime.heads.eagle import Eagle
from specdec_cli.runtime.heads.eagle3 import Eagle3
from specdec_cli.runtime.heads.recurrent import RecurrentHead

pytestmark = pytest.mark.exactness

NAMES = heads.names("eagle", "eagle3")
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def network(case: heads.Case) -> RecurrentHead:
    kind = {"eagle": Eagle, "eagle3": Eagle3}[case.head.kind]
    return kind(case.head, case.parts())


def drafted(net: RecurrentHead, states: Tensor, token_ids: Sequence[int], fed: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Logits and states of a chain: behind the pairs, and behind each token that is fed."""
    rows = [net.read(states, torch.tensor(token_ids))]
    for token in fed:
        rows.append(net.step(rows[-1][1], torch.tensor([token])))
    logits, hidden = zip(*rows, strict=True)
    return torch.cat(logits), torch.cat(hidden)


def greedy(net: RecurrentHead, states: Tensor, token_ids: Sequence[int], number: int) -> list[int]:
    logits, hidden = net.read(states, torch.tensor(token_ids))
    found = [int(logits.argmax())]
    while len(found) < number:
        logits, hidden = net.step(hidden, torch.tensor(found[-1:]))
        found.append(int(logits.argmax()))
    return found


def test_the_cases_are_here() -> None:
    assert len(NAMES) == 10


@torch.inference_mode()
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_states_are_the_reference_s(name: str) -> None:
    """First position, recycled positions, and both again after a roll-back."""
    case = heads.case(name)
    net, given, expected = network(case), case.inputs, case.expected
    words = net.output.words
    before = [*given["prompt"][1:], given["t0"]]
    logits, hidden = drafted(net, expected["features_prompt"], before, given["draft_given"][:-1])
    torch.testing.assert_close(logits[:, words], expected["draft_logits"], **CLOSE)
    torch.testing.assert_close(hidden, expected["draft_hidden"], **CLOSE)
    outside = torch.ones(logits.shape[-1], dtype=torch.bool).index_fill(0, words, False)
    assert torch.isneginf(logits[:, outside]).all()

    net.roll_back(net.length - len(before))
    kept = [*given["draft_given"][: given["accepted"]], given["correction"]]
    logits, hidden = drafted(net, expected["features_accepted"], kept, given["next_given"])
    torch.testing.assert_close(logits[:, words], expected["next_draft_logits"], **CLOSE)
    torch.testing.assert_close(hidden, expected["next_draft_hidden"], **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("name", NAMES)
def test_greedy_drafts_are_the_reference_s(name: str) -> None:
    case = heads.case(name)
    net, given, expected = network(case), case.inputs, case.expected
    before = [*given["prompt"][1:], given["t0"]]
    assert greedy(net, expected["features_prompt"], before, 4) == expected["greedy_draft"].tolist()
    net.roll_back(net.length - len(before))
    kept = [*given["draft_given"][: given["accepted"]], given["correction"]]
    assert greedy(net, expected["features_accepted"], kept, 4) == expected["greedy_next_draft"].tolist()


@torch.inference_mode()
@pytest.mark.parametrize("name", ["eagle1", "eagle3_speculators_31"])
def test_a_tree_s_branches_are_read_as_chains(name: str) -> None:
    """Two branches side by side give what each gives alone."""
    case = heads.case(name)
    net, given = network(case), case.inputs
    before = [*given["prompt"][1:], given["t0"]]
    branches = ([5, 9, 7], [11, 9, 20])
    alone = [drafted(network(case), case.expected["features_prompt"], before, branch) for branch in branches]
    _, hidden = net.read(case.expected["features_prompt"], torch.tensor(before))
    parents = hidden.expand(2, -1)
    for depth, tokens in enumerate(zip(*branches, strict=True)):
        seen = torch.eye(2, dtype=torch.bool).repeat(1, depth + 1)
        logits, parents = net.step_tree(parents, torch.tensor(tokens), seen, depth)
        for row, (own_logits, own_hidden) in enumerate(alone):
            torch.testing.assert_close(logits[row], own_logits[depth + 1], **CLOSE)
            torch.testing.assert_close(parents[row], own_hidden[depth + 1], **CLOSE)
    net.roll_back(6)
    assert net.length == len(before)
