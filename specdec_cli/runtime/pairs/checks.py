"""Each thing that can keep two checkpoints from working together, or from working well, as one checked line.

A check *fails* where the pair cannot run or would not be exact. It *warns* where it runs and is exact, but tokens are
lost: a draft that was taught other ends, other segmentations or another template guesses worse. What a check cannot
know without weights, or without a tokenizer that can be read, it says so instead of guessing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from specdec_cli.errors import IncompatiblePairError
from specdec_cli.runtime.checkpoints.inspection import Inspection, effective_context
from specdec_cli.runtime.models.positions import rope_types
from specdec_cli.runtime.models.rereading import text_frequencies
from specdec_cli.runtime.pairs.vocabularies import (
    SHOWN,
    VocabularyComparison,
    compare_vocabularies,
    id_to_token,
    render_dialogue,
)

Status = Literal["ok", "warn", "fail"]
OTHER_DRAFT = "choose a --draft made with the target's tokenizer"
MEASURE = "measure what it costs with --probe, or choose another --draft"
SPECIAL = ("bos", "eos", "pad", "unk")
# What tokenizers of one vocabulary are known to cut differently: by script, by accent, by number, by white space.
HARD_TEXTS = {
    "prose": "The quick brown fox doesn't jump; they've seen it, I'LL say. Naïve façades cost 20%—or more…",
    "scripts": "Ελληνικά Русский עברית العربية हिन्दी ไทย 中文字符 日本語のテキスト 한국어 ქართული",
    "accents": "é e\u0301 Å ﬁ ﬂ ½ ² ẞ İstanbul ﾊﾝｶｸ Ｆｕｌｌ",
    "emoji": "👩‍👩‍👧 🏳️‍🌈 👍🏽 ☕️ 🇫🇷",
    "code": "def f(x, *, y=None):\n\treturn x ** 2  # ok\n\n    if a != b and c_d.eF2():\r\n        pass\n",
    "numbers": "3.14159 1,000,000 1000000 0x1F 1e-10 2026-11-30T12:00:59Z +49-30-123456 v2.0.1 007",
    "white space": "  two   three    four\t\ttabs\n\n\nlines \n \u00a0\u3000\u200b end  ",
    "control": "\x00\x01\x07\x1b[0m\x7f\ufeff",
    "markup": "<div class='a'>&amp;</div> $\\frac{a}{b}$ [link](https://example.org/?q=1&r=a%20b) {\"k\": [1, null]}",
    "chat markers": "<|im_start|>user\nHi<|im_end|>\n<s>[INST] Hi [/INST]</s><start_of_turn>model\n<|eot_id|>",
    "long words": "Donaudampfschifffahrtsgesellschaft antidisestablishmentarianism aaaaaaaaaaaaaaaaaaaaaaaa ----------",
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One answer.

    Attributes:
        name: the same in every report.
        status: ok, warn or fail.
        detail: what was found.
        remedy: what to do about it; empty where there is nothing to do.
        decided: False where it could not be told; `detail` says why.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""
    decided: bool = True

    def __post_init__(self) -> None:
        if self.status not in ("ok", "warn", "fail"):
            raise ValueError(f"a check is ok, warn or fail, not '{self.status}'")
        if (self.status != "ok") != bool(self.remedy):
            raise ValueError(
                f"check '{self.name}' is {self.status}: a remedy stands with every warn and fail, only there"
            )


def verdict(checks: Sequence[Check], strict: bool) -> bool | None:
    """Whether the pair is compatible; None where that could not be told."""
    if any(c.decided and (c.status == "fail" or (strict and c.status == "warn")) for c in checks):
        return False
    return True if all(c.decided for c in checks) else None


def undecided(name: str, message: str) -> Check:
    """A check that could not be made, from an error's one line: cause, colon, remedy."""
    cause, colon, remedy = message.rpartition(": ")
    if not (colon and remedy):
        cause, remedy = message, "give a folder with a checkpoint, a .gguf file or a hub id"
    return Check(name, "fail", f"could not be told: {cause}", remedy, decided=False)


def readable(token: str | None) -> str:
    """A token with its white space and control characters visible."""
    return "none" if token is None else repr(token)


def token_checks(target: Inspection, draft: Inspection) -> list[Check]:
    """Everything that the two tokenizers decide."""
    ours, theirs = target.tokenizer, draft.tokenizer
    if ours is None or theirs is None:
        unread = target if ours is None else draft
        return [undecided("vocabulary", unread.tokenizer_problem)]
    comparison = compare_vocabularies(id_to_token(ours, target.num_rows), id_to_token(theirs, draft.num_rows))
    return [
        vocabulary(comparison),
        one_sided_tokens(ours, theirs, comparison),
        special_tokens(ours, theirs),
        embedding_rows(target, draft),
        tokenizer_type(ours, theirs),
        text_to_ids(ours, theirs),
        end_tokens(target, draft),
        chat_template(ours, theirs),
    ]


def vocabulary(comparison: VocabularyComparison) -> Check:
    """Does every id that both have mean the same token?"""
    if comparison.differing:
        shown = "; ".join(f"{i} is {readable(t)} / {readable(d)}" for i, t, d in comparison.differing[:SHOWN])
        more = len(comparison.differing) - SHOWN
        detail = f"{len(comparison.differing):,} ids mean different tokens (id: target / draft): {shown}"
        return Check("vocabulary", "fail", detail + (f"; and {more:,} more" if more > 0 else ""), OTHER_DRAFT)
    if not comparison.shared:
        return Check("vocabulary", "fail", "no id is shared at all", OTHER_DRAFT)
    return Check("vocabulary", "ok", f"all {comparison.shared:,} shared ids mean the same token")


def one_sided_tokens(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, comparison: VocabularyComparison
) -> Check:
    """Tokens that only one side has: legal, but the draft cannot guess the target's, and its own are masked."""
    found = []
    for tokenizer, ids, who, then in (
        (target, comparison.target_only, "target", "never drafted"),
        (draft, comparison.draft_only, "draft", "masked"),
    ):
        if ids:
            shown = ", ".join(f"{i} {readable(tokenizer.convert_ids_to_tokens(i))}" for i in ids[:SHOWN])
            dots = ", …" if len(ids) > SHOWN else ""
            found.append(f"only the {who} has {len(ids):,} ({shown}{dots}): {then}")
    if found:
        remedy = "choose a --draft with the same added tokens; texts without them lose nothing"
        return Check("one-sided tokens", "warn", "; ".join(found), remedy)
    return Check("one-sided tokens", "ok", "none")


def special_tokens(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> Check:
    """bos, eos, pad and unk; tokens flagged as special; and what is put in front of a text by itself."""
    differ: list[str] = []
    harmless: list[str] = []
    for name in SPECIAL:
        ours, theirs = (_special(t, name) for t in (target, draft))
        if ours != theirs:
            (differ if name in ("bos", "eos") else harmless).append(f"{name} {ours} / {theirs}")
    flags = [{i: bool(t.special) for i, t in tok.added_tokens_decoder.items()} for tok in (target, draft)]
    flagged = sorted(i for i in flags[0].keys() | flags[1].keys() if flags[0].get(i, False) != flags[1].get(i, False))
    if flagged:
        harmless.append(f"{len(flagged):,} ids are special on one side only (first: {flagged[0]})")
    fronts = [list(t("")["input_ids"]) for t in (target, draft)]
    if fronts[0] != fronts[1]:
        differ.append(f"put around a text {fronts[0]} / {fronts[1]}")
    if differ:
        return Check("special tokens", "warn", "; ".join([*differ, *harmless]), MEASURE)
    same = ", ".join(f"{name} {_special(target, name)}" for name in ("bos", "eos"))
    return Check("special tokens", "ok", "; ".join([same, *harmless]))


def _special(tokenizer: PreTrainedTokenizerBase, name: str) -> str:
    token, token_id = getattr(tokenizer, f"{name}_token", None), getattr(tokenizer, f"{name}_token_id", None)
    return "none" if token is None else f"{readable(str(token))} ({token_id})"


def embedding_rows(target: Inspection, draft: Inspection) -> Check:
    """Rows of the heads against the tokens that there are; what is padding is masked on both sides."""
    parts = []
    for side in (target, draft):
        tokens = 0 if side.tokenizer is None else len(side.tokenizer.get_vocab())
        spare = side.num_rows - tokens
        what = f", {spare:,} of padding, masked" if spare > 0 else f", {-spare:,} tokens without a row" if spare else ""
        parts.append(f"{side.role} {side.num_rows:,} rows for {tokens:,} tokens{what}")
    return Check("embedding rows", "ok", "; ".join(parts))


def tokenizer_type(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> Check:
    """BPE, Unigram or WordPiece, and the steps before and after it; what differs is judged by `text_to_ids`."""
    ours, theirs = _pipeline(target), _pipeline(draft)
    if ours["model"] != theirs["model"]:
        return Check("tokenizer type", "warn", f"target {ours['model']}, draft {theirs['model']}", OTHER_DRAFT)
    differ = [part for part in ours if ours[part] != theirs.get(part)]
    also = f"; other {' and '.join(differ)} (what that changes: text to ids)" if differ else ""
    return Check("tokenizer type", "ok", f"both {ours['model']}{also}")


def _pipeline(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return {"model": type(tokenizer).__name__}
    parts = json.loads(backend.to_str())
    kept = {part.replace("_", "-"): parts.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")}
    return {"model": parts["model"].get("type", "BPE"), "merges": parts["model"].get("merges"), **kept}


def text_to_ids(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> Check:
    """Do both make the same ids of the same text, and the same text of those ids?"""
    other_ids, other_text, lossy = [], [], []
    for kind, text in HARD_TEXTS.items():
        ours, theirs = (list(t(text, add_special_tokens=False)["input_ids"]) for t in (target, draft))
        if ours != theirs:
            other_ids.append((kind, _first_difference(target, draft, ours, theirs)))
            continue
        back, also = (_decode(t, ours) for t in (target, draft))
        if back != also:
            other_text.append(kind)
        elif back != text:
            lossy.append(kind)
    total = len(HARD_TEXTS)
    if other_ids:
        kind, example = other_ids[0]
        kinds = ", ".join(k for k, _ in other_ids)
        detail = f"{len(other_ids)} of {total} hard texts give other ids ({kinds}); in '{kind}' {example}"
        return Check("text to ids", "warn", detail, MEASURE)
    if other_text:
        detail = f"the same ids decode to other texts in {len(other_text)} of {total} ({', '.join(other_text)})"
        return Check("text to ids", "warn", detail, MEASURE)
    note = f"; not restored on decoding, by either: {', '.join(lossy)}" if lossy else ", and decode to the same text"
    return Check("text to ids", "ok", f"all {total} hard texts give the same ids{note}")


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def _first_difference(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, ours: list[int], theirs: list[int]
) -> str:
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    tokens = [
        " ".join(readable(t) for t in tokenizer.convert_ids_to_tokens(ids[at : at + 3])) or "nothing"
        for tokenizer, ids in ((target, ours), (draft, theirs))
    ]
    return f"{tokens[0]} / {tokens[1]}"


def end_tokens(target: Inspection, draft: Inspection) -> Check:
    """The ids that end a text, from generation config and tokenizer; the target's count."""
    ours, theirs = (_tokens(i) for i in (target, draft))
    if not target.end_ids:
        return Check("end tokens", "warn", "the target declares none", "end texts with --stop or --max-new-tokens")
    if target.end_ids != draft.end_ids:
        return Check("end tokens", "warn", f"target {ours}, draft {theirs}; the target's end the text", MEASURE)
    return Check("end tokens", "ok", f"both {ours}")


def _tokens(inspection: Inspection) -> str:
    tokenizer = inspection.tokenizer
    assert tokenizer is not None
    # Some configurations say -1 for "none", which a tokenizer cannot be asked for.
    names = {i: tokenizer.convert_ids_to_tokens(i) if i >= 0 else None for i in sorted(inspection.end_ids)}
    found = [f"{readable(name)} ({i})" for i, name in names.items()]
    return ", ".join(found) or "none"


def chat_template(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> Check:
    """Rendered output on a sample dialogue, not source text; and base models beside chat models."""
    ours, theirs = (getattr(t, "chat_template", None) for t in (target, draft))
    if bool(ours) != bool(theirs):
        chat, base = ("target", "draft") if ours else ("draft", "target")
        detail = f"the {chat} has a chat template, the {base} has none: an instruct and a base model may agree seldom"
        kind = "instruct" if ours else "base"
        return Check(
            "chat template", "warn", detail, f"choose the {kind} version of the draft, or measure with --probe"
        )
    if not ours:
        return Check("chat template", "ok", "neither has one")
    rendered = [render_dialogue(t) for t in (target, draft)]
    if rendered[0] != rendered[1]:
        at = next((i for i, (a, b) in enumerate(zip(*rendered, strict=False)) if a != b), min(map(len, rendered)))
        excerpts = " / ".join(repr(text[at : at + 24]) for text in rendered)
        detail = f"they render differently from character {at} on ({excerpts}); the target's is used for both"
        return Check("chat template", "warn", detail, MEASURE)
    return Check("chat template", "ok", "a sample dialogue renders the same")


def own_layers_checks(target: Inspection, num_layers: int) -> list[Check]:
    """What stands for a second tokenizer's checks where the target drafts with its own first layers."""
    if target.tokenizer is None:
        return [undecided("vocabulary", target.tokenizer_problem)]
    detail = "ids, tokenizer and chat template are the target's own, which there is no need to compare"
    vocabulary = Check("vocabulary", "ok", detail)
    out_of = int(getattr(target.text_config, "num_hidden_layers", 0))
    if not 1 <= num_layers < out_of:
        remedy = f"give a number from 1 to {out_of - 1}" if out_of > 1 else "leave early-exit out"
        detail = f"the target has {out_of} of them, and {num_layers} were to draft"
        return [vocabulary, Check("layers", "fail", detail, remedy)]
    return [vocabulary, Check("layers", "ok", f"the first {num_layers} of {out_of} draft")]


def model_checks(sides: Sequence[Inspection], context: int | None) -> list[Check]:
    """What the architectures decide.

    Args:
        sides: the target and, where there is one, its draft.
        context: tokens that the user means to have in every cache; None where that was not said.
    """
    damaged = [
        undecided("weights", f"the {side.role}'s {side.stored.damage}: download them again")
        for side in sides
        if side.skeleton is not None and side.stored.damage
    ]
    files = [architecture(sides), *damaged[:1], *_reading(sides)]
    return [*files, roll_back(sides), rotary(sides), context_length(sides, context)]


def _reading(sides: Sequence[Inspection]) -> list[Check]:
    """What reading the files could not be sure of; nothing where there is nothing."""
    notes = [note for side in sides for note in side.notes]
    return [Check("reading", "warn", "; ".join(notes), "compare its ids with the original tokenizer's")] * bool(notes)


def architecture(sides: Sequence[Inspection]) -> Check:
    """Causal and decoder-only, all of them."""
    for side in sides:
        if side.architecture_problem:
            cause, _, remedy = side.architecture_problem.rpartition(": ")
            return Check("architecture", "fail", cause, remedy)
    names = [(i.config.architectures or [i.config.model_type])[0] for i in sides]
    shown = f"both {names[0]}" if names[1:] == names[:1] else ", ".join(names)
    return Check("architecture", "ok", f"decoder-only, causal: {shown}")


def roll_back(sides: Sequence[Inspection]) -> Check:
    """Whether what a rejected token left in the caches can be taken back."""
    notes = ["both caches can be shortened" if len(sides) > 1 else "the cache can be shortened"]
    for side in sides:
        if side.cache_problem:
            cause, _, remedy = side.cache_problem.rpartition(": ")
            return Check("roll back", "fail", cause, remedy)
        if side.architecture_problem is None and side.cache_layers is None:
            detail = f"could not be told without weights for the {side.role}'s {side.config.model_type}"
            return Check("roll back", "warn", detail, "load it with --probe, which tries it")
        windows = {layer.window for layer in side.cache_layers or () if layer.window}
        if windows:
            layers = sum(bool(layer.window) for layer in side.cache_layers or ())
            notes.append(
                f"{side.role} has {layers} sliding-window layers ({', '.join(f'{w:,}' for w in windows)} tokens)"
            )
        if side.cache_implementation in ("quantized", "static", "sliding_window"):
            notes.append(f"{side.role}'s generation config asks for a {side.cache_implementation} cache; not used here")
    return Check("roll back", "ok", "; ".join(notes))


def rotary(sides: Sequence[Inspection]) -> Check:
    """How positions turn queries and keys, and whether that follows the length of the text."""
    notes, slow = [], 0
    for side in sides:
        shown = f"{side.role} {' and '.join(rope_types(side.text_config)) or 'none'}"
        try:
            frequencies = None if side.skeleton is None else text_frequencies(side.skeleton, side.role)
        except IncompatiblePairError as error:
            cause, _, remedy = str(error).rpartition(": ")
            return Check("rotary embedding", "fail", cause, remedy)
        if frequencies is not None:
            shown += f" ({frequencies.note(side.role)})"
            slow = frequencies.border if frequencies.grow and side.role == "target" else slow
        notes.append(shown)
    if slow:
        return Check("rotary embedding", "warn", "; ".join(notes), f"keep texts within {slow:,} tokens")
    return Check("rotary embedding", "ok", "; ".join(notes))


def context_length(sides: Sequence[Inspection], context: int | None) -> Check:
    """Maximum context of each, and what the pair has."""
    lengths = [f"{i.role} {i.max_length:,}" if i.max_length else f"{i.role} without a limit" for i in sides]
    target, *drafts = sides
    both = effective_context(sides)
    detail = ", ".join(lengths)
    if context is not None and target.max_length is not None and context > target.max_length:
        return Check(
            "context", "warn", f"{detail}; you asked for {context:,}", f"use --context {target.max_length} or less"
        )
    wanted = context if context is not None else target.max_length
    if any(draft.max_length is not None and (wanted is None or draft.max_length < wanted) for draft in drafts):
        return Check(
            "context", "warn", f"{detail}; beyond {both:,} the draft proposes nothing",
            f"keep texts within {both:,} tokens (tell by --context {both}), or choose a --draft with a longer context",
        )  # fmt: skip
    return Check("context", "ok", detail)
