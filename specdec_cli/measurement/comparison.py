"""Two measurements side by side: what is the same point in both, and how much faster the second is there.

Answers of the same prompts are compared one by one, so that a prompt which is slow in both costs no certainty; where
the prompts are others, the means are compared, with an interval that is as much wider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specdec_cli.measurement.runs import Run
from specdec_cli.measurement.statistics import geometric_mean, ratio_of_means
from specdec_cli.measurement.summary import ALL, decoding

Document = Mapping[str, Any]
# What makes a point, by the keys of a result.
POINT = ("draft", "k", "temperature")


def compare(a: Document, b: Document) -> dict[str, Any]:
    """`rows`, one for each point of both; `only_in_a` and `only_in_b`, points; `differences` of how they were measured.

    A part of a point that has one value in either document, as the only draft, need not be the same in both.
    """
    ours, theirs = _whole(a), _whole(b)
    free = {part for part in POINT if len({r[part] for r in ours}) == 1 == len({r[part] for r in theirs})}

    def place(result: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(result[part] for part in POINT if part not in free)

    there = {place(result): result for result in theirs}
    here = {place(result) for result in ours}
    paired = a["settings"]["prompts_sha256"] == b["settings"]["prompts_sha256"]
    return {
        "differences": differences(a, b),
        "paired": paired,
        "rows": [_row(a, r, b, there[place(r)], paired) for r in ours if place(r) in there],
        "only_in_a": [_point(r) for r in ours if place(r) not in there],
        "only_in_b": [_point(r) for r in theirs if place(r) not in here],
    }


def differences(a: Document, b: Document) -> list[dict[str, Any]]:
    """Settings, machine and versions that are not the same: {key, a, b}, with null where one has no such key."""
    parts = ("specdec_version", "environment", "settings")
    left, right = ({key: value for part in parts for key, value in _flat(part, of.get(part))} for of in (a, b))
    keys = [*left, *(key for key in right if key not in left)]
    if left.get("settings.prompts") != right.get("settings.prompts"):
        keys.remove("settings.prompts_sha256")  # which says the same once more
    return [{"key": key, "a": left.get(key), "b": right.get(key)} for key in keys if left.get(key) != right.get(key)]


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, list) and len(value) == 1:  # as the only draft
        yield from _flat(name, value[0])
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for number, inner in enumerate(value, start=1):
            yield from _flat(f"{name}.{number}", inner)
    else:
        yield name, value


def _whole(document: Document) -> list[dict[str, Any]]:
    return [result for result in document["results"] if result["category"] == ALL]


def _point(result: Mapping[str, Any]) -> dict[str, Any]:
    return {part: result[part] for part in POINT}


def _row(a: Document, ours: Mapping[str, Any], b: Document, theirs: Mapping[str, Any], paired: bool) -> dict[str, Any]:
    left, right = _Answers(a, ours), _Answers(b, theirs)
    figures: tuple[tuple[str, Callable[[_Answers], dict[Any, float]]], ...] = (
        ("speedup", _Answers.speedups),
        ("tokens_per_s", _Answers.speculative),
        ("plain_tokens_per_s", _Answers.plain),
    )
    return {
        "a": _figures(ours),
        "b": _figures(theirs),
        **{name: _ratio(of(left), of(right), paired) for name, of in figures},
    }


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_point(result),
        "speedup": float(result["speedup"]),  # which a file that was edited may not hold
        "speedup_ci": result["speedup_ci"],
        "tokens_per_s": float(result["speculative_tokens_per_s"]),
        "plain_tokens_per_s": float(result["baseline_tokens_per_s"]),
        "alpha": result["acceptance"]["alpha"],
        "prompts": result["prompts"],
        "measurable": result.get("measurable", True),
    }


class _Answers:
    """Speeds of one point, by prompt and turn."""

    def __init__(self, document: Document, result: Mapping[str, Any]) -> None:
        baseline = [s for s in document["baseline_samples"] if s["temperature"] == result["temperature"]]
        self._plain = _by_place(baseline)
        self._runs = _by_place(result["samples"])

    def plain(self) -> dict[Any, float]:
        """Of plain decoding."""
        return {place: decoding(self._plain[place]) for place in self._runs}

    def speculative(self) -> dict[Any, float]:
        """Of speculation."""
        return {place: decoding(runs) for place, runs in self._runs.items()}

    def speedups(self) -> dict[Any, float]:
        """Of one over the other."""
        plain = self.plain()
        return {place: speed / plain[place] for place, speed in self.speculative().items()}


def _by_place(samples: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], list[Run]]:
    found: dict[tuple[int, int], list[Run]] = {}
    for sample in samples:
        run = Run.from_record({"token_ids": (), **sample})
        found.setdefault((run.prompt, run.turn), []).append(run)
    return found


def _ratio(a: Mapping[Any, float], b: Mapping[Any, float], paired: bool) -> dict[str, Any]:
    """How many times the first the second is, over so many `answers` of each, with its 95 % interval."""
    both = sorted(a.keys() & b.keys())
    if paired and both:
        estimate = geometric_mean([b[place] / a[place] for place in both])
        return {"ratio": estimate.value, "ratio_ci": estimate.interval, "answers": len(both)}
    value, interval = ratio_of_means([*a.values()], [*b.values()])
    return {"ratio": value, "ratio_ci": interval, "answers": min(len(a), len(b))}
