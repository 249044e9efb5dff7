"""Options of `specdec predict`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.cli import options as o
from specdec_cli.cli.bench import FormatOption, ReportFormat
from specdec_cli.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.prediction import Estimate

COSTS, ROOFLINE = "Costs, in target steps", "Costs estimated from sizes and machine"


class WeightDtype(StrEnum):
    """Values of --dtype where only the weights' size matters."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float8 = "float8"
    int8 = "int8"
    int4 = "int4"


def predict(
    alpha: Annotated[float, typer.Option("--alpha", "-a", help="Probability that a drafted token is accepted.")],
    k: Annotated[str, typer.Option("--k", "-k", help="Every K to predict: 1,2,4 or 1-8 or 2-16*2 or 1-9+2.")] = "1-16",
    cost: Annotated[
        float | None, typer.Option(help="c: a draft step.", rich_help_panel=COSTS, show_default=False)
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            help="v: the pass over K + 1 tokens, as 1.1, or as 4=1.05,8=1.3 for some K (default: 1).",
            rich_help_panel=COSTS, show_default=False,
        ),
    ] = None,
    overhead: Annotated[float, typer.Option(help="o: a round's remaining time.", rich_help_panel=COSTS)] = 0.0,
    target_params: Annotated[
        str | None, typer.Option(help="The target's size, as 70B.", rich_help_panel=ROOFLINE, show_default=False)
    ] = None,
    draft_params: Annotated[
        str | None, typer.Option(help="The draft's size, as 135M.", rich_help_panel=ROOFLINE, show_default=False)
    ] = None,
    dtype: Annotated[
        WeightDtype, typer.Option(help="What the weights are stored in.", rich_help_panel=ROOFLINE)
    ] = WeightDtype.bfloat16,
    draft_dtype: Annotated[
        WeightDtype | None,
        typer.Option(help="The draft's type, if another.", rich_help_panel=ROOFLINE, show_default=False),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="Of the memory, as 3.35TB/s or 50GB/s.", rich_help_panel=ROOFLINE, show_default=False),
    ] = None,
    flops: Annotated[
        str | None,
        typer.Option(
            help="Floating-point operations a second, as 1979T.", rich_help_panel=ROOFLINE, show_default=False
        ),
    ] = None,
    simulate: Annotated[
        int, typer.Option(help="Run so many rounds of the accept/reject rule at each K; 0: none.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of the simulation.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw tokens a pass and speedup: FILE.png or FILE.svg.", rich_help_panel=o.OUTPUT, show_default=False
        ),
    ] = None,
    output_format: FormatOption = ReportFormat.table,
    output: o.OutputOption = None,
) -> int:  # fmt: skip
    """Say what speculation would gain, by the formulas alone: no models, no torch."""
    from specdec_cli.commands import predict as command
    from specdec_cli.prediction import Costs, parse_verify
    from specdec_cli.ranges import parse_range
    from specdec_cli.reports.export import check_writable

    estimate = _estimate(target_params, draft_params, dtype, draft_dtype, bandwidth, flops)
    if estimate is not None:
        if cost is not None or verify is not None:
            raise UsageError(
                "--cost and --verify are estimated from --target-params, --draft-params and the machine: give either "
                "those or these"
            )
        costs = estimate.costs(overhead)
    elif cost is None:
        raise UsageError(
            "--cost is missing: give a draft step in target steps, or --target-params, --draft-params, --bandwidth and "
            "--flops to estimate it"
        )
    else:
        given = {"--dtype": dtype is not WeightDtype.bfloat16, "--draft-dtype": draft_dtype is not None}
        o.refuse_given(given, "is for costs that are estimated from --target-params and others: leave it out")
        costs = Costs(cost, 1.0 if verify is None else parse_verify(verify), overhead)
    request = command.PredictRequest(
        alpha=alpha,
        costs=costs,
        ks=parse_range(k, "--k"),
        estimate=estimate,
        simulated_rounds=simulate,
        seed=seed,
        plot=plot,
        output_format=output_format.value,
        output=output,
    )
    if not simulate:
        o.refuse_given({"--seed": seed != 0}, "is of the simulation: add --simulate, or leave it out")
    for path, option in ((output, "--output"), (plot, "--plot")):
        if path is not None:
            check_writable(path, option)
    if plot is not None:
        from specdec_cli.reports.plots import check_plot

        check_plot(plot, "--plot")
        if output is not None and output.resolve() == plot.resolve():
            raise UsageError("--output and --plot name the same file: choose two")
    return o.reader_may_leave(command.run, request)


def _estimate(
    target_params: str | None,
    draft_params: str | None,
    dtype: WeightDtype,
    draft_dtype: WeightDtype | None,
    bandwidth: str | None,
    flops: str | None,
) -> Estimate | None:
    """What costs are estimated from; None where none of it is given.

    Raises:
        UsageError: something is missing or no quantity.
    """
    from specdec_cli.prediction import Estimate
    from specdec_cli.quantities import parse_arithmetic, parse_bandwidth, parse_parameters
    from specdec_cli.roofline import Machine, Model

    given = {
        "--target-params": target_params, "--draft-params": draft_params, "--bandwidth": bandwidth, "--flops": flops
    }  # fmt: skip
    missing = [option for option, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if target_params is None or draft_params is None or bandwidth is None or flops is None:
        raise UsageError(f"{', '.join(missing)} missing: costs are estimated from {', '.join(given)} together")
    machine = Machine(parse_bandwidth(bandwidth, "--bandwidth"), parse_arithmetic(flops, "--flops"))
    target = Model(parse_parameters(target_params, "--target-params"), dtype.value)
    draft = Model(parse_parameters(draft_params, "--draft-params"), (draft_dtype or dtype).value)
    return Estimate(target, draft, machine)
