"""What the algorithm needs of a model: logits for a block of tokens, and a cache that can be cut back."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class CachedModel(Protocol):
    """A causal language model with its cache. Implemented by `specdec_cli.runtime.kv_cache`."""

    @property
    def device(self) -> torch.device:
        """Where token ids go in and logits come out."""
        ...

    @property
    def vocab_size(self) -> int:
        """Width of the logits: the ids that the pair shares or that only the target has."""
        ...

    @property
    def max_length(self) -> int:
        """Tokens that the model has positions for."""
        ...

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        ...

    def reset(self) -> None:
        """Empty the cache."""
        ...

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """Append [n] ids to the cache; [num_logits, vocab_size] float32 logits after the last of them.

        Ids that cannot be emitted (padding rows of the embedding) are -inf.
        """
        ...

    def roll_back(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` (0 or more) tokens. Call it after every block, also with 0."""
        ...
