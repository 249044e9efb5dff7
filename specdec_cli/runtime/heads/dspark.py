"""DSpark: a DFlash block, and a small table that tells each slot which token was drawn before it.

With it a slot's distribution is that of the token given the ones before, so that slots can be drawn in turn. The
table's form that keeps a state of its own from slot to slot ("rnn") is not read here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.heads.dflash import DFlash
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.heads.parts import TargetParts, Weights

FORMS = ("vanilla", "gated")


class DSpark(DFlash):
    """The network of one head; its slots begin with the block's first, as speculators, DeepSpec and SGLang have it.

    Raises:
        SpecdecError: its table is of another form.
    """

    conditions = True

    def _read_more(self, weights: Weights, head: Head, parts: TargetParts) -> None:
        name = head.files.place.name
        form = str(self._options.get("markov_head_type", "vanilla"))
        if form not in FORMS:
            raise SpecdecError(f"{name} has a Markov head of the form '{form}', and {' and '.join(FORMS)} are read")
        rank = self._number("markov_rank", name)
        self.before = weights.embedding("markov_head.markov_w1", parts.config.vocab_size, rank)
        self.after = weights.linear("markov_head.markov_w2", len(self.output.words), rank)
        self.gate: nn.Linear | None = None
        if form == "gated":
            self.gate = weights.linear("markov_head.gate_proj", rank, None)
        for part in ("weight", "bias"):  # of how sure it is, which only says when to stop
            if f"confidence_head.proj.{part}" in weights:
                weights.raw(f"confidence_head.proj.{part}")
        self.first_slot = 0 if self._options.get("sample_from_anchor", True) else 1

    def guess(self, states: Tensor, token_ids: Tensor, number: int) -> Tensor:
        """As in DFlash; `conditioned` makes of a row the logits behind a given token."""
        self.read(states, token_ids)
        self._hidden = self._slots(token_ids[-1:])[self.first_slot : self.first_slot + number]
        return self.output(self._hidden)

    def conditioned(self, logits: Tensor, slot: int, previous: Tensor) -> Tensor:
        """[1, vocab_size] logits of a slot of the last block, behind the token [1] that stands before it."""
        before = self.before(previous.to(self.device))
        if self.gate is not None:
            before = self.gate(torch.cat([self._hidden[slot : slot + 1], before], -1)).sigmoid() * before
        bias = self.after(before).float()
        return logits + self.output.spread(bias, 0.0)
