"""A cache of fixed shapes, so that passes can be recorded or compiled: what changes is a tensor, not a number.

What records a pass once and repeats it (a CUDA graph) repeats every number of Python's as it was then. Here the length
of the cache is a tensor, from which positions and mask follow; keys and values are written by index into buffers that
stay where they are, and attention reads all of a buffer, masked. Buffers are powers of two long, so that few shapes
occur; rolling back stays a counter on the host, since the length is handed in anew each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin

from specdec_cli.runtime.caches import buffered
from specdec_cli.runtime.caches.buffered import BufferedLayer, _Buffer


class BufferPool:
    """Keys and values of each layer at each capacity, kept from text to text: what was recorded on them stays valid."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], list[Tensor]] = {}

    def take(self, layer: int, like: Sequence[Tensor], capacity: int) -> list[Tensor]:
        """Zeros of [batch, heads, capacity, head_dim]: attention reads them all, and 0 times garbage may be NaN."""
        if (layer, capacity) not in self._kept:
            shapes = [(*tensor.shape[:2], capacity, tensor.shape[-1]) for tensor in like]
            self._kept[layer, capacity] = [t.new_empty(shape) for t, shape in zip(like, shapes, strict=True)]
        return [tensor.zero_() for tensor in self._kept[layer, capacity]]

    def cache(self, config: PreTrainedConfig) -> DynamicCache:
        """An empty cache for a model of full attention only, on these buffers."""
        cache = DynamicCache(config=config)
        cache.layers = [PooledLayer(self, index) for index in range(len(cache.layers))]
        return cache


class _PooledBuffer(_Buffer):
    def __init__(self, pool: BufferPool, layer: int, states: Sequence[Tensor]) -> None:
        self.start = self.end = 0
        self._pool, self._layer = pool, layer
        self._tensors = pool.take(layer, states, buffered.FIRST_CAPACITY)

    @property
    def tensors(self) -> list[Tensor]:
        """Keys and values, dead entries included."""
        return self._tensors

    def reserve(self, num_tokens: int) -> None:
        """Have room for so many more."""
        if self.end + num_tokens > self.capacity:
            self._make_room(num_tokens)

    def _make_room(self, wanted: int) -> None:
        capacity = self.capacity
        while self.end + wanted > capacity:
            capacity *= 2
        fresh = self._pool.take(self._layer, self._tensors, capacity)
        for new, old in zip(fresh, self._tensors, strict=True):
            new[:, :, : self.end] = old[:, :, : self.end]
        self._tensors = fresh


class PooledLayer(BufferedLayer):
    """Full attention on a pool's buffers."""

    _buffer: _PooledBuffer

    def __init__(self, pool: BufferPool, index: int) -> None:
        super().__init__()
        self._pool, self._index = pool, index

    @property
    def buffer(self) -> _PooledBuffer:
        """Only once something was written."""
        return self._buffer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Called by transformers with the first states."""
        self.device = key_states.device
        self._buffer = _PooledBuffer(self._pool, self._index, (key_states, value_states))
        self.is_initialized = True


class StaticPass:
    """One pass or several, in a row, behind what is cached.

    Args:
        layers: written to; their counters stay as they are.
        base: [1] int64, how many tokens are cached before the first pass.
        num_tokens: of all passes together; the buffers must have room for them.

    Attributes:
        cache: what transformers writes to and reads from.
        ahead: tokens of the passes so far.
    """

    def __init__(self, layers: Sequence[PooledLayer], base: Tensor, num_tokens: int) -> None:
        keys = layers[0].buffer.tensors[0]
        self._positions = base + torch.arange(num_tokens, device=base.device)  # [num_tokens]
        seen = torch.arange(keys.shape[-2], device=base.device) <= self._positions[:, None]
        mask = torch.zeros(seen.shape, dtype=keys.dtype, device=base.device)
        self._mask = mask.masked_fill_(~seen, torch.finfo(keys.dtype).min)  # [num_tokens, capacity]
        self.cache = Cache(layers=[_Written(layer.buffer.tensors, self) for layer in layers])
        self.ahead = 0
        self.written = self._positions[:0]

    def next(self, num_tokens: int) -> dict[str, Tensor]:
        """Keywords for the model's forward over the next so many tokens."""
        part = slice(self.ahead, self.ahead + num_tokens)
        self.ahead += num_tokens
        self.written = self._positions[part]
        return {"position_ids": self.written[None], "attention_mask": self._mask[None, None, part]}


class _Written(CacheLayerMixin):
    """A layer's buffers, written where the pass stands, and read whole."""

    def __init__(self, tensors: list[Tensor], current: StaticPass) -> None:
        super().__init__()
        self.keys, self.values = tensors
        self._pass = current
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The buffers are there already."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write [batch, heads, n, head_dim]; all keys and values, dead entries included."""
        self.keys.index_copy_(2, self._pass.written, key_states)
        self.values.index_copy_(2, self._pass.written, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        """Tokens before the pass, as a tensor."""
        return self._pass.written[:1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what attention reads."""
        return self.get_max_length(), 0

    def get_max_length(self) -> int:
        """Tokens that there is room for."""
        return int(self.keys.shape[-2])
