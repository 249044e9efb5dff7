"""What was measured: one generation, counted and timed, as the record that every figure is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from specdec_cli.settings import KChoice

# Where a run was made: temperature, prompt, turn.
Block = tuple[float, int, int]


class ArmId(NamedTuple):
    """What tells one arm from all others: a peer may have the name of a draft, and a draft several K.

    Attributes:
        name: the draft's, or the peer's.
        k: tokens drafted a round, or the rule; 0 for none.
        peer_of: see `Run.peer_of`.
    """

    name: str
    k: KChoice
    peer_of: str | None = None


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
        drafted, accepted: of all rounds; accepted tokens are those of the text.
        whole_rounds, whole_drafted, whole_draft_s, whole_verify_s, whole_other_s: of whole rounds.
        whole_read: drafted tokens that the target read in whole rounds: more than `whole_drafted` where drafts branch.
        lengths: of whole rounds, how many drafted so many tokens, as (tokens, rounds).
        judged_at, accepted_at: at each position of a whole round, drafted tokens that were judged and accepted.
        overlap_sum: of sum min(p, q) over judged positions of whole rounds.
        token_ids: what was generated.
        first_difference: at temperature 0, the first token that plain decoding chose otherwise; see `Difference`.
        sources: where several sources took turns, the rounds, drafted and accepted tokens of each.
        peer_of: of another tool, the draft whose arm it stands beside ("none" for plain decoding); None for specdec's.
        contention: of the cores' time while its block was measured, what other processes took of what this one has
            threads for; None where that does not matter, or the block was too short to tell.
        repeat: how often its block had been measured before, and was disturbed.
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
    contention: float | None = None
    repeat: int = 0

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
    def arm_id(self) -> ArmId:
        """Whose run it is."""
        return ArmId(self.arm, self.k, self.peer_of)

    @property
    def block(self) -> Block:
        """Where it was made."""
        return self.temperature, self.prompt, self.turn

    @property
    def is_plain(self) -> bool:
        """Whether it is specdec's own decoding without a drafter."""
        return self.peer_of is None and self.k == 0

    @property
    def is_speculative(self) -> bool:
        """Whether it is specdec's own decoding with a drafter."""
        return self.peer_of is None and self.k != 0

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


def plain_runs(runs: Sequence[Run]) -> list[Run]:
    """Those without a drafter."""
    return [run for run in runs if run.is_plain]
