"""Weights in 8 or 4 bits: a decoding step costs what its bytes cost, so fewer bits make a cheaper step.

Every linear layer, the head included, keeps its weights as whole numbers (codes) with a scale: one for each row in int8
(w = code * scale), one and an offset for every 32 weights of a row in int4 (w = (code - 8) * scale + offset). Only the
weights are rounded; products are those of torch's CPU kernels, in bfloat16 with sums in float32. A draft may be rounded
as one likes, since the rule corrects whatever it proposes; a target that is rounded is another model.

Facts about torch 2.13's kernels that this rests on, none of them checked there: `_weight_int8pack_mm` reads behind the
end of a row unless its length is a multiple of 16 (wrong numbers, or a crash); `_weight_int4pack_mm_for_cpu` wants rows
in groups and a multiple of 16 of them, and keeps blocks of 64 rows together, so that packed blocks may be joined. Odd
shapes are filled up with zeros that change nothing.

On CUDA the same words mean torchao's weight-only kernels. That path is written after torchao's documentation and has
not been run: there was no GPU to try it on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specdec_cli.errors import SpecdecError, UsageError
from specdec_cli.settings import AUTO, NOT_QUANTIZED

GROUP = 32  # weights that share a scale and an offset in int4, and what rows are filled up to
ROWS = 16  # what the number of rows is filled up to in int4
BLOCK = 4096  # rows that are rounded at once, so that a large head needs no float32 copy of itself; a multiple of 64
# `auto` times so many turns of so many steps of each choice, after one that is not counted.
TURNS, STEPS = 7, 3


def int8_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to 255 steps between plus and minus its largest weight.

    Args:
        weight: [rows, columns].

    Returns:
        codes [rows, columns] int8 and scales [rows] bfloat16.
    """
    weight = weight.float()
    scales = (weight.abs().amax(1) / 127).bfloat16()
    # By the scale as it is stored, so that its own rounding is made up for; a row of zeros has none.
    codes = (weight / scales.float().clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round()
    return codes.clamp(-127, 127).to(torch.int8), scales


def int4_codes(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round each group of a row to 16 steps between its smallest and its largest weight.

    Args:
        weight: [rows, columns], the columns a multiple of `GROUP`.

    Returns:
        codes [rows, columns] int32 from 0 to 15, scales and offsets [rows, groups] bfloat16.
    """
    groups = weight.float().unflatten(1, (-1, GROUP))
    low, high = groups.aminmax(dim=-1)
    scales = ((high - low) / 15).bfloat16()
    offsets = (low + 8 * scales.float()).bfloat16()
    steps = scales.float().clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    codes = ((groups - offsets.float()[..., None]) / steps).round() + 8
    return codes.clamp(0, 15).to(torch.int32).flatten(1), scales, offsets


class QuantizedLinear(nn.Module):
    """What a linear layer becomes: [..., in_features] of any float type in, [..., out_features] of the same out.

    Args:
        weight: [out_features, in_features].
        bias: [out_features], kept as it is.
    """

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._fill = -self.in_features % GROUP
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, states: Tensor) -> Tensor:
        rows = states.reshape(-1, self.in_features).to(torch.bfloat16)
        if self._fill:
            rows = pad(rows, (0, self._fill))
        product = self._product(rows)[:, : self.out_features].to(states.dtype)
        if self.bias is not None:
            product = product + self.bias
        return product.reshape(*states.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        """[n, filled columns] bfloat16 times the weights: [n, filled rows]."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Int8Linear(QuantizedLinear):
    """Per-row int8."""

    codes: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        parts = [int8_codes(block) for block in weight.detach().split(BLOCK)]
        self.register_buffer("codes", torch.cat([pad(codes, (0, self._fill)) for codes, _ in parts]))
        self.register_buffer("scales", torch.cat([scales for _, scales in parts]))

    def _product(self, rows: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(rows, self.codes, self.scales)


class Int4Linear(QuantizedLinear):
    """int4 in groups of 32."""

    packed: Tensor
    scales_and_offsets: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        packed, pairs = [], []
        for block in weight.detach().split(BLOCK):
            codes, scales, offsets = int4_codes(pad(block, (0, self._fill, 0, -len(block) % ROWS)))
            packed.append(torch._convert_weight_to_int4pack_for_cpu(codes, 1))
            pairs.append(torch.stack([scales, offsets], dim=-1))
        self.register_buffer("packed", torch.cat(packed))
        self.register_buffer("scales_and_offsets", torch.cat(pairs).transpose(0, 1).contiguous())  # [groups, rows, 2]

    def _product(self, rows: Tensor) -> Tensor:
        return torch._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, self.scales_and_offsets)


KINDS: dict[str, type[QuantizedLinear]] = {"int8": Int8Linear, "int4": Int4Linear}


@dataclass(frozen=True)
class _Place:
    """A linear layer and where it hangs."""

    parent: nn.Module
    name: str
    layer: nn.Module

    def put(self, layer: nn.Module) -> None:
        setattr(self.parent, self.name, layer)

    def quantized(self, kind: type[QuantizedLinear]) -> QuantizedLinear:
        weight: Any = self.layer.weight
        # GPT-2's Conv1D is a linear layer whose weight lies transposed.
        return kind(weight.t() if isinstance(self.layer, Conv1D) else weight, self.layer.bias)  # type: ignore[arg-type]


def _places(model: nn.Module) -> Iterator[_Place]:
    """Linear layers by their exact class: a subclass computes something else, and is left alone."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) in (nn.Linear, Conv1D) and layer.weight.is_floating_point():  # type: ignore[operator]
                yield _Place(parent, name, layer)


def quantize(model: PreTrainedModel, how: str, device: torch.device, option: str) -> tuple[str, str]:
    """Round a model's linear layers, one after the other, letting go of each as it is replaced.

    Args:
        model: on `device`, in evaluation mode.
        how: "int8", "int4", or "auto" for what steps fastest here, which may be neither.
        device: what the model computes on.
        option: what asked for it, for messages.

    Returns:
        what it came to ("none", "int8" or "int4"), and a few words about it for the user.

    Raises:
        UsageError: the device has no such kernels, or they do not take the model's number type.
        SpecdecError: a package is missing.
    """
    if device.type == "cuda":
        return how, _by_torchao(model, how, option)
    if device.type != "cpu":
        raise UsageError(f"{option} {how} has no kernels on {device.type}: choose cpu or cuda, or {NOT_QUANTIZED}")
    with torch.no_grad():
        if how == AUTO:
            how, words = _fastest(model)
        else:
            words = f"weights rounded to {how}"
            for place in _places(model):
                place.put(place.quantized(KINDS[how]))
    return how, f"{words} ({_left_over(model)})" if how != NOT_QUANTIZED else words


def _fastest(model: PreTrainedModel) -> tuple[str, str]:
    """Try every choice in turn, keep the one that steps fastest."""
    places = list(_places(model))
    layers: dict[str, list[nn.Module]] = {NOT_QUANTIZED: [place.layer for place in places]}
    layers |= {how: [place.quantized(kind) for place in places] for how, kind in KINDS.items()}
    token = torch.zeros(1, 1, dtype=torch.long)
    seconds: dict[str, list[float]] = {how: [] for how in layers}
    for turn in range(1 + TURNS):
        for how, made in layers.items():
            for place, layer in zip(places, made, strict=True):
                place.put(layer)
            started = time.perf_counter()
            for _ in range(STEPS):
                model(input_ids=token, use_cache=False)
            if turn:
                seconds[how].append((time.perf_counter() - started) / STEPS)
    medians = {how: median(values) for how, values in seconds.items()}
    best = min(medians, key=lambda how: medians[how])
    for place, layer in zip(places, layers[best], strict=True):
        place.put(layer)
    ranking = ", ".join(f"{how} {value * 1000:.1f}" for how, value in sorted(medians.items(), key=lambda item: item[1]))
    return best, f"weights {'as they are' if best == NOT_QUANTIZED else best}, the fastest here (ms a step: {ranking})"


def _left_over(model: nn.Module) -> str:
    """How many layers were rounded, to how many bytes, and what stays."""
    layers = sum(isinstance(module, QuantizedLinear) for module in model.modules())
    rest = sum(parameter.nbytes for parameter in model.parameters())
    size = weight_bytes(model) - rest
    return f"{layers} layers, {size / 1e6:,.1f} MB; {rest / 1e6:,.1f} MB stay as they were"


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights, rounded or not; tied ones counted once."""
    rounded = (module for module in model.modules() if isinstance(module, QuantizedLinear))
    codes = sum(buffer.nbytes for module in rounded for buffer in module.buffers())
    return codes + sum(parameter.nbytes for parameter in model.parameters())


def _by_torchao(model: PreTrainedModel, how: str, option: str) -> str:
    """torchao's weight-only kernels for CUDA (after its documentation; not run yet)."""
    if how == AUTO:
        raise UsageError(f"{option} {AUTO} compares the kernels of a CPU only: choose {NOT_QUANTIZED}, int8 or int4")
    try:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise SpecdecError(f"{option} {how} on cuda needs torchao: pip install 'specdec-cli[quant]'") from error
    if how == "int4" and model.dtype != torch.bfloat16:
        raise UsageError(f"{option} int4 on cuda computes in bfloat16 alone: add --dtype bfloat16, or choose int8")
    if how == "int8":
        quantize_(model, Int8WeightOnlyConfig())
    else:
        quantize_(model, Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d"))
    return f"weights rounded to {how} by torchao"
