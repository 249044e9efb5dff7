"""What a benchmark is going to measure, and for how long, in lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from specdec_cli.quantities import counted
from specdec_cli.settings import KChoice


def plan_lines(
    *,
    arms: Mapping[float, Sequence[tuple[str, KChoice]]],
    answers: int,
    tokens: int,
    runs: int,
    known: int,
    resume: Path | None,
    seconds: float,
) -> list[str]:
    """A line for each temperature, and one for all.

    Args:
        arms: (name, K) of what stands against plain decoding, by temperature.
        answers, tokens: answers at each temperature, and tokens of each.
        runs: of all arms and temperatures.
        known: of these, what the file `resume` holds already.
        seconds: that the others will take.
    """
    lines = []
    for temperature, against in arms.items():
        named = ", ".join(name + (f" K {k}" if k else "") for name, k in against)
        lines.append(f"temperature {temperature:g}: plain decoding against {named}")
    done = f", {known} of them in {resume} already" if known else ""
    lines.append(f"{counted(answers, 'answer')} of {tokens} tokens each, {runs} runs{done}: about {duration(seconds)}")
    return lines


def duration(seconds: float) -> str:
    """`80 s`, `12 min`, `1.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
