"""What stands against each other in a benchmark: specdec's loop with a drafter or none, and other tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from specdec_cli.decoding.draft_length import draft_length
from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.measurement.metrics import accepted_in_text, by_source
from specdec_cli.measurement.runs import ArmId, Case, Run
from specdec_cli.settings import KChoice, SamplingSettings


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

    @property
    def peer_of(self) -> str | None:
        """Of another tool, the draft whose arm it stands beside; None for specdec's own."""
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

    @property
    def peer_of(self) -> None:
        """It is specdec's own."""

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


def arm_id(arm: Arm) -> ArmId:
    """What its runs have as `Run.arm_id`."""
    return ArmId(arm.name, arm.k, arm.peer_of)


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
        accepted=sum(accepted_in_text(steps)),
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
