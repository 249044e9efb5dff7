"""Where guesses come from: one file a source, one protocol (`base.py`)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_cli.drafters.base import Drafter

# Sources that need no checkpoint of their own; anything else that --draft names is a model.
BUILT_IN = {"none": "specdec_cli.drafters.plain:NoDrafter"}
DRAFT_MODEL = "specdec_cli.drafters.draft_model:DraftModel"


def drafter_class(name: str) -> Callable[..., Drafter]:
    """The class behind a name given to --draft, imported only now."""
    module, attribute = BUILT_IN.get(name, DRAFT_MODEL).split(":")
    made: Callable[..., Drafter] = getattr(import_module(module), attribute)
    return made
