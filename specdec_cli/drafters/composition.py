"""Several sources, one after the other: the first that has a guess this round makes the draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from specdec_cli.drafters.base import Context, Draft, Drafter, taps_of


class Composition:
    """Asks its parts in turn, and only as far as it must: whoever is not asked, or may not draft, costs nothing.

    A part that was not asked learns what was committed when it is asked again, from the context; each names its drafts.

    Args:
        parts: name and drafter, at least one, all on one device.
    """

    def __init__(self, parts: Sequence[tuple[str, Drafter]]) -> None:
        devices = {part.device for _, part in parts}
        if len(devices) != 1:
            raise ValueError(f"the parts of a composition draft on one device, not on {len(devices)}")
        wanted = [taps_of(part) for _, part in parts if taps_of(part)]
        if len(wanted) > 1:
            raise ValueError("one part of a composition reads hidden states, not several")
        self.taps = wanted[0] if wanted else ()
        (self.device,) = devices
        self._parts = tuple(parts)
        self._asked: list[Drafter] = []

    def reset(self, context: Context) -> None:
        """Every part reads the prompt."""
        self._asked = []
        for _, part in self._parts:
            part.reset(context)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """The first draft that is not empty."""
        self._asked = []
        draft = Draft(torch.empty(0, dtype=torch.long, device=self.device))
        names = [name for name, _ in self._parts]
        limits = [num_draft_tokens if context.limit is None else context.limit(name) for name in names]
        for (name, part), limit in zip(self._parts, limits, strict=True):
            if limit == 0:
                continue
            self._asked.append(part)
            draft = part.propose(context, min(limit, num_draft_tokens), generator)
            if len(draft.token_ids):
                return replace(draft, source=name)
        return draft

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        """Tell those that were asked: the last of them drafted, the others' drafts were empty."""
        for part in self._asked[:-1]:
            part.observe(0)
        for part in self._asked[-1:]:
            part.observe(num_accepted, predictions)
