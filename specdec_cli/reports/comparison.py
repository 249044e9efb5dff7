"""Two measurements side by side, for a person: what differs, a row for each figure, and what follows, last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_cli.quantities import counted

FIGURES = (("speedup", "speedup"), ("tokens_per_s", "tokens/s"), ("plain_tokens_per_s", "plain tokens/s"))
Row = Mapping[str, Any]


def comparison_report(document: Mapping[str, Any]) -> Group:
    """Everything that `specdec compare` shows."""
    parts: list[RenderableType] = []
    for letter in ("a", "b"):
        where = f"{document['settings'][letter]}: {document[letter]['target']} on {document[letter]['machine']}"
        parts.append(Text.assemble((f"{letter.upper()}  ", "dim"), where))
    parts.append(_differences(document["differences"]))
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in document["rows"]:
        key = tuple(row[letter][part] for part in ("draft", "temperature") for letter in ("a", "b"))
        groups.setdefault(key, []).append(row)
    for (draft_a, draft_b, t_a, t_b), rows in groups.items():
        head = f"draft {_both(draft_a, draft_b)}, temperature {_both(f'{t_a:g}', f'{t_b:g}')}"
        parts += [Text(), Text(head, style="bold"), _table(rows)]
    for letter in ("a", "b"):
        if points := document[f"only_in_{letter}"]:
            parts.append(Text(f"only in {letter.upper()}: {'; '.join(map(_point, points))}", style="dim"))
    if not document["paired"] and groups:
        parts.append(Text("The prompts are not the same: means are compared, not answers one by one.", style="dim"))
    elif shared := _shared(document["rows"]):
        parts.append(Text(shared, style="dim"))
    if not groups:
        parts.append(Text("No point is in both: measure the same draft, K and temperature in both.", style="bold"))
    for rows in groups.values():
        parts.append(Text(_verdict(rows, len(groups) > 1), style="bold"))
    return Group(*parts)


def _differences(found: Sequence[Row]) -> RenderableType:
    if not found:
        return Text("Machine, versions and settings are the same.", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("differs", "A", "B"):
        table.add_column(heading, overflow="fold")
    for one in found:
        table.add_row(Text(one["key"].removeprefix("settings.")), Text(_told(one["a"])), Text(_told(one["b"])))
    return table


def _told(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_told, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("K", "", "A", "B", "B/A", "95 %"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for number, row in enumerate(rows):
        if number:
            table.add_section()
        for i, (key, name) in enumerate(FIGURES):
            k = "" if i else _both(str(row["a"]["k"]), str(row["b"]["k"]))
            digits = 2 if key == "speedup" else 1
            values = (f"{row[letter][key]:.{digits}f}" for letter in ("a", "b"))
            table.add_row(k, name, *values, f"{row[key]['ratio']:.2f}", _interval(row[key]["ratio_ci"]))
    return table


def _verdict(rows: Sequence[Row], several: bool) -> str:
    """How B's speed of speculation stands to A's, at each K."""
    first = rows[0]
    said: dict[str, list[str]] = {}
    for row in rows:
        said.setdefault(_outcome(row), []).append(_both(str(row["a"]["k"]), str(row["b"]["k"])))
    text = "; ".join(f"{outcome} at K {', '.join(ks)}" for outcome, ks in said.items())
    measured = first["a"]["measurable"] and first["b"]["measurable"]
    if len(rows) == 1 and measured and (interval := first["tokens_per_s"]["ratio_ci"]):
        ratio = first["tokens_per_s"]["ratio"]
        text += f": {ratio:.2f} of A's tokens a second (95 %: {interval[0]:.2f} to {interval[1]:.2f})"
    text = text[:1].upper() + text[1:] + "."
    if not several:
        return text
    return f"{_both(first['a']['draft'], first['b']['draft'])}, temperature {first['a']['temperature']:g}: {text}"


def _shared(rows: Sequence[Row]) -> str:
    """That only some answers are in both; empty where all are."""
    fewest = min((row["tokens_per_s"]["answers"] for row in rows), default=0)
    most = max((row[letter]["prompts"] for row in rows for letter in ("a", "b")), default=0)
    return f"B/A is over the {counted(fewest, 'answer')} that both have, not over all." if fewest < most else ""


def _outcome(row: Row) -> str:
    doubtful = [letter.upper() for letter in ("a", "b") if not row[letter]["measurable"]]
    if doubtful:
        return f"{' and '.join(doubtful)} could not be measured"
    interval = row["tokens_per_s"]["ratio_ci"]
    if interval is None:
        return "one answer cannot tell a difference"
    low, high = interval
    return "B is faster" if low > 1 else "B is slower" if high < 1 else "no difference that could be told from none"


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a} | {b}"


def _point(point: Row) -> str:
    return f"{point['draft']} at K {point['k']}, temperature {point['temperature']:g}"


def _interval(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.2f}-{interval[1]:.2f}"
