"""Is sampled text distributed as the target's? A chi-square test on first tokens, through the real loop.

The first token of a speculative round has passed the accept/reject rule, and its exact distribution is one forward of
the target away. Many rounds with different seeds must agree with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.seeds import trial_seed
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.measurement.statistics import chi_square
from specdec_cli.settings import SamplingSettings

SAMPLES = 500
# Prompts to choose from: that whose first token is least certain shows most.
LOOKED_AT = 8
# A right sampler fails once in ten thousand checks.
SIGNIFICANCE = 1e-4


@dataclass(frozen=True)
class DistributionCheck:
    """What came of it.

    Attributes:
        samples: first tokens drawn.
        p_value: of the chi-square test; None where the distribution is too sharp to test.
        passed: the p-value is not below `SIGNIFICANCE`.
    """

    samples: int
    p_value: float | None
    passed: bool


def check_first_tokens(
    target: CachedModel,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    sampling: SamplingSettings,
    num_draft_tokens: int,
    samples: int = SAMPLES,
) -> DistributionCheck:
    """Draw first tokens, each with a seed that no other text has, and test them against the target's distribution."""
    seeds = [trial_seed("distribution", number) for number in range(1, samples + 1)]
    drawn = Counter(
        next(iter(_generation(target, drafter, prompt_ids, sampling, num_draft_tokens, seed))).token_ids[0]
        for seed in seeds
    )
    expected = _first_token_probs(target, prompt_ids, sampling, num_draft_tokens + 1).tolist()
    observed = [drawn[i] for i in range(len(expected))]
    p_value = chi_square(observed, expected)
    return DistributionCheck(samples, p_value, p_value is None or p_value >= SIGNIFICANCE)


def least_certain(target: CachedModel, prompts: Sequence[Sequence[int]], sampling: SamplingSettings) -> Sequence[int]:
    """Of the first few prompts, the one whose first token has the highest entropy."""
    return max(
        prompts[:LOOKED_AT], key=lambda ids: float(torch.special.entr(_first_token_probs(target, ids, sampling)).sum())
    )


def _first_token_probs(
    target: CachedModel, prompt_ids: Sequence[int], sampling: SamplingSettings, rows: int = 1
) -> Tensor:
    """[vocab_size], the target's own, from a pass over as many rows as a round has.

    In 16 bit another number of rows rounds otherwise, and a token at the border of a nucleus is in it or out.
    """
    prefix = torch.tensor(prompt_ids, device=target.device)
    rows = min(rows, target.max_length - len(prompt_ids) + 1)
    with torch.inference_mode():
        target.reset()
        if len(prompt_ids) > 1:
            target.forward(prefix[:-1], num_logits=1)
        target.roll_back(0)
        block = torch.cat([prefix[-1:], prefix.new_zeros(rows - 1)])
        logits = target.forward(block, num_logits=rows)[:1]
        return logits_to_probs(logits, sampling, prefix[None])[0].cpu().double()


def _generation(
    target: CachedModel,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    sampling: SamplingSettings,
    num_draft_tokens: int,
    seed: int,
) -> Generation:
    stopping = Stopping(num_draft_tokens + 1)
    return Generation(
        target, drafter, prompt_ids, num_draft_tokens=num_draft_tokens, sampling=sampling, stopping=stopping, seed=seed
    )
