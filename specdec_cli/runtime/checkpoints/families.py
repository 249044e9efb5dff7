"""Which of transformers' classes makes a text model of a configuration, and which part of it writes the text.

A model that sees or hears too is loaded whole and given text alone, as transformers' own `generate` does without an
image: what belongs to pictures is in memory, and is not read by a step.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)

# These read a prompt in both directions before they write, so that no prompt can be continued token by token.
BIDIRECTIONAL = frozenset({"paligemma", "pi0"})


def auto_class(config: PreTrainedConfig) -> Any:
    """The class whose `from_pretrained` makes a model that writes text; None where there is none."""
    if (
        "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
        or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    ):
        return AutoModelForCausalLM
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and config.model_type not in BIDIRECTIONAL:
        return AutoModelForImageTextToText
    return None


def language_part(model: Any) -> nn.Module:
    """What a step over text runs: the whole of a model, or the decoder and the head of one that sees too."""
    if model.config.get_text_config(decoder=True) is model.config:
        whole: nn.Module = model
        return whole
    parts = [model.get_decoder(), model.get_output_embeddings()]
    return nn.ModuleList([part for part in parts if part is not None])
