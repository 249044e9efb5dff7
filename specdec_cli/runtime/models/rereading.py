"""Models whose rotary frequencies follow the length of the text, so that now and then all of it is read anew.

Such a model gives, after a text, what one pass over that text alone gives: all of its keys turned by the frequencies
of its length. A cache holds keys as they were turned, so it is computed anew whenever the frequencies change, and no
pass has rows whose frequencies differ. The frequencies are held still during a pass: transformers chooses them by the
highest position that it meets, which may be that of a guess.

longrope: the frequencies change once, at the border. For Phi-3, transformers' own `generate` computes the cache anew
there too. dynamic: they change with every token beyond the border, so there each token costs a pass over the whole
text, and nothing is drafted. `generate` leaves the keys of earlier tokens as they were instead, which is quicker; what
it says then depends on where the prompt ended and on how long earlier texts were, and is not what the model gives for
the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specdec_cli.errors import IncompatiblePairError
from specdec_cli.runtime.models.positions import DYNAMIC, UNLIMITED, border, follows_length, rope_types
from specdec_cli.runtime.models.transformers_model import TransformersModel

HELD = "held"  # a type that transformers has no rule for, so that it leaves the frequencies alone

Lengths = tuple[int, ...]  # of each part, the length of a text that has the same frequencies


@dataclass(frozen=True)
class _Part:
    """The frequencies of one rotary embedding, or of those of its layers that are of one type."""

    module: Any
    layer_type: str | None
    rope_type: str
    border: int

    @property
    def grows(self) -> bool:
        return DYNAMIC in self.rope_type

    @property
    def buffer(self) -> str:
        return "inv_freq" if self.layer_type is None else f"{self.layer_type}_inv_freq"

    def like(self, length: int) -> int:
        """A length with the same frequencies, the same one for all of these."""
        return max(self.border, length if self.grows else min(length, self.border + 1))

    def alike_from(self, length: int) -> int:
        """How many lengths, from this one on, have the same frequencies."""
        if length <= self.border:
            return self.border - length + 1
        return 1 if self.grows else UNLIMITED

    def frequencies(self, length: int) -> Tensor:
        make = ROPE_INIT_FUNCTIONS[self.rope_type]
        device = getattr(self.module, self.buffer).device
        made: Tensor = make(self.module.config, device, seq_len=length, layer_type=self.layer_type)[0]
        return made


class TextFrequencies:
    """The rotary frequencies of a model, where they follow the length of the text."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self._made: tuple[Lengths, list[Tensor]] = ((), [])

    @property
    def grow(self) -> bool:
        """Whether every token changes them, beyond the border."""
        return any(part.grows for part in self._parts)

    @property
    def border(self) -> int:
        """Tokens of the longest text that has the first ones."""
        return min(part.border for part in self._parts)

    def note(self, role: str) -> str:
        """What they cost, in a line."""
        tokens = f"{self.border:,} tokens"
        if not self.grow:
            return f"rotary frequencies change beyond {tokens}: there it reads the text anew, once"
        if role == "draft":
            return f"rotary frequencies change with every token beyond {tokens}: there it proposes nothing"
        return (
            f"rotary frequencies change with every token beyond {tokens}: there each takes a pass over the whole text, "
            "and nothing is drafted"
        )

    def like(self, length: int) -> Lengths:
        """What a text's frequencies are known by: equal for lengths that have the same."""
        return tuple(part.like(length) for part in self._parts)

    def alike_from(self, length: int) -> int:
        """How many lengths, from this one on, have the same frequencies; at least 1."""
        return min(part.alike_from(length) for part in self._parts)

    @contextmanager
    def held(self, lengths: Lengths) -> Iterator[None]:
        """The model with those frequencies, whatever positions it meets; afterwards it is as transformers made it."""
        if self._made[0] != lengths:
            self._made = (lengths, [part.frequencies(n) for part, n in zip(self._parts, lengths, strict=True)])
        before = [(part.module.rope_type, getattr(part.module, part.buffer)) for part in self._parts]
        try:
            for part, frequencies in zip(self._parts, self._made[1], strict=True):
                setattr(part.module, part.buffer, frequencies)
                kinds = part.module.rope_type
                part.module.rope_type = HELD if part.layer_type is None else {**kinds, part.layer_type: HELD}
            yield
        finally:
            for part, (kinds, frequencies) in reversed([*zip(self._parts, before, strict=True)]):
                setattr(part.module, part.buffer, frequencies)
                part.module.rope_type = kinds


def text_frequencies(model: PreTrainedModel, role: str) -> TextFrequencies | None:
    """A model's frequencies where they follow the length of the text; None where they do not.

    Raises:
        IncompatiblePairError: its configuration says that they do, and its code is not transformers'.
    """
    found = []
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            if isinstance(kind, str) and follows_length(kind) and kind in ROPE_INIT_FUNCTIONS:
                config: Any = module.config
                found.append(_Part(module, layer_type, kind, border(config, kind, layer_type)))
    config = model.config.get_text_config(decoder=True)
    declared = [kind for kind in rope_types(config) if follows_length(kind)]
    if declared and not found:
        raise IncompatiblePairError(
            f"the {role} ({type(model).__name__}) has a rotary embedding of type {declared[0]} in code of its own, "
            f"whose cached keys cannot be told from stale ones: choose another {role}"
        )
    return TextFrequencies(found) if found else None


class RereadingModel(TransformersModel):
    """A `TransformersModel` that reads its text anew where the frequencies change.

    Args:
        frequencies: of the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocab_size: int,
        blocked_ids: Tensor | None = None,
        role: str = "target",
        *,
        frequencies: TextFrequencies,
    ) -> None:
        self._frequencies = frequencies
        self._lengths: Lengths = frequencies.like(1)  # that the cached keys were turned for
        super().__init__(model, vocab_size, blocked_ids, role)

    @property
    def block_limit(self) -> int:
        """Tokens that the next block may hold: all of its rows have the same frequencies then."""
        return self._frequencies.alike_from(self.length + 1)

    def reset(self) -> None:
        """Start with an empty cache."""
        super().reset()
        self._ids = torch.empty(0, dtype=torch.long, device=self.device)  # [length], what the cache holds

    def prepare_for(self, length: int) -> None:
        """Compute the cache anew where a text of so many tokens has other frequencies than the cached keys."""
        lengths = self._frequencies.like(length)
        if lengths == self._lengths:
            return
        self._lengths = lengths
        if self.length:
            self._start_cache()
            self.logits_of(self._model, self._cache, self._ids, 1)
            self._cache.crop(0)

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """Append [n] ids to the cache; [num_logits, vocab_size] float32 logits after the last of them.

        A block longer than `block_limit` is right too, and takes as many passes as it has different frequencies.
        """
        first = self.length + len(token_ids) - num_logits + 1  # tokens of the text that the first row stands behind
        alike = self._frequencies.alike_from(first)
        if alike < num_logits:
            end = len(token_ids) - num_logits + alike
            logits = self.forward(token_ids[:end], alike)
            return torch.cat([logits, self.forward(token_ids[end:], num_logits - alike)])
        self.prepare_for(first)
        self._ids = torch.cat([self._ids, token_ids])
        return super().forward(token_ids, num_logits)

    def forward_tree(self, token_ids: Tensor, parents: Tensor) -> Tensor:
        """Append a token and a tree behind it; rows deeper than `block_limit` have the frequencies of the others."""
        self.prepare_for(self.length + 1)
        self._ids = torch.cat([self._ids, token_ids])
        return super().forward_tree(token_ids, parents)

    def logits_of(self, model: Any, cache: Any, token_ids: Tensor, num_logits: int, **inputs: Tensor) -> Tensor:
        """One pass of this model, or of a part of it, with the frequencies that the cached keys have."""
        with self._frequencies.held(self._lengths):
            return super().logits_of(model, cache, token_ids, num_logits, **inputs)

    def roll_back(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens."""
        super().roll_back(num_tokens)
        self._ids = self._ids[: self.length]

    def keep_path(self, num_tokens: int, path: Sequence[int]) -> None:
        """Of the last `num_tokens` tokens keep those at the places `path`, from 0 and ascending; forget the others."""
        before, block = self._ids.split([self.length - num_tokens, num_tokens])
        super().keep_path(num_tokens, path)
        self._ids = torch.cat([before, block[list(path)]])
