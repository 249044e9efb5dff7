"""The rule that keeps the output distributed as the target's (Leviathan et al. 2211.17192, Chen et al. 2302.01318).

Terms, defined here once:

- *accepted*: a drafted token x kept, with probability min(1, target_prob(x) / draft_prob(x));
- *recovered*: the token that replaces the first rejected one, from norm(max(0, target_probs - draft_probs));
- *bonus*: the token that follows when every drafted one was accepted, from the target's distribution;
- *overlap*: sum over the vocabulary of min(target_probs, draft_probs), the probability that a token drawn from
  the draft is accepted.

Accepted mass min(p, q) and recovered mass max(0, p - q) add up to p: that is the whole proof.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_cli.decoding.sampling import sample


class Verdict(NamedTuple):
    """What the rule decided for one block; leading batch dimensions are kept."""

    num_accepted: Tensor  # [...] int64, 0 to num_draft_tokens
    next_token_id: Tensor  # [...] int64, recovered, or bonus where all were accepted
    target_prob: Tensor  # [..., num_draft_tokens] of the drafted token
    draft_prob: Tensor  # [..., num_draft_tokens] of the drafted token
    overlap: Tensor  # [..., num_draft_tokens]


def verify(
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    generator: torch.Generator,
    simulated_acceptance: float | None = None,
) -> Verdict:
    """Judge a block of drafted tokens, all positions at once, without leaving the device.

    Args:
        target_probs: [..., num_draft_tokens + 1, vocab_size] float32, the row after each prefix.
        draft_probs: [..., num_draft_tokens, vocab_size] float32, what each drafted token was sampled from; None for
            a deterministic draft, which is a one-hot distribution.
        draft_token_ids: [..., num_draft_tokens] int64; may be empty, which is plain sampling.
        generator: on the device of `target_probs`.
        simulated_acceptance: accept each token with this probability instead; exact for no distribution, and only good
            for timing models whose weights are random.
    """
    vocab_size = target_probs.shape[-1]
    drafted = draft_token_ids.unsqueeze(-1)
    judged = target_probs[..., :-1, :]
    target_prob = judged.gather(-1, drafted).squeeze(-1)
    draft_prob = torch.ones_like(target_prob) if draft_probs is None else draft_probs.gather(-1, drafted).squeeze(-1)

    # u < p / q without the division: a token that the target cannot emit (p = 0) is never accepted, even at u = 0.
    coin = torch.rand(target_prob.shape, generator=generator, device=target_prob.device)
    accepted = coin * draft_prob < target_prob if simulated_acceptance is None else coin < simulated_acceptance
    num_accepted = accepted.long().cumprod(-1).sum(-1)

    row = num_accepted[..., None, None].expand(*num_accepted.shape, 1, vocab_size)
    target_row = target_probs.gather(-2, row).squeeze(-2)
    if draft_probs is None:
        leftover = _without(target_row, draft_token_ids, num_accepted)
        overlap = target_prob
    else:
        # A row of zeros behind the draft's distributions makes the bonus token the same case as the recovered one.
        draft_row = pad(draft_probs, (0, 0, 0, 1)).gather(-2, row).squeeze(-2)
        leftover = (target_row - draft_row).clamp_min(0.0)
        overlap = torch.minimum(judged, draft_probs).sum(-1)
    # Where p and q are equal up to rounding, a rejection has next to no probability and no leftover to draw from.
    leftover = torch.where(leftover.sum(-1, keepdim=True) > 0.0, leftover, target_row)
    next_token_id = sample(leftover, generator)
    return Verdict(num_accepted, next_token_id, target_prob, draft_prob, overlap)


def _without(target_row: Tensor, draft_token_ids: Tensor, num_accepted: Tensor) -> Tensor:
    """max(0, p - q) where q is one-hot at the rejected token; p where none was rejected."""
    rejected_id = pad(draft_token_ids, (0, 1)).gather(-1, num_accepted[..., None])
    was_rejected = num_accepted[..., None] < draft_token_ids.shape[-1]
    kept = target_row.gather(-1, rejected_id).masked_fill(was_rejected, 0.0)
    return target_row.scatter(-1, rejected_id, kept)
