"""Measuring speculation so that the answer is fair: the same loop with and without a drafter, in turn, on each prompt.

A *block* is one prompt at one temperature: every arm generates the same number of tokens for it, plain decoding among
them, in an order that rotates from block to block. Ratios are taken inside a block, so a machine that drifts over
minutes slows both sides alike, and a run that was interrupted or resumed is made of whole blocks.

Prefill is timed apart. Every arm warms up on the first prompt, unmeasured; at the end plain decoding is measured once
more on the first prompts, as a control of how much the machine has drifted meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice, zip_longest
from typing import Any, Protocol

import torch

from specdec_cli.decoding.draft_length import draft_length
from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.seeds import answer_seed, trial_seed
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.measurement.metrics import by_source
from specdec_cli.settings import NO_DRAFT, KChoice, SamplingSettings

# Plain decoding runs once a block, and again for every so many further arms.
ARMS_PER_BASELINE = 4
WARM_UP_TOKENS = 16
CONTROLS = 3
# How far, in roundings of its largest logit, a model's 16-bit logits move when a block is computed at once.
NEAR_TIE_ROUNDINGS = 4


@dataclass(frozen=True)
class Case:
    """What every arm of a block generates from.

    Attributes:
        prompt, turn: which prompt of the set, and which of its turns, from 1.
        category: the prompt's.
        prompt_ids: the conversation so far.
        seed: of all random draws.
    """

    prompt: int
    turn: int
    category: str
    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Run:
    """One generation, counted and timed; the raw sample that everything else is computed from.

    Counts of acceptance and cost come from whole rounds: one that the length limit shortened says little about either.

    Attributes:
        arm: the draft's name, "none" for plain decoding; or a peer's ("transformers assisted").
        k: tokens drafted a round, or the rule that chose it for each; 0 for plain decoding.
        temperature, prompt, turn, category: the block.
        new_tokens: generated, the same for all arms of a block unless end tokens count.
        prefill_s: reading the prompt, target and drafter together.
        first_token_s: from the start to the end of the first round.
        draft_s, verify_s, other_s: seconds of all rounds.
        rounds: of any kind.
        drafted, accepted: of all rounds.
        whole_rounds, whole_drafted, whole_draft_s, whole_verify_s, whole_other_s: of whole rounds.
        whole_read: drafted tokens that the target read in whole rounds: more than `whole_drafted` where drafts branch.
        lengths: of whole rounds, how many drafted so many tokens, as (tokens, rounds).
        judged_at, accepted_at: at each position of a whole round, drafted tokens that were judged and accepted.
        overlap_sum: of sum min(p, q) over judged positions of whole rounds.
        token_ids: what was generated.
        first_difference: at temperature 0, the first token that plain decoding chose otherwise; see `Difference`.
        sources: where several sources took turns, the rounds, drafted and accepted tokens of each.
        peer_of: of another tool, the draft whose arm it stands beside ("none" for plain decoding); None for specdec's.
    """

    arm: str
    k: KChoice
    temperature: float
    prompt: int
    turn: int
    category: str
    new_tokens: int
    prefill_s: float
    first_token_s: float
    draft_s: float
    verify_s: float
    other_s: float
    rounds: int
    drafted: int = 0
    accepted: int = 0
    whole_rounds: int = 0
    whole_drafted: int = 0
    whole_read: int = 0
    whole_draft_s: float = 0.0
    whole_verify_s: float = 0.0
    whole_other_s: float = 0.0
    lengths: tuple[tuple[int, int], ...] = ()
    judged_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    overlap_sum: float = 0.0
    token_ids: tuple[int, ...] = ()
    first_difference: Difference | None = None
    sources: dict[str, dict[str, int]] = field(default_factory=dict)
    peer_of: str | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Run:
        """A run as JSON gave it back.

        Raises:
            TypeError: a key is missing, or unknown.
        """
        if missing := {attribute.name for attribute in fields(cls)} - record.keys():
            raise TypeError(f"a run without {', '.join(sorted(missing))}")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        values["lengths"] = tuple((length, rounds) for length, rounds in values.get("lengths", ()))
        if values.get("first_difference") is not None:
            values["first_difference"] = Difference(**values["first_difference"])
        return cls(**values)

    @property
    def decode_s(self) -> float:
        """Seconds of all rounds."""
        return self.draft_s + self.verify_s + self.other_s

    @property
    def tokens_per_s(self) -> float:
        """Decoding alone."""
        return self.new_tokens / self.decode_s

    @property
    def end_to_end_tokens_per_s(self) -> float:
        """Prefill included."""
        return self.new_tokens / (self.prefill_s + self.decode_s)


@dataclass(frozen=True)
class Difference:
    """Where greedy text takes another turn than plain decoding's.

    Attributes:
        position: of the token, from 0.
        plain_id, speculative_id: what each chose; None where that text had ended.
        gap: how far the target's two best logits are apart there.
        near_tie: both chose a token whose logit is no further from the best than rounding in the target's number type
            moves a logit by.
    """

    position: int
    plain_id: int | None
    speculative_id: int | None
    gap: float
    near_tie: bool


class Arm(Protocol):
    """Something that generates, and is measured."""

    @property
    def name(self) -> str:
        """The draft's name, or a peer's."""
        ...

    @property
    def k(self) -> KChoice:
        """Tokens drafted a round; 0 for none."""
        ...

    def run(self, case: Case, max_new_tokens: int) -> Run:
        """Generate once."""
        ...


@dataclass
class LoopArm:
    """specdec's own loop with a drafter, or with none.

    Attributes:
        end_ids: they end the text early; empty where all arms are to generate the same number of tokens.
        simulated_acceptance: see `decoding.acceptance.verify`.
        clock: seconds; must wait for the devices.
    """

    name: str
    k: KChoice
    target: CachedModel
    drafter: Drafter
    sampling: SamplingSettings
    clock: Callable[[], float]
    end_ids: frozenset[int] = frozenset()
    simulated_acceptance: float | None = None

    def __post_init__(self) -> None:
        self._length = draft_length(self.k)  # one an arm: what it learns of the costs holds for the next prompt too

    def run(self, case: Case, max_new_tokens: int) -> Run:
        """Generate once through `Generation`."""
        generation = Generation(
            self.target,
            self.drafter,
            case.prompt_ids,
            num_draft_tokens=self._length,
            sampling=self.sampling,
            stopping=Stopping(max_new_tokens, self.end_ids),
            seed=case.seed,
            simulated_acceptance=self.simulated_acceptance,
            clock=self.clock,
        )
        return count(list(generation), self, self.sampling.temperature, case, generation)


@dataclass
class PeerArm:
    """Another tool, timed as a whole: what it does inside is not seen.

    Attributes:
        peer_of: the draft whose arm it stands beside; "none" for plain decoding.
        generate: (prompt ids, new tokens, seed) -> the ids generated.
    """

    name: str
    peer_of: str
    k: KChoice
    temperature: float
    generate: Callable[[Sequence[int], int, int], Sequence[int]]
    clock: Callable[[], float]

    def run(self, case: Case, max_new_tokens: int) -> Run:
        """Generate once; all the time is in `verify_s`."""
        started = self.clock()
        token_ids = self.generate(case.prompt_ids, max_new_tokens, case.seed)
        seconds = self.clock() - started
        return Run(
            arm=self.name,
            k=self.k,
            temperature=self.temperature,
            prompt=case.prompt,
            turn=case.turn,
            category=case.category,
            new_tokens=len(token_ids),
            prefill_s=0.0,
            first_token_s=0.0,
            draft_s=0.0,
            verify_s=seconds,
            other_s=0.0,
            rounds=0,
            token_ids=tuple(token_ids),
            peer_of=self.peer_of,
        )


def count(steps: Sequence[Step], arm: Arm, temperature: float, case: Case, generation: Generation) -> Run:
    """A generation's rounds as one record."""
    whole = [step for step in steps if not step.cut]
    positions = range(max((len(step.draft_token_ids) for step in whole), default=0))
    judged = [min(step.num_accepted + 1, len(step.draft_token_ids)) for step in whole]
    first = steps[0]
    return Run(
        arm=arm.name,
        k=arm.k,
        temperature=temperature,
        prompt=case.prompt,
        turn=case.turn,
        category=case.category,
        new_tokens=len(generation.token_ids),
        prefill_s=generation.prefill_s,
        first_token_s=generation.prefill_s + first.draft_s + first.verify_s + first.other_s,
        draft_s=sum(step.draft_s for step in steps),
        verify_s=sum(step.verify_s for step in steps),
        other_s=sum(step.other_s for step in steps),
        rounds=len(steps),
        drafted=sum(len(step.draft_token_ids) for step in steps),
        accepted=sum(step.num_accepted for step in steps),
        whole_rounds=len(whole),
        whole_drafted=sum(len(step.draft_token_ids) for step in whole),
        whole_read=sum(len(step.tree.token_ids if step.tree else step.draft_token_ids) for step in whole),
        whole_draft_s=sum(step.draft_s for step in whole),
        whole_verify_s=sum(step.verify_s for step in whole),
        whole_other_s=sum(step.other_s for step in whole),
        lengths=tuple(sorted(Counter(len(step.draft_token_ids) for step in whole).items())),
        judged_at=tuple(sum(n > i for n in judged) for i in positions),
        accepted_at=tuple(sum(step.num_accepted > i for step in whole) for i in positions),
        overlap_sum=sum(sum(step.overlap[:n]) for step, n in zip(whole, judged, strict=True)),
        token_ids=tuple(generation.token_ids),
        sources={name: asdict(counts) for name, counts in by_source(steps).items()},
    )


class Dialogue(Protocol):
    """One prompt of the set."""

    @property
    def category(self) -> str:
        """The prompt's."""
        ...

    @property
    def turns(self) -> int:
        """How many answers it wants, one after the other."""
        ...

    def prompt_ids(self, answers: Sequence[Sequence[int]]) -> Sequence[int]:
        """Ids that the next answer follows, given the ids of the answers so far."""
        ...


@dataclass(frozen=True)
class Contest:
    """What is measured at one temperature.

    Attributes:
        baseline: plain decoding.
        arms: what stands against it.
        sampling: of all of them.
    """

    baseline: Arm
    arms: Sequence[Arm]
    sampling: SamplingSettings


@dataclass
class Session:
    """What a benchmark has measured so far.

    Attributes:
        runs: of whole blocks.
        controls: plain decoding of the first prompts, once more at the end.
        interrupted: before everything was measured.
    """

    runs: list[Run] = field(default_factory=list)
    controls: list[Run] = field(default_factory=list)
    interrupted: bool = False


def in_turn(contest: Contest, number: int) -> list[Arm]:
    """The order of a block: plain decoding, then the arms, which rotate by one every two blocks; odd blocks backwards.

    So every arm stands at every place equally often. With one arm that is plain, speculative, speculative, plain,
    plain, and so on.
    """
    arms = contest.arms
    start = number // 2 % max(1, len(arms))
    rotated = [*arms[start:], *arms[:start]]
    order: list[Arm] = []
    for i in range(0, max(1, len(rotated)), ARMS_PER_BASELINE):
        order += [contest.baseline, *rotated[i : i + ARMS_PER_BASELINE]]
    return order[::-1] if number % 2 else order


def whole_blocks(runs: Sequence[Run], contests: Mapping[float, Contest]) -> list[Run]:
    """Of runs read back from a file, those of blocks that were finished; the last of a block that was written twice."""
    blocks: dict[tuple[float, int, int], list[Run]] = {}
    for run in runs:
        blocks.setdefault((run.temperature, run.prompt, run.turn), []).append(run)
    kept: list[Run] = []
    for (temperature, _, _), block in blocks.items():
        wanted = Counter((arm.name, arm.k) for arm in in_turn(contests[temperature], 0))
        last = block[-wanted.total() :]
        if Counter((run.arm, run.k) for run in last) == wanted:
            kept += last
    return kept


def estimate_s(
    contests: Mapping[float, Contest], warm: Mapping[float, Sequence[Run]], cases: int, tokens: int
) -> float:
    """Seconds that the benchmark will take, from the warm-up runs of `warm_up`, in their order.

    Args:
        cases: blocks at each temperature.
        tokens: generated by each run.
    """
    seconds = 0.0
    for temperature, contest in contests.items():
        plain, *others = (run.prefill_s + run.decode_s / run.new_tokens * tokens for run in warm[temperature])
        baselines = len(in_turn(contest, 0)) - len(contest.arms)
        seconds += cases * (baselines * plain + sum(others))
    return seconds


def warm_up(contest: Contest, dialogue: Dialogue, max_new_tokens: int) -> list[Run]:
    """Run every arm once on few tokens; good for an estimate of how long everything will take, and for nothing else."""
    case = Case(0, 1, "", tuple(dialogue.prompt_ids(())), trial_seed("warm-up"))
    tokens = min(WARM_UP_TOKENS, max_new_tokens)
    return [arm.run(case, tokens) for arm in (contest.baseline, *contest.arms)]


def benchmark(
    contests: Mapping[float, Contest],
    dialogues: Sequence[Dialogue],
    *,
    target: CachedModel,
    rounding: float | None,
    max_new_tokens: int,
    seed: int,
    session: Session,
    on_run: Callable[[Run], None],
) -> None:
    """Measure every block that `session` does not hold yet, and add it there.

    Args:
        contests: by temperature.
        dialogues: the prompts.
        seed: of the session; every answer has its own, the same for all arms.
        target: to look at where greedy texts differ.
        rounding: relative step of its number type; 0 where no difference is to be excused, None where texts are not
            to be compared.
        session: kept up to date block by block, so that an interruption loses one at most.
        on_run: told of each run of a block when the block is whole.
    """
    number = 0
    try:
        for temperature, contest in contests.items():
            for prompt, dialogue in enumerate(dialogues, start=1):
                answers: list[Sequence[int]] = []
                for turn in range(1, dialogue.turns + 1):
                    runs = [r for r in session.runs if (r.temperature, r.prompt, r.turn) == (temperature, prompt, turn)]
                    if not runs:
                        ids = tuple(dialogue.prompt_ids(answers))
                        case = Case(prompt, turn, dialogue.category, ids, answer_seed(seed, prompt, turn))
                        runs = [arm.run(case, max_new_tokens) for arm in in_turn(contest, number)]
                        if temperature == 0 and rounding is not None:
                            runs = _compared(runs, case, target, contest.sampling, rounding)
                        session.runs += runs
                        for run in runs:
                            on_run(run)
                    answers.append(plain_runs(runs)[0].token_ids)
                    number += 1
        contest = next(iter(contests.values()))
        for prompt, dialogue in islice(enumerate(dialogues, start=1), CONTROLS):
            ids = tuple(dialogue.prompt_ids(()))
            case = Case(prompt, 1, dialogue.category, ids, answer_seed(seed, prompt))
            session.controls.append(contest.baseline.run(case, max_new_tokens))
    except KeyboardInterrupt:
        session.interrupted = True


def plain_runs(runs: Sequence[Run]) -> list[Run]:
    """Those without a drafter."""
    return [run for run in runs if run.arm == NO_DRAFT]


def _compared(
    runs: list[Run], case: Case, target: CachedModel, sampling: SamplingSettings, rounding: float
) -> list[Run]:
    """Greedy runs, each with the first token that plain decoding chose otherwise."""
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
