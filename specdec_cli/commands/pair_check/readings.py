"""The other ways in which a trained head's files could be meant, measured beside the one that they declare.

Formats leave things open, and who converts a head forgets a flag: whether numbers of layers name inputs or outputs,
whether the norm stands before the residual, whether a head goes on with its normed state. A head that is read wrongly
drafts exactly as before, and is hardly ever right. So each reading drafts the same texts, and the best is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.spec import parse_draft
from specdec_cli.errors import SpecdecError
from specdec_cli.measurement.probe import measure_acceptance
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.pairs.checks import Check
from specdec_cli.runtime.pairs.pair import Pair, with_head
from specdec_cli.settings import ModelSettings, SamplingSettings

TEXTS = 2
# Another reading is told where it brings so many tokens a round more than the declared one.
CLEARLY_BETTER = 0.15
FLAGS = {
    "norm_before_residual": ("the norm after the residual", "the norm before the residual"),
    "norm_output": ("going on with the state before the last norm", "going on with the normed state"),
}


@dataclass(frozen=True)
class Reading:
    """One way to read a head's files.

    Attributes:
        name: what is read otherwise; empty for what the files declare.
        change: the line of its config.json that would declare it.
        tokens_per_round: of the target's most likely text; None where nothing was drafted.
    """

    name: str
    change: str
    tokens_per_round: float | None


def compare_readings(
    pair: Pair, target: ModelSettings, ids: Sequence[list[int]], clock: Callable[[], float], report: Report
) -> list[Reading]:
    """The declared reading first, then every other one that these files allow; empty where there is no other.

    Args:
        pair: with a head.
        target: how the target was asked for.
        ids: prompts; the first few are read.
        clock: seconds.
        report: told in a line what takes long.
    """
    assert pair.head is not None
    readings = other_readings(
        pair.head.head, pair.checkpoint.model.config.get_text_config(decoder=True).num_hidden_layers
    )
    if not readings:
        return []
    report(f"reading the head in {len(readings)} other ways")
    found = [Reading("", "", _tokens_per_round(pair, ids, clock))]
    for name, change, head in readings:
        try:
            other = with_head(pair, head, target, report)
        except SpecdecError:  # its files do not allow that reading
            continue
        found.append(Reading(name, change, _tokens_per_round(other, ids, clock)))
    return found


def other_readings(head: Head, num_layers: int) -> list[tuple[str, str, Head]]:
    """What is read otherwise, the line that would declare it, and the head read so."""
    if head.kind != "eagle3":
        return []
    found = []
    if head.tap_ids is not None:
        other = 1 - head.id_shift
        told = "outputs of these layers" if other else "boundaries (0 the embeddings)"
        shifted = [i + other - head.id_shift for i in head.tap_ids]
        if all(0 <= i + other <= num_layers for i in head.tap_ids):
            change = f"eagle_aux_hidden_state_layer_ids: {shifted}"
            found.append((f"layer ids as {told}", change, replace(head, id_shift=other)))
    for flag, names in FLAGS.items():
        value = not head.config.get(flag, False)
        change = f"{flag}: {str(value).lower()}"
        found.append((names[value], change, replace(head, config={**head.config, flag: value})))
    return found


def readings_check(readings: Sequence[Reading]) -> Check:
    """Whether the files declare the best of the readings."""
    declared, *others = readings
    if declared.tokens_per_round is None:
        return Check("how it is read", "ok", "could not be compared: no whole round drafted anything")
    told = f"as its files declare {declared.tokens_per_round:.2f} tokens a round"
    best = max(others, key=lambda reading: reading.tokens_per_round or 0.0, default=declared)
    if (best.tokens_per_round or 0.0) < declared.tokens_per_round + CLEARLY_BETTER:
        rest = ", ".join(f"{r.name} {r.tokens_per_round or 1.0:.2f}" for r in others)
        return Check("how it is read", "ok", f"{told}; {rest}")
    return Check(
        "how it is read",
        "warn",
        f"{told}, and {best.tokens_per_round:.2f} with {best.name}: the files declare another reading than the head "
        "was trained for",
        f"write {best.change} into its config.json",
    )


def _tokens_per_round(pair: Pair, ids: Sequence[list[int]], clock: Callable[[], float]) -> float | None:
    sampling = SamplingSettings(temperature=0.0)
    assert pair.head is not None
    spec = parse_draft(pair.head.head.files.place.settings.source)
    drafter = make_drafter(spec, pair.drafter_parts(sampling, 0.0))
    return measure_acceptance(
        pair.target, drafter, ids[:TEXTS], sampling, pair.checkpoint.end_ids, clock
    ).tokens_per_round
