"""A trained head beside its loaded target: is it made for it, and the network, ready for the drafter."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from specdec_cli.decoding.head import TrainedHead
from specdec_cli.errors import IncompatiblePairError, UsageError
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint
from specdec_cli.runtime.checkpoints.frequent_tokens import kept_tokens
from specdec_cli.runtime.checkpoints.locate import locate
from specdec_cli.runtime.checkpoints.plan import name_of
from specdec_cli.runtime.checkpoints.reading import Report, report_errors_only
from specdec_cli.runtime.devices import choose_device, out_of_memory
from specdec_cli.runtime.heads.dflash import DFlash
from specdec_cli.runtime.heads.dspark import DSpark
from specdec_cli.runtime.heads.eagle import Eagle
from specdec_cli.runtime.heads.eagle3 import Eagle3
from specdec_cli.runtime.heads.kinds import Head, detect
from specdec_cli.runtime.heads.medusa import Medusa
from specdec_cli.runtime.heads.parts import TargetParts
from specdec_cli.runtime.heads.peagle import PEagle
from specdec_cli.runtime.layers.packed import pack
from specdec_cli.runtime.layers.quantize import quantize
from specdec_cli.runtime.layers.quantized_linear import is_plain, take_rows
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.pairs.vocabularies import VocabularyComparison
from specdec_cli.settings import AUTO, KEEP, NOT_QUANTIZED, WHOLE_VOCAB, ModelSettings

# What makes a network of a head, by its kind.
NETWORKS: dict[str, Callable[[Head, TargetParts], Any]] = {
    "eagle": Eagle,
    "eagle3": Eagle3,
    "medusa": Medusa,
    "peagle": PEagle,
    "dflash": DFlash,
    "dspark": DSpark,
}


@dataclass(frozen=True)
class LoadedHead:
    """A head that can draft.

    Attributes:
        head: what it is.
        network: for the drafter.
        dtype: of its weights.
        quantize: bits that its linear layers keep.
        vocab: what --draft-vocab came to; "none" where the head speaks what it was trained for.
        notes: what was detected and decided, a line each.
    """

    head: Head
    network: TrainedHead
    dtype: torch.dtype
    quantize: str
    vocab: str
    notes: tuple[str, ...]


def head_at(settings: ModelSettings) -> Head | None:
    """The head that a --draft names; None where it names a model.

    Raises:
        SpecdecError: it is a head that cannot be read here.
    """
    report_errors_only()  # asking the hub comes first of all that a library could tell of
    return detect(locate(settings, "draft"))


def load_head(
    head: Head,
    target: ModelSettings,
    checkpoint: Checkpoint,
    model: TransformersModel,
    comparison: VocabularyComparison,
    report: Report,
) -> LoadedHead:
    """A head's network, with what it borrows of the loaded target.

    Args:
        head: as it was detected.
        target: how the target was asked for.
        checkpoint: the target.
        model: the same, for the loop.
        comparison: of the target with itself: ids that must not be drafted.
        report: told in a line what takes long.

    Raises:
        IncompatiblePairError: it was made for another target, or its kind cannot draft here.
        UsageError: an option that no head heeds.
        SpecdecError: its tensors are not what its configuration says.
    """
    settings, config = head.files.place.settings, checkpoint.model.config.get_text_config(decoder=True)
    name = head.files.place.name
    if head.kind not in NETWORKS:
        raise IncompatiblePairError(f"{name} is a {head.name} head, which specdec cannot draft with: choose another")
    _require_options(settings, target, name)
    head.require_target(config, checkpoint.num_rows)
    head.taps(config.num_hidden_layers)
    device = checkpoint.device if settings.device == AUTO else choose_device(settings.device, "--draft-device")
    dtype = checkpoint.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype)
    with torch.inference_mode(), out_of_memory(f"to load {name}", "choose a smaller target or a 16-bit --dtype"):
        embed, lm_head = checkpoint.model.get_input_embeddings(), checkpoint.model.get_output_embeddings()
        if device != checkpoint.device:
            embed, lm_head = (_copy(module, device, name) for module in (embed, lm_head))
        parts = TargetParts(
            embed, lm_head, config, device, dtype, model.vocab_size, comparison.target_blocked, checkpoint.dtype
        )
        network = NETWORKS[head.kind](head, parts).eval()
        notes = [f"{head.describe(config.num_hidden_layers)}; {name_of(dtype)} on {device}"]
        _cut(network, settings, checkpoint, head)
        bits = NOT_QUANTIZED
        if settings.quantize not in (NOT_QUANTIZED, KEEP):
            bits, words = quantize(network, settings.quantize, device, "--draft-quantize")
            notes.append(f"draft {words}")
        if settings.fuse:
            pack(network)
    known, of = len(network.output.words), model.vocab_size
    if known < of:
        notes.append(f"draft head knows {known:,} of {of:,} tokens; it never proposes the others")
    model.tap(network.taps)  # what cannot be tapped is refused before anything is generated
    model.tap(())
    vocab = WHOLE_VOCAB if settings.vocab == AUTO else settings.vocab
    return LoadedHead(head, network, dtype, bits, vocab, tuple(notes))


def describe_head(loaded: LoadedHead) -> dict[str, object]:
    """What a record says of it, beside what was asked for."""
    network: Any = loaded.network
    return {
        "device": str(network.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "quantize": loaded.quantize,
        "vocab": loaded.vocab,
        "head_rows": len(network.output.words),
        "head": loaded.head.kind,
        "states": [tap.boundary for tap in network.taps],
    }


def _require_options(settings: ModelSettings, target: ModelSettings, name: str) -> None:
    if settings.quantize == AUTO:
        raise UsageError(f"--draft-quantize {AUTO} times a model's steps, and {name} is a head: choose int8 or int4")
    if settings.dummy_weights:
        raise UsageError(f"--dummy-weights makes models of random weights, and {name} is a head: leave it out")
    if target.compile:
        raise UsageError(f"--compile compiles a target whose states nobody reads, and {name} reads them: leave it out")


def _copy(module: nn.Module, device: torch.device, name: str) -> nn.Module:
    """A part of the target on the head's device.

    Raises:
        UsageError: it is rounded, and its kernels are the target's device's.
    """
    if not (is_plain(module) or isinstance(module, nn.Embedding)):
        raise UsageError(
            f"--draft-device {device}: {name} shares the target's {type(module).__name__}, which cannot be copied "
            "there: leave --draft-device out"
        )
    return deepcopy(module).to(device)


def _cut(network: Any, settings: ModelSettings, checkpoint: Checkpoint, head: Head) -> None:
    """--draft-vocab, where the head speaks all tokens.

    Raises:
        UsageError: it does not, or its output layer cannot be cut.
    """
    if settings.vocab in (WHOLE_VOCAB, AUTO):  # published heads of large vocabularies have cut theirs already
        return
    if head.kind == "medusa":
        raise UsageError(f"--draft-vocab: {head.files.place.name} has an output layer for each place: leave it out")
    output = network.output
    if output.is_reduced or not is_plain(output.head):
        why = "speaks a vocabulary of its own" if output.is_reduced else "has an output layer that cannot be cut"
        raise UsageError(f"--draft-vocab: {head.files.place.name} {why}: leave it out")
    kept = kept_tokens(checkpoint.tokenizer, settings.vocab, checkpoint.end_ids, checkpoint.num_rows)
    output.cut(torch.tensor([i for i in kept if i < output.vocab_size], device=network.device), take_rows)
