"""What the algorithm needs of a trained head: guesses from the target's hidden states, and a cache of its own."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specdec_cli.decoding.model import Tap


class TrainedHead(Protocol):
    """Any kind of them.

    Attributes:
        taps: the target's states that it reads, side by side, in this order.
        drafts_by: the drafter that drives it, by its name in `specdec_cli.drafters.MODULES`.
    """

    taps: tuple[Tap, ...]
    drafts_by: str

    @property
    def device(self) -> torch.device:
        """Where ids go in and logits come out; states may come from another."""
        ...


class MedusaHeads(TrainedHead, Protocol):
    """Heads that guess each place alone. Implemented by `specdec_cli.runtime.heads.medusa`."""

    def guesses(self, state: Tensor) -> Tensor:
        """[1, width], the target's state of the last token but one, to [heads, vocab_size] float32 logits.

        Row i is of the token i places behind the last one.
        """
        ...


class BlockHead(TrainedHead, Protocol):
    """A head that guesses a block in one pass. Implemented by `specdec_cli.runtime.heads.dflash` and its kin.

    Attributes:
        most: tokens that a block can guess.
        conditions: whether a slot can be told what stands before it, by `conditioned`.
    """

    most: int
    conditions: bool

    @property
    def length(self) -> int:
        """Tokens whose states are cached."""
        ...

    def reset(self) -> None:
        """Empty the cache."""
        ...

    def read(self, states: Tensor, token_ids: Tensor) -> object:
        """Append the target's states [n, width] and the tokens [n] behind them."""
        ...

    def guess(self, states: Tensor, token_ids: Tensor, number: int) -> Tensor:
        """The same, and guess behind the last token: [number, vocab_size] float32 logits; no guess stays cached."""
        ...

    def conditioned(self, logits: Tensor, slot: int, previous: Tensor) -> Tensor:
        """[1, vocab_size] logits of a slot of the last block behind the token [1] that stands before it."""
        ...


class RecurrentHead(TrainedHead, Protocol):
    """One that goes on with its own states. Implemented by `specdec_cli.runtime.heads.recurrent`.

    Pair i is the target's state of position i with the token of position i + 1. Logits are float32 over the target's
    ids, -inf for those that the head has no word for.
    """

    @property
    def length(self) -> int:
        """Pairs in the cache."""
        ...

    def reset(self) -> None:
        """Empty the cache."""
        ...

    def read(self, states: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Append pairs of [n, width] states and [n] ids; [1, vocab_size] logits, [1, h] state behind the last."""
        ...

    def step(self, hidden: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Append a pair of an own state [1, h] and a token [1]; logits and state as `read` gives them."""
        ...

    def step_tree(self, hidden: Tensor, token_ids: Tensor, seen: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Append one generation of a tree behind what `read` made: [m, vocab_size] logits and [m, h] states.

        Args:
            hidden: [m, h], the states of the parents.
            token_ids: [m].
            seen: [m, t + m] bool, which of the tree's t entries before and of these a row sees, itself included.
            depth: of these tokens; those behind the last pair have 0.
        """
        ...

    def roll_back(self, num_pairs: int) -> None:
        """Forget the last so many pairs (0 or more)."""
        ...
