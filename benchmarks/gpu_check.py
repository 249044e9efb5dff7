"""What a GPU makes of speculation, in minutes and without a download: one script for whoever has one.

An 8B-shaped target and a 1B-shaped draft with random weights in bfloat16 (on a machine without CUDA: small shapes, on
the CPU, so that the script itself is checked). Acceptance is simulated, so that the costs do not hang on what random
models say: plain decoding against the bandwidth floor (the weights' bytes over the measured copy bandwidth), c, and for
each K v, o and the measured speedup over the extended form's. Then the demo pair as it is. Writes JSON.

    python benchmarks/gpu_check.py --output gpu.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig

from specdec_cli.decoding.model import CachedModel
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.measurement.benchmark import Arm, Contest, LoopArm, Session, benchmark, warm_up
from specdec_cli.measurement.hardware import copy_bandwidth, environment, peak_memory
from specdec_cli.measurement.summary import results
from specdec_cli.runtime.devices import clock_for
from specdec_cli.runtime.dummy import dummy_model
from specdec_cli.runtime.kv_cache import TransformersModel
from specdec_cli.runtime.loading import step_bytes
from specdec_cli.runtime.pair import load_pair
from specdec_cli.settings import NO_DRAFT, ModelSettings, SamplingSettings

# Llama 3's shapes: 8B, and 1B of the same vocabulary.
LARGE = {
    "target": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    },
    "draft": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
SMALL = {
    "target": {
        "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    },
    "draft": {
        "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
PROMPT_TOKENS, NEW_TOKENS, PROMPTS, SIMULATED = 128, 64, 3, 0.8


@dataclass(frozen=True)
class Noise:
    """A prompt of random ids."""

    ids: tuple[int, ...]
    category: str = ""
    turns: int = 1

    def prompt_ids(self, answers: Sequence[Sequence[int]]) -> Sequence[int]:
        return self.ids


def measure(
    target: CachedModel, draft: CachedModel, read: int, device: torch.device, simulated: float | None
) -> dict[str, Any]:
    """Every K from 1 to 8 beside plain decoding, in turn, on random prompts."""
    clock = clock_for(device)
    sampling = SamplingSettings(temperature=0.0)
    drafter = DraftModel(draft, sampling)
    arms: list[Arm] = [
        LoopArm("draft", k, target, drafter, sampling, clock, simulated_acceptance=simulated) for k in range(1, 9)
    ]
    contest = Contest(LoopArm(NO_DRAFT, 0, target, NoDrafter(device), sampling, clock), arms, sampling)
    generator = torch.Generator().manual_seed(0)
    prompts = [
        Noise(tuple(torch.randint(1, target.vocab_size, (PROMPT_TOKENS,), generator=generator).tolist()))
        for _ in range(PROMPTS)
    ]
    warm_up(contest, prompts[0], NEW_TOKENS)
    session = Session()
    benchmark(
        {0.0: contest}, prompts, target=target, rounding=None, max_new_tokens=NEW_TOKENS, seed=0, session=session,
        on_run=lambda _: None,
    )  # fmt: skip
    found = results(session.runs)
    copied = copy_bandwidth(device, clock)
    step = min(r["cost"]["target_step_s"] for r in found)
    return {
        "step_bytes": read,
        "copy_bytes_per_s": copied,
        "floor_s": read / copied,
        "target_step_s": step,
        "share_of_bandwidth": read / copied / step,
        "by_k": [
            {
                "k": r["k"], "speedup": r["speedup"], **{name: r["cost"][name] for name in ("c", "v", "o")},
                "round_over_passes": (r["k"] * r["cost"]["c"] + r["cost"]["v"] + r["cost"]["o"])
                / (r["k"] * r["cost"]["c"] + r["cost"]["v"]),
                "measured_over_extended": r["predicted"]["measured_over_extended"],
            }
            for r in found
        ],
    }  # fmt: skip


def show(console: Console, name: str, found: dict[str, Any]) -> None:
    """One table."""
    floor, bandwidth = found["floor_s"] * 1e3, found["copy_bytes_per_s"] / 1e9
    console.print(
        f"{name}: a plain step {found['target_step_s'] * 1e3:.2f} ms, its weights' bytes "
        f"{floor:.2f} ms at {bandwidth:.0f} GB/s: {found['share_of_bandwidth']:.0%}"
    )
    table = Table("K", "speedup", "c", "v", "o", "round / (K draft + verify)", "measured / extended")
    for r in found["by_k"]:
        figures = ("speedup", "c", "v", "o", "round_over_passes", "measured_over_extended")
        table.add_row(str(r["k"]), *(f"{r[key]:.3f}" for key in figures))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, help="write JSON there")
    args = parser.parse_args()
    console = Console()
    started = time.perf_counter()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    if not cuda:
        console.print("no CUDA here: small shapes on the CPU, which check the script and tell nothing of a GPU")
    dtype = torch.bfloat16 if cuda else torch.float32
    shapes = LARGE if cuda else SMALL
    models = {role: dummy_model(LlamaConfig(**shape), dtype, device, False) for role, shape in shapes.items()}
    size = int(shapes["target"]["vocab_size"])
    target, draft = (TransformersModel(models[role], size, role=role) for role in ("target", "draft"))
    record: dict[str, Any] = {"environment": environment(device), "cuda": cuda, "simulated_acceptance": SIMULATED}
    record["dummy"] = measure(target, draft, step_bytes(models["target"]), device, SIMULATED)
    show(console, "8B and 1B, random weights" if cuda else "small, random weights", record["dummy"])
    del target, draft, models
    big, small = (ModelSettings(source, device=str(device)) for source in ("demo:target", "demo:draft"))
    pair = load_pair(big, small, console.print)
    assert pair.draft is not None
    record["demo"] = measure(pair.target, pair.draft, pair.checkpoint.step_bytes, device, None)
    show(console, "the demo pair", record["demo"])
    record |= {"peak_bytes": peak_memory(device), "seconds": time.perf_counter() - started}
    console.print(f"peak memory {(record['peak_bytes'] or 0) / 1e9:.1f} GB, {record['seconds']:.0f} s in all")
    if args.output:
        args.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
