"""Checkpoints whose 97 tokens are the printable ASCII characters, line end and end token: texts compare by letter."""

from __future__ import annotations

from typing import Any

import tiny
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
END_ID = len(CHARACTERS)
TEMPLATE = """\
{%- for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""


def ascii_tokenizer(characters: str = CHARACTERS, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a character, in this order, then the end token."""
    alphabet = characters.replace("\n", "Ċ").replace(" ", "Ġ")
    return tiny.tokenizer_of({c: i for i, c in enumerate(alphabet)}, chat_template=chat_template)


def ascii_model(noise: float = 0.0, **overrides: Any) -> PreTrainedModel:
    small: dict[str, Any] = {"num_hidden_layers": 1, "bos_token_id": END_ID, "eos_token_id": END_ID}
    made = tiny.model("llama", END_ID + 1, **small | overrides)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():
            weight += noise * torch.randn(weight.shape, generator=generator)
    return made
