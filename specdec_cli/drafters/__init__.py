"""Where guesses come from: one file a source, one protocol (`base.py`), and what --draft may say (`spec.py`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from specdec_cli.drafters.spec import DraftSpec, Source

if TYPE_CHECKING:
    from specdec_cli.drafters.base import Drafter, DrafterParts

# Imported when they are asked for; each holds `make(options, parts)`.
MODULES = {
    "none": "specdec_cli.drafters.plain",
    "model": "specdec_cli.drafters.draft_model",
    "recurrent-head": "specdec_cli.drafters.recurrent_head",
    "medusa-head": "specdec_cli.drafters.medusa_head",
    "block-head": "specdec_cli.drafters.block_head",
    "ngram": "specdec_cli.drafters.ngram",
    "suffix": "specdec_cli.drafters.suffix",
    "early-exit": "specdec_cli.drafters.early_exit",
    "lookahead": "specdec_cli.drafters.lookahead",
}


def make_drafter(spec: DraftSpec, parts: DrafterParts) -> Drafter:
    """A fresh drafter for a --draft.

    Raises:
        UsageError, IncompatiblePairError: the target cannot draft that way.
    """
    made = [(source.name, _make(source, parts)) for source in spec.sources]
    if len(made) == 1:
        return made[0][1]
    composition: Drafter = import_module("specdec_cli.drafters.composition").Composition(made)
    return composition


def _make(source: Source, parts: DrafterParts) -> Drafter:
    # Whether a checkpoint is a model or a head is known once it is loaded.
    kind = parts.head.drafts_by if source.model is not None and parts.head is not None else source.kind
    drafter: Drafter = import_module(MODULES[kind]).make(source.options, parts)
    return drafter
