"""The rounds of a trace for a person: what each answer came to, and how much of its drafts was accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from specdec_cli.quantities import counted

BAR = 40  # characters of the longest


def trace_report(rounds: Sequence[dict[str, Any]]) -> Group:
    """A row for each answer, and over all of them how many tokens a round accepted."""
    answers: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for one in rounds:
        answers.setdefault((one["prompt"], one["turn"]), []).append(one)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for heading in ("prompt", "turn", "tokens", "rounds", "tok/round", "drafted", "accepted", "alpha"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (prompt, turn), of in answers.items():
        table.add_row(str(prompt), str(turn), *_figures(of))
    if len(answers) > 1:
        table.add_section()
        table.add_row("all", "", *_figures(rounds))
    return Group(table, Text(_time(rounds)), Text(), Text(_accepted(rounds)))


def _figures(rounds: Sequence[dict[str, Any]]) -> list[str]:
    tokens = sum(len(one["token_ids"]) - one["withdrawn"] for one in rounds)
    whole = [one for one in rounds if not one["cut"]]
    accepted = sum(one["num_accepted"] for one in whole)
    judged = accepted + sum(one["num_accepted"] < len(one["draft_token_ids"]) for one in whole)
    drafted = sum(len(one["draft_token_ids"]) for one in rounds)
    return [
        f"{tokens:,}",
        f"{len(rounds):,}",
        f"{tokens / len(rounds):.2f}",
        f"{drafted:,}",
        f"{_text(rounds).count('accepted'):,}",
        f"{accepted / judged:.2f}" if judged else "",
    ]


def _text(rounds: Sequence[dict[str, Any]]) -> list[str]:
    """Where each token of the text came from, without those that a stop string took back."""
    provenance: list[str] = []
    for one in rounds:
        provenance[len(provenance) - one["withdrawn"] :] = one["provenance"]
    return provenance


def _seconds(one: dict[str, Any]) -> float:
    return float(one["draft_s"] + one["verify_s"] + one["other_s"])


def _time(rounds: Sequence[dict[str, Any]]) -> str:
    total = sum(map(_seconds, rounds)) or 1.0
    shares = (f"{name} {sum(one[f'{name}_s'] for one in rounds) / total:.0%}" for name in ("draft", "verify", "other"))
    tokens = sum(len(one["token_ids"]) - one["withdrawn"] for one in rounds)
    return f"{tokens / total:.1f} tokens/s; time: " + ", ".join(shares)


def _accepted(rounds: Sequence[dict[str, Any]]) -> str:
    """Bars: in how many rounds so many tokens were accepted."""
    counts = Counter(one["num_accepted"] for one in rounds if one["draft_token_ids"])
    if not counts:
        return "nothing was drafted"
    most = max(counts.values())
    lines = ["accepted a round:"]
    for number in range(max(counts) + 1):
        bar = "#" * round(BAR * counts[number] / most)
        lines.append(f"{number:>4} {bar} {counted(counts[number], 'round')}")
    return "\n".join(lines)
