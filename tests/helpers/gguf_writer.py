"""GGUF files as llama.cpp's converter would write a small Llama: names, order of rotary dimensions, tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tiny
from gguf import GGMLQuantizationType
from transformers import PreTrainedModel

MERGES = ("h e", "l l", "he ll", "hell o")
TOKENS = (*tiny.ALPHABET, *(m.replace(" ", "") for m in MERGES), tiny.END)
END_ID = len(TOKENS) - 1
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a parameter."""
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    base = name.removesuffix(".weight")
    if base in outer:
        return f"{outer[base]}.weight"
    layer, part = base.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight"


Encode = Callable[[np.ndarray, GGMLQuantizationType], np.ndarray]


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    quantization: GGMLQuantizationType,
    encode: Encode = gguf.quants.quantize,
    kinds: dict[str, GGMLQuantizationType] | None = None,
) -> Path:
    """What llama.cpp's converter makes of a Llama and a byte-level tokenizer.

    Args:
        quantization: of the matrices, those apart whose names (the file's) are in `kinds`.
        encode: float32 [rows, columns] and a format to [rows, bytes].
    """
    config: Any = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * END_ID + [gguf.TokenType.CONTROL])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(END_ID)
    writer.add_eos_token_id(END_ID)
    writer.add_chat_template(tiny.CHAT_TEMPLATE)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        weight = tensor
        for projection, num_heads in heads.items():
            if f".{projection}." in name:  # llama.cpp pairs neighbouring dimensions, transformers the halves
                by_head = weight.reshape(num_heads, 2, -1, weight.shape[-1])
                weight = by_head.transpose(1, 2).reshape(weight.shape)
        kind = GGMLQuantizationType.F32
        if weight.ndim == 2:
            kind = (kinds or {}).get(gguf_name(name), quantization)
        writer.add_tensor(gguf_name(name), encode(weight.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
