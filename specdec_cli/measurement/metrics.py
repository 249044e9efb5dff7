"""What the rounds of a generation add up to.

Four numbers are called "acceptance rate" elsewhere. Here each has its own name, and `alpha` is the one that goes into
the formula: accepted / (accepted + rejected), over the positions that the rule actually judged. Rounds cut short by the
end of the text or by a limit are left out of it, since their counts say more about the limit than about the draft.

Counts of tokens are of the text that came out: `accepted` has no tokens that the rule accepted behind an end token or a
stop string. Alpha and overlap are of what the rule judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specdec_cli.decoding.loop import Step


@dataclass(frozen=True)
class SourceCounts:
    """What one of several sources contributed: rounds that it drafted, tokens drafted, accepted tokens of the text."""

    rounds: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class RoundTotals:
    """Sums over rounds.

    Attributes:
        rounds: target passes.
        new_tokens: emitted and kept.
        drafted: tokens proposed.
        accepted: proposed tokens that are in the text.
        judged: positions that alpha is over.
        tokens_per_round: new_tokens / rounds; recovered and bonus tokens count. None without rounds.
        alpha: accepted / (accepted + rejected) over judged positions of whole rounds; None where there are none.
        overlap: mean of sum min(p, q) over the same positions; same expectation as alpha, less noise.
        accepted_over_drafted: accepted / drafted; not alpha. None where nothing was drafted.
        draft_s, verify_s, other_s: seconds.
        sources: by name, where several sources took turns; those that never had a guess are not in it.
    """

    rounds: int
    new_tokens: int
    drafted: int
    accepted: int
    judged: int
    tokens_per_round: float | None
    alpha: float | None
    overlap: float | None
    accepted_over_drafted: float | None
    draft_s: float
    verify_s: float
    other_s: float
    sources: dict[str, SourceCounts] = field(default_factory=dict)

    @property
    def decode_s(self) -> float:
        """Seconds of all rounds; the prefill is apart."""
        return self.draft_s + self.verify_s + self.other_s


def add_up(steps: Iterable[Step]) -> RoundTotals:
    """Totals of any number of rounds, from one prompt or several."""
    steps = list(steps)
    whole = [step for step in steps if not step.cut]
    accepted = sum(step.num_accepted for step in whole)
    judged = accepted + sum(step.num_accepted < len(step.draft_token_ids) for step in whole)
    overlaps = [o for step in whole for o in step.overlap[: step.num_accepted + 1]]
    new_tokens = sum(len(step.token_ids) - step.withdrawn for step in steps)
    drafted = sum(len(step.draft_token_ids) for step in steps)
    kept = sum(accepted_in_text(steps))
    return RoundTotals(
        rounds=len(steps),
        new_tokens=new_tokens,
        drafted=drafted,
        accepted=kept,
        judged=judged,
        tokens_per_round=new_tokens / len(steps) if steps else None,
        alpha=accepted / judged if judged else None,
        overlap=sum(overlaps) / len(overlaps) if overlaps else None,
        accepted_over_drafted=kept / drafted if drafted else None,
        draft_s=sum(step.draft_s for step in steps),
        verify_s=sum(step.verify_s for step in steps),
        other_s=sum(step.other_s for step in steps),
        sources=by_source(steps),
    )


def accepted_in_text(steps: Sequence[Step]) -> list[int]:
    """Of each round, the accepted tokens that are in the text: not those behind its end, nor those withdrawn later."""
    counts = []
    withdrawn = 0
    for step in reversed(steps):
        kept = max(0, len(step.token_ids) - withdrawn)
        counts.append(step.provenance[:kept].count("accepted"))
        withdrawn = max(0, withdrawn - len(step.token_ids)) + step.withdrawn
    return counts[::-1]


def by_source(steps: Sequence[Step]) -> dict[str, SourceCounts]:
    """Counts of each source that is named, in the order of their first drafts."""
    drafts: dict[str, list[tuple[int, int]]] = {}
    for step, accepted in zip(steps, accepted_in_text(steps), strict=True):
        if step.source:
            drafts.setdefault(step.source, []).append((len(step.draft_token_ids), accepted))
    return {
        name: SourceCounts(len(of), sum(drafted for drafted, _ in of), sum(accepted for _, accepted in of))
        for name, of in drafts.items()
    }
