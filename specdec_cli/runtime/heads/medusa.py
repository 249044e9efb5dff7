"""Medusa (Cai et al., arXiv 2401.10774): several small heads on the target's last state, each for a place of its own.

Head i at position q guesses the token of position q + 2 + i, and knows nothing of what the other heads guess.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from specdec_cli.errors import IncompatiblePairError
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.heads.parts import Output, TargetParts, Weights

PREFIX = "medusa_head."


class Medusa(nn.Module):
    """The network of all heads of one checkpoint, which has no cache.

    Args:
        head: as it was detected.
        parts: of the target.

    Raises:
        IncompatiblePairError: its layers take other states than the target's, or speak another vocabulary.
        SpecdecError: its tensors are not those of such heads.
    """

    drafts_by = "medusa-head"

    def __init__(self, head: Head, parts: TargetParts) -> None:
        super().__init__()
        name, width = head.files.place.name, parts.config.hidden_size
        tensors = {key.removeprefix(PREFIX): tensor for key, tensor in head.tensors().items()}
        weights = Weights(tensors, name, parts)
        number = 1 + max(int(key.partition(".")[0]) for key in tensors)  # published configurations say other numbers
        self.taps = head.taps(parts.config.num_hidden_layers)
        self.device, self._dtype = parts.device, parts.dtype
        self.layers, self.outputs = nn.ModuleList(), nn.ModuleList()
        for i in range(number):
            depth = sum(f"{i}.{layer}.linear.weight" in weights for layer in range(len(tensors)))
            shape = tuple(tensors[f"{i}.{depth}.weight"].shape) if f"{i}.{depth}.weight" in tensors else ()
            if shape and shape != (parts.config.vocab_size, width):
                raise IncompatiblePairError(
                    f"{name} makes {shape[0]:,} logits of states of {shape[1]:,} numbers, and the target has "
                    f"{parts.config.vocab_size:,} tokens and states of {width:,}: the head belongs to another target"
                )
            self.layers.append(nn.ModuleList(weights.linear(f"{i}.{k}.linear", width, width) for k in range(depth)))
            self.outputs.append(Output(weights.linear(f"{i}.{depth}", None, width), parts))
        weights.require_all_read()

    @property
    def output(self) -> Output:
        """Of the first head: all speak the same words."""
        output = self.outputs[0]
        assert isinstance(output, Output)
        return output

    @torch.inference_mode()
    def guesses(self, state: Tensor) -> Tensor:
        """[1, width], the target's last state, to [heads, vocab_size] float32 logits of as many places."""
        state = state.to(self.device, self._dtype)
        rows = []
        for layers, output in zip(self.layers, self.outputs, strict=True):
            assert isinstance(layers, nn.ModuleList)
            hidden = state
            for layer in layers:
                hidden = hidden + silu(layer(hidden))
            rows.append(output(hidden))
        return torch.cat(rows)
