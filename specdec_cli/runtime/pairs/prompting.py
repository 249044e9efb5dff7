"""From prompts to what a pair's target reads, and what is worth knowing about that before it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specdec_cli.prompts import Prompt
from specdec_cli.quantities import counted
from specdec_cli.runtime.pairs.pair import Pair
from specdec_cli.runtime.pairs.text import control_texts
from specdec_cli.settings import ConversationSettings


def read_prompt(
    pair: Pair, prompt: Prompt, settings: ConversationSettings, answers: Sequence[str] = (), room: int = 1
) -> list[int]:
    """Ids of a prompt's turn behind so many answers.

    Args:
        room: tokens that must fit behind it.

    Raises:
        UsageError: see `Pair.encode`.
    """
    args: Mapping[str, Any] = {**settings.template_args, **prompt.template_args}
    messages = prompt.messages(answers, settings.system)
    return pair.encode(messages, settings.raw, room, template_args=args, plain=settings.plain_content)


def prompt_notes(pair: Pair, prompts: Sequence[Prompt], settings: ConversationSettings) -> list[str]:
    """What a prompt may do unlike what its author meant, a line each: two begin tokens, and texts that become tokens.

    With --raw the prompt is all that the model reads, so that tokens spelled there are meant.

    Raises:
        UsageError: a first turn cannot be encoded.
    """
    tokenizer = pair.checkpoint.tokenizer
    begin = tokenizer.bos_token_id
    read = [read_prompt(pair, prompt, settings) for prompt in prompts]
    notes = []
    if begin is not None and (twice := sum(ids[:2] == [begin, begin] for ids in read)):
        notes.append(
            f"{_which(twice, read)} with two begin tokens ({tokenizer.bos_token}), one of the prompt's own: models are "
            "trained on one, leave it out of the prompt"
        )
    if settings.raw or settings.plain_content:
        return notes
    found: dict[str, None] = {}
    number = 0
    for prompt, ids in zip(prompts, read, strict=True):
        names = control_texts(tokenizer, [settings.system or "", *_texts(prompt)])
        if names and (len(prompt.turns) > 1 or ids != read_prompt(pair, prompt, replace(settings, plain_content=True))):
            found |= dict.fromkeys(names)
            number += 1
    if number:
        notes.append(
            f"the text of {counted(number, 'prompt')} spells {', '.join(found)}, which the target reads as control "
            "tokens: --plain-content keeps it text"
        )
    return notes


def _which(number: int, among: Sequence[object]) -> str:
    if len(among) == 1:
        return "the prompt begins"
    return f"{number:,} of {len(among):,} prompts begin{'s' if number == 1 else ''}"


def _texts(prompt: Prompt) -> list[str]:
    """Everything that its author wrote."""
    return [*(message["content"] for message in prompt.history), *prompt.turns, prompt.begun or ""]
