"""DFlash (Chen et al., arXiv 2602.06036): a whole block of tokens in one pass, each slot guessed without the others.

The block is the last committed token and masks behind it, in the target's embeddings. Its layers attend to keys and
values made of the target's states of everything before, which alone are cached, and to the block itself, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.caches.buffered import BufferedLayer
from specdec_cli.runtime.heads.eagle3 import SAYS_NOTHING
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.heads.parts import TargetParts, Weights, output
from specdec_cli.runtime.heads.recurrent import Attention, Rotary, layer_config, mlp, norm

SLIDING = "sliding_attention"


class DFlash(nn.Module):
    """The network of one head; a `specdec_cli.decoding.head.BlockHead`.

    Args:
        head: as it was detected.
        parts: of the target.

    Attributes:
        most: tokens that a block guesses.

    Raises:
        SpecdecError: its tensors are not those that its configuration describes, or it names no mask.
    """

    drafts_by = "block-head"
    conditions = False  # no slot knows what another guesses

    def __init__(self, head: Head, parts: TargetParts) -> None:
        super().__init__()
        name, flags = head.files.place.name, head.config
        nested = flags.get("dflash_config")
        self._options: Mapping[str, Any] = {**flags, **(nested if isinstance(nested, Mapping) else {})}
        self._block_size, self._mask_id = (self._number(key, name) for key in ("block_size", "mask_token_id"))
        if not 0 <= self._mask_id < parts.config.vocab_size:
            raise SpecdecError(f"{name}: its mask_token_id {self._mask_id} is no token of the target: choose another")
        weights = Weights(head.tensors(), name, parts)
        config = layer_config(flags, head.shapes, "layers.0.self_attn")
        hidden = config.hidden_size
        number = sum(f"layers.{i}.mlp.down_proj.weight" in weights for i in range(len(head.shapes)))
        self.taps = head.taps(parts.config.num_hidden_layers)
        self.device, self.dtype = parts.device, parts.dtype
        self.embed = parts.embed
        self.rotary = LlamaRotaryEmbedding(config).to(parts.device)
        self.fc = weights.linear("fc", hidden, len(self.taps) * head.target_hidden_size)
        self.hidden_norm = norm(weights, "hidden_norm", hidden, config)
        kinds = flags.get("layer_types") or [""] * number
        window = flags.get("sliding_window")
        windows = [int(window) if kind == SLIDING and window else None for kind in kinds]
        self._causal = not flags.get("sliding_window_non_causal", False)
        self._from_anchor = head.layout == "speculators"
        self.layers = nn.ModuleList(BlockLayer(weights, f"layers.{i}", config, i, windows[i]) for i in range(number))
        self.norm = norm(weights, "norm", hidden, config)
        self.output = output(weights, parts, parts.config.vocab_size, hidden, name)
        self.first_slot = 1
        self._read_more(weights, head, parts)
        weights.require_all_read(*SAYS_NOTHING, "embed_tokens.weight")
        self.most = self._block_size - self.first_slot
        self.reset()

    @property
    def length(self) -> int:
        """Tokens whose states are cached."""
        return self._length

    def reset(self) -> None:
        """Empty the cache."""
        self._cache = [BufferedLayer() for _ in self.layers]
        self._length = 0

    def read(self, states: Tensor, token_ids: Tensor) -> None:
        """Append the target's states [n, width]; the tokens behind them say nothing here."""
        context = self._context(states)
        rotary = self._turn(context, self._length)
        for layer, cache in zip(self.layers, self._cache, strict=True):
            assert isinstance(layer, BlockLayer)
            cache.update(*layer.keys_and_values(context, rotary))
        self._length += len(states)

    def guess(self, states: Tensor, token_ids: Tensor, number: int) -> Tensor:
        """Append states, and guess behind the last token: [number, vocab_size] float32 logits, `most` at most.

        Args:
            states: [n, width] of the target.
            token_ids: [n] behind each; the last one begins the block.
            number: of slots.
        """
        self.read(states, token_ids)
        slots = self._slots(token_ids[-1:])
        return self.output(slots[self.first_slot : self.first_slot + number])

    def _slots(self, last: Tensor) -> Tensor:
        """[block_size, h], what the output layer takes for each slot of the block that begins with a token [1]."""
        masks = last.new_full((self._block_size - 1,), self._mask_id)
        hidden = self.embed(torch.cat([last, masks])[None])[0].to(self.device, self.dtype)
        rotary = self._turn(hidden, self._length)
        for layer, cache in zip(self.layers, self._cache, strict=True):
            assert isinstance(layer, BlockLayer)
            hidden = layer(hidden, rotary, cache, self._mask(layer.window))
        out: Tensor = self.norm(hidden)
        return out

    def _mask(self, window: int | None) -> Tensor | None:
        """[block_size, length + block_size] bool for a sliding layer: what each slot sees; None for all."""
        if window is None:
            return None
        size, length = self._block_size, self._length
        slots = length + torch.arange(size, device=self.device)[:, None]
        places = torch.arange(length + size, device=self.device)[None]
        # speculators has so many tokens before the block's first one, the dflash package so many up to each slot.
        seen = (places >= length - window).expand(size, -1) if self._from_anchor else places > slots - window
        return seen & (places <= slots) if self._causal else seen

    def _context(self, states: Tensor) -> Tensor:
        context: Tensor = self.hidden_norm(self.fc(states.to(self.device, self.dtype)))
        return context

    def _turn(self, like: Tensor, first: int) -> Rotary:
        places = torch.arange(first, first + len(like), device=self.device)
        cos, sin = self.rotary(like[None], places[None])
        return cos, sin

    def _read_more(self, weights: Weights, head: Head, parts: TargetParts) -> None:
        """What a kind has beside."""

    def _number(self, key: str, name: str) -> int:
        value = self._options.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise SpecdecError(f"{name}: its config.json gives no {key}: download it again")
        return value


class BlockLayer(nn.Module):
    """A decoder layer whose queries come from the block, and whose keys and values from the context, too."""

    def __init__(self, weights: Weights, name: str, config: Any, index: int, window: int | None) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.window = window
        self._head_dim = config.head_dim
        self.input_layernorm = norm(weights, f"{name}.input_layernorm", hidden, config)
        self.self_attn = Attention(weights, f"{name}.self_attn", config, index, hidden)
        self.post_attention_layernorm = norm(weights, f"{name}.post_attention_layernorm", hidden, config)
        self.mlp = mlp(weights, f"{name}.mlp", config)

    def keys_and_values(self, states: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """[1, heads, n, head_dim] of [n, h] states, keys turned by their positions."""
        own = self.self_attn
        keys, values = (part(states).view(1, len(states), -1, self._head_dim) for part in (own.k_proj, own.v_proj))
        keys = (keys if own.k_norm is None else own.k_norm(keys)).transpose(1, 2)
        return apply_rotary_pos_emb(keys, keys, *rotary)[1], values.transpose(1, 2)

    def forward(self, hidden: Tensor, rotary: Rotary, cache: BufferedLayer, mask: Tensor | None) -> Tensor:
        """[block_size, h] to the same; the cache is as it was."""
        own, size = self.self_attn, len(hidden)
        normed = self.input_layernorm(hidden)
        queries = own.q_proj(normed).view(1, size, -1, self._head_dim)
        queries = (queries if own.q_norm is None else own.q_norm(queries)).transpose(1, 2)
        queries = apply_rotary_pos_emb(queries, queries, *rotary)[0]
        keys, values = cache.update(*self.keys_and_values(normed, rotary))
        attended = scaled_dot_product_attention(
            queries, keys, values, mask, enable_gqa=queries.shape[1] != keys.shape[1]
        )
        cache.crop(-size)
        hidden = hidden + own.o_proj(attended.transpose(1, 2).reshape(size, -1))
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out
