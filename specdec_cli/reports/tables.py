"""Records as text and tables for a person."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from specdec_cli.presets import Preset


def generation_summary(record: dict[str, Any]) -> Text:
    """One generation in a few lines, none of them longer than a terminal of 80 columns."""
    timings = record["timings"]
    speed = timings["tokens_per_s"]
    head = f"{_count(record['new_tokens'], 'token')} in {_seconds(timings['decode_s'])}"
    if speed:
        head += f", {speed:.1f} tokens/s"
    lines = [head + f"; prompt {_count(record['prompt_tokens'], 'token')} in {_seconds(timings['prefill_s'])}"]
    if record["drafted"]:
        accepted = f"{record['accepted']} of {_count(record['drafted'], 'drafted token')} accepted"
        alpha = "" if record["alpha"] is None else f"; alpha {record['alpha']:.2f} of the {record['judged']:,} judged"
        rounds = f"{_count(record['rounds'], 'round')}, {record['tokens_per_round']:.2f} tokens a round"
        lines += [rounds, accepted + alpha]
        for name, counts in record.get("sources", {}).items():
            lines.append(
                f"{name}: {counts['accepted']} of {_count(counts['drafted'], 'token')} accepted in "
                f"{_count(counts['rounds'], 'round')}"
            )
        shares = [(name, timings[f"{name}_s"]) for name in ("draft", "verify", "other")]
        total = sum(seconds for _, seconds in shares) or 1.0
        lines.append("time: " + ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in shares))
    return Text("\n".join(lines))


def presets_table(presets: Iterable[Preset]) -> Table:
    """Every preset a row."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (
        ("preset", "left"), ("target", "left"), ("draft", "left"), ("licence", "left"), ("memory", "right"),
    ):  # fmt: skip
        name = heading == "preset"  # what a user types must stay whole
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=name)  # type: ignore[arg-type]
    for preset in presets:
        licence = preset.license + (" (gated)" if preset.gated else "")
        memory = "" if preset.memory_gb is None else f"{_gigabytes(preset.memory_gb)}"
        table.add_row(
            Text(preset.name, style="bold"),
            _model(preset.target, preset.target_parameters),
            _model(preset.draft, preset.draft_parameters),
            licence,
            memory,
        )
    return table


def _model(name: str, parameters: float | None) -> Text:
    text = Text(name)
    if parameters is not None:
        size = f"{parameters:.3g} B" if parameters >= 0.1 else f"{parameters * 1000:.3g} M"
        text.append(f"\n{size}", style="dim")
    return text


def _gigabytes(gigabytes: float) -> str:
    return f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{gigabytes * 1000:.0f} MB"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
