"""What a user asked for, checked at birth. Frozen; nothing here needs torch.

Every message names the option and the remedy, so that the command line has nothing to add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.ranges import LARGEST

DTYPES = ("auto", "float32", "bfloat16", "float16")
NO_DRAFT = "none"
NOT_QUANTIZED, KEEP, AUTO = "none", "keep", "auto"
QUANTIZE = (KEEP, NOT_QUANTIZED, "int8", "w8a8", "int4", AUTO)
WHOLE_VOCAB = "none"
# `--draft-vocab auto` keeps so many tokens of a head that is at least such a share of the bytes of a step.
FREQUENT, LARGE_HEAD = 32_768, 0.25


WIDEST_TREE = 1024  # tokens of a draft: what is beyond makes a pass too wide to be worth it
# K is a number, or the name of a rule that chooses it for each round (`specdec_cli.decoding.draft_length`).
KChoice = int | str
K_RULES = ("auto", "heuristic")


def _is_k(value: KChoice) -> bool:
    return value in K_RULES if isinstance(value, str) else 1 <= value <= LARGEST


def _require_draft_stop(value: float) -> None:
    _require(0 <= value < 1, f"--draft-stop is a probability, from 0 (never stop) to below 1, not {value:g}")


def _require_draft_tree(nodes: int, draft_stop: float) -> None:
    _require(0 <= nodes <= WIDEST_TREE, f"--draft-tree must be from 1 to {WIDEST_TREE} tokens, not {nodes}")
    _require(not (nodes and draft_stop), "--draft-stop ends chains, and --draft-tree drafts none: leave one out")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


def is_unicode(text: str) -> bool:
    """Whether it has a UTF-8 form: not with half a surrogate pair, which Python makes of bytes that are no UTF-8."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


@dataclass(frozen=True)
class ModelSettings:
    """Where one checkpoint comes from and how it is loaded.

    Attributes:
        source: a folder, a .gguf file, or a hub id.
        revision: a hub branch, tag or commit.
        device: "auto", or what torch.device accepts.
        dtype: "auto" takes the checkpoint's type where the device computes it fast, else float32.
        offline: never touch the network.
        trust_remote_code: run Python code that a checkpoint brings along.
        dummy_weights: build the model from its configuration with random weights, to time it without a download.
        quantize: bits that linear layers keep of their weights; "keep" is what a .gguf file has of them where they can
            be computed with, else "none"; "auto", for a draft, is what steps fastest.
        vocab: of a draft, the tokens that its head computes: "none" all, a number so many of the most frequent, "auto"
            some of them where a head is much of a step, else a file of text that holds them.
        fuse: compute the same in fewer and cheaper calls where the model is known (`runtime.layers.joined`, `packed`);
            False leaves it as transformers made it, to compare with.
        graphs: "auto" records rounds as CUDA graphs where that is possible, "off" never.
        compile: passes over few tokens go through torch.compile.
    """

    source: str
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    offline: bool = False
    trust_remote_code: bool = False
    dummy_weights: bool = False
    quantize: str = NOT_QUANTIZED
    vocab: str = WHOLE_VOCAB
    fuse: bool = True
    graphs: str = AUTO
    compile: bool = False

    def __post_init__(self) -> None:
        _require(bool(self.source), "the model is an empty string: give a folder, a .gguf file or a hub id")
        _require(self.dtype in DTYPES, f"the dtype must be one of {', '.join(DTYPES)}, not '{self.dtype}'")
        _require(self.quantize in QUANTIZE, f"--quantize must be one of {', '.join(QUANTIZE)}, not '{self.quantize}'")
        digits = self.vocab.removeprefix("-").isdecimal()
        _require(
            bool(self.vocab) and not (digits and int(self.vocab) < 1),
            f"--draft-vocab must be a number of 1 or above, a file, {AUTO} or {WHOLE_VOCAB}, not '{self.vocab}'",
        )


@dataclass(frozen=True)
class SamplingSettings:
    """How logits become probabilities; the same for target and draft.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose mass reaches it; 1 keeps all.
        min_p: keep tokens at least this likely relative to the most likely one; 0 keeps all.
        repetition_penalty: divides the logits of tokens already seen; 1 changes nothing.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        t = self.temperature
        _require(
            t == 0 or 1e-6 <= t <= 1e6,  # what float32 logits can be divided by
            f"--temperature must be 0 (greedy), or between 1e-6 and 1e6, not {t:g}",
        )
        _require(self.top_k >= 0, f"--top-k must be 0 (keep all) or above, not {self.top_k}")
        _require(0 < self.top_p <= 1, f"--top-p must be above 0 and at most 1 (keep all), not {self.top_p:g}")
        _require(0 <= self.min_p <= 1, f"--min-p must be between 0 (keep all) and 1, not {self.min_p:g}")
        penalty = self.repetition_penalty
        _require(
            math.isfinite(penalty) and penalty > 0,
            f"--repetition-penalty must be above 0 (1 changes nothing), not {penalty:g}",
        )


# What `apply_chat_template` is told by specdec, and what of its words are no variables of a template.
NOT_OF_TEMPLATES = frozenset({
    "add_generation_prompt", "chat_template", "compiled_template", "continue_final_message", "conversation",
    "conversations", "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "sanitize_control_tokens", "self", "tokenize", "tokenizer_kwargs", "truncation",
})  # fmt: skip


@dataclass(frozen=True)
class ConversationSettings:
    """What surrounds a prompt when a model reads it.

    Attributes:
        system: a message before every conversation.
        raw: prompts go to the model as they are, without the chat template.
        template_args: variables that the chat template reads, as JSON has them.
        plain_content: what stands in a message is text, also where it spells a control token.
    """

    system: str | None = None
    raw: bool = False
    template_args: Mapping[str, Any] = field(default_factory=dict)
    plain_content: bool = False

    def __post_init__(self) -> None:
        taken = sorted(NOT_OF_TEMPLATES & self.template_args.keys())
        _require(not taken, f"--template-arg {', '.join(taken)} is for specdec to decide: leave it out")
        _require(
            not (self.raw and self.template_args),
            f"--template-arg {', '.join(self.template_args)} is for the chat template, which --raw leaves out: leave "
            "one of them out",
        )


@dataclass(frozen=True)
class GenerationSettings:
    """How far one generation goes and how it speculates.

    Attributes:
        num_draft_tokens: K, tokens drafted a round; or one of `K_RULES`, which chooses it for each.
        max_new_tokens: upper bound on emitted tokens.
        stop_strings: texts that end the generation and are trimmed from it.
        ignore_end_token: run on past the model's end tokens, to the length.
        seed: of every random draw; the same seed and prompts give the same records. See `decoding.seeds`.
        draft_stop: a draft ends behind a token that its model gave less than this probability; 0 never ends it.
        draft_tree: tokens that a trained head drafts as a tree; 0 for a chain.
    """

    num_draft_tokens: KChoice = 4
    max_new_tokens: int = 128
    stop_strings: tuple[str, ...] = ()
    ignore_end_token: bool = False
    seed: int = 0
    draft_stop: float = 0.0
    draft_tree: int = 0

    def __post_init__(self) -> None:
        _require_draft_stop(self.draft_stop)
        _require_draft_tree(self.draft_tree, self.draft_stop)
        _require(
            _is_k(self.num_draft_tokens),
            f"--k must be from 1 to {LARGEST}, {' or '.join(K_RULES)}, not {self.num_draft_tokens}; for plain decoding "
            f"use --draft {NO_DRAFT}",
        )
        _require(self.max_new_tokens >= 1, f"--max-new-tokens must be 1 or above, not {self.max_new_tokens}")
        _require("" not in self.stop_strings, "--stop is empty: give the text that ends the generation")
        _require(all(map(is_unicode, self.stop_strings)), "--stop is not UTF-8: convert it first")
        _require(0 <= self.seed < 2**63, f"--seed must be between 0 and 2^63 - 1, not {self.seed}")


@dataclass(frozen=True)
class BenchSettings:
    """What a benchmark varies and how long it goes on.

    Attributes:
        ks: every K to measure.
        temperatures: likewise.
        max_new_tokens: generated for each prompt by each arm.
        limit: prompts to use, from the start of the set; 0 for all.
        ignore_end_token: all arms generate exactly `max_new_tokens`.
        seed: of all random draws, as for `GenerationSettings`.
        simulated_acceptance: each drafted token is accepted with this probability, whatever the models say; the text
            means nothing then, the times do. None applies the rule.
        draft_stop, draft_tree: see `GenerationSettings`.
    """

    ks: tuple[KChoice, ...]
    temperatures: tuple[float, ...] = (0.0,)
    max_new_tokens: int = 128
    limit: int = 0
    ignore_end_token: bool = True
    seed: int = 0
    simulated_acceptance: float | None = None
    draft_stop: float = 0.0
    draft_tree: int = 0

    def __post_init__(self) -> None:
        _require_draft_stop(self.draft_stop)
        _require_draft_tree(self.draft_tree, self.draft_stop)
        simulated = self.simulated_acceptance
        _require(
            simulated is None or 0 <= simulated <= 1,
            f"--simulate-acceptance is a probability, between 0 and 1, not {simulated}",
        )
        _require(
            bool(self.ks) and all(map(_is_k, self.ks)),
            f"--k must be from 1 to {LARGEST}, {' or '.join(K_RULES)}; plain decoding is measured beside it anyway",
        )
        _require(self.max_new_tokens >= 2, f"--max-new-tokens must be 2 or above here, not {self.max_new_tokens}")
        _require(self.limit >= 0, f"--limit must be 0 (all prompts) or above, not {self.limit}")
        _require(0 <= self.seed < 2**63, f"--seed must be between 0 and 2^63 - 1, not {self.seed}")
