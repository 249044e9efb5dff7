"""transformers' own generation, with the models of a pair, set to be comparable with specdec's loop.

Its assisted generation reads three settings from the assistant's generation config and ignores those given to
`generate` (transformers 5.24): a constant number of assistant tokens, and no confidence threshold that would stop the
assistant early. What the checkpoints' own generation configs ask for is put aside: a penalty there would change the
text, and at its own end tokens a draft stops drafting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from specdec_cli.errors import UsageError
from specdec_cli.runtime.pairs.pair import Pair
from specdec_cli.settings import SamplingSettings

FORCE_GQA = "TRANSFORMERS_SDPA_FORCE_GQA"
Generate = Callable[[Sequence[int], int, int], Sequence[int]]


def transformers_generate(
    pair: Pair,
    sampling: SamplingSettings,
    num_assistant_tokens: int | None,
    longest_ngram: int | None = None,
    end_ids: Collection[int] = (),
) -> Generate:
    """A function of (prompt ids, new tokens, seed) that returns the ids generated.

    Args:
        pair: its draft is the assistant.
        sampling: given to `generate` in its own terms.
        num_assistant_tokens: K; None generates without speculation.
        longest_ngram: look up n-grams of the text up to this length instead of asking an assistant. (transformers takes
            the first match in the text, and copies no further than to the text's end.)
        end_ids: they end the text; without them, it is as long as was asked for.

    Raises:
        UsageError: transformers would refuse the pair.
    """
    options: dict[str, Any] = {"do_sample": sampling.temperature > 0}
    if sampling.temperature > 0:
        options |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        if sampling.min_p > 0:
            options["min_p"] = sampling.min_p
    if sampling.repetition_penalty != 1.0:
        options["repetition_penalty"] = sampling.repetition_penalty
    if num_assistant_tokens and longest_ngram:
        options |= {"prompt_lookup_num_tokens": num_assistant_tokens, "max_matching_ngram_size": longest_ngram}
    if end_ids:
        options["eos_token_id"] = sorted(end_ids)
    target = pair.checkpoint.model
    assistant = pair.draft_checkpoint.model if num_assistant_tokens and pair.draft_checkpoint else None
    if assistant is not None:
        ours, theirs = (model.config.get_text_config(decoder=True).vocab_size for model in (target, assistant))
        if ours != theirs:
            raise UsageError(
                f"--compare transformers: it refuses a draft of {theirs:,} rows beside a target of {ours:,}, which "
                "works here: leave --compare out"
            )

    def generate(prompt_ids: Sequence[int], new_tokens: int, seed: int) -> Sequence[int]:
        torch.manual_seed(seed)
        # What is left out of a call, `generate` takes from here.
        target.generation_config = GenerationConfig(pad_token_id=0)
        if assistant is not None:
            assistant.generation_config = GenerationConfig(
                pad_token_id=0, num_assistant_tokens=num_assistant_tokens,
                num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0,
            )  # fmt: skip
        ids = torch.tensor([list(prompt_ids)], device=pair.target.device)
        with _as_shipped():
            output: Any = target.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, assistant_model=assistant,
                **options,
            )  # fmt: skip
        made: list[int] = output[0, len(prompt_ids) :].tolist()
        return made

    return generate


@contextmanager
def _as_shipped() -> Iterator[None]:
    """Without the environment variable that `models.transformers_model` sets for specdec's own passes."""
    mine = os.environ.pop(FORCE_GQA, None)
    try:
        yield
    finally:
        if mine is not None:
            os.environ[FORCE_GQA] = mine
