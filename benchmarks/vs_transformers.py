"""specdec beside transformers' own generation, in one process, in turn, set to be comparable.

Plain decoding against `generate`, speculative decoding against assisted generation with a constant number of assistant
tokens and no confidence threshold (both are read from the assistant's generation config; values given to `generate`
are ignored). What a checkpoint's own generation config asks for (penalties, end tokens, at which an assistant stops
drafting) is put aside on both sides. Same weights, number type and threads; every arm is run once for each prompt in
each turn, in rotating order, so that a drift of the machine hits all of them. Prefill is in all figures alike, and
every arm makes exactly the tokens asked for.

Prints tokens a second (geometric mean over prompts and turns) and ratios pair by pair, with their range; at
temperature 0 also which arms wrote another text than `generate` (in 16 bit, near ties may differ).

    python benchmarks/vs_transformers.py                                         # the demo pair
    python benchmarks/vs_transformers.py -t TARGET -d DRAFT --k 2,4,8 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig, PreTrainedModel

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.seeds import answer_seed, trial_seed
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.runtime.devices import clock_for
from specdec_cli.runtime.pairs.pair import Pair, load_pair
from specdec_cli.settings import ModelSettings, SamplingSettings

PROMPTS = (
    "Write a Python function that merges two sorted lists.",
    "Write a class Stack with push, pop and peek.",
    "def read_lines(path):",
)
Arm = Callable[[list[int], int], list[int]]  # prompt ids, seed -> new ids


def specdec_arm(pair: Pair, drafter: Drafter, k: int, tokens: int, sampling: SamplingSettings) -> Arm:
    """specdec's loop; `k` counts where the drafter proposes anything."""

    def run(prompt: list[int], seed: int) -> list[int]:
        generation = Generation(
            pair.target, drafter, prompt, num_draft_tokens=k, sampling=sampling, stopping=Stopping(tokens), seed=seed
        )
        for _ in generation:
            pass
        return generation.token_ids

    return run


def transformers_arm(
    target: PreTrainedModel, assistant: PreTrainedModel | None, k: int, tokens: int, temperature: float
) -> Arm:
    """transformers' `generate`; assisted with K = `k` where there is an assistant."""
    options: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}

    def run(prompt: list[int], seed: int) -> list[int]:
        # What a config leaves out, `generate` takes from the model's own, and a draft stops at its own end tokens.
        target.generation_config = GenerationConfig(pad_token_id=0)
        if assistant is not None:
            assistant.generation_config = GenerationConfig(
                pad_token_id=0,
                num_assistant_tokens=k,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,
            )
        torch.manual_seed(seed)
        ids = torch.tensor([prompt], device=target.device)
        output: Any = target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, assistant_model=assistant, **options
        )
        new_ids: list[int] = output[0, len(prompt) :].tolist()
        return new_ids

    return run


def measure(
    arms: dict[str, Arm], prompts: Sequence[list[int]], tokens: int, turns: int, clock: Callable[[], float]
) -> tuple[dict[str, list[float]], dict[str, list[list[int]]]]:
    """Tokens a second of every arm, one figure a prompt and turn in the same order for all, and the ids they made.

    Raises:
        SystemExit: an arm made fewer or more tokens than asked for, so that the figures would not compare.
    """
    for run in arms.values():
        run(prompts[0], trial_seed("warm-up"))
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    made: dict[str, list[list[int]]] = {name: [] for name in arms}
    names = list(arms)
    for turn in range(turns):
        for number, prompt in enumerate(prompts):
            shift = (turn + number) % len(names)
            for name in names[shift:] + names[:shift]:
                started = clock()
                ids = arms[name](prompt, answer_seed(0, number + 1, turn + 1))
                speeds[name].append(tokens / (clock() - started))
                made[name].append(ids)
                if len(ids) != tokens:
                    raise SystemExit(f"{name} made {len(ids)} tokens, not {tokens}: give fewer --tokens")
    return speeds, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-t", "--target", default="demo:target")
    parser.add_argument("-d", "--draft", default="demo:draft")
    parser.add_argument("--k", default="4", help="comma-separated")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    console = Console()
    target, draft = (ModelSettings(source, dtype=args.dtype) for source in (args.target, args.draft))
    pair = load_pair(target, draft, console.print)
    assert pair.draft is not None
    # transformers' side runs the models as it makes them, not as specdec prepares them.
    theirs = load_pair(replace(target, fuse=False), replace(draft, fuse=False), lambda _: None)
    assert theirs.draft_checkpoint is not None
    big, small = theirs.checkpoint.model, theirs.draft_checkpoint.model
    sampling = SamplingSettings(temperature=args.temperature)
    prompts = [pair.encode([{"role": "user", "content": text}], raw=False) for text in PROMPTS]

    arms = {
        "generate": transformers_arm(big, None, 0, args.tokens, args.temperature),
        "specdec none": specdec_arm(pair, NoDrafter(pair.target.device), 0, args.tokens, sampling),
    }
    rows = [("specdec none", "generate")]
    drafter = DraftModel(pair.draft, sampling)
    for k in (int(k) for k in args.k.split(",")):
        arms[f"assisted K {k}"] = transformers_arm(big, small, k, args.tokens, args.temperature)
        arms[f"specdec K {k}"] = specdec_arm(pair, drafter, k, args.tokens, sampling)
        rows += [(f"specdec K {k}", f"assisted K {k}"), (f"specdec K {k}", "specdec none")]
    speeds, made = measure(arms, prompts, args.tokens, args.turns, clock_for(*pair.devices))

    console.print(
        f"{args.target} ({str(pair.checkpoint.dtype).removeprefix('torch.')}), draft {args.draft}, temperature "
        f"{args.temperature:g}, {args.tokens} tokens, {len(prompts)} prompts x {args.turns} turns, "
        f"{torch.get_num_threads()} threads"
    )
    table = Table("arm", "tokens/s", "over", "ratio (median)", "range")
    for name, other in [("generate", ""), *rows]:
        speed = f"{math.exp(statistics.fmean(map(math.log, speeds[name]))):.2f}"
        if not other:
            table.add_row(name, speed, "", "", "")
            continue
        ratios = sorted(a / b for a, b in zip(speeds[name], speeds[other], strict=True))
        span = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        table.add_row(name, speed, other, f"{statistics.median(ratios):.2f}", span)
    console.print(table)
    if args.temperature == 0:
        others = [name for name in arms if made[name] != made["generate"]]
        console.print(
            "text: " + (f"not that of generate: {', '.join(others)}" if others else "the same from every arm")
        )


if __name__ == "__main__":
    main()
