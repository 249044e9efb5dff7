"""The same arithmetic in fewer and cheaper calls: what a decoding step on a CPU pays beside its weights' bytes.

Two changes to a loaded model, both invisible in its results up to the rounding of its number type:

- *joined*: a layer's queries, keys and values come from one product, and are turned by their positions together; gate
  and up come from one product. For the classes named in `ATTENTIONS` and `MLPS`, whose forward passes this repeats.
- *packed*: weights in bfloat16 lie as oneDNN's kernels want them, where a plain `linear` lays them out anew at every
  call; small ones are kept in float32, whose products need no oneDNN call at all (26 against 9 microseconds for 128 x
  128). For every linear layer of every model.

What is replaced is let go, so that a model needs no more memory than before (small layers and a tied head apart).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import PreTrainedModel

from specdec_cli.runtime.quantized_linear import join_rows

# transformers' classes, by name: importing all of these families' modules takes seconds.
ATTENTIONS = frozenset({"LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention"})
MLPS = frozenset({"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"})
SMALL = 2**17  # weights of a layer up to which float32 is quicker, measured at 1 to 9 rows
PACKED_ROWS = 16  # the number of rows that a layout is chosen for; the same serves one row as well as any other


def join(model: PreTrainedModel) -> int:
    """Join the products of every layer that is known; how many modules were replaced.

    Nothing is done to a model that is not on a CPU, where this was measured, or attends in another way than by sdpa.
    """
    if {parameter.device.type for parameter in model.parameters()} != {"cpu"}:
        return 0
    if model.config._attn_implementation != "sdpa":
        return 0
    replaced = 0
    for parent in list(model.modules()):
        children = dict(parent.named_children())
        if "rotary_emb" in children and _all_known(parent):
            parent.rotary_emb = SignedRotary(children["rotary_emb"])
            for layer in parent.layers:
                layer.self_attn = JoinedAttention(layer.self_attn)
                replaced += 1
        for name, child in children.items():
            if type(child).__name__ in MLPS:
                setattr(parent, name, JoinedMLP(child))
                replaced += 1
    return replaced


def _all_known(decoder: nn.Module) -> bool:
    """Whether all layers turn queries and keys in the way that `JoinedAttention` does."""
    layers = [*getattr(decoder, "layers", [])]
    return bool(layers) and all(type(getattr(layer, "self_attn", None)).__name__ in ATTENTIONS for layer in layers)


def _product(layers: list[nn.Module]) -> nn.Module:
    """Layers of one input as one; side by side where they are rounded in different ways."""
    return join_rows(layers) if len({type(layer) for layer in layers}) == 1 else SideBySide(layers)


class SideBySide(nn.Module):
    """Several layers of one input, their outputs one behind the other."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, states: Tensor) -> Tensor:
        return torch.cat([layer(states) for layer in self.layers], dim=-1)


class SignedRotary(nn.Module):
    """A rotary embedding whose sines carry the sign that `rotate_half` would give the states."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [batch, 1, n, head_dim] each."""
        cos, sin = self.rotary(states, position_ids=position_ids)
        first, second = sin.chunk(2, dim=-1)
        return cos.unsqueeze(1), torch.cat([-first, second], dim=-1).unsqueeze(1)


class JoinedAttention(nn.Module):
    """Attention of a Llama-like layer; the model's rotary embedding must be a `SignedRotary`."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.layer_idx: int = attention.layer_idx
        self.head_dim: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.num_heads: int = attention.q_proj.out_features // self.head_dim
        self.num_key_heads: int = attention.k_proj.out_features // self.head_dim
        self.qkv_proj = _product([attention.q_proj, attention.k_proj, attention.v_proj])
        self.o_proj = attention.o_proj
        self.q_norm, self.k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Any = None,
        **kwargs: object,
    ) -> tuple[Tensor, None]:
        """[batch, n, hidden] to the same, as transformers' modules do; no attention weights."""
        batch, n, _ = hidden_states.shape
        states = self.qkv_proj(hidden_states).view(batch, n, -1, self.head_dim)
        turning, value = states.split([self.num_heads + self.num_key_heads, self.num_key_heads], dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = turning.split([self.num_heads, self.num_key_heads], dim=2)
            turning = torch.cat([self.q_norm(query), self.k_norm(key)], dim=2)
        turning = turning.transpose(1, 2)
        cos, sin = position_embeddings
        turned = turning * cos + turning.roll(self.head_dim // 2, dims=-1) * sin
        query, key = turned.split([self.num_heads, self.num_key_heads], dim=1)
        value = value.transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attended = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            is_causal=attention_mask is None and n > 1,
            scale=self.scaling,
            enable_gqa=self.num_heads != self.num_key_heads,
        )
        return self.o_proj(attended.transpose(1, 2).reshape(batch, n, -1)), None


class JoinedMLP(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up_proj = _product([mlp.gate_proj, mlp.up_proj])
        self.down_proj = mlp.down_proj
        self.act_fn = mlp.act_fn

    def forward(self, hidden_states: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        product: Tensor = self.down_proj(self.act_fn(gate) * up)
        return product


def pack(model: nn.Module) -> int:
    """Lay out the bfloat16 weights of linear layers for this CPU; how many layers were replaced."""
    replaced = 0
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            packed = packed_layer(layer)
            if packed is not layer:
                setattr(parent, name, packed)
                replaced += 1
    return replaced


def packed_layer(layer: nn.Module) -> nn.Module:
    """A linear layer as it is computed quickest here; any other layer, and one of another type or device, as it is."""
    if type(layer) is not nn.Linear or layer.weight.dtype != torch.bfloat16 or layer.weight.device.type != "cpu":
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
