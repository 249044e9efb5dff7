"""What cheaper steps bring: targets and drafts in fewer bits, and a draft's head cut to frequent tokens.

Greedy, on code prompts, every arm once a prompt in rotating order, in one process. The first arm is plain decoding of
the target in 16 bits, which all others are divided by: the table gives the geometric mean over prompts of decoding
alone (prefill is apart). A quantised target is another model, so its text may be another; what a draft is made of never
changes the text, near ties in 16-bit arithmetic apart.

Every arm is TARGET, or TARGET+DRAFT@K: bits of the target, bits of the draft and, behind a colon, how many tokens its
head is cut to. `eager` is bfloat16 computed by transformers' own layers, `keep` a .gguf file's own bits, `auto` what
steps fastest here. `/P` behind the draft ends a draft behind a token that it gave less than P, and `ngram+` before it
lets prompt lookup draft where it has a match. Where xllamacpp is installed (wheels of llama.cpp, for AVX2) and the
models are .gguf files, llama.cpp's plain decoding of both is measured in the same run.

    python benchmarks/cheap_steps.py -t TARGET.gguf -d DRAFT.gguf
    python benchmarks/cheap_steps.py -t TARGET -d DRAFT --arms bf16,int8+int4:32768@4 --prompts 2 --tokens 48
    python benchmarks/cheap_steps.py --rows     # from how many rows of input on weights are better unpacked first
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch.nn.functional import linear

from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.composition import Composition
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.errors import SpecdecError
from specdec_cli.measurement.hardware import cpu_name, environment
from specdec_cli.prompts import builtin_prompts
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint
from specdec_cli.runtime.checkpoints.load import load_checkpoint
from specdec_cli.runtime.layers.quantized_linear import Int4Linear, Int8Linear
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.pairs.pair import Pair, load_pair
from specdec_cli.runtime.pairs.vocabularies import compare_vocabularies, id_to_token, require_same_vocabulary
from specdec_cli.settings import NOT_QUANTIZED, WHOLE_VOCAB, ModelSettings, SamplingSettings

GREEDY = SamplingSettings(temperature=0.0)
EAGER = "eager"
BITS = {EAGER: EAGER, "bf16": NOT_QUANTIZED} | {how: how for how in ("int8", "w8a8", "int4", "keep", "auto")}
WARM_UP_TOKENS = 8
# The pilot's rows, then what `auto` and a head of 32,768 tokens make of each target.
ARMS = (
    *("bf16", "bf16+bf16@3", "bf16+int8@6", "bf16+int8:24000@6", "int8", "int8+int8:24000@3", "int4"),
    *("int4+int4:24000@3", "bf16+auto:32768@6", "int8+auto:32768@3", "int4+auto:32768@3"),
)


@dataclass(frozen=True)
class Arm:
    """One row of the table.

    Attributes:
        name: as it was written.
        target: bits of the target, as --quantize has them.
        draft: bits of the draft and what its head is cut to; None for plain decoding.
        k: tokens drafted a round.
        stop: as --draft-stop.
        lookup: prompt lookup drafts where it has a match.
    """

    name: str
    target: str
    draft: tuple[str, str] | None
    k: int
    stop: float
    lookup: bool

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Read TARGET or TARGET+[ngram+]DRAFT[:VOCAB][/STOP]@K.

        Raises:
            ValueError: it is neither.
        """
        bits = "|".join(BITS)
        found = re.fullmatch(rf"({bits})(?:\+(ngram\+)?({bits})(?::(\w+))?(?:/(0?\.\d+))?@(\d+))?", text)
        if found is None:
            raise ValueError(f"an arm is TARGET or TARGET+DRAFT:VOCAB@K, with {bits} for models, not '{text}'")
        target, lookup, draft, vocab, stop, k = found.groups()
        made = (BITS[draft], vocab or WHOLE_VOCAB) if draft else None
        return cls(text, BITS[target], made, int(k or 1), float(stop or 0), bool(lookup))


@dataclass(frozen=True)
class Answer:
    """One generation.

    Attributes:
        tokens_per_s: of decoding.
        draft_ms, verify_ms: of a whole round, medians; None where nothing is drafted.
        tokens_per_round: mean of whole rounds.
        token_ids: what was generated.
    """

    tokens_per_s: float
    draft_ms: float | None
    verify_ms: float | None
    tokens_per_round: float
    token_ids: tuple[int, ...]


Run = Callable[[Sequence[int], int], Answer]  # prompt ids, new tokens


def loop_run(target: TransformersModel, drafter: Drafter, k: int) -> Run:
    """specdec's own loop."""

    def run(prompt: Sequence[int], tokens: int) -> Answer:
        generation = Generation(
            target, drafter, prompt, num_draft_tokens=k, sampling=GREEDY, stopping=Stopping(tokens)
        )  # fmt: skip
        steps = list(generation)
        whole = [step for step in steps if not step.cut] or steps
        seconds = sum(step.draft_s + step.verify_s + step.other_s for step in steps)
        return Answer(
            tokens_per_s=len(generation.token_ids) / seconds,
            draft_ms=_median_ms(whole, "draft_s") if whole[0].draft_token_ids else None,
            verify_ms=_median_ms(whole, "verify_s") if whole[0].draft_token_ids else None,
            tokens_per_round=sum(len(step.token_ids) for step in whole) / len(whole),
            token_ids=tuple(generation.token_ids),
        )

    return run


def _median_ms(steps: Sequence[Step], name: str) -> float:
    values: list[float] = [getattr(step, name) for step in steps]
    return 1000 * median(values)


def llama_run(path: str, context: int) -> Run:
    """llama.cpp's plain decoding of a .gguf file, by its own clock: tokens behind the first, prefill apart."""
    from xllamacpp import CommonParams, Server  # type: ignore[import-not-found,import-untyped,unused-ignore]

    params: Any = CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.verbosity = context, 1, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
    server: Any = Server(params)

    def run(prompt: Sequence[int], tokens: int) -> Answer:
        asked = {"prompt": list(prompt), "n_predict": tokens, "temperature": 0, "ignore_eos": True}
        answer = server.handle_completions({**asked, "cache_prompt": False})
        if "timings" not in answer:
            raise SystemExit(f"llama.cpp: {answer}")
        return Answer(answer["timings"]["predicted_per_second"], None, None, 1.0, ())

    return run


def settings(source: str, bits: str, vocab: str = WHOLE_VOCAB) -> ModelSettings:
    """How a model of an arm is loaded."""
    eager = bits == EAGER
    quantize = NOT_QUANTIZED if eager else bits
    return ModelSettings(source, device="cpu", dtype="bfloat16", quantize=quantize, vocab=vocab, fuse=not eager)


def load(args: argparse.Namespace, arms: Sequence[Arm], report: Callable[[str], None]) -> tuple[Pair, dict[str, Run]]:
    """Every model that the arms need, once each; one of the targets, for its tokenizer, and what to run by arm."""
    pairs = {
        bits: load_pair(settings(args.target, bits), None, report) for bits in dict.fromkeys(a.target for a in arms)
    }
    some = next(iter(pairs.values()))
    ours = id_to_token(some.checkpoint.tokenizer, some.checkpoint.num_rows)
    drafts: dict[tuple[str, str], TransformersModel] = {}
    for draft in dict.fromkeys(arm.draft for arm in arms if arm.draft):
        checkpoint: Checkpoint = load_checkpoint(settings(args.draft, *draft), "draft", report)
        comparison = compare_vocabularies(ours, id_to_token(checkpoint.tokenizer, checkpoint.num_rows))
        require_same_vocabulary(comparison)
        drafts[draft] = TransformersModel(checkpoint.model, comparison.vocab_size, comparison.draft_blocked, "draft")
        report(" | ".join(checkpoint.notes))
    runs: dict[str, Run] = {}
    for arm in arms:
        target = pairs[arm.target].target
        drafter: Drafter = NoDrafter(target.device)
        if arm.draft:
            drafter = DraftModel(drafts[arm.draft], GREEDY, arm.stop)
        if arm.lookup:
            drafter = Composition([("ngram", NgramDrafter(3, 1, target.device)), ("model", drafter)])
        runs[arm.name] = loop_run(target, drafter, arm.k)
    return some, runs


def measure(
    runs: dict[str, Run], prompts: Sequence[Sequence[int]], tokens: int, report: Callable[[str], None]
) -> dict[str, list[Answer]]:
    """Every arm once a prompt, in an order that rotates; a first short answer of each is not counted."""
    for run in runs.values():
        run(prompts[0], WARM_UP_TOKENS)
    answers: dict[str, list[Answer]] = {name: [] for name in runs}
    names = list(runs)
    for turn, prompt in enumerate(prompts):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            answers[name].append(runs[name](prompt, tokens))
            report(f"prompt {turn + 1}, {name}: {answers[name][-1].tokens_per_s:.1f} tok/s")
    return answers


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(answers: dict[str, list[Answer]], base: str) -> Table:
    """A row for each arm."""
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("arm", no_wrap=True)
    for heading in ("tok/s by prompt", "over the first", "tok/round", "draft / verify, ms", "plain text"):
        shown.add_column(heading, justify="right")
    for name, found in answers.items():
        over = geometric_mean([a.tokens_per_s / b.tokens_per_s for a, b in zip(found, answers[base], strict=True)])
        # The plain arm of the same target is the text that a draft must not change.
        plain = answers.get(name.split("+")[0], []) if "+" in name else []
        same = sum(a.token_ids == b.token_ids for a, b in zip(found, plain, strict=False))
        parts = [(a.draft_ms, a.verify_ms) for a in found if a.draft_ms is not None and a.verify_ms is not None]
        shown.add_row(
            name, ", ".join(f"{a.tokens_per_s:.1f}" for a in found), f"{over:.2f}x",
            f"{geometric_mean([a.tokens_per_round for a in found]):.2f}" if parts else "",
            f"{median(d for d, _ in parts):.0f} / {median(v for _, v in parts):.0f}" if parts else "",
            f"{same} of {len(found)}" if plain else "",
        )  # fmt: skip
    return shown


def rows_table(shape: tuple[int, int] = (8960, 1536), repeats: int = 9) -> Table:
    """A layer's product by torch's kernels and by weights unpacked on the way, in turn, for growing inputs."""
    shown = Table(box=box.SIMPLE_HEAD, title=f"{shape[0]} x {shape[1]}, median ms", title_justify="left")
    for heading in ("rows", "bf16", *(f"{how}, {by}" for how in ("int8", "int4") for by in ("kernel", "unpacked"))):
        shown.add_column(heading, justify="right")
    weight = torch.randn(shape, dtype=torch.bfloat16)
    layers = [kind.rounded(weight, None) for kind in (Int8Linear, Int4Linear)]
    for rows in (1, 8, 16, 32, 48, 64, 96, 128, 256, 512):
        states = torch.randn(rows, shape[1], dtype=torch.bfloat16)
        ways: list[Callable[[torch.Tensor], torch.Tensor]] = [partial(linear, weight=weight)]
        for layer in layers:
            ways += [layer._product, layer._product_of_many]
        seconds: list[list[float]] = [[] for _ in ways]
        for _ in range(repeats):
            for way, found in zip(ways, seconds, strict=True):
                started = time.perf_counter()
                way(states)
                found.append(time.perf_counter() - started)
        shown.add_row(str(rows), *(f"{1000 * median(found):.2f}" for found in seconds))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-t", "--target")
    parser.add_argument("-d", "--draft")
    parser.add_argument("--rows", action="store_true", help="time single layers by rows of input, no models")
    parser.add_argument("--arms", default=",".join(ARMS), help="comma-separated; the first is what all are divided by")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--output", type=Path, help="write the raw figures there, as JSON")
    args = parser.parse_args()
    console = Console()
    if args.rows:
        console.print(f"{cpu_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}", markup=False)
        console.print(rows_table())
        return
    if args.target is None or args.draft is None:
        parser.error("--target and --draft are needed, or --rows")
    if args.prompts < 1 or args.tokens < 1:
        parser.error("--prompts and --tokens must be 1 or above")
    try:
        arms = [Arm.parse(text) for text in args.arms.split(",")]
    except ValueError as error:
        parser.error(str(error))

    def report(line: str) -> None:
        console.print(line, style="dim", markup=False)

    pair, runs = load(args, arms, report)
    chosen = [p for p in builtin_prompts("mixed") if p.category == "code"][: args.prompts]
    prompts = [pair.encode([{"role": "user", "content": p.turns[0]}], raw=False, room=args.tokens) for p in chosen]
    try:
        context = max(map(len, prompts)) + args.tokens + 8
        for role, path in (("target", args.target), ("draft", args.draft)):
            if path.endswith(".gguf"):
                runs[f"llama.cpp, the {role}"] = llama_run(path, context)
    except ImportError:
        console.print("xllamacpp is not installed: no row for llama.cpp", style="dim")
    answers = measure(runs, prompts, args.tokens, report)
    where = environment(torch.device("cpu"))
    console.print(f"{where['cpu']}, {torch.get_num_threads()} threads, torch {torch.__version__}", markup=False)
    console.print(f"{args.target} with {args.draft}, {args.tokens} tokens, {len(prompts)} prompts", markup=False)
    console.print(table(answers, arms[0].name))
    if args.output is not None:
        record = {name: [vars(answer) for answer in found] for name, found in answers.items()}
        args.output.write_text(json.dumps({"environment": where, "answers": record}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except SpecdecError as error:
        sys.exit(f"cheap_steps.py: {error}")
