"""Can this model read trees? Some ignore a mask or positions from outside, so a model is tried before it is trusted."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specdec_cli.runtime.caches.buffered import BufferedLayer

# Two branches, the tokens of both in turn, so that neither is what a chain would be.
PARENTS = (-1, -1, 0, 1, 2, 4)
BRANCHES = ((0, 2, 4, 5), (1, 3))
# How much nearer to a branch read alone a tree must be than the same tokens read as a chain, which is wrong in both
# respects. Rounding of 16 bit is far below this, a mask or a position that was ignored far above.
NEARER = 0.1


class TreeReader(Protocol):
    """What is tried: a transformers model with its cache, as `TransformersModel` is."""

    device: torch.device
    vocab_size: int

    @property
    def model(self) -> Any:
        """As transformers made it."""
        ...

    @property
    def cache(self) -> Any:
        """transformers' cache; another one after every `reset`."""
        ...

    def reset(self) -> None:
        """Start with an empty cache."""
        ...

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """Append ids; [num_logits, vocab_size] logits."""
        ...

    def forward_tree(self, token_ids: Tensor, parents: Tensor) -> Tensor:
        """Append a token and a tree; logits after each."""
        ...

    def keep_path(self, num_tokens: int, path: Sequence[int]) -> None:
        """Keep one path of the last tokens."""
        ...


def why_no_trees(target: TreeReader) -> str | None:
    """What keeps a model from reading trees, in a few words; its cache must be empty, and is left so."""
    reset, name = target.reset, type(target.model).__name__
    reset()
    kinds = sorted({type(layer).__name__ for layer in target.cache.layers if not isinstance(layer, BufferedLayer)})
    if kinds:
        sliding = all("Sliding" in kind for kind in kinds)
        what = "sliding-window layers" if sliding else f"layers of another kind ({', '.join(kinds)})"
        return f"{name} has {what}, whose cache cannot keep one path of a tree"
    taken = inspect.signature(target.model.forward).parameters
    missing = [name for name in ("attention_mask", "position_ids") if name not in taken]
    if missing:
        return f"{name} takes no {' and no '.join(missing)}"
    try:
        agrees = _reads_branches(target)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        return f"{name} fails on one ({' '.join(str(error).split())[:120]})"
    finally:
        reset()
    return None if agrees else f"{name} does not read one as it reads its branches"


@torch.inference_mode()
def _reads_branches(target: TreeReader) -> bool:
    """Whether the logits in a small tree are those of its branches, and so are those after one branch was kept."""
    rows = min(target.vocab_size, int(target.model.get_input_embeddings().weight.shape[0]))
    ids = torch.linspace(0, rows - 1, len(PARENTS) + 3, device=target.device).long()
    opening, first, last, tree = ids[:1], ids[1:2], ids[2:3], ids[3:]

    def read(block: Tensor) -> Tensor:
        target.reset()
        return target.forward(torch.cat([opening, first, block]), num_logits=len(block))

    chain = read(tree)
    right, wrong = 0.0, 0.0
    for branch in BRANCHES:
        places = torch.tensor(branch, device=target.device)
        alone = read(torch.cat([tree[places], last]))
        target.reset()
        target.forward(opening, num_logits=1)
        logits = target.forward_tree(torch.cat([first, tree]), torch.tensor(PARENTS, device=target.device))[1 + places]
        target.keep_path(len(tree) + 1, [0, *(place + 1 for place in branch)])
        after = target.forward(last, num_logits=1)
        right = max(right, _distance(alone, torch.cat([logits, after])))
        wrong = max(wrong, _distance(alone[:-1], chain[places]))
    return right <= NEARER * wrong


def _distance(one: Tensor, other: Tensor) -> float:
    """Largest difference of logits that are finite; 0 where none is, which the loop reports."""
    difference = (one - other)[torch.isfinite(one)]
    return float(difference.abs().amax()) if len(difference) else 0.0
