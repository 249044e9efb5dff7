"""What the command line decides of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.prompts import Prompt
from specdec_cli.settings import BenchSettings, ConversationSettings, ModelSettings, SamplingSettings


@dataclass(frozen=True)
class BenchRequest:
    """Everything that the command line decides.

    Attributes:
        drafts: (sources of guesses, how the checkpoint among them is loaded).
        sampling: its temperature is replaced by each of the settings'.
        prompts, prompt_source: what to answer, and where it came from.
        prompts_sha256: of the whole set.
        sweep: sweep-k's tables instead of bench's.
        fail_if_slower: the least speedup for exit code 0.
    """

    target: ModelSettings
    drafts: Sequence[tuple[DraftSpec, ModelSettings | None]]
    settings: BenchSettings
    sampling: SamplingSettings
    prompts: Sequence[Prompt]
    prompt_source: str
    prompts_sha256: str
    conversation: ConversationSettings = field(default_factory=ConversationSettings)
    sweep: bool = False
    compare: str | None = None
    check_distribution: bool = False
    dry_run: bool = False
    resume: Path | None = None
    plot: Path | None = None
    export: str | None = None
    fail_if_slower: float | None = None
    output_format: str = "table"
    output: Path | None = None
    quiet: bool = False
    verbose: bool = False

    @property
    def command(self) -> str:
        """Whose tables are shown."""
        return "sweep-k" if self.sweep else "bench"
