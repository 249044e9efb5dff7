"""`specdec bench` and `specdec sweep-k`: models in, measured blocks on their way, tables and verdicts out.

`run` below is the whole command from top to bottom. What it calls stands in the module of that name: the arms and the
plan, the measuring, the lines of --resume and jsonl, the document, and what is told or exported of it.
"""

from __future__ import annotations

from contextlib import ExitStack

from specdec_cli.commands.bench.document import document_of, head_of
from specdec_cli.commands.bench.dry import tell_plan
from specdec_cli.commands.bench.exporting import check_export, tell_export
from specdec_cli.commands.bench.lines import Lines, known_runs
from specdec_cli.commands.bench.measuring import measure, warm_up
from specdec_cli.commands.bench.plan import make_plan
from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.commands.bench.telling import plot, tell
from specdec_cli.errors import InterruptedByUser
from specdec_cli.measurement.benchmark import Session
from specdec_cli.measurement.outcome import exit_code
from specdec_cli.reports.console import Aside, each
from specdec_cli.runtime.pairs.pair import load_pairs, recorded, require_heads

__all__ = ["BenchRequest", "run"]


def run(request: BenchRequest) -> int:
    """Measure, show, save; the exit code."""
    aside = Aside(request.quiet)
    if request.dry_run:
        return tell_plan(request, aside)
    pairs = load_pairs(request.target, [model for _, model in request.drafts], aside)
    require_heads(pairs, request.settings.draft_tree)
    aside.notes(note for pair in pairs for note in pair.notes)
    check_export(request, pairs)

    plan = make_plan(request, pairs, aside)
    head = head_of(plan)
    session = Session(known_runs(request, head, plan.contests, aside))
    if session.runs:
        aside(f"{len(session.runs)} runs are in {request.resume} already")

    with ExitStack() as files:
        with aside.progress() as progress:
            warm_up(plan, progress)
            lines = Lines(request, files, head, session.runs)
            others = measure(plan, session, lines, progress, aside)
        if not session.runs:
            raise InterruptedByUser("interrupted before the first prompt was measured")

        document = document_of(plan, session, head, others, aside)
        lines.add_results(document["results"])
        if graphs := recorded(pairs):
            aside(graphs)
        each(  # the answer stands at the end of what is told, so the plot's line comes before
            lambda: plot(request, document, aside),
            lambda: tell(request, document, aside),
            lambda: tell_export(request, pairs, document),
        )

    return exit_code(
        document,
        interrupted=session.interrupted,
        least_speedup=request.fail_if_slower,
        recommended_alone=request.sweep,
        exports=request.export is not None,
    )
