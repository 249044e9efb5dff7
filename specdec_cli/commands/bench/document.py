"""What was measured as one document, which everything that is told or saved is read from."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from specdec_cli.activity import doing
from specdec_cli.commands.bench.plan import Plan
from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.decoding.seeds import DERIVATION
from specdec_cli.measurement import summary
from specdec_cli.measurement.benchmark import Session
from specdec_cli.measurement.caveats import caveats, drift
from specdec_cli.measurement.distribution import check_distributions
from specdec_cli.measurement.fidelity import compare
from specdec_cli.measurement.hardware import (
    OtherProcesses,
    copy_bandwidth,
    environment,
    peak_memory,
    threads_and_cores,
)
from specdec_cli.measurement.plausibility import contention_of, disturbed, judge
from specdec_cli.measurement.recommendation import mark_best, recommend
from specdec_cli.measurement.runs import plain_runs
from specdec_cli.reports.command_line import generate_command, measured_as_it_is
from specdec_cli.reports.console import Aside
from specdec_cli.reports.export import document
from specdec_cli.runtime.devices import clock_for
from specdec_cli.runtime.pairs.pair import describe, describe_draft, load_unquantised
from specdec_cli.settings import NO_DRAFT

# What a quantised target is compared with itself on.
COMPARED_ANSWERS, COMPARED_TOKENS = 12, 48


def head_of(plan: Plan) -> dict[str, Any]:
    """Environment and settings: what a session must share with one that it resumes."""
    return {"environment": environment(*plan.devices), "settings": _settings(plan)}


def document_of(
    plan: Plan, session: Session, head: dict[str, Any], others: OtherProcesses | None, aside: Aside
) -> dict[str, Any]:
    """The document of a session, with the checks that are made after it; its keys are listed in docs/scripting.md.

    Args:
        others: what other processes took of the cores; None where that does not matter.
    """
    results = summary.results(session.runs, compared=plan.request.settings.simulated_acceptance is None)
    judgement = judge(results, session.runs, None if others is None else others.contention)
    mark_best(results)
    if plan.request.check_distribution and not session.interrupted:
        _check_distributions(plan, session, results, aside)
    quantisation = _quantisation(plan, session, aside)
    checkpoint = plan.pairs[0].checkpoint
    with doing("measuring the memory's speed"):
        copied = copy_bandwidth(checkpoint.device, clock_for(checkpoint.device))
    taken = contention_of(session.runs)
    if taken is None and others is not None:
        taken = others.share
    found = caveats(
        session.runs,
        session.controls,
        # Where nothing could be measured, `reasons` say why.
        disturbed=disturbed(session.runs) if judgement.measurable else None,
        others_share=taken if judgement.measurable else None,
        threads_and_cores=threads_and_cores() if others is not None else None,
        interrupted=session.interrupted,
    )
    return document(
        **head,
        command=plan.request.command,
        results=results,
        baseline_samples=summary.samples(plain_runs(session.runs)),
        recommendation=[point | _command(plan.request, point) for point in recommend(results)],
        measurable=judgement.measurable,
        reasons=[asdict(reason) for reason in judgement.reasons],
        repeated=len({run.block for run in session.runs if run.repeat}),
        peers=summary.peer_results(session.runs),
        control={"runs": len(session.controls), "drift": drift(session.runs, session.controls)},
        memory={"peak_bytes": peak_memory(checkpoint.device)},
        bandwidth=summary.bandwidth(results, checkpoint.step_bytes, copied),
        others_share=None if others is None else others.share,
        warnings=[asdict(caveat) for caveat in found],
        quantisation=quantisation,
    )


def _command(request: BenchRequest, point: dict[str, Any]) -> dict[str, str]:
    """What generates as a recommended point says; nothing where no text comes of it."""
    if not measured_as_it_is(request.target, request.settings):
        return {}
    spec, model = next((spec, model) for spec, model in request.drafts if spec.name == point["draft"])
    plain = point["pays"] is False
    made = generate_command(
        request.target,
        NO_DRAFT if plain else spec.name,
        model,
        point["k"],
        replace(request.sampling, temperature=point["temperature"]),
        draft_stop=request.settings.draft_stop,
        draft_tree=request.settings.draft_tree,
        conversation=request.conversation,
    )
    return {"command": made}


def _check_distributions(plan: Plan, session: Session, results: list[dict[str, Any]], aside: Aside) -> None:
    prompts = [dialogue.prompt_ids(()) for dialogue in plan.dialogues]
    try:
        with aside.progress() as progress:
            check_distributions(
                results, plan.contests, prompts, lambda todo: progress.track(todo, description="checking distributions")
            )
    except KeyboardInterrupt:  # what was measured is worth showing
        session.interrupted = True


def _quantisation(plan: Plan, session: Session, aside: Aside) -> dict[str, Any] | None:
    """How far a quantised target is from itself, on what it answered; None where it is not, or that cannot be told."""
    if plan.request.settings.simulated_acceptance is not None or session.interrupted:
        return None
    try:
        whole = load_unquantised(plan.request.target, plan.pairs[0], aside)
        if whole is None:
            return None
        answers = {run.prompt: run.token_ids for run in plain_runs(session.runs) if run.turn == 1}
        texts = [(plan.dialogues[i - 1].prompt_ids(()), ids[:COMPARED_TOKENS]) for i, ids in sorted(answers.items())]
        with doing("comparing the quantised target with itself"):
            return asdict(compare(plan.pairs[0].target, whole, texts[:COMPARED_ANSWERS]))
    except KeyboardInterrupt:  # what was measured is worth showing
        session.interrupted = True
        return None


def _settings(plan: Plan) -> dict[str, Any]:
    request, pairs = plan.request, plan.pairs
    drafts = [describe_draft(spec, model, pair) for (spec, model), pair in zip(request.drafts, pairs, strict=True)]
    sampling = {k: v for k, v in asdict(request.sampling).items() if k != "temperature"}
    return {
        "target": describe(request.target, pairs[0].checkpoint),
        "drafts": drafts,
        "prompts": request.prompt_source,
        "prompts_sha256": request.prompts_sha256,
        "sampling": sampling,
        **asdict(request.settings),
        "seed_derivation": DERIVATION,
        **asdict(request.conversation),
        "compare": request.compare,
    }
