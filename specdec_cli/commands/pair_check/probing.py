"""--probe: load one pair, try its caches, measure its costs and acceptance, and add what came of it to the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from specdec_cli.activity import doing, each_of
from specdec_cli.commands.pair_check.readings import compare_readings, readings_check
from specdec_cli.decoding.model import ChainModel
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.early_exit import EarlyExit
from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.measurement.cache_check import PREFIX, Agreement, check_cache
from specdec_cli.measurement.fidelity import Fidelity, compare, greedy_answers
from specdec_cli.measurement.probe import Acceptance, Costs, measure_acceptance, measure_costs, with_rounds
from specdec_cli.measurement.probe_advice import recommendation
from specdec_cli.measurement.probe_advice import record as probe_record
from specdec_cli.prompts import Prompt, builtin_names, builtin_prompts, read_prompts
from specdec_cli.reports.probe import cache_line, fidelity_line, speed_line
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.devices import clock_for, out_of_memory
from specdec_cli.runtime.models.windows import CACHED, MASKED, declared_windows
from specdec_cli.runtime.pairs.checks import Check
from specdec_cli.runtime.pairs.pair import Pair, describe, describe_draft, load_pair, load_unquantised
from specdec_cli.runtime.pairs.prompting import prompt_notes, read_prompt
from specdec_cli.runtime.pairs.text import is_chat_tokenizer
from specdec_cli.settings import ConversationSettings, ModelSettings, SamplingSettings

BUILT_IN_PROMPTS = 5
COMPARED_TOKENS = 16  # of the answer to each prompt, where a quantised target is compared with itself
TEMPERATURES = (0.0, 1.0)


def chosen_prompts(source: str | None) -> Sequence[Prompt] | None:
    """Those of a file or a built-in set; None leaves the choice until it is known whether the target chats."""
    if source is None:
        return None
    if source in builtin_names() and not Path(source).exists():
        return builtin_prompts(source)[:BUILT_IN_PROMPTS]
    return read_prompts(Path(source))


def probe(
    target: ModelSettings,
    spec: DraftSpec,
    settings: ModelSettings | None,
    prompts: Sequence[Prompt] | None,
    conversation: ConversationSettings,
    report: Report,
) -> tuple[list[Check], dict[str, Any]]:
    """Load one pair and measure it: checks, and the record that they rest on.

    Raises:
        SpecdecError: it cannot be loaded, or its texts do not fit.
    """
    pair = load_pair(target, settings, report)
    draft, drafter_for = _drafting(pair, spec)
    for note in pair.notes:
        report(note)
    ids = _encoded(pair, prompts, conversation, report)
    with out_of_memory("for the probe's texts and their cache", "give shorter ones with --prompts, or a smaller model"):
        with doing("trying the caches"):
            caches = _agreements(pair, ids)
        agreements = {role: caches[role].record() if role in caches else None for role in ("target", "draft")}
        checks = _cache_checks(pair, caches)
        if not all(agreement.holds for agreement in caches.values()):
            sentence = "Do not use it: a cache that computes something else makes wrong text without any error."
            return checks, {"agreement": agreements, "use": False, "sentence": sentence}
        costs, found = _measured(pair, draft, drafter_for, ids)
        readings = [] if pair.head is None else compare_readings(pair, target, ids, clock_for(*pair.devices), report)
    use, sentence = recommendation(found[0], costs)
    if readings:
        checks.append(readings_check(readings))
    fidelity = _fidelity(target, pair, ids, report)
    if fidelity is not None:
        checks.append(Check("quantised target", "ok", fidelity_line(asdict(fidelity), pair.checkpoint.quantize)))
    made = {
        "agreement": agreements,
        **probe_record(found, costs),
        "use": use,
        "sentence": sentence,
        "target": describe(target, pair.checkpoint),
        "draft": describe_draft(spec, settings, pair),
        "quantisation": fidelity and asdict(fidelity),
        "readings": [asdict(reading) for reading in readings],
    }
    return [*checks, _speed_check(use, speed_line(made))], made


def _drafting(pair: Pair, spec: DraftSpec) -> tuple[ChainModel | None, Callable[[SamplingSettings], Drafter]]:
    """The model that drafts, where it is one, and what makes a drafter."""
    if pair.draft is not None:
        return pair.draft, partial(DraftModel, pair.draft)
    if pair.head is not None:
        return None, lambda sampling: make_drafter(spec, pair.drafter_parts(sampling, 0.0))
    assert spec.own_layers is not None
    model = pair.early_exit(spec.own_layers)
    return model, partial(EarlyExit, model)


def _encoded(
    pair: Pair, prompts: Sequence[Prompt] | None, conversation: ConversationSettings, report: Report
) -> list[list[int]]:
    """Ids of the first turn of each prompt."""
    if prompts is None:
        chats = is_chat_tokenizer(pair.checkpoint.tokenizer)
        prompts = builtin_prompts("mixed" if chats else "code")[:BUILT_IN_PROMPTS]
    for note in prompt_notes(pair, prompts, conversation):
        report(f"note: {note}")
    return [read_prompt(pair, prompt, conversation) for prompt in prompts]


def _agreements(pair: Pair, ids: Sequence[list[int]]) -> dict[str, Agreement]:
    """What the caches of target and draft compute; a draft of the target's own layers has none of its own."""
    longest = _longest(ids)
    sides = {"target": (pair.target, pair.checkpoint)}
    if pair.draft is not None and pair.draft_checkpoint is not None:
        sides["draft"] = (pair.draft, pair.draft_checkpoint)
    found = {}
    for role, (model, checkpoint) in sides.items():
        windows = declared_windows(checkpoint.model.config, (*CACHED, *MASKED), model.max_length)
        found[role] = check_cache(model, longest[: model.max_length], _dtype(checkpoint), windows)
    return found


def _measured(
    pair: Pair,
    draft: ChainModel | None,
    drafter_for: Callable[[SamplingSettings], Drafter],
    ids: Sequence[list[int]],
) -> tuple[Costs, list[Acceptance]]:
    """Costs, and acceptance at each of the temperatures."""
    clock = clock_for(*pair.devices)
    # What the caches hold is short beside the weights, whatever the prompts are.
    shorter = pair.target.max_length if draft is None else min(pair.target.max_length, draft.max_length)
    held = _longest(ids)[: min(PREFIX, shorter // 2)]
    with doing("measuring costs"):
        costs = measure_costs(pair.target, draft, held, SamplingSettings(temperature=1.0), clock)
    found = [
        measure_acceptance(pair.target, drafter_for(sampling), ids, sampling, pair.checkpoint.end_ids, clock)
        for sampling in each_of(map(SamplingSettings, TEMPERATURES), "measuring acceptance")
    ]
    return (with_rounds(costs, found[0]) if draft is None else costs), found


def _fidelity(target: ModelSettings, pair: Pair, ids: Sequence[Sequence[int]], report: Report) -> Fidelity | None:
    """How far a quantised target is from itself; None where it is not, or that cannot be told."""
    whole = load_unquantised(target, pair, report)
    if whole is None:
        return None
    with doing("comparing the quantised target with itself"):
        return compare(pair.target, whole, greedy_answers(pair.target, ids, COMPARED_TOKENS))


def _cache_checks(pair: Pair, caches: Mapping[str, Agreement]) -> list[Check]:
    checks = []
    for role, agreement in caches.items():
        checkpoint = pair.draft_checkpoint if role == "draft" else pair.checkpoint
        assert checkpoint is not None
        detail = cache_line(agreement.record(), _dtype(checkpoint), agreement.untried)
        remedy = "" if agreement.holds else f"choose another {role}: this one's text would be wrong"
        checks.append(Check(f"{role}'s cache", "ok" if agreement.holds else "fail", detail, remedy))
    return checks


def _speed_check(use: bool | None, detail: str) -> Check:
    if use:
        return Check("speed", "ok", detail)
    if use is None:
        return Check("speed", "warn", detail, "measure again on a quiet machine, with longer texts by --prompts")
    return Check("speed", "warn", detail, "choose another --draft, or plain decoding (--draft none)")


def _longest(ids: Sequence[list[int]]) -> list[int]:
    """The longest prompt; one of a single token is said twice, since a block needs something before it."""
    longest = max(ids, key=len)
    return longest if len(longest) > 1 else longest * 2


def _dtype(checkpoint: Checkpoint) -> str:
    """The name of the type whose rounding its logits show."""
    return str(checkpoint.coarsest_dtype).removeprefix("torch.")
