"""`specdec pair-check`: will these work together, here, and is it worth trying?

`run` checks each draft beside the target: what their files tell first (below), then, with --probe, what loading and
measuring the pair shows (`probing`). A draft that cannot be checked does not hide the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from specdec_cli.commands.pair_check.probing import chosen_prompts, probe
from specdec_cli.commands.pair_check.request import PairCheckRequest
from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.errors import INTERRUPTED, IncompatiblePairError, OutOfMemoryError, SpecdecError
from specdec_cli.measurement.hardware import environment
from specdec_cli.prompts import Prompt
from specdec_cli.reports.command_line import generate_command
from specdec_cli.reports.console import Aside, PipeConsole, each, output, write_markdown
from specdec_cli.reports.export import document, to_json
from specdec_cli.reports.pair_check import pair_markdown, print_pairs
from specdec_cli.runtime.checkpoints.plan import check_options
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.heads.kinds import Head
from specdec_cli.runtime.pairs.checks import Check, model_checks, own_layers_checks, token_checks, undecided, verdict
from specdec_cli.runtime.pairs.elsewhere import elsewhere
from specdec_cli.runtime.pairs.head_checks import head_checks, head_record, head_sizes
from specdec_cli.runtime.pairs.resources import Reads, cost, cost_of, default_context, memory
from specdec_cli.runtime.pairs.side import Side, look_at
from specdec_cli.runtime.pairs.trained_heads import head_at
from specdec_cli.settings import ModelSettings, SamplingSettings

__all__ = ["PairCheckRequest", "run"]


@dataclass(frozen=True)
class Finding:
    """What came of one draft.

    Attributes:
        record: its part of the document.
        memory_ran_out: while the pair was measured.
    """

    record: dict[str, Any]
    memory_ran_out: bool

    @property
    def compatible(self) -> bool | None:
        """None where that could not be told."""
        answer: bool | None = self.record["compatible"]
        return answer


def run(request: PairCheckRequest) -> int:
    """Check every draft beside the target; the exit code."""
    aside = Aside(request.quiet)
    prompts = chosen_prompts(request.prompts)
    aside.notes(request.left_out)
    device = check_options(request.target, "target")
    for _, settings in request.drafts:  # an option that is wrong for all of them is no finding about one
        if settings is not None:
            check_options(settings, "draft")
    target = look_at(request.target, "target", aside)
    findings: list[Finding] = []
    interrupted = False
    try:
        for spec, settings in request.drafts:
            findings.append(_check(request, target, spec, settings, prompts, aside))
    except KeyboardInterrupt:
        if not findings:
            raise
        interrupted = True
        aside("interrupted: this is what there was")
    each(lambda: _write(request, _document(request, device, findings)))
    return INTERRUPTED if interrupted else _exit_code(findings)


def _check(
    request: PairCheckRequest,
    target: Side,
    spec: DraftSpec,
    settings: ModelSettings | None,
    prompts: Sequence[Prompt] | None,
    aside: Aside,
) -> Finding:
    """One draft: without weights, and with them where that is asked for and the pair has not failed yet."""
    name = spec.name if settings is None else settings.source
    checks, figures = _without_weights(request, target, spec, settings, aside)
    memory_ran_out = False
    if request.probe and verdict(checks, strict=False) is not False:
        aside(f"measuring {request.target.source} with {name}")
        try:
            measured, figures["probe"] = probe(request.target, spec, settings, prompts, request.conversation, aside)
        except OutOfMemoryError as error:
            memory_ran_out, measured = True, [undecided("probe", str(error))]
        except IncompatiblePairError as error:
            cause, _, remedy = str(error).rpartition(": ")
            measured = [Check("probe", "fail", cause, remedy)]
        except SpecdecError as error:
            measured = [undecided("probe", str(error))]
        checks += measured
    records = [asdict(check) for check in checks]
    record = {"draft": name, "compatible": verdict(checks, request.strict), "checks": records, **figures}
    if (figures["probe"] or {}).get("use"):
        best = figures["probe"]["predicted"][0]
        sampling = SamplingSettings(best["temperature"])
        record["command"] = generate_command(request.target, spec.name, settings, best["k"], sampling)
    return Finding(record, memory_ran_out)


def _without_weights(
    request: PairCheckRequest, target: Side, spec: DraftSpec, settings: ModelSettings | None, report: Report
) -> tuple[list[Check], dict[str, Any]]:
    """Checks and figures of one draft; one that cannot be read does not hide the others."""
    figures: dict[str, Any] = {"memory": None, "cost": None, "elsewhere": [], "head": None, "probe": None}
    sides = [target]
    if settings is not None:
        try:
            if (head := head_at(settings)) is not None:
                return _of_head(request, target, head, figures, report)
            sides.append(look_at(settings, "draft", report))
        except SpecdecError as error:
            return [undecided("draft", str(error))], figures
    memory_check, figures["memory"] = memory(sides, request.context or default_context(sides))
    inspections = [side.inspection for side in sides]
    same_for_all = [*model_checks(inspections, request.context), *_quantisers(sides), memory_check]
    if spec.own_layers is not None:
        return [*own_layers_checks(target.inspection, spec.own_layers), *same_for_all], figures
    _, draft = sides
    cost_check, figures["cost"] = cost(target, draft)
    figures["elsewhere"] = elsewhere(*inspections)
    return [*token_checks(*inspections), *same_for_all, cost_check], figures


def _of_head(
    request: PairCheckRequest, target: Side, head: Head, figures: dict[str, Any], report: Report
) -> tuple[list[Check], dict[str, Any]]:
    """The same for a trained head, which has no tokenizer and no plan of its own."""
    inspection = target.inspection
    same_for_all = [*model_checks([inspection], request.context), *_quantisers([target])]
    if target.plan is None:
        return same_for_all, figures
    sizes = head_sizes(inspection, target.plan, head)
    memory_check, figures["memory"] = memory([target], request.context or default_context([target]), sizes.bytes)
    caveat = "" if sizes.tokens == 1 else f"one pass guesses several tokens, here {sizes.tokens}"
    cost_check, figures["cost"] = cost_of(target, Reads(sizes.parameters, sizes.bytes_per_token, caveat))
    figures["head"] = head_record(sizes, head, inspection.text_config.num_hidden_layers)
    checks = head_checks(inspection, target.plan, head, report)
    return [*checks, *same_for_all, memory_check, cost_check], figures


def _quantisers(sides: Sequence[Side]) -> list[Check]:
    """The first side whose blocks nothing here can read."""
    problems = [side.plan.quantiser_problem for side in sides if side.plan is not None]
    return [undecided("quantisation", problem) for problem in problems if problem][:1]


def _document(request: PairCheckRequest, device: torch.device, findings: Sequence[Finding]) -> dict[str, Any]:
    """Every draft's record; what a script reads first is that of the draft that decides the exit code."""
    deciding = min(findings, key=lambda finding: {False: 0, None: 1, True: 2}[finding.compatible]).record
    head = {key: deciding[key] for key in ("draft", "compatible", "checks", "memory")}
    settings: dict[str, object] = {
        "target": asdict(request.target),
        "drafts": [{"source": spec.name} if model is None else asdict(model) for spec, model in request.drafts],
        "context": request.context,
        "probe": request.probe,
        "prompts": request.prompts,
        "strict": request.strict,
        "template_args": request.conversation.template_args,
        "plain_content": request.conversation.plain_content,
    }
    return document(environment(device), settings, **head, pairs=[finding.record for finding in findings])


def _write(request: PairCheckRequest, made: dict[str, Any]) -> None:
    with output(request.output) as out:
        if request.output_format == "json":
            out.write(to_json(made, indent=2) + "\n")
        elif request.output_format == "markdown":
            write_markdown(pair_markdown(made), out)
        else:
            print_pairs(made, PipeConsole(file=out, highlight=False), request.verbose)
        out.flush()


def _exit_code(findings: Sequence[Finding]) -> int:
    """The worst of what was found: an incompatible pair, memory that ran out, or what could not be told."""
    answers = [finding.compatible for finding in findings]
    if False in answers:
        return IncompatiblePairError.exit_code
    if any(finding.memory_ran_out for finding in findings):
        return OutOfMemoryError.exit_code
    return SpecdecError.exit_code if None in answers else 0
