"""EAGLE-3 (Li et al., arXiv 2503.01840) and 3.1, in every published layout.

Several of the target's states go through `fc`, which a head's own states never see. The first layer attends over the
token's embedding and the state side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.heads.parts import TargetParts, Weights, output
from specdec_cli.runtime.heads.recurrent import Attend, Attention, Layer, RecurrentHead, layer_config, mlp, norm

# Masks that d2t says already, and tables that are computed.
SAYS_NOTHING = ("t2d", "rotary_emb.inv_freq")


class Eagle3(RecurrentHead):
    """The network of one head.

    Args:
        head: as it was detected.
        parts: of the target.

    Raises:
        SpecdecError: its tensors are not those that its configuration describes.
    """

    def __init__(self, head: Head, parts: TargetParts) -> None:
        name, flags = head.files.place.name, head.config
        weights = Weights(head.tensors(), name, parts)
        config = layer_config(flags, head.shapes, "layers.0.self_attn")
        hidden, num_rows = config.hidden_size, parts.config.vocab_size
        num_layers = sum(f"layers.{i}.mlp.down_proj.weight" in weights for i in range(len(head.shapes)))
        taps = head.taps(parts.config.num_hidden_layers)
        embed = embeddings(head, weights, parts, hidden)
        super().__init__(
            config, num_layers, taps, embed, output(weights, parts, num_rows, hidden, name), parts.device, parts.dtype
        )
        width = head.target_hidden_size
        self.fc = weights.linear("fc", hidden, len(taps) * width)
        self.input_norm = self.fc_norm = None
        if flags.get("norm_before_fc"):
            self.input_norm = norm(weights, "input_norm", len(taps) * width, config)
        if flags.get("fc_norm"):
            self.fc_norm = nn.ModuleList(norm(weights, f"fc_norm.{i}", width, config) for i in range(len(taps)))
        self.first = FirstLayer(weights, "layers.0", config, bool(flags.get("norm_before_residual")))
        self.others = nn.ModuleList(Layer(weights, f"layers.{i}", config, i) for i in range(1, num_layers))
        self.norm = norm(weights, "norm", hidden, config)
        self._recycle_normed = bool(flags.get("norm_output"))
        self._more(weights)
        weights.require_all_read(*SAYS_NOTHING, "embed_tokens.weight")

    def _more(self, weights: Weights) -> None:
        """What a head has beside that is built on this one."""

    def project(self, states: Tensor) -> Tensor:
        """The target's states [n, taps * width] as the layers take them, [n, h]."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            chunks = states.chunk(len(self.fc_norm), -1)
            states = torch.cat([own(chunk) for own, chunk in zip(self.fc_norm, chunks, strict=True)], -1)
        projected: Tensor = self.fc(states)
        return projected

    def layers_of(self, hidden: Tensor, embedded: Tensor, attend: Attend) -> Tensor:
        """All layers."""
        hidden = self.first(hidden, embedded, attend)
        for layer in self.others:
            hidden = layer(hidden, attend)
        return hidden

    def spoken(self, out: Tensor) -> Tensor:
        """Normed."""
        normed: Tensor = self.norm(out)
        return normed

    def recycled(self, out: Tensor) -> Tensor:
        """As it is; normed in 3.1."""
        return self.spoken(out) if self._recycle_normed else out


class FirstLayer(nn.Module):
    """The layer that joins embedding and state, embedding first."""

    def __init__(self, weights: Weights, name: str, config: LlamaConfig, norm_before_residual: bool) -> None:
        super().__init__()
        hidden = config.hidden_size
        self._norm_before_residual = norm_before_residual
        self.input_layernorm = norm(weights, f"{name}.input_layernorm", hidden, config)
        self.hidden_norm = norm(weights, f"{name}.hidden_norm", hidden, config)
        self.self_attn = Attention(weights, f"{name}.self_attn", config, 0, 2 * hidden)
        self.post_attention_layernorm = norm(weights, f"{name}.post_attention_layernorm", hidden, config)
        self.mlp = mlp(weights, f"{name}.mlp", config)

    def forward(self, hidden: Tensor, embedded: Tensor, attend: Attend) -> Tensor:
        """[n, h] states and embeddings to [n, h]."""
        normed = self.hidden_norm(hidden)
        residual = normed if self._norm_before_residual else hidden
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        hidden = residual + self.self_attn(both, attend)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


def embeddings(head: Head, weights: Weights, parts: TargetParts, width: int) -> nn.Module:
    """The head's own table where its layout means that; else the target's.

    Raises:
        SpecdecError: neither fits.
    """
    own = "embed_tokens.weight" in weights
    wide = width != parts.config.hidden_size
    if own and (wide or head.layout != "SpecForge"):
        return weights.embedding("embed_tokens", parts.config.vocab_size, width)
    if wide:
        raise SpecdecError(
            f"{head.files.place.name} has no embeddings, and states of {width:,} numbers where the target's have "
            f"{parts.config.hidden_size:,}: download it again"
        )
    return parts.embed
