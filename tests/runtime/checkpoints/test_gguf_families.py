"""Every architecture that is read from GGUF: the same logits as the model that the file was made of, or a refusal.

The models are random and small, and differ from transformers' defaults wherever a key can say so.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_families import llama_keys, tensors_of, write_family
from gguf_writer import END_ID, TOKENS
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.gguf.config import FAMILIES
from specdec_cli.runtime.checkpoints.gguf.converted import cache_folder, gguf_as_folder
from specdec_cli.runtime.checkpoints.inspection import inspect
from specdec_cli.runtime.checkpoints.locate import locate

WIDTH = 32
LONG = 48  # tokens of the text that logits are compared on
COMMON: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
    "bos_token_id": END_ID,
    "eos_token_id": END_ID,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
LAYER_NORM = "attention.layer_norm_epsilon"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECDEC_CACHE", str(folder))
    return folder


def made(model_type: str, **more: Any) -> PreTrainedModel:
    config: PreTrainedConfig = AutoConfig.for_model(model_type, **COMMON | more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():  # initialised to 0 and 1, which hide what is forgotten
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 0.1 if "norm" not in name and "ln_" not in name else 1.0, 0.2)
    return model.eval()


def logits(model: PreTrainedModel) -> torch.Tensor:
    ids = torch.arange(LONG).mul(7).remainder(END_ID)[None]
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0].float()
    return found


def same(path: Path, model: PreTrainedModel) -> None:
    """The file computes what the model computes."""
    loaded = tiny.load(path, fuse=False).model
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-4, atol=1e-4)


def partly(share: float) -> dict[str, Any]:
    """Rotations of the first part of each head."""
    return {"rope_theta": 5000.0, "rope_type": "default", "partial_rotary_factor": share}


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
EXPERT_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {"head_dim": 24}, {"rope.dimension_count": 24, "attention.key_length": 24}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "qwen2": ("qwen2", {"rms_norm_eps": 1e-2}, {}),
    "qwen2moe": (
        "qwen2_moe",
        EXPERTS | {"shared_expert_intermediate_size": 40},
        EXPERT_KEYS | {"expert_shared_feed_forward_length": 40},
    ),
    "qwen3": ("qwen3", {"head_dim": 24}, {"attention.key_length": 24, "attention.value_length": 24}),
    "qwen3moe": (
        "qwen3_moe",
        EXPERTS | {"head_dim": 24, "norm_topk_prob": True},
        EXPERT_KEYS | {"attention.key_length": 24},
    ),
    "phi3": (
        "phi3",
        {"sliding_window": 12, "rope_parameters": partly(0.5)},
        {"attention.sliding_window": 12, "rope.dimension_count": 8},
    ),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "sliding_window": 12,
            "attn_logit_softcapping": 7.0,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": True,
        },
        {
            "attention.key_length": 24,
            "attention.value_length": 24,
            "attention.sliding_window": 12,
            "attn_logit_softcapping": 7.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "sliding_window": 12,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
        {
            "attention.key_length": 24,
            "attention.value_length": 24,
            "attention.sliding_window": 12,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "stablelm": (
        "stablelm",
        {"use_qkv_bias": True, "rope_parameters": partly(0.5)},
        {"rope.dimension_count": 8, LAYER_NORM: 1e-3},
    ),
    "starcoder2": ("starcoder2", {"norm_epsilon": 1e-3}, {LAYER_NORM: 1e-3}),
    "nemotron": (
        "nemotron",
        {"norm_eps": 1e-3, "rope_parameters": partly(0.25)},
        {"rope.dimension_count": 4, LAYER_NORM: 1e-3},
    ),
    "falcon": ("falcon", {"num_kv_heads": 1, "ffn_hidden_size": 96, "layer_norm_epsilon": 1e-3}, {LAYER_NORM: 1e-3}),
    "gpt2": ("gpt2", {"n_inner": 96, "n_positions": 96, "layer_norm_epsilon": 1e-3}, {LAYER_NORM: 1e-3}),
    "bloom": ("bloom", {"layer_norm_epsilon": 1e-3, "n_layer": 2, "n_head": 2}, {LAYER_NORM: 1e-3}),
}  # fmt: skip


def file_of(case: str, path: Path, kind: Kind = Kind.F32, **more: Any) -> tuple[Path, PreTrainedModel]:
    model_type, options, keys = CASES[case]
    architecture = case.split()[0]
    if "layer_norm_eps" not in options and architecture == "stablelm":
        options = options | {"layer_norm_eps": 1e-3}
    model = made(model_type, **options)
    config = model.config
    basic = {
        "block_count": config.num_hidden_layers,
        "context_length": 96,
        "embedding_length": WIDTH,
        "feed_forward_length": options.get(
            "n_inner", options.get("ffn_hidden_size", 64 if case != "bloom" else 4 * WIDTH)
        ),
        "attention.head_count": 2,
    }
    if hasattr(config, "rope_parameters") and case != "falcon":
        basic = llama_keys(config)
    if case == "falcon":
        basic |= {"attention.head_count_kv": 1, "rope.freq_base": 10_000.0}
    return write_family(path, architecture, basic | keys | more, tensors_of(model, architecture), kind), model


def test_every_architecture_has_a_case() -> None:
    assert {case.split()[0] for case in CASES} == FAMILIES.keys() - {"mamba"}  # which is refused for its cache


@pytest.mark.parametrize("case", CASES)
def test_a_file_computes_what_its_model_computes(case: str, tmp_path: Path) -> None:
    path, model = file_of(case, tmp_path / "m.gguf")
    same(path, model)


def test_a_recurrent_model_is_converted_too(tmp_path: Path) -> None:
    """Its cache is refused later, by name."""
    sizes = {"conv_kernel": 3, "state_size": 8, "time_step_rank": 5, "intermediate_size": 40}
    model = made("mamba", layer_norm_epsilon=1e-3, **sizes)
    keys = {"block_count": 2, "context_length": 96, "embedding_length": WIDTH, "feed_forward_length": 0}
    keys |= {"attention.head_count": 0, "attention.layer_norm_rms_epsilon": 1e-3, "ssm.inner_size": 40}
    keys |= {"ssm.conv_kernel": 3, "ssm.state_size": 8, "ssm.time_step_rank": 5, "ssm.dt_b_c_rms": False}
    path = write_family(tmp_path / "m.gguf", "mamba", keys, tensors_of(model, "mamba"))
    folder = gguf_as_folder(path, "--target", lambda _: None)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-4, atol=1e-4)


def lfm2(path: Path, lost: str = "", **more: Any) -> tuple[Path, PreTrainedModel]:
    """One of the architectures that transformers converts by rules of its own."""
    types = ["conv", "full_attention"]
    model = made("lfm2", layer_types=types, block_auto_adjust_ff_dim=False, norm_eps=1e-3, conv_L_cache=3)
    keys = {"block_count": 2, "context_length": 96, "embedding_length": WIDTH, "feed_forward_length": 64}
    keys |= {"attention.head_count": 2, "attention.head_count_kv": [0, 1], "attention.layer_norm_rms_epsilon": 1e-3}
    keys |= {"shortconv.l_cache": 3, "vocab_size": len(TOKENS)}
    keys |= {"rope.freq_base": float(model.config.rope_parameters["rope_theta"])}
    tensors = [(name, tensor) for name, tensor in tensors_of(model, "lfm2") if name != lost]
    return write_family(path, "lfm2", keys | more, tensors), model


def test_an_architecture_that_transformers_converts_by_rules(tmp_path: Path) -> None:
    path, model = lfm2(tmp_path / "m.gguf")
    folder = gguf_as_folder(path, "--target", lambda _: None)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-4, atol=1e-4)


def test_such_a_file_is_refused_for_the_same_reasons(tmp_path: Path) -> None:
    path, _ = lfm2(tmp_path / "m1.gguf", "blk.1.attn_k.weight")
    assert "m1.gguf lacks model.layers.1.self_attn.k_proj.weight" in refusal(path)
    path, _ = lfm2(tmp_path / "m2.gguf", **{"rope.scaling.type": "yarn"})
    assert "m2.gguf has lfm2.rope.scaling.type = yarn" in refusal(path)


# ------------------------------------------------------------------------------------------- positions
def rope(**more: Any) -> dict[str, Any]:
    return {"rope_theta": 10_000.0, **more}


def llama3_factors(parameters: dict[str, Any], dim: int) -> np.ndarray:
    """As llama.cpp's converter computes them (LlamaModel.generate_extra_tensors)."""
    factors = []
    old, low, high = (
        parameters[n] for n in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    for frequency in 1 / 10_000.0 ** (np.arange(0, dim, 2, dtype=np.float32) / dim):
        wavelength = 2 * math.pi / frequency
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(parameters["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / parameters["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
SHORT = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
ROPES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # transformers' parameters; keys; factor tensors
    "none": (rope(rope_type="default"), {"rope.scaling.type": "none"}, {}),
    "linear": (rope(rope_type="linear", factor=3.0), {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}, {}),
    "linear, as in 2023": (rope(rope_type="linear", factor=3.0), {"rope.scale_linear": 3.0}, {}),
    "yarn": (
        rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=24),
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 24},
        {},
    ),
    "yarn with its numbers": (
        rope(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=24, beta_fast=16.0, beta_slow=2.0,
            attention_factor=0.5 * (0.1 * math.log(4) + 1),
        ),
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 24,
            "rope.scaling.yarn_beta_fast": 16.0,
            "rope.scaling.yarn_beta_slow": 2.0,
            "rope.scaling.yarn_ext_factor": 1.0,
            "rope.scaling.attn_factor": 0.5,
        },
        {},
    ),
    "llama3, 32": (
        rope(**LLAMA3, original_max_position_embeddings=32),
        {},
        {"rope_freqs.weight": llama3_factors(LLAMA3 | {"original_max_position_embeddings": 32}, 16)},
    ),
    "llama3, 8192": (
        rope(**LLAMA3, original_max_position_embeddings=8192),
        {},
        {"rope_freqs.weight": llama3_factors(LLAMA3 | {"original_max_position_embeddings": 8192}, 16)},
    ),
    "other factors": (
        rope(rope_type="longrope", short_factor=FACTORS, long_factor=FACTORS, factor=1.0, attention_factor=1.0,
             original_max_position_embeddings=96),
        {},
        {"rope_freqs.weight": np.array(FACTORS, dtype=np.float32)},
    ),
    "longrope": (
        rope(rope_type="longrope", short_factor=SHORT, long_factor=FACTORS, factor=4.0,
             original_max_position_embeddings=24),
        {"rope.scaling.original_context_length": 24},
        {
            "rope_factors_short.weight": np.array(SHORT, dtype=np.float32),
            "rope_factors_long.weight": np.array(FACTORS, dtype=np.float32),
        },
    ),
    "longrope with its attention": (
        rope(rope_type="longrope", short_factor=SHORT, long_factor=FACTORS, factor=1.0, attention_factor=1.25,
             original_max_position_embeddings=96),
        {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.25},
        {
            "rope_factors_short.weight": np.array(SHORT, dtype=np.float32),
            "rope_factors_long.weight": np.array(FACTORS, dtype=np.float32),
        },
    ),
}  # fmt: skip


def llama_file(path: Path, model: PreTrainedModel, keys: dict[str, Any], extra: Any, kind: Kind = Kind.F32) -> Path:
    tensors = [*tensors_of(model, "llama"), *extra]
    return write_family(path, "llama", llama_keys(model.config) | keys, tensors, kind)


@pytest.mark.parametrize("name", ROPES)
def test_positions_are_scaled_as_in_the_folder(name: str, tmp_path: Path) -> None:
    parameters, keys, factors = ROPES[name]
    model = made("llama", rope_parameters=parameters)
    plain = made("llama")
    path = llama_file(tmp_path / "m.gguf", model, keys, factors.items())
    same(path, model)
    if name != "none":
        assert not torch.allclose(logits(plain), logits(model), atol=1e-2), "the case shows nothing"


@pytest.mark.parametrize("name", ["yarn", "llama3, 32", "longrope"])
def test_positions_are_scaled_in_a_files_own_bits_too(name: str, tmp_path: Path) -> None:
    parameters, keys, factors = ROPES[name]
    path = llama_file(tmp_path / "m.gguf", made("llama"), keys, factors.items(), Kind.Q8_0)
    loaded = tiny.load(path, quantize="keep", dtype="bfloat16", fuse=False)
    assert loaded.quantize == "keep"
    expected = made("llama", rope_parameters=parameters).model.rotary_emb.inv_freq
    torch.testing.assert_close(loaded.model.model.rotary_emb.inv_freq, expected, rtol=1e-5, atol=0)


# ------------------------------------------------------------------------------------------- refusals
def refusal(path: Path, exit_code: int = 1) -> str:
    """One line, from inspection already; nothing is left in the cache; conversion says the same."""
    lines = []
    for read in (
        lambda: inspect(locate(tiny.settings(path), "target"), lambda _: None),
        lambda: gguf_as_folder(path, "--target", lambda _: None),
    ):
        with pytest.raises(SpecdecError) as caught:
            read()
        lines.append(tiny.one_line(caught.value, exit_code))
    kept = [p.name for p in (cache_folder() / "gguf").glob("*") if p.name != "hashes"]
    assert kept == []
    assert lines[0] == lines[1]
    assert lines[0].startswith("--target m")
    assert "download it again" not in lines[0]
    return lines[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("attention.scale", 0.5),
        ("logit_scale", 0.25),
        ("embedding_scale", 12.0),
        ("residual_scale", 0.25),
        ("final_logit_softcapping", 30.0),
        ("attention.sliding_window", 12),
        ("attention.causal", False),
        ("attention.value_length", 8),
        ("rope.dimension_count", 8),
        ("rope.scaling.type", "ntk"),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("rope.scaling.attn_factor", 1.5),
        ("rope.freq_base_swa", 500.0),
        ("what_comes_next_year", 1),
    ],
)
def test_a_key_that_is_not_computed_with_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    path = llama_file(tmp_path / "m.gguf", made("llama"), {"attention.key_length": 16, key: value}, [])
    assert f"m.gguf has llama.{key} = " in refusal(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 0),
        ("attention.scale", 0.25),
        ("logit_scale", 1.0),
        ("attention.sliding_window", 96),
        ("attention.causal", True),
        ("attention.value_length", 16),
        ("rope.dimension_count", 16),
        ("rope.scaling.finetuned", True),
    ],
)
def test_a_key_that_says_what_is_the_case_anyway(key: str, value: Any, tmp_path: Path) -> None:
    model = made("llama")
    same(llama_file(tmp_path / "m.gguf", model, {key: value}, []), model)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
@pytest.mark.parametrize("lost", ["blk.1.ffn_up.weight", "blk.0.attn_norm.weight", "token_embd.weight"])
def test_a_weight_that_is_not_there(lost: str, kind: Kind, tmp_path: Path) -> None:
    model = made("llama")
    tensors = [(name, tensor) for name, tensor in tensors_of(model, "llama") if name != lost]
    path = write_family(tmp_path / "m.gguf", "llama", llama_keys(model.config), tensors, kind)
    message = refusal(path)
    assert message == (
        f"--target m.gguf lacks {lost} (it has 20 of the 21 weights of a llama): get a whole file, or use the model's "
        "safetensors"
    )
    with pytest.raises(SpecdecError, match=f"lacks {lost}"):
        tiny.load(path, quantize="keep", dtype="auto")


def test_half_of_the_experts_is_not_all(tmp_path: Path) -> None:
    model_type, options, keys = CASES["qwen3moe"]
    model = made(model_type, **options)
    tensors = [(n, t) for n, t in tensors_of(model, "qwen3moe") if n != "blk.1.ffn_gate_exps.weight"]
    path = write_family(tmp_path / "m.gguf", "qwen3moe", llama_keys(model.config) | keys, tensors)
    assert "lacks blk.1.ffn_gate_exps" in refusal(path)


@pytest.mark.parametrize(
    "name", ["blk.0.ffn_gate_exps.weight", "blk.0.attn_q.scale", "blk.1.attn_output.bias", "rope_scales.weight"]
)
def test_a_tensor_that_nothing_computes_with(name: str, tmp_path: Path) -> None:
    path = llama_file(tmp_path / "m.gguf", made("llama"), {}, [(name, np.ones(32, dtype=np.float32))])
    message = refusal(path)
    assert message.startswith(f"--target m.gguf has {name}, which a llama here does not compute with")


def test_tensors_that_change_nothing(tmp_path: Path) -> None:
    """Frequencies that are computed, factors of 1, and a head beside an embedding."""
    model = made("llama")
    extra = [("blk.0.attn_rot_embd.weight", np.ones(8)), ("rope_freqs.weight", np.ones(8))]
    same(llama_file(tmp_path / "m.gguf", model, {}, extra), model)


def test_a_tensor_of_another_size(tmp_path: Path) -> None:
    model = made("llama")
    path = llama_file(tmp_path / "m.gguf", model, {"feed_forward_length": 96}, [])
    assert "blk.0.ffn_gate.weight of 64x32 where its metadata describe 96x32" in refusal(path)


def test_a_factor_for_each_frequency(tmp_path: Path) -> None:
    path = llama_file(tmp_path / "m.gguf", made("llama"), {}, [("rope_freqs.weight", np.ones(6))])
    assert "m.gguf has rope_freqs.weight of 6 F32, where 8 frequencies each need one" in refusal(path)


def test_half_of_longrope(tmp_path: Path) -> None:
    path = llama_file(tmp_path / "m.gguf", made("llama"), {}, [("rope_factors_long.weight", np.ones(8))])
    assert "longrope without rope_factors_short.weight and rope_factors_long.weight" in refusal(path)


def test_metadata_that_are_not_there(tmp_path: Path) -> None:
    model = made("llama")
    keys = {k: v for k, v in llama_keys(model.config).items() if k != "embedding_length"}
    path = write_family(tmp_path / "m.gguf", "llama", keys, tensors_of(model, "llama"))
    assert "lacks the metadata" in refusal(path)
