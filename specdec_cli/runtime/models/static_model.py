"""A model whose passes over few tokens can be repeated: recorded by `graphs`, or compiled.

Prompts, trees and whatever else reads the cache as it is go `TransformersModel`'s way, on the same keys and values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from specdec_cli.decoding.model import Repeater
from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.caches.static import BufferPool, PooledLayer, StaticPass
from specdec_cli.runtime.models.positions import follows_length, rope_types
from specdec_cli.runtime.models.transformers_model import TransformersModel

MASKED = ("sdpa", "eager")  # attention that takes a mask of our own
TRIED_TOKENS = 3
SAME_LOGITS = 0.1  # of their norm: a mask that is not heeded changes them by their own size, 16 bits by hundredths
COMPILED_TOKENS = 64  # a longer pass is a prompt's, whose shape does not come again
COMPILED_SHAPES = 256
PROMPT_ROWS = 512  # of a cut head, for tokens that it knows from the prompt


class NotStatic(Exception):
    """Why a model cannot pass over a cache of fixed shapes, in a few words."""


class StaticModel(TransformersModel):
    """A `TransformersModel` that can also pass over its cache in tensor operations alone.

    Attributes:
        static: set while such passes are made; `forward` takes the next of them, and counts nothing.
        repeater: set by whoever records.
        epoch: counts changes of the model itself, which no recording of its passes outlives.

    Raises:
        NotStatic: its layers, its attention or its device do not allow it, or its logits are others then.
    """

    def __init__(
        self, model: PreTrainedModel, vocab_size: int, blocked_ids: Tensor | None = None, role: str = "target"
    ) -> None:
        if why := _obstacle(model):
            raise NotStatic(why)
        self._pool = BufferPool()
        self._compiled: Any = None
        self._role = role
        self.static: StaticPass | None = None
        self.repeater: Repeater | None = None
        self.epoch = 0
        self._head_changes = False
        super().__init__(model, vocab_size, blocked_ids, role)
        self._head_changes = self._cut_head is not None and not self._cut_head.hold(PROMPT_ROWS)
        try:
            agrees = self._agrees()
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise NotStatic(" ".join(str(error).split())[:120]) from error
        if not agrees:
            raise NotStatic("it gives other logits over a cache of fixed length")

    def _empty_cache(self) -> DynamicCache:
        return self._pool.cache(self._model.config)

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """Append [n] ids to the cache; [num_logits, vocab_size] float32 logits after the last of them."""
        if self.static is not None:
            return self._static_forward(self.static, token_ids, num_logits)
        # Compiled code does not see hooks that come later, so a pass whose hidden states are read is made without it.
        if (
            self._compiled is not None
            and self._states is None
            and self.length > 0
            and len(token_ids) <= COMPILED_TOKENS
        ):
            logits = self._static_forward(self._next_pass(len(token_ids)), token_ids, num_logits)
            self.advance(len(token_ids))
            return logits
        if self._head_changes and not self.length:  # with the prompt
            self.epoch += 1
        return super().forward(token_ids, num_logits)

    def require_trees(self, asked_by: str) -> None:
        """See there."""
        super().require_trees(asked_by)
        if self.repeater is not None:
            self.repeater.tell(f"no CUDA graphs with {asked_by}: drafts that branch are read as they are")

    def static_pass(self, base: Tensor, num_tokens: int) -> StaticPass:
        """Passes over so many tokens in all, `base` tokens into the text; `advance` counts them."""
        return StaticPass(self.reserve(num_tokens), base, num_tokens)

    def reserve(self, num_tokens: int) -> list[PooledLayer]:
        """Have room for so many more tokens; the cache must not be empty."""
        layers: list[PooledLayer] = self._cache.layers
        for layer in layers:
            layer.buffer.reserve(num_tokens)
        return layers

    def advance(self, num_tokens: int) -> None:
        """Count tokens that static passes have written behind the others."""
        for layer in self._cache.layers:
            layer.buffer.end += num_tokens
        self.length += num_tokens

    def compile(self, **options: Any) -> None:
        """Compile passes over few tokens, each shape when it first comes.

        Args:
            options: of torch.compile.

        Raises:
            SpecdecError: the first shape cannot be compiled.
        """
        torch._dynamo.config.recompile_limit = COMPILED_SHAPES
        self._compiled = torch.compile(self._model, dynamic=False, **options)
        try:
            self._agrees()
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:160]
            raise SpecdecError(f"--compile: the {self._role} cannot be compiled ({reason}): leave it out") from error

    def _next_pass(self, num_tokens: int) -> StaticPass:
        return self.static_pass(torch.full((1,), self.length, device=self.device), num_tokens)

    def _static_forward(self, static: StaticPass, token_ids: Tensor, num_logits: int) -> Tensor:
        model = self._model if self._compiled is None or self._states is not None else self._compiled
        with self._watch(len(token_ids)):
            return self.logits_of(model, static.cache, token_ids, num_logits, **static.next(len(token_ids)))

    @torch.inference_mode()
    def _agrees(self) -> bool:
        """Whether a static pass gives the logits that the model gives; empties the cache."""
        ids = torch.arange(2 * TRIED_TOKENS, device=self.device) % self._num_rows
        read, block = ids[:TRIED_TOKENS], ids[TRIED_TOKENS:]
        self.reset()
        super().forward(read, num_logits=1)
        expected = super().forward(block, num_logits=len(block))
        self.roll_back(len(block))
        found = self._static_forward(self._next_pass(len(block)), block, len(block))
        self.reset()
        finite = expected.isfinite()
        error = (found - expected)[finite].norm() / expected[finite].norm()
        return bool(error < SAME_LOGITS) and torch.equal(found.isfinite(), finite)


def _obstacle(model: Any) -> str:
    """What speaks against static passes before any is made; empty where nothing does."""
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        return "it is spread over several devices"
    if any(follows_length(kind) for kind in rope_types(model.config.get_text_config(decoder=True))):
        return "its rotary frequencies follow the length of the text"
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
        return "not all of its layers are full attention"
    attention = model.config.get_text_config(decoder=True)._attn_implementation
    if attention not in MASKED:
        return f"its attention ({attention}) takes no mask of ours"
    return ""
