"""Options of `specdec bench`, and what `specdec sweep-k` shares with it: both measure the same way."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from specdec_cli.cli.options.declare import MODELS, OUTPUT, SAMPLING, SPECULATION, InPanel, flag, option
from specdec_cli.cli.options.decoding import ConversationOptions, SamplingOptions, SpeculationOptions, seed_or_new
from specdec_cli.cli.options.models import ModelChoice, RunningOptions, SeveralDrafts, choose_models
from specdec_cli.cli.options.output import FORMAT, OutputOptions, ReportFormat, require_files
from specdec_cli.cli.running import reader_may_leave, starting
from specdec_cli.errors import UsageError
from specdec_cli.settings import NO_DRAFT, BenchSettings, KChoice, ModelSettings

MEASUREMENT = "Measurement"


class Peer(StrEnum):
    """Values of --compare."""

    transformers = "transformers"


@dataclass(frozen=True)
class TimingOptions(RunningOptions):
    """How models are loaded and run where their times are what counts."""

    dummy_weights: Annotated[
        bool,
        flag(
            "--dummy-weights",
            panel=MODELS,
            help="Random weights in the models' shapes: time a pair before downloading it.",
        ),
    ] = ModelSettings.dummy_weights

    def _alike(self, settings: ModelSettings) -> ModelSettings:
        return replace(super()._alike(settings), dummy_weights=self.dummy_weights)


@dataclass(frozen=True)
class MeasuredSpeculation(SpeculationOptions):
    """How much is drafted, and whether the rule or a known probability accepts it."""

    simulate_acceptance: Annotated[
        float | None,
        option(
            "--simulate-acceptance",
            panel=SPECULATION,
            help="Accept each drafted token with this probability: speeds at a known alpha, meaningless text.",
        ),
    ] = BenchSettings.simulated_acceptance

    def ks(self, models: ModelChoice) -> tuple[KChoice, ...]:
        """Every K to measure."""
        return (self.k_for(models),)


@dataclass(frozen=True)
class ResultOptions:
    """What becomes of what was measured."""

    fail_if_slower: Annotated[
        float | None,
        option(
            "--fail-if-slower",
            panel=OUTPUT,
            help="Exit code 5 where the speedup is below this (1 where no number follows).",
        ),
    ] = None
    resume: Annotated[
        Path | None,
        option("--resume", panel=OUTPUT, help="Keep every run in this file, and go on from there."),
    ] = None

    @property
    def files(self) -> dict[str, Path | None]:
        """What may be written, by option."""
        return {"--resume": self.resume}


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Everything that `specdec bench` takes."""

    pair: SeveralDrafts
    loading: TimingOptions
    speculation: MeasuredSpeculation
    temperature: Annotated[
        list[float] | None,
        option("--temperature", panel=SAMPLING, metavar="<float>", help="0 is greedy (default: 0); repeatable."),
    ] = None
    sampling: SamplingOptions
    prompts: Annotated[
        str | None,
        option(
            "--prompts",
            panel=MEASUREMENT,
            help="FILE of lines or JSONL, or a built-in set: mixed, editing, code (default: code for the demo pair, "
            "else mixed).",
        ),
    ] = None
    limit: Annotated[
        int, option("--limit", panel=MEASUREMENT, help="Use only so many prompts; 0: all.", show_default=False)
    ] = BenchSettings.limit
    max_new_tokens: Annotated[
        int, option("--max-new-tokens", "-n", panel=MEASUREMENT, help="Generated for each prompt.")
    ] = BenchSettings.max_new_tokens
    ignore_eos: Annotated[
        bool,
        flag(
            "--ignore-eos/--no-ignore-eos",
            panel=SAMPLING,
            help="Generate exactly so many, past the model's end token.",
        ),
    ] = BenchSettings.ignore_end_token
    conversation: Annotated[ConversationOptions, InPanel(MEASUREMENT)]
    compare: Annotated[
        Peer | None, option("--compare", panel=MEASUREMENT, help="Measure another tool in the same session.")
    ] = None
    check_distribution: Annotated[
        bool,
        flag(
            "--check-distribution",
            panel=MEASUREMENT,
            help="Above temperature 0: chi-square of sampled first tokens against the target's.",
        ),
    ] = False
    dry_run: Annotated[
        bool,
        flag("--dry-run", panel=MEASUREMENT, help="Tell what would be measured; load no weights."),
    ] = False
    results: ResultOptions
    output_format: Annotated[ReportFormat, FORMAT] = ReportFormat.table
    output: OutputOptions

    def settings(self, models: ModelChoice) -> BenchSettings:
        """What is varied, and how long it goes on; a session that is resumed keeps its seed.

        Raises:
            UsageError: one of them is not what it must be, or --resume is no file of runs.
        """
        from specdec_cli.reports.runs_file import seed_of

        self.speculation.require_use(models)
        seed = self.sampling.seed
        if seed is None and self.results.resume is not None:
            seed = seed_of(self.results.resume)
        return BenchSettings(
            ks=self.speculation.ks(models),
            temperatures=tuple(dict.fromkeys(self.temperature or BenchSettings.temperatures)),
            max_new_tokens=self.max_new_tokens,
            limit=self.limit,
            ignore_end_token=self.ignore_eos,
            seed=seed_or_new(seed),
            simulated_acceptance=self.speculation.simulate_acceptance,
            draft_stop=self.speculation.draft_stop,
            draft_tree=self.speculation.draft_tree,
        )


def bench(options: BenchOptions) -> int:
    """Measure how much faster a draft makes the target here, and where the time goes."""
    models, settings = choose(options)
    return measure(options, models, settings)


def choose(options: BenchOptions) -> tuple[ModelChoice, BenchSettings]:
    """The models and settings of either subcommand, checked for contradictions.

    Raises:
        UsageError: there is one.
    """
    models = choose_models(options.pair, options.loading)
    _require_no_baseline(models)
    require_files({"--output": options.output.output, **options.results.files})
    _require_no_memory_beside_resume(options, models)
    settings = options.settings(models)
    options.conversation.settings()  # what is wrong with it is told before anything is read
    _require_sampling_to_check(options, settings)
    _require_the_rule_where_it_is_simulated(options)
    _require_the_same_work_of_peers(options, settings)
    slowest = options.results.fail_if_slower
    if slowest is not None and not slowest > 0:
        raise UsageError(f"--fail-if-slower must be above 0, not {slowest:g}")
    return models, settings


def measure(
    options: BenchOptions,
    models: ModelChoice,
    settings: BenchSettings,
    *,
    sweep: bool = False,
    plot: Path | None = None,
    export: str | None = None,
) -> int:
    """Read the prompts and run; the last three are for sweep-k."""
    from specdec_cli.prompts import load_prompts

    sampling = [options.sampling.settings(temperature) for temperature in settings.temperatures]
    source = options.prompts or ("code" if models.target.source.startswith("demo:") else "mixed")
    prompts = load_prompts(source)
    with starting(options.output.quiet):
        from specdec_cli.commands import bench as command

    return reader_may_leave(
        command.run,
        command.BenchRequest(
            target=models.target,
            drafts=[(draft.spec, draft.model) for draft in models.drafts],
            settings=settings,
            sampling=sampling[0],
            prompts=prompts[: settings.limit or None],
            prompt_source=source,
            prompts_sha256=hashlib.sha256(repr(prompts).encode()).hexdigest(),
            conversation=options.conversation.settings(),
            sweep=sweep,
            compare=options.compare and options.compare.value,
            check_distribution=options.check_distribution,
            dry_run=options.dry_run,
            resume=options.results.resume,
            plot=plot,
            export=export,
            fail_if_slower=options.results.fail_if_slower,
            output_format=options.output_format.value,
            output=options.output.output,
            quiet=options.output.quiet,
            verbose=options.output.verbose,
        ),
    )


def _require_no_baseline(models: ModelChoice) -> None:
    if any(draft.name == NO_DRAFT for draft in models.drafts):
        raise UsageError(
            f"--draft {NO_DRAFT} is the baseline, which is always measured: name a draft to stand against it"
        )


def _require_no_memory_beside_resume(options: BenchOptions, models: ModelChoice) -> None:
    learner = next((draft.name for draft in models.drafts if draft.spec.learns), None)
    if options.results.resume is not None and learner is not None:
        raise UsageError(
            f"--draft {learner} learns from prompt to prompt, which a resumed session cannot: leave --resume out, or "
            "switch the memory off (suffix:memory=off)"
        )


def _require_sampling_to_check(options: BenchOptions, settings: BenchSettings) -> None:
    if options.check_distribution and not any(settings.temperatures):
        raise UsageError("--check-distribution needs a --temperature above 0; at 0 ids are compared anyway")


def _require_the_rule_where_it_is_simulated(options: BenchOptions) -> None:
    simulated = options.speculation.simulate_acceptance is not None
    if simulated and (options.compare is not None or options.check_distribution):
        raise UsageError("--simulate-acceptance replaces the rule: leave out --compare and --check-distribution")


def _require_the_same_work_of_peers(options: BenchOptions, settings: BenchSettings) -> None:
    if options.compare is None:
        return
    if not all(isinstance(k, int) for k in settings.ks):
        raise UsageError("--compare needs a number for --k, the same for both")
    if settings.draft_stop:
        raise UsageError("--compare needs drafts of K tokens, the same for both: leave out --draft-stop")
    if not settings.ignore_end_token:
        raise UsageError("--compare needs --ignore-eos, so that all generate the same number of tokens")
