"""A separate, smaller model as the drafter: K cheap passes, sampled from its own warped distributions."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.sampling import logits_to_probs, sample
from specdec_cli.drafters.base import Context, Draft
from specdec_cli.settings import SamplingSettings


class DraftModel:
    """Drafts with a causal language model and its own cache.

    The cache may lag behind the context (by the last drafted token and the bonus token after a full accept): what
    it lacks is fed first, in one pass, so that it is complete before every guess.

    Args:
        model: speaks the target's ids; ids that it does not have are -inf in its logits.
        sampling: the target's settings.
    """

    def __init__(self, model: CachedModel, sampling: SamplingSettings) -> None:
        self._model = model
        self._sampling = sampling
        self._committed = 0  # cached entries that are known to be right

    @property
    def device(self) -> torch.device:
        return self._model.device

    def reset(self, context: Context) -> None:
        """Prefill the draft's cache with all but the last token of the prompt."""
        self._model.reset()
        self._committed = 0
        prompt = context.token_ids[: self._model.max_length]
        if len(prompt) > 1:
            self._model.forward(self._tensor(prompt[:-1]), num_logits=1)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Sample a chain of tokens; fewer, or none, where the draft's own context ends."""
        model = self._model
        self._committed = len(context.token_ids)
        room = model.max_length - len(context.token_ids) + 1
        num_draft_tokens = min(num_draft_tokens, room)
        if num_draft_tokens <= 0:
            return Draft(torch.empty(0, dtype=torch.long, device=self.device))
        pending = self._tensor(context.token_ids[model.length :])
        prefix = self._tensor(context.token_ids) if self._sampling.repetition_penalty != 1.0 else None
        token_ids, probs = [], []
        for _ in range(num_draft_tokens):
            logits = model.forward(pending, num_logits=1)  # [1, vocab_size]
            row = logits_to_probs(logits, self._sampling, None if prefix is None else prefix[None])
            pending = sample(row, generator)  # [1]
            if prefix is not None:
                prefix = torch.cat([prefix, pending])
            token_ids.append(pending)
            probs.append(row)
        return Draft(torch.cat(token_ids), torch.cat(probs))

    def observe(self, num_accepted: int) -> None:
        """Drop the cached entries of tokens that were rejected."""
        # The last drafted token was never fed, so after a full accept there is nothing to drop; roll back all the
        # same, since sliding-window caches trim themselves there.
        model = self._model
        surplus = model.length - (self._committed + num_accepted)
        model.roll_back(max(0, surplus))

    def _tensor(self, token_ids: object) -> Tensor:
        return torch.tensor(token_ids, dtype=torch.long, device=self.device)
