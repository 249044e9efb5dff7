"""What keeps a trained head from working with a target, or from working well, as checked lines; no weights are read.

A head for another target mostly loads and runs, and is only bad. So each thing that its files say of the target it was
made for is compared with the target at hand, and what they do not say is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from specdec_cli.errors import IncompatiblePairError, SpecdecError
from specdec_cli.runtime.checkpoints.inspection import Inspection, inspect
from specdec_cli.runtime.checkpoints.locate import EMBEDDED, locate
from specdec_cli.runtime.checkpoints.plan import Plan, name_of
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.heads.kinds import OF_BLOCKS, Head
from specdec_cli.runtime.heads.parts import target_ids
from specdec_cli.runtime.pairs.checks import Check, undecided, vocabulary
from specdec_cli.runtime.pairs.vocabularies import compare_vocabularies, id_to_token
from specdec_cli.settings import ModelSettings

OTHER = "choose a head that was trained for this target"
TYPICAL_BLOCK = 4  # tokens of a block, where its cost is told for each
# Tables that no step reads whole: a token's row of each at most.
_LOOKED_UP = ("embed_tokens.weight", "d2t", "t2d")


@dataclass(frozen=True)
class HeadSizes:
    """What a head holds, and what a step of it reads.

    Attributes:
        parameters: of its own.
        bytes: of these, as it would be loaded.
        step_bytes: that one pass reads, the target's output layer included where the head has none.
        tokens: that one pass guesses.
    """

    parameters: int
    bytes: int
    step_bytes: int
    tokens: int

    @property
    def bytes_per_token(self) -> float:
        """That a drafted token costs."""
        return self.step_bytes / self.tokens


def head_checks(target: Inspection, plan: Plan, head: Head, report: Report) -> list[Check]:
    """Everything about a head but its memory and its cost.

    Args:
        target: the model at hand.
        plan: how it would be loaded, which decides the head's number type.
        head: as it was detected.
        report: told in a line what takes long.
    """
    layers = target.text_config.num_hidden_layers
    return [
        _checked("head", lambda: head.describe(layers), f"{head.name} head ({head.layout})"),
        _checked("hidden size", lambda: _sizes_fit(target, head)),
        *_tapped(target, head),
        _checked("draft vocabulary", lambda: _words(target, head)),
        *_verifier(target, head, report),
        Check("number type", "ok", f"computed in {name_of(_dtype(plan, head))}, as the target"),
    ]


def head_sizes(target: Inspection, plan: Plan, head: Head) -> HeadSizes:
    """Arithmetic on the shapes of its tensors."""
    sizes = {name: prod(shape) for name, shape in head.shapes.items() if not name.endswith(("d2t", "t2d"))}
    width = torch.finfo(_dtype(plan, head)).bits // 8
    read = sum(size for name, size in sizes.items() if not name.endswith(_LOOKED_UP))
    if head.kind == "eagle3":
        read -= sizes.get("fc.weight", 0)  # once a round, not at every step
    if "lm_head.weight" not in sizes and head.kind != "medusa":
        read += target.num_rows * target.text_config.hidden_size
    tokens = 1
    if head.kind == "medusa":
        tokens = len({name.removeprefix("medusa_head.").split(".")[0] for name in sizes})
    elif head.kind in (*OF_BLOCKS, "peagle"):
        tokens = TYPICAL_BLOCK
    total = sum(sizes.values())
    return HeadSizes(total, total * width, read * width, tokens)


def _dtype(plan: Plan, head: Head) -> torch.dtype:
    asked = head.files.place.settings.dtype
    return plan.dtype if asked == "auto" else getattr(torch, asked)


def _checked(name: str, told: Callable[[], str], fallback: str = "") -> Check:
    """What is told where nothing is wrong; else a failure, or what could be said all the same."""
    try:
        return Check(name, "ok", told())
    except SpecdecError as error:
        if fallback:
            return Check(name, "ok", fallback)  # what is wrong has a check of its own
        cause, _, remedy = str(error).rpartition(": ")
        return Check(name, "fail", cause, OTHER if "another" in remedy else remedy)


def _sizes_fit(target: Inspection, head: Head) -> str:
    head.require_target(target.text_config, target.num_rows)
    return f"both {target.text_config.hidden_size:,}"


def _tapped(target: Inspection, head: Head) -> list[Check]:
    """Which of the target's states it reads: in range, and told where one number means two things."""
    number = f"{head.num_taps} of {target.text_config.num_hidden_layers} layers"
    try:
        taps = head.taps(target.text_config.num_hidden_layers)
    except SpecdecError as error:
        cause, _, _ = str(error).rpartition(": ")
        return [Check("tapped states", "fail", cause, OTHER)]
    places = ", ".join(str(tap.boundary) for tap in taps)
    if not head.alternatives:
        return [Check("tapped states", "ok", f"{number}, at the boundaries {places}")]
    detail = (
        f"{number}: the ids {', '.join(map(str, head.tap_ids or ()))} are read as the boundaries {places}, and some "
        "who publish in this layout mean others"
    )
    return [Check("tapped states", "warn", detail, "measure both readings with --probe")]


def _words(target: Inspection, head: Head) -> str:
    """How many of the target's tokens it can draft."""
    rows = head.shapes.get("lm_head.weight", (target.num_rows,))[0]
    offsets = next(iter(head.files.tensors(lambda name: name.endswith("d2t")).values()), None)
    if offsets is not None:
        target_ids(offsets.long(), target.num_rows, head.files.place.name)
    elif rows != target.num_rows:
        raise IncompatiblePairError(
            f"it drafts {rows:,} of {target.num_rows:,} tokens, and has no d2t that says which: download it again"
        )
    if rows == target.num_rows:
        return f"all {rows:,} of the target's"
    return f"{rows:,} of the target's {target.num_rows:,}; it never proposes the others"


def _verifier(target: Inspection, head: Head, report: Report) -> list[Check]:
    """The tokenizer of the model that its configuration names, where that is here."""
    declared = head.files.config.get("speculators_config")
    verifier = declared.get("verifier") if isinstance(declared, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    if not isinstance(name, str) or not name:
        return [Check("trained for", "ok", "its files do not say which target: compare with where you found it")]
    source = target.place.settings.source
    if name == source or name.rstrip("/").rsplit("/", 1)[-1] == source.rstrip("/").rsplit("/", 1)[-1]:
        return [Check("trained for", "ok", f"{name}, as the target is called")]
    other = _inspected(name, head, report)
    if isinstance(other, str):
        return [
            Check(
                "trained for", "warn", f"{name}, and the target is {source}; its tokenizer was not compared ({other})",
                "make sure that both are the same model, or measure with --probe",
            )
        ]  # fmt: skip
    if target.tokenizer is None or other.tokenizer is None:
        return [undecided("trained for", (target if target.tokenizer is None else other).tokenizer_problem)]
    comparison = compare_vocabularies(
        id_to_token(target.tokenizer, target.num_rows), id_to_token(other.tokenizer, other.num_rows)
    )
    found = vocabulary(comparison)
    detail = f"{name}, and the target is {source}: {found.detail}"
    return [Check("trained for", found.status, detail, OTHER if found.status != "ok" else "")]


def _inspected(name: str, head: Head, report: Report) -> Inspection | str:
    """The model that a head was trained for, where it is here; else why not."""
    folder = head.files.folder / name  # published heads of one's own name it by a path beside them
    source = str(folder.resolve()) if folder.is_dir() else name
    if source not in EMBEDDED and not Path(source).is_dir():
        return "it is not on this machine"
    try:
        return inspect(locate(ModelSettings(source=source, offline=True), "target"), report)
    except SpecdecError as error:
        return str(error)


def head_record(sizes: HeadSizes, head: Head, layers: int) -> dict[str, Any]:
    """What a document says of a head."""
    try:
        boundaries = [tap.boundary for tap in head.taps(layers)]
    except SpecdecError:
        boundaries = []
    return {
        "kind": head.kind,
        "layout": head.layout,
        "states": boundaries,
        "parameters": sizes.parameters,
        "weights_bytes": sizes.bytes,
        "step_bytes": sizes.step_bytes,
        "tokens_per_pass": sizes.tokens,
    }
