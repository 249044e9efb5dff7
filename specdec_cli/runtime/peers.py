"""transformers' own generation, with the models of a pair, set to be comparable with specdec's loop.

Its assisted generation reads three settings from the assistant's generation config and ignores those given to
`generate` (transformers 5.24): a constant number of assistant tokens, and no confidence threshold that would stop the
assistant early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec_cli.runtime.pair import Pair
from specdec_cli.settings import SamplingSettings

Generate = Callable[[Sequence[int], int, int], Sequence[int]]


def transformers_generate(pair: Pair, sampling: SamplingSettings, num_assistant_tokens: int | None) -> Generate:
    """A function of (prompt ids, new tokens, seed) that returns the ids generated, exactly so many.

    Args:
        pair: its draft is the assistant.
        sampling: given to `generate` in its own terms.
        num_assistant_tokens: K; None generates without the assistant.
    """
    options: dict[str, Any] = {"do_sample": sampling.temperature > 0}
    if sampling.temperature > 0:
        options |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        if sampling.min_p > 0:
            options["min_p"] = sampling.min_p
    if sampling.repetition_penalty != 1.0:
        options["repetition_penalty"] = sampling.repetition_penalty
    assistant = pair.draft_checkpoint.model if num_assistant_tokens and pair.draft_checkpoint else None

    def generate(prompt_ids: Sequence[int], new_tokens: int, seed: int) -> Sequence[int]:
        torch.manual_seed(seed)
        if assistant is not None:
            config: Any = assistant.generation_config
            config.num_assistant_tokens = num_assistant_tokens
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0
        ids = torch.tensor([list(prompt_ids)], device=pair.target.device)
        output: Any = pair.checkpoint.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, min_new_tokens=new_tokens,
            eos_token_id=None, pad_token_id=0, assistant_model=assistant, **options,
        )  # fmt: skip
        made: list[int] = output[0, len(prompt_ids) :].tolist()
        return made

    return generate
