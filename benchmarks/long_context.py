"""Does a step get dearer as the context grows, beyond what attention itself must read?

One-token steps of one model (random weights in SmolLM2-135M's shape, unless -t names another) at several lengths of
context, through specdec's buffered cache and through transformers' own, which concatenates; and attention alone: the
same scaled_dot_product_attention calls on tensors of the same shapes, once a layer. What is left of a step without its
attention should be flat. All are measured in turn, the medians of many repetitions.

    python benchmarks/long_context.py
    python benchmarks/long_context.py -t TARGET --dtype bfloat16 --lengths 128,1024,4096
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache, LlamaConfig, PreTrainedModel

from specdec_cli.runtime.caches.buffered import buffered_cache
from specdec_cli.runtime.checkpoints.dummy import dummy_model
from specdec_cli.runtime.checkpoints.load import load_checkpoint
from specdec_cli.runtime.devices import clock_for
from specdec_cli.settings import ModelSettings

SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 16384, "tie_word_embeddings": True,
}  # fmt: skip


def filled(cache: Any, model: PreTrainedModel, length: int) -> Any:
    """The cache, holding `length` tokens of noise."""
    config: Any = model.config.get_text_config(decoder=True)
    heads = config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        states = torch.randn(1, heads, length, width, dtype=model.dtype, device=model.device)
        cache.update(states, states.clone(), layer)
    return cache


def step_of(model: PreTrainedModel, cache: Any) -> Callable[[], None]:
    """One token through the model, and back."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    forward: Any = model

    def step() -> None:
        forward(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        cache.crop(-1)

    return step


def attention_of(model: PreTrainedModel, length: int) -> Callable[[], None]:
    """A layer's attention, for every layer, on tensors of its own."""
    config: Any = model.config.get_text_config(decoder=True)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def noise(heads: int, tokens: int) -> torch.Tensor:
        return torch.randn(1, heads, tokens, width, dtype=model.dtype, device=model.device)

    query = noise(config.num_attention_heads, 1)
    layers = [[noise(config.num_key_value_heads, length + 1) for _ in "kv"] for _ in range(config.num_hidden_layers)]

    def attend() -> None:
        for keys, values in layers:
            F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    return attend


@torch.inference_mode()
def measure(model: PreTrainedModel, lengths: list[int], repetitions: int) -> list[tuple[int, list[float]]]:
    """Seconds of (buffered step, transformers' step, attention alone) at each length."""
    clock = clock_for(model.device)
    found = []
    for length in lengths:
        arms = [
            step_of(model, filled(buffered_cache(model.config), model, length)),
            step_of(model, filled(DynamicCache(config=model.config), model, length)),
            attention_of(model, length),
        ]
        seconds: list[list[float]] = [[] for _ in arms]
        for _ in range(repetitions + 2):
            for arm, kept in zip(arms, seconds, strict=True):
                started = clock()
                arm()
                kept.append(clock() - started)
        found.append((length, [median(kept[2:]) for kept in seconds]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-t", "--target", help="folder, .gguf or hub id; default: random weights in SmolLM2's shape")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--lengths", default="128,1024,4096,8192", help="comma-separated")
    parser.add_argument("--repetitions", type=int, default=20)
    args = parser.parse_args()
    console = Console()
    started = time.perf_counter()
    if args.target:
        model = load_checkpoint(ModelSettings(args.target, dtype=args.dtype), "target", console.print).model
    else:
        model = dummy_model(LlamaConfig(**SMOLLM2), getattr(torch, args.dtype), torch.device("cpu"), False)
    rows = measure(model, [int(n) for n in args.lengths.split(",")], args.repetitions)
    table = Table("context", "step, ms", "attention, ms", "the rest, ms", "over the shortest", "transformers' step, ms")
    base = rows[0][1][0] - rows[0][1][2]
    for length, (buffered, concatenated, attention) in rows:
        rest = buffered - attention
        table.add_row(
            f"{length:,}", f"{buffered * 1e3:.2f}", f"{attention * 1e3:.2f}", f"{rest * 1e3:.2f}",
            f"{rest / base:.2f}", f"{concatenated * 1e3:.2f}",
        )  # fmt: skip
    console.print(table)
    console.print(f"{args.dtype}, {torch.get_num_threads()} threads, {time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
