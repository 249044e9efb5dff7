"""Where greedy texts part: at a near tie rounding decides, and anything else is a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import torch

from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.measurement.runs import Case, Difference, Run, plain_runs
from specdec_cli.settings import SamplingSettings

# How far, in roundings of its largest logit, a model's 16-bit logits move when a block is computed at once.
NEAR_TIE_ROUNDINGS = 4


def rounding_of(dtype: torch.dtype) -> float:
    """Relative step of a 16-bit type; 0 for wider ones, whose rounding excuses no difference."""
    return float(torch.finfo(dtype).eps) if dtype.itemsize < 4 else 0.0


def compared(
    runs: list[Run], case: Case, target: CachedModel, sampling: SamplingSettings, rounding: float
) -> list[Run]:
    """Greedy runs of one block, each with the first token that plain decoding chose otherwise.

    Args:
        target: its cache is emptied where a text has to be read again.
        rounding: see `rounding_of`.
    """
    plain = plain_runs(runs)[0].token_ids
    return [replace(run, first_difference=_difference(run, plain, case, target, sampling, rounding)) for run in runs]


def _difference(
    run: Run, plain: Sequence[int], case: Case, target: CachedModel, sampling: SamplingSettings, rounding: float
) -> Difference | None:
    chosen = enumerate(zip_longest(plain, run.token_ids))
    first = next(((i, a, b) for i, (a, b) in chosen if a != b), None)
    if first is None:
        return None
    position, plain_id, speculative_id = first
    prefix = torch.tensor([*case.prompt_ids, *plain[:position]], device=target.device)
    with torch.inference_mode():
        target.reset()
        if len(prefix) > 1:
            target.forward(prefix[:-1], num_logits=1)
        target.roll_back(0)
        logits = target.forward(prefix[-1:], num_logits=1)
    # Differences of log-probabilities are those of logits, and the penalty is in them.
    unscaled = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    scores = logits_to_probs(logits.cpu().double(), unscaled, prefix[None].cpu())[0].log()
    best, second = scores.topk(2).values.tolist()
    largest = float(logits[torch.isfinite(logits)].abs().amax())
    ids = [i for i in (plain_id, speculative_id) if i is not None]
    behind = best - float(scores[ids].amin())
    near_tie = len(ids) == 2 and behind <= NEAR_TIE_ROUNDINGS * rounding * largest
    return Difference(position, plain_id, speculative_id, best - second, near_tie)
