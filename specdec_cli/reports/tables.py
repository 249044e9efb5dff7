"""Records as text and tables for a person."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from specdec_cli.reports.fitting import natural_width, unbroken

if TYPE_CHECKING:
    from specdec_cli.presets import Preset


def generation_summary(record: dict[str, Any], verbose: bool = True) -> Text:
    """One generation in a few lines, none of them longer than a terminal of 80 columns.

    Args:
        verbose: alpha and the sources too.
    """
    timings = record["timings"]
    speed = timings["tokens_per_s"]
    head = f"{_count(record['new_tokens'], 'token')} in {_seconds(timings['decode_s'])}"
    if speed:
        head += f", {speed:.1f} tokens/s"
    lines = [head + f"; prompt {_count(record['prompt_tokens'], 'token')} in {_seconds(timings['prefill_s'])}"]
    if record["drafted"]:
        accepted = f"{record['accepted']} of {_count(record['drafted'], 'drafted token')} accepted"
        rounds = f"{_count(record['rounds'], 'round')}, {record['tokens_per_round']:.2f} tokens a round"
        known = verbose and record["alpha"] is not None
        alpha = f"; alpha {record['alpha']:.2f} of the {record['judged']:,} judged" if known else ""
        lines += [rounds, accepted + alpha]
        for name, counts in record.get("sources", {}).items() if verbose else ():
            lines.append(
                f"{name}: {counts['accepted']} of {_count(counts['drafted'], 'token')} accepted in "
                f"{_count(counts['rounds'], 'round')}"
            )
        shares = [(name, timings[f"{name}_s"]) for name in ("draft", "verify", "other")]
        total = sum(seconds for _, seconds in shares) or 1.0
        lines.append("time: " + ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in shares))
    return Text("\n".join(lines))


class PresetsList:
    """Every preset a row; where that is too wide, a few lines each. Names and ids stay whole, to be copied."""

    def __init__(self, presets: Iterable[Preset]) -> None:
        self._presets = list(presets)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        table = self._table()
        if natural_width(console, options, table) <= options.max_width:
            yield table
            return
        for preset in self._presets:
            facts = ", ".join(filter(None, (_licence(preset), _memory(preset))))
            yield Text.assemble((preset.name, "bold"), (f"  {facts}", "dim"))
            yield unbroken(f"  target {_model(preset.target, preset.target_parameters)}")
            yield unbroken(f"  draft  {_model(preset.draft, preset.draft_parameters)}")

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("preset", "target", "draft", "licence", "memory"):
            table.add_column(heading, justify="right" if heading == "memory" else "left", no_wrap=True)
        for preset in self._presets:
            table.add_row(
                Text(preset.name, style="bold"),
                _model(preset.target, preset.target_parameters),
                _model(preset.draft, preset.draft_parameters),
                _licence(preset),
                _memory(preset),
            )
        return table


def _model(name: str, parameters: float | None) -> str:
    if parameters is None:
        return name
    return f"{name} ({parameters:.3g} B)" if parameters >= 0.1 else f"{name} ({parameters * 1000:.3g} M)"


def _licence(preset: Preset) -> str:
    return preset.license + (" (gated)" if preset.gated else "")


def _memory(preset: Preset) -> str:
    return "" if preset.memory_gb is None else _gigabytes(preset.memory_gb)


def _gigabytes(gigabytes: float) -> str:
    return f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{gigabytes * 1000:.0f} MB"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
