"""The drafter that never guesses: `--draft none`.

Through it the loop is plain decoding, one target step a token: the baseline that speculation is measured
against, with the same cache, the same warping and the same counting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from specdec_cli.drafters.base import Context, Draft, DrafterParts


class NoDrafter:
    """Proposes nothing, at no cost."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._nothing = Draft(torch.empty(0, dtype=torch.long, device=device))

    def reset(self, context: Context) -> None:
        """Nothing to forget."""

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """An empty draft."""
        return self._nothing

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        """Nothing to learn."""


def make(options: Mapping[str, int], parts: DrafterParts) -> NoDrafter:
    """`--draft none`."""
    return NoDrafter(parts.target.device)
