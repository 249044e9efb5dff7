"""Medusa's heads give the logits that Medusa's own code gave, and are refused beside another target."""

from __future__ import annotations

from pathlib import Path

import heads
import pytest
import torch
from safetensors.torch import save_file

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.heads.medusa import Medusa

pytestmark = pytest.mark.exactness
NAMES = heads.names("medusa")


def test_the_cases_are_here() -> None:
    assert len(NAMES) == 2


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_reference_s(name: str) -> None:
    case = heads.case(name)
    network = Medusa(case.head, case.parts())
    for states, logits, greedy in (
        ("features_prompt", "draft_logits", "greedy_draft"),
        ("features_accepted", "next_draft_logits", "greedy_next_draft"),
    ):
        found = network.guesses(case.expected[states][-1:])
        torch.testing.assert_close(found, case.expected[logits], atol=1e-4, rtol=1e-4)
        assert found.argmax(-1).tolist() == case.expected[greedy].tolist()


def test_names_with_a_prefix_are_the_same(tmp_path: Path) -> None:
    """As a whole model's checkpoint names them."""
    case = heads.case("medusa")
    named = {f"medusa_head.{name}": tensor for name, tensor in case.head.tensors().items()}
    save_file(named, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((case.folder / "head" / "config.json").read_bytes())
    network = Medusa(heads.head_in(tmp_path), case.parts())
    found = network.guesses(case.expected["features_prompt"][-1:])
    torch.testing.assert_close(found, case.expected["draft_logits"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.1.weight": torch.zeros(112, 40)}, "states of 40 numbers"),
        ({"0.1.weight": torch.zeros(99, 32)}, "makes 99 logits"),
        ({"1.1.weight": None}, "has no tensor 1.1.weight"),
        ({"0.0.linear.weight": torch.zeros(32, 16)}, "0.0.linear.weight is 32 x 16"),
    ],
    ids=["width", "vocabulary", "missing", "layer"],
)
def test_heads_of_another_target(change: dict[str, torch.Tensor | None], message: str, tmp_path: Path) -> None:
    case = heads.case("medusa")
    tensors = case.head.tensors() | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, tmp_path / "m.safetensors")
    (tmp_path / "config.json").write_bytes((case.folder / "head" / "config.json").read_bytes())
    with pytest.raises(SpecdecError) as caught:
        Medusa(heads.head_in(tmp_path), case.parts())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
