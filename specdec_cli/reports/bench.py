"""A benchmark's document as tables and sentences for a person, and as flat rows for CSV and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from specdec_cli.quantities import counted
from specdec_cli.reports import bench_tables, verdict
from specdec_cli.reports.bench_tables import interval, number
from specdec_cli.reports.conclusion import conclusion
from specdec_cli.reports.fitting import Sentence
from specdec_cli.reports.rows import flatten
from specdec_cli.settings import KEEP, NOT_QUANTIZED, WHOLE_VOCAB

ALL = "all"
ROUNDED = ("int8", "w8a8", "int4", KEEP)  # what a target's weights may be, beside those that nothing was done to
# Too long for a table's cell, or said in the verdict.
NOT_IN_ROWS = ("samples", "per_position", "first_difference")


def bench_report(document: dict[str, Any], verbose: bool = False) -> Group:
    """Everything `specdec bench` shows: a card for each result, categories, all side by side, peers, caveats, answer.

    Args:
        verbose: what only experts read too.
    """
    parts: list[RenderableType] = []
    whole = _whole(document["results"])
    for result in whole:
        key = (result["draft"], result["k"], result["temperature"])
        parts += [_headline(document, result), _card(document, result, verbose)]
        categories = [
            r for r in document["results"] if r["category"] != ALL and (r["draft"], r["k"], r["temperature"]) == key
        ]
        if categories:
            parts.append(bench_tables.category_table(categories))
        gain = verdict.gain(result) if len(whole) > 1 else ""  # of one result it is the answer
        told = (gain, verdict.explanation(result), _advice(document, result))
        parts += _sentences(*told, verdict.losslessness(result))
        if len(whole) > 1:
            parts.append(Text())
    if len(whole) > 1:
        parts.append(bench_tables.comparison(whole))
    return Group(*_marks(document), *parts, *bench_tables.peers(document), *_caveats(document), *conclusion(document))


def sweep_report(document: dict[str, Any], verbose: bool = False) -> Group:
    """Everything `specdec sweep-k` shows: a row for each point, the plot, peers, caveats, and the answer.

    Args:
        verbose: what is drawn as a plot of several K in words too: the card of each.
    """
    parts: list[RenderableType] = []
    whole = _whole(document["results"])
    for temperature, draft in dict.fromkeys((r["temperature"], r["draft"]) for r in whole):
        points = [r for r in whole if (r["temperature"], r["draft"]) == (temperature, draft)]
        answers = counted(points[0]["prompts"], "answer")
        head = f"{_draft_title(document, draft)}, temperature {temperature:g}: {answers}, "
        parts += [
            Sentence(head + f"plain decoding {points[0]['baseline_tokens_per_s']:.1f} tokens/s", "bold"),
            bench_tables.sweep_table(points),
        ]
        told = []
        if best := next((r for r in points if r["best"]), None):
            why = verdict.explanation(best) or verdict.gain(best)
            told = [f"K {best['k']}: {why}", _advice(document, best)]
            told += [verdict.left_out(r) for r in points if not r.get("measurable", True)]
        parts += [*_sentences(*told, *_exactness(points)), Text()]
        if verbose:
            for r in points:
                parts += [_headline(document, r), _card(document, r, verbose), Text()]
    marks = Sentence("* best measured, or as good within the noise; ° highest of that form", "dim")
    plot = [_Plot(whole)] if len({r["k"] for r in whole}) > 1 else []
    return Group(
        *_marks(document), *parts, marks, *plot, *bench_tables.peers(document), *_caveats(document),
        *conclusion(document),
    )  # fmt: skip


class _Plot:
    """The plot of plain characters, as wide as the terminal."""

    def __init__(self, results: Sequence[dict[str, Any]]) -> None:
        self._results = results

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        from specdec_cli.reports.plots import text_plot

        yield Text("\n" + text_plot(self._results, options.max_width), overflow="ignore", no_wrap=True)


def rows(document: dict[str, Any]) -> list[dict[str, object]]:
    """Every result as one flat row."""
    flat = [flatten(result) for result in document["results"]]
    return [{key: value for key, value in row.items() if not any(n in key for n in NOT_IN_ROWS)} for row in flat]


def short_rows(document: dict[str, Any]) -> list[dict[str, object]]:
    """The columns that a person reads, for Markdown."""
    doubtful = not all(r.get("measurable", True) for r in document["results"])
    return [
        {
            "draft": r["draft"],
            **({"simulated": " and ".join(parts)} if (parts := pretended(document["settings"])) else {}),
            **({"target": how} if (how := document["settings"]["target"].get("quantize")) in ROUNDED else {}),
            "K": r["k"],
            "T": r["temperature"],
            **({"category": r["category"]} if len(document["results"]) > len(_whole(document["results"])) else {}),
            "plain tok/s": r["baseline_tokens_per_s"],
            "tok/s": r["speculative_tokens_per_s"],
            "speedup": f"{r['speedup']:.2f}" + ("*" if r.get("best") else ""),
            **({"measurable": "yes" if r["measurable"] else "no"} if doubtful else {}),
            "95 %": interval(r["speedup_ci"]),
            "tokens/round": round(r["tokens_per_round"], 2),
            "alpha": number(r["acceptance"]["alpha"]),
            **{name: number(r["cost"] and r["cost"][name]) for name in ("c", "v", "o")},
            "closed form": number(r["predicted"]["closed_form"]),
            "extended": number(r["predicted"]["extended"]),
        }
        for r in document["results"]
    ]


def machine(environment: dict[str, Any]) -> str:
    """What it was measured on, in a few words: the accelerators, or the processor and its threads."""
    devices = [device for device in environment["devices"] if device != "cpu"]
    return ", ".join(devices or [f"{environment['cpu']}, {counted(environment['threads'], 'thread')}"])


def _whole(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [result for result in results if result["category"] == ALL]


def _exactness(points: Sequence[dict[str, Any]]) -> list[str]:
    """What was checked at each K, once for all that came out alike."""
    if all(r["lossless"]["identical"] for r in points):
        return ["Lossless: the same ids as plain decoding in every answer at every K."]
    said: dict[str, list[str]] = {}
    for r in points:
        said.setdefault(verdict.losslessness(r), []).append(str(r["k"]))
    return [f"K {', '.join(ks)}: {sentence}" for sentence, ks in said.items() if sentence]


def _sentences(*texts: str) -> list[RenderableType]:
    return [Sentence(text) for text in texts if text]


def pretended(settings: dict[str, Any]) -> list[str]:
    """What of the measurement is made up, as parts of a sentence."""
    found = ["random weights"] if settings["target"].get("dummy_weights") else []
    if settings.get("simulated_acceptance") is not None:
        found.append(f"acceptance simulated at {settings['simulated_acceptance']:g}")
    return found


def _marks(document: dict[str, Any]) -> list[RenderableType]:
    parts = pretended(document["settings"])
    marks = [Text(f"SIMULATED: {' and '.join(parts)}; only the times are real.", style="bold red")] if parts else []
    return [*marks, *_sentences(_rounded(document))]


def _rounded(document: dict[str, Any]) -> str:
    """That a quantised target is another model, and how far it is from the one named."""
    how = document["settings"]["target"].get("quantize", NOT_QUANTIZED)
    if how == NOT_QUANTIZED:
        return ""
    text = (
        "The target is in its file's own bits"
        if how == KEEP
        else f"The target's weights are rounded to {how}, which is another model"
    )
    found = document.get("quantisation")
    if found is None:
        return text + "."
    whole = "the same file computed in 16 or 32 bits" if how == KEEP else "the target as it was"
    return (
        f"{text}: its distributions overlap by {found['overlap']:.3f} with those of {whole}, and both "
        f"choose the same token at {found['greedy_agreement']:.1%} of {found['positions']:,} positions."
    )


def _title(name: str, settings: dict[str, Any]) -> str:
    """A model's name, and what made it cheaper."""
    how = settings.get("quantize", NOT_QUANTIZED)
    return name if how == NOT_QUANTIZED else f"{name} in {'own bits' if how == KEEP else how}"


def _draft_settings(document: dict[str, Any], name: str) -> dict[str, Any]:
    drafts: list[dict[str, Any]] = document["settings"]["drafts"]
    return next((d for d in drafts if d.get("name", d["source"]) == name), {})


def _advice(document: dict[str, Any], result: dict[str, Any]) -> str:
    return verdict.cheaper_draft(result, _draft_settings(document, result["draft"]))


def _draft_title(document: dict[str, Any], name: str) -> str:
    settings = _draft_settings(document, name)
    cut = settings.get("vocab", WHOLE_VOCAB) != WHOLE_VOCAB
    return _title(name, settings) + (f" (head of {settings['head_rows']:,} tokens)" if cut else "")


def _headline(document: dict[str, Any], result: dict[str, Any]) -> Sentence:
    settings = document["settings"]["target"]
    target, draft = _title(settings["source"], settings), _draft_title(document, result["draft"])
    count = f"{counted(result['prompts'], 'answer')}, {result['new_tokens']:,} tokens"
    text = f"{target} with {draft}, K {result['k']}, temperature {result['temperature']:g}: {count}"
    return Sentence(text, "bold")


def _card(document: dict[str, Any], r: dict[str, Any], verbose: bool) -> Table:
    card = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    card.add_column(style="dim", no_wrap=True)
    card.add_column(overflow="fold")
    first = r["first_token_s"]
    card.add_row("plain", f"{r['baseline_tokens_per_s']:.1f} tokens/s, first after {_ms(first['baseline'])}")
    card.add_row(
        "speculative", f"{r['speculative_tokens_per_s']:.1f} tokens/s, first after {_ms(first['speculative'])}"
    )
    low, high = r["speedup_range"]
    speedup = Text(f"{r['speedup']:.2f}x", style="bold")
    speedup.append(
        f"  {_with_interval(r['speedup_ci'], '; ')}by answer {low:.2f} to {high:.2f}; "
        f"with prefill {r['end_to_end_speedup']:.2f}x",
        style="not bold",
    )
    card.add_row("speedup", speedup)
    a = r["acceptance"]
    if a["alpha"] is not None:
        card.add_row(
            "acceptance",
            f"{number(a['alpha'])} of {a['judged']:,} judged tokens (95 % {interval(a['alpha_ci'])})",
        )
        if verbose:
            _add_acceptance(card, r)
        card.add_row(
            "tokens a round",
            f"{r['tokens_per_round']:.2f}" + (f"; from alpha {r['tokens_per_round_formula']:.2f}" if verbose else ""),
        )
    for i, (name, counts) in enumerate(r.get("sources", {}).items()):
        card.add_row(
            "" if i else "sources",
            f"{name}: {counts['accepted']:,} of {counts['drafted']:,} drafted tokens accepted in "
            f"{counts['rounds']:,} rounds",
        )
    if verbose:
        _add_costs(card, r)
        if document["bandwidth"] is not None:  # as where runs were read back
            card.add_row("memory", _memory(document))
    return card


def _add_acceptance(card: Table, r: dict[str, Any]) -> None:
    """What of the acceptance only experts read."""
    a = r["acceptance"]
    card.add_row(
        "", f"overlap {number(a['overlap'])}, accepted/drafted {number(a['accepted_over_drafted'])}",
    )  # fmt: skip
    card.add_row(
        "  by position",
        f"first i accepted {_list(a['per_position_joint'])}\ni-th, given those before "
        f"{_list(a['per_position_conditional'])}",
    )
    if len(r["draft_lengths"]) > 1:
        card.add_row("drafted", _shares(r["draft_lengths"]))


def _add_costs(card: Table, r: dict[str, Any]) -> None:
    """Where the time went, and what both forms made of it."""
    if r["cost"] is not None:
        c = r["cost"]
        card.add_row(
            "cost",
            f"target step {_ms(c['target_step_s'])}, draft step {_ms(c['draft_step_s'])}, verify {_ms(c['verify_s'])}, "
            f"other {_ms(c['other_s'])} a round",
        )
        card.add_row("", f"in target steps: c {c['c']:.3f} (draft), v {c['v']:.2f} (verify), o {c['o']:.3f} (rest)")
    p = r["predicted"]
    if p["closed_form"] is not None:
        card.add_row(
            "formula",
            f"closed form {p['closed_form']:.2f}x (measured/predicted {p['measured_over_closed_form']:.2f}), "
            f"extended {p['extended']:.2f}x ({p['measured_over_extended']:.2f})",
        )


def _memory(document: dict[str, Any]) -> str:
    memory, bandwidth = document["memory"], document["bandwidth"]
    peak = f"peak {memory['peak_bytes'] / 1e9:.2f} GB; " if memory["peak_bytes"] else ""
    share = bandwidth["share"]
    text = f"{peak}a target step reads {bandwidth['step_bytes'] / 1e6:,.0f} MB of weights"
    if share is None:
        return text
    text += f", {share:.0%} of the {bandwidth['copy_bytes_per_s'] / 1e9:.0f} GB/s that a copy reaches here"
    return text + (" (they fit a cache)" if share > 1 else "")


def _caveats(document: dict[str, Any]) -> list[RenderableType]:
    return [Sentence(f"Warning: {caveat['detail']}; {caveat['remedy']}.", "yellow") for caveat in document["warnings"]]


def _with_interval(found: Sequence[float] | None, behind: str) -> str:
    """`95 % 1.2-1.4` and what follows it; nothing where one answer gives no interval."""
    return f"95 % {interval(found)}{behind}" if found else ""


def _shares(lengths: Sequence[Sequence[int]]) -> str:
    """How many rounds drafted so many tokens, the rare ones left out."""
    rounds = sum(n for _, n in lengths)
    common = [(length, n / rounds) for length, n in lengths if n / rounds >= 0.02]
    return ", ".join(f"{length} in {share:.0%}" for length, share in common) + " of the rounds"


def _list(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
