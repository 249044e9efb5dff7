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
    from specdec_cli.roofline import Experts

COSTS, ROOFLINE = "Costs, in target steps", "Costs estimated from sizes and machine"
MIXTURE = "Target that is a mixture of experts"


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
class ExpertOptions:
    """How a target's experts are read, from which v follows."""

    experts: Annotated[int | None, option("--experts", panel=MIXTURE, help="How many there are in a layer, as 8.")] = (
        None
    )
    active: Annotated[int | None, option("--active", panel=MIXTURE, help="How many a token uses, as 2.")] = None
    dense_share: Annotated[
        float,
        option(
            "--dense-share",
            panel=MIXTURE,
            help="Share of the weights of a step that are not experts, as 0.12.",
        ),
    ] = 0.0

    def chosen(self) -> Experts | None:
        """None where the target is no mixture.

        Raises:
            UsageError: one option lacks the other, or they make no mixture.
        """
        from specdec_cli.roofline import Experts

        if self.experts is None and self.active is None:
            refuse_given(self, ("dense_share",), "is of a mixture of experts: add --experts and --active")
            return None
        if self.experts is None or self.active is None:
            missing = "--experts" if self.experts is None else "--active"
            raise UsageError(f"{missing} is missing: a mixture of experts has both, as --experts 8 --active 2")
        if not 1 <= self.active <= self.experts:
            raise UsageError(f"--active must be 1 to --experts ({self.experts}), not {self.active}")
        if not 0 <= self.dense_share < 1:
            raise UsageError(f"--dense-share must be 0 or above and below 1, not {self.dense_share:g}")
        return Experts(self.experts, self.active, self.dense_share)


@dataclass(frozen=True)
class RooflineOptions:
    """What costs are estimated from where nothing was measured."""

    target_params: Annotated[
        str | None,
        option("--target-params", panel=ROOFLINE, help="The target's size, as 70B; of experts, those a token uses."),
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

    def estimate(self, experts: Experts | None) -> Estimate | None:
        """What costs are estimated from; None where none of it is given.

        Args:
            experts: of the target.

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
            Model(parse_parameters(target, "--target-params"), self.dtype.value, experts),
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
    mixture: ExpertOptions
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
    """Compute what speculation would gain, by formula: no models are needed."""
    from specdec_cli.commands import predict as command
    from specdec_cli.ranges import parse_range

    experts = options.mixture.chosen()
    estimate = options.roofline.estimate(experts)
    request = command.PredictRequest(
        alpha=options.alpha,
        costs=_costs(options, estimate, experts),
        experts=experts,
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


def _costs(options: PredictOptions, estimate: Estimate | None, experts: Experts | None) -> Costs:
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
    if experts is not None:
        if verify is not None:
            raise UsageError("--verify is computed from --experts and --active: give either it or these")
        return Costs(cost, lambda k: experts.pass_cost(k + 1), overhead)
    return Costs(cost, 1.0 if verify is None else parse_verify(verify), overhead)
