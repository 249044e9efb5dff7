"""`specdec pair-check`: will these work together, here, and is it worth trying?"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specdec_cli.decoding.model import ChainModel
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.early_exit import EarlyExit
from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.errors import IncompatiblePairError, OutOfMemoryError, SpecdecError
from specdec_cli.measurement.fidelity import Fidelity, compare, greedy_answers
from specdec_cli.measurement.hardware import environment
from specdec_cli.measurement.probe import (
    PREFIX,
    Agreement,
    check_cache,
    measure_acceptance,
    measure_costs,
    recommendation,
)
from specdec_cli.measurement.probe import record as probe_record
from specdec_cli.prompts import Prompt, builtin_names, builtin_prompts, read_prompts
from specdec_cli.reports.console import PipeConsole
from specdec_cli.reports.export import document, to_json, whole_file
from specdec_cli.reports.pair_check import pair_markdown, print_pairs
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint
from specdec_cli.runtime.checkpoints.plan import check_options
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.devices import clock_for, out_of_memory
from specdec_cli.runtime.pairs.checks import Check, model_checks, own_layers_checks, token_checks, undecided, verdict
from specdec_cli.runtime.pairs.elsewhere import elsewhere
from specdec_cli.runtime.pairs.pair import Pair, conversation, describe, describe_draft, load_pair, load_unquantised
from specdec_cli.runtime.pairs.resources import cost, default_context, memory
from specdec_cli.runtime.pairs.side import Side, look_at
from specdec_cli.runtime.pairs.text import is_chat_tokenizer
from specdec_cli.settings import ModelSettings, SamplingSettings

BUILT_IN_PROMPTS = 5
COMPARED_TOKENS = 16  # of the answer to each prompt, where a quantised target is compared with itself
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True)
class PairCheckRequest:
    """Everything that the command line decides.

    Attributes:
        drafts: (what --draft names, how its checkpoint is loaded); None for the target's own layers.
        left_out: of each other draft that was named, why there is nothing to tell of it.
        context: tokens that memory is counted for; None chooses.
        prompts: a file or a built-in set for the probe; None chooses a set.
        output_format: "table", "json" or "markdown".
    """

    target: ModelSettings
    drafts: tuple[tuple[DraftSpec, ModelSettings | None], ...]
    left_out: tuple[str, ...] = ()
    context: int | None = None
    probe: bool = False
    prompts: str | None = None
    strict: bool = False
    output_format: str = "table"
    output: Path | None = None
    quiet: bool = False


def run(request: PairCheckRequest) -> int:
    """Check every draft beside the target; the exit code."""
    err = PipeConsole(stderr=True, highlight=False)

    def report(line: str) -> None:
        if not request.quiet:
            err.print(line, style="dim", markup=False, soft_wrap=True)

    for line in request.left_out:
        report(f"note: {line}")
    prompts = _prompts(request)
    device = check_options(request.target, "target")
    for _, settings in request.drafts:  # an option that is wrong for all of them is no finding about one
        if settings is not None:
            check_options(settings, "draft")
    target = look_at(request.target, "target", report)
    pairs = []
    memory_ran_out = False
    for spec, settings in request.drafts:
        name = spec.name if settings is None else settings.source
        checks, figures = _without_weights(request, target, spec, settings, report)
        if request.probe and verdict(checks, strict=False) is not False:
            report(f"measuring {request.target.source} with {name}")
            try:
                measured, figures["probe"] = _probe(request, spec, settings, prompts, report)
            except OutOfMemoryError as error:
                memory_ran_out, measured = True, [undecided("probe", str(error))]
            except IncompatiblePairError as error:
                cause, _, remedy = str(error).rpartition(": ")
                measured = [Check("probe", "fail", cause, remedy)]
            except SpecdecError as error:
                measured = [undecided("probe", str(error))]
            checks += measured
        answer = verdict(checks, request.strict)
        records = [asdict(check) for check in checks]
        pairs.append({"draft": name, "compatible": answer, "checks": records, **figures})
    # What a script reads first is the pair that decides the exit code.
    deciding = min(pairs, key=lambda pair: {False: 0, None: 1, True: 2}[pair["compatible"]])
    head = {key: deciding[key] for key in ("draft", "compatible", "checks", "memory")}
    made = document(environment(device), _settings(request), **head, pairs=pairs)
    try:
        _write(request, made)
    except BrokenPipeError:  # `| head` has read enough, and still relies on the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    answers = [pair["compatible"] for pair in pairs]
    if False in answers:
        return IncompatiblePairError.exit_code
    if memory_ran_out:
        return OutOfMemoryError.exit_code
    return SpecdecError.exit_code if None in answers else 0


def _write(request: PairCheckRequest, made: dict[str, Any]) -> None:
    with ExitStack() as stack:
        out = stack.enter_context(whole_file(request.output)) if request.output else sys.stdout
        if request.output_format == "json":
            out.write(to_json(made, indent=2) + "\n")
        elif request.output_format == "markdown":
            out.write(pair_markdown(made))
        else:
            print_pairs(made, PipeConsole(file=out, highlight=False))
        out.flush()


def _settings(request: PairCheckRequest) -> dict[str, object]:
    return {
        "target": asdict(request.target),
        "drafts": [{"source": spec.name} if model is None else asdict(model) for spec, model in request.drafts],
        "context": request.context,
        "probe": request.probe,
        "prompts": request.prompts,
        "strict": request.strict,
    }


def _without_weights(
    request: PairCheckRequest, target: Side, spec: DraftSpec, settings: ModelSettings | None, report: Report
) -> tuple[list[Check], dict[str, Any]]:
    """Checks and figures of one draft; one that cannot be read does not hide the others."""
    figures: dict[str, Any] = {"memory": None, "cost": None, "elsewhere": [], "probe": None}
    sides = [target]
    if settings is not None:
        try:
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


def _quantisers(sides: Sequence[Side]) -> list[Check]:
    """The first side whose blocks nothing here can read."""
    problems = [side.plan.quantiser_problem for side in sides if side.plan is not None]
    return [undecided("quantisation", problem) for problem in problems if problem][:1]


def _prompts(request: PairCheckRequest) -> Sequence[Prompt] | None:
    """Those asked for; None leaves the choice until it is known whether the target chats."""
    if request.prompts is None:
        return None
    if request.prompts in builtin_names() and not Path(request.prompts).exists():
        return builtin_prompts(request.prompts)[:BUILT_IN_PROMPTS]
    return read_prompts(Path(request.prompts))


def _probe(
    request: PairCheckRequest,
    spec: DraftSpec,
    settings: ModelSettings | None,
    prompts: Sequence[Prompt] | None,
    report: Report,
) -> tuple[list[Check], dict[str, Any]]:
    """Load one pair and measure it."""
    pair = load_pair(request.target, settings, report)
    draft, drafter_for = _drafting(pair, spec)
    for note in pair.notes:
        report(note)
    if prompts is None:
        chats = is_chat_tokenizer(pair.checkpoint.tokenizer)
        prompts = builtin_prompts("mixed" if chats else "code")[:BUILT_IN_PROMPTS]
    ids = [pair.encode([*conversation(p, None), {"role": "user", "content": p.turns[0]}], raw=False) for p in prompts]
    longest = _longest(ids)
    sides = {"target": (pair.target, pair.checkpoint)}
    if pair.draft is not None and pair.draft_checkpoint is not None:
        sides["draft"] = (pair.draft, pair.draft_checkpoint)
    clock = clock_for(*pair.devices)
    with out_of_memory("for the probe's texts and their cache", "give shorter ones with --prompts, or a smaller model"):
        caches = {
            role: check_cache(model, longest[: model.max_length], _name(checkpoint))
            for role, (model, checkpoint) in sides.items()
        }
        checks = [_cache_check(role, agreement, _name(sides[role][1])) for role, agreement in caches.items()]
        agreements = dict.fromkeys(("target", "draft")) | {
            role: agreement.record() for role, agreement in caches.items()
        }
        if any(check.status == "fail" for check in checks):
            sentence = "Do not use it: a cache that computes something else makes wrong text without any error."
            return checks, {"agreement": agreements, "use": False, "sentence": sentence}
        # What the caches hold is short beside the weights, whatever the prompts are.
        held = longest[: min(PREFIX, pair.target.max_length // 2, draft.max_length // 2)]
        costs = measure_costs(pair.target, draft, held, SamplingSettings(temperature=1.0), clock)
        ends = pair.checkpoint.end_ids
        found = [
            measure_acceptance(pair.target, drafter_for(sampling), ids, sampling, ends, clock)
            for sampling in map(SamplingSettings, TEMPERATURES)
        ]
    use, sentence = recommendation(found[0], costs)
    made = {"agreement": agreements, **probe_record(found, costs), "use": use, "sentence": sentence}
    made["target"], made["draft"] = describe(request.target, pair.checkpoint), describe_draft(spec, settings, pair)
    fidelity = _fidelity(request, pair, ids, report)
    made["quantisation"] = None if fidelity is None else asdict(fidelity)
    if fidelity is not None:
        checks.append(_fidelity_check(fidelity, pair.checkpoint.quantize))
    return [*checks, _speed_check(use, made)], made


def _drafting(pair: Pair, spec: DraftSpec) -> tuple[ChainModel, Callable[[SamplingSettings], Drafter]]:
    """The model that drafts, and what makes a drafter of it."""
    if pair.draft is not None:
        return pair.draft, partial(DraftModel, pair.draft)
    assert spec.own_layers is not None
    model = pair.early_exit(spec.own_layers)
    return model, partial(EarlyExit, model)


def _fidelity(request: PairCheckRequest, pair: Pair, ids: Sequence[Sequence[int]], report: Report) -> Fidelity | None:
    """How far a quantised target is from itself; None where it is not, or that cannot be told."""
    whole = load_unquantised(request.target, pair, report)
    if whole is None:
        return None
    return compare(pair.target, whole, greedy_answers(pair.target, ids, COMPARED_TOKENS))


def _fidelity_check(found: Fidelity, quantize: str) -> Check:
    detail = (
        f"{quantize}: its distributions overlap by {found.overlap:.3f} with those of the target without quantisation, "
        f"and both choose the same token at {found.greedy_agreement:.1%} of {found.positions} positions"
    )
    return Check("quantised target", "ok", detail)


def _longest(ids: Sequence[list[int]]) -> list[int]:
    """The longest prompt; one of a single token is said twice, since a block needs something before it."""
    longest = max(ids, key=len)
    return longest if len(longest) > 1 else longest * 2


def _name(checkpoint: Checkpoint) -> str:
    """The type whose rounding its logits show."""
    return str(checkpoint.coarsest_dtype).removeprefix("torch.")


def _cache_check(role: str, agreement: Agreement, dtype: str) -> Check:
    detail = (
        f"a block differs from single steps by {agreement.block_against_steps:.2g} of the logits' spread, a "
        f"rolled-back cache from a fresh one by {agreement.rollback_against_recompute:.2g}; rounding to {dtype} "
        f"explains {agreement.tolerance:g}"
    )
    if not math.isfinite(max(agreement.block_against_steps, agreement.rollback_against_recompute)):
        detail = f"in {dtype} its logits are not numbers, or all the same"
    if agreement.holds:
        return Check(f"{role}'s cache", "ok", detail)
    remedy = f"choose another {role}: this one's text would be wrong"
    return Check(f"{role}'s cache", "fail", detail, remedy)


def _speed_check(use: bool | None, measured: dict[str, Any]) -> Check:
    """Everything that was measured, in one line."""
    cost_ = measured["cost"]
    shown = ", ".join(f"{v['v']:.2f} (K {v['k']})" for v in cost_["v"] if v["k"] in (1, 2, 4, 8, 16))
    steps = " and ".join(f"{cost_[f'{role}_step_s'] * 1000:.1f} ms" for role in ("target", "draft"))
    parts = [f"steps take {steps}: c {cost_['c']:.2f}", f"o {cost_['o']:.2f}", f"v {shown}"]
    for best in measured["predicted"]:
        a = next(a for a in measured["acceptance"] if a["temperature"] == best["temperature"])
        alpha, overlap = ("{:.2f} ({:.2f} to {:.2f})".format(a[n], *a[f"{n}_ci"]) for n in ("alpha", "overlap"))
        parts.append(
            f"at temperature {best['temperature']:g} alpha {alpha}, overlap {overlap}, {a['judged']} tokens judged, "
            f"{best['speedup']:.2f}x at K {best['k']}"
        )
    detail = "; ".join(parts)
    if use:
        return Check("speed", "ok", detail)
    if use is None:
        return Check("speed", "warn", detail, "measure again on a quiet machine, with longer texts by --prompts")
    return Check("speed", "warn", detail, "choose another --draft, or plain decoding (--draft none)")
