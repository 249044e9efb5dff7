"""Measuring speculation so that the answer is fair: the same loop with and without a drafter, in turn, on each prompt.

A *block* is one prompt at one temperature: every arm generates the same number of tokens for it, plain decoding among
them, in an order that rotates from block to block. Ratios are taken inside a block, so a machine that drifts over
minutes slows both sides alike, and a run that was interrupted or resumed is made of whole blocks.

A block that something disturbed (`plausibility.disturbed`) is measured again once all others are there, up to twice;
the later runs take the place of the earlier ones.

Prefill is timed apart. Every arm warms up on the first prompt, unmeasured; at the end plain decoding is measured once
more on the first prompts, as a control of how much the machine has drifted meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.seeds import answer_seed, trial_seed
from specdec_cli.measurement.arms import Arm, arm_id
from specdec_cli.measurement.differences import compared
from specdec_cli.measurement.hardware import OtherProcesses
from specdec_cli.measurement.plausibility import disturbed
from specdec_cli.measurement.runs import Block, Case, Run, plain_runs
from specdec_cli.settings import SamplingSettings

# Plain decoding runs once a block, and again for every so many further arms.
ARMS_PER_BASELINE = 4
WARM_UP_TOKENS = 16
CONTROLS = 3
# Of a disturbed block.
REPEATS = 2


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

    def runs_of(self, place: Block) -> list[Run]:
        """Those of one block; none where it was not measured yet."""
        return [run for run in self.runs if run.block == place]

    def put(self, runs: Sequence[Run]) -> None:
        """Add a block, or put it where its runs stood before."""
        at = next((i for i, run in enumerate(self.runs) if run.block == runs[0].block), len(self.runs))
        self.runs[at : at + len(self.runs_of(runs[0].block))] = runs


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
    """Of runs read back from a file, those of blocks that were finished; of one that was repeated, the last time."""
    blocks: dict[Block, dict[int, list[Run]]] = {}
    for run in runs:
        blocks.setdefault(run.block, {}).setdefault(run.repeat, []).append(run)
    kept: list[Run] = []
    for (temperature, _, _), repeats in blocks.items():
        wanted = Counter(arm_id(arm) for arm in in_turn(contests[temperature], 0))
        ends = [repeats[repeat][-wanted.total() :] for repeat in sorted(repeats, reverse=True)]
        kept += next((end for end in ends if Counter(run.arm_id for run in end) == wanted), [])
    return kept


def warm_up(contest: Contest, dialogue: Dialogue, max_new_tokens: int) -> list[Run]:
    """Run every arm once on few tokens; good for an estimate of how long everything will take, and for nothing else."""
    case = Case(0, 1, "", tuple(dialogue.prompt_ids(())), trial_seed("warm-up"))
    tokens = min(WARM_UP_TOKENS, max_new_tokens)
    return [arm.run(case, tokens) for arm in (contest.baseline, *contest.arms)]


@dataclass(frozen=True)
class _Place:
    """A block to be measured.

    Attributes:
        number: of blocks before it, which turns the order of its arms.
    """

    number: int
    contest: Contest
    dialogue: Dialogue
    block: Block


def _places(contests: Mapping[float, Contest], dialogues: Sequence[Dialogue]) -> Iterator[_Place]:
    """Every block, in the order in which they are measured."""
    number = 0
    for temperature, contest in contests.items():
        for prompt, dialogue in enumerate(dialogues, start=1):
            for turn in range(1, dialogue.turns + 1):
                yield _Place(number, contest, dialogue, (temperature, prompt, turn))
                number += 1


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
    cores_needed: float | None = None,
    repeats: int = 0,
    on_repeat: Callable[[Mapping[Block, str]], None] = lambda found: None,
) -> None:
    """Measure every block that `session` does not hold yet, and those that were disturbed once more.

    Args:
        contests: by temperature.
        dialogues: the prompts.
        seed: of the session; every answer has its own, the same for all arms.
        target: to look at where greedy texts differ.
        rounding: relative step of its number type; 0 where no difference is to be excused, None where texts are not
            to be compared.
        session: kept up to date block by block, so that an interruption loses one at most.
        on_run: told of each run of a block when the block is whole.
        cores_needed: the share of the cores that this process has threads for; None where they do not matter.
        repeats: how often a disturbed block is measured again, if at all; not where a drafter would remember its text.
            Where one time mended none of them, there is no second.
        on_repeat: told of the blocks that are to be measured again, and of what was seen in each.
    """

    def measure(place: _Place, repeat: int) -> None:
        temperature, prompt, turn = place.block
        answers = [plain_runs(session.runs_of((temperature, prompt, t)))[0].token_ids for t in range(1, turn)]
        ids = tuple(place.dialogue.prompt_ids(answers))
        case = Case(prompt, turn, place.dialogue.category, ids, answer_seed(seed, prompt, turn))
        with nullcontext() if cores_needed is None else OtherProcesses(cores_needed) as others:
            runs = [arm.run(case, max_new_tokens) for arm in in_turn(place.contest, place.number)]
        if temperature == 0 and rounding is not None:
            runs = compared(runs, case, target, place.contest.sampling, rounding)
        contention = None if others is None else others.contention
        runs = [replace(run, contention=contention, repeat=repeat) for run in runs]
        session.put(runs)
        for run in runs:
            on_run(run)

    places = list(_places(contests, dialogues))
    try:
        for place in places:
            if not session.runs_of(place.block):
                measure(place, 0)
        found = disturbed(session.runs)
        for _ in range(repeats):
            if not found:
                break
            on_repeat(found)
            for place in (place for place in places if place.block in found):
                measure(place, session.runs_of(place.block)[0].repeat + 1)
            before, found = found, disturbed(session.runs)
            if before.keys() <= found.keys():  # whatever it is, it does not pass
                break
        contest = next(iter(contests.values()))
        for prompt, dialogue in islice(enumerate(dialogues, start=1), CONTROLS):
            ids = tuple(dialogue.prompt_ids(()))
            case = Case(prompt, 1, dialogue.category, ids, answer_seed(seed, prompt))
            session.controls.append(contest.baseline.run(case, max_new_tokens))
    except KeyboardInterrupt:
        session.interrupted = True
