"""Whether a config.json is that of a trained head: the words that no model's configuration has. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MARKS = (
    *("speculators_model_type", "speculators_config", "draft_vocab_size", "eagle_config", "dflash_config"),
    *("medusa_num_heads", "medusa_num_layers", "eagle_aux_hidden_state_layer_ids"),
)
_ARCHITECTURES = re.compile(r"eagle|medusa|dflash|dspark", re.IGNORECASE)


def is_marked(config: Mapping[str, Any]) -> bool:
    """Whether it says so; the first EAGLE heads say nothing but that they have one layer."""
    architectures = " ".join(map(str, config.get("architectures") or ()))
    return any(key in config for key in MARKS) or _ARCHITECTURES.search(architectures) is not None
