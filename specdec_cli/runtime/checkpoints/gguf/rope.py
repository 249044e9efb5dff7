"""Rotary positions of a GGUF file: its keys and factor tensors as transformers' `rope_parameters`.

llama.cpp's converter writes scaling as keys (linear, yarn), or as a factor for each frequency: `rope_freqs` for all
lengths (Llama 3), `rope_factors_short` and `rope_factors_long` for texts up to and beyond the original context
(longrope).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.gguf.header import GgufFile

SCALING = "rope.scaling."
ROPE_KEYS = frozenset(
    {
        "rope.freq_base",
        "rope.dimension_count",
        "rope.freq_base_swa",
        "rope.scale_linear",
        *(SCALING + key for key in ("type", "factor", "original_context_length", "attn_factor", "finetuned")),
        *(SCALING + f"yarn_{key}" for key in ("ext_factor", "attn_factor", "beta_fast", "beta_slow")),
    }
)
FREQS, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
FACTOR_TENSORS = frozenset({FREQS, SHORT, LONG})
# Of every Llama 3: what its factors leave as it is, and from where on they divide by the whole factor, both in turns
# within the original context.
LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR = 1.0, 4.0
CLOSE = 1e-4  # factors are float32 that a converter computed


def rope_parameters(file: GgufFile, config: Mapping[str, Any], partial: bool) -> dict[str, Any]:
    """transformers' `rope_parameters` of a file.

    Args:
        file: its keys and factors.
        config: attributes that are known by now: sizes and numbers of heads.
        partial: whether the model can turn a part of each head only.

    Raises:
        SpecdecError: what the file says cannot be honoured; one line that names it.
    """
    base = float(file.get("rope.freq_base", 10_000.0))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    turned = int(file.get("rope.dimension_count", head_dim))
    if turned != head_dim and not partial:
        raise _refused(file, "rope.dimension_count", f"of {head_dim} dimensions {turned}")
    made = {"rope_theta": base, **_scaling(file, base, turned, config)}
    if partial:
        made["partial_rotary_factor"] = turned / head_dim
    if file.architecture == "gemma3":  # only its full layers are scaled
        local = {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base_swa", 10_000.0))}
        return {"full_attention": made, "sliding_attention": local}
    if file.get("rope.freq_base_swa", base) != base:
        raise _refused(file, "rope.freq_base_swa", file.get("rope.freq_base_swa"))
    return made


def _refused(file: GgufFile, key: str, value: Any) -> SpecdecError:
    return SpecdecError(
        f"{file.name} has {file.architecture}.{key} = {value}, which is not computed with here: "
        "use the model's safetensors"
    )


def _scaling(file: GgufFile, base: float, turned: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """The type of scaling and its numbers."""
    factors = {name: _factors(file, name, turned) for name in FACTOR_TENSORS if file.tensor(name) is not None}
    kind = str(file.get(SCALING + "type", "longrope" if LONG in factors else "none"))
    factor = float(file.get(SCALING + "factor", 0) or 0)
    if kind in ("none", "") and file.get("rope.scale_linear", 1) not in (0, 1):  # as files of 2023 say it
        kind, factor = "linear", float(file.get("rope.scale_linear"))
    if kind not in ("none", "", "linear", "yarn", "longrope"):
        raise _refused(file, SCALING + "type", kind)
    if FREQS in factors:
        if kind in ("yarn", "longrope") or factor not in (0, 1) or len(factors) > 1:
            raise _refused(file, SCALING + "type", f"{kind} beside {FREQS}")
        return _by_factors(factors[FREQS], base, turned, config)
    if kind == "longrope":
        if factors.keys() != {SHORT, LONG}:
            raise _refused(file, SCALING + "type", f"{kind} without {SHORT} and {LONG}")
        return _longrope(file, factors, config)
    if factors:
        raise _refused(file, SCALING + "type", f"{kind} beside {LONG}")
    if file.get(SCALING + "attn_factor", 1.0) not in (0, 1) and kind != "yarn":
        raise _refused(file, SCALING + "attn_factor", file.get(SCALING + "attn_factor"))
    if kind in ("none", "") or factor in (0, 1):
        return {"rope_type": "default"}
    return {"rope_type": "linear", "factor": factor} if kind == "linear" else _yarn(file, factor, config)


def _factors(file: GgufFile, name: str, turned: int) -> list[float]:
    """The values of a factor tensor, one a frequency."""
    tensor = file.tensor(name)
    assert tensor is not None
    if tensor.kind.name != "F32" or tensor.shape != (turned // 2,):
        raise SpecdecError(
            f"{file.name} has {name} of {'x'.join(map(str, tensor.shape))} {tensor.kind.name}, where {turned // 2} "
            "frequencies each need one F32: use the model's safetensors"
        )
    return [float(x) for x in tensor.data.reshape(-1).view(np.float32)]


def _by_factors(factors: list[float], base: float, turned: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Each frequency divided by a factor of its own: by Llama 3's rule where it gives them, else as a list."""
    if all(abs(f - 1) < CLOSE for f in factors):
        return {"rope_type": "default"}
    known = _llama3(factors, base, turned)
    if known is not None:
        return known
    # longrope with the same factors on both sides of the original context divides the same way at every length.
    context = config["max_position_embeddings"]
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }


def _llama3(factors: list[float], base: float, turned: int) -> dict[str, Any] | None:
    """The numbers that Llama 3's rule made these factors of; None where it was another rule."""
    whole = max(factors)
    wavelengths = 2 * math.pi * base ** (np.arange(0, turned, 2) / turned)
    between = [i for i, f in enumerate(factors) if 1 + CLOSE < f < whole * (1 - CLOSE)]
    if between:
        i = between[0]
        smooth = (1 / factors[i] - 1 / whole) / (1 - 1 / whole)
        turns = LOW_FREQ_FACTOR + smooth * (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
        candidates = [round(wavelengths[i] * turns)]
    else:  # any context between the last frequency left alone and the first divided one; llama.cpp keeps no number
        candidates = [2**n for n in range(4, 21)]
    for context in candidates:
        turns = context / wavelengths
        smooth = np.clip((turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR), 0, 1)
        if np.allclose(1 / ((1 - smooth) / whole + smooth), factors, rtol=CLOSE):
            return {
                "rope_type": "llama3",
                "factor": whole,
                "low_freq_factor": LOW_FREQ_FACTOR,
                "high_freq_factor": HIGH_FREQ_FACTOR,
                "original_max_position_embeddings": context,
            }
    return None


def _longrope(file: GgufFile, factors: Mapping[str, list[float]], config: Mapping[str, Any]) -> dict[str, Any]:
    context = config["max_position_embeddings"]
    original = int(file.get(SCALING + "original_context_length", context))
    made = {
        "rope_type": "longrope",
        "short_factor": factors[SHORT],
        "long_factor": factors[LONG],
        "factor": context / original,
        "original_max_position_embeddings": original,
    }
    attention = float(file.get(SCALING + "attn_factor", 0) or 0)
    return made | ({"attention_factor": attention} if attention else {})


def _yarn(file: GgufFile, factor: float, config: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(
            file.get(SCALING + "original_context_length", config["max_position_embeddings"])
        ),
    }
    if file.get(SCALING + "yarn_ext_factor", 1.0) not in (1, -1):
        raise _refused(file, SCALING + "yarn_ext_factor", file.get(SCALING + "yarn_ext_factor"))
    for name in ("beta_fast", "beta_slow"):
        if file.get(f"{SCALING}yarn_{name}"):
            made[name] = float(file.get(f"{SCALING}yarn_{name}"))
    attention = 1.0
    for name in ("attn_factor", "yarn_attn_factor"):
        attention *= float(file.get(SCALING + name, 1.0) or 1.0)
    if attention != 1:  # llama.cpp multiplies what the factor asks for
        made["attention_factor"] = attention * (0.1 * math.log(factor) + 1)
    return made
