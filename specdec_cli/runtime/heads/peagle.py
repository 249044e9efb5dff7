"""P-EAGLE: an EAGLE-3 head that guesses all places in one pass.

Behind the pairs of what was committed stand entries of a learnt state and a mask's embedding, one for each further
place. They see the pairs and each other in order, and never stay in the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.heads.eagle3 import Eagle3
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.heads.parts import TargetParts, Weights


class PEagle(Eagle3):
    """The network of one head; a `specdec_cli.decoding.head.BlockHead`.

    Raises:
        SpecdecError: its tensors are not those that its configuration describes, or it names no mask.
    """

    conditions = False
    most = 16  # longer blocks than any such head was trained for

    def __init__(self, head: Head, parts: TargetParts) -> None:
        super().__init__(head, parts)
        self.drafts_by = "block-head"
        mask = head.config.get("mask_token_id")
        if not isinstance(mask, int) or not 0 <= mask < parts.config.vocab_size:
            raise SpecdecError(f"{head.files.place.name}: its mask_token_id {mask} is no token of the target")
        self._mask_id = mask

    def _more(self, weights: Weights) -> None:
        self.mask_hidden = weights.tensor("mask_hidden").reshape(1, -1)

    def guess(self, states: Tensor, token_ids: Tensor, number: int) -> Tensor:
        """Append pairs, and guess behind the last: [number, vocab_size] float32 logits.

        Args:
            states: [n, width] of the target.
            token_ids: [n] behind each.
            number: of places; 1 or more.
        """
        masks = number - 1
        given = states.to(self.device, self.dtype)
        hidden = self.project(torch.cat([given, self.mask_hidden.expand(masks, -1)]))
        ids = torch.cat([token_ids, token_ids.new_full((masks,), self._mask_id)])
        out = self._pass(hidden, ids, None, None)[len(token_ids) - 1 :]
        self.roll_back(masks)
        return self.output(self.spoken(out))
