"""What a benchmark is going to load and measure, in lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from specdec_cli.quantities import counted
from specdec_cli.settings import KChoice


def load_line(role: str, source: str, size: int, dtype: str, device: object) -> str:
    """A model that would be loaded, and the bytes of its weights."""
    amount = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
    return f"load {role} {source}: {amount} in {dtype} on {device}"


def plan_lines(
    *,
    loads: Sequence[str],
    arms: Mapping[float, Sequence[tuple[str, KChoice]]],
    prompts: int,
    answers: int,
    tokens: int,
    runs: int,
    known: int,
    resume: Path | None,
) -> list[str]:
    """A line for each model and each temperature, and two for all.

    Args:
        loads: from `load_line`.
        arms: (name, K) of what stands against plain decoding, by temperature.
        prompts, answers, tokens: of the set, answers at each temperature, and tokens of each at most.
        runs: of all arms and temperatures.
        known: of these, what the file `resume` holds already, if it is of this session.
    """
    lines = list(loads)
    for temperature, against in arms.items():
        named = ", ".join(name + (f" K {k}" if k else "") for name, k in against)
        lines.append(f"temperature {temperature:g}: plain decoding against {named}")
    done = f", {known} of them in {resume} already" if known else ""
    lines.append(
        f"{counted(prompts, 'prompt')}, {counted(answers, 'answer')} of {tokens} tokens each, {runs} runs{done}"
    )
    rows = sum(len(against) for against in arms.values())
    lines.append(f"{counted(rows, 'row')} of results, {(runs - known) * tokens:,} tokens still to generate at most")
    return lines
