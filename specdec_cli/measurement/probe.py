"""A short look at a loaded pair: is what comes out of the caches right, and what does a round cost and bring?

Two models agree on paper more often than in fact. Some compute a block of tokens over a filled cache otherwise than
the same tokens one by one (their code was only ever run with one), and some caches do not forget what they are told to.
Both make wrong text without any error, so both are tried against a computation that cannot go wrong in the same way.

The costs are measured in turn, not one after the other, so that a machine that warms up or is lent to somebody else
slows all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.model import CachedModel, ChainModel
from specdec_cli.decoding.sampling import logits_to_probs, sample
from specdec_cli.decoding.seeds import answer_seed
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.measurement.statistics import CONFIDENCE, Interval, proportion
from specdec_cli.settings import SamplingSettings
from specdec_cli.theory import speedup

MAX_K = 16
ROUND_K = 4  # drafted a round while acceptance is measured
NEW_TOKENS = 32
PREFIX = 32  # tokens in the cache before the block that is tried and timed
# Windows of a model's attention that a block is tried past; a longer one takes minutes to fill on a CPU.
LONGEST_WINDOW, LONGEST_WINDOW_ON_CPU = 8192, 1024
WARM_UP = 2
# As many repeats as fit into the seconds, but no fewer than the first number and no more than the second.
REPEATS, ENOUGH_SECONDS = (7, 31), 6.0
STEP_EVERY = 6  # passes of the target between two of its single steps
# After so many seconds no further prompt is begun, once two are done.
ACCEPTANCE_SECONDS = 40.0
# Single steps that scatter more than the first are told beside the figures; more than the second, and other programs
# were measured as much as the models.
SCATTERED, DISTURBED = 0.25, 1.0
# Greatest difference of a logit, in standard deviations of the logits, that rounding explains. SmolLM2-135M and the
# demo pair stay below 1e-5 in float32, .03 in float16 and .23 in bfloat16; a block without its mask gives above 1.
TOLERANCE = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
# A predicted gain below this is within what machines differ by from one minute to the next.
WORTH_USING = 1.05
Z = 1.959964  # of the normal distribution at 95 %


@dataclass(frozen=True)
class Agreement:
    """Whether a model's cache computes what it must; differences in standard deviations of the logits.

    Attributes:
        block_against_steps: a block over a filled cache against the same tokens one by one; infinite where one of them
            is not a number.
        rollback_against_recompute: logits after a rejection was rolled back against logits that never saw it.
        tolerance: what rounding explains in this number type.
    """

    block_against_steps: float
    rollback_against_recompute: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether rounding explains both."""
        return max(self.block_against_steps, self.rollback_against_recompute) <= self.tolerance

    def record(self) -> dict[str, float | None]:
        """For JSON, which has no infinity."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


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
    """

    temperature: float
    rounds: int
    judged: int
    alpha: float | None
    alpha_ci: Interval | None
    overlap: float | None
    overlap_ci: Interval | None
    other_s: float


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


def check_cache(model: CachedModel, token_ids: Sequence[int], dtype: str, windows: Sequence[int] = ()) -> Agreement:
    """Try a model's cache on a text, and past each of its windows on the text said over and over.

    Args:
        model: its cache is emptied first.
        token_ids: two or more; the first half fills the cache.
        dtype: the name of the type that the model computes in.
        windows: tokens of each, see `tried_windows`.
    """
    texts = [(token_ids, PREFIX)]
    texts += [(list(islice(cycle(token_ids), window + MAX_K + 2)), window + 1) for window in windows]
    return Agreement(
        max(block_against_steps(model, ids, filled) for ids, filled in texts),
        max(rollback_against_recompute(model, ids, filled) for ids, filled in texts),
        TOLERANCE[dtype],
    )


def tried_windows(model: CachedModel, windows: Sequence[int]) -> list[int]:
    """Those that a block can be tried past in seconds, and within the model's context."""
    longest = LONGEST_WINDOW_ON_CPU if model.device.type == "cpu" else LONGEST_WINDOW
    return [window for window in windows if window <= longest and window + MAX_K + 2 <= model.max_length]


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
    _fill(model, prefix)
    at_once = model.forward(block, num_logits=len(block))
    _fill(model, prefix)
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
    _fill(model, prefix)
    model.forward(block.flip(0), num_logits=1)  # a draft, of which nothing stays
    model.roll_back(len(block))
    after = model.forward(block, num_logits=len(block))
    model.reset()
    model.roll_back(0)
    never = model.forward(torch.cat([prefix, block]), num_logits=len(block))
    return _difference(after, never)


def _halves(model: CachedModel, token_ids: Sequence[int], filled: int) -> tuple[Tensor, Tensor]:
    ids = torch.tensor(token_ids, device=model.device)
    middle = max(1, min(filled, max(len(ids) // 2, len(ids) - MAX_K - 1)))
    return ids[:middle], ids[middle : middle + MAX_K + 1]


def _fill(model: CachedModel, token_ids: Tensor) -> None:
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


@torch.inference_mode()
def measure_costs(
    target: CachedModel,
    draft: ChainModel,
    token_ids: Sequence[int],
    sampling: SamplingSettings,
    clock: Callable[[], float],
) -> Costs:
    """Time the target's pass over 1 to 17 tokens and the draft's step, in turn, over a filled cache.

    Args:
        target, draft: their caches are emptied first; the draft's may be a part of the target's.
        token_ids: at least two.
        sampling: of the draft's step.
        clock: seconds; waits for the devices.
    """
    longest = min(MAX_K + 1, target.max_length - len(token_ids))
    ids = torch.tensor(token_ids, device=target.device)
    block = ids.repeat(1 + longest // len(ids))
    one = torch.tensor(token_ids[-1:], device=draft.device)
    prefix = ids.to(draft.device)[None]
    generator = torch.Generator(draft.device).manual_seed(0)
    _fill(target, ids)
    draft.reset()
    if draft.length < len(ids):
        draft.forward(prefix[0, draft.length :], num_logits=1)
        draft.roll_back(0)

    def target_pass(width: int) -> float:
        started = clock()
        target.forward(block[:width], num_logits=width)
        seconds = clock() - started
        target.roll_back(width)
        return seconds

    def draft_step() -> float:
        started = clock()
        sample(logits_to_probs(draft.forward(one, num_logits=1), sampling, prefix), generator)
        seconds = clock() - started
        draft.roll_back(1)
        return seconds

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
    step = median(passes[1])
    low, _, high = quantiles(passes[1], n=4)
    verify_s = tuple(median(passes[width]) for width in range(2, longest + 1))
    return Costs(step, median(steps), verify_s, scatter=(high - low) / step)


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
    )


def clustered_mean(groups: Sequence[Sequence[float]]) -> tuple[float, Interval] | None:
    """Mean of probabilities that come in groups of prompts, and its 95 % interval.

    Positions of one prompt are alike, so the variance is that of a ratio of sums over prompts (Cochran, Sampling
    Techniques, 6.3), or that of independent positions where this is larger; the interval ends at 0 and 1.

    Returns:
        None without any value.
    """
    values = [value for group in groups for value in group]
    if not values:
        return None
    n, mean = len(values), sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / max(1, n - 1) / n
    filled = [group for group in groups if group]
    if len(filled) > 1:
        spread = sum((sum(group) - mean * len(group)) ** 2 for group in filled)
        variance = max(variance, len(filled) / (len(filled) - 1) * spread / n**2)
    reach = Z * math.sqrt(variance)
    return mean, (max(0.0, mean - reach), min(1.0, mean + reach))


def predict(alpha: float, costs: Costs, overhead_s: float) -> list[float]:
    """The extended form's speedup for K from 1, with measured c, v and o.

    Args:
        alpha: of a drafted token.
        overhead_s: seconds of a round outside both models.
    """
    overhead = overhead_s / costs.target_step_s
    return [speedup(alpha, k, costs.c, v, overhead) for k, v in enumerate(costs.v, start=1)]


def best_k(speedups: Sequence[float]) -> int:
    """The K, from 1, with the highest of them; the smaller where two are equal."""
    return 1 + max(range(len(speedups)), key=lambda i: (speedups[i], -i))


def recommendation(acceptance: Acceptance, costs: Costs) -> tuple[bool | None, str]:
    """One sentence: use it with K = n and expect about x, or do not, and why.

    Returns:
        whether to use it, None where that could not be told; and the sentence.
    """
    if acceptance.alpha is None or acceptance.alpha_ci is None:
        return None, "It could not be told, since the texts ended before a round was whole: give others with --prompts."
    if costs.scatter > DISTURBED:
        return None, (
            f"It could not be told: the same step of the target took times that are {costs.scatter:.0%} apart; close "
            "other programs and measure again."
        )
    speedups = predict(acceptance.alpha, costs, acceptance.other_s)
    k = best_k(speedups)
    gain = speedups[k - 1]
    at = f"at temperature {acceptance.temperature:g}"
    low, high = (predict(bound, costs, acceptance.other_s)[k - 1] for bound in acceptance.alpha_ci)
    between = f"{low:.2f}x to {high:.2f}x by alpha's {CONFIDENCE:.0%} interval"
    if costs.scatter > SCATTERED:
        between += f"; timings scatter by {costs.scatter:.0%}, so close other programs"
    if gain >= WORTH_USING:
        return True, f"Use it with --k {k}: expect about {gain:.2f}x {at} ({between})."
    o = acceptance.other_s / costs.target_step_s
    if costs.c >= acceptance.alpha:
        why = f"a draft step costs {costs.c:.2f} target steps, more than an alpha of {acceptance.alpha:.2f} pays for"
    else:
        why = (
            f"alpha is {acceptance.alpha:.2f} where a draft step costs {costs.c:.2f} target steps, verifying "
            f"{costs.v[k - 1]:.2f} and the rest of a round {o:.2f}"
        )
    return False, f"Do not use it: at best {gain:.2f}x ({between}) {at}, K {k}, since {why}."


def record(found: Sequence[Acceptance], costs: Costs) -> dict[str, Any]:
    """Everything measured, and what the extended form makes of it, for JSON."""
    predicted = []
    for acceptance in found:
        if acceptance.alpha is not None:
            speedups = predict(acceptance.alpha, costs, acceptance.other_s)
            k = best_k(speedups)
            every = [{"k": n, "speedup": gain} for n, gain in enumerate(speedups, start=1)]
            predicted.append(
                {"temperature": acceptance.temperature, "k": k, "speedup": speedups[k - 1], "speedups": every}
            )
    return {
        "acceptance": [asdict(a) for a in found],
        "cost": {
            "target_step_s": costs.target_step_s,
            "draft_step_s": costs.draft_step_s,
            "scatter": costs.scatter,
            "c": costs.c,
            "v": [{"k": k, "v": v} for k, v in enumerate(costs.v, start=1)],
            "o": found[0].other_s / costs.target_step_s,
        },
        "predicted": predicted,
    }
