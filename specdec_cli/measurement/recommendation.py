"""Which of the measured points to use: the best one, or a smaller K that is as good within the noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_cli.measurement.summary import ALL


def mark_best(results: Sequence[dict[str, Any]]) -> None:
    """Set `best`, `predicted_best` and `closed_form_best` in every result over all prompts, for each draft apart.

    Best is the smallest K whose interval reaches the highest speedup; predicted are the highest by either form.
    """
    for result in results:
        result |= {"best": False, "predicted_best": False, "closed_form_best": False}
    for points in _groups(results):
        _best_of(points)["best"] = True
        for mark, form in (("predicted_best", "extended"), ("closed_form_best", "closed_form")):
            known = [r for r in points if r["predicted"][form] is not None]
            if known:
                max(known, key=lambda r: r["predicted"][form])[mark] = True


def recommend(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each temperature the point to use, as {temperature, draft, k, speedup, speedup_ci, pays}.

    `pays` is None where the interval holds 1: no gain could be told from none.
    """
    found = []
    whole = [r for r in results if r["category"] == ALL]
    for temperature in dict.fromkeys(r["temperature"] for r in whole):
        point = _best_of([r for r in whole if r["temperature"] == temperature])
        low, high = point["speedup_ci"] or (point["speedup"], point["speedup"])
        kept = {key: point[key] for key in ("temperature", "draft", "k", "speedup", "speedup_ci")}
        found.append(kept | {"pays": True if low > 1 else False if high < 1 else None})
    return found


def _groups(results: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    whole = [r for r in results if r["category"] == ALL]
    keys = dict.fromkeys((r["draft"], r["temperature"]) for r in whole)
    return [[r for r in whole if (r["draft"], r["temperature"]) == key] for key in keys]


def _best_of(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    highest = max(points, key=lambda r: r["speedup"])
    as_good = [r for r in points if r["speedup_ci"] is not None and r["speedup_ci"][1] >= highest["speedup"]]
    # Another draft is another matter: its smaller K is no cheaper for being smaller.
    return min([r for r in as_good if r["draft"] == highest["draft"]] or [highest], key=lambda r: r["k"])
