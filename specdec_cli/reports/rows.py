"""Lists of records as CSV and Markdown: nested records become flat, and a column is what any row has.

CSV keeps every digit, for programs; Markdown rounds to four, for people.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence

LEFT_OUT = "samples"  # raw measurements: hundreds a row, and JSON has them
INTERVALS = ("_ci", "_range")

_MARKDOWN_SPECIAL = re.compile(r"[\\|`*<]")


def flatten(record: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """A nested record as one row.

    `{"acceptance": {"alpha": 0.8}}` becomes `{"acceptance.alpha": 0.8}`, and an interval `speedup_ci: [low, high]`
    (or a `_range`) two columns, `speedup_ci_low` and `speedup_ci_high`, which are there, as None, also where it is
    None. Other lists stay lists; `samples` is left out.
    """
    row: dict[str, object] = {}
    for key, value in record.items():
        name = prefix + key
        if key == LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            row |= flatten(value, f"{name}.")
        elif key.endswith(INTERVALS):
            low, high = value if isinstance(value, (list, tuple)) else (None, None)
            row |= {f"{name}_low": low, f"{name}_high": high}
        else:
            row[name] = value
    return row


def columns_of(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Every key of any row, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def to_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Flat rows as CSV with a head line; the empty text where there are none.

    None is an empty cell, truth is `true` or `false`, a list is JSON in one cell, and a float has every digit.
    """
    if not rows:
        return ""
    names = columns_of(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    # A lone empty cell is quoted by the writer, so that no row reads as a blank line.
    writer.writerows([_plain(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def to_markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Flat rows as a Markdown table (GitHub's dialect), columns of numbers to the right; the empty text without rows.

    The source lines up too, so that it can be read as it is.
    """
    if not rows:
        return ""
    names = columns_of(rows)
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        right = all(value is None or _is_number(value) for value in values)
        cells = [_escaped(name), *(_escaped(_rounded(value)) for value in values)]
        width = max(3, *map(len, cells))
        rule = "-" * (width - 1) + (":" if right else "-")
        padded = [cell.rjust(width) if right else cell.ljust(width) for cell in cells]
        columns.append([padded[0], rule, *padded[1:]])
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*columns, strict=True))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _rounded(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_rounded, value))
    return _plain(value)


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return "<br>".join(_MARKDOWN_SPECIAL.sub(r"\\\g<0>", line) for line in text.splitlines())
