"""How a tree of drafted tokens is put to transformers: which tokens see each other, and at which positions.

Models of the library pass a 4-D attention mask through as it is, and take positions from outside. Some ignore one or
the other: `models.tree_trial` finds them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_cli.decoding.tree import ancestors


def tree_inputs(model: Any, parents: Tensor, length: int) -> dict[str, Tensor]:
    """What a pass needs beside the ids of a token and a tree behind it.

    Args:
        model: of transformers.
        parents: [num_tree_tokens] int64.
        length: tokens in the cache.

    Returns:
        `position_ids` [1, num_tree_tokens + 1] and `attention_mask` [1, 1, num_tree_tokens + 1, length +
        num_tree_tokens + 1], which is bool where attention takes that, else added to scores.
    """
    related = ancestors(parents)
    visible = pad(related, (length + 1, 0, 1, 0), value=True)
    visible[0, length + 1 :] = False  # the first token sees nothing of the tree
    positions = pad(related.sum(-1), (1, 0)) + length
    mask = visible
    if model.config._attn_implementation != "sdpa":
        mask = torch.zeros(visible.shape, dtype=model.dtype, device=visible.device)
        mask = mask.masked_fill(~visible, torch.finfo(model.dtype).min)
    return {"attention_mask": mask[None, None], "position_ids": positions[None]}
