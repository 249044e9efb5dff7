"""A short look at a loaded pair: what does a round cost, and what does it bring?

The costs are measured in turn, not one after the other, so that a machine that warms up or is lent to somebody else
slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

import torch

from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.model import CachedModel, ChainModel
from specdec_cli.decoding.sampling import logits_to_probs, sample
from specdec_cli.decoding.seeds import answer_seed
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.measurement.cache_check import fill
from specdec_cli.measurement.statistics import Interval, clustered_mean, proportion
from specdec_cli.settings import SamplingSettings

MAX_K = 16
ROUND_K = 4  # drafted a round while acceptance is measured
NEW_TOKENS = 32
WARM_UP = 2
# As many repeats as fit into the seconds, but no fewer than the first number and no more than the second.
REPEATS, ENOUGH_SECONDS = (7, 31), 6.0
STEP_EVERY = 6  # passes of the target between two of its single steps
# After so many seconds no further prompt is begun, once two are done.
ACCEPTANCE_SECONDS = 40.0


@dataclass(frozen=True)
class Acceptance:
    """How often the draft is right, on a few prompts.

    Attributes:
        temperature: that both sampled at.
        rounds: whole rounds that counted.
        judged: drafted tokens that the rule looked at.
        alpha: accepted / judged; None where nothing was judged.
        alpha_ci: 95 %, over prompts and tokens.
        overlap: mean of sum min(target, draft) over the same positions.
        overlap_ci: 95 %, prompts taken as clusters.
        other_s: median seconds of a round outside both models.
        tokens_per_round: mean over whole rounds.
        by_position: share of rounds in which the drafted token of each position was accepted, from the first.
        draft_share: median of what drafting a token took, in the round's verify pass.
    """

    temperature: float
    rounds: int
    judged: int
    alpha: float | None
    alpha_ci: Interval | None
    overlap: float | None
    overlap_ci: Interval | None
    other_s: float
    tokens_per_round: float | None = None
    by_position: tuple[float, ...] = ()
    draft_share: float = 0.0


@dataclass(frozen=True)
class Costs:
    """Medians of interleaved timings.

    Attributes:
        target_step_s: T(1), the target's pass over one token.
        draft_step_s: the draft's pass over one token, and sampling from it.
        verify_s: the target's pass over K + 1 tokens, for K from 1.
        scatter: between the quartiles of T(1), in T(1): how much the machine was disturbed.
    """

    target_step_s: float
    draft_step_s: float
    verify_s: tuple[float, ...]
    scatter: float = 0.0

    @property
    def c(self) -> float:
        """A draft step in target steps."""
        return self.draft_step_s / self.target_step_s

    @property
    def v(self) -> tuple[float, ...]:
        """Verifying in target steps, for K from 1."""
        return tuple(seconds / self.target_step_s for seconds in self.verify_s)


@torch.inference_mode()
def measure_costs(
    target: CachedModel,
    draft: ChainModel | None,
    token_ids: Sequence[int],
    sampling: SamplingSettings,
    clock: Callable[[], float],
) -> Costs:
    """Time the target's pass over 1 to 17 tokens and the draft's step, in turn, over a filled cache.

    Args:
        target, draft: their caches are emptied first; the draft's may be a part of the target's. None where what drafts
            is no model of its own: see `with_rounds`.
        token_ids: at least two.
        sampling: of the draft's step.
        clock: seconds; waits for the devices.
    """
    longest = min(MAX_K + 1, target.max_length - len(token_ids))
    ids = torch.tensor(token_ids, device=target.device)
    block = ids.repeat(1 + longest // len(ids))
    fill(target, ids)

    def target_pass(width: int) -> float:
        started = clock()
        target.forward(block[:width], num_logits=width)
        seconds = clock() - started
        target.roll_back(width)
        return seconds

    draft_step = (lambda: 0.0) if draft is None else _draft_step(draft, token_ids, sampling, clock)
    passes, steps = _in_turn(target_pass, draft_step, longest, clock)
    step = median(passes[1])
    low, _, high = quantiles(passes[1], n=4)
    verify_s = tuple(median(passes[width]) for width in range(2, longest + 1))
    return Costs(step, median(steps), verify_s, scatter=(high - low) / step)


def _draft_step(
    draft: ChainModel, token_ids: Sequence[int], sampling: SamplingSettings, clock: Callable[[], float]
) -> Callable[[], float]:
    """What times the draft's pass over one token, and sampling from it, behind the text."""
    one = torch.tensor(token_ids[-1:], device=draft.device)
    prefix = torch.tensor(token_ids, device=draft.device)[None]
    generator = torch.Generator(draft.device).manual_seed(0)
    draft.reset()
    if draft.length < len(token_ids):
        draft.forward(prefix[0, draft.length :], num_logits=1)
        draft.roll_back(0)

    def step() -> float:
        started = clock()
        sample(logits_to_probs(draft.forward(one, num_logits=1), sampling, prefix), generator)
        seconds = clock() - started
        draft.roll_back(1)
        return seconds

    return step


def with_rounds(costs: Costs, acceptance: Acceptance) -> Costs:
    """The costs of something that drafts in rounds alone, as a trained head does: its share of a round's verify pass.

    Both were timed in the same rounds, so that it matters little when the machine was slower than while passes were.
    """
    return replace(costs, draft_step_s=acceptance.draft_share * costs.verify_s[min(ROUND_K, len(costs.verify_s)) - 1])


def _in_turn(
    target_pass: Callable[[int], float], draft_step: Callable[[], float], longest: int, clock: Callable[[], float]
) -> tuple[dict[int, list[float]], list[float]]:
    """Seconds of passes, by width, and of the draft's steps: as many as there is time for, after the warm-up."""
    passes: dict[int, list[float]] = {width: [] for width in range(1, longest + 1)}
    steps: list[float] = []
    begun = clock()
    for repeat in range(WARM_UP + REPEATS[1]):
        if repeat >= WARM_UP + REPEATS[0] and clock() - begun > ENOUGH_SECONDS:
            break
        if repeat == WARM_UP:
            passes = {width: [] for width in passes}
            steps.clear()
        for place in range(longest):
            if place % STEP_EVERY == 0:  # what all else is divided by is measured more often
                passes[1].append(target_pass(1))
                steps.append(draft_step())
            width = 1 + (place + repeat) % longest
            passes[width].append(target_pass(width))
    return passes, steps


def measure_acceptance(
    target: CachedModel,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingSettings,
    end_ids: Collection[int],
    clock: Callable[[], float],
) -> Acceptance:
    """Run real rounds on each prompt, as long as there is time, and count.

    Args:
        drafter: made for the same sampling.
        prompts: ids, each shorter than the target's context.
        sampling: of both.
        end_ids: end a text.
        clock: seconds; waits for the devices.
    """
    whole: list[list[Step]] = []
    begun = clock()
    for number, prompt in enumerate(prompts, start=1):
        if number > 2 and clock() - begun > ACCEPTANCE_SECONDS:
            break
        generation = Generation(
            target, drafter, prompt, num_draft_tokens=ROUND_K, sampling=sampling,
            stopping=Stopping(NEW_TOKENS, end_ids), seed=answer_seed(0, number), clock=clock,
        )  # fmt: skip
        whole.append([step for step in generation if not step.cut and step.draft_token_ids])
    accepted = [sum(s.num_accepted for s in steps) for steps in whole]
    judged = [sum(min(s.num_accepted + 1, len(s.draft_token_ids)) for s in steps) for steps in whole]
    overlaps = [[o for s in steps for o in s.overlap[: s.num_accepted + 1]] for steps in whole]
    rate = proportion(accepted, judged)
    mean = clustered_mean(overlaps)
    rounds = [step for steps in whole for step in steps]
    return Acceptance(
        temperature=sampling.temperature,
        rounds=len(rounds),
        judged=sum(judged),
        alpha=rate[0] if rate else None,
        alpha_ci=rate[1] if rate else None,
        overlap=mean[0] if mean else None,
        overlap_ci=mean[1] if mean else None,
        other_s=median(step.other_s for step in rounds) if rounds else 0.0,
        tokens_per_round=1 + sum(accepted) / len(rounds) if rounds else None,
        by_position=tuple(sum(s.num_accepted > i for s in rounds) / len(rounds) for i in range(ROUND_K) if rounds),
        draft_share=median(s.draft_s / len(s.draft_token_ids) / (s.verify_s or 1.0) for s in rounds) if rounds else 0.0,
    )
