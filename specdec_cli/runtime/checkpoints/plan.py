"""Step 3: how a checkpoint will be loaded on this machine. One frozen value, made before a weight is read.

What cannot be loaded as asked is refused here, before anything large is read or converted: by `check_options` where the
options alone tell, by `plan` where there can be no plan, and by `require_loadable` where there is a plan, which
pair-check shows with its faults instead. (What is not there, or cannot be read, the steps before have refused.)
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from transformers.quantizers.auto import get_hf_quantizer

from specdec_cli.errors import IncompatiblePairError, OutOfMemoryError, SpecdecError, UsageError
from specdec_cli.runtime.checkpoints.frequent_tokens import OPTION as VOCAB_OPTION
from specdec_cli.runtime.checkpoints.frequent_tokens import kept_tokens, read_frequent
from specdec_cli.runtime.checkpoints.gguf.own_bits import BITS_OF_GROUPS, keeps_bits, kept_bytes, kept_head_bytes
from specdec_cli.runtime.checkpoints.inspection import Inspection
from specdec_cli.runtime.checkpoints.locate import Place, option_of
from specdec_cli.runtime.checkpoints.reading import one_line_errors
from specdec_cli.runtime.checkpoints.sizes import Sizes
from specdec_cli.runtime.devices import choose_device, choose_dtype, free_memory
from specdec_cli.runtime.layers.quantize import require_dtype, require_kernels
from specdec_cli.settings import AUTO, FREQUENT, KEEP, LARGE_HEAD, NOT_QUANTIZED, WHOLE_VOCAB, ModelSettings

# What a model takes beside its weights: activations, the cache of a short text, the allocator's slack.
HEADROOM = 1.1
BITS = {"int8": 8.0, "w8a8": 8.0, "int4": BITS_OF_GROUPS}  # of a weight; scales of whole rows do not count


@dataclass(frozen=True)
class Footprint:
    """Bytes of weights.

    Attributes:
        total: in memory.
        step: read by decoding one token.
        head: of those, the output head's.
    """

    total: int
    step: int
    head: int


@dataclass(frozen=True)
class Plan:
    """How a checkpoint will be loaded here.

    Attributes:
        inspection: what will be loaded.
        device: where ids go in and logits come out.
        dtype: of the weights that stay in a number type.
        reason: why that one, in a few words.
        bits: what its linear layers keep: "none", "int8", "w8a8", "int4", "keep" for a GGUF file's own, or "auto" for
            what steps fastest of these.
        own_bits: the GGUF file whose own bits are wanted; None where there is none, or no kernels.
        spread: over all devices, since it is too large for one.
        kept_ids: of a cut head, the tokens that it computes, ascending; None leaves it whole.
        head_reason: why it is cut where that was for this to decide; a clause for the note.
        built: bytes of the weights as they are read.
        loaded: the same once layers are rounded; where "auto" is still to choose, as they are read.
        rival: of "auto", the same checkpoint in the file's own bits, which it is compared with.
    """

    inspection: Inspection
    device: torch.device
    dtype: torch.dtype
    reason: str
    bits: str
    own_bits: Path | None
    spread: bool
    kept_ids: tuple[int, ...] | None
    head_reason: str
    built: Footprint
    loaded: Footprint
    rival: Plan | None = None

    @property
    def forms(self) -> tuple[Plan, ...]:
        """What is built and fitted, for the quicker one to stay: mostly one."""
        return (self,) if self.rival is None else (self.rival, self)

    @property
    def place(self) -> Place:
        """Where the checkpoint is."""
        return self.inspection.place

    @property
    def settings(self) -> ModelSettings:
        """What the user asked for."""
        return self.place.settings

    @property
    def role(self) -> str:
        """ "target" or "draft"."""
        return self.place.role

    @property
    def keeps_bits(self) -> bool:
        """Whether the model is built from a GGUF file's own bits."""
        return self.bits == KEEP and self.own_bits is not None

    @property
    def has_rounded_layers(self) -> bool:
        """Whether it is known already that linear layers will have fewer bits than the number type."""
        return self.keeps_bits or self.bits in BITS

    def in_16_bits(self) -> Plan:
        """The same in bfloat16, with the bytes that this takes; what keeps bits of its own stays as it is."""
        found = self.inspection
        if self.has_rounded_layers or found.is_quantised:
            return self
        built = _built(found, found.sizes, torch.bfloat16, None)
        return replace(self, dtype=torch.bfloat16, built=built, loaded=built)

    def kv_bytes(self, num_tokens: int) -> int | None:
        """Bytes of its cache after so many tokens; windows are full at most. None where it is not known."""
        layers = self.inspection.cache_layers
        if layers is None:
            return None
        return (
            sum(layer.numbers * min(num_tokens, layer.window or num_tokens) for layer in layers) * self.dtype.itemsize
        )

    @cached_property
    def quantiser_problem(self) -> str:
        """Why another library's blocks cannot be read here, as transformers would find when it loads them; else empty.

        Such a library may be missing, want another device, or be one that this transformers does not know, which it
        would then load without what undoes the rounding.
        """
        if not self.inspection.is_quantised or self.settings.dummy_weights:
            return ""
        config = deepcopy(self.inspection.config)
        try:
            with one_line_errors(self.place):
                if get_hf_quantizer(config, None, {"": self.device}, weights_only=True, user_agent={})[0] is None:
                    method = self.inspection.quantiser
                    raise SpecdecError(
                        f"{self.place.name} was quantised by {method}, which this transformers does not know: upgrade "
                        "transformers, or choose a checkpoint without it"
                    )
        except SpecdecError as error:
            return str(error)
        return ""

    def require_loadable(self) -> None:
        """Refuse what pair-check tells as a check: no tokenizer, no roll-back, foreign blocks, too little memory.

        Raises:
            SpecdecError: there is no tokenizer that can be read, or nothing that reads its blocks.
            IncompatiblePairError: its cache cannot be rolled back.
            OutOfMemoryError: naming what is needed and what is free.
        """
        if self.inspection.tokenizer is None:
            raise SpecdecError(self.inspection.tokenizer_problem)
        if self.inspection.cache_problem is not None:
            raise IncompatiblePairError(self.inspection.cache_problem)
        if self.quantiser_problem:
            raise SpecdecError(self.quantiser_problem)
        needed, available = self.built.total * HEADROOM, free_memory(self.device)
        if self.spread or needed <= available:
            return
        raise OutOfMemoryError(
            f"{self.place.name} needs about {needed / 1e9:.1f} GB in {name_of(self.dtype)}, {self.device.type} has "
            f"{available / 1e9:.1f} GB free: choose a smaller model, another device or a 16-bit --dtype"
        )


def name_of(dtype: torch.dtype) -> str:
    """A number type as users write it."""
    return str(dtype).removeprefix("torch.")


def check_options(settings: ModelSettings, role: str) -> torch.device:
    """What can be refused before anything is looked at; the device.

    Raises:
        UsageError: a device that is not here, or bits that it has no kernels for.
        SpecdecError: a package that the kernels need is missing.
    """
    device = choose_device(settings.device, option_of(role, "device"))
    if role == "target" and settings.quantize == AUTO:
        raise UsageError(f"--quantize {AUTO} is for a draft; another target is another model: choose one by name")
    if settings.quantize not in (NOT_QUANTIZED, KEEP):
        require_kernels(settings.quantize, device, option_of(role, "quantize"))
    if settings.vocab not in (AUTO, WHOLE_VOCAB) and not settings.vocab.isdecimal():
        read_frequent(settings.vocab)
    return device


def plan(found: Inspection, device: torch.device) -> Plan:
    """Decide how a checkpoint is loaded on a device.

    Raises:
        UsageError: it generates no text, or an option does not fit it.
        SpecdecError: its files cannot be read.
    """
    if found.architecture_problem is not None:
        raise UsageError(found.architecture_problem)
    own_bits, wanted = _own_bits(found.place, device), found.place.settings.quantize
    if wanted == AUTO and own_bits is not None:
        return _plan(found, device, AUTO, own_bits, rival=_plan(found, device, KEEP, own_bits))
    return _plan(found, device, NOT_QUANTIZED if wanted == KEEP and own_bits is None else wanted, own_bits)


def _plan(found: Inspection, device: torch.device, bits: str, own_bits: Path | None, rival: Plan | None = None) -> Plan:
    sizes, role = found.sizes, found.role
    dtype, reason = _dtype(found, sizes, device)
    require_dtype(bits, dtype, device, option_of(role, "quantize"))
    built = _built(found, sizes, dtype, own_bits if bits == KEEP else None)
    kept_ids, head_reason = _kept_ids(found, sizes, built)
    return Plan(
        inspection=found,
        device=device,
        dtype=dtype,
        reason=reason,
        bits=bits,
        own_bits=own_bits,
        spread=device.type == "cuda" and role == "target" and built.total * HEADROOM > free_memory(device),
        kept_ids=kept_ids,
        head_reason=head_reason,
        built=built,
        loaded=_rounded(sizes, dtype, BITS[bits]) if bits in BITS else built,
        rival=rival,
    )


def _dtype(found: Inspection, sizes: Sizes, device: torch.device) -> tuple[torch.dtype, str]:
    """The number type to compute in, and why; the stored one where only that fits."""
    wanted = found.place.settings.dtype
    stored = getattr(found.text_config, "dtype", None) or found.config.dtype or torch.float32
    dtype, why = choose_dtype(wanted, stored, device)
    too_large = sizes.parameters * dtype.itemsize * HEADROOM > free_memory(device)
    if wanted == AUTO and dtype != stored and too_large:
        return stored, "as stored, since float32 does not fit"
    return dtype, why


def _own_bits(place: Place, device: torch.device) -> Path | None:
    """The GGUF file whose own bits are wanted, where there are kernels for them: for the CPU, in bfloat16."""
    settings, file = place.settings, place.gguf
    wanted = settings.quantize == KEEP or (settings.quantize == AUTO and place.role == "draft")
    if file is None or not wanted or settings.dummy_weights:
        return None
    if device.type != "cpu" or settings.dtype not in (AUTO, "bfloat16"):
        return None
    with one_line_errors(place):
        return file if keeps_bits(file) else None


def _built(found: Inspection, sizes: Sizes, dtype: torch.dtype, own_bits: Path | None) -> Footprint:
    """Weights as they are read: in a number type, in a GGUF file's own bits, or in another library's blocks."""
    table, head = sizes.table * dtype.itemsize, sizes.head * dtype.itemsize
    if own_bits is not None:
        with one_line_errors(found.place):
            kept, head = kept_bytes(own_bits, dtype.itemsize), kept_head_bytes(own_bits, dtype.itemsize)
        more = head if sizes.tied else 0  # the embedding that is the head too is kept in both forms
        return Footprint(kept + more, kept + more - table, head)
    total = sizes.parameters * dtype.itemsize
    if found.is_quantised and found.stored.bytes is not None:
        total = found.stored.bytes
    return Footprint(total, round(total * sizes.step_parameters / sizes.parameters), head)


def _rounded(sizes: Sizes, dtype: torch.dtype, bits: float) -> Footprint:
    """Weights once linear layers are rounded: all but an input embedding, which stays in the number type."""
    step = round((sizes.parameters - (0 if sizes.tied else sizes.table)) * bits / 8)
    return Footprint(step + sizes.table * dtype.itemsize, step, round(sizes.head * bits / 8))


def _kept_ids(found: Inspection, sizes: Sizes, built: Footprint) -> tuple[tuple[int, ...] | None, str]:
    """What a draft's head is cut to, and why where that is for this to decide: a head that is much of a step is cut."""
    vocab, reason = found.place.settings.vocab, ""
    if vocab == AUTO:
        share = built.head / built.step
        if not sizes.linear_head or found.num_rows <= FREQUENT or share < LARGE_HEAD:
            return None, ""
        vocab, reason = str(FREQUENT), f", since it was {share:.0%} of a step's bytes"
    if vocab == WHOLE_VOCAB or found.tokenizer is None:
        return None, ""
    if not sizes.linear_head:
        name = type(found.skeleton).__name__
        raise UsageError(f"{VOCAB_OPTION} needs a linear head, which {name} has not: leave it out")
    kept = kept_tokens(found.tokenizer, vocab, found.end_ids, found.num_rows)
    return (None, "") if len(kept) >= found.num_rows else (tuple(kept), reason)
