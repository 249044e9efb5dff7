"""`specdec bench` and `specdec sweep-k`: models in, measured blocks on their way, tables and verdicts out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from specdec_cli.decoding.draft_length import FIRST
from specdec_cli.decoding.seeds import DERIVATION
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.spec import DraftSpec, parse_draft
from specdec_cli.errors import INTERRUPTED, SLOWER, InterruptedByUser, SpecdecError, UsageError
from specdec_cli.measurement import benchmark as measure
from specdec_cli.measurement import summary
from specdec_cli.measurement.benchmark import Contest, LoopArm, PeerArm, Run, Session
from specdec_cli.measurement.caveats import caveats, drift
from specdec_cli.measurement.distribution import check_first_tokens, least_certain
from specdec_cli.measurement.fidelity import compare
from specdec_cli.measurement.hardware import OtherProcesses, copy_bandwidth, environment, peak_memory, threads_and_cores
from specdec_cli.measurement.recommendation import mark_best, recommend
from specdec_cli.prompts import Prompt
from specdec_cli.quantities import counted
from specdec_cli.reports import bench as reports
from specdec_cli.reports.console import PipeConsole
from specdec_cli.reports.export import document, to_json, whole_file
from specdec_cli.reports.recommend import PROMPT_LOOKUP, Recommendation, export
from specdec_cli.reports.rows import to_csv, to_markdown
from specdec_cli.reports.runs_file import RunsFile, keep_runs, read_runs
from specdec_cli.runtime.checkpoints.sources import EMBEDDED, Report
from specdec_cli.runtime.devices import clock_for, out_of_memory
from specdec_cli.runtime.pairs.pair import (
    Pair,
    conversation,
    describe,
    describe_draft,
    load_pairs,
    load_unquantised,
    recorded,
    without_recording,
)
from specdec_cli.runtime.pairs.peers import transformers_generate
from specdec_cli.settings import NO_DRAFT, BenchSettings, KChoice, ModelSettings, SamplingSettings

PLAIN_WIDTH = 100  # of tables in a file
# What a quantised target is compared with itself on.
COMPARED_ANSWERS, COMPARED_TOKENS = 12, 48


@dataclass(frozen=True)
class BenchRequest:
    """Everything that the command line decides.

    Attributes:
        drafts: (sources of guesses, how the checkpoint among them is loaded).
        sampling: its temperature is replaced by each of the settings'.
        prompts, prompt_source: what to answer, and where it came from.
        prompts_sha256: of the whole set.
        sweep: sweep-k's tables instead of bench's.
        fail_if_slower: the least speedup for exit code 0.
    """

    target: ModelSettings
    drafts: Sequence[tuple[DraftSpec, ModelSettings | None]]
    settings: BenchSettings
    sampling: SamplingSettings
    prompts: Sequence[Prompt]
    prompt_source: str
    prompts_sha256: str
    system: str | None = None
    raw: bool = False
    sweep: bool = False
    compare: str | None = None
    check_distribution: bool = False
    dry_run: bool = False
    resume: Path | None = None
    plot: Path | None = None
    export: str | None = None
    fail_if_slower: float | None = None
    output_format: str = "table"
    output: Path | None = None
    quiet: bool = False


@dataclass(frozen=True)
class _Dialogue:
    """A prompt as the benchmark sees it: ids in, ids out."""

    pair: Pair
    prompt: Prompt
    request: BenchRequest

    @property
    def category(self) -> str:
        return self.prompt.category

    @property
    def turns(self) -> int:
        return len(self.prompt.turns)

    def prompt_ids(self, answers: Sequence[Sequence[int]]) -> Sequence[int]:
        return self._encode([self.pair.decode(answer) for answer in answers], 1)

    def require_room(self, number: int) -> None:
        """Whether the context holds every turn and full answers to all of them, told before anything is measured.

        Raises:
            UsageError: it does not, or a prompt cannot be encoded; names the prompt.
        """
        try:
            self._encode([""] * (self.turns - 1), self.turns)
        except UsageError as error:
            raise UsageError(f"prompt {number}: {error}") from error

    def _encode(self, answers: Sequence[str], room_for: int) -> Sequence[int]:
        messages = conversation(self.prompt, self.request.system)
        for text, answer in zip(self.prompt.turns, answers, strict=False):
            messages.append({"role": "user", "content": text})
            messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": self.prompt.turns[len(answers)]})
        return self.pair.encode(messages, self.request.raw, room=room_for * self.request.settings.max_new_tokens)


def run(request: BenchRequest) -> int:
    """Measure, show, save; the exit code."""
    err = PipeConsole(stderr=True, highlight=False)

    def report(line: str) -> None:
        if not request.quiet:
            err.print(line, style="dim", markup=False, soft_wrap=True)

    pairs = load_pairs(request.target, [model for _, model in request.drafts], report)
    for note in (note for pair in pairs for note in pair.notes):
        report(f"note: {note}")
    if request.export is not None:
        for (spec, _), pair in zip(request.drafts, pairs, strict=True):  # any of them may turn out the best
            export(_recommendation(request, spec, pair, k=1, temperature=0.0), request.export)
    dialogues = [_Dialogue(pairs[0], prompt, request) for prompt in request.prompts]
    for number, dialogue in enumerate(dialogues, start=1):
        dialogue.require_room(number)
    peers = _peers(request, pairs, report)
    contests = {t: _contest(request, pairs, peers, t) for t in request.settings.temperatures}
    settings = _settings(request, pairs)
    head = {"environment": environment(*_devices(pairs)), "settings": settings}
    session = Session()
    if request.resume is not None:
        session.runs = _known_runs(request, request.resume, head, contests)
        if session.runs:
            report(f"{len(session.runs)} runs are in {request.resume} already")
    with ExitStack() as stack:
        with _progress(err, request.quiet) as progress:
            # With drafters of their own: what these learn from the first prompt must not help when it is measured.
            apart = {t: _contest(request, pairs, peers, t) for t in request.settings.temperatures}
            warm = _warm_up(apart, dialogues[0], request, progress)
            if request.dry_run:
                progress.stop()
                return _show_plan(request, contests, warm, sum(d.turns for d in dialogues), len(session.runs))
            lines = _open_lines(request, stack, document(**head), session.runs)
            others = _measure(request, pairs, contests, dialogues, session, lines, progress)
        if not session.runs:
            raise InterruptedByUser("interrupted before the first prompt was measured")
        record = _document(request, pairs, contests, dialogues, session, head, others)
        record["quantisation"] = _quantisation(request, pairs, dialogues, session, report)
        for line in lines:
            for result in record["results"]:
                line.write("result", document(**head, **{k: v for k, v in result.items() if k != "samples"}))
        if request.output_format != "jsonl":
            _show(request, record, err)
        if graphs := recorded(pairs):
            report(graphs)
    if request.plot is not None:
        from specdec_cli.reports.plots import plot_sweep

        plot_sweep(record["results"], request.plot, target=request.target.source, machine=_machine(record))
        report(f"plot: {request.plot}")
    if request.export is not None:
        sys.stdout.write(_exported(request, pairs, record))
    return _exit_code(request, session, record)


def _known_runs(request: BenchRequest, path: Path, head: dict[str, Any], contests: dict[float, Contest]) -> list[Run]:
    """What a file holds of this request; a lower --limit leaves some of it out."""
    try:
        runs = [Run.from_record(record) for record in read_runs(path, **head)]
    except TypeError as error:
        raise UsageError(f"--resume {path} was written by another version of specdec: name a new file") from error
    return [run for run in measure.whole_blocks(runs, contests) if run.prompt <= len(request.prompts)]


def _peers(request: BenchRequest, pairs: Sequence[Pair], report: Report) -> list[Pair]:
    """The same pairs as transformers makes them, for arms of its own; none where nothing is compared."""
    if request.compare is None:
        return []
    report("loading the models once more, as transformers runs them")
    untouched: list[ModelSettings | None] = []
    for (_, model), pair in zip(request.drafts, pairs, strict=True):
        if model is not None and pair.draft_checkpoint is not None:  # what `auto` came to, not another choice
            model = replace(model, fuse=False, quantize=pair.draft_checkpoint.quantize)
        untouched.append(model)
    return load_pairs(replace(request.target, fuse=False), untouched, report)


def _contest(request: BenchRequest, pairs: Sequence[Pair], peers: Sequence[Pair], temperature: float) -> Contest:
    sampling = replace(request.sampling, temperature=temperature)
    clock = without_recording(clock_for(*_devices(pairs)), pairs)
    target = pairs[0].target
    end_ids = frozenset() if request.settings.ignore_end_token else pairs[0].checkpoint.end_ids

    simulated = request.settings.simulated_acceptance

    def loop_arm(spec: DraftSpec, k: KChoice, pair: Pair) -> LoopArm:
        # One an arm: none learns from another.
        drafter = make_drafter(spec, pair.drafter_parts(sampling, request.settings.draft_stop))
        return LoopArm(spec.name, k, target, drafter, sampling, clock, end_ids, simulated)

    arms: list[measure.Arm] = []
    for (spec, _), pair in zip(request.drafts, pairs, strict=True):
        arms += [loop_arm(spec, k, pair) for k in request.settings.ks]
    if request.compare == "transformers":
        plain = transformers_generate(peers[0], sampling, None)
        arms.append(PeerArm("transformers generate", NO_DRAFT, 0, temperature, plain, clock))
        for (spec, _), pair in zip(request.drafts, peers, strict=True):
            if not spec.is_model and spec.prompt_lookup is None:  # transformers has no such source
                continue
            label = "transformers assisted" if spec.is_model else "transformers prompt lookup"
            label += f" by {spec.name}" if len(pairs) > 1 else ""
            for k in (k for k in request.settings.ks if isinstance(k, int)):
                assisted = transformers_generate(pair, sampling, k, spec.prompt_lookup and spec.prompt_lookup[0])
                arms.append(PeerArm(label, spec.name, k, temperature, assisted, clock))
    return Contest(loop_arm(parse_draft(NO_DRAFT), 0, pairs[0]), arms, sampling)


def _warm_up(
    contests: dict[float, Contest], dialogue: _Dialogue, request: BenchRequest, progress: Progress
) -> dict[float, list[Run]]:
    task = progress.add_task("warming up", total=len(contests))
    warm = {}
    for temperature, contest in contests.items():
        with _memory_for_text():
            warm[temperature] = measure.warm_up(contest, dialogue, request.settings.max_new_tokens)
        progress.advance(task)
    progress.remove_task(task)
    return warm


def _measure(
    request: BenchRequest,
    pairs: Sequence[Pair],
    contests: dict[float, Contest],
    dialogues: Sequence[_Dialogue],
    session: Session,
    lines: Sequence[RunsFile],
    progress: Progress,
) -> float | None:
    """Fill the session; what share of the cores' time other processes took."""
    coarsest = pairs[0].checkpoint.coarsest_dtype
    rounding: float | None = torch.finfo(coarsest).eps if coarsest.itemsize < 4 else 0.0
    if request.settings.simulated_acceptance is not None:
        rounding = None
    cases = sum(d.turns for d in dialogues)
    total = sum(len(measure.in_turn(contest, 0)) for contest in contests.values()) * cases
    task: TaskID = progress.add_task("measuring", total=total, completed=len(session.runs))

    def on_run(run: Run) -> None:
        for line in lines:
            line.write("run", asdict(run))
        progress.advance(task)

    others = OtherProcesses()
    with _memory_for_text(), others:
        measure.benchmark(
            contests,
            dialogues,
            target=pairs[0].target,
            rounding=rounding,
            max_new_tokens=request.settings.max_new_tokens,
            seed=request.settings.seed,
            session=session,
            on_run=on_run,
        )
    on_cpu = all(device.type == "cpu" for device in _devices(pairs))
    return others.share if on_cpu else None


def _document(
    request: BenchRequest,
    pairs: Sequence[Pair],
    contests: dict[float, Contest],
    dialogues: Sequence[_Dialogue],
    session: Session,
    head: dict[str, Any],
    others: float | None,
) -> dict[str, Any]:
    results = summary.results(session.runs)
    mark_best(results)
    if request.settings.simulated_acceptance is not None:
        for result in results:  # nothing was compared
            result["lossless"] |= {"checked": False, "identical": None}
    if request.check_distribution and not session.interrupted:
        try:
            _check_distributions(request, contests, dialogues, results)
        except KeyboardInterrupt:  # what was measured is worth showing
            session.interrupted = True
    checkpoint = pairs[0].checkpoint
    steps = [r["cost"]["target_step_s"] for r in results if r["cost"]]
    copied = copy_bandwidth(checkpoint.device, clock_for(checkpoint.device))
    share = checkpoint.step_bytes / min(steps) / copied if steps else None
    on_cpu = others is not None
    found = caveats(
        session.runs,
        session.controls,
        others_share=others,
        threads_and_cores=threads_and_cores() if on_cpu else None,
        interrupted=session.interrupted,
    )
    return document(
        **head,
        results=results,
        baseline_samples=summary.samples(measure.plain_runs(session.runs)),
        recommendation=recommend(results),
        peers=summary.peer_results(session.runs),
        control={"runs": len(session.controls), "drift": drift(session.runs, session.controls)},
        memory={"peak_bytes": peak_memory(checkpoint.device)},
        bandwidth={"step_bytes": checkpoint.step_bytes, "copy_bytes_per_s": copied, "share": share},
        others_share=others,
        warnings=[asdict(caveat) for caveat in found],
    )


def _quantisation(
    request: BenchRequest, pairs: Sequence[Pair], dialogues: Sequence[_Dialogue], session: Session, report: Report
) -> dict[str, Any] | None:
    """How far a quantised target is from itself, on what it answered; None where it is not, or that cannot be told."""
    if request.settings.simulated_acceptance is not None or session.interrupted:
        return None
    whole = load_unquantised(request.target, pairs[0], report)
    if whole is None:
        return None
    answers = {run.prompt: run.token_ids for run in session.runs if run.arm == NO_DRAFT and run.turn == 1}
    texts = [(dialogues[i - 1].prompt_ids(()), ids[:COMPARED_TOKENS]) for i, ids in sorted(answers.items())]
    return asdict(compare(pairs[0].target, whole, texts[:COMPARED_ANSWERS]))


def _check_distributions(
    request: BenchRequest,
    contests: dict[float, Contest],
    dialogues: Sequence[_Dialogue],
    results: Sequence[dict[str, Any]],
) -> None:
    prompts = [dialogue.prompt_ids(()) for dialogue in dialogues]
    chosen: dict[float, Sequence[int]] = {}
    sampled = [r for r in results if r["category"] == summary.ALL and r["temperature"] > 0]
    with _progress(PipeConsole(stderr=True, highlight=False), request.quiet) as progress:
        for result in progress.track(sampled, description="checking distributions"):
            _check_distribution(result, contests[result["temperature"]], prompts, chosen)


def _check_distribution(
    result: dict[str, Any], contest: Contest, prompts: Sequence[Sequence[int]], chosen: dict[float, Sequence[int]]
) -> None:
    """Sample one arm; `chosen` remembers each temperature's prompt."""
    arm = next(a for a in contest.arms if (a.name, a.k) == (result["draft"], result["k"]))
    assert isinstance(arm, LoopArm)
    t = result["temperature"]
    if t not in chosen:
        chosen[t] = least_certain(arm.target, prompts, contest.sampling)
    check = check_first_tokens(
        arm.target, arm.drafter, chosen[t], contest.sampling, arm.k if isinstance(arm.k, int) else FIRST
    )
    result["lossless"] |= {"checked": True, "identical": None, "distribution": asdict(check)}


def _exit_code(request: BenchRequest, session: Session, record: dict[str, Any]) -> int:
    whole = [r for r in record["results"] if r["category"] == summary.ALL]
    wrong = [r for r in whole if r["lossless"]["unexplained"]]
    wrong += [r for r in whole if not r["lossless"].get("distribution", {"passed": True})["passed"]]
    if wrong:
        raise SpecdecError(
            f"not lossless with --draft {wrong[0]['draft']} at K {wrong[0]['k']}: this is a fault of specdec, or the "
            "model's pass over several tokens is wrong (see specdec pair-check --probe); please report it"
        )
    if session.interrupted:
        return INTERRUPTED
    if request.fail_if_slower is not None:
        points = record["recommendation"] if request.sweep else whole
        if any(point["speedup"] < request.fail_if_slower for point in points):
            return SLOWER
    return 0


# ------------------------------------------------------------------------------------------ output
def _open_lines(request: BenchRequest, stack: ExitStack, head: dict[str, Any], known: Sequence[Run]) -> list[RunsFile]:
    """Where every run goes as it comes: the file of --resume, and what --format jsonl writes to."""
    lines = []
    if request.resume is not None:
        keep_runs(request.resume)
        lines.append(RunsFile(stack.enter_context(request.resume.open("a", encoding="utf-8"))))
        if not request.resume.stat().st_size:
            lines[0].write("session", head)
    if request.output_format == "jsonl":
        out = sys.stdout if request.output is None else stack.enter_context(request.output.open("w", encoding="utf-8"))
        lines.append(RunsFile(out))
        lines[-1].write("session", head)
        for run in known:
            lines[-1].write("run", asdict(run))
    return lines


def _show(request: BenchRequest, record: dict[str, Any], err: PipeConsole) -> None:
    aside = request.export is not None and request.output is None  # an exported configuration has stdout for itself
    if aside and request.quiet:
        return
    with ExitStack() as stack:
        out: IO[str] = err.file if aside else sys.stdout
        if request.output is not None:
            out = stack.enter_context(whole_file(request.output))
        if request.output_format == "json":
            out.write(to_json(record, indent=2) + "\n")
        elif request.output_format == "csv":
            out.write(to_csv(reports.rows(record)))
        elif request.output_format == "markdown":
            out.write(to_markdown(reports.short_rows(record)))
        else:
            width = None if out.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
            console = PipeConsole(file=out, highlight=False, width=width)
            console.print(reports.sweep_report(record) if request.sweep else reports.bench_report(record))
            if request.sweep and len(request.settings.ks) > 1:
                from specdec_cli.reports.plots import text_plot

                console.print(text_plot(record["results"], console.width), markup=False, soft_wrap=True)
        out.flush()


def _show_plan(
    request: BenchRequest, contests: dict[float, Contest], warm: dict[float, list[Run]], cases: int, known: int
) -> int:
    tokens = request.settings.max_new_tokens
    console = PipeConsole(highlight=False)
    for temperature, contest in contests.items():
        arms = ", ".join(f"{arm.name}" + (f" K {arm.k}" if arm.k else "") for arm in contest.arms)
        console.print(f"temperature {temperature:g}: plain decoding against {arms}", markup=False, soft_wrap=True)
    runs = sum(len(measure.in_turn(contest, 0)) for contest in contests.values()) * cases
    seconds = measure.estimate_s(contests, warm, cases, tokens) * (runs - known) / runs
    done = f", {known} of them in {request.resume} already" if known else ""
    console.print(
        f"{counted(cases, 'answer')} of {tokens} tokens each, {runs} runs{done}: about {_duration(seconds)}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    return 0


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _exported(request: BenchRequest, pairs: Sequence[Pair], record: dict[str, Any]) -> str:
    """The best point in the words of the tool that --export names."""
    best = max(record["recommendation"], key=lambda point: point["speedup"])
    spec, pair = next((s, p) for (s, _), p in zip(request.drafts, pairs, strict=True) if s.name == best["draft"])
    return export(_recommendation(request, spec, pair, best["k"], best["temperature"]), request.export or "")


def _recommendation(request: BenchRequest, spec: DraftSpec, pair: Pair, k: int, temperature: float) -> Recommendation:
    facts = pair.facts_for_other_tools()
    if spec.prompt_lookup is not None:
        facts |= dict(zip(("lookup_max", "lookup_min"), spec.prompt_lookup, strict=True))
    target, draft = (
        str(EMBEDDED.get(source, source)) for source in (request.target.source, spec.model or PROMPT_LOOKUP)
    )
    return Recommendation(target=target, draft=draft, k=k, temperature=temperature, **facts)


def _machine(record: dict[str, Any]) -> str:
    env = record["environment"]
    devices = [d for d in env["devices"] if d != "cpu"] or [f"{env['cpu']}, {counted(env['threads'], 'thread')}"]
    return ", ".join(devices)


# ------------------------------------------------------------------------------------------- parts
def _devices(pairs: Sequence[Pair]) -> list[torch.device]:
    return list(dict.fromkeys(device for pair in pairs for device in pair.devices))


def _settings(request: BenchRequest, pairs: Sequence[Pair]) -> dict[str, Any]:
    drafts = [describe_draft(spec, model, pair) for (spec, model), pair in zip(request.drafts, pairs, strict=True)]
    sampling = {k: v for k, v in asdict(request.sampling).items() if k != "temperature"}
    return {
        "target": describe(request.target, pairs[0].checkpoint),
        "drafts": drafts,
        "prompts": request.prompt_source,
        "prompts_sha256": request.prompts_sha256,
        "sampling": sampling,
        **asdict(request.settings),
        "seed_derivation": DERIVATION,
        "system": request.system,
        "raw": request.raw,
        "compare": request.compare,
    }


def _memory_for_text() -> AbstractContextManager[None]:
    return out_of_memory("for the text and its cache", "lower --max-new-tokens or choose a smaller model")


@contextmanager
def _progress(err: PipeConsole, quiet: bool) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as progress:
        yield progress
