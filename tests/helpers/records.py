"""Records made by hand: a round, a run."""

from __future__ import annotations

from typing import Any

from specdec_cli.decoding.loop import Provenance, Step
from specdec_cli.decoding.stopping import FinishReason
from specdec_cli.measurement.runs import Run
from specdec_cli.settings import KChoice


def step(
    drafted: int,
    accepted: int,
    *,
    kept: int | None = None,
    overlap: tuple[float, ...] | None = None,
    withdrawn: int = 0,
    cut: bool = False,
    finish_reason: FinishReason | None = None,
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Step:
    """A round of `drafted` tokens of which the rule accepted `accepted`; `kept` of what it made stay in the text."""
    last: Provenance = "plain" if not drafted else "bonus" if accepted == drafted else "recovered"
    accepted_kind: Provenance = "accepted"
    kept = accepted + 1 if kept is None else kept
    return Step(
        token_ids=tuple(range(kept)),
        provenance=(*accepted * (accepted_kind,), last)[:kept],
        draft_token_ids=tuple(range(drafted)),
        num_accepted=accepted,
        target_probs=drafted * (0.5,),
        draft_probs=drafted * (0.5,),
        overlap=drafted * (0.5,) if overlap is None else overlap,
        draft_s=seconds[0],
        verify_s=seconds[1],
        other_s=seconds[2],
        finish_reason=finish_reason,
        withdrawn=withdrawn,
        cut=cut,
    )


def run_of(
    arm: str, k: KChoice, seconds: float, *, prompt: int = 1, judged: int = 0, accepted: int = 0, **more: Any
) -> Run:
    """Ten tokens in so many seconds."""
    whole = {
        "whole_rounds": 4,
        "whole_drafted": 4 * k,
        "drafted": 4 * k,
        "lengths": ((k, 4),),
        "judged_at": (judged,),
        "accepted_at": (accepted,),
    }
    values: dict[str, Any] = {
        "temperature": 0.0, "turn": 1, "category": "", "new_tokens": 10, "prefill_s": 1.0, "first_token_s": 1.0,
        "draft_s": 0.0, "verify_s": seconds, "other_s": 0.0, "rounds": 5, "whole_verify_s": seconds,
        **(whole if k else {}), **more,
    }  # fmt: skip
    return Run(arm=arm, k=k, prompt=prompt, **values)
