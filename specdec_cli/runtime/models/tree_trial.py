"""Can this model read trees? Some ignore a mask or positions from outside, so a model is tried before it is trusted."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specdec_cli.decoding.tree import ROOT
from specdec_cli.runtime.caches.buffered import BufferedLayer
from specdec_cli.runtime.models.windows import MASKED, declared_windows

# Two branches, the tokens of both in turn, so that neither is what a chain would be.
PARENTS = (-1, -1, 0, 1, 2, 4)
BRANCHES = ((0, 2, 4, 5), (1, 3))
# How much nearer to a branch read alone a tree must be than the same tokens read as a chain, which is wrong in both
# respects. Rounding of 16 bit is far below this, a mask or a position that was ignored far above.
NEARER = 0.1
# Reading several times as many tokens as a window has must not take minutes.
LONGEST_WINDOW = 1024
LAST_SIBLINGS = 8  # that are looked at: one alone may happen to look at nothing that is far


class TreeReader(Protocol):
    """What is tried: a transformers model with its cache, as `TransformersModel` is."""

    device: torch.device
    vocab_size: int
    max_length: int

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

    def roll_back(self, num_tokens: int) -> None:
        """Forget the last tokens."""
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
    windows = declared_windows(target.model.config, MASKED, target.max_length)
    if windows and windows[-1] > LONGEST_WINDOW:
        return f"{name} has a window of {windows[-1]:,} tokens; trees are tried past {LONGEST_WINDOW:,} at most"
    try:
        agrees = _reads_branches(target)
        ends = [window for window in windows if not _reads_past(target, window)] if agrees else []
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        return f"{name} fails on one ({' '.join(str(error).split())[:120]})"
    finally:
        reset()
    if not agrees:
        return f"{name} does not read one as it reads its branches"
    return f"{name} does not read one past its window of {ends[0]:,} tokens as it reads its branches" if ends else None


@torch.inference_mode()
def _reads_branches(target: TreeReader) -> bool:
    """Whether the logits in a small tree are those of its branches, and so are those after one branch was kept."""
    ids = torch.linspace(0, _rows(target) - 1, len(PARENTS) + 3, device=target.device).long()
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


@torch.inference_mode()
def _reads_past(target: TreeReader, window: int) -> bool:
    """Whether a tree past a window is read as its branches are.

    The last of as many siblings as a window has tokens stand that many places behind the text, and one position: a mask
    that counts places in the cache hides the text from them. The text is twice as long as the window, so that a tree's
    mask that took the place of the model's own would show the half that should be hidden.
    """
    length = max(1, min(2 * window, target.max_length - window - 2))
    num_siblings = min(window, target.max_length - length - 1)
    ids = torch.arange(length + 1 + num_siblings, device=target.device) * 7 % _rows(target)
    text, first, siblings = ids[:length], ids[length : length + 1], ids[length + 1 :]
    last = siblings[-LAST_SIBLINGS:]

    def alone(text: Tensor) -> Tensor:
        target.reset()
        target.forward(torch.cat([text, first]), num_logits=1)
        found = []
        for sibling in last:
            found.append(target.forward(sibling[None], num_logits=1))
            target.roll_back(1)
        return torch.cat(found)

    right, other = alone(text), alone(text.flip(0))
    target.reset()
    target.forward(text, num_logits=1)
    in_tree = target.forward_tree(torch.cat([first, siblings]), torch.full_like(siblings, ROOT))[-len(last) :]
    return _distance(right, in_tree) <= NEARER * _distance(right, other)


def _rows(target: TreeReader) -> int:
    return min(target.vocab_size, int(target.model.get_input_embeddings().weight.shape[0]))


def _distance(one: Tensor, other: Tensor) -> float:
    """Largest difference of logits that are finite; 0 where none is, which the loop reports."""
    difference = (one - other)[torch.isfinite(one)]
    return float(difference.abs().amax()) if len(difference) else 0.0
