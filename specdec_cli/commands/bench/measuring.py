"""Measuring what was planned: once unmeasured to warm up, then block by block."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from rich.progress import Progress

from specdec_cli.commands.bench.lines import Lines
from specdec_cli.commands.bench.plan import Plan
from specdec_cli.measurement import benchmark
from specdec_cli.measurement.benchmark import Session
from specdec_cli.measurement.differences import rounding_of
from specdec_cli.measurement.hardware import OtherProcesses, cores_needed
from specdec_cli.measurement.runs import Block, Run
from specdec_cli.quantities import counted
from specdec_cli.reports.console import Aside
from specdec_cli.runtime.devices import out_of_memory


def warm_up(plan: Plan, progress: Progress) -> dict[float, list[Run]]:
    """A short run of every arm, by temperature; good for an estimate of the time that measuring will take."""
    # With drafters of their own: what these learn from the first prompt must not help when it is measured.
    contests = plan.fresh_contests()
    task = progress.add_task("warming up", total=len(contests))
    warm = {}
    for temperature, contest in contests.items():
        with _memory_for_text():
            warm[temperature] = benchmark.warm_up(contest, plan.dialogues[0], plan.request.settings.max_new_tokens)
        progress.advance(task)
    progress.remove_task(task)
    return warm


def measure(plan: Plan, session: Session, lines: Lines, progress: Progress, aside: Aside) -> OtherProcesses | None:
    """Fill the session; what other processes took of the cores meanwhile, None where that does not matter."""
    settings = plan.request.settings
    simulated = settings.simulated_acceptance is not None
    task = progress.add_task("measuring", total=plan.runs, completed=len(session.runs))

    def on_run(run: Run) -> None:
        lines.add_run(run)
        progress.advance(task)

    def on_repeat(found: Mapping[Block, str]) -> None:
        nonlocal task
        task = progress.add_task("measuring again", total=sum(run.block in found for run in session.runs))
        aside(f"{counted(len(found), 'answer')} disturbed ({next(iter(found.values()))}): measuring again")

    on_cpu = all(device.type == "cpu" for device in plan.devices)
    # What a drafter remembers of a text would be measured the second time.
    learns = any(spec.learns for spec, _ in plan.request.drafts)
    needed = cores_needed()
    others = OtherProcesses(needed)
    with _memory_for_text(), others:
        benchmark.benchmark(
            plan.contests,
            plan.dialogues,
            target=plan.pairs[0].target,
            rounding=None if simulated else rounding_of(plan.pairs[0].checkpoint.coarsest_dtype),
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
            session=session,
            on_run=on_run,
            cores_needed=needed if on_cpu else None,
            repeats=0 if learns else benchmark.REPEATS,
            on_repeat=on_repeat,
        )
    return others if on_cpu else None


def _memory_for_text() -> AbstractContextManager[None]:
    return out_of_memory("for the text and its cache", "lower --max-new-tokens or choose a smaller model")
