"""EAGLE (Li et al., arXiv 2401.15077), EAGLE-2 and HASS: one layer on the target's last state, one set of weights.

Embedding and state go through `fc` on every step, the head's own states too; the target's output layer speaks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specdec_cli.runtime.heads.eagle3 import SAYS_NOTHING
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.heads.parts import Output, TargetParts, Weights
from specdec_cli.runtime.heads.recurrent import Attend, Layer, RecurrentHead, layer_config


class Eagle(RecurrentHead):
    """The network of one head.

    Args:
        head: as it was detected.
        parts: of the target.

    Raises:
        SpecdecError: its tensors are not those that its configuration describes.
    """

    def __init__(self, head: Head, parts: TargetParts) -> None:
        weights = Weights(head.tensors(), head.files.place.name, parts)
        config = layer_config(head.config, head.shapes, "layers.0.self_attn")
        hidden = config.hidden_size
        num_layers = sum(f"layers.{i}.mlp.down_proj.weight" in weights for i in range(len(head.shapes)))
        embed = parts.embed  # a copy in the files is the same
        taps = head.taps(parts.config.num_hidden_layers)
        super().__init__(config, num_layers, taps, embed, Output(parts.lm_head, parts), parts.device, parts.dtype)
        self.fc = weights.linear("fc", hidden, 2 * hidden)
        self.layers = nn.ModuleList(Layer(weights, f"layers.{i}", config, i) for i in range(num_layers))
        weights.require_all_read(*SAYS_NOTHING, "embed_tokens.weight", "lm_head.weight")

    def project(self, states: Tensor) -> Tensor:
        """As they are: `fc` takes them with the embedding."""
        return states

    def layers_of(self, hidden: Tensor, embedded: Tensor, attend: Attend) -> Tensor:
        """Embedding first."""
        hidden = self.fc(torch.cat([embedded, hidden], -1))
        for layer in self.layers:
            hidden = layer(hidden, attend)
        return hidden
