"""What the command line decides of a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.settings import ConversationSettings, ModelSettings


@dataclass(frozen=True)
class PairCheckRequest:
    """Everything that the command line decides.

    Attributes:
        drafts: (what --draft names, how its checkpoint is loaded); None for the target's own layers.
        left_out: of each other draft that was named, why there is nothing to tell of it.
        context: tokens that memory is counted for; None chooses.
        prompts: a file or a built-in set for the probe; None chooses a set.
        conversation: what the probe's chat template is told.
        output_format: "table", "json" or "markdown".
    """

    target: ModelSettings
    drafts: tuple[tuple[DraftSpec, ModelSettings | None], ...]
    context: int | None = None
    probe: bool = False
    prompts: str | None = None
    conversation: ConversationSettings = field(default_factory=ConversationSettings)
    strict: bool = False
    output_format: str = "table"
    output: Path | None = None
    quiet: bool = False
    verbose: bool = False
    left_out: tuple[str, ...] = ()
