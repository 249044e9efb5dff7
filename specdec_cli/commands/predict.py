"""`specdec predict`: what the formulas promise, with no model loaded."""

from __future__ import annotations

import platform
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.prediction import MOST_ROUNDS, PLOTTED_ROUNDS, Costs, Estimate, curves, predictions
from specdec_cli.reports.console import each, output, table_console, write_markdown
from specdec_cli.reports.export import document, to_json
from specdec_cli.reports.predict import headline, predict_report, rows, short_rows
from specdec_cli.reports.rows import to_csv, to_markdown
from specdec_cli.roofline import Experts


@dataclass(frozen=True)
class PredictRequest:
    """Everything that the command line decides.

    Attributes:
        costs: given, or by `estimate`.
        estimate: the sizes and the machine that the costs were estimated from; None where they were given.
        ks: sorted.
        experts: of the target, which the costs count already; None where it is no mixture of experts.
        simulated_rounds: of each K; 0 for none.
    """

    alpha: float
    costs: Costs
    ks: tuple[int, ...]
    estimate: Estimate | None = None
    experts: Experts | None = None
    simulated_rounds: int = 0
    seed: int = 0
    plot: Path | None = None
    output_format: str = "table"
    output: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"--alpha must be between 0 and 1 (a probability), not {self.alpha:g}")
        if self.simulated_rounds != 0 and not 2 <= self.simulated_rounds <= MOST_ROUNDS:
            raise UsageError(
                f"--simulate must be 2 to {MOST_ROUNDS:,} rounds, or 0 for none, not {self.simulated_rounds:,}"
            )
        if self.seed < 0:
            raise UsageError(f"--seed must be 0 or above, not {self.seed}")


def run(request: PredictRequest) -> int:
    """Predict, and simulate where asked to; the exit code."""
    rng = random.Random(request.seed)
    record = document(
        environment={"python": platform.python_version(), "platform": platform.platform()},
        settings=_settings(request),
        estimate=request.estimate.record() if request.estimate else None,
        results=predictions(request.alpha, request.costs, request.ks, request.simulated_rounds, rng),
    )
    each(lambda: _show(request, record), lambda: _plot(request, record, rng))
    return 0


def _plot(request: PredictRequest, record: dict[str, Any], rng: random.Random) -> None:
    if request.plot is None:
        return
    from specdec_cli.reports.plots import plot_theory

    simulated = request.simulated_rounds > 0
    tokens, speedups = curves(request.alpha, request.costs, request.ks, simulated, rng)
    note = f"; {PLOTTED_ROUNDS:,} rounds simulated a point, seed {request.seed}" if simulated else ""
    plot_theory(tokens, speedups, request.plot, alpha=request.alpha, costs=headline(record) + note)


def _settings(request: PredictRequest) -> dict[str, object]:
    return {
        "alpha": request.alpha,
        "cost": request.costs.draft,
        "verify": {k: request.costs.verify_at(k) for k in request.ks},
        "overhead": request.costs.overhead,
        "experts": request.experts and asdict(request.experts),
        "k": request.ks,
        "simulate": request.simulated_rounds,
        "seed": request.seed,
    }


def _show(request: PredictRequest, record: dict[str, Any]) -> None:
    with output(request.output) as out:
        if request.output_format == "json":
            out.write(to_json(record, indent=2) + "\n")
        elif request.output_format == "jsonl":
            head = {key: value for key, value in record.items() if key != "results"}
            out.writelines(to_json({**head, **result}) + "\n" for result in record["results"])
        elif request.output_format == "csv":
            out.write(to_csv(rows(record)))
        elif request.output_format == "markdown":
            write_markdown(to_markdown(short_rows(record)), out)
        else:
            table_console(out).print(predict_report(record), crop=False)
        out.flush()
