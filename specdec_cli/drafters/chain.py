"""A chain of tokens sampled from a model one by one: what every drafter does that has a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from specdec_cli.decoding.model import ChainModel, repeater_of
from specdec_cli.decoding.sampling import greedy, logits_to_probs, sample
from specdec_cli.drafters.base import Draft
from specdec_cli.settings import SamplingSettings


def sample_chain(
    model: ChainModel,
    committed_ids: Sequence[int],
    num_draft_tokens: int,
    sampling: SamplingSettings,
    generator: torch.Generator,
    draft_stop: float = 0.0,
) -> Draft:
    """Sample tokens that follow the committed ones; fewer, or none, where the model's context ends.

    What the model's cache lacks of the committed tokens is fed first, in one pass. Afterwards the cache holds all of
    them and every drafted token but the last.

    Args:
        model: its cache holds a beginning of the committed tokens, and not all of them.
        committed_ids: the text so far.
        num_draft_tokens: at most.
        sampling: the target's settings.
        generator: on the model's device.
        draft_stop: end behind a token that the model gave less than this probability. The token itself stays: leaving
            it out would make the drafts that are judged unlike the distributions they are said to come from. Costs a
            transfer to the host for each token.
    """
    room = model.max_length - len(committed_ids) + 1
    num_draft_tokens = min(num_draft_tokens, room)
    if num_draft_tokens <= 0:
        return Draft(torch.empty(0, dtype=torch.long, device=model.device))
    pending = torch.tensor(committed_ids[model.length :], dtype=torch.long, device=model.device)
    prefix = None
    if sampling.repetition_penalty != 1.0:
        prefix = torch.tensor(committed_ids, dtype=torch.long, device=model.device)
    repeater = repeater_of(model)
    if repeater is not None and prefix is None and draft_stop == 0.0:
        sample_all = partial(_sample_all, model, num_draft_tokens, sampling, generator)
        key, num_tokens = ("chain", num_draft_tokens, sampling), len(pending) + num_draft_tokens - 1
        repeated = repeater.repeat(key, sample_all, [pending], num_tokens, generator)
        if repeated is not None:
            return _draft(*repeated)
    return _draft(*_sample_all(model, num_draft_tokens, sampling, generator, pending, prefix, draft_stop))


def _draft(token_ids: Tensor, probs: Tensor | None = None) -> Draft:
    return Draft(token_ids, probs)


def _sample_all(
    model: ChainModel,
    num_draft_tokens: int,
    sampling: SamplingSettings,
    generator: torch.Generator,
    pending: Tensor,
    prefix: Tensor | None = None,
    draft_stop: float = 0.0,
) -> tuple[Tensor, ...]:
    """Ids and the distributions that they come from, which at temperature 0 the ids say already.

    Without prefix and stop, the host knows nothing that changes.
    """
    token_ids, probs = [], []
    for _ in range(num_draft_tokens):
        logits = model.forward(pending, num_logits=1)  # [1, vocab_size]
        before = None if prefix is None else prefix[None]
        if sampling.temperature == 0.0:
            pending = greedy(logits, sampling, before)  # [1]
        else:
            row = logits_to_probs(logits, sampling, before)
            pending = sample(row, generator)
            probs.append(row)
        if prefix is not None:
            prefix = torch.cat([prefix, pending])
        token_ids.append(pending)
        if draft_stop > 0.0 and bool(logits.softmax(-1)[0, pending[0]] < draft_stop):
            break
    return (torch.cat(token_ids), torch.cat(probs)) if probs else (torch.cat(token_ids),)
