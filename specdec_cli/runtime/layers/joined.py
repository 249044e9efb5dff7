"""Joined layers: the same arithmetic in fewer calls, for what a decoding step on a CPU pays beside its weights' bytes.

A layer's queries, keys and values come from one product, and are turned by their positions together; gate and up come
from one product. For the classes named in `ATTENTIONS` and `MLPS`, whose forward passes this repeats: results are the
same up to the rounding of the number type. What is replaced is let go: a model needs no more memory than before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from specdec_cli.runtime.layers.quantized_linear import QuantizedLinear, is_plain, join_rows

# transformers' classes, by name: importing all of these families' modules takes seconds.
ATTENTIONS = frozenset({"LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention"})
MLPS = frozenset({"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"})


def join(model: Any) -> int:
    """Join the products of every layer that is known; how many modules were replaced.

    Args:
        model: a causal language model of transformers; changed in place.

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
            if type(child).__name__ in MLPS and _all_linear(child, "gate_proj", "up_proj"):
                setattr(parent, name, JoinedMLP(child))
                replaced += 1
    return replaced


def _all_known(decoder: nn.Module) -> bool:
    """Whether all layers turn queries and keys in the way that `JoinedAttention` does."""
    layers = [*getattr(decoder, "layers", [])]
    attentions = [getattr(layer, "self_attn", None) for layer in layers]
    return bool(attentions) and all(
        type(attention).__name__ in ATTENTIONS and _all_linear(attention, "q_proj", "k_proj", "v_proj")
        for attention in attentions
    )


def _all_linear(module: Any, *names: str) -> bool:
    """Whether these are linear layers that can be joined: another library's are left where they are."""
    return all(is_plain(layer) or isinstance(layer, QuantizedLinear) for layer in (getattr(module, n) for n in names))


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
