"""What every head is built of: its tensors by name, what it borrows of the target, and the vocabulary it speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from specdec_cli.errors import IncompatiblePairError, SpecdecError


@dataclass(frozen=True)
class TargetParts:
    """What a head takes of the loaded target.

    Attributes:
        embed: ids to embeddings.
        lm_head: a state after the final norm to logits.
        config: of the target's language model.
        device: where the head will be.
        dtype: of its weights.
        vocab_size: width of the logits that the loop sees.
        blocked_ids: ids below it that must never be drafted.
        output_dtype: of what goes into `lm_head`; None where that is `dtype`.
    """

    embed: nn.Module
    lm_head: nn.Module
    config: PreTrainedConfig
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    blocked_ids: Tensor | None = None
    output_dtype: torch.dtype | None = None


class Weights:
    """A head's tensors, each asked for by name; what nobody asked for in the end was not understood.

    Args:
        tensors: by the names of `kinds.Head.tensors`.
        name: of the head, for messages.
        parts: for device and number type.
    """

    def __init__(self, tensors: Mapping[str, Tensor], name: str, parts: TargetParts) -> None:
        self._tensors = dict(tensors)
        self._name = name
        self._parts = parts
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def raw(self, name: str, *shape: int | None) -> Tensor:
        """A tensor as it is stored.

        Args:
            name: of it.
            shape: that it must have; None for any size.

        Raises:
            SpecdecError: it is missing, or of another shape.
        """
        self._asked.add(name)
        found = self._tensors.get(name)
        if found is None:
            raise SpecdecError(f"{self._name} has no tensor {name}: download it again, or choose another")
        wanted = len(shape) != found.dim() or any(s not in (None, n) for s, n in zip(shape, found.shape, strict=False))
        if shape and wanted:
            raise SpecdecError(
                f"{self._name}: {name} is {_by(found.shape)} and its config.json makes it {_by(shape)}: one of the two "
                "is another head's"
            )
        return found

    def tensor(self, name: str, *shape: int | None) -> Tensor:
        """The same, in the head's number type and on its device."""
        return self.raw(name, *shape).to(self._parts.device, self._parts.dtype)

    def linear(self, name: str, out: int | None = None, into: int | None = None) -> nn.Linear:
        """A linear layer, with a bias where the files have one."""
        weight = self.tensor(f"{name}.weight", out, into)
        bias = self.tensor(f"{name}.bias", weight.shape[0]) if f"{name}.bias" in self else None
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        made.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            made.bias = nn.Parameter(bias, requires_grad=False)
        return made

    def into(self, module: nn.Module, name: str) -> Any:
        """A module of transformers' with its weights from here, by the names below `name`."""
        for part, parameter in list(module.named_parameters()):
            tensor = self.tensor(f"{name}.{part}", *parameter.shape)
            parent, _, last = part.rpartition(".")
            setattr(module.get_submodule(parent), last, nn.Parameter(tensor, requires_grad=False))
        return module

    def embedding(self, name: str, rows: int | None, width: int) -> nn.Embedding:
        """A table of embeddings."""
        return nn.Embedding.from_pretrained(self.tensor(f"{name}.weight", rows, width))

    def require_all_read(self, *ignored: str) -> None:
        """Refuse tensors that nothing was made of: the head computes something else then.

        Args:
            ignored: names, or their ends, that say nothing.

        Raises:
            SpecdecError: naming one of them.
        """
        rest = [name for name in self._tensors if name not in self._asked and not name.endswith(ignored)]
        if rest:
            more = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
            raise SpecdecError(
                f"{self._name} has a tensor {rest[0]}{more}, which no head of its kind has here: choose another"
            )


class Output(nn.Module):
    """States to float32 logits over the target's ids; -inf where the head has no word for one.

    Args:
        head: states to logits over the head's own vocabulary.
        parts: of the target.
        target_ids: [draft vocabulary] of the head's tokens, ids of the target; None where both are the same.
    """

    def __init__(self, head: nn.Module, parts: TargetParts, target_ids: Tensor | None = None) -> None:
        super().__init__()
        self.head = head
        self.vocab_size = parts.vocab_size
        self._dtype = parts.output_dtype or parts.dtype if head is parts.lm_head else parts.dtype
        self._ids = None if target_ids is None else target_ids.to(parts.device)
        self._blocked = None if parts.blocked_ids is None else parts.blocked_ids.to(parts.device)

    @property
    def words(self) -> Tensor:
        """Ids of the target that the head can draft, in the order of its own."""
        return torch.arange(self.vocab_size) if self._ids is None else self._ids

    @property
    def is_reduced(self) -> bool:
        """Whether it speaks a vocabulary of its own."""
        return self._ids is not None

    def cut(self, kept_ids: Tensor, take_rows: Callable[[nn.Module, Tensor], nn.Module]) -> None:
        """From here on compute these tokens alone, [n] ascending ids."""
        self.head = take_rows(self.head, kept_ids)
        self._ids = kept_ids

    def spread(self, figures: Tensor, elsewhere: float) -> Tensor:
        """Figures of the head's own words, [n, draft vocabulary], over the target's ids: [n, vocab_size]."""
        if self._ids is None:
            return figures[:, : self.vocab_size]
        full = figures.new_full((len(figures), self.vocab_size), elsewhere)
        return full.index_copy_(-1, self._ids, figures)

    def forward(self, states: Tensor) -> Tensor:
        """[n, h] to [n, vocab_size]."""
        logits = self.spread(self.head(states[None].to(self._dtype))[0].float(), -torch.inf)
        return logits if self._blocked is None else logits.index_fill(-1, self._blocked, -torch.inf)


def output(weights: Weights, parts: TargetParts, num_rows: int, width: int, name: str) -> Output:
    """A head's own output layer, with the target's ids for its words; or the target's, where it brings none.

    Args:
        num_rows: of the target's embedding.
        width: of the states that go in.
        name: of the head, for messages.

    Raises:
        SpecdecError: a reduced vocabulary without its ids.
        IncompatiblePairError: ids that the target has not.
    """
    if "lm_head.weight" not in weights:
        if width != parts.config.hidden_size:
            raise SpecdecError(f"{name} has no lm_head, and states that the target's does not take: download it again")
        return Output(parts.lm_head, parts)
    head = weights.linear("lm_head", None, width)
    rows = head.weight.shape[0]
    if "d2t" not in weights:
        if rows != num_rows:
            raise SpecdecError(
                f"{name} drafts {rows:,} of {num_rows:,} tokens, and has no d2t that says which: download it again"
            )
        return Output(head, parts)
    offsets = weights.raw("d2t", rows).long()
    ids = target_ids(offsets, num_rows, name)
    return Output(head, parts, None if rows == num_rows and not bool(offsets.any()) else ids)


def target_ids(offsets: Tensor, num_rows: int, name: str) -> Tensor:
    """The target's id of each of a head's tokens.

    Args:
        offsets: d2t, [draft vocabulary]: what is to be added to the head's own id.
        num_rows: of the target's embedding.
        name: of the head, for messages.

    Raises:
        IncompatiblePairError: the target has no such ids, or two tokens are one.
    """
    rows = len(offsets)
    ids = torch.arange(rows) + offsets
    if int(ids.min()) < 0 or int(ids.max()) >= num_rows or len(ids.unique()) != rows:
        raise IncompatiblePairError(
            f"{name}: its d2t makes ids from {int(ids.min()):,} to {int(ids.max()):,} of its {rows:,} tokens, "
            f"{len(ids.unique()):,} different ones, and the target has {num_rows:,}: the head belongs to another target"
        )
    return ids


def _by(shape: Sequence[int | None]) -> str:
    return " x ".join("any" if n is None else str(n) for n in shape)
