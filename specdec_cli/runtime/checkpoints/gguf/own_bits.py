"""A GGUF file's weights in the bits that they are stored in, for torch's kernels.

The 4-bit formats in which 32 weights share a scale and an offset (Q4_0, Q4_1, Q4_K) are int4 in groups of 32 as they
stand: the codes stay, the scale and the offset are rounded to bfloat16. All others of up to 8 bits become int8 with one
scale a row, which is the nearest that torch's kernels have; what is stored in 16 or 32 bits stays an ordinary layer.
Nothing but embeddings, norms and biases is ever blown up: a layer's weights pass through float32 a few rows at a time.

Names and what llama.cpp's converter did to the tensors are undone as transformers undoes it; row orders (Llama's query
and key heads) are applied to the stored rows. Formats: ggml-common.h of llama.cpp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.integrations.gguf import is_gguf_arch_supported
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from specdec_cli.activity import each_of
from specdec_cli.runtime.checkpoints.gguf.config import STORED_DTYPES
from specdec_cli.runtime.checkpoints.gguf.header import StoredTensor, read_gguf
from specdec_cli.runtime.checkpoints.gguf.names import MOVES_ROWS_ONLY, empty_model, names_of
from specdec_cli.runtime.layers.quantized_linear import (
    GROUP,
    Int4Linear,
    Int8Linear,
    QuantizedLinear,
    int8_codes,
    row_blocks,
)

ORDINARY = tuple(STORED_DTYPES)
BITS_OF_GROUPS = 4 + 2 * 16 / GROUP


def _halves(blocks: Tensor, place: int) -> Tensor:
    """The float16 that begins at a byte of each block: [blocks, 1] float32."""
    return blocks[:, place : place + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[..., n] bytes to [..., 2 n] codes: the low halves of all, then the high ones."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _q4_0(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales = _halves(blocks, 0)
    return _nibbles(blocks[:, 2:]), scales, torch.zeros_like(scales)


def _q4_1(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales = _halves(blocks, 0)
    return _nibbles(blocks[:, 4:]), scales, _halves(blocks, 2) + 8 * scales


def _q4_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """256 weights: two float16, then 8 scales and 8 offsets of 6 bits in 12 bytes, then the codes, 64 to 32 bytes."""
    first, second, third = blocks[:, 4:16].unflatten(1, (3, 4)).unbind(1)
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], dim=1)
    lows = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], dim=1)
    steps = _halves(blocks, 0) * scales
    return _nibbles(blocks[:, 16:].unflatten(1, (4, 32))).flatten(1), steps, 8 * steps - _halves(blocks, 2) * lows


# By format, what becomes of [blocks, bytes]: codes [blocks, weights] from 0 to 15, scales and offsets [blocks, groups],
# a weight being (code - 8) * scale + offset.
GROUPS_OF_32: dict[str, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
}


def _blocks(data: np.ndarray, columns: int) -> Iterator[np.ndarray]:
    for block in row_blocks(len(data), columns):
        yield np.array(data[block])  # read, since torch wants no mapped memory that it may not write


def _int4_blocks(data: np.ndarray, kind: Any, columns: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    from gguf import GGML_QUANT_SIZES

    size = GGML_QUANT_SIZES[kind][1]
    for rows in _blocks(data, columns):
        codes, scales, offsets = GROUPS_OF_32[kind.name](torch.from_numpy(rows).view(-1, size))
        count = len(rows)
        yield codes.view(count, -1), scales.view(count, -1).bfloat16(), offsets.view(count, -1).bfloat16()


def _float_blocks(data: np.ndarray, kind: Any, columns: int) -> Iterator[Tensor]:
    from gguf import dequantize

    for rows in _blocks(data, columns):
        yield torch.from_numpy(dequantize(rows, kind))


class GgufWeights:
    """The tensors of a file under the names that transformers' model has for them.

    Args:
        path: of the file, or of one of a split set.
        model: of the file's configuration; its weights are not looked at.

    Raises:
        ValueError, LookupError, struct.error: the file is damaged.
        NotImplementedError: transformers does not know the architecture's names.
    """

    def __init__(self, path: Path, model: PreTrainedModel) -> None:
        file = read_gguf(path)
        self._name = path.name
        self._tensors, names = file.tensors, names_of(file, model)
        self._processor, self._names = names.processor, names.by_file
        self._by_name = {self._names[t.name]: t for t in self._tensors if t.name in self._names}
        self._tied = model.get_output_embeddings() is not None and model.config.tie_word_embeddings

    def layer(self, name: str, bias: Tensor | None) -> QuantizedLinear | None:
        """The linear layer of that name in the file's own bits; None where it has none that kernels exist for."""
        tensor = self._matrix(name)
        if tensor is None or tensor.kind.name in ORDINARY:
            return None
        rows, columns = tensor.shape
        data = self._in_order(tensor)
        if tensor.kind.name in GROUPS_OF_32:
            return Int4Linear.of_codes(_int4_blocks(data, tensor.kind, columns), rows, columns, bias)
        codes = map(int8_codes, _float_blocks(data, tensor.kind, columns))
        return Int8Linear.of_codes(codes, rows, columns, bias)

    def kind(self, name: str) -> str:
        """The format of that layer's weights."""
        tensor = self._matrix(name)
        return "" if tensor is None else tensor.kind.name

    def fill(self, model: PreTrainedModel, dtype: torch.dtype) -> dict[str, list[str]]:
        """Give a model on the meta device its weights: linear layers in their own bits, the rest in a number type.

        Returns:
            `missing_keys` and `mismatched_keys`, as transformers reports what it loads.
        """
        wanted = {name: parameter.shape for name, parameter in model.named_parameters(remove_duplicate=False)}
        linear = self._linear(model)
        rest = self.ordinary(lambda _: dtype, {f"{name}.weight" for name in linear})
        mismatched = [name for name, tensor in rest.items() if wanted.get(name, tensor.shape) != tensor.shape]
        for name in rest.keys() & wanted.keys() - set(mismatched):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Parameter(rest[name], requires_grad=False))
        model.tie_weights()
        mismatched += self._put_layers(model, linear)
        missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
        return {"missing_keys": sorted(set(missing) - set(mismatched)), "mismatched_keys": sorted(mismatched)}

    def _put_layers(self, model: PreTrainedModel, names: list[str]) -> list[str]:
        """Put layers there; the weights whose sizes are others."""
        mismatched = []
        for name in each_of(names, f"packing weights of {self._name}"):
            place: Any = model.get_submodule(name)
            layer = self.layer(name, place.bias)
            assert layer is not None
            if (layer.out_features, layer.in_features) != tuple(place.weight.shape):
                mismatched.append(f"{name}.weight")
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layer)
        return mismatched

    def _linear(self, model: PreTrainedModel) -> list[str]:
        """Names of the linear layers that the file has in fewer bits."""
        found = [name for name, module in model.named_modules() if type(module) is nn.Linear]
        return [name for name in found if self.kind(name) not in ("", *ORDINARY)]

    def _matrix(self, name: str) -> StoredTensor | None:
        """The stored weights of a linear layer, where they are a matrix whose rows stay whole."""
        if type(self._processor) not in MOVES_ROWS_ONLY:
            return None
        tensor = self._by_name.get(f"{name}.weight")
        if tensor is None and self._tied and name == "lm_head":
            tensor = next((t for t in self._tensors if t.name == "token_embd.weight"), None)
        return tensor if tensor is not None and len(tensor.shape) == 2 else None

    def _in_order(self, tensor: StoredTensor) -> np.ndarray:
        """A matrix's stored rows in transformers' order."""
        return self._processor.process(weights=tensor.data, name=tensor.name).weights

    def ordinary(self, dtype_of: Callable[[str], torch.dtype], without: Set[str] = frozenset()) -> dict[str, Tensor]:
        """All other tensors, dequantised and undone as transformers does it.

        Args:
            dtype_of: the number type for a stored format.
            without: weights that are not wanted.
        """
        from gguf import dequantize

        found: dict[str, Tensor] = {}
        dtypes: dict[str, torch.dtype] = {}
        wanted = [tensor for tensor in self._tensors if self._names.get(tensor.name) not in without]
        for tensor in each_of(wanted, f"reading weights of {self._name}"):
            name = self._names.get(tensor.name)
            dtype = dtype_of(tensor.kind.name)
            if name is not None and name.endswith(".weight") and self._matrix(name.removesuffix(".weight")) is tensor:
                found[name] = torch.empty(tensor.shape, dtype=dtype)
                parts = _float_blocks(self._in_order(tensor), tensor.kind, tensor.shape[1])
                for block, part in zip(row_blocks(len(found[name]), tensor.shape[1]), parts, strict=True):
                    found[name][block] = part
                dtypes[name] = dtype
                continue
            made = self._processor.process(
                weights=dequantize(tensor.data, tensor.kind), name=tensor.name, tensor_key_mapping=self._names,
                parsed_parameters={"tensors": found},
            )  # fmt: skip
            if made.name in self._names:
                found[self._names[made.name]] = torch.from_numpy(np.array(made.weights))
            dtypes.update(dict.fromkeys(found.keys() - dtypes.keys(), dtype))
        return {name: tensor.to(dtypes[name]) for name, tensor in found.items()}


def keeps_bits(path: Path) -> bool:
    """Whether a file has matrices in few bits that can be computed with as they stand."""
    file = read_gguf(path)
    by_rows = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor) in MOVES_ROWS_ONLY
    return (
        by_rows and not is_gguf_arch_supported(file.architecture) and bool(set(_formats(file.tensors)) - set(ORDINARY))
    )


def load_gguf(path: Path, config: PreTrainedConfig, dtype: torch.dtype) -> tuple[PreTrainedModel, dict[str, list[str]]]:
    """A model with the file's own bits, on the CPU, and what it lacks, as transformers reports it."""
    model = empty_model(config, dtype=dtype)
    return model, GgufWeights(path, model).fill(model, dtype)


def kept_bytes(path: Path, itemsize: int) -> int:
    """What a file's weights take in memory in their own bits, the ordinary ones at so many bytes a number."""
    tensors = read_gguf(path).tensors
    return round(sum(_num_bits(t, itemsize, ordinary=t.name == "token_embd.weight") for t in tensors) / 8)


def kept_head_bytes(path: Path, itemsize: int) -> int:
    """Of these, what the output head takes, which may be the embedding once more."""
    by_name = {tensor.name: tensor for tensor in read_gguf(path).tensors}
    head = by_name.get("output.weight") or by_name.get("token_embd.weight")
    return 0 if head is None else round(_num_bits(head, itemsize) / 8)


def _num_bits(tensor: StoredTensor, itemsize: int, ordinary: bool = False) -> float:
    """Bits that a tensor's weights become."""
    ordinary = ordinary or tensor.kind.name in ORDINARY
    each = 8 * itemsize if ordinary else BITS_OF_GROUPS if tensor.kind.name in GROUPS_OF_32 else 8
    return float(each * prod(tensor.shape))


def describe_bits(path: Path) -> str:
    """The formats of a file's matrices and what each becomes here, for the user."""
    counts = _formats(read_gguf(path).tensors)
    becomes = {kind: "int4" if kind in GROUPS_OF_32 else "16 bit" if kind in ORDINARY else "int8" for kind in counts}
    return ", ".join(f"{counts[kind]} {kind} as {becomes[kind]}" for kind in sorted(counts))


def _formats(tensors: Sequence[StoredTensor]) -> Counter[str]:
    """How many matrices have each format; an embedding counts where it is the head too."""
    tied = all(tensor.name != "output.weight" for tensor in tensors)
    matrices = (t for t in tensors if len(t.shape) == 2 and (tied or t.name != "token_embd.weight"))
    return Counter(tensor.kind.name for tensor in matrices)
