"""What the algorithm needs of a model: logits for a block of tokens, and a cache that can be cut back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tap:
    """Which of a model's hidden states somebody wants, of every token.

    Attributes:
        boundary: 0 are the embeddings, i the output of decoder layer i - 1, the number of layers that of the last.
        normed: of the last layer's output, what the final norm makes of it.
    """

    boundary: int
    normed: bool = False


class ChainModel(Protocol):
    """A causal language model with its cache: what a draft model must be."""

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


class CachedModel(ChainModel, Protocol):
    """One that also reads trees, as targets do. Implemented by `specdec_cli.runtime.models.transformers_model`."""

    @property
    def block_limit(self) -> int:
        """Tokens that the next block may hold and be read in one pass; at least 1.

        Positions may change with the length of the text: a longer block would cost passes over all of it. What of a
        tree lies deeper is read, and must not be accepted.
        """
        ...

    def tap(self, taps: Sequence[Tap]) -> None:
        """From now on keep these hidden states of every pass of `forward` and `forward_tree`, and no others.

        Raises:
            IncompatiblePairError: the model does not give them.
        """
        ...

    def take_states(self) -> Tensor:
        """[n, width], the tapped states of all tokens that were read since this was last asked, side by side."""
        ...

    def require_trees(self, asked_by: str) -> None:
        """Call it before the first tree, on an empty cache; leaves it empty.

        Raises:
            IncompatiblePairError: the model cannot read trees; names `asked_by`, the option that wants them.
        """
        ...

    def forward_tree(self, token_ids: Tensor, parents: Tensor) -> Tensor:
        """Append a token and a tree behind it; [num_tree_tokens + 1, vocab_size] float32 logits after each of them.

        A token of the tree sees what was cached before, the first token, its ancestors and itself, and stands as many
        positions behind the first token as it is deep. Call `keep_path` before anything else is read.

        Args:
            token_ids: [num_tree_tokens + 1], the first token and the tree.
            parents: [num_tree_tokens] int64, see `specdec_cli.decoding.tree`.
        """
        ...

    def keep_path(self, num_tokens: int, path: Sequence[int]) -> None:
        """Of the last `num_tokens` tokens keep those at the places `path`, from 0 and ascending; forget the others."""
        ...


class Repeater(Protocol):
    """Records what a round does with a model, and repeats it as one launch. Implemented by `runtime.models.graphs`."""

    def repeat(
        self,
        key: Hashable,
        function: Callable[..., tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        num_tokens: int,
        generator: torch.Generator,
    ) -> tuple[Tensor, ...] | None:
        """`function(*inputs)`, or None where that must be run as it is.

        Args:
            key: all that the function knows beside tensors.
            function: feeds its inputs to the model, and never waits for the host; no other tensor may change.
            inputs: on any device.
            num_tokens: that the function appends to the model's cache.
            generator: of the model's device; the only source of random numbers.

        Returns:
            the results, overwritten when the same key is repeated.
        """
        ...

    def tell(self, note: str) -> None:
        """Report something that runs without recordings, once."""
        ...


def repeater_of(model: ChainModel) -> Repeater | None:
    """A model's own, where it has one."""
    repeater: Repeater | None = getattr(model, "repeater", None)
    return repeater
