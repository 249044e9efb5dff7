"""Windows that a configuration declares: how far back some layers look. What holds before one need not hold past it."""

from __future__ import annotations

from typing import Any

# transformers' caches know these, and keep layers of their own for them.
CACHED = ("sliding_window", "attention_chunk_size")
# These a model applies by itself, over a cache that keeps everything.
MASKED = (
    "window_size",  # GPT-Neo
    "attention_window",
    "attention_window_size",
    "sliding_window_size",
    "keep_window_size",
    "local_attention_window_len",
)


def declared_windows(config: Any, names: tuple[str, ...], max_length: int) -> list[int]:
    """Tokens of each window that a text can grow past, in ascending order.

    Args:
        config: a model's; that of its text part counts.
        names: `CACHED`, `MASKED`, or both.
        max_length: of a text.
    """
    text = config.get_text_config(decoder=True)
    values = (getattr(text, name, None) for name in names)
    found = {size for value in values for size in (value if isinstance(value, list | tuple) else [value])}
    return sorted(size for size in found if type(size) is int and 0 < size < max_length)
