"""The document of `pair-check` for a person: one draft as a page of checks, several as columns with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from specdec_cli.reports.conclusion import answer
from specdec_cli.reports.fitting import FittingTable, Sentence, unbroken

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
TAKEN = {True: "taken", False: "refused", None: "unknown"}
ARROW = "→"
Document = dict[str, Any]


def print_pairs(document: Document, console: Console, verbose: bool = True) -> None:
    """The whole answer on a console: tables first, and last whether they fit, whether it pays, and the command.

    Args:
        verbose: every check of one pair; else what is ok is one line.
    """
    pairs = document["pairs"]
    head = Text.assemble(("target ", "dim"), document["settings"]["target"]["source"])
    if len(pairs) == 1:
        head.append("\ndraft  ", style="dim")
        head.append(pairs[0]["draft"])
    console.print(head, soft_wrap=True)
    if len(pairs) > 1:
        console.print(_Columns(pairs), crop=False)
    elif verbose:
        console.print(_page(pairs[0]["checks"], pairs[0]["elsewhere"]), crop=False)
    else:
        _print_folded(pairs[0], console)
    told = []
    for pair in pairs:
        prefix = "" if len(pairs) == 1 else f"{pair['draft']}: "
        told.append((f"{prefix}{_verdict(pair)}{_pays(pair)}", pair.get("command")))
    console.print(Group(*answer(told)), crop=False)


def _print_folded(pair: Document, console: Console) -> None:
    """What is not ok in full, the rest in a line; the cost as a table of its own."""
    bad = [check for check in pair["checks"] if check["status"] != "ok"]
    good = [check["name"] for check in pair["checks"] if check["status"] == "ok"]
    refusing = [fact for fact in pair["elsewhere"] if fact["accepts"] is not True]
    if bad or refusing:
        console.print(_page(bad, refusing), crop=False)
    if good:
        which = f"{len(good)} {'others ' if bad else ''}ok"
        console.print(Sentence(f"{which}: {', '.join(good)} (--verbose: each)"), crop=False)
    if pair["elsewhere"] and not refusing:
        console.print(Sentence(f"other engines: {_elsewhere(pair)}"), crop=False)
    if pair["probe"] and pair["probe"].get("predicted"):
        console.print(_measured_table(pair["probe"]), crop=False)
    elif pair["cost"]:
        c = pair["cost"]["c_by_bytes"]
        console.print(Sentence(f"A draft step is about {c:.2f} target steps, by bytes (c). At the best K:"), crop=False)
        rows = [[f"{b['alpha']:g}", str(b["k"]), f"{b['speedup']:.2f}x"] for b in pair["cost"]["best"]]
        console.print(FittingTable(["alpha", "K", "speedup"], rows, legend=False, gap=2), crop=False)


def _measured_table(probe: Document) -> FittingTable:
    """What a probe found at each temperature, and what it promises."""
    rows = []
    for best in probe["predicted"]:
        a = next(a for a in probe["acceptance"] if a["temperature"] == best["temperature"])
        found = [f"{best['temperature']:g}", str(best["k"]), f"{best['speedup']:.2f}x", f"{a['alpha']:.2f}"]
        rows.append([*found, f"{probe['cost']['c']:.2f}"])
    return FittingTable(["T", "K", "speedup", "alpha", "c"], rows, may_go=("alpha", "c"), gap=2)


def _pays(pair: Document) -> str:
    """Does it pay: measured where it was probed, else what alpha it takes; empty where they do not fit anyway."""
    if sentence := _sentence(pair):
        return f". {sentence}"
    if pair["compatible"] is not True or not pair["cost"]:
        return ""
    pays = pair["cost"]["break_even_alpha"]
    if pays is None:
        return "; it cannot pay: the draft is too large"
    return f"; it pays where more than {pays:.0%} of drafted tokens are accepted: --probe measures that"


def pair_markdown(document: Document) -> str:
    """The same as Markdown tables."""
    pairs = document["pairs"]
    lines = [f"Target: `{document['settings']['target']['source']}`", ""]
    if len(pairs) == 1:
        pair = pairs[0]
        lines += [f"Draft: `{pair['draft']}`", "", *_markdown_row("check", "status", "detail", "remedy")]
        lines += [_row(c["name"], c["status"], c["detail"], c["remedy"]) for c in pair["checks"]]
        facts = pair["elsewhere"]
        lines += [
            _row(f"in {f['engine']}", TAKEN[f["accepts"]], f"{f['detail']} ({f['read_from']})", "") for f in facts
        ]
    else:
        lines += _markdown_row("check", *(pair["draft"] for pair in pairs))
        for name in _names(pairs):
            lines.append(_row(name, *(_cell(_check(pair, name), pair) for pair in pairs)))
        lines.append(_row("elsewhere", *(_elsewhere(pair) for pair in pairs)))
        lines.append(_row("**verdict**", *(_verdict(pair) for pair in pairs)))
    for pair in pairs:
        told = [f"**{_verdict(pair)}**", *filter(None, [_sentence(pair)])]
        lines += ["", *([f"`{pair['draft']}`", ""] if len(pairs) > 1 else []), *(f"- {line}" for line in told)]
    return "\n".join(lines) + "\n"


def _page(checks: Sequence[Document], elsewhere: Sequence[Document]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("detail", overflow="fold", ratio=1)
    for check in checks:
        detail = Text(check["detail"])
        if check["remedy"]:
            detail.append(f"\n{ARROW} {check['remedy']}", style="bold")
        table.add_row(check["name"], Text(check["status"], style=STYLES[check["status"]]), detail)
    if elsewhere:
        table.add_section()
    for fact in elsewhere:
        # Text, not str: rich would take a token such as [/INST] for its own markup.
        told = Text(f"{fact['detail']} ({fact['read_from']})")
        table.add_row(f"in {fact['engine']}", TAKEN[fact["accepts"]], told)
    return table


class _Columns:
    """Every draft a column; by number where their names have no room beside each other."""

    def __init__(self, pairs: Sequence[Document]) -> None:
        self._pairs = pairs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        names = [pair["draft"] for pair in self._pairs]
        room = (options.max_width - len("architecture")) // len(names) - 2
        if max(map(len, names)) > room:
            yield from (unbroken(f"draft {number}: {name}") for number, name in enumerate(names, start=1))
            names = [f"draft {number}" for number in range(1, len(names) + 1)]
        yield _columns(self._pairs, names)


def _columns(pairs: Sequence[Document], names: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", overflow="fold", min_width=len("architecture"))
    for name in names:
        table.add_column(Text(name), overflow="fold", ratio=1)
    for name in _names(pairs):
        cells = []
        for pair in pairs:
            check = _check(pair, name)
            cell = Text(_cell(check, pair))
            if check is not None:
                cell.stylize(STYLES[check["status"]], 0, len(check["status"]))
            cells.append(cell)
        table.add_row(name, *cells)
    table.add_row("elsewhere", *(_elsewhere(pair) for pair in pairs))
    table.add_row(Text("verdict", style="bold"), *(Text(_verdict(pair), style="bold") for pair in pairs))
    return table


def _names(pairs: Sequence[Document]) -> list[str]:
    """Every check that any pair has, in order."""
    return list(dict.fromkeys(check["name"] for pair in pairs for check in pair["checks"]))


def _check(pair: Document, name: str) -> Document | None:
    return next((check for check in pair["checks"] if check["name"] == name), None)


def _cell(check: Document | None, pair: Document) -> str:
    """Short where all is well, the whole story where not."""
    if check is None:
        return "-"
    if check["status"] != "ok":
        return f"{check['status']}: {check['detail']} {ARROW} {check['remedy']}"
    if check["name"] == "cost" and pair["cost"]:
        return f"ok: c about {pair['cost']['c_by_bytes']:.2f}"
    if check["name"] == "speed" and pair["probe"]:
        best = pair["probe"]["predicted"][0]
        return f"ok: about {best['speedup']:.2f}x at K {best['k']}"
    return "ok"


def _verdict(pair: Document) -> str:
    if pair["compatible"]:
        warnings = [c["name"] for c in pair["checks"] if c["status"] == "warn"]
        return "compatible" + (f", with warnings: {', '.join(warnings)}" if warnings else "")
    if pair["compatible"] is None:
        return f"could not be told: {', '.join(c['name'] for c in pair['checks'] if not c['decided'])}"
    failed = [c["name"] for c in pair["checks"] if c["status"] == "fail" and c["decided"]]
    warned = [c["name"] for c in pair["checks"] if c["status"] == "warn"]
    return f"not compatible: {', '.join(failed)}" if failed else f"not compatible by --strict: {', '.join(warned)}"


def _elsewhere(pair: Document) -> str:
    """Who takes it and who does not, in a few words."""
    parts = []
    for accepts, words in TAKEN.items():
        engines = [fact["engine"] for fact in pair["elsewhere"] if fact["accepts"] is accepts]
        if engines:
            parts.append(f"{words}: {', '.join(engines)}")
    return "; ".join(parts) or "-"


def _sentence(pair: Document) -> str:
    return str((pair["probe"] or {}).get("sentence", ""))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _markdown_row(*headings: str) -> list[str]:
    return [_row(*headings), _row(*("---" for _ in headings))]
