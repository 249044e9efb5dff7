"""Step 5: a model's layers joined, its head cut, its weights rounded and packed, as planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from specdec_cli.errors import UsageError
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint, step_bytes
from specdec_cli.runtime.checkpoints.gguf.own_bits import describe_bits
from specdec_cli.runtime.checkpoints.locate import option_of
from specdec_cli.runtime.checkpoints.plan import Plan, name_of
from specdec_cli.runtime.devices import out_of_memory
from specdec_cli.runtime.layers.cut_head import can_be_cut, cut_head
from specdec_cli.runtime.layers.joined import join
from specdec_cli.runtime.layers.packed import pack
from specdec_cli.runtime.layers.quantize import AS_FAST, quantize, step_seconds, weight_bytes
from specdec_cli.settings import AUTO, KEEP, NOT_QUANTIZED


def fit(plan: Plan, model: PreTrainedModel) -> Checkpoint:
    """Make a built model what the plan says; it is changed where it stands."""
    found, settings, role = plan.inspection, plan.settings, plan.role
    assert found.tokenizer is not None
    notes = [*_what_was_built(plan, model), *found.notes, *_where_layers_went(plan, model)]
    bits, head_rows = NOT_QUANTIZED, found.num_rows
    if plan.keeps_bits and plan.own_bits is not None:
        bits = KEEP
    if settings.fuse:
        join(model)
    if plan.kept_ids is not None and _can_be_cut(plan, model):
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


def quicker(forms: Sequence[Checkpoint]) -> Checkpoint:
    """Of two forms of a draft the one that steps faster; its file's own bits where they are about as fast.

    Args:
        forms: fitted; one, which stays, or the two of `Plan.forms`.
    """
    if len(forms) == 1:
        return forms[0]
    own, rounded = forms
    seconds = step_seconds({own.quantize: lambda: _step(own.model), rounded.quantize: lambda: _step(rounded.model)})
    best = own if seconds[own.quantize] <= AS_FAST * seconds[rounded.quantize] else rounded
    times = ", ".join(f"{how} {value * 1000:.1f}" for how, value in seconds.items())
    return replace(best, notes=(*best.notes, f"draft {best.quantize}, as fast as any here (ms a step: {times})"))


def _can_be_cut(plan: Plan, model: PreTrainedModel) -> bool:
    """Whether the head is a linear layer still: another library's quantised one is not, which only its weights tell.

    Raises:
        UsageError: it is not, and the cut was asked for.
    """
    if can_be_cut(model.get_output_embeddings()):
        return True
    if plan.settings.vocab == AUTO:
        return False
    name = type(model).__name__
    raise UsageError(f"--draft-vocab needs a linear head, which {name} has not: leave it out")


def _step(model: PreTrainedModel) -> None:
    with torch.inference_mode():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=False)


def _what_was_built(plan: Plan, model: PreTrainedModel) -> list[str]:
    """One note on the weights: their number type, or of a GGUF file in its own bits what each format becomes."""
    if plan.keeps_bits and plan.own_bits is not None:
        other, bits = option_of(plan.role, "quantize"), describe_bits(plan.own_bits)
        how = f"the file's own bits ({bits}; the rest in {name_of(plan.dtype)}; {other} none: 16 bit)"
        return [f"{plan.role} {plan.settings.source}: {how} on {model.device}"]
    weights = "random weights, " if plan.settings.dummy_weights else ""
    return [f"{plan.role} {plan.settings.source}: {weights}{name_of(plan.dtype)} ({plan.reason}) on {model.device}"]


def _where_layers_went(plan: Plan, model: PreTrainedModel) -> list[str]:
    """A note on a model that is spread over several devices."""
    places = Counter(str(place) for place in getattr(model, "hf_device_map", {}).values())
    if len(places) < 2:
        return []
    shares = ", ".join(f"{place} ({n} modules)" for place, n in places.items())
    return [f"{plan.role} is too large for one GPU: accelerate spread it over {shares}"]
