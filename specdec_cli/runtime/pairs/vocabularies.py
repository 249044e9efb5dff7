"""Do these two speak the same token ids?

Sizes prove nothing: two vocabularies of one size may give an id two meanings, and one vocabulary may be padded to two
sizes. So the maps from id to token are compared, id by id, added tokens included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specdec_cli.errors import IncompatiblePairError
from specdec_cli.runtime.pairs.text import render_chat

SHOWN = 5


@dataclass(frozen=True)
class VocabularyComparison:
    """Two id -> token maps, side by side.

    Attributes:
        differing: (id, target's token, draft's token) where both have the id and mean different tokens.
        shared: how many ids mean the same token to both.
        target_only, draft_only: ids that one side has alone. A token that only the target has is legal: the draft
            gives it probability 0. One that only the draft has is never proposed.
        vocab_size: 1 + the target's highest id that has a token: the width of all distributions.
        target_padding: ids below `vocab_size` that the target can compute but that mean nothing.
    """

    differing: tuple[tuple[int, str, str], ...]
    shared: int
    target_only: tuple[int, ...]
    draft_only: tuple[int, ...]
    vocab_size: int
    target_padding: tuple[int, ...]

    @property
    def target_blocked(self) -> Tensor:
        """Ids below `vocab_size` that must not be emitted."""
        return torch.tensor(self.target_padding, dtype=torch.long)

    @property
    def draft_blocked(self) -> Tensor:
        """Ids below `vocab_size` that must not be proposed."""
        return torch.tensor([*self.target_padding, *self.target_only], dtype=torch.long)


def id_to_token(tokenizer: PreTrainedTokenizerBase, num_rows: int) -> dict[int, str]:
    """Every id that means something and that the model has an embedding row for."""
    return {i: token for token, i in tokenizer.get_vocab().items() if i < num_rows}


def compare_vocabularies(target: dict[int, str], draft: dict[int, str]) -> VocabularyComparison:
    """Compare two id -> token maps (see `id_to_token`)."""
    both = sorted(target.keys() & draft.keys())
    differing = tuple((i, target[i], draft[i]) for i in both if target[i] != draft[i])
    vocab_size = max(target, default=-1) + 1
    return VocabularyComparison(
        differing=differing,
        shared=len(both) - len(differing),
        target_only=tuple(sorted(target.keys() - draft.keys())),
        draft_only=tuple(sorted(draft.keys() - target.keys())),
        vocab_size=vocab_size,
        target_padding=tuple(i for i in range(vocab_size) if i not in target),
    )


def require_same_vocabulary(comparison: VocabularyComparison) -> None:
    """Raise where an id means two things.

    Raises:
        IncompatiblePairError: with the first differing ids and their tokens.
    """
    if comparison.differing:
        shown = "; ".join(f"{i} is {t!r} / {d!r}" for i, t, d in comparison.differing[:SHOWN])
        more = len(comparison.differing) - SHOWN
        raise IncompatiblePairError(
            f"target and draft give {len(comparison.differing):,} ids different meanings (id: target / draft): {shown}"
            + (f"; and {more:,} more" if more > 0 else "")
            + ". Choose a --draft made with the target's tokenizer"
        )
    if not comparison.shared:
        raise IncompatiblePairError(
            "target and draft share no token id at all: choose a --draft made with the target's tokenizer"
        )


def describe_differences(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, comparison: VocabularyComparison
) -> list[str]:
    """What differs without breaking anything: each may cost acceptance, none costs exactness."""
    notes = []
    if comparison.target_only:
        notes.append(
            f"{len(comparison.target_only):,} tokens only the target has (first: "
            f"{comparison.target_only[0]}); the draft never proposes them"
        )
    if comparison.draft_only:
        notes.append(
            f"{len(comparison.draft_only):,} tokens only the draft has (first: "
            f"{comparison.draft_only[0]}); they are never proposed"
        )
    for name in ("bos_token", "eos_token"):
        ours, theirs = getattr(target, name, None), getattr(draft, name, None)
        if ours != theirs:
            notes.append(f"{name.replace('_', ' ')} differs: target {ours!r}, draft {theirs!r}")
    ours, theirs = getattr(target, "chat_template", None), getattr(draft, "chat_template", None)
    if bool(ours) != bool(theirs):
        chat, base = ("target", "draft") if ours else ("draft", "target")
        notes.append(
            f"the {chat} has a chat template, the {base} has none: an instruct and a base model may agree seldom"
        )
    elif ours and render_dialogue(target) != render_dialogue(draft):
        notes.append("the chat templates render differently; the target's is used for both")
    return notes


def render_dialogue(tokenizer: PreTrainedTokenizerBase) -> str:
    """A sample dialogue by the tokenizer's chat template, or how the template refuses it."""
    dialogue = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"},
    ]
    try:
        return render_chat(tokenizer, dialogue)
    except ValueError as error:
        return f"refused: {error}"
