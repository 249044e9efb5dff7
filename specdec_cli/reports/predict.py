"""A prediction's document as a table and sentences for a person, and as flat rows for CSV and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdec_cli.reports.conclusion import answer
from specdec_cli.reports.fitting import FittingTable, Sentence
from specdec_cli.reports.rows import flatten

MARKS = "v verify pass in target steps; * best by the extended form, ° by the closed"
MAY_GO = ("v", "its alpha", "closed form")


def predict_report(document: dict[str, Any]) -> Group:
    """Everything `specdec predict` shows: the estimate of costs, a row for each K, and what to make of it."""
    results = document["results"]
    estimate = document["estimate"]
    parts: list[RenderableType] = [Text(line) for line in _estimate_lines(estimate, results)] if estimate else []
    if experts := document["settings"]["experts"]:
        parts.append(Text(_experts_line(experts)))
    parts += [Sentence(headline(document), "bold"), _table(results), Sentence(MARKS, "dim")]
    if results[0]["simulated"]:
        parts.append(Sentence(_simulation(results)))
    return Group(*parts, *answer([(_best(results), None)]))


def headline(document: dict[str, Any]) -> str:
    """What the results hold for, in one line."""
    settings = document["settings"]
    values = [result["cost"]["v"] for result in document["results"]]
    low, high = min(values), max(values)
    verify = f"v {low:.3g}" if low == high else f"v {low:.3g} to {high:.3g}"
    c = document["results"][0]["cost"]["c"]
    return f"alpha {settings['alpha']:g}, c {c:.3g}, {verify}, o {settings['overhead']:.3g} (in target steps)"


def rows(document: dict[str, Any]) -> list[dict[str, object]]:
    """Every result as one flat row."""
    return [flatten(result) for result in document["results"]]


def short_rows(document: dict[str, Any]) -> list[dict[str, object]]:
    """The columns that a person reads, for Markdown."""
    return [dict(zip(_headings(document["results"]), _cells(r), strict=True)) for r in document["results"]]


def _headings(results: Sequence[dict[str, Any]]) -> list[str]:
    simulated = ["simulated", "its alpha"] if results[0]["simulated"] else []
    return ["K", "tokens/round", *simulated, "v", "closed form", "extended"]


def _cells(r: dict[str, Any]) -> list[str]:
    run = r["simulated"]
    simulated = [f"{run['tokens_per_round']:.3f} ± {run['standard_error']:.3f}", f"{run['alpha']:.3f}"] if run else []
    predicted = r["predicted"]
    return [
        str(r["k"]),
        f"{r['tokens_per_round_formula']:.3f}",
        *simulated,
        f"{r['cost']['v']:.2f}",
        f"{predicted['closed_form']:.2f}x" + ("°" if r["closed_form_best"] else ""),
        f"{predicted['extended']:.2f}x" + ("*" if r["predicted_best"] else ""),
    ]


def _table(results: Sequence[dict[str, Any]]) -> FittingTable:
    # A space where others have a mark, so that the figures line up.
    rows = [[cell + " " if cell.endswith("x") else cell for cell in _cells(result)] for result in results]
    styles = ["bold" if result["predicted_best"] else "" for result in results]
    return FittingTable(_headings(results), rows, styles=styles, may_go=MAY_GO, legend=False)


def _best(results: Sequence[dict[str, Any]]) -> str:
    best = next(r for r in results if r["predicted_best"])
    closed = next(r for r in results if r["closed_form_best"])
    gain, promised = best["predicted"]["extended"], closed["predicted"]["closed_form"]
    if gain > 1:
        text = f"By the extended form it pays: K {best['k']} gives {gain:.2f}x plain decoding"
        text += ", the largest K asked for." if len(results) > 1 and best["k"] == results[-1]["k"] else "."
    else:
        text = f"By the extended form no K of these pays: the best, K {best['k']}, gives {gain:.2f}x plain decoding."
    return f"{text} By the closed form: K {closed['k']}, {promised:.2f}x."


def _simulation(results: Sequence[dict[str, Any]]) -> str:
    off, k = max((_departure(r), r["k"]) for r in results)
    rounds = results[0]["simulated"]["rounds"]
    return (
        f"Simulated: {rounds:,} rounds of the accept/reject rule at each K; furthest from the formula at K {k}, by "
        f"{off:.1f} standard errors."
    )


def _departure(r: dict[str, Any]) -> float:
    """Simulated tokens a round from the formula's, in standard errors; 0 where nothing is left to chance."""
    run = r["simulated"]
    difference = abs(run["tokens_per_round"] - r["tokens_per_round_formula"])
    return float(difference / run["standard_error"]) if run["standard_error"] else 0.0


def _estimate_lines(estimate: dict[str, Any], results: Sequence[dict[str, Any]]) -> list[str]:
    target, draft = estimate["target"], estimate["draft"]
    best = next(r for r in results if r["predicted_best"])
    verify = f"; a pass over {best['k'] + 1} tokens {_ms(best['cost']['v'] * target['step_s'])}"
    used = 2 * target["parameters"] / target["bytes"]
    return [
        f"target: {_step(target)}{verify}",
        f"draft: {_step(draft)}",
        f"machine: busy from {estimate['flop_per_byte']:.0f} FLOP a byte; decoding one token has {used:.2g}",
    ]


def _experts_line(experts: dict[str, Any]) -> str:
    """Where v comes from, of a mixture of experts."""
    dense = f", and {experts['dense_share']:.0%} of a step is shared by all tokens" if experts["dense_share"] else ""
    return (
        f"experts: a token uses {experts['active']} of {experts['number']}{dense}; v counts those that K + 1 tokens "
        "use together, by uniform routing"
    )


def _step(side: dict[str, Any]) -> str:
    size = f"{_scaled(side['parameters'], 'B')} parameters, {side['dtype']}, {_scaled(side['bytes'], 'G')}B"
    return f"{size}: a step {_ms(side['memory_s'])} of memory traffic and {_ms(side['arithmetic_s'])} of arithmetic"


def _scaled(number: float, billions: str) -> str:
    for size, letter in ((1e12, "T"), (1e9, billions), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.4g}{letter}" if billions == "B" else f"{number / size:.4g} {letter}"
    return f"{number:.4g}"


def _ms(seconds: float) -> str:
    if seconds < 1e-5:
        return f"{seconds * 1e6:.2g} us"
    return f"{seconds * 1000:.2f} ms" if seconds < 1e-2 else f"{seconds * 1000:.4g} ms"
