"""specdec beside transformers' own generation, in one process, in turn, set to be comparable.

Plain decoding against `generate(do_sample=False)`, speculative decoding against assisted generation with a constant
number of assistant tokens and no confidence threshold (both are read from the assistant's generation config; values
given to `generate` are ignored). Same models, number type and threads; every arm is run once for each prompt in each
turn, in rotating order, so that a drift of the machine hits all of them. Prefill is in all figures alike.

Prints tokens a second (geometric mean over prompts) and ratios pair by pair, with their range. Nothing is asserted.

    python benchmarks/vs_transformers.py                                         # the demo pair
    python benchmarks/vs_transformers.py -t TARGET -d DRAFT --k 2,4,8 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.runtime.pair import Pair, load_pair
from specdec_cli.settings import ModelSettings, SamplingSettings

PROMPTS = (
    "Write a Python function that merges two sorted lists.",
    "Write a class Stack with push, pop and peek.",
    "def read_lines(path):",
)


def specdec_arm(pair: Pair, drafter: Drafter, k: int, tokens: int, sampling: SamplingSettings) -> Callable[..., int]:
    def run(prompt: list[int], seed: int) -> int:
        generation = Generation(
            pair.target, drafter, prompt, num_draft_tokens=k, sampling=sampling, stopping=Stopping(tokens), seed=seed
        )
        for _ in generation:
            pass
        return len(generation.token_ids)

    return run


def transformers_arm(pair: Pair, k: int | None, tokens: int, temperature: float) -> Callable[..., int]:
    options: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    if k is not None:
        assert pair.draft_checkpoint is not None
        assistant = pair.draft_checkpoint.model
        assistant.generation_config.num_assistant_tokens = k
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0

    def run(prompt: list[int], seed: int) -> int:
        torch.manual_seed(seed)
        extra = dict(options)
        if k is not None:
            config = pair.draft_checkpoint.model.generation_config  # type: ignore[union-attr]
            config.num_assistant_tokens = k
            extra["assistant_model"] = pair.draft_checkpoint.model  # type: ignore[union-attr]
        ids = torch.tensor([prompt], device=pair.target.device)
        output = pair.checkpoint.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
            eos_token_id=None, pad_token_id=0, **extra,
        )  # fmt: skip
        return int(output.shape[1]) - len(prompt)

    return run


def measure(arms: dict[str, Callable[..., int]], prompts: Sequence[list[int]], turns: int) -> dict[str, list[float]]:
    """Tokens a second of every arm, one figure a prompt and turn, in the same order for all."""
    for run in arms.values():
        run(prompts[0], 0)  # warm-up
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for turn in range(turns):
        for number, prompt in enumerate(prompts):
            shift = (turn + number) % len(names)
            for name in names[shift:] + names[:shift]:
                started = time.perf_counter()
                made = arms[name](prompt, seed=turn)
                speeds[name].append(made / (time.perf_counter() - started))
    return speeds


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
    sampling = SamplingSettings(temperature=args.temperature)
    prompts = [pair.encode([{"role": "user", "content": text}], raw=False) for text in PROMPTS]

    arms = {
        "generate": transformers_arm(pair, None, args.tokens, args.temperature),
        "specdec none": specdec_arm(pair, NoDrafter(pair.target.device), 4, args.tokens, sampling),
    }
    rows = [("specdec none", "generate")]
    drafter = DraftModel(pair.draft, sampling)
    for k in (int(k) for k in args.k.split(",")):
        arms[f"assisted K {k}"] = transformers_arm(pair, k, args.tokens, args.temperature)
        arms[f"specdec K {k}"] = specdec_arm(pair, drafter, k, args.tokens, sampling)
        rows += [(f"specdec K {k}", f"assisted K {k}"), (f"specdec K {k}", "specdec none")]
    speeds = measure(arms, prompts, args.turns)

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


if __name__ == "__main__":
    main()
