"""A GGUF file's metadata as a transformers configuration, with every key that changes the computation accounted for.

transformers' own reading sets what it knows and passes over the rest. Here each of the architecture's keys is set in
the configuration, compared with what the configuration says, or refused by name: a model that computes something
else without a word is the one result that must not be.

Keys: gguf-py's constants.py and docs/gguf.md of ggml; what llama.cpp takes where a key is missing: its src/models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS, get_gguf_config

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.gguf import words
from specdec_cli.runtime.checkpoints.gguf.header import GgufFile
from specdec_cli.runtime.checkpoints.gguf.rope import ROPE_KEYS, rope_parameters

OTHERWISE = "use the model's safetensors"
# Of formats that hold numbers, the type that holds them exactly.
STORED_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Keys and the attributes of a configuration that take their values.
DECODER = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}
RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
WINDOW = {"attention.sliding_window": "sliding_window"}
# Keys that no decoder leaves at 0.
SIZES = words("block_count embedding_length attention.head_count attention.head_count_kv attention.key_length")
# Keys that say nothing about the computation, or the same as the tensors.
HARMLESS = words(
    "vocab_size tensor_data_layout rope.scaling.finetuned pooling_type use_parallel_residual",
    "attention.sliding_window_pattern",
)
# Keys that switch something on: 0 and false leave the computation as it is.
SWITCHES = words(
    "expert_count expert_used_count expert_shared_count expert_group_count expert_group_used_count",
    "leading_dense_block_count nextn_predict_layers attention.clamp_kqv attention.max_alibi_bias",
    "attention.sliding_window attention.scale attn_logit_softcapping final_logit_softcapping logit_scale",
    "residual_scale embedding_scale attention.temperature_scale attention.shared_kv_layers",
    "attention.head_count feed_forward_length ssm.dt_b_c_rms",
)


@dataclass(frozen=True)
class Family:
    """How one of llama.cpp's architectures becomes one of transformers'.

    Attributes:
        model_type: transformers' name.
        fields: keys and the attributes that take their values; a missing key leaves transformers' default.
        flags: attributes that are true where the file has a tensor of that name, and false where not.
        more: what else to set, from the file and what was set by then.
        partial: whether it can turn a part of each head only.
        rope: whether its positions are rotations.
    """

    model_type: str
    fields: Mapping[str, str]
    flags: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[GgufFile, Mapping[str, Any]], dict[str, Any]] = lambda file, config: {}
    partial: bool = False
    rope: bool = True


def _gemma2(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp knows by the number of layers that the largest of each divides its scores by another length."""
    largest = {"gemma2": 46, "gemma3": 62}[file.architecture]
    width = config["hidden_size"] // config["num_attention_heads"]
    length = width if config["num_hidden_layers"] == largest else config.get("head_dim", width)
    return {"query_pre_attn_scalar": length}


def _gemma3(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    pattern = file.get("attention.sliding_window_pattern", 6)
    count = config["num_hidden_layers"]
    slides = pattern if isinstance(pattern, list) else [(i + 1) % pattern != 0 for i in range(count)]
    return _gemma2(file, config) | {
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides[:count]]
    }


BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
LAYER_NORM = "attention.layer_norm_epsilon"
FAMILIES = {
    "llama": Family("llama", DECODER | RMS, BIASES),
    "qwen2": Family("qwen2", DECODER | RMS),
    "qwen2moe": Family(
        "qwen2_moe",
        DECODER | RMS | EXPERTS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    ),
    "qwen3": Family("qwen3", DECODER | RMS, {"attention_bias": BIASES["attention_bias"]}),
    "qwen3moe": Family(
        "qwen3_moe",
        DECODER | RMS | EXPERTS,
        {"attention_bias": BIASES["attention_bias"]},
        lambda file, config: {"norm_topk_prob": True},  # llama.cpp always does for these
    ),
    "phi3": Family("phi3", DECODER | RMS | WINDOW, partial=True),
    "gemma2": Family(
        "gemma2",
        DECODER
        | RMS
        | WINDOW
        | {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"},
        more=_gemma2,
    ),
    "gemma3": Family(
        "gemma3_text",
        DECODER | RMS | WINDOW | {"final_logit_softcapping": "final_logit_softcapping"},
        more=_gemma3,
    ),
    "stablelm": Family(
        "stablelm",
        DECODER | {LAYER_NORM: "layer_norm_eps"},
        {"use_qkv_bias": "blk.0.attn_q.bias"},
        lambda file, config: {"use_parallel_residual": file.tensor("blk.0.ffn_norm.weight") is None},
        partial=True,
    ),
    "starcoder2": Family(
        "starcoder2", DECODER | WINDOW | {LAYER_NORM: "norm_epsilon"}, {"use_bias": "blk.0.attn_q.bias"}
    ),
    "nemotron": Family("nemotron", DECODER | {LAYER_NORM: "norm_eps"}, BIASES, partial=True),
    "falcon": Family(
        "falcon",
        DECODER
        | {LAYER_NORM: "layer_norm_epsilon", "feed_forward_length": "ffn_hidden_size"}
        | {"attention.head_count_kv": "num_kv_heads"},
    ),
    "bloom": Family(
        "bloom",
        {
            "block_count": "n_layer",
            "embedding_length": "hidden_size",
            "attention.head_count": "n_head",
            LAYER_NORM: "layer_norm_epsilon",
        },
        rope=False,
    ),
    "gpt2": Family(
        "gpt2",
        {
            "block_count": "n_layer",
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            LAYER_NORM: "layer_norm_epsilon",
        },
        rope=False,
    ),
    "mamba": Family(
        "mamba",
        {
            "block_count": "num_hidden_layers",
            "embedding_length": "hidden_size",
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "ssm.conv_kernel": "conv_kernel",
            "ssm.state_size": "state_size",
            "ssm.time_step_rank": "time_step_rank",
            "ssm.inner_size": "intermediate_size",
        },
        rope=False,
    ),
}
# Keys that transformers' own makers of configurations read, for the architectures that it has such makers for.
READ_BY_TRANSFORMERS = words(
    "context_length block_count embedding_length feed_forward_length attention.head_count attention.head_count_kv",
    "attention.key_length attention.layer_norm_rms_epsilon rope.freq_base rope.dimension_sections",
    "rope.dimension_count full_attention_interval ssm.conv_kernel ssm.state_size ssm.group_count ssm.time_step_rank",
    "ssm.inner_size shortconv.l_cache nextn_predict_layers expert_feed_forward_length expert_count",
    "expert_used_count expert_shared_feed_forward_length",
)


def config_of(file: GgufFile) -> PreTrainedConfig:
    """The configuration of the model that a file holds.

    Raises:
        SpecdecError: the architecture or one of its keys cannot be honoured; one line that names it.
    """
    architecture = file.architecture
    require_architecture(file)
    tokens = {f"{n}_token_id": file.metadata.get(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos")}
    shared = {
        **tokens,
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
        "tie_word_embeddings": file.tensor("output.weight") is None,
        "dtype": stored_dtype(file),
    }
    embedding = file.tensor("token_embd.weight")
    if embedding is not None:
        shared["vocab_size"] = embedding.shape[0]
    try:
        if architecture in GGUF_CONFIG_ARCHS:
            made = get_gguf_config(dict(file.metadata), tuple(t.name for t in file.tensors))
            _require_honoured(file, READ_BY_TRANSFORMERS)
            return AutoConfig.for_model(**made | shared)
        family = FAMILIES[architecture]
        made = _fields(file, family)
        made |= {name: file.tensor(tensor) is not None for name, tensor in family.flags.items()}
        made |= family.more(file, made)
        if family.rope:
            made["rope_parameters"] = rope_parameters(file, made, family.partial)
        _require_honoured(file, frozenset(family.fields) | (ROPE_KEYS if family.rope else frozenset()))
        config = AutoConfig.for_model(family.model_type, **made | shared)
    except KeyError as error:
        raise SpecdecError(f"{file.name} lacks the metadata {error.args[0]}: {OTHERWISE}") from error
    _require_set(file, config, made)
    return config


def require_architecture(file: GgufFile) -> None:
    """Refuse what is no language model of a kind known here, before anything large is read."""
    architecture = file.architecture
    if architecture == "clip" or file.metadata.get("general.type") == "mmproj":
        raise SpecdecError(f"{file.name} turns images into tokens and generates no text: name the model it belongs to")
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise SpecdecError(f"{file.name} is no model but of type '{kind}': name the model it belongs to")
    known = sorted({*FAMILIES, *GGUF_CONFIG_ARCHS})
    if architecture not in known:
        raise SpecdecError(
            f"{file.name} is of the architecture '{architecture}', and GGUF files are read of these: "
            f"{', '.join(known)}. For another one: {OTHERWISE}"
        )


def stored_dtype(file: GgufFile) -> torch.dtype:
    """The number type that holds the file's matrices; bfloat16 for those in blocks of fewer bits."""
    kinds = {t.kind.name for t in file.tensors if len(t.shape) > 1}
    if not kinds <= STORED_DTYPES.keys():
        return torch.bfloat16
    return STORED_DTYPES[next((kind for kind in STORED_DTYPES if kind in kinds), "F32")]


def _fields(file: GgufFile, family: Family) -> dict[str, Any]:
    """The attributes that the file's keys give."""
    made: dict[str, Any] = {}
    for key, attribute in family.fields.items():
        value = file.get(key)
        if value is not None and key in SIZES and not _all_positive(value):
            raise SpecdecError(f"{file.name} has {_full(file, key)} = {value}, which no model has: download it again")
        if isinstance(value, list):
            if len(set(value)) > 1:
                raise SpecdecError(f"{file.name} has another {_full(file, key)} in each layer: {OTHERWISE}")
            value = value[0]
        if value is not None:
            made[attribute] = value if value or key not in SWITCHES else None
    made.setdefault("num_key_value_heads", made.get("num_attention_heads"))
    heads = made.get("num_attention_heads")
    if heads and "head_dim" not in made and not family.partial and file.get("rope.dimension_count"):
        made["head_dim"] = file.get("rope.dimension_count")
    return {name: value for name, value in made.items() if value is not None or name in family.fields.values()}


def _all_positive(value: Any) -> bool:
    """Whether a size, or each of a list of them, is a whole number above 0."""
    sizes = value if isinstance(value, list) else [value]
    return bool(sizes) and all(type(size) is int and size > 0 for size in sizes)


def _full(file: GgufFile, key: str) -> str:
    return f"{file.architecture}.{key}"


def _require_honoured(file: GgufFile, honoured: frozenset[str]) -> None:
    """Refuse the first key that nothing here computes with."""
    prefix = f"{file.architecture}."
    for name, value in file.metadata.items():
        key = name.removeprefix(prefix)
        if not name.startswith(prefix) or key in honoured or key in HARMLESS or (key in SWITCHES and not value):
            continue
        if not _same_anyway(file, key, value):
            raise SpecdecError(f"{file.name} has {name} = {value}, which is not computed with here: {OTHERWISE}")


def _same_anyway(file: GgufFile, key: str, value: Any) -> bool:
    """Whether a key says what is the case without it."""
    head_count, width = file.get("attention.head_count"), file.get("embedding_length")
    length = file.get("attention.key_length") or (width // head_count if head_count and width else None)
    same: dict[str, Any] = {
        "attention.value_length": length,
        "attention.key_length": length,
        "attention.causal": True,
        "attention.head_count_kv": head_count,
        "feed_forward_length": 4 * (width or 0),
        "rope.dimension_count": length,
        "logit_scale": 1,
        "residual_scale": 1,
        "embedding_scale": 1,
        "context_length": value,  # of families without a limit
    }
    if key == "attention.sliding_window":  # as long as the context: it never moves
        return int(value) >= int(file.get("context_length", 0))
    if key == "attention.scale" and length:
        return abs(float(value) * length**0.5 - 1) < 1e-5
    return key in same and bool(same[key] == value)


def _require_set(file: GgufFile, config: PreTrainedConfig, made: Mapping[str, Any]) -> None:
    """Refuse values that transformers' configuration did not take as they are."""
    for name, value in made.items():
        if name != "rope_parameters" and getattr(config, name, None) != value:
            raise SpecdecError(
                f"{file.name} gives {value} as {name}, which transformers' {config.model_type} does not take: "
                f"{OTHERWISE}"
            )
