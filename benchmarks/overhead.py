"""What a round costs beyond its forwards: round time over (K x draft forward + verify forward), measured bare.

The bare forwards are transformers' own calls on the same models and the same kind of cache, at the same length of
context, with nothing around them. One round and one set of bare forwards alternate, so that a drift hits both; the
figure is the median of the ratios, with the 10th and 90th percentile.

    python benchmarks/overhead.py                                                     # the demo pair
    python benchmarks/overhead.py -t TARGET -d DRAFT --k 1,2,4,8 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.runtime.caches.buffered import buffered_cache
from specdec_cli.runtime.devices import clock_for
from specdec_cli.runtime.pairs.pair import Pair, load_pair
from specdec_cli.settings import ModelSettings, SamplingSettings

PROMPT = "def read_lines(path):\n    with open(path) as file:\n"


class Bare:
    """A model's forward and nothing else, at a given length of context."""

    def __init__(self, model: Any, context: list[int]) -> None:
        self._model = model
        self._cache = buffered_cache(model.config)
        self._cache.activate_past_recording()
        self._model(input_ids=torch.tensor([context], device=model.device), cache=self._cache, use_cache=True)

    def forward(self, num_tokens: int) -> None:
        """One pass over `num_tokens` tokens, all logits, and back."""
        ids = torch.zeros(1, num_tokens, dtype=torch.long, device=self._model.device)
        self._model(input_ids=ids, cache=self._cache, use_cache=True, logits_to_keep=num_tokens)

    def back(self, num_tokens: int) -> None:
        """Forget them."""
        self._cache.crop(-num_tokens)


@torch.inference_mode()
def ratios(pair: Pair, k: int, rounds: int, sampling: SamplingSettings) -> tuple[list[float], list[float]]:
    """Of each round: its time over the bare forwards' time, and its time outside the models' passes over the same."""
    assert pair.draft is not None
    assert pair.draft_checkpoint is not None
    clock = clock_for(*pair.devices)
    prompt = pair.encode([{"role": "user", "content": PROMPT}], raw=False)
    target, draft = (Bare(c.model, prompt) for c in (pair.checkpoint, pair.draft_checkpoint))
    drafter = DraftModel(pair.draft, sampling)
    found: list[float] = []
    outside: list[float] = []
    while len(found) < rounds:
        generation = Generation(
            pair.target, drafter, prompt, num_draft_tokens=k, sampling=sampling, stopping=Stopping(64), clock=clock
        )
        for step in generation:
            if step.cut:
                break
            started = clock()
            for _ in range(k):
                draft.forward(1)
            target.forward(k + 1)
            bare = clock() - started
            draft.back(k)
            target.back(k + 1)
            found.append((step.draft_s + step.verify_s + step.other_s) / bare)
            outside.append(step.other_s / bare)
    return found[2:], outside[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-t", "--target", default="demo:target")
    parser.add_argument("-d", "--draft", default="demo:draft")
    parser.add_argument("--k", default="1,2,4,8", help="comma-separated")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    console = Console()
    started = time.perf_counter()
    target, draft = (ModelSettings(source, dtype=args.dtype) for source in (args.target, args.draft))
    pair = load_pair(target, draft, console.print)
    sampling = SamplingSettings(temperature=args.temperature)
    table = Table("K", "round / bare forwards", "10 % to 90 %", "outside the passes")
    for k in (int(k) for k in args.k.split(",")):
        found, outside = (torch.tensor(values) for values in ratios(pair, k, args.rounds, sampling))
        low, high = found.quantile(0.1), found.quantile(0.9)
        table.add_row(str(k), f"{found.median():.3f}", f"{low:.3f} to {high:.3f}", f"{outside.median():.1%}")
    console.print(
        f"{args.target}, draft {args.draft}, {str(pair.checkpoint.dtype).removeprefix('torch.')}, temperature "
        f"{args.temperature:g}, {args.rounds} rounds each, {torch.get_num_threads()} threads, "
        f"{time.perf_counter() - started:.0f} s in all"
    )
    console.print(table)


if __name__ == "__main__":
    main()
