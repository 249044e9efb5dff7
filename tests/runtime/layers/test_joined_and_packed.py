"""Joined and packed layers: another model's worth of calls, the same model's numbers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn
from transformers import PreTrainedModel

from specdec_cli.runtime.layers import joined, packed
from specdec_cli.runtime.layers.cut_head import can_be_cut
from specdec_cli.runtime.layers.quantize import quantize
from specdec_cli.runtime.layers.quantized_linear import Int8Linear, is_plain
from specdec_cli.runtime.models.transformers_model import TransformersModel

JOINED = ("llama", "mistral", "qwen2", "qwen3")
PROMPT = torch.tensor([5, 80, 33, 7, 121, 9, 64, 200, 17, 3, 90, 41, 18, 77, 250])  # longer than the sliding window
needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 kernels on this CPU"
)


def walk(model: PreTrainedModel) -> torch.Tensor:
    """Logits of a prefill, a block with rejections, a step and a block over them: [n, vocab_size]."""
    cached = TransformersModel(model, tiny.VOCAB_SIZE)
    rows = []
    with torch.inference_mode():
        cached.reset()
        rows.append(cached.forward(PROMPT, 3))
        cached.roll_back(0)
        rows.append(cached.forward(torch.tensor([1, 2, 3, 4, 6]), 5))
        cached.roll_back(3)
        for block in ([8], [11, 12, 13]):
            rows.append(cached.forward(torch.tensor(block), len(block)))
            cached.roll_back(0)
    return torch.cat(rows)


def wide(family: str, **overrides: Any) -> PreTrainedModel:
    """With a feed-forward layer above `SMALL` and attention below it."""
    return tiny.model(family, **{"intermediate_size": packed.SMALL // 32, **overrides}).bfloat16()


@pytest.mark.parametrize("family", JOINED)
def test_joined_layers_give_the_same_logits(family: str) -> None:
    before = tiny.model(family, num_attention_heads=4, num_key_value_heads=2)
    after = deepcopy(before)
    assert joined.join(after) == 4  # two attentions, two feed-forward layers
    torch.testing.assert_close(walk(after), walk(before), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gpt2", "gpt_neox"])
def test_a_family_that_computes_something_else_is_left_alone(family: str) -> None:
    before = tiny.model(family)
    after = deepcopy(before)
    assert joined.join(after) == 0
    assert torch.equal(walk(after), walk(before))


def test_one_layer_of_another_kind_leaves_all_attention_alone() -> None:
    model = tiny.model("llama")

    class Other(type(model.model.layers[1].self_attn)):  # type: ignore[misc]
        pass

    model.model.layers[1].self_attn.__class__ = Other
    before = deepcopy(model)
    assert joined.join(model) == 2
    torch.testing.assert_close(walk(model), walk(before), atol=2e-5, rtol=1e-5)


class OfAQuantiser(nn.Linear):
    """It does with its weight what no other linear layer does, as BitNet's does."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(states, self.weight.sign() * self.weight.abs().mean(), self.bias)


def of_another_class(layer: nn.Linear) -> None:
    layer.__class__ = OfAQuantiser


def with_a_hook(layer: nn.Linear) -> None:
    layer.register_forward_hook(lambda module, args, states: 0.5 * states)


class Codes(torch.Tensor):
    """A weight as torchao has it: a tensor class of its own inside an ordinary linear layer."""


def with_a_tensor_of_its_own(layer: nn.Linear) -> None:
    layer._parameters["weight"] = layer.weight.detach().as_subclass(Codes)  # type: ignore[assignment]


@pytest.mark.parametrize("change", [of_another_class, with_a_hook, with_a_tensor_of_its_own])
@pytest.mark.parametrize("which", ["all", "q_proj", "gate_proj"])
def test_linear_layers_of_another_library_are_left_alone(which: str, change: Callable[[nn.Linear], None]) -> None:
    """Joined, packed or rounded they would compute something else, or fail."""
    before, after = tiny.model("llama"), tiny.model("llama")
    for model in (before, after):
        for name, layer in model.named_modules():
            if type(layer) is nn.Linear and (which == "all" or name.endswith(which)):
                change(layer)
    linear = {name: layer for name, layer in after.named_modules() if isinstance(layer, nn.Linear)}
    foreign = {name: layer for name, layer in linear.items() if not is_plain(layer)}
    assert len(foreign) == (15 if which == "all" else 2)
    assert joined.join(after) == (0 if which == "all" else 2)
    torch.testing.assert_close(walk(after), walk(before), atol=2e-5, rtol=1e-5)
    quantize(after, "int8", torch.device("cpu"), "--quantize")
    packed.pack(after)
    assert all(after.get_submodule(name) is layer for name, layer in foreign.items())
    assert can_be_cut(after.get_output_embeddings()) == (which != "all")


def test_a_linear_layer_of_bytes_is_not_plain() -> None:
    layer = nn.Linear(8, 8)
    assert is_plain(layer)
    layer.weight = nn.Parameter(layer.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    assert not is_plain(layer)


def test_other_attention_than_sdpa_is_left_alone() -> None:
    model = tiny.model("llama")
    model.set_attn_implementation("eager")
    assert joined.join(model) == 0


def test_layers_rounded_in_different_ways_stay_side_by_side() -> None:
    before = tiny.model("llama")
    for layer in before.model.layers:
        value = layer.self_attn.v_proj
        layer.self_attn.v_proj = Int8Linear.rounded(value.weight, value.bias)
    after = deepcopy(before)
    joined.join(after)
    assert isinstance(after.model.layers[0].self_attn.qkv_proj, joined.SideBySide)
    torch.testing.assert_close(walk(after), walk(before), atol=2e-5, rtol=1e-5)


def test_joined_layers_need_no_more_memory() -> None:
    model = tiny.model("qwen2")
    before = sum(parameter.nbytes for parameter in model.parameters())
    joined.join(model)
    assert sum(parameter.nbytes for parameter in model.parameters()) == before


@pytest.mark.parametrize("family", JOINED)
def test_generate_of_transformers_takes_joined_layers(family: str) -> None:
    before = tiny.model(family, num_attention_heads=4, num_key_value_heads=2)
    after = deepcopy(before)
    joined.join(after)
    texts = [m.generate(PROMPT[None], max_new_tokens=12, do_sample=False).tolist() for m in (before, after)]
    assert texts[0] == texts[1]


@needs_bfloat16
@pytest.mark.parametrize("family", [*JOINED, "gemma2", "gpt_neox"])
def test_packed_layers_give_the_same_logits_in_bfloat16(family: str) -> None:
    before = wide(family)
    after = deepcopy(before)
    replaced = packed.pack(after)
    assert replaced == sum(type(module) is nn.Linear for module in before.modules())
    exact = walk(deepcopy(before).float())
    theirs, ours = walk(before), walk(after)
    # Sums in another order are rounded to bfloat16 elsewhere: no further from the truth than the plain layers are.
    assert (ours - exact).norm() < 1.25 * (theirs - exact).norm()
    assert not any(type(module) is nn.Linear for module in after.modules())


@needs_bfloat16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@pytest.mark.parametrize("shape", [(40, 24), (513, 300), (1000, 701)])
def test_a_packed_layer_is_its_linear_layer(shape: tuple[int, int], rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    layer = nn.Linear(shape[1], shape[0], bias=bias).bfloat16().requires_grad_(False)
    states = torch.randn(1, rows, shape[1]).bfloat16()
    exact = nn.functional.linear(states.float(), layer.weight.float(), layer.bias.float() if bias else None)
    for kind in (packed.PackedLinear, packed.Float32Linear):
        torch.testing.assert_close(kind(layer)(states).float(), exact, atol=2e-3, rtol=2**-7)


@needs_bfloat16
def test_float32_models_are_not_packed() -> None:
    model = tiny.model("llama")
    assert packed.pack(model) == 0


@needs_bfloat16
def test_what_is_to_be_compiled_is_not_packed(tmp_path: Path) -> None:
    """torch.compile has no lowering for packed layers on a slice of the states, which the head is given."""
    folder = tiny.save(tmp_path / "model", tiny.model("llama"))
    for compiled in (False, True):
        model = tiny.load(folder, dtype="bfloat16", compile=compiled).model
        packed = [m for m in model.modules() if isinstance(m, packed.PackedLinear | packed.Float32Linear)]
        assert bool(packed) is not compiled
