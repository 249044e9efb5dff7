"""Packed layers: bfloat16 weights laid out once as oneDNN wants them, where a plain `linear` does it at every call.

Small ones are kept in float32, whose products need no oneDNN call at all (26 against 9 microseconds for 128 x 128). For
every linear layer of every model; results are the same up to the rounding of the number type. What is replaced is let
go (small layers and a tied head take more memory than before).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from specdec_cli.activity import each_of
from specdec_cli.runtime.layers.quantized_linear import is_plain

SMALL = 2**17  # weights of a layer up to which float32 is quicker, measured at 1 to 9 rows
PACKED_ROWS = 16  # the number of rows that a layout is chosen for; the same serves one row as well as any other


def pack(model: nn.Module) -> int:
    """Lay out the bfloat16 weights of linear layers for this CPU; how many layers were replaced."""
    replaced = 0
    for parent in each_of(model.modules(), "packing weights"):
        for name, layer in list(parent.named_children()):
            packed = packed_layer(layer)
            if packed is not layer:
                setattr(parent, name, packed)
                replaced += 1
    return replaced


def packed_layer(layer: nn.Module) -> nn.Module:
    """A linear layer as it is computed quickest here; any other layer, and one of another type or device, as it is."""
    if not is_plain(layer):
        return layer
    assert isinstance(layer, nn.Linear)
    if layer.weight.dtype != torch.bfloat16 or layer.weight.device.type != "cpu":
        return layer
    if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return layer
    return Float32Linear(layer) if layer.weight.numel() <= SMALL else PackedLinear(layer)


class PackedLinear(nn.Module):
    """A linear layer in oneDNN's own layout: [..., in_features] bfloat16 to [..., out_features]."""

    bias: Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), PACKED_ROWS)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, states: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.packed, self.bias, "none", [], "")
        return product


class Float32Linear(nn.Module):
    """A small linear layer: [..., in_features] bfloat16 to [..., out_features], products and sums in float32."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_buffer("weight", layer.weight.detach().float())
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().float())

    def forward(self, states: Tensor) -> Tensor:
        return linear(states.float(), self.weight, self.bias).to(states.dtype)
