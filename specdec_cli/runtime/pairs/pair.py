"""A target and, beside it, a draft that speaks its ids: loaded, compared and ready for the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from specdec_cli.drafters.base import DrafterParts
from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.errors import OutOfMemoryError, UsageError
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint
from specdec_cli.runtime.checkpoints.gguf.converted import is_converted
from specdec_cli.runtime.checkpoints.hub_files import fetched
from specdec_cli.runtime.checkpoints.load import load_checkpoint
from specdec_cli.runtime.checkpoints.locate import locate
from specdec_cli.runtime.checkpoints.plan import check_options
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.models.early_exit import EarlyExitModel
from specdec_cli.runtime.models.for_loop import model_for_loop
from specdec_cli.runtime.models.graphs import recordings, stopped_while_recording
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.pairs.text import TextStream, encode_chat, encode_text, is_chat_tokenizer, special_tokens
from specdec_cli.runtime.pairs.trained_heads import LoadedHead, describe_head, head_at, load_head
from specdec_cli.runtime.pairs.vocabularies import (
    VocabularyComparison,
    compare_vocabularies,
    describe_differences,
    id_to_token,
    require_same_vocabulary,
)
from specdec_cli.settings import AUTO, KEEP, NOT_QUANTIZED, WHOLE_VOCAB, ModelSettings, SamplingSettings


@dataclass(frozen=True)
class Pair:
    """What a command needs of the models.

    Attributes:
        target: for the loop.
        draft: likewise, with the ids of the target; None where the drafter is no model.
        head: the trained head that drafts; None where none does.
        checkpoint: the target's, which also owns the tokenizer that prompts and output go through.
        notes: what was decided or found while loading, a line each.
    """

    target: TransformersModel
    draft: TransformersModel | None
    checkpoint: Checkpoint
    draft_checkpoint: Checkpoint | None
    notes: tuple[str, ...]
    head: LoadedHead | None = None

    @property
    def models(self) -> tuple[TransformersModel, ...]:
        """One or both."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Where the models compute."""
        heads = () if self.head is None else (self.head.network.device,)
        return (*(model.device for model in self.models), *heads)

    def drafter_parts(self, sampling: SamplingSettings, draft_stop: float, draft_tree: int = 0) -> DrafterParts:
        """What drafters are made of here."""
        for graphs in recordings(self.models)[:1]:
            graphs.expect(sampling, draft_stop)
        network = None if self.head is None else self.head.network
        return DrafterParts(self.target, self.draft, sampling, self.early_exit, draft_stop, network, draft_tree)

    def early_exit(self, num_layers: int) -> EarlyExitModel:
        """The target's first layers as a draft; raises UsageError or IncompatiblePairError where that cannot be."""
        for graphs in recordings([self.target]):
            graphs.tell("no CUDA graphs for drafts with --draft early-exit; the target's rounds have theirs")
        return EarlyExitModel(self.target, num_layers)

    def facts_for_other_tools(self) -> dict[str, Any]:
        """What decides whether other tools take this pair, by the names of `reports.recommend.Recommendation`."""
        facts: dict[str, Any] = {} if self.head is None else {"head": self.head.head.kind}
        for role, checkpoint in (("target", self.checkpoint), ("draft", self.draft_checkpoint)):
            if checkpoint is None:
                continue
            tokenizer = checkpoint.tokenizer
            facts |= {
                f"{role}_vocab_size": checkpoint.model.config.get_text_config(decoder=True).vocab_size,
                f"{role}_tokenizer_size": tokenizer.vocab_size,
                f"{role}_bos_id": tokenizer.bos_token_id,
                f"{role}_eos_id": tokenizer.eos_token_id,
                f"{role}_is_gguf": checkpoint.name.endswith(".gguf"),
            }
        if self.draft_checkpoint is None:
            return facts
        ours, theirs = (id_to_token(c.tokenizer, c.num_rows) for c in (self.checkpoint, self.draft_checkpoint))
        both = ours.keys() & theirs.keys()
        return {**facts, "tokens_differing_from_id_5": sum(i >= 5 and ours[i] != theirs[i] for i in both)}

    def text_stream(self, prompt_ids: Sequence[int]) -> TextStream:
        """A fresh detokenizer of what follows a prompt."""
        return TextStream(self.checkpoint.tokenizer, prompt_ids)

    @property
    def special_tokens(self) -> dict[int, str]:
        """Names of the tokens that decoded text never shows."""
        return special_tokens(self.checkpoint.tokenizer)

    def special_ids(self, texts: Sequence[str]) -> frozenset[int]:
        """Ids of those texts that are a special token."""
        return frozenset(i for i, name in self.special_tokens.items() if name in texts)

    def decode(self, token_ids: Sequence[int], prompt_ids: Sequence[int]) -> str:
        """The text of an answer to a prompt."""
        stream = self.text_stream(prompt_ids)
        return "".join([*map(stream.push, token_ids), stream.flush()])

    def draft_context_note(self, sizes: Sequence[int]) -> str:
        """That texts outgrow the draft's context, in a line; empty where none does.

        Args:
            sizes: of each text, how many tokens it may come to.
        """
        if self.draft is None or self.draft_checkpoint is None:
            return ""
        limit = self.draft.max_length
        longer = [size for size in sizes if size > limit]
        if not longer:
            return ""
        which = "" if len(sizes) == 1 else f" in {len(longer):,} of {len(sizes):,} prompts"
        most = f"{'' if len(longer) == 1 else 'up to '}{max(longer):,}"
        return (
            f"draft {self.draft_checkpoint.name}: its context is {limit:,} tokens, and prompt and --max-new-tokens "
            f"come to {most}{which}: beyond its context it drafts nothing"
        )

    def beyond_draft_context(self, prompt_tokens: int, new_tokens: int) -> int:
        """How many of the new tokens are beyond the draft's context."""
        if self.draft is None:
            return 0
        # Behind a text as long as the context, one token can still be drafted.
        return max(0, new_tokens - max(0, self.draft.max_length + 1 - prompt_tokens))

    def encode(
        self,
        messages: Sequence[dict[str, str]],
        raw: bool,
        room: int = 1,
        *,
        template_args: Mapping[str, Any] | None = None,
        plain: bool = False,
    ) -> list[int]:
        """Ids of a conversation that the model is to continue.

        Args:
            messages: the last one is the user's, or the assistant's for the model to go on with.
            raw: send its text as it is, without a chat template.
            room: tokens that must fit behind it.
            template_args: variables of the chat template.
            plain: what spells a control token in a message is text.

        Raises:
            UsageError: the prompt needs a template and there is none, is empty, or is longer than the context.
        """
        tokenizer = self.checkpoint.tokenizer
        if is_chat_tokenizer(tokenizer) and not raw:
            ids = encode_chat(tokenizer, list(messages), template_args, plain)
        else:
            why = "--raw is given" if raw else "the target has no chat template"
            if any(m["role"] == "system" for m in messages):
                raise UsageError(f"a system message needs a chat template, and {why}: leave the system message out")
            if template_args:
                raise UsageError(
                    f"--template-arg (or chat_template_kwargs) {', '.join(template_args)} is for a chat template, and "
                    f"{why}: leave it out"
                )
            ids = encode_text(tokenizer, "\n".join(m["content"] for m in messages), plain)
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
        if len(ids) + room > self.target.max_length:
            raise UsageError(
                f"a prompt of {len(ids):,} tokens leaves no room for {room:,} more in the target's context of "
                f"{self.target.max_length:,}: lower --max-new-tokens"
            )
        return ids


def load_pair(target: ModelSettings, draft: ModelSettings | None, report: Report) -> Pair:
    """A target and one draft; see `load_pairs`."""
    (pair,) = load_pairs(target, [draft], report)
    return pair


def load_pairs(target: ModelSettings, drafts: Sequence[ModelSettings | None], report: Report) -> list[Pair]:
    """Load all, compare vocabularies id by id, and check that caches can be rolled back. The target is loaded once.

    Args:
        target: the model whose distribution is sampled from.
        drafts: the models that guess; None where guesses come from elsewhere.
        report: told in a line what takes long.

    Returns:
        one pair a draft, all with the same target, whose notes stand in the first; a draft that is wanted twice (alone,
        and behind another source) is loaded once, and its notes stand once.

    Raises:
        IncompatiblePairError: an id means two things, or a cache cannot be cut back.
        SpecdecError: one of them cannot be loaded.
    """
    check_options(target, "target")  # what is wrong with an option is told before the target is read
    heads = [None if draft is None else head_at(draft) for draft in drafts]
    for draft, head in zip(drafts, heads, strict=True):
        if draft is not None and (head is None or draft.quantize != AUTO):
            check_options(draft, "draft")
    big = load_checkpoint(target, "target", report)
    ours = id_to_token(big.tokenizer, big.num_rows)
    same = compare_vocabularies(ours, ours)
    cached, more = _with_cache(big, same, "target", target, report)
    about_target = (*big.notes, *more)
    pairs: list[Pair] = []
    for i, (draft, head) in enumerate(zip(drafts, heads, strict=True)):
        if draft is not None and draft in drafts[:i]:
            pairs.append(replace(pairs[drafts.index(draft)], notes=()))
            continue
        notes = () if pairs else about_target
        if draft is None:
            pairs.append(Pair(cached, None, big, None, notes))
            continue
        if head is not None:
            loaded = load_head(head, target, big, cached, same, report)
            pairs.append(Pair(cached, None, big, None, (*notes, *loaded.notes), loaded))
            continue
        small = load_checkpoint(draft, "draft", report)
        comparison = compare_vocabularies(ours, id_to_token(small.tokenizer, small.num_rows))
        require_same_vocabulary(comparison)
        notes = (*notes, *small.notes, *describe_differences(big.tokenizer, small.tokenizer, comparison))
        model, more = _with_cache(small, comparison, "draft", draft, report)
        pairs.append(Pair(cached, model, big, small, (*notes, *more)))
    return pairs


def with_head(pair: Pair, head: Head, target: ModelSettings, report: Report) -> Pair:
    """The same target with another head, or with the same read in another way.

    Raises:
        SpecdecError: it does not fit.
    """
    ours = id_to_token(pair.checkpoint.tokenizer, pair.checkpoint.num_rows)
    loaded = load_head(head, target, pair.checkpoint, pair.target, compare_vocabularies(ours, ours), report)
    return replace(pair, head=loaded, notes=())


def require_heads(pairs: Sequence[Pair], draft_tree: int) -> None:
    """Refuse --draft-tree where no draft is a trained head, which is known once they are loaded.

    Raises:
        UsageError: none is.
    """
    if draft_tree and all(pair.head is None for pair in pairs):
        raise UsageError(f"--draft-tree {draft_tree} is for trained heads, and no --draft is one: leave it out")


def load_unquantised(settings: ModelSettings, pair: Pair, report: Report) -> TransformersModel | None:
    """The target as it would be without its quantisation, to compare it with; None where it has none.

    None too, with the reason told, where it does not fit beside the other, or is a GGUF file that was never converted
    to 16 bits: that takes a minute and twice or more its size on disk, which nobody asked for.
    """
    if pair.checkpoint.quantize == NOT_QUANTIZED or settings.dummy_weights:
        return None
    file = fetched(locate(settings, "target"), report).gguf
    if pair.checkpoint.quantize == KEEP and file is not None and not is_converted(file):
        report("the target in its file's own bits is not compared with 16 bits: run it with --quantize none once first")
        return None
    report("comparing the quantised target with itself")
    try:
        return load_pair(replace(settings, quantize=NOT_QUANTIZED), None, report).target
    except OutOfMemoryError as error:
        report(f"no comparison: {error}")
        return None


def describe(settings: ModelSettings, checkpoint: Checkpoint) -> dict[str, object]:
    """What was asked for and what it came to: device, number type, bits, head, the head's share of a step's bytes."""
    return {
        **asdict(settings),
        "device": str(checkpoint.device),
        "dtype": str(checkpoint.dtype).removeprefix("torch."),
        "quantize": checkpoint.quantize,
        "vocab": settings.vocab if checkpoint.head_rows < checkpoint.num_rows else WHOLE_VOCAB,
        "head_rows": checkpoint.head_rows,
        "head_share": checkpoint.head_bytes / checkpoint.step_bytes,
    }


def describe_draft(spec: DraftSpec, settings: ModelSettings | None, pair: Pair) -> dict[str, object]:
    """The same for a --draft, under the name that the user gave it where it is not just a model."""
    if settings is not None and pair.head is not None:
        return {**asdict(settings), **describe_head(pair.head)} | ({} if spec.is_model else {"name": spec.name})
    if settings is None or pair.draft_checkpoint is None:
        return {"source": spec.name}
    return describe(settings, pair.draft_checkpoint) | ({} if spec.is_model else {"name": spec.name})


def without_recording(clock: Callable[[], float], pairs: Sequence[Pair]) -> Callable[[], float]:
    """The clock, standing while rounds of these models are recorded."""
    return stopped_while_recording(clock, [model for pair in pairs for model in pair.models])


def recorded(pairs: Sequence[Pair]) -> str:
    """What recording took, in a line; empty where nothing was recorded."""
    found = recordings([model for pair in pairs for model in pair.models])
    number, seconds = sum(map(len, found)), sum(graphs.record_s for graphs in found)
    return f"{number} CUDA graphs recorded in {seconds:.1f} s, which no time above includes" if number else ""


def _with_cache(
    checkpoint: Checkpoint, comparison: VocabularyComparison, role: str, settings: ModelSettings, report: Report
) -> tuple[TransformersModel, tuple[str, ...]]:
    blocked = comparison.target_blocked if role == "target" else comparison.draft_blocked
    return model_for_loop(checkpoint.model, comparison.vocab_size, blocked, role, settings, report)
