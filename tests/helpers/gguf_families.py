"""GGUF files of any family: a transformers model's tensors under gguf's names, as llama.cpp's converter turns them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf_writer import MERGES, TOKENS
from transformers import PreTrainedModel

Tensors = Iterable[tuple[str, np.ndarray]]


def llama_rows(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp pairs neighbouring dimensions of a head, transformers its halves."""
    return weight.reshape(num_heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def tensors_of(model: PreTrainedModel, architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    """The file's names and contents of all weights."""
    config: Any = model.config
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tied = model.all_tied_weights_keys if config.tie_word_embeddings else {}
    for name, parameter in model.state_dict().items():
        if name in tied:
            continue
        weight = parameter.numpy()
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            for part, half in zip(("gate", "up"), np.split(weight, 2, axis=1), strict=True):
                yield f"blk.{layer}.ffn_{part}_exps.weight", half
            continue
        if name.endswith("experts.down_proj"):
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", weight
            continue
        base, _, suffix = name.rpartition(".")
        short = base.removeprefix(f"{model.base_model_prefix}.")  # some converters name the model without its head
        file_name = f"{names.get_name(base) or names.get_name(short)}.{suffix}"
        if suffix == "A_log":
            yield f"{names.get_name(name)}", -np.exp(weight)
            continue
        if suffix == "D":
            yield f"{names.get_name(name)}", weight
            continue
        if ".conv1d.weight" in name or ".conv.conv.weight" in name:
            weight = weight.squeeze(1)
        if architecture == "llama" and ".self_attn.q_proj." in name:
            weight = llama_rows(weight, config.num_attention_heads)
        if architecture == "llama" and ".self_attn.k_proj." in name:
            weight = llama_rows(weight, config.num_key_value_heads)
        if architecture in ("gemma2", "gemma3", "nemotron") and file_name.endswith("norm.weight"):
            weight = weight + 1
        if architecture == "gpt2" and weight.ndim == 2 and ".h." in name:
            weight = weight.T
        if architecture == "bloom" and "query_key_value" in name:
            by_head = weight.reshape(config.n_head, 3, -1, *weight.shape[1:])
            weight = by_head.swapaxes(0, 1).reshape(weight.shape)
        yield file_name, np.ascontiguousarray(weight)


def write_family(
    path: Path,
    architecture: str,
    keys: Mapping[str, Any],
    tensors: Tensors,
    kind: Kind = Kind.F32,
    tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
    part: tuple[int, int, int] | None = None,
) -> Path:
    """A file of one architecture.

    Args:
        keys: metadata; those without a dot's prefix "general." or "tokenizer." are the architecture's own.
        tensors: all of them.
        kind: of the matrices.
        tokenizer: adds one; None is the byte-level one of `gguf_writer`.
        part: number, count and tensors of all, where it is one of a split set; only number 0 has metadata.
    """
    writer = gguf.GGUFWriter(path, architecture)
    if part is None or part[0] == 0:
        (byte_level if tokenizer is None else tokenizer)(writer)
        for key, value in keys.items():
            own = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add.get(type(value), writer.add_array)(own, value)  # type: ignore[call-arg, operator]
    if part is not None:
        number, count, total = part
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", total)
    for name, tensor in tensors:
        used = kind if tensor.ndim > 1 else Kind.F32
        writer.add_tensor(name, gguf.quants.quantize(np.float32(tensor), used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_level(
    writer: gguf.GGUFWriter,
    tokens: tuple[str, ...] = TOKENS,
    types: list[gguf.TokenType] | None = None,
    merges: tuple[str, ...] = MERGES,
    pre: str | None = "smollm",
    end: int | None = None,
) -> None:
    """A tokenizer of bytes; its last token ends a text, unless another is given."""
    last = len(tokens) - 1
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_token_types(types or [normal] * last + [control])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(last if end is None else end)
    writer.add_eos_token_id(last if end is None else end)


def llama_keys(config: Any) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes for most decoders."""
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.freq_base": float(rope["rope_theta"]),
        "vocab_size": config.vocab_size,
        **({"attention.layer_norm_rms_epsilon": config.rms_norm_eps} if hasattr(config, "rms_norm_eps") else {}),
    }
