"""Cache layers that write into a buffer with room to spare, where transformers' own grow by concatenation.

`torch.cat` copies all keys and values of a layer for every token; here a token's are written behind the others and what
is alive is a view, so that a step costs the same at any length of context (attention's own growth apart), and rolling
back moves a counter. A buffer that is full is copied into one twice as long.
"""

from __future__ import annotations

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

FIRST_CAPACITY = 256


def buffered_cache(config: PreTrainedConfig) -> DynamicCache:
    """transformers' cache for a model, its attention layers buffered; layers of other kinds stay what they are."""
    cache = DynamicCache(config=config)
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[i] = BufferedLayer()
        elif type(layer) is DynamicSlidingWindowLayer:
            cache.layers[i] = BufferedSlidingLayer(layer.sliding_window)
    return cache


class _Buffer:
    """Keys and values of one layer: [batch, heads, capacity, head_dim] each, alive from `start` to `end`."""

    def __init__(self, key_states: Tensor, value_states: Tensor) -> None:
        self.start = self.end = 0
        self._tensors = [self._empty(states, FIRST_CAPACITY) for states in (key_states, value_states)]

    @property
    def capacity(self) -> int:
        """Tokens that there is room for."""
        return self._tensors[0].shape[-2]

    @staticmethod
    def _empty(like: Tensor, capacity: int) -> Tensor:
        return like.new_empty((*like.shape[:2], capacity, like.shape[-1]))

    def append(self, key_states: Tensor, value_states: Tensor) -> None:
        """Write [batch, heads, n, head_dim] behind what is alive."""
        end = self.end + key_states.shape[-2]
        if end > self.capacity:
            self._make_room(end - self.end)
            end = self.end + key_states.shape[-2]
        for tensor, states in zip(self._tensors, (key_states, value_states), strict=True):
            tensor[:, :, self.end : end] = states
        self.end = end

    def keep(self, num_tokens: int, path: Tensor) -> None:
        """Of the last `num_tokens` entries, move those at the places `path` to the front and forget the others."""
        first = self.end - num_tokens
        self.end = first + len(path)
        for tensor in self._tensors:
            tensor[:, :, first : self.end] = tensor[:, :, first + path]

    def last(self, length: int) -> tuple[Tensor, Tensor]:
        """Views of the last `length` entries."""
        keys, values = self._tensors
        return keys[:, :, self.end - length : self.end], values[:, :, self.end - length : self.end]

    def _make_room(self, wanted: int) -> None:
        """Move what is alive to the front, of a longer buffer where half of this one would not do."""
        alive = self.end - self.start
        capacity = self.capacity
        while alive + wanted > capacity // 2:
            capacity *= 2
        fresh = [self._empty(tensor, capacity) for tensor in self._tensors]
        for new, old in zip(fresh, self._tensors, strict=True):
            new[:, :, :alive] = old[:, :, self.start : self.end]
        self._tensors = fresh
        self.start, self.end = 0, alive


class BufferedLayer(DynamicLayer):
    """Full attention: everything stays alive until it is cropped."""

    _buffer: _Buffer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Called by transformers with the first states."""
        self.device = key_states.device
        self._buffer = _Buffer(key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Add [batch, heads, n, head_dim]; views of all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._buffer.append(key_states, value_states)
        return self._buffer.last(self._buffer.end)

    def get_seq_length(self) -> int:
        """Tokens in the layer."""
        return self._buffer.end if self.is_initialized else 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens."""
        if self.is_initialized:
            self._buffer.end += tokens_to_remove

    def keep(self, num_tokens: int, path: Tensor) -> None:
        """Of the last `num_tokens` tokens keep those at the places `path`, [n] int64, and forget the others."""
        self._buffer.keep(num_tokens, path)


class BufferedSlidingLayer(DynamicSlidingWindowLayer):
    """Sliding window: what left the window is forgotten when the buffer is full, but not before a `crop` allowed it."""

    _buffer: _Buffer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Called by transformers with the first states."""
        self.device = key_states.device
        self._buffer = _Buffer(key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Add [batch, heads, n, head_dim]; views of what the n tokens can see, which `get_mask_sizes` announces."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        num_tokens = key_states.shape[-2]
        visible = min(self.cumulative_length, self.sliding_window - 1) + num_tokens
        self._buffer.append(key_states, value_states)
        self.cumulative_length += num_tokens
        return self._buffer.last(visible)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens, and let go of what left the window before them."""
        if not self.is_initialized:
            return
        self.cumulative_length += tokens_to_remove
        self._buffer.end += tokens_to_remove
        self._buffer.start = max(self._buffer.start, self._buffer.end - self.sliding_window + 1)
