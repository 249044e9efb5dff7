"""The tables of a benchmark: points of a sweep, categories, drafts side by side, other tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from specdec_cli.reports.fitting import FittingTable

# From the right; K, the speedup and its interval never go.
MAY_GO = ("tok/s", "tok/round", "alpha", "c", "v", "o", "closed", "ext.")


def sweep_table(points: Sequence[dict[str, Any]]) -> FittingTable:
    """Every K a row."""
    headings = ["K", "speedup", "95 %", "tok/s", "tok/round", "alpha", "c", "v", "o", "closed", "ext."]
    rows = []
    for r in points:
        p = r["predicted"]
        rows.append([
            str(r["k"]), f"{r['speedup']:.2f}{'*' if r['best'] else ' '}", interval(r["speedup_ci"]),
            f"{r['speculative_tokens_per_s']:.1f}", f"{r['tokens_per_round']:.2f}",
            number(r["acceptance"]["alpha"]), *_costs(r),
            number(p["closed_form"]) + ("°" if r["closed_form_best"] else " "),
            number(p["extended"]) + ("°" if r["predicted_best"] else " "),
        ])  # fmt: skip
    return FittingTable(headings, rows, styles=["bold" if r["best"] else "" for r in points], may_go=MAY_GO, gap=0)


def category_table(results: Sequence[dict[str, Any]]) -> FittingTable:
    """Every category of prompts a row."""
    headings = ["category", "answers", "speedup", "95 %", "alpha", "tokens/round"]
    rows = [
        [
            r["category"], str(r["prompts"]), f"{r['speedup']:.2f}", interval(r["speedup_ci"]),
            number(r["acceptance"]["alpha"]), f"{r['tokens_per_round']:.2f}",
        ]
        for r in results
    ]  # fmt: skip
    return FittingTable(headings, rows, may_go=("answers", "alpha", "tokens/round"), left=("category",), named=True)


def comparison(results: Sequence[dict[str, Any]]) -> FittingTable:
    """Every draft and temperature a row."""
    headings = ["draft", "T", "K", "speedup", "95 %", "tok/round", "alpha", "c", "v", "o"]
    rows = [
        [
            r["draft"], f"{r['temperature']:g}", str(r["k"]), f"{r['speedup']:.2f}", interval(r["speedup_ci"]),
            f"{r['tokens_per_round']:.2f}", number(r["acceptance"]["alpha"]), *_costs(r),
        ]
        for r in results
    ]  # fmt: skip
    return FittingTable(headings, rows, may_go=MAY_GO, left=("draft",), named=True)


def peers(document: dict[str, Any]) -> list[RenderableType]:
    """Other tools, each a row; nothing where none was measured."""
    if not document["peers"]:
        return []
    headings = ["tool", "K", "T", "tokens/s", "specdec over it", "95 %", "by answer"]
    rows = []
    for peer in document["peers"]:
        ratio, spread = peer["specdec_over_peer"], peer["specdec_over_peer_range"]
        rows.append([
            peer["peer"], str(peer["k"] or ""), f"{peer['temperature']:g}", f"{peer['end_to_end_tokens_per_s']:.1f}",
            "" if ratio is None else f"{ratio:.2f}", interval(peer["specdec_over_peer_ci"]),
            "" if spread is None else f"{spread[0]:.2f} to {spread[1]:.2f}",
        ])  # fmt: skip
    return [
        FittingTable(
            headings, rows, may_go=("T", "tokens/s", "by answer"), left=("tool",), named=True,
            title="Beside other tools, prefill included",
        )
    ]  # fmt: skip


def interval(found: Sequence[float] | None) -> str:
    """`1.20-1.40`; empty where one answer gives none."""
    return "" if found is None else f"{found[0]:.2f}-{found[1]:.2f}"


def number(value: float | None) -> str:
    """To two digits, and no zero below zero."""
    return "" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def _costs(r: dict[str, Any]) -> list[str]:
    return [number(r["cost"] and r["cost"][name]) for name in ("c", "v", "o")]
