"""Options of `specdec predict`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specdec_cli.cli.options.declare import OUTPUT, option, refuse_given
from specdec_cli.cli.options.output import FORMAT, Output, ReportFormat, require_files
from specdec_cli.cli.running import reader_may_leave
from specdec_cli.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.prediction import Costs, Estimate

COSTS, ROOFLINE = "Costs, in target steps", "Costs estimated from sizes and machine"


class WeightDtype(StrEnum):
    """Values of --dtype where only the weights' size matters."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float8 = "float8"
    int8 = "int8"
    int4 = "int4"


@dataclass(frozen=True)
class CostOptions:
    """Costs as they were measured."""

    cost: Annotated[float | None, option("--cost", panel=COSTS, help="c: a draft step.")] = None
    verify: Annotated[
        str | None,
        option(
            "--verify",
            panel=COSTS,
            help="v: the pass over K + 1 tokens, as 1.1, or as 4=1.05,8=1.3 for some K (default: 1).",
        ),
    ] = None
    overhead: Annotated[float, option("--overhead", panel=COSTS, help="o: a round's remaining time.")] = 0.0


@dataclass(frozen=True)
class RooflineOptions:
    """What costs are estimated from where nothing was measured."""

    target_params: Annotated[
        str | None, option("--target-params", panel=ROOFLINE, help="The target's size, as 70B.")
    ] = None
    draft_params: Annotated[str | None, option("--draft-params", panel=ROOFLINE, help="The draft's size, as 135M.")] = (
        None
    )
    dtype: Annotated[WeightDtype, option("--dtype", panel=ROOFLINE, help="What the weights are stored in.")] = (
        WeightDtype.bfloat16
    )
    draft_dtype: Annotated[
        WeightDtype | None, option("--draft-dtype", panel=ROOFLINE, help="The draft's type, if another.")
    ] = None
    bandwidth: Annotated[
        str | None, option("--bandwidth", panel=ROOFLINE, help="Of the memory, as 3.35TB/s or 50GB/s.")
    ] = None
    flops: Annotated[
        str | None, option("--flops", panel=ROOFLINE, help="Floating-point operations a second, as 1979T.")
    ] = None

    def estimate(self) -> Estimate | None:
        """What costs are estimated from; None where none of it is given.

        Raises:
            UsageError: something is missing or no quantity.
        """
        from specdec_cli.prediction import Estimate
        from specdec_cli.quantities import parse_arithmetic, parse_bandwidth, parse_parameters
        from specdec_cli.roofline import Machine, Model

        target, draft, bandwidth, flops = self.target_params, self.draft_params, self.bandwidth, self.flops
        given = {"--target-params": target, "--draft-params": draft, "--bandwidth": bandwidth, "--flops": flops}
        missing = [option for option, value in given.items() if value is None]
        if len(missing) == len(given):
            return None
        if target is None or draft is None or bandwidth is None or flops is None:
            raise UsageError(f"{', '.join(missing)} missing: costs are estimated from {', '.join(given)} together")
        machine = Machine(parse_bandwidth(bandwidth, "--bandwidth"), parse_arithmetic(flops, "--flops"))
        return Estimate(
            Model(parse_parameters(target, "--target-params"), self.dtype.value),
            Model(parse_parameters(draft, "--draft-params"), (self.draft_dtype or self.dtype).value),
            machine,
        )


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Everything that `specdec predict` takes."""

    alpha: Annotated[float, option("--alpha", "-a", help="Probability that a drafted token is accepted.")]
    k: Annotated[str, option("--k", "-k", help="Every K to predict: 1,2,4 or 1-8 or 2-16*2 or 1-9+2.")] = "1-16"
    costs: CostOptions
    roofline: RooflineOptions
    simulate: Annotated[
        int, option("--simulate", help="Run so many rounds of the accept/reject rule at each K; 0: none.")
    ] = 0
    seed: Annotated[int, option("--seed", help="Of the simulation.")] = 0
    plot: Annotated[
        Path | None, option("--plot", panel=OUTPUT, help="Draw tokens a pass and speedup: FILE.png or FILE.svg.")
    ] = None
    output_format: Annotated[ReportFormat, FORMAT] = ReportFormat.table
    output: Output = None


def predict(options: PredictOptions) -> int:
    """Say what speculation would gain, by the formulas alone: no models, no torch."""
    from specdec_cli.commands import predict as command
    from specdec_cli.ranges import parse_range

    estimate = options.roofline.estimate()
    request = command.PredictRequest(
        alpha=options.alpha,
        costs=_costs(options, estimate),
        ks=parse_range(options.k, "--k"),
        estimate=estimate,
        simulated_rounds=options.simulate,
        seed=options.seed,
        plot=options.plot,
        output_format=options.output_format.value,
        output=options.output,
    )
    if not options.simulate:
        refuse_given(options, ("seed",), "is of the simulation: add --simulate, or leave it out")
    require_files({"--output": options.output, "--plot": options.plot})
    if options.plot is not None:
        from specdec_cli.reports.plots import check_plot

        check_plot(options.plot, "--plot")
    return reader_may_leave(command.run, request)


def _costs(options: PredictOptions, estimate: Estimate | None) -> Costs:
    """Those given, or those estimated; never some of either."""
    from specdec_cli.prediction import Costs, parse_verify

    cost, verify, overhead = options.costs.cost, options.costs.verify, options.costs.overhead
    if estimate is not None:
        if cost is not None or verify is not None:
            raise UsageError(
                "--cost and --verify are estimated from --target-params, --draft-params and the machine: give either "
                "those or these"
            )
        return estimate.costs(overhead)
    if cost is None:
        raise UsageError(
            "--cost is missing: give a draft step in target steps, or --target-params, --draft-params, --bandwidth and "
            "--flops to estimate it"
        )
    refuse_given(
        options.roofline,
        ("dtype", "draft_dtype"),
        "is for costs that are estimated from --target-params and others: leave it out",
    )
    return Costs(cost, 1.0 if verify is None else parse_verify(verify), overhead)
