"""What will be measured: every prompt as a dialogue, and what answers it at each temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec_cli.commands.bench.arms import contests, load_peers
from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.errors import UsageError
from specdec_cli.measurement.benchmark import Contest, in_turn
from specdec_cli.prompts import Prompt
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.pairs.pair import Pair
from specdec_cli.runtime.pairs.prompting import prompt_notes, read_prompt


@dataclass(frozen=True)
class Dialogue:
    """A prompt as the benchmark sees it: ids in, ids out."""

    pair: Pair
    prompt: Prompt
    request: BenchRequest

    @property
    def category(self) -> str:
        """The prompt's."""
        return self.prompt.category

    @property
    def turns(self) -> int:
        """How many answers it wants."""
        return len(self.prompt.turns)

    def prompt_ids(self, answers: Sequence[Sequence[int]]) -> Sequence[int]:
        """Ids that the next answer follows, given those of the answers so far."""
        texts: list[str] = []
        for answer in answers:
            texts.append(self.pair.decode(answer, self._encode(texts, 1)))
        return self._encode(texts, 1)

    def require_room(self, number: int) -> int:
        """Whether the context holds every turn and full answers to all of them, told before anything is measured.

        Returns:
            tokens that all of them may come to.

        Raises:
            UsageError: it does not, or a prompt cannot be encoded; names the prompt.
        """
        try:
            ids = self._encode([""] * (self.turns - 1), self.turns)
        except UsageError as error:
            raise UsageError(f"prompt {number}: {error}") from error
        return len(ids) + self.turns * self.request.settings.max_new_tokens

    def _encode(self, answers: Sequence[str], room_for: int) -> Sequence[int]:
        room = room_for * self.request.settings.max_new_tokens
        return read_prompt(self.pair, self.prompt, self.request.conversation, answers, room)


@dataclass(frozen=True)
class Plan:
    """Models that are loaded, and what is to be done with them.

    Attributes:
        pairs: the target with each draft.
        peers: the same as transformers runs them; empty where nothing is compared.
        dialogues: one a prompt.
        contests: by temperature.
    """

    request: BenchRequest
    pairs: Sequence[Pair]
    peers: Sequence[Pair]
    dialogues: Sequence[Dialogue]
    contests: dict[float, Contest]

    def fresh_contests(self) -> dict[float, Contest]:
        """The same once more, with drafters of their own."""
        return contests(self.request, self.pairs, self.peers)

    @property
    def devices(self) -> list[torch.device]:
        """All that compute."""
        return list(dict.fromkeys(device for pair in self.pairs for device in pair.devices))

    @property
    def answers(self) -> int:
        """How many are wanted at each temperature."""
        return sum(dialogue.turns for dialogue in self.dialogues)

    @property
    def runs(self) -> int:
        """How many there will be."""
        return sum(len(in_turn(contest, 0)) for contest in self.contests.values()) * self.answers


def make_plan(request: BenchRequest, pairs: Sequence[Pair], report: Report) -> Plan:
    """The plan of a request.

    Raises:
        UsageError: a prompt has no room in the context.
    """
    dialogues = [Dialogue(pairs[0], prompt, request) for prompt in request.prompts]
    sizes = [dialogue.require_room(number) for number, dialogue in enumerate(dialogues, start=1)]
    for note in dict.fromkeys(filter(None, (pair.draft_context_note(sizes) for pair in pairs))):
        report(f"note: {note}")
    for note in prompt_notes(pairs[0], request.prompts, request.conversation):
        report(f"note: {note}")
    peers = load_peers(request, pairs, report)
    return Plan(request, pairs, peers, dialogues, contests(request, pairs, peers))
