"""A draft's output head with fewer rows: tokens that hardly ever come need not be computed for every guess.

A small draft of a large vocabulary spends much of a step on its head. A head that knows the frequent tokens alone gives
the others probability 0: the rule then never sees them proposed, and the target puts them in where they belong, so the
output keeps its distribution whatever is cut (frequency-ranked drafting: Zhao et al., FR-Spec, arXiv 2502.14856).

The prompt's own tokens are added for as long as it is answered, since names in it come again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec_cli.runtime.layers.quantized_linear import QuantizedLinear, is_plain, take_rows


class CutHead(nn.Module):
    """[..., hidden] in, [..., num_rows] logits out, -inf for tokens outside.

    Args:
        head: the whole one, rounded or not.
        kept_ids: ascending.

    Attributes:
        part: the head's kept rows; may be quantised like any linear layer.
        kept_ids: as given.
        outside: [num_rows], the ids whose logits are -inf. Models that bend their logits afterwards (Gemma's soft
            capping) make numbers of them, so whoever samples masks these ids once more.
    """

    outside: Tensor

    def __init__(self, head: nn.Module, kept_ids: Tensor) -> None:
        super().__init__()
        self.part = take_rows(head, kept_ids)
        self.kept_ids = kept_ids
        self._num_rows: int = head.out_features  # type: ignore[assignment]
        # Rows for tokens of a prompt are taken from here; in a tuple, so that they are no weights of this module.
        self._whole = (head,)
        self._room: int | None = None
        self._extra: tuple[nn.Module, ...] = ()
        self.forget_prompt()

    def hold(self, num_extra: int) -> bool:
        """From here on take a prompt's rows into tensors that stay where they are, as a recording of a pass needs.

        Args:
            num_extra: of a prompt's tokens; further ones are left out.

        Returns:
            False, and all is as it was, where the head is rounded.
        """
        (head,) = self._whole
        if type(head) is not nn.Linear:
            return False
        self._room = num_extra
        self._extra = (take_rows(head, self.kept_ids.new_zeros(num_extra)),)
        self._ids = torch.cat([self.kept_ids, self.kept_ids.new_zeros(num_extra)])
        self.outside = self.outside.clone()
        self.forget_prompt()
        return True

    def forget_prompt(self) -> None:
        """Know the kept tokens alone."""
        if self._room is None:
            self._ids = self.kept_ids
            self._extra = ()
            self.outside = self.kept_ids.new_ones(self._num_rows, dtype=torch.bool)
        else:
            self._ids[len(self.kept_ids) :] = self._num_rows  # a column that `forward` cuts off
            self.outside.fill_(True)
        self.outside[self.kept_ids] = False

    def read_prompt(self, token_ids: Tensor) -> None:
        """Know the tokens of a prompt as well, until the next one: [n] ids, those without a row left out."""
        token_ids = token_ids[token_ids < self._num_rows].unique()
        new = token_ids[self.outside[token_ids]][: self._room]
        if not len(new):
            return
        rows = take_rows(self._whole[0], new)
        if self._room is None:
            self._extra = (rows,)
            self._ids = torch.cat([self.kept_ids, new])
        else:
            for held, given in zip(self._extra[0].parameters(), rows.parameters(), strict=True):
                held[: len(new)] = given
            self._ids[len(self.kept_ids) :][: len(new)] = new
        self.outside[new] = False

    def forward(self, states: Tensor) -> Tensor:
        logits = torch.cat([layer(states) for layer in (self.part, *self._extra)], dim=-1)
        if self._room is not None:
            whole = logits.new_full((*logits.shape[:-1], self._num_rows + 1), -torch.inf)
            return whole.index_copy_(-1, self._ids, logits)[..., :-1]
        whole = logits.new_full((*logits.shape[:-1], self._num_rows), -torch.inf)
        return whole.index_copy_(-1, self._ids, logits)


def cut_head(model: Any, kept_ids: Sequence[int]) -> None:
    """Put a cut head into the place of a model's own, which must be one that `can_be_cut`.

    Args:
        model: a causal language model of transformers; changed where it stands.
        kept_ids: ascending.
    """
    head: Any = model.get_output_embeddings()
    with torch.no_grad():
        cut = CutHead(head, torch.tensor(kept_ids, device=model.device))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is head:
                setattr(parent, name, cut)


def can_be_cut(head: nn.Module | None) -> bool:
    """Whether some of its rows make a head: it is a plain linear layer, or one that was rounded here."""
    return is_plain(head) or isinstance(head, QuantizedLinear)
