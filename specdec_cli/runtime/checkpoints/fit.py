"""Step 5: a model's layers joined, its head cut, its weights rounded and packed, as planned."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from itertools import chain

import torch
from transformers import PreTrainedModel

from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint, step_bytes
from specdec_cli.runtime.checkpoints.gguf.own_bits import GgufWeights, describe_bits
from specdec_cli.runtime.checkpoints.locate import option_of
from specdec_cli.runtime.checkpoints.plan import Plan, name_of
from specdec_cli.runtime.checkpoints.reading import one_line_errors
from specdec_cli.runtime.devices import out_of_memory
from specdec_cli.runtime.layers.cut_head import can_be_cut, cut_head
from specdec_cli.runtime.layers.joined import join
from specdec_cli.runtime.layers.packed import pack
from specdec_cli.runtime.layers.quantize import AS_FAST, quantize, step_seconds, weight_bytes
from specdec_cli.settings import AUTO, KEEP, NOT_QUANTIZED


def fit(plan: Plan, model: PreTrainedModel) -> Checkpoint:
    """Make a built model what the plan says; it is changed where it stands.

    Where "auto" is to choose and the file's own bits are one of the choices, both are made of the one model, and the
    quicker stays.
    """
    if plan.bits != AUTO or plan.own_bits is None:
        return _fitted(plan, model)
    own_plan = replace(plan, bits=KEEP)
    own = _fitted(own_plan, _with_own_bits(own_plan, model))
    return _quicker(own, _fitted(plan, model), plan.role)


def _fitted(plan: Plan, model: PreTrainedModel) -> Checkpoint:
    found, settings, role = plan.inspection, plan.settings, plan.role
    assert found.tokenizer is not None
    notes = [_what_was_built(plan, model), *found.notes, *_where_layers_went(plan, model)]
    bits, head_rows = NOT_QUANTIZED, found.num_rows
    if plan.keeps_bits and plan.own_bits is not None:
        bits, other = KEEP, option_of(role, "quantize")
        notes.append(f"{role} in the file's own bits: {describe_bits(plan.own_bits)} ({other} none: 16 bit)")
    if settings.fuse:
        join(model)
    if plan.kept_ids is not None and can_be_cut(model.get_output_embeddings()):
        cut_head(model, plan.kept_ids)
        head_rows = len(plan.kept_ids)
        of = f"{head_rows:,} of {found.num_rows:,} tokens{plan.head_reason}"
        notes.append(f"{role} head cut to {of}; it never proposes the others")
    if plan.bits not in (NOT_QUANTIZED, KEEP):
        with out_of_memory(f"to quantise {plan.place.name}", "leave the quantisation out"):
            bits, words = quantize(model, plan.bits, plan.device, option_of(role, "quantize"))
        notes.append(f"{role} {words}" + (": another model than the one named" if role == "target" else ""))
    read_bytes, head = step_bytes(model), model.get_output_embeddings()
    if settings.fuse and not settings.compile:  # the compiler lays weights out itself, and does not take packed ones
        pack(model)
    return Checkpoint(
        name=settings.source,
        model=model,
        tokenizer=found.tokenizer,
        device=model.device,
        dtype=plan.dtype,
        num_rows=found.num_rows,
        end_ids=found.end_ids,
        notes=tuple(notes),
        quantize=bits,
        head_rows=head_rows,
        step_bytes=read_bytes,
        head_bytes=0 if head is None else weight_bytes(head),
    )


def _with_own_bits(plan: Plan, model: PreTrainedModel) -> PreTrainedModel:
    """The model once more, on the same weights but for linear layers in the file's own bits."""
    assert plan.own_bits is not None
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    made = deepcopy(model, shared)
    with one_line_errors(plan.place):
        GgufWeights(plan.own_bits, made).replace_linear(made)
    return made


def _quicker(own: Checkpoint, rounded: Checkpoint, role: str) -> Checkpoint:
    """Of two forms of a draft the one that steps faster; the file's own bits where they are about as fast."""
    seconds = step_seconds({KEEP: lambda: _step(own.model), rounded.quantize: lambda: _step(rounded.model)})
    best = own if seconds[KEEP] <= AS_FAST * seconds[rounded.quantize] else rounded
    times = ", ".join(f"{how} {value * 1000:.1f}" for how, value in seconds.items())
    return replace(best, notes=(*best.notes, f"{role} {best.quantize}, as fast as any here (ms a step: {times})"))


def _step(model: PreTrainedModel) -> None:
    with torch.inference_mode():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=False)


def _what_was_built(plan: Plan, model: PreTrainedModel) -> str:
    weights = "random weights, " if plan.settings.dummy_weights else ""
    return f"{plan.role} {plan.settings.source}: {weights}{name_of(plan.dtype)} ({plan.reason}) on {model.device}"


def _where_layers_went(plan: Plan, model: PreTrainedModel) -> list[str]:
    """A note on a model that is spread over several devices."""
    places = Counter(str(place) for place in getattr(model, "hf_device_map", {}).values())
    if len(places) < 2:
        return []
    shares = ", ".join(f"{place} ({n} modules)" for place, n in places.items())
    return [f"{plan.role} is too large for one GPU: accelerate spread it over {shares}"]
