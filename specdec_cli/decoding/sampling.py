"""Logits to probabilities and to a sampled id, by the same functions for target and draft.

Speculative decoding is exact for whatever distribution the *warped* logits define, as long as the target and
the draft are warped alike and each position is warped with the prefix that it really has. So there is one
function, used for the draft's proposals, the verify pass, the recovered and the bonus token.

The order is that of transformers' `generate`: repetition penalty, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_cli.settings import SamplingSettings


def logits_to_probs(logits: Tensor, settings: SamplingSettings, prefix_ids: Tensor | None = None) -> Tensor:
    """Probabilities that a token is sampled from.

    Args:
        logits: [..., num_positions, vocab_size], float32; -inf marks ids that cannot be emitted.
        settings: temperature 0 gives a one-hot row at the argmax.
        prefix_ids: [num_positions, prefix_length], the ids before each position, needed by the repetition
            penalty alone; repeat an id to fill a shorter row (see `prefix_matrix`).

    Returns:
        float32 probabilities of the same shape, every row summing to 1.
    """
    if settings.temperature == 0.0:
        best = greedy(logits, settings, prefix_ids).unsqueeze(-1)
        return torch.zeros_like(logits).scatter_(-1, best, 1.0)
    logits = _penalised(logits, settings, prefix_ids)
    if settings.temperature != 1.0:
        # Shifted before it is divided: at 1e-6 the maximum stays 0 where a plain division overflows.
        logits = (logits - logits.amax(-1, keepdim=True)) / settings.temperature
    if settings.top_k and settings.top_k < logits.shape[-1]:
        kth = logits.topk(settings.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if settings.top_p < 1.0:
        logits = _keep_nucleus(logits, settings.top_p)
    if settings.min_p > 0.0:
        probs = logits.softmax(-1)
        too_rare = probs < settings.min_p * probs.amax(-1, keepdim=True)
        logits = logits.masked_fill(too_rare, -torch.inf)
    return logits.softmax(-1)


def greedy(logits: Tensor, settings: SamplingSettings, prefix_ids: Tensor | None = None) -> Tensor:
    """What `logits_to_probs` gives probability 1 at temperature 0: [..., num_positions] int64 ids."""
    return _penalised(logits, settings, prefix_ids).argmax(-1)


def sample(probs: Tensor, generator: torch.Generator) -> Tensor:
    """One id per row, by inverting the cumulative distribution.

    One uniform a row and no host transfer. The sum runs in float64 (float32 where the device has no float64),
    so that a tail of tiny probabilities is neither lost nor inflated; an id of probability 0 is never returned.
    (The exponential race p / e, quicker on a GPU, is not exact in float32: with some hundred thousand
    exponentials a row, one of them is 0 often enough to see.)

    Args:
        probs: [..., vocab_size], non-negative rows; they need not sum to 1.
        generator: on the device of `probs`.

    Returns:
        [...] int64 ids.
    """
    wide = torch.float32 if probs.device.type == "mps" else torch.float64
    cumulative = probs.cumsum(-1, dtype=wide)
    total = cumulative[..., -1:]
    uniform = torch.rand(total.shape, generator=generator, dtype=wide, device=probs.device)
    # Strictly below the total, or rounding could point behind the last id that has any mass.
    threshold = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    ids = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    return ids.clamp(max=probs.shape[-1] - 1)  # a row of NaN points behind the end; the loop reports it


def prefix_matrix(committed_ids: Tensor, draft_ids: Tensor, seen: Tensor | None = None) -> Tensor:
    """The ids before each position of a verify pass over `draft_ids`.

    A row holds the committed ids and the drafted ones that stand before its position: row i the first i of a chain,
    row i of a tree the (i - 1)th token and its ancestors. What does not stand there repeats the last committed id,
    which a repetition penalty has counted anyway.

    Args:
        committed_ids: [length], at least one id.
        draft_ids: [num_draft_tokens].
        seen: [num_draft_tokens, num_draft_tokens] bool, a tree's `ancestors`; None for a chain.

    Returns:
        [num_draft_tokens + 1, length + num_draft_tokens] int64.
    """
    num_drafted = draft_ids.shape[0]
    if seen is None:
        seen = torch.ones(num_drafted, num_drafted, dtype=torch.bool, device=draft_ids.device).tril()
    block = torch.where(pad(seen, (0, 0, 1, 0)), draft_ids, committed_ids[-1])
    return torch.cat([committed_ids.expand(num_drafted + 1, -1), block], dim=-1)


def _penalised(logits: Tensor, settings: SamplingSettings, prefix_ids: Tensor | None) -> Tensor:
    """Keskar et al., arXiv 1909.05858: a seen token's logit is divided (or, below 0, multiplied) by the penalty."""
    if settings.repetition_penalty == 1.0:
        return logits
    if prefix_ids is None:
        raise ValueError("the repetition penalty needs the ids that stand before each position")
    seen, penalty = logits.gather(-1, prefix_ids), settings.repetition_penalty
    return logits.scatter(-1, prefix_ids, torch.where(seen < 0, seen * penalty, seen / penalty))


def _keep_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """The smallest set of most likely tokens whose mass reaches top_p (Holtzman et al., arXiv 1904.09751).

    Of tokens that are equally likely, and not all needed, those with the smallest ids stay.
    """
    probs = logits.softmax(-1)
    least, above = _least_kept(probs, top_p)
    equal = probs == least
    needed = ((top_p - above) / least).ceil().clamp_min(1.0)
    return logits.masked_fill((probs < least) | (equal & (equal.cumsum(-1) > needed)), -torch.inf)


def _least_kept(probs: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """The largest probability such that all that are as large have that mass together, and the mass of larger ones.

    Returns:
        [..., 1] each.
    """
    return _least_by_sort(probs, mass) if probs.is_cuda else _least_by_digits(probs, mass)


def _least_by_sort(probs: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    descending = probs.sort(-1, descending=True).values
    place = (descending.cumsum(-1, dtype=torch.float64) < mass).sum(-1, keepdim=True).clamp(max=probs.shape[-1] - 1)
    least = descending.gather(-1, place)
    return least, torch.where(probs > least, probs, 0.0).sum(-1, keepdim=True, dtype=torch.float64)


def _least_by_digits(probs: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Without a sort, which takes longer on a CPU than a small model's step where the vocabulary is large.

    Non-negative floats have the order of their bits, so that three histograms, each over the next digits, find the
    probability digit by digit.
    """
    wide = torch.float32 if probs.device.type == "mps" else torch.float64  # a vocabulary of small terms adds up
    bits, weights = probs.view(torch.int32), probs.to(wide)
    above = torch.zeros_like(weights[..., :1])  # mass of what is larger than the digits found so far allow
    found = torch.zeros_like(bits[..., :1])
    for shift, width in ((20, 11), (10, 10), (0, 10)):
        digits = (bits >> shift) & ((1 << width) - 1)
        sums = weights.new_zeros(*probs.shape[:-1], 1 << width).scatter_add_(-1, digits.long(), weights)
        reached = sums.flip(-1).cumsum(-1).flip(-1) + above  # by this digit and larger ones
        # The largest digit that reaches it; the smallest where rounding keeps all of them below.
        digit = ((reached >= mass).sum(-1, keepdim=True) - 1).clamp_min(0)
        above = (reached - sums).gather(-1, digit)
        found = found | (digit.to(torch.int32) << shift)
        weights = torch.where(bits >> shift == found >> shift, weights, 0.0)
    return found.view(torch.float32), above
