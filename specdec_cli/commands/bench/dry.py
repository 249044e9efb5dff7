"""--dry-run: what would be loaded and measured, told without reading a weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.errors import UsageError
from specdec_cli.measurement.arms import Arm
from specdec_cli.measurement.benchmark import Contest, in_turn, whole_blocks
from specdec_cli.measurement.runs import Case, Run
from specdec_cli.reports.console import Aside, PipeConsole
from specdec_cli.reports.plan import load_line, plan_lines
from specdec_cli.reports.runs_file import runs_in
from specdec_cli.runtime.checkpoints.plan import name_of
from specdec_cli.runtime.pairs.side import look_at
from specdec_cli.settings import NO_DRAFT, KChoice


@dataclass(frozen=True)
class _Planned:
    """An arm by name, which nothing is loaded for."""

    name: str
    k: KChoice
    peer_of: str | None = None

    def run(self, case: Case, max_new_tokens: int) -> Run:
        """Never: a plan measures nothing."""
        raise NotImplementedError


def tell_plan(request: BenchRequest, aside: Aside) -> int:
    """Tell it; the exit code.

    Raises:
        SpecdecError: a configuration cannot be read, a model does not fit, or --resume is no file of runs.
    """
    loads = []
    sides = {(request.target, "target"): None, **{(m, "draft"): None for _, m in request.drafts if m is not None}}
    for settings, role in sides:
        found = look_at(settings, role, aside).plan
        if found is not None:
            found.require_loadable()
            bits = " with quantised layers" if found.has_rounded_layers else ""
            loads.append(
                load_line(role, settings.source, found.loaded.total, name_of(found.dtype) + bits, found.device)
            )
    contests = {t: _contest(request, t) for t in request.settings.temperatures}
    answers = sum(len(prompt.turns) for prompt in request.prompts)
    known = 0
    if request.resume is not None:
        known = _known(request.resume, len(request.prompts), contests)
    console = PipeConsole(highlight=False)
    for line in plan_lines(
        loads=loads,
        arms={t: [(arm.name, arm.k) for arm in contest.arms] for t, contest in contests.items()},
        prompts=len(request.prompts),
        answers=answers,
        tokens=request.settings.max_new_tokens,
        runs=sum(len(in_turn(contest, 0)) for contest in contests.values()) * answers,
        known=known,
        resume=request.resume,
    ):
        console.print(line, markup=False, soft_wrap=True)
    return 0


def _known(path: Path, prompts: int, contests: dict[float, Contest]) -> int:
    """Runs that a session would find in a file; whether it is of that session is told when it goes on."""
    try:
        runs = [Run.from_record(record) for record in runs_in(path)]
    except TypeError as error:
        raise UsageError(f"--resume {path} was written by another version of specdec: name a new file") from error
    whole = whole_blocks([run for run in runs if run.temperature in contests], contests)
    return sum(run.prompt <= prompts for run in whole)


def _contest(request: BenchRequest, temperature: float) -> Contest:
    arms: list[Arm] = [_Planned(spec.name, k) for spec, _ in request.drafts for k in request.settings.ks]
    if request.compare is not None:
        arms += _peers(request)
    return Contest(_Planned(NO_DRAFT, 0), arms, replace(request.sampling, temperature=temperature))


def _peers(request: BenchRequest) -> Iterator[_Planned]:
    """As `arms` has them: plain generation, and assisted for every draft that transformers has a form for."""
    yield _Planned("transformers generate", 0, NO_DRAFT)
    for spec, _ in request.drafts:
        if spec.is_model or spec.prompt_lookup is not None:
            yield from (_Planned(_label(request, spec), k, spec.name) for k in request.settings.ks)


def _label(request: BenchRequest, spec: DraftSpec) -> str:
    label = "transformers assisted" if spec.is_model else "transformers prompt lookup"
    return label + (f" by {spec.name}" if len(request.drafts) > 1 else "")
