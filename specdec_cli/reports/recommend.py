"""What was found best here, in the words of the tool that will serve it.

Target, draft and K carry over. Two things may not, and comments say so: the gain, since another tool's draft and verify
passes cost something else; and above temperature 0 the acceptance. With q the draft's distribution and p the target's,
the exact rule accepts with probability sum min(p, q). A tool that drafts greedily makes q one-hot and accepts with
p(x); one that samples the target and compares keeps a sampled draft with probability sum p q.

Where the tool would refuse the pair, so does the export. Syntax and rules: the tools' documentation and sources as of
November 2026.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from specdec_cli.errors import IncompatiblePairError, UsageError
from specdec_cli.reports.export_heads import SGLANG, VLLM, sglang_words, vllm_config
from specdec_cli.settings import NO_DRAFT

PROMPT_LOOKUP = "ngram"
LLAMA_CPP_MAX_SIZE_DIFFERENCE = 128
COMMENT_WIDTH = 98


@dataclass(frozen=True)
class Recommendation:
    """A target, what drafts for it, and the K that was best.

    Attributes:
        target, draft: as the tool is to find them: folder, GGUF file or hub id; the draft may be PROMPT_LOOKUP.
        k: tokens drafted a round.
        temperature: the one at which it was best.
        target_vocab_size, draft_vocab_size: rows, as the configs give them; None for prompt lookup.
        target_tokenizer_size, draft_tokenizer_size: the tokenizers' own `vocab_size`, without added tokens.
        target_bos_id, draft_bos_id, target_eos_id, draft_eos_id: the tokenizers'; None where there is none.
        tokens_differing_from_id_5: ids of at least 5 that both have rows for and whose token texts differ.
        target_is_gguf, draft_is_gguf: the source is a GGUF file.
        lookup_max, lookup_min: the longest and the shortest n-gram that prompt lookup matches.
        head: the kind of a trained head, as `export_heads` names them; None where the draft is none.
    """

    target: str
    draft: str
    k: int
    temperature: float
    target_vocab_size: int
    draft_vocab_size: int | None = None
    target_tokenizer_size: int | None = None
    draft_tokenizer_size: int | None = None
    target_bos_id: int | None = None
    draft_bos_id: int | None = None
    target_eos_id: int | None = None
    draft_eos_id: int | None = None
    tokens_differing_from_id_5: int = 0
    target_is_gguf: bool = False
    draft_is_gguf: bool = False
    lookup_max: int | None = None
    lookup_min: int | None = None
    head: str | None = None

    def __post_init__(self) -> None:
        if self.draft == NO_DRAFT:
            raise UsageError(f"--export has nothing to say about --draft {NO_DRAFT}: name a draft")
        if self.k < 1:
            raise ValueError(f"K is 1 or above, got {self.k}")
        if self.temperature < 0:
            raise ValueError(f"a temperature is 0 or above, got {self.temperature}")
        if self.is_prompt_lookup and (self.lookup_max is None or self.lookup_min is None):
            raise ValueError("prompt lookup needs lookup_max and lookup_min")
        if not self.is_prompt_lookup and self.head is None and self.draft_vocab_size is None:
            raise ValueError("a draft model needs draft_vocab_size")

    @property
    def is_prompt_lookup(self) -> bool:
        """Whether the draft is no model but the text so far."""
        return self.draft == PROMPT_LOOKUP


@dataclass(frozen=True)
class Tool:
    """How one tool is told.

    Attributes:
        name: as its makers write it.
        draft_model: the configuration, without comments, for a draft model.
        prompt_lookup: the same for prompt lookup; None where it has no form here.
        refusal: why the tool would refuse this pair of models; None where it takes it.
        acceptance: what it does above temperature 0, and what that means for the acceptance measured here.
        notes: what else its user must know, as lines.
        heads: the kinds of trained heads that it has a form for.
    """

    name: str
    draft_model: Callable[[Recommendation], str]
    refusal: Callable[[Recommendation], str | None]
    acceptance: str
    prompt_lookup: Callable[[Recommendation], str] | None = None
    notes: Callable[[Recommendation], list[str]] = lambda _: []
    heads: Collection[str] = ()


def export(recommendation: Recommendation, tool: str) -> str:
    """The configuration of one of `TOOLS`, after comments on what does not carry over; ends with a line end.

    Raises:
        UsageError: the tool is not known, or prompt lookup has no form for it here.
        IncompatiblePairError: the tool would refuse the pair, which may still work in specdec.
    """
    if tool not in TOOLS:
        raise UsageError(f"--export must be one of {', '.join(TOOLS)}, not '{tool}'")
    chosen = TOOLS[tool]
    write = chosen.draft_model
    if recommendation.is_prompt_lookup:
        if chosen.prompt_lookup is None:
            able = " and ".join(name for name, other in TOOLS.items() if other.prompt_lookup is not None)
            raise UsageError(f"--export {tool} has no form for prompt lookup: {able} have, or name a draft model")
        write = chosen.prompt_lookup
    if recommendation.head is not None and recommendation.head not in chosen.heads:
        able = " and ".join(name for name, other in TOOLS.items() if recommendation.head in other.heads)
        raise UsageError(f"--export {tool} has no form for a {recommendation.head} head here: {able} have")
    reason = chosen.refusal(recommendation)
    if reason is not None:
        raise IncompatiblePairError(
            f"--export {tool}: {chosen.name} would refuse this pair, which works here: {reason}"
        )
    return _comments(recommendation, chosen) + write(recommendation) + "\n"


def _comments(recommendation: Recommendation, tool: Tool) -> str:
    t = recommendation.temperature
    acceptance = f"{tool.name} {COPIED if recommendation.is_prompt_lookup else tool.acceptance}."
    gain = f"Measure the gain again: draft and verify passes of {tool.name} cost something else."
    paragraphs = [
        f"specdec: K {recommendation.k} was best here at temperature {t:g}. {gain}",
        f"Above temperature 0 {acceptance}"
        if t
        else f"At temperature 0 acceptance carries over; above it {acceptance}",
    ]
    lines = [line for paragraph in paragraphs for line in textwrap.wrap(paragraph, COMMENT_WIDTH)]
    for note in tool.notes(recommendation):
        lines += note.splitlines()
    return "".join(f"# {line}\n" for line in lines)


# ------------------------------------------------------------------------------------------- refusals
def _unequal_rows(r: Recommendation) -> str | None:
    if r.is_prompt_lookup or r.head is not None or r.target_vocab_size == r.draft_vocab_size:
        return None
    return f"their configs' vocab_size must be equal, and are {r.target_vocab_size:,} and {r.draft_vocab_size:,}"


def _llama_cpp_refusal(r: Recommendation) -> str | None:
    difference = abs(r.target_vocab_size - (r.draft_vocab_size or 0))
    if difference > LLAMA_CPP_MAX_SIZE_DIFFERENCE:
        return f"the vocabulary sizes may differ by {LLAMA_CPP_MAX_SIZE_DIFFERENCE}, and differ by {difference:,}"
    for name, target_id, draft_id in (
        ("first", r.target_bos_id, r.draft_bos_id),
        ("end", r.target_eos_id, r.draft_eos_id),
    ):
        if target_id != draft_id:
            return f"the {name} token must be the same, and is id {target_id} and {draft_id}"
    if r.tokens_differing_from_id_5:
        return f"token texts must be equal from id 5 up, and {r.tokens_differing_from_id_5:,} differ"
    return None


def _no_gguf(r: Recommendation) -> str | None:
    if r.target_is_gguf or r.draft_is_gguf:
        return "it reads no GGUF files; name the folder or hub id that they were made from"
    return None


def _mlx_refusal(r: Recommendation) -> str | None:
    target_size, draft_size = r.target_tokenizer_size, r.draft_tokenizer_size
    if target_size is not None and draft_size is not None and target_size != draft_size:
        return f"the tokenizers' vocab_size must be equal, and are {target_size:,} and {draft_size:,}"
    return _no_gguf(r)


def _never(_: Recommendation) -> str | None:
    return None


# ---------------------------------------------------------------------------------------- configurations
def _vllm(r: Recommendation, speculation: dict[str, Any]) -> str:
    config = json.dumps(speculation, ensure_ascii=False, separators=(",", ":"))
    return shlex.join(["vllm", "serve", r.target, "--speculative-config", config])


def _vllm_draft_model(r: Recommendation) -> str:
    if r.head is not None:
        return _vllm(r, vllm_config(r.head, r.draft, r.k))
    return _vllm(r, {"method": "draft_model", "model": r.draft, "num_speculative_tokens": r.k})


def _vllm_prompt_lookup(r: Recommendation) -> str:
    lookup = {"prompt_lookup_max": r.lookup_max, "prompt_lookup_min": r.lookup_min}
    return _vllm(r, {"method": "ngram", "num_speculative_tokens": r.k, **lookup})


def _sglang(r: Recommendation) -> str:
    words = ["python", "-m", "sglang.launch_server", "--model-path", r.target]
    if r.head is not None:
        return shlex.join([*words, *sglang_words(r.head, r.draft, r.k)])
    words += ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", r.draft]
    words += ["--speculative-num-steps", str(r.k), "--speculative-eagle-topk", "1"]
    words += ["--speculative-num-draft-tokens", str(r.k + 1)]
    return shlex.join(words)


def _llama_cpp(r: Recommendation) -> str:
    target, draft = _gguf_names(r)
    words = ["llama-server", "-m", target, "-md", draft, "--spec-type", "draft-simple"]
    words += ["--spec-draft-n-max", str(r.k), "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]
    return shlex.join(words)


def _gguf_names(r: Recommendation) -> tuple[str, str]:
    """Target and draft as llama.cpp can read them: what is no GGUF file here gets the name of one."""
    target, draft = (
        _hub_file(source)[1] if is_gguf else f"{PurePath(source).name}.gguf"
        for source, is_gguf in ((r.target, r.target_is_gguf), (r.draft, r.draft_is_gguf))
    )
    return target, draft if draft != target or r.draft_is_gguf else f"draft-{draft}"


def _hub_file(source: str) -> tuple[str, str]:
    """Repository and file of `org/repo:file.gguf`; no repository where it is a path."""
    repo, colon, name = source.partition(":")
    return (repo, name) if colon and re.fullmatch(r"[\w.-]+/[\w.-]+", repo) else ("", source)


def _llama_cpp_notes(r: Recommendation) -> list[str]:
    notes = []
    sources = ((r.target, r.target_is_gguf), (r.draft, r.draft_is_gguf))
    for name, (source, is_gguf) in zip(_gguf_names(r), sources, strict=True):
        repo, file = _hub_file(source)
        if is_gguf and repo:
            notes.append(f"First: {shlex.join(['hf', 'download', repo, file, '--local-dir', '.'])}")
        elif not is_gguf:
            notes.append(f"First, with convert_hf_to_gguf.py of llama.cpp: {source} to {name}")
    return notes


def _mlx(r: Recommendation) -> str:
    words = ["mlx_lm.generate", "--model", r.target, "--draft-model", r.draft]
    return shlex.join([*words, "--num-draft-tokens", str(r.k)])


def _trtllm(r: Recommendation) -> str:
    speculation = {"decoding_type": "DraftTarget", "max_draft_len": r.k, "speculative_model": r.draft}
    text: str = yaml.safe_dump({"speculative_config": speculation}, sort_keys=False, allow_unicode=True, width=10**6)
    return text.rstrip("\n")


def _trtllm_notes(r: Recommendation) -> list[str]:
    return [f"Save this as specdec.yaml, then: {shlex.join(['trtllm-serve', r.target, '--config', 'specdec.yaml'])}"]


def _transformers(r: Recommendation, setup: list[str], speculation: str) -> str:
    sampling = f"do_sample=True, temperature={r.temperature}" if r.temperature else "do_sample=False"
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({_from_pretrained(r.target, r.target_is_gguf)})",
        _load("target", r.target, r.target_is_gguf),
        *setup,
        'inputs = tokenizer("Your prompt", return_tensors="pt")',
        f"output = target.generate(**inputs, {speculation}, {sampling}, max_new_tokens=128)",
        "print(tokenizer.decode(output[0], skip_special_tokens=True))",
    ]
    return "\n".join(lines)


def _transformers_draft_model(r: Recommendation) -> str:
    setup = [
        _load("draft", r.draft, r.draft_is_gguf),
        f"draft.generation_config.num_assistant_tokens = {r.k}",
        'draft.generation_config.num_assistant_tokens_schedule = "constant"',
        "draft.generation_config.assistant_confidence_threshold = 0",
    ]
    return _transformers(r, setup, "assistant_model=draft")


def _transformers_prompt_lookup(r: Recommendation) -> str:
    return _transformers(r, [], f"prompt_lookup_num_tokens={r.k}, max_matching_ngram_size={r.lookup_max}")


def _load(name: str, source: str, is_gguf: bool) -> str:
    return f'{name} = AutoModelForCausalLM.from_pretrained({_from_pretrained(source, is_gguf)}, dtype="auto")'


def _from_pretrained(source: str, is_gguf: bool) -> str:
    if not is_gguf:
        return _python_text(source)
    repo, name = _hub_file(source)
    if repo:
        return f"{_python_text(repo)}, gguf_file={_python_text(name)}"
    path = PurePath(source)
    return f"{_python_text(str(path.parent))}, gguf_file={_python_text(path.name)}"


def _python_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # every JSON text is one of Python's, in double quotes


def _gguf_notes(r: Recommendation) -> list[str]:
    if not (r.target_is_gguf or r.draft_is_gguf):
        return []
    return ["Made for checkpoint folders and hub ids: better name those that the GGUF files were made from."]


GREEDY_DRAFT = (
    "drafts greedily and accepts a token with the target's probability for it, so acceptance differs from the measured"
)
COMPARED = (
    "samples the target and keeps the draft's token where it is the same, so acceptance differs from the measured"
)
SAME = "applies the same exact rule, so acceptance carries over"
UNCHECKED = "accepts by a rule that was not checked here, so acceptance may differ from the measured"
COPIED = "accepts a copied token with the target's probability for it, as specdec does, so acceptance carries over"

TOOLS = {
    "vllm": Tool("vLLM", _vllm_draft_model, _unequal_rows, GREEDY_DRAFT, _vllm_prompt_lookup, _gguf_notes, VLLM),
    "sglang": Tool("SGLang", _sglang, _never, GREEDY_DRAFT, notes=_gguf_notes, heads=SGLANG),
    "llama.cpp": Tool("llama.cpp", _llama_cpp, _llama_cpp_refusal, COMPARED, notes=_llama_cpp_notes),
    "transformers": Tool("transformers", _transformers_draft_model, _unequal_rows, SAME, _transformers_prompt_lookup),
    "mlx": Tool("mlx_lm", _mlx, _mlx_refusal, COMPARED),
    "trtllm": Tool("TensorRT-LLM", _trtllm, _no_gguf, UNCHECKED, notes=_trtllm_notes),
}
