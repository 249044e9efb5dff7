"""A separate, smaller model as the drafter: K cheap passes, sampled from its own warped distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from specdec_cli.decoding.model import ChainModel
from specdec_cli.drafters.base import Context, Draft, DrafterParts
from specdec_cli.drafters.chain import sample_chain
from specdec_cli.settings import SamplingSettings


class DraftModel:
    """Drafts with a causal language model and its own cache.

    The cache may lag behind the context (by the last drafted token and the bonus token after a full accept; by more
    where another source drafted meanwhile): what it lacks is fed first, in one pass, so that it is complete before
    every guess.

    Args:
        model: speaks the target's ids; ids that it does not have are -inf in its logits.
        sampling: the target's settings.
        draft_stop: see `sample_chain`.
    """

    def __init__(self, model: ChainModel, sampling: SamplingSettings, draft_stop: float = 0.0) -> None:
        self._model = model
        self._sampling = sampling
        self._draft_stop = draft_stop
        self._committed = 0  # cached entries that are known to be right

    @property
    def device(self) -> torch.device:
        return self._model.device

    def reset(self, context: Context) -> None:
        """Prefill the draft's cache with all but the last token of the prompt, unless that is beyond its context."""
        self._model.reset()
        self._committed = 0
        prompt = context.token_ids
        if 1 < len(prompt) <= self._model.max_length:  # of a longer one nothing will be drafted
            self._model.forward(torch.tensor(prompt[:-1], dtype=torch.long, device=self.device), num_logits=1)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Sample a chain of tokens; fewer, or none, where the draft's own context ends."""
        self._committed = len(context.token_ids)
        return sample_chain(
            self._model, context.token_ids, num_draft_tokens, self._sampling, generator, self._draft_stop
        )

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        """Drop the cached entries of tokens that were rejected."""
        # The last drafted token was never fed, so after a full accept there is nothing to drop; roll back all the
        # same, since sliding-window caches trim themselves there.
        model = self._model
        surplus = model.length - (self._committed + num_accepted)
        model.roll_back(max(0, surplus))


def make(options: Mapping[str, int], parts: DrafterParts) -> DraftModel:
    """`--draft MODEL`."""
    if parts.draft is None:
        raise ValueError("a draft model was asked for, and none was loaded")
    return DraftModel(parts.draft, parts.sampling, parts.draft_stop)
