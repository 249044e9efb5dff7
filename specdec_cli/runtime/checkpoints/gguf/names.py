"""The model's name of each of a GGUF file's tensors, and that every tensor on either side has its other.

transformers fills a weight that a file lacks with random numbers, and passes over a tensor that it has no place for:
both are refused here, before anything is converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.initialization import no_init_weights
from transformers.integrations.gguf import get_gguf_conversion_mapping, is_gguf_arch_supported
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    Gemma2TensorProcessor,
    LlamaTensorProcessor,
    NemotronTensorProcessor,
    Qwen2MoeTensorProcessor,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.gguf.config import OTHERWISE
from specdec_cli.runtime.checkpoints.gguf.header import GgufFile, StoredTensor
from specdec_cli.runtime.checkpoints.gguf.rope import FACTOR_TENSORS

# Of these, what is done to a matrix is at most another order of its rows.
MOVES_ROWS_ONLY = (
    *(TensorProcessor, LlamaTensorProcessor, Gemma2TensorProcessor),
    *(NemotronTensorProcessor, Qwen2MoeTensorProcessor),
)
# In the names of extra tensors that change nothing: frequencies that are computed.
COMPUTED = ("attn_rot_embd", "rotary_emb.inv_freq")


@dataclass(frozen=True)
class Names:
    """Which tensor goes where.

    Attributes:
        processor: transformers' own, which undoes what llama.cpp's converter did to tensors.
        by_file: the file's names and the model's.
    """

    processor: Any
    by_file: Mapping[str, str]


def empty_model(config: PreTrainedConfig, **more: Any) -> PreTrainedModel:
    """A model whose weights have no data; its buffers, which are computed, have theirs."""
    with init_empty_weights(), no_init_weights():
        made: PreTrainedModel = AutoModelForCausalLM.from_config(config, **more)
    return made


def names_of(file: GgufFile, model: PreTrainedModel) -> Names:
    """The names as transformers finds them.

    Some files name the tensors of the model without its head, so that is asked first. transformers would ask every part
    of the model apart, and make all the names there are for each.

    Raises:
        NotImplementedError: transformers does not know the architecture's names.
    """
    processor: Any = _processor(file)(config=model.config.to_dict())
    found: dict[str, str] = {}
    for part, prefix in ((model.base_model, f"{model.base_model_prefix}."), (model, "")):
        alone: Any = SimpleNamespace(config=model.config, state_dict=part.state_dict, named_children=list)
        found |= get_gguf_hf_weights_map(alone, processor, qual_name=prefix)
    return Names(processor, found)


def require_all_tensors(file: GgufFile, model: PreTrainedModel) -> None:
    """Refuse a file that lacks a weight, has one of another size, or has tensors that nothing would compute with.

    Args:
        file: its header.
        model: of its configuration; its weights are not looked at.

    Raises:
        SpecdecError: one line with the tensor's name.
    """
    _require_formats(file)
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        wanted = {name: shape for name, shape in wanted.items() if name not in (model.all_tied_weights_keys or {})}
    places = _places(file, model)
    by_place: dict[str, set[str]] = {}
    for name, place in places.items():
        by_place.setdefault(place, set()).add(name)
    have = {t.name for t in file.tensors} | {_short(t.name) for t in file.tensors}
    missing = sorted(place for place in wanted if place not in by_place or not by_place[place] <= have)
    if missing:
        absent = sorted(by_place.get(missing[0], {missing[0]}) - have)
        raise SpecdecError(
            f"{file.name} lacks {absent[0]} (it has {len(wanted) - len(missing)} of the {len(wanted)} weights of a "
            f"{model.config.model_type}): get a whole file, or {OTHERWISE}"
        )
    layers = model.config.num_hidden_layers
    further = range(layers, layers + int(file.metadata.get(f"{file.architecture}.nextn_predict_layers") or 0))
    unused = [t.name for t in file.tensors if _place(t, places) not in wanted and not _is_harmless(t.name, further)]
    if unused:
        also = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise SpecdecError(
            f"{file.name} has {unused[0]}{also}, which a {model.config.model_type} here does not compute with, so that "
            f"the text would be another model's: {OTHERWISE}"
        )
    for tensor in file.tensors:
        place = _place(tensor, places)
        if place not in wanted or len(by_place[place]) > 1:
            continue
        if not _same_size(file, tensor.shape, wanted[place]):
            sizes = " where its metadata describe ".join("x".join(map(str, s)) for s in (tensor.shape, wanted[place]))
            raise SpecdecError(f"{file.name} has {tensor.name} of {sizes}: {OTHERWISE}")


def _short(name: str) -> str:
    """Experts go by a name without the suffix."""
    return name.removesuffix(".weight")


def _place(tensor: StoredTensor, places: Mapping[str, str]) -> str:
    """The weight that a tensor is, or is a part of; empty for none."""
    return places.get(tensor.name) or places.get(_short(tensor.name)) or ""


def _is_harmless(name: str, further: range) -> bool:
    """Whether a tensor may stay unused; `further` are layers for multi-token prediction, left out by transformers."""
    multi_token = any(name.startswith(f"blk.{layer}.") for layer in further)
    return name in FACTOR_TENSORS or any(part in name for part in COMPUTED) or multi_token


def _same_size(file: GgufFile, stored: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a tensor can be that weight: of its shape, or where transformers turns tensors round of its size."""
    turned = is_gguf_arch_supported(file.architecture) or _processor(file) not in MOVES_ROWS_ONLY
    return prod(stored) == prod(wanted) if turned or 1 in wanted else stored == wanted


def _processor(file: GgufFile) -> type:
    made: type = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)
    return made


def _places(file: GgufFile, model: PreTrainedModel) -> Mapping[str, str]:
    """The model's name for each name of the file's: of all that there could be, or of those that are there."""
    if not is_gguf_arch_supported(file.architecture):
        return names_of(file, model).by_file
    mapping = get_gguf_conversion_mapping(file.architecture, model.config)
    renamings = [rule for rule in mapping if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in mapping if isinstance(rule, WeightConverter)]
    return {t.name: rename_source_key(t.name, renamings, converters)[0] for t in file.tensors}


def _require_formats(file: GgufFile) -> None:
    """Refuse formats that the gguf package cannot read the numbers of."""
    from gguf import GGML_QUANT_SIZES, dequantize

    first: dict[Any, StoredTensor] = {}
    for tensor in file.tensors:
        first.setdefault(tensor.kind, tensor)
    for kind, tensor in first.items():
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except NotImplementedError as error:
            raise SpecdecError(
                f"{file.name} has {tensor.name} in {kind.name}, which the gguf package does not read: "
                f"take a file in another format, or {OTHERWISE}"
            ) from error
