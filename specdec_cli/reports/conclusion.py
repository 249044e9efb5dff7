"""The answer, which ends every report: does it pay, at which K, how sure is that, and what to paste to have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from specdec_cli.reports import verdict
from specdec_cli.reports.fitting import Sentence, unbroken

HEADING = "Answer"


def conclusion(document: dict[str, Any]) -> list[RenderableType]:
    """Of a benchmark: an answer for each temperature; one for all where nothing was measured."""
    if not document.get("measurable", True):
        return answer([(verdict.not_measurable(document["reasons"]), None)])
    told = {p["temperature"]: (verdict.recommendation(p), p.get("command")) for p in document["recommendation"]}
    for r in document["results"]:
        if r["category"] == "all" and r["temperature"] not in told and not r.get("measurable", True):
            told[r["temperature"]] = (
                f"At temperature {r['temperature']:g}: {verdict.not_measurable(r['reasons'])}",
                None,
            )
    return answer(list(told.values()))


def answer(told: Sequence[tuple[str, str | None]]) -> list[RenderableType]:
    """Sentences, each with the command that follows from it, if any; nothing of none."""
    if not told:
        return []
    parts: list[RenderableType] = [Text(), Text(HEADING, style="bold underline")]
    for sentence, command in told:
        parts.append(Sentence(sentence, "bold"))
        if command:
            parts.append(unbroken(f"  {command}"))
    return parts
