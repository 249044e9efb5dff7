"""What a GPU makes of speculation, in minutes and without a download: one script for whoever has one.

An 8B-shaped target and a 1B-shaped draft with random weights in bfloat16, and the demo pair. On a machine without CUDA
the shapes are small and what is recorded is merely run again, so that the script itself is checked.

Acceptance is simulated on random weights, so that the costs do not hang on what these say. Printed, without recordings
and with them: plain decoding against the bandwidth floor (the weights' bytes over the measured copy bandwidth); and for
each K c, v and o, the round over K bare draft forwards and a bare verify forward, the speedup, and that over the
extended form's. Then what recordings cost, and whether they give the texts that rounds without them give at
temperature 0. Writes JSON.

    python benchmarks/gpu_check.py --output gpu.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import LlamaConfig

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.measurement.arms import Arm, LoopArm
from specdec_cli.measurement.benchmark import Contest, Session, benchmark, warm_up
from specdec_cli.measurement.hardware import copy_bandwidth, environment, peak_memory
from specdec_cli.measurement.summary import results
from specdec_cli.runtime.checkpoints.checkpoint import step_bytes
from specdec_cli.runtime.checkpoints.dummy import dummy_model
from specdec_cli.runtime.devices import clock_for
from specdec_cli.runtime.models.cuda_graphs import CudaRecorder
from specdec_cli.runtime.models.graphs import Graphs, Recorder, stopped_while_recording
from specdec_cli.runtime.models.static_model import StaticModel
from specdec_cli.runtime.pairs.pair import load_pair
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
KS = range(1, 9)
PROMPT_TOKENS, SIMULATED = 128, 0.8
FORWARDS = 12  # of which the median is the bare cost
COMPARED_K = 4
GREEDY = SamplingSettings(temperature=0.0)


@dataclass(frozen=True)
class Noise:
    """A prompt of random ids."""

    ids: tuple[int, ...]
    category: str = ""
    turns: int = 1

    def prompt_ids(self, answers: Sequence[Sequence[int]]) -> Sequence[int]:
        return self.ids


class Rerun:
    """A recorder that runs the function again: a graph's shapes and kernels, one by one."""

    def record(self, function: Callable[[], tuple[Tensor, ...]], generator: torch.Generator) -> Rerun:
        self._function = function
        self.outputs = function()
        return self

    def replay(self, generator: torch.Generator) -> None:
        for kept, made in zip(self.outputs, self._function(), strict=True):
            kept.copy_(made)


class Reruns:
    """One for each recording."""

    def record(self, function: Callable[[], tuple[Tensor, ...]], generator: torch.Generator) -> Rerun:
        return Rerun().record(function, generator)


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        shapes: configurations of target and draft.
        new_tokens: for each prompt.
    """

    shapes: dict[str, dict[str, Any]]
    prompts: int
    new_tokens: int


ON_GPU, ON_CPU = Size(LARGE, 3, 64), Size(SMALL, 1, 16)


@dataclass(frozen=True)
class Models:
    """A pair whose recordings can be put in and taken out.

    Attributes:
        read: bytes that a target's step reads.
    """

    target: StaticModel
    draft: StaticModel
    read: int
    size: Size
    report: Callable[[str], None]

    def record(self, make: Callable[[], Recorder] | None) -> list[Graphs]:
        """Rounds are recorded from here on, or no longer."""
        made = []
        for model, name in ((self.target, "target"), (self.draft, "draft")):
            model.repeater = graphs = None if make is None else Graphs(model, make(), self.report, name)
            made += [] if graphs is None else [graphs]
        return made

    def clock(self) -> Callable[[], float]:
        """Seconds, without those spent recording."""
        return stopped_while_recording(clock_for(self.target.device), (self.target, self.draft))

    def prompts(self) -> list[Noise]:
        """Random ids, the same at each call."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(1, self.target.vocab_size, (self.size.prompts, PROMPT_TOKENS), generator=generator)
        return [Noise(tuple(row)) for row in ids.tolist()]


@torch.inference_mode()
def bare_s(models: Models, model: StaticModel, num_tokens: int) -> float:
    """Seconds of a forward and nothing else, recorded where the rounds are."""
    clock = models.clock()
    generator = torch.Generator(model.device)
    model.reset()
    model.forward(torch.tensor(models.prompts()[0].ids, device=model.device), num_logits=1)
    ids = torch.zeros(num_tokens, dtype=torch.long, device=model.device)

    def forward(ids: Tensor) -> tuple[Tensor]:
        return (model.forward(ids, num_logits=num_tokens),)

    seconds = []
    for _ in range(FORWARDS + 3):
        started = clock()
        repeater = model.repeater
        if repeater is None or repeater.repeat("bare", forward, [ids], num_tokens, generator) is None:
            forward(ids)
        seconds.append(clock() - started)
        model.roll_back(num_tokens)
    return median(seconds[3:])


def measure(models: Models, simulated: float | None) -> dict[str, Any]:
    """Every K from 1 to 8 beside plain decoding, in turn, on random prompts."""
    target, clock = models.target, models.clock()
    drafter = DraftModel(models.draft, GREEDY)
    arms: list[Arm] = [LoopArm("draft", k, target, drafter, GREEDY, clock, simulated_acceptance=simulated) for k in KS]
    contest = Contest(LoopArm(NO_DRAFT, 0, target, NoDrafter(target.device), GREEDY, clock), arms, GREEDY)
    prompts = models.prompts()
    new_tokens = models.size.new_tokens
    warm_up(contest, prompts[0], new_tokens)
    session = Session()
    benchmark(
        {0.0: contest}, prompts, target=target, rounding=None, max_new_tokens=new_tokens, seed=0, session=session,
        on_run=lambda _: None,
    )  # fmt: skip
    draft_s, step_s = bare_s(models, models.draft, 1), bare_s(models, target, 1)
    by_k = []
    for r in results(session.runs):
        k, cost = r["k"], r["cost"]
        round_s = k * cost["draft_step_s"] + cost["verify_s"] + cost["other_s"]
        verify_s = bare_s(models, target, k + 1)
        bare = k * draft_s + verify_s
        by_k.append(
            {
                "k": k, "speedup": r["speedup"], "tokens_per_s": r["speculative_tokens_per_s"],
                # By bare forwards: a recording holds sampling and judgement too, and does not tell them apart.
                "c": draft_s / step_s, "v": verify_s / step_s, "o": (round_s - bare) / step_s,
                "round_s": round_s, "bare_s": bare, "round_over_bare": round_s / bare,
                "measured_over_extended": r["predicted"]["measured_over_extended"],
            }
        )  # fmt: skip
    step = min(r["cost"]["target_step_s"] for r in results(session.runs))
    copied = copy_bandwidth(target.device, clock)
    return {
        "step_bytes": models.read,
        "copy_bytes_per_s": copied,
        "floor_s": models.read / copied,
        "target_step_s": step,
        "bare_step_s": step_s,
        "share_of_bandwidth": models.read / copied / step,
        "by_k": by_k,
    }


def texts(models: Models) -> list[list[int]]:
    """Greedy ids, plain and speculative."""
    found = []
    for prompt in models.prompts():
        for drafter, k in ((NoDrafter(models.target.device), 0), (DraftModel(models.draft, GREEDY), COMPARED_K)):
            generation = Generation(
                models.target, drafter, prompt.ids, num_draft_tokens=k, sampling=GREEDY,
                stopping=Stopping(models.size.new_tokens),
            )  # fmt: skip
            for _ in generation:
                pass
            found.append(generation.token_ids)
    return found


def check(models: Models, make: Callable[[], Recorder], simulated: float | None) -> dict[str, Any]:
    """All figures of one pair, and whether recordings change a text."""
    found: dict[str, Any] = {}
    models.record(None)
    found["eager"] = measure(models, simulated)
    eager = texts(models)
    models.record(Reruns)
    rerun = texts(models)
    recordings = models.record(make)
    found["graphs"] = measure(models, simulated)
    recorded = texts(models)
    return found | {
        "recordings": sum(map(len, recordings)),
        "record_s": sum(graphs.record_s for graphs in recordings),
        "off": [graphs.off for graphs in recordings if graphs.off],
        # The same kernels one by one give the same text in any number type, other kernels in float32.
        "texts": len(recorded),
        "same_as_rerun": sum(a == b for a, b in zip(recorded, rerun, strict=True)),
        "same_as_eager": sum(a == b for a, b in zip(recorded, eager, strict=True)),
    }


def show(console: Console, name: str, found: dict[str, Any]) -> None:
    """One pair's tables."""
    for how in ("eager", "graphs"):
        plain = found[how]
        floor, bandwidth = plain["floor_s"] * 1e3, plain["copy_bytes_per_s"] / 1e9
        console.print(
            f"{name}, {how}: a plain step {plain['target_step_s'] * 1e3:.2f} ms (bare {plain['bare_step_s'] * 1e3:.2f}"
            f"), its weights' bytes {floor:.2f} ms at {bandwidth:.0f} GB/s: {plain['share_of_bandwidth']:.0%}"
        )
        table = Table("K", "tokens/s", "speedup", "c", "v", "o", "round / bare forwards", "measured / extended")
        for r in plain["by_k"]:
            figures = ("speedup", "c", "v", "o", "round_over_bare", "measured_over_extended")
            table.add_row(str(r["k"]), f"{r['tokens_per_s']:.0f}", *(f"{r[key]:.3f}" for key in figures))
        console.print(table)
    console.print(
        f"{found['recordings']} recordings in {found['record_s']:.1f} s; of {found['texts']} greedy texts "
        f"{found['same_as_rerun']} are those of the same kernels one by one, {found['same_as_eager']} those without"
    )


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

    def make() -> Recorder:
        return CudaRecorder(device) if cuda else Reruns()

    size = ON_GPU if cuda else ON_CPU
    dtype = torch.bfloat16 if cuda else torch.float32
    made = {role: dummy_model(LlamaConfig(**shape), dtype, device, False) for role, shape in size.shapes.items()}
    rows = int(size.shapes["target"]["vocab_size"])
    target, draft = (StaticModel(made[role], rows, role=role) for role in ("target", "draft"))
    record: dict[str, Any] = {"environment": environment(device), "cuda": cuda, "simulated_acceptance": SIMULATED}
    record["dummy"] = check(Models(target, draft, step_bytes(made["target"]), size, console.print), make, SIMULATED)
    show(console, "8B and 1B, random weights" if cuda else "small, random weights", record["dummy"])
    del target, draft, made
    big, small = (
        ModelSettings(source, device=str(device), dtype="float32") for source in ("demo:target", "demo:draft")
    )
    pair = load_pair(big, small, console.print)
    if pair.draft is None:
        raise SystemExit("the demo pair has no draft")
    target, draft = (StaticModel(model.model, model.vocab_size) for model in (pair.target, pair.draft))
    demo = Models(target, draft, pair.checkpoint.step_bytes, size, console.print)
    record["demo"] = check(demo, make, None)
    show(console, "the demo pair in float32", record["demo"])
    record |= {"peak_bytes": peak_memory(device), "seconds": time.perf_counter() - started}
    console.print(f"peak memory {(record['peak_bytes'] or 0) / 1e9:.1f} GB, {record['seconds']:.0f} s in all")
    if args.output:
        args.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    found = record["dummy"], record["demo"]
    same = [pair["same_as_rerun"] for pair in found] + [record["demo"]["same_as_eager"]]
    if same != [pair["texts"] for pair in (*found, record["demo"])]:
        raise SystemExit("recordings changed a text: this is a fault, please report it with the JSON")


if __name__ == "__main__":
    main()
