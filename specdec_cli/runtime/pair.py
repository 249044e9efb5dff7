"""A target and, beside it, a draft that speaks its ids: loaded, compared and ready for the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec_cli.errors import UsageError
from specdec_cli.prompts import Prompt
from specdec_cli.runtime.compatibility import (
    VocabularyComparison,
    compare_vocabularies,
    describe_differences,
    id_to_token,
    require_same_vocabulary,
)
from specdec_cli.runtime.kv_cache import TransformersModel
from specdec_cli.runtime.loading import Checkpoint, load_checkpoint
from specdec_cli.runtime.sources import Report
from specdec_cli.runtime.text import TextStream, encode_chat, encode_text, is_chat_tokenizer
from specdec_cli.settings import ModelSettings


@dataclass(frozen=True)
class Pair:
    """What a command needs of the models.

    Attributes:
        target: for the loop.
        draft: likewise, with the ids of the target; None where the drafter is no model.
        checkpoint: the target's, which also owns the tokenizer that prompts and output go through.
        notes: what was decided or found while loading, a line each.
    """

    target: TransformersModel
    draft: TransformersModel | None
    checkpoint: Checkpoint
    draft_checkpoint: Checkpoint | None
    notes: tuple[str, ...]

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Where the models compute."""
        return (self.target.device,) if self.draft is None else (self.target.device, self.draft.device)

    def text_stream(self) -> TextStream:
        """A fresh detokenizer."""
        return TextStream(self.checkpoint.tokenizer)

    def special_ids(self, texts: Sequence[str]) -> frozenset[int]:
        """Ids of those texts that are a special token, which decoded text never shows."""
        tokenizer = self.checkpoint.tokenizer
        special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        return frozenset(special[text] for text in texts if text in special)

    def encode(self, messages: Sequence[dict[str, str]], raw: bool) -> list[int]:
        """Ids of a conversation that the model is to continue.

        Args:
            messages: the last one is the user's.
            raw: send its text as it is, without a chat template.

        Raises:
            UsageError: the prompt needs a template and there is none, is empty, or is longer than the context.
        """
        tokenizer = self.checkpoint.tokenizer
        if is_chat_tokenizer(tokenizer) and not raw:
            ids = encode_chat(tokenizer, list(messages))
        else:
            if any(m["role"] == "system" for m in messages):
                why = "--raw is given" if raw else "the target has no chat template"
                raise UsageError(f"a system message needs a chat template, and {why}: leave the system message out")
            ids = encode_text(tokenizer, "\n".join(m["content"] for m in messages))
        if not ids:
            raise UsageError("the prompt has no tokens: give some text")
        strange = next((i for i in ids if i >= self.checkpoint.num_rows), None)
        if strange is not None:
            token = tokenizer.convert_ids_to_tokens(strange)
            raise UsageError(f"the prompt holds {token!r}, which this target has no embedding for: leave it out")
        if len(ids) >= self.target.max_length:
            raise UsageError(
                f"the prompt has {len(ids):,} tokens, the target's context only {self.target.max_length:,}: shorten it"
            )
        return ids


def load_pair(target: ModelSettings, draft: ModelSettings | None, report: Report) -> Pair:
    """Load both, compare their vocabularies id by id, and check that their caches can be rolled back.

    Args:
        target: the model whose distribution is sampled from.
        draft: the model that guesses; None where guesses come from elsewhere.
        report: told in a line what takes long.

    Raises:
        IncompatiblePairError: an id means two things, or a cache cannot be cut back.
        SpecdecError: one of them cannot be loaded.
    """
    big = load_checkpoint(target, "target", report)
    ours = id_to_token(big.tokenizer, big.num_rows)
    if draft is None:
        alone = compare_vocabularies(ours, ours)
        return Pair(_with_cache(big, alone, "target"), None, big, None, big.notes)
    small = load_checkpoint(draft, "draft", report)
    comparison = compare_vocabularies(ours, id_to_token(small.tokenizer, small.num_rows))
    require_same_vocabulary(comparison)
    notes = (*big.notes, *small.notes, *describe_differences(big.tokenizer, small.tokenizer, comparison))
    return Pair(_with_cache(big, comparison, "target"), _with_cache(small, comparison, "draft"), big, small, notes)


def conversation(prompt: Prompt, system: str | None) -> list[dict[str, str]]:
    """The messages before a prompt's first turn."""
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, *(dict(m) for m in prompt.history)]


def _with_cache(checkpoint: Checkpoint, comparison: VocabularyComparison, role: str) -> TransformersModel:
    blocked = comparison.target_blocked if role == "target" else comparison.draft_blocked
    return TransformersModel(checkpoint.model, comparison.vocab_size, blocked, role)
