"""Where guesses come from, all in one run: each source at fixed K and under --k auto, beside plain decoding.

`-d DRAFT@1-6` measures K 1 to 6 and auto, `-d DRAFT@auto` auto alone. Every prompt is a block (see
`specdec_cli.measurement.benchmark`): all arms answer it, in an order that rotates from block to block, so that a drift
of the machine hits all of them, and every ratio is taken prompt by prompt. Answers end where the model ends them.
Prompt lookup has transformers' own beside it, at the same K and the same longest n-gram; a draft that has nothing to
offer (random weights) runs under auto alone.

Prints a table for each set of prompts, and ratios with their 95 % interval over prompts and their range: of each source
over transformers, of each list of sources over its parts, of auto over the best fixed K and over transformers.

    python benchmarks/sources.py                                           # the demo pair, on editing prompts
    python benchmarks/sources.py -t TARGET --prompts editing --prompts chat --prompts mixed \\
        -d ngram@8 -d early-exit:8@4 -d lookahead@4 -d MODEL@1-8 -d ngram+MODEL@4 --hopeless MODEL -o FILE.json
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from specdec_cli.cli.bench import TimingOptions
from specdec_cli.cli.options.models import (
    DraftChoice,
    DraftQuantize,
    Dtype,
    ModelChoice,
    Quantize,
    SeveralDrafts,
    choose_models,
)
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.spec import DraftSpec, parse_draft
from specdec_cli.errors import SpecdecError
from specdec_cli.measurement import summary
from specdec_cli.measurement.arms import Arm, LoopArm, PeerArm
from specdec_cli.measurement.benchmark import Contest, Session, benchmark, in_turn, warm_up
from specdec_cli.measurement.caveats import caveats
from specdec_cli.measurement.differences import rounding_of
from specdec_cli.measurement.hardware import OtherProcesses, environment
from specdec_cli.measurement.runs import Run, plain_runs
from specdec_cli.measurement.statistics import geometric_mean
from specdec_cli.prompts import Prompt, load_prompts
from specdec_cli.ranges import parse_range
from specdec_cli.reports.export import document, to_json, whole_file
from specdec_cli.runtime.devices import clock_for
from specdec_cli.runtime.pairs.pair import Pair, load_pairs
from specdec_cli.runtime.pairs.peers import transformers_generate
from specdec_cli.settings import AUTO, NO_DRAFT, KChoice, ModelSettings, SamplingSettings

GREEDY = SamplingSettings(temperature=0.0)
OPEN = ("chat", "creative")  # of the mixed set: what quotes nothing
FIXED_K = 4
PLAIN_WIDTH = 120
HOPELESS = "random weights"
DEMO = ("ngram@8", "suffix:memory=off@8", "early-exit:2", "demo:draft@1-6", "ngram+demo:draft")


@dataclass(frozen=True)
class Source:
    """A --draft of the command line, and every fixed K that it is measured at."""

    draft: DraftChoice
    ks: tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """The first turn of a prompt."""

    pair: Pair
    prompt: Prompt
    turns: int = 1

    @property
    def category(self) -> str:
        """The prompt's."""
        return self.prompt.category

    def prompt_ids(self, answers: Sequence[Sequence[int]]) -> Sequence[int]:
        """Ids that the answer follows."""
        return self.pair.encode(self.prompt.messages(), raw=False)


def split_k(text: str) -> tuple[str, tuple[int, ...]]:
    """`DRAFT@K`, with K in the grammar of sweep-k; none for `@auto`, FIXED_K where none is given."""
    draft, at, ks = text.rpartition("@")
    if at and ks == "auto":
        return draft, ()
    if at and re.fullmatch(r"[0-9,*+-]+", ks):
        return draft, parse_range(ks, "--draft")
    return text, (FIXED_K,)


def chosen_prompts(name: str, limit: int) -> list[Prompt]:
    """A set or a file; `chat` are the open prompts of the mixed set."""
    found = [p for p in load_prompts("mixed") if p.category in OPEN] if name == "chat" else load_prompts(name)
    return found[: limit or None]


def read_sources(args: argparse.Namespace) -> tuple[ModelSettings, list[Source]]:
    """The target, and everything that is to draft for it.

    Raises:
        UsageError: as `specdec bench` would.
    """
    ks = dict(map(split_k, args.draft or DEMO))

    def models(drafts: list[str], dummy_weights: bool) -> ModelChoice:
        loading = TimingOptions(
            dtype=args.dtype, quantize=args.quantize, draft_quantize=args.draft_quantize,
            draft_vocab=args.draft_vocab, dummy_weights=dummy_weights,
        )  # fmt: skip
        return choose_models(SeveralDrafts(target=args.target, draft=drafts), loading)

    chosen = models(list(ks), dummy_weights=False)
    sources = [Source(draft, ks[draft.name]) for draft in chosen.drafts]
    if args.hopeless:
        (draft,) = models([args.hopeless], dummy_weights=True).drafts
        sources.append(Source(replace(draft, spec=replace(draft.spec, name=HOPELESS)), ()))
    return chosen.target, sources


def contest(sources: Sequence[Source], pairs: Sequence[Pair]) -> Contest:
    """Plain decoding against every source at each of its Ks and under auto, and transformers' prompt lookup."""
    clock = clock_for(*(device for pair in pairs for device in pair.devices))
    end_ids = pairs[0].checkpoint.end_ids

    def arm(spec: DraftSpec, k: KChoice, pair: Pair) -> LoopArm:
        drafter = make_drafter(spec, pair.drafter_parts(GREEDY, 0.0))
        return LoopArm(spec.name, k, pair.target, drafter, GREEDY, clock, end_ids)

    arms: list[Arm] = []
    for source, pair in zip(sources, pairs, strict=True):
        spec = source.draft.spec
        ks: list[KChoice] = [*source.ks, "auto"]
        arms += [arm(spec, k, pair) for k in ks]
        for k in source.ks if spec.prompt_lookup is not None else ():
            generate = transformers_generate(pair, GREEDY, k, spec.prompt_lookup and spec.prompt_lookup[0], end_ids)
            arms.append(PeerArm(f"transformers' {spec.name}", spec.name, k, GREEDY.temperature, generate, clock))
    return Contest(arm(parse_draft(NO_DRAFT), 0, pairs[0]), arms, GREEDY)


def measure(
    sources: Sequence[Source], pairs: Sequence[Pair], prompts: Sequence[Prompt], tokens: int, seed: int
) -> dict[str, Any]:
    """Every prompt with every arm, as a record."""
    questions = [Question(pairs[0], prompt) for prompt in prompts]
    warm_up(contest(sources, pairs), questions[0], tokens)  # with drafters of its own, which learn nothing for later
    rounding = rounding_of(pairs[0].checkpoint.coarsest_dtype)
    session, others = Session(), OtherProcesses()
    measured = contest(sources, pairs)
    with others, Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(in_turn(measured, 0)) * len(questions))
        benchmark(
            {GREEDY.temperature: measured}, questions, target=pairs[0].target, rounding=rounding,
            max_new_tokens=tokens, seed=seed, session=session, on_run=lambda run: progress.advance(task),
        )  # fmt: skip
    found = caveats(session.runs, session.controls, others_share=others.share, interrupted=session.interrupted)
    return {
        "results": summary.results(session.runs),
        "baseline_samples": summary.samples(plain_runs(session.runs)),
        "peers": summary.peer_results(session.runs),
        "ratios": ratios(session.runs, sources),
        "warnings": [asdict(caveat) for caveat in found],
        "interrupted": session.interrupted,
    }


def ratios(runs: Sequence[Run], sources: Sequence[Source]) -> list[dict[str, Any]]:
    """One arm's speed over another's, by prompt: auto over the best fixed K and peers, lists of sources over parts."""
    speeds: dict[tuple[str, KChoice], list[float]] = {}
    with_prefill: dict[tuple[str, KChoice], list[float]] = {}
    for run in runs:
        if run.k:
            with_prefill.setdefault((run.arm, run.k), []).append(run.end_to_end_tokens_per_s)
        if run.is_speculative:
            speeds.setdefault((run.arm, run.k), []).append(run.tokens_per_s)
    fixed = [arm for arm in speeds if arm[1] != "auto"]
    best = dict(sorted(fixed, key=lambda arm: geometric_mean(speeds[arm]).value))
    pairs: list[tuple[tuple[str, KChoice], tuple[str, KChoice]]]
    pairs = [((name, "auto"), (name, k)) for name, k in best.items()]
    for spec in (source.draft.spec for source in sources if len(source.draft.spec.sources) > 1):
        for part in (source.name for source in spec.sources if (source.name, "auto") in speeds):
            pairs.append(((spec.name, "auto"), (part, "auto")))
            if spec.name in best and part in best:
                pairs.append(((spec.name, best[spec.name]), (part, best[part])))
    peers = {(run.arm, run.k): (run.peer_of, AUTO) for run in runs if run.peer_of not in (None, NO_DRAFT)}
    compared = [(one, other, speeds) for one, other in pairs]
    compared += [(auto, peer, with_prefill) for peer, auto in peers.items() if auto in speeds]
    found = []
    for one, other, by in compared:
        estimate = geometric_mean([a / b for a, b in zip(by[one], by[other], strict=True)])
        names = {"draft": one[0], "k": one[1], "over": other[0], "over_k": other[1], "prefill": by is with_prefill}
        found.append({**names, **asdict(estimate)})
    return found


def show(console: Console, name: str, record: dict[str, Any]) -> None:
    """A set's table and ratios."""
    rows = [r for r in record["results"] if r["category"] == summary.ALL]
    plain = f"plain decoding {rows[0]['baseline_tokens_per_s']:.1f} tokens/s"
    say(console, f"{name}: {rows[0]['prompts']} answers, {plain}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("draft", overflow="fold")
    for heading in ("K", "tok/s", "over plain", "95 %", "by answer", "tok/round", "alpha", "text"):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in rows:
        alpha, same = r["acceptance"]["alpha"], "same" if r["lossless"]["identical"] else "near ties"
        table.add_row(
            Text(r["draft"]), str(r["k"]), f"{r['speculative_tokens_per_s']:.1f}", f"{r['speedup']:.2f}",
            span(r["speedup_ci"]), span(r["speedup_range"]), f"{r['tokens_per_round']:.2f}",
            "" if alpha is None else f"{alpha:.2f}", "DIFFERS" if r["lossless"]["unexplained"] else same,
        )  # fmt: skip
    console.print(table)
    for r in record["ratios"]:
        prefill = ", prefill included" if r["prefill"] else ""
        line = f"{r['draft']} K {r['k']} over {r['over']} K {r['over_k']}{prefill}: {r['value']:.2f}"
        say(console, f"{line} (95 % {span(r['interval'])}, by answer {span((r['low'], r['high']))})")
    for r in record["peers"]:
        line = f"{r['draft']} K {r['k']} over {r['peer']}, prefill included: {r['specdec_over_peer']:.2f}"
        say(console, f"{line} (95 % {span(r['specdec_over_peer_ci'])}, by answer {span(r['specdec_over_peer_range'])})")
    for caveat in record["warnings"]:
        say(console, f"Warning: {caveat['detail']}; {caveat['remedy']}.")


def say(console: Console, line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


def span(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.2f}-{interval[1]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-t", "--target", default="demo:target")
    parser.add_argument("-d", "--draft", action="append", help="DRAFT, DRAFT@K or DRAFT@auto, repeatable")
    parser.add_argument("--hopeless", metavar="MODEL", help="a draft of this shape with random weights, under auto")
    parser.add_argument("--prompts", action="append", help="editing, chat, mixed or a file; repeatable")
    parser.add_argument("--limit", type=int, default=0, help="prompts of each set; 0: all")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--dtype", type=Dtype, choices=list(Dtype), default=Dtype.auto)
    parser.add_argument("--quantize", type=Quantize, choices=list(Quantize), default=Quantize.none)
    parser.add_argument("--draft-quantize", type=DraftQuantize, choices=list(DraftQuantize), default=DraftQuantize.keep)
    parser.add_argument("--draft-vocab", default=AUTO)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="JSON, written anew after each set")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    target, sources = read_sources(args)
    pairs = load_pairs(target, [source.draft.model for source in sources], Console(stderr=True).print)
    sets: dict[str, Any] = {}
    head = {
        "environment": environment(*(device for pair in pairs for device in pair.devices)),
        "settings": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
    }
    for name in args.prompts or ["editing"]:
        sets[name] = record = measure(sources, pairs, chosen_prompts(name, args.limit), args.tokens, args.seed)
        if record["results"]:
            show(console, name, record)
        if args.output is not None:
            with whole_file(args.output) as file:
                file.write(to_json(document(**head, sets=sets), indent=2) + "\n")
        if record["interrupted"]:
            break


if __name__ == "__main__":
    try:
        main()
    except SpecdecError as error:
        sys.exit(f"sources.py: {error}")
