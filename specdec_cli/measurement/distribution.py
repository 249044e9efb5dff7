"""Is sampled text distributed as the target's? A chi-square test on first tokens, through the real loop.

The first token of a speculative round has passed the accept/reject rule, and its exact distribution is one forward of
the target away. Many rounds with different seeds must agree with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_cli.decoding.draft_length import FIRST
from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.seeds import trial_seed
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.measurement.arms import LoopArm, arm_id
from specdec_cli.measurement.benchmark import Contest
from specdec_cli.measurement.runs import ArmId
from specdec_cli.measurement.statistics import chi_square
from specdec_cli.measurement.summary import ALL
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


def check_distributions(
    results: Sequence[dict[str, Any]],
    contests: Mapping[float, Contest],
    prompts: Sequence[Sequence[int]],
    in_turn: Callable[[Sequence[dict[str, Any]]], Iterable[dict[str, Any]]] = iter,
) -> None:
    """Sample every arm above temperature 0, and say in its result's `lossless` what came of it.

    Args:
        results: as `summary.results` makes them.
        contests: by temperature, what they were measured of.
        prompts: ids, to choose one from for each temperature.
        in_turn: gives the results one by one; may show how far it is.
    """
    chosen: dict[float, Sequence[int]] = {}
    for result in in_turn([r for r in results if r["category"] == ALL and r["temperature"] > 0]):
        contest = contests[result["temperature"]]
        arm = next(a for a in contest.arms if arm_id(a) == ArmId(result["draft"], result["k"]))
        assert isinstance(arm, LoopArm)
        if result["temperature"] not in chosen:
            chosen[result["temperature"]] = least_certain(arm.target, prompts, contest.sampling)
        prompt_ids, k = chosen[result["temperature"]], arm.k if isinstance(arm.k, int) else FIRST
        check = check_first_tokens(arm.target, arm.drafter, prompt_ids, contest.sampling, k)
        result["lossless"] |= {"checked": True, "identical": None, "distribution": asdict(check)}


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
