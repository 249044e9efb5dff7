"""Does a model's cache compute what it must? Tried against a computation that cannot go wrong in the same way.

Some models compute a block of tokens over a filled cache otherwise than the same tokens one by one (their code was only
ever run with one), and some caches do not forget what they are told to. Both make wrong text without any error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice

import torch
from torch import Tensor

from specdec_cli.decoding.model import CachedModel

PREFIX = 32  # tokens in the cache before the block that is tried
# Windows of a model's attention that a block is tried past; a longer one takes minutes to fill on a CPU.
LONGEST_WINDOW, LONGEST_WINDOW_ON_CPU = 8192, 1024
BLOCK = 17  # tokens that are tried at once at most: as many as a round verifies at K 16
# Greatest difference of a logit, in standard deviations of the logits, that rounding explains. SmolLM2-135M and the
# demo pair stay below 1e-5 in float32, .03 in float16 and .23 in bfloat16; a block without its mask gives above 1.
TOLERANCE = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}


@dataclass(frozen=True)
class Agreement:
    """Whether a model's cache computes what it must; differences in standard deviations of the logits.

    Attributes:
        block_against_steps: a block over a filled cache against the same tokens one by one; infinite where one of them
            is not a number.
        rollback_against_recompute: logits after a rejection was rolled back against logits that never saw it.
        tolerance: what rounding explains in this number type.
        untried: windows that no block was tried past, since that takes too long.
    """

    block_against_steps: float
    rollback_against_recompute: float
    tolerance: float
    untried: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether rounding explains both."""
        return max(self.block_against_steps, self.rollback_against_recompute) <= self.tolerance

    def record(self) -> dict[str, float | None]:
        """For JSON, which has no infinity."""
        numbers = {name: value for name, value in asdict(self).items() if name != "untried"}
        return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def check_cache(model: CachedModel, token_ids: Sequence[int], dtype: str, windows: Sequence[int] = ()) -> Agreement:
    """Try a model's cache on a text, and past each of its windows on the text said over and over.

    Args:
        model: its cache is emptied first.
        token_ids: two or more; the first half fills the cache.
        dtype: the name of the type that the model computes in.
        windows: tokens of each; those that take too long to fill are not tried.
    """
    tried = tried_windows(model, windows)
    texts = [(token_ids, PREFIX)]
    texts += [(list(islice(cycle(token_ids), window + BLOCK + 1)), window + 1) for window in tried]
    return Agreement(
        max(block_against_steps(model, ids, filled) for ids, filled in texts),
        max(rollback_against_recompute(model, ids, filled) for ids, filled in texts),
        TOLERANCE[dtype],
        tuple(sorted({*windows} - {*tried})),
    )


def tried_windows(model: CachedModel, windows: Sequence[int]) -> list[int]:
    """Those that a block can be tried past in seconds, and within the model's context."""
    longest = LONGEST_WINDOW_ON_CPU if model.device.type == "cpu" else LONGEST_WINDOW
    return [window for window in windows if window <= longest and window + BLOCK + 1 <= model.max_length]


@torch.inference_mode()
def block_against_steps(model: CachedModel, token_ids: Sequence[int], filled: int = PREFIX) -> float:
    """Greatest difference between the logits of a block over a filled cache and of the same tokens one by one.

    Args:
        model: its cache is emptied first.
        token_ids: two or more; the first half fills the cache.
        filled: tokens in the cache at most.

    Returns:
        in standard deviations of the logits; infinite where one side is not a number.
    """
    prefix, block = _halves(model, token_ids, filled)
    fill(model, prefix)
    at_once = model.forward(block, num_logits=len(block))
    fill(model, prefix)
    rows = []
    for token_id in block:
        rows.append(model.forward(token_id[None], num_logits=1))
        model.roll_back(0)
    return _difference(at_once, torch.cat(rows))


@torch.inference_mode()
def rollback_against_recompute(model: CachedModel, token_ids: Sequence[int], filled: int = PREFIX) -> float:
    """Greatest difference between logits after a rejection was rolled back and logits that never saw it.

    Args:
        model: its cache is emptied first.
        token_ids: two or more; the second half follows what is rolled back.
        filled: as `block_against_steps`.

    Returns:
        as `block_against_steps`.
    """
    prefix, block = _halves(model, token_ids, filled)
    fill(model, prefix)
    model.forward(block.flip(0), num_logits=1)  # a draft, of which nothing stays
    model.roll_back(len(block))
    after = model.forward(block, num_logits=len(block))
    model.reset()
    model.roll_back(0)
    never = model.forward(torch.cat([prefix, block]), num_logits=len(block))
    return _difference(after, never)


def _halves(model: CachedModel, token_ids: Sequence[int], filled: int) -> tuple[Tensor, Tensor]:
    ids = torch.tensor(token_ids, device=model.device)
    middle = max(1, min(filled, max(len(ids) // 2, len(ids) - BLOCK)))
    return ids[:middle], ids[middle : middle + BLOCK]


def fill(model: CachedModel, token_ids: Tensor) -> None:
    """Put these tokens, and nothing else, into the cache."""
    model.reset()
    model.forward(token_ids, num_logits=1)
    model.roll_back(0)


def _difference(logits: Tensor, reference: Tensor) -> float:
    finite = torch.isfinite(reference)  # minus infinity is a masked token
    same = torch.equal(finite, torch.isfinite(logits)) and bool(finite.any())
    if not same or bool(torch.isnan(reference).any() or torch.isnan(logits).any()):
        return math.inf
    scale = reference[finite].std().item()
    greatest = (logits[finite] - reference[finite]).abs().max().item()
    return greatest / scale if scale > 0 else math.inf
