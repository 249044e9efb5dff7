"""The target's own first layers as the drafter: no second model, no second prefill, no memory beside the weights.

After Draft & Verify (Zhang et al., arXiv 2309.08168) and LayerSkip (Elhoushi et al., arXiv 2404.16710): the hidden
state after N layers goes through the final norm and the head at once. A model that was not trained for it guesses badly
from its first few layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from specdec_cli.decoding.model import ChainModel
from specdec_cli.drafters.base import Context, Draft, DrafterParts
from specdec_cli.drafters.chain import sample_chain
from specdec_cli.settings import SamplingSettings


class EarlyExit:
    """Drafts with layers that share the target's cache, and leaves that cache as it found it.

    Args:
        model: the first layers; its cache is the target's, for those layers.
        sampling: the target's settings.
        draft_stop: see `sample_chain`.
    """

    def __init__(self, model: ChainModel, sampling: SamplingSettings, draft_stop: float = 0.0) -> None:
        self._model = model
        self._sampling = sampling
        self._draft_stop = draft_stop

    @property
    def device(self) -> torch.device:
        return self._model.device

    def reset(self, context: Context) -> None:
        """The target has read the prompt already."""

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Sample a chain of tokens."""
        model = self._model
        before = model.length
        draft = sample_chain(model, context.token_ids, num_draft_tokens, self._sampling, generator, self._draft_stop)
        # The verify pass feeds the same tokens through the same layers once more, and must not find them there.
        model.roll_back(model.length - before)
        return draft

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        """The target rolls its cache back itself."""


def make(options: Mapping[str, int], parts: DrafterParts) -> EarlyExit:
    """`--draft early-exit:N`."""
    return EarlyExit(parts.early_exit(options["layers"]), parts.sampling, parts.draft_stop)
