"""Heads of blocks give the logits that other people's code gave, before and after a roll-back."""

from __future__ import annotations

from typing import Any

import heads
import pytest
import torch
from torch import Tensor

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.heads.dflash import DFlash
from specdec_cli.runtime.heads.dspark import DSpark
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.heads.peagle import PEagle

pytestmark = pytest.mark.exactness
CLOSE = {"atol": 1e-4, "rtol": 1e-4}
KINDS: dict[str, Any] = {"dflash": DFlash, "dspark": DSpark, "peagle": PEagle}
NAMES = heads.names(*KINDS)


def network(case: heads.Case, head: Head | None = None) -> Any:
    head = head or case.head
    return KINDS[head.kind](head, case.parts())


def guessed(net: Any, states: Tensor, token_ids: list[int], number: int, given: list[int]) -> Tensor:
    """Logits of a block over the head's own words, each behind the given token where slots are told of it."""
    logits = net.guess(states, torch.tensor(token_ids), number)
    if net.conditions:
        before = [token_ids[-1], *given][:number]
        rows = [net.conditioned(logits[i : i + 1], i, torch.tensor([token])) for i, token in enumerate(before)]
        logits = torch.cat(rows)
    outside = torch.ones(logits.shape[-1], dtype=torch.bool).index_fill(0, net.output.words, False)
    assert torch.isneginf(logits[:, outside]).all()
    return logits[:, net.output.words]


def greedy(net: Any, states: Tensor, token_ids: list[int], number: int) -> list[int]:
    logits = net.guess(states, torch.tensor(token_ids), number)
    found: list[int] = []
    for i in range(number):
        row = logits[i : i + 1]
        if net.conditions:
            row = net.conditioned(row, i, torch.tensor([[token_ids[-1], *found][-1]]))
        found.append(int(row.argmax()))
    return found


def test_the_cases_are_here() -> None:
    assert len(NAMES) == 7


@torch.inference_mode()
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_reference_s(name: str) -> None:
    case = heads.case(name)
    given, expected = case.inputs, case.expected
    net = network(case)
    before = [*given["prompt"][1:], given["t0"]]
    number = len(expected["draft_logits"])
    found = guessed(net, expected["features_prompt"], before, number, given["draft_given"])
    torch.testing.assert_close(found, expected["draft_logits"], **CLOSE)
    assert net.length == len(before), "no guess stays cached"
    kept = [*given["draft_given"][: given["accepted"]], given["correction"]]
    found = guessed(net, expected["features_accepted"], kept, number, given["next_given"])
    torch.testing.assert_close(found, expected["next_draft_logits"], **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("name", NAMES)
def test_greedy_drafts_are_the_reference_s(name: str) -> None:
    case = heads.case(name)
    given, expected = case.inputs, case.expected
    net = network(case)
    before = [*given["prompt"][1:], given["t0"]]
    number = len(expected["greedy_draft"])
    assert greedy(net, expected["features_prompt"], before, number) == expected["greedy_draft"].tolist()
    kept = [*given["draft_given"][: given["accepted"]], given["correction"]]
    assert greedy(net, expected["features_accepted"], kept, number) == expected["greedy_next_draft"].tolist()


@torch.inference_mode()
@pytest.mark.parametrize("name", NAMES)
def test_reading_in_parts_is_reading_at_once(name: str) -> None:
    case = heads.case(name)
    given, expected = case.inputs, case.expected
    states, before = expected["features_prompt"], [*given["prompt"][1:], given["t0"]]
    whole, parts = network(case), network(case)
    parts.read(states[:5], torch.tensor(before[:5]))
    parts.guess(states[5:9], torch.tensor(before[5:9]), 2)
    for net, begun in ((whole, 0), (parts, 9)):
        torch.testing.assert_close(
            net.guess(states[begun:], torch.tensor(before[begun:]), 3),
            network(case).guess(states, torch.tensor(before), 3),
            **CLOSE,
        )


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("dflash_speculators", {"mask_token_id": 5000}, "its mask_token_id 5000 is no token of the target"),
        ("dflash_speculators", {"block_size": None}, "its config.json gives no block_size"),
        ("dspark", {"markov_head_type": "rnn"}, "has a Markov head of the form 'rnn'"),
        ("peagle", {"mask_token_id": None}, "its mask_token_id None is no token of the target"),
    ],
)
def test_what_a_block_cannot_be_made_of(name: str, values: dict[str, Any], message: str) -> None:
    case = heads.case(name)
    head = case.head
    changed = Head(
        head.files, head.kind, head.layout, {**head.config, **values}, head.num_taps, head.tap_ids, head.id_shift
    )
    with pytest.raises(SpecdecError) as caught:
        network(case, changed)
    assert message in str(caught.value)
