"""What a configuration says of positions: how many there are, and how queries and keys are turned by them.

Two kinds of rotary embedding follow the length of the text. "longrope" has one set of frequencies up to a border, and
another beyond it; "dynamic" (NTK scaling) has new ones for every length beyond. See `models.rereading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

UNLIMITED = 2**31 - 1
LONGROPE, DYNAMIC = "longrope", "dynamic"
# Of these the declared length is often the one that the model was trained at, which the factor extends.
EXTENDING = ("yarn", "linear", DYNAMIC)


def max_length(config: PreTrainedConfig, role: str) -> int | None:
    """Tokens that a model has positions for; None without a limit.

    Args:
        config: of the language model, `get_text_config(decoder=True)`.
        role: a "draft" that would read its text anew for every guess ends where that begins.

    A declared yarn, linear or dynamic factor counts where it gives more than the declared length. Where it holds for
    some kinds of layers only (Gemma 3's), the declared length is the extended one already.
    """
    declared = max(0, int(getattr(config, "max_position_embeddings", None) or 0))
    rope = _rope_parameters(config)
    if _type(rope) in EXTENDING and not (role == "draft" and _type(rope) == DYNAMIC):
        original = rope.get("original_max_position_embeddings") or declared
        declared = max(declared, int(float(rope.get("factor") or 1.0) * int(original)))
    return declared or None


def rope_types(config: PreTrainedConfig) -> tuple[str, ...]:
    """Types of rotary embedding, each once and sorted; empty where a model has none, or its configuration is silent."""
    rope = _rope_parameters(config)
    nested = [part for part in rope.values() if isinstance(part, Mapping)]
    return tuple(sorted({_type(part) for part in nested or [rope] if part}))


def follows_length(rope_type: str) -> bool:
    """Whether frequencies of this type follow the length of the text, by transformers' own test."""
    return DYNAMIC in rope_type or rope_type == LONGROPE


def border(config: PreTrainedConfig, rope_type: str, layer_type: str | None = None) -> int:
    """Tokens of the longest text that has the first frequencies."""
    if rope_type == LONGROPE:
        rope = _rope_parameters(config)
        parameters = rope if layer_type is None else rope[layer_type]
        return int(parameters["original_max_position_embeddings"])
    return int(config.max_position_embeddings)


def _rope_parameters(config: PreTrainedConfig) -> Mapping[str, Any]:
    # Code of a checkpoint's own may still have them by their old name.
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    return found if isinstance(found, Mapping) else {}


def _type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")
