"""What loading ends in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_cli.runtime.checkpoints.families import language_part
from specdec_cli.runtime.layers.quantize import weight_bytes
from specdec_cli.settings import NOT_QUANTIZED


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model and what belongs to it.

    Attributes:
        name: what the user called it.
        model, tokenizer: transformers' own.
        device: where ids go in and logits come out.
        dtype: of the weights.
        num_rows: rows of the embedding, padding included.
        end_ids: ids that end a text, from the generation config and the tokenizer.
        notes: what was decided while loading, a line each.
        quantize: bits that linear layers keep of their weights: "none", "int8", "w8a8" (activations too), "int4",
            or "keep" for a file's own.
        head_rows: tokens that the head computes; `num_rows` unless it was cut.
        step_bytes: of weights that decoding one token reads.
        head_bytes: of those, the output head's.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    num_rows: int
    end_ids: frozenset[int]
    notes: tuple[str, ...]
    quantize: str
    head_rows: int
    step_bytes: int
    head_bytes: int

    @property
    def coarsest_dtype(self) -> torch.dtype:
        """Of the types that logits pass through, the one that rounds most: quantised layers compute in bfloat16."""
        return self.dtype if self.quantize == NOT_QUANTIZED else torch.bfloat16


def step_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that decoding one token reads: all but an embedding table that is not the head too."""
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    tied = head is None or getattr(head, "weight", None) is table  # a quantised head has weights of its own
    return weight_bytes(language_part(model)) - (0 if tied else table.nbytes)
