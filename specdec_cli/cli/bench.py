"""Options of `specdec bench` and `specdec sweep-k`, which measure the same way."""

from __future__ import annotations

import hashlib
import secrets
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.cli import options as o
from specdec_cli.errors import UsageError
from specdec_cli.settings import AUTO, NO_DRAFT, BenchSettings, KChoice, SamplingSettings

EXPORT_TOOLS = "vllm, sglang, llama.cpp, transformers, mlx or trtllm"
MEASUREMENT = "Measurement"


class ReportFormat(StrEnum):
    """Values of --format where the result is a measurement."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    markdown = "markdown"


class Peer(StrEnum):
    """Values of --compare."""

    transformers = "transformers"


PromptsOption = Annotated[
    str | None,
    typer.Option(
        help="FILE of lines or JSONL (Spec-Bench, MT-Bench, HumanEval too), or a built-in set: mixed, editing, code "
        "(default: code for the demo pair, else mixed).",
        rich_help_panel=MEASUREMENT,
        show_default=False,
    ),
]
LimitOption = Annotated[int, typer.Option(help="Use only so many prompts; 0: all.", rich_help_panel=MEASUREMENT)]
TokensOption = Annotated[
    int, typer.Option("--max-new-tokens", "-n", help="Generated for each prompt.", rich_help_panel=MEASUREMENT)
]
IgnoreEosOption = Annotated[
    bool,
    o.flag(
        "--ignore-eos/--no-ignore-eos",
        panel=o.SAMPLING,
        help="Generate exactly so many, past the model's end token.",
    ),
]
TemperaturesOption = Annotated[
    list[float] | None,
    typer.Option(
        "--temperature",
        metavar="<float>",
        help="0 is greedy (default: 0); repeatable.",
        rich_help_panel=o.SAMPLING,
        show_default=False,
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option(
        "--system", help="System message of every conversation.", rich_help_panel=MEASUREMENT, show_default=False
    ),
]
RawOption = Annotated[
    bool,
    o.flag("--raw", panel=MEASUREMENT, help="Send prompts as they are, without the chat template."),
]
CompareOption = Annotated[
    Peer | None,
    typer.Option(
        "--compare", help="Measure another tool in the same session.", rich_help_panel=MEASUREMENT, show_default=False
    ),
]
CheckOption = Annotated[
    bool,
    o.flag(
        "--check-distribution",
        panel=MEASUREMENT,
        help="Above temperature 0: chi-square of sampled first tokens against the target's.",
    ),
]
DryRunOption = Annotated[bool, o.flag("--dry-run", panel=MEASUREMENT, help="Show the plan and how long it would take.")]
DummyOption = Annotated[
    bool,
    o.flag(
        "--dummy-weights",
        panel=o.MODELS,
        help="Random weights in the models' shapes: time a pair before downloading it.",
    ),
]
SimulateOption = Annotated[
    float | None,
    typer.Option(
        "--simulate-acceptance",
        help="Accept each drafted token with this probability: speeds at a known alpha, meaningless text.",
        rich_help_panel=o.SPECULATION,
        show_default=False,
    ),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Keep every run in this JSONL file, and skip those that are there.",
        rich_help_panel=o.OUTPUT,
        show_default=False,
    ),
]
SlowerOption = Annotated[
    float | None,
    typer.Option(
        "--fail-if-slower",
        help="Exit code 5 where the speedup is below this (1 where no number follows).",
        rich_help_panel=o.OUTPUT,
        show_default=False,
    ),
]
FormatOption = Annotated[ReportFormat, typer.Option("--format", help="What goes to stdout.", rich_help_panel=o.OUTPUT)]


def bench(
    preset: o.PresetOption = None,
    target: o.TargetOption = None,
    draft: o.DraftsOption = None,
    device: o.DeviceOption = "auto",
    draft_device: o.DraftDeviceOption = None,
    dtype: o.DtypeOption = o.Dtype.auto,
    draft_dtype: o.DraftDtypeOption = None,
    quantize: o.QuantizeOption = o.Quantize.keep,
    draft_quantize: o.DraftQuantizeOption = o.DraftQuantize.keep,
    draft_vocab: o.DraftVocabOption = AUTO,
    revision: o.RevisionOption = None,
    draft_revision: o.DraftRevisionOption = None,
    offline: o.OfflineOption = False,
    trust_remote_code: o.TrustOption = False,
    graphs: o.GraphsOption = o.Graphs.auto,
    compile: o.CompileOption = False,
    dummy_weights: DummyOption = False,
    simulate_acceptance: SimulateOption = None,
    k: o.KOption = None,
    draft_stop: o.DraftStopOption = 0.0,
    temperature: TemperaturesOption = None,
    top_k: o.TopKOption = 0,
    top_p: o.TopPOption = 1.0,
    min_p: o.MinPOption = 0.0,
    repetition_penalty: o.PenaltyOption = 1.0,
    seed: o.SeedOption = None,
    prompts: PromptsOption = None,
    limit: LimitOption = 0,
    max_new_tokens: TokensOption = 128,
    ignore_eos: IgnoreEosOption = True,
    system: SystemOption = None,
    raw: RawOption = False,
    compare: CompareOption = None,
    check_distribution: CheckOption = False,
    dry_run: DryRunOption = False,
    fail_if_slower: SlowerOption = None,
    resume: ResumeOption = None,
    output_format: FormatOption = ReportFormat.table,
    output: o.OutputOption = None,
    quiet: o.QuietOption = False,
) -> int:  # fmt: skip
    """Measure what speculation gains here, beside what the formula says, and where the difference goes."""
    models = o.choose_models(
        preset=preset, target=target, drafts=draft or [], device=device, draft_device=draft_device, dtype=dtype,
        draft_dtype=draft_dtype, revision=revision, draft_revision=draft_revision, offline=offline,
        trust_remote_code=trust_remote_code, dummy_weights=dummy_weights,
        quantize=quantize, draft_quantize=draft_quantize, draft_vocab=draft_vocab, graphs=graphs, compile=compile,
        draft_stop=draft_stop,
    )  # fmt: skip
    return _measure(
        models, ks=(o.parse_k(k, models.k),), temperatures=temperature,
        sampling=(top_k, top_p, min_p, repetition_penalty), seed=seed, prompts=prompts, limit=limit,
        max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, system=system, raw=raw, compare=compare,
        check_distribution=check_distribution, dry_run=dry_run, resume=resume,
        fail_if_slower=fail_if_slower, output_format=output_format, output=output, quiet=quiet,
        simulated=simulate_acceptance, draft_stop=draft_stop,
    )  # fmt: skip


def sweep_k(
    preset: o.PresetOption = None,
    target: o.TargetOption = None,
    draft: o.DraftsOption = None,
    device: o.DeviceOption = "auto",
    draft_device: o.DraftDeviceOption = None,
    dtype: o.DtypeOption = o.Dtype.auto,
    draft_dtype: o.DraftDtypeOption = None,
    quantize: o.QuantizeOption = o.Quantize.keep,
    draft_quantize: o.DraftQuantizeOption = o.DraftQuantize.keep,
    draft_vocab: o.DraftVocabOption = AUTO,
    revision: o.RevisionOption = None,
    draft_revision: o.DraftRevisionOption = None,
    offline: o.OfflineOption = False,
    trust_remote_code: o.TrustOption = False,
    graphs: o.GraphsOption = o.Graphs.auto,
    compile: o.CompileOption = False,
    dummy_weights: DummyOption = False,
    simulate_acceptance: SimulateOption = None,
    k: Annotated[
        str,
        typer.Option(
            "--k", "-k", help="Every K to measure: 1,2,4 or 1-8 or 2-16*2 or 1-9+2.", rich_help_panel=o.SPECULATION
        ),
    ] = "1-8",
    draft_stop: o.DraftStopOption = 0.0,
    temperature: TemperaturesOption = None,
    top_k: o.TopKOption = 0,
    top_p: o.TopPOption = 1.0,
    min_p: o.MinPOption = 0.0,
    repetition_penalty: o.PenaltyOption = 1.0,
    seed: o.SeedOption = None,
    prompts: PromptsOption = None,
    limit: LimitOption = 0,
    max_new_tokens: TokensOption = 128,
    ignore_eos: IgnoreEosOption = True,
    system: SystemOption = None,
    raw: RawOption = False,
    compare: CompareOption = None,
    check_distribution: CheckOption = False,
    dry_run: DryRunOption = False,
    fail_if_slower: SlowerOption = None,
    resume: ResumeOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw speedup against K: FILE.png or FILE.svg.", rich_help_panel=o.OUTPUT, show_default=False
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            help=f"Print the recommended configuration for {EXPORT_TOOLS} instead.",
            rich_help_panel=o.OUTPUT, show_default=False,
        ),
    ] = None,
    output_format: FormatOption = ReportFormat.table,
    output: o.OutputOption = None,
    quiet: o.QuietOption = False,
) -> int:  # fmt: skip
    """Measure every K, mark the best, and recommend draft and K with what to expect."""
    from specdec_cli.ranges import parse_range

    ks = parse_range(k, "--k")
    models = o.choose_models(
        preset=preset, target=target, drafts=draft or [], device=device, draft_device=draft_device, dtype=dtype,
        draft_dtype=draft_dtype, revision=revision, draft_revision=draft_revision, offline=offline,
        trust_remote_code=trust_remote_code, dummy_weights=dummy_weights,
        quantize=quantize, draft_quantize=draft_quantize, draft_vocab=draft_vocab, graphs=graphs, compile=compile,
        draft_stop=draft_stop,
    )  # fmt: skip
    return _measure(
        models, ks=ks, temperatures=temperature, sampling=(top_k, top_p, min_p, repetition_penalty), seed=seed,
        prompts=prompts, limit=limit, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, system=system, raw=raw,
        compare=compare, check_distribution=check_distribution, dry_run=dry_run, resume=resume,
        fail_if_slower=fail_if_slower, output_format=output_format, output=output, quiet=quiet, sweep=True, plot=plot,
        export=export, simulated=simulate_acceptance, draft_stop=draft_stop,
    )  # fmt: skip


def _measure(
    models: o.ModelChoice,
    *,
    ks: tuple[KChoice, ...],
    temperatures: list[float] | None,
    sampling: tuple[int, float, float, float],
    seed: int | None,
    prompts: str | None,
    limit: int,
    max_new_tokens: int,
    ignore_eos: bool,
    system: str | None,
    raw: bool,
    compare: Peer | None,
    check_distribution: bool,
    dry_run: bool,
    resume: Path | None,
    fail_if_slower: float | None,
    output_format: ReportFormat,
    output: Path | None,
    quiet: bool,
    simulated: float | None,
    draft_stop: float,
    sweep: bool = False,
    plot: Path | None = None,
    export: str | None = None,
) -> int:
    from specdec_cli.prompts import load_prompts
    from specdec_cli.reports.export import check_writable
    from specdec_cli.reports.runs_file import seed_of

    if any(draft.name == NO_DRAFT for draft in models.drafts):
        raise UsageError(
            f"--draft {NO_DRAFT} is the baseline, which is always measured: name a draft to stand against it"
        )
    files = [
        (p, option) for p, option in ((output, "--output"), (resume, "--resume"), (plot, "--plot")) if p is not None
    ]
    for path, option in files:
        check_writable(path, option)
    for (one, option), (other, another) in combinations(files, 2):
        if one.resolve() == other.resolve():
            raise UsageError(f"{option} and {another} name the same file: choose two")
    learner = next((draft.name for draft in models.drafts if draft.spec.learns), None)
    if resume is not None and learner is not None:
        raise UsageError(
            f"--draft {learner} learns from prompt to prompt, which a resumed session cannot: leave --resume out, or "
            "switch the memory off (suffix:memory=off)"
        )
    if seed is None and resume is not None:
        seed = seed_of(resume)
    temperatures = list(dict.fromkeys(temperatures or [0.0]))
    chosen = [SamplingSettings(t, *sampling) for t in temperatures]
    settings = BenchSettings(
        ks=ks,
        temperatures=tuple(temperatures),
        max_new_tokens=max_new_tokens,
        limit=limit,
        ignore_end_token=ignore_eos,
        seed=secrets.randbelow(2**32) if seed is None else seed,
        simulated_acceptance=simulated,
        draft_stop=draft_stop,
    )
    if check_distribution and not any(temperatures):
        raise UsageError("--check-distribution needs a --temperature above 0; at 0 ids are compared anyway")
    if export is not None:
        from specdec_cli.reports.recommend import TOOLS

        if export not in TOOLS:
            raise UsageError(f"--export must be one of {', '.join(TOOLS)}, not '{export}'")
        for draft in models.drafts:  # any of them may turn out the best
            if not draft.spec.is_model and draft.spec.prompt_lookup is None:
                raise UsageError(f"--export has no form for --draft {draft.name}: leave one of them out")
            if not draft.spec.is_model and TOOLS[export].prompt_lookup is None:
                raise UsageError(f"--export {export} has no form for prompt lookup: leave out --draft {draft.name}")
    if plot is not None:
        from specdec_cli.reports.plots import check_plot

        check_plot(plot, "--plot")
    if simulated is not None and (compare is not None or check_distribution):
        raise UsageError("--simulate-acceptance replaces the rule: leave out --compare and --check-distribution")
    if compare is not None and not all(isinstance(k, int) for k in ks):
        raise UsageError("--compare needs a number for --k, the same for both")
    if compare is not None and draft_stop:
        raise UsageError("--compare needs drafts of K tokens, the same for both: leave out --draft-stop")
    if compare is not None and not ignore_eos:
        raise UsageError("--compare needs --ignore-eos, so that all generate the same number of tokens")
    if fail_if_slower is not None and not fail_if_slower > 0:
        raise UsageError(f"--fail-if-slower must be above 0, not {fail_if_slower:g}")
    if export is not None and output_format is ReportFormat.jsonl and output is None:
        raise UsageError("--export and --format jsonl both write to stdout: add --output FILE for the lines")
    source = prompts or ("code" if models.target.source.startswith("demo:") else "mixed")
    todo = load_prompts(source)
    o.silence_libraries(quiet)

    from specdec_cli.commands import bench as command

    return o.reader_may_leave(
        command.run,
        command.BenchRequest(
            target=models.target,
            drafts=[(draft.spec, draft.model) for draft in models.drafts],
            settings=settings,
            sampling=chosen[0],
            prompts=todo[: limit or None],
            prompt_source=source,
            prompts_sha256=hashlib.sha256(repr(todo).encode()).hexdigest(),
            system=system,
            raw=raw,
            sweep=sweep,
            compare=compare and compare.value,
            check_distribution=check_distribution,
            dry_run=dry_run,
            resume=resume,
            plot=plot,
            export=export,
            fail_if_slower=fail_if_slower,
            output_format=output_format.value,
            output=output,
            quiet=quiet,
        ),
    )
