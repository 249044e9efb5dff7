"""Hidden states on their way from the target to a drafter that reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tap:
    """A place in the target whose hidden states a drafter reads.

    Attributes:
        boundary: 0 for the embeddings, i for the output of layer i, counted from 1.
        normed: of the last layer's output, after the final norm: what the head on top of the model reads, and what
            transformers calls its last hidden state. Without it, before that norm.
    """

    boundary: int
    normed: bool = False


@dataclass
class PendingStates:
    """States of the tokens that entered the target's cache, and that the drafter has not taken yet."""

    _parts: list[Tensor] = field(default_factory=list)

    def add(self, states: Tensor) -> None:
        """[n, width] of the next n tokens of the text."""
        self._parts.append(states)

    def take(self) -> Tensor:
        """[n, width] of all tokens since the last time, in the text's order; [0, 0] where there are none."""
        parts, self._parts = self._parts, []
        return torch.cat(parts) if parts else torch.empty(0, 0)
