"""Which of the measured points to use: the best one, or a smaller K that is as good within the noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_cli.measurement.statistics import geometric_mean
from specdec_cli.measurement.summary import ALL

# A smaller K that is so much slower is not as good, however wide the intervals are.
TIE = 0.03


def mark_best(results: Sequence[dict[str, Any]]) -> None:
    """Set `best`, `predicted_best` and `closed_form_best` in every result over all prompts, for each draft apart.

    Best is the highest speedup, or a smaller K that ties with it, of points that were measured; predicted are the
    highest by either form.
    """
    for result in results:
        result |= {"best": False, "predicted_best": False, "closed_form_best": False}
    for points in _groups(results):
        if measured := _measured(points):
            _best_of(measured)["best"] = True
        for mark, form in (("predicted_best", "extended"), ("closed_form_best", "closed_form")):
            known = [r for r in points if r["predicted"][form] is not None]
            if known:
                max(known, key=lambda r: r["predicted"][form])[mark] = True


def recommend(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each temperature the point to use, as {temperature, draft, k, speedup, speedup_ci, drafted, pays}.

    `pays` is None where the interval holds 1, and where one answer gives none: no gain could be told from none; False
    where nothing was drafted. Points
    that are no measurement (see `plausibility.judge`) are left out, and so is a temperature at which there is no other.
    """
    found = []
    whole = _measured([r for r in results if r["category"] == ALL])
    for temperature in dict.fromkeys(r["temperature"] for r in whole):
        point = _best_of([r for r in whole if r["temperature"] == temperature])
        low, high = point["speedup_ci"] or (0.0, float("inf"))
        kept = {key: point[key] for key in ("temperature", "draft", "k", "speedup", "speedup_ci", "drafted")}
        pays = None if low <= 1 <= high else low > 1
        found.append(kept | {"pays": pays if point["drafted"] else False})
    return found


def _groups(results: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    whole = [r for r in results if r["category"] == ALL]
    keys = dict.fromkeys((r["draft"], r["temperature"]) for r in whole)
    return [[r for r in whole if (r["draft"], r["temperature"]) == key] for key in keys]


def _measured(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are not known to be no measurement."""
    return [r for r in points if r.get("measurable", True)]


def _best_of(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    # What drafted nothing is plain decoding, and differs from it by chance.
    points = [r for r in points if r["drafted"]] or points
    highest = max(points, key=lambda r: r["speedup"])
    # Another draft is another matter: its smaller K is no cheaper for being smaller.
    rivals = [r for r in points if r["draft"] == highest["draft"] and r["speedup"] >= (1 - TIE) * highest["speedup"]]
    return min([r for r in rivals if _ties(r, highest)], key=lambda r: r["k"])


def _ties(result: dict[str, Any], highest: dict[str, Any]) -> bool:
    """Whether the answers, compared one by one, leave open which of two points is faster."""
    speeds = [
        {
            (s["prompt"], s["turn"]): s["new_tokens"] / (s["draft_s"] + s["verify_s"] + s["other_s"])
            for s in r["samples"]
        }
        for r in (result, highest)
    ]
    ratios = [speeds[0][place] / speeds[1][place] for place in speeds[0].keys() & speeds[1].keys()]
    interval = geometric_mean(ratios).interval
    return result is highest or interval is None or interval[1] >= 1
