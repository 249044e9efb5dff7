"""A head that feeds itself: reads pairs of the target's state and the next token, then goes on with its own states.

Pair i is the target's state of position i with the token of position i + 1, and stands at position i. The last pair's
row guesses the token behind; fed with the head's own state instead of the target's, it guesses on. Entries made from
own states are rolled back once the target has spoken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from specdec_cli.decoding.model import Tap
from specdec_cli.runtime.caches.buffered import BufferedLayer
from specdec_cli.runtime.heads.parts import Output, Weights

Rotary = tuple[Tensor, Tensor]


class RecurrentHead(nn.Module):
    """A `specdec_cli.decoding.head.RecurrentHead`: the cache and the passes, around what a kind computes.

    Args:
        config: of the head's layers.
        num_layers: of them.
        taps: the target's states that `read` gets, side by side.
        embed: ids to embeddings.
        output: states to logits.
        max_length: positions that it has; pairs beyond are never read.
    """

    def __init__(
        self,
        config: LlamaConfig,
        num_layers: int,
        taps: Sequence[Tap],
        embed: nn.Module,
        output: Output,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.taps = tuple(taps)
        self.device = device
        self.dtype = dtype
        self.embed = embed
        self.output = output
        self.rotary = LlamaRotaryEmbedding(config).to(device)
        self._num_layers = num_layers
        self._cache: list[BufferedLayer] = []
        self.length = 0
        self.reset()

    def reset(self) -> None:
        """Empty the cache."""
        self._cache = [BufferedLayer() for _ in range(self._num_layers)]
        self.length = 0

    def roll_back(self, num_pairs: int) -> None:
        """Forget the last so many pairs."""
        if num_pairs:
            for layer in self._cache:
                layer.crop(-num_pairs)
        self.length -= num_pairs

    def read(self, states: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Append pairs of the target's states and the tokens behind them.

        Args:
            states: [n, width], as the taps give them.
            token_ids: [n] int64.

        Returns:
            [1, vocab_size] float32 logits behind the last pair, and [1, h], the state to go on with.
        """
        hidden = self.project(states.to(self.device, self.dtype))
        out = self._pass(hidden, token_ids, None, None)[-1:]
        return self._ends(out)

    def step(self, hidden: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Append one pair of an own state [1, h] and a token [1]; logits and state as `read` gives them."""
        return self._ends(self._pass(hidden, token_ids, None, None))

    def step_tree(self, hidden: Tensor, token_ids: Tensor, seen: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Append one generation of a tree behind what `read` made: [m, vocab_size] logits and [m, h] states.

        Args:
            hidden: [m, h], the states of the parents.
            token_ids: [m].
            seen: [m, t + m] bool, which of the t entries before and of these a row sees, itself included.
            depth: of these tokens; those behind the last pair have 0.
        """
        num_context = self.length - (seen.shape[1] - len(token_ids))
        mask = torch.cat([seen.new_ones(len(seen), num_context), seen], -1)
        positions = torch.full((len(token_ids),), num_context + depth, device=self.device)
        return self._ends(self._pass(hidden, token_ids, mask, positions))

    def project(self, states: Tensor) -> Tensor:
        """The target's states [n, width] as the layers take them, [n, h]."""
        raise NotImplementedError

    def layers_of(self, hidden: Tensor, embedded: Tensor, attend: Attend) -> Tensor:
        """What the layers make of [n, h] states and [n, h] embeddings: [n, h]."""
        raise NotImplementedError

    def spoken(self, out: Tensor) -> Tensor:
        """What goes into the output layer."""
        return out

    def recycled(self, out: Tensor) -> Tensor:
        """What the next step takes for a state."""
        return out

    def _ends(self, out: Tensor) -> tuple[Tensor, Tensor]:
        return self.output(self.spoken(out)), self.recycled(out)

    def _pass(self, hidden: Tensor, token_ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        number = len(token_ids)
        if positions is None:
            positions = torch.arange(self.length, self.length + number, device=self.device)
        if mask is None and number > 1 and self.length:
            mask = torch.ones(number, self.length + number, dtype=torch.bool, device=self.device).tril(self.length)
        embedded = self.embed(token_ids[None])[0].to(self.device, self.dtype)
        rotary = self.rotary(hidden[None], positions[None])
        out = self.layers_of(hidden, embedded, Attend(self._cache, rotary, mask))
        self.length += number
        return out


class Attend:
    """One pass's cache, positions and mask, for every layer of it."""

    def __init__(self, cache: Sequence[BufferedLayer], rotary: Rotary, mask: Tensor | None) -> None:
        self._cache, self._rotary, self._mask = cache, rotary, mask

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[1, heads, n, head_dim] each, not turned yet; [1, heads, n, head_dim]."""
        queries, keys = apply_rotary_pos_emb(queries, keys, *self._rotary)
        keys, values = self._cache[layer].update(keys, values)
        number = queries.shape[2]
        causal = self._mask is None and number > 1
        return scaled_dot_product_attention(
            queries, keys, values, self._mask, is_causal=causal, enable_gqa=queries.shape[1] != keys.shape[1]
        )


class Attention(nn.Module):
    """Llama's, or with norms of queries and keys Qwen3's, over states of any width."""

    def __init__(self, weights: Weights, name: str, config: LlamaConfig, index: int, width: int) -> None:
        super().__init__()
        self._index = index
        self._head_dim = config.head_dim
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = weights.linear(f"{name}.q_proj", queries, width)
        self.k_proj = weights.linear(f"{name}.k_proj", keys, width)
        self.v_proj = weights.linear(f"{name}.v_proj", keys, width)
        self.o_proj = weights.linear(f"{name}.o_proj", config.hidden_size, queries)
        self.q_norm = self.k_norm = None
        if f"{name}.q_norm.weight" in weights:
            self.q_norm = norm(weights, f"{name}.q_norm", config.head_dim, config)
            self.k_norm = norm(weights, f"{name}.k_norm", config.head_dim, config)

    def forward(self, states: Tensor, attend: Attend) -> Tensor:
        """[n, width] to [n, h]."""
        parts = [
            projected.view(1, len(states), -1, self._head_dim)
            for projected in (self.q_proj(states), self.k_proj(states), self.v_proj(states))
        ]
        if self.q_norm is not None and self.k_norm is not None:
            parts[:2] = [self.q_norm(parts[0]), self.k_norm(parts[1])]
        attended = attend(self._index, *(part.transpose(1, 2) for part in parts))
        out: Tensor = self.o_proj(attended.transpose(1, 2).reshape(len(states), -1))
        return out


class Layer(nn.Module):
    """An ordinary decoder layer; EAGLE's first one has no norm before its attention."""

    def __init__(self, weights: Weights, name: str, config: LlamaConfig, index: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        before = f"{name}.input_layernorm"
        self.input_layernorm = norm(weights, before, hidden, config) if f"{before}.weight" in weights else None
        self.self_attn = Attention(weights, f"{name}.self_attn", config, index, hidden)
        self.post_attention_layernorm = norm(weights, f"{name}.post_attention_layernorm", hidden, config)
        self.mlp = mlp(weights, f"{name}.mlp", config)

    def forward(self, hidden: Tensor, attend: Attend) -> Tensor:
        """[n, h] to the same."""
        normed = hidden if self.input_layernorm is None else self.input_layernorm(hidden)
        hidden = hidden + self.self_attn(normed, attend)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


def norm(weights: Weights, name: str, width: int, config: LlamaConfig) -> Any:
    """A root-mean-square norm."""
    return weights.into(LlamaRMSNorm(width, config.rms_norm_eps), name)


def mlp(weights: Weights, name: str, config: LlamaConfig) -> Any:
    """A gated feed-forward part; with biases where the files have them."""
    with torch.device("meta"):
        made = LlamaMLP(config)
    for part in ("gate_proj", "up_proj", "down_proj"):
        linear = getattr(made, part)
        setattr(made, part, weights.linear(f"{name}.{part}", linear.out_features, linear.in_features))
    return made


def layer_config(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], first: str) -> LlamaConfig:
    """The sizes of a head's layers, as transformers' modules take them.

    Args:
        config: of the head, flat.
        shapes: of its tensors: of a head's width only these are right in every layout.
        first: the name of its first attention.
    """
    heads = int(config["num_attention_heads"])
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping):
        scaling = config.get("rope_scaling") or {}
        # Not the target's: heads that do not say were trained with this one.
        rope = {**scaling, "rope_theta": config.get("rope_theta") or 10000.0}
        rope.setdefault("rope_type", rope.pop("type", "default"))
    return LlamaConfig(
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_attention_heads=heads,
        num_key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=shapes[f"{first}.q_proj.weight"][0] // heads,
        hidden_act=config.get("hidden_act", "silu"),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=int(config.get("max_position_embeddings") or 2048),
        rope_parameters=dict(rope),
    )
