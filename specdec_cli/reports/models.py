"""What is here, for a person: a line a model, a line a pair, and the command to go on with, last.

Names stand last in a line that no table breaks, so that they can be copied from a terminal of any width.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from specdec_cli.quantities import counted


def models_text(document: Mapping[str, Any]) -> Text:
    """Everything that `specdec models` shows, to be printed without wrapping."""
    rows = [("size", "kind", "ids", "model"), *map(_row, document["models"])]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    text = Text()
    for number, (size, kind, ids, name) in enumerate(rows):
        line = f"{size:>{widths[0]}}  {kind:<{widths[1]}}  {ids:<{widths[2]}}  {name}\n"
        text.append(line, style="bold" if number == 0 else "")
    text.append("ids: models with one letter give every id that both have one meaning\n\n", style="dim")
    pairs = document["pairs"]
    if not pairs:
        text.append("No two of these make a pair: a draft needs the target's ids, and half its size or less.")
        return text
    text.append("size of draft to target\n", style="bold")
    for pair in pairs:
        text.append(f"{pair['size_ratio']:>4.0%}  {_options(pair)}\n")
    text.append(f"{counted(len(pairs), 'pair')} by tokenizer and size. Does the first pay?\n", style="bold")
    text.append(f"specdec pair-check {_options(pairs[0])}")
    return text


def _row(model: Mapping[str, Any]) -> Sequence[str]:
    kind = " ".join(filter(None, [model["kind"], model["stored"]]))
    gone = f", {counted(model['missing'], 'file')} missing" if model["missing"] else ""
    return _size(model["bytes"]), kind + gone, _letter(model["vocabulary"]), model["name"]


def _options(pair: Mapping[str, Any]) -> str:
    return f"-t {shlex.quote(pair['target'])} -d {shlex.quote(pair['draft'])}"


def _letter(number: int | None) -> str:
    """A, B ... Z, then AA; a question mark where it is not known."""
    if number is None:
        return "?"
    letters = ""
    while number > 0:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
