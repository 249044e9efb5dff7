"""Options of `specdec sweep-k`: those of `specdec bench` at many K, and what is made of the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specdec_cli.cli.bench import BenchOptions, MeasuredSpeculation, ResultOptions, choose, measure
from specdec_cli.cli.options.declare import OUTPUT, SPECULATION, option
from specdec_cli.cli.options.models import ModelChoice
from specdec_cli.cli.options.output import ReportFormat
from specdec_cli.errors import UsageError
from specdec_cli.ranges import parse_range
from specdec_cli.settings import KChoice

EXPORT_TOOLS = "vllm, sglang, llama.cpp, transformers, mlx or trtllm"


@dataclass(frozen=True)
class SweptSpeculation(MeasuredSpeculation):
    """How much is drafted, at every K of a range."""

    k: Annotated[
        str,
        option("--k", "-k", panel=SPECULATION, help="Every K to measure: 1,2,4 or 1-8 or 2-16*2 or 1-9+2."),
    ] = "1-8"

    def ks(self, models: ModelChoice) -> tuple[KChoice, ...]:
        """All of the range."""
        return parse_range(self.k, "--k")


@dataclass(frozen=True)
class SweepResultOptions(ResultOptions):
    """What becomes of what was measured at many K."""

    plot: Annotated[
        Path | None, option("--plot", panel=OUTPUT, help="Draw speedup against K: FILE.png or FILE.svg.")
    ] = None
    export: Annotated[
        str | None,
        option("--export", panel=OUTPUT, help=f"Print the recommended configuration for {EXPORT_TOOLS} instead."),
    ] = None

    @property
    def files(self) -> dict[str, Path | None]:
        """What may be written, by option."""
        return {**super().files, "--plot": self.plot}


@dataclass(frozen=True, kw_only=True)
class SweepOptions(BenchOptions):
    """Everything that `specdec sweep-k` takes."""

    speculation: SweptSpeculation
    results: SweepResultOptions


def sweep_k(options: SweepOptions) -> int:
    """Measure every K (tokens drafted a round) and say which to use."""
    models, settings = choose(options)
    plot, export = options.results.plot, options.results.export
    if plot is not None:
        from specdec_cli.reports.plots import check_plot

        check_plot(plot, "--plot")
    if export is not None:
        _require_form(export, models)
        if options.output_format is not ReportFormat.table and options.output.output is None:
            raise UsageError(
                f"--export and --format {options.output_format.value} both write to stdout: add --output FILE for the "
                "measurement, or leave one out"
            )
    return measure(options, models, settings, sweep=True, plot=plot, export=export)


def _require_form(tool: str, models: ModelChoice) -> None:
    """A form in the configuration of `tool` for every draft: any of them may turn out the best."""
    from specdec_cli.reports.recommend import TOOLS

    if tool not in TOOLS:
        raise UsageError(f"--export must be one of {', '.join(TOOLS)}, not '{tool}'")
    for draft in models.drafts:
        if not draft.spec.is_model and draft.spec.prompt_lookup is None:
            raise UsageError(f"--export has no form for --draft {draft.name}: leave one of them out")
        if not draft.spec.is_model and TOOLS[tool].prompt_lookup is None:
            raise UsageError(f"--export {tool} has no form for prompt lookup: leave out --draft {draft.name}")
