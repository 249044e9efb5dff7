"""GGUF files in their own bits: every block format beside what it stands for, and whole models beside transformers'.

Files are written here (see test_gguf). The gguf package writes the older formats; of the newer ones (Q4_K and kin) any
bytes with sensible scales make a matrix, and what the package reads from them is what they stand for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_writer import END_ID, TOKENS, write_gguf
from torch import nn

from specdec_cli.errors import OutOfMemoryError, SpecdecError
from specdec_cli.measurement.fidelity import compare
from specdec_cli.runtime.checkpoints import fit, plan
from specdec_cli.runtime.checkpoints.gguf import own_bits
from specdec_cli.runtime.checkpoints.gguf.header import read_gguf
from specdec_cli.runtime.checkpoints.gguf.own_bits import GgufWeights, keeps_bits, kept_bytes, load_gguf
from specdec_cli.runtime.layers.quantize import weight_bytes
from specdec_cli.runtime.layers.quantized_linear import Int4Linear, Int8Linear, QuantizedLinear
from specdec_cli.runtime.models.transformers_model import TransformersModel

Specdec = Callable[..., tuple[int, str, str]]
INT4, INT8 = ("Q4_0", "Q4_1", "Q4_K"), ("Q5_0", "Q5_1", "Q8_0", "Q5_K", "Q6_K", "Q3_K", "IQ4_NL")
# Where the float16 scales of a block stand, in the formats that the gguf package cannot write.
SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q3_K": (108,), "IQ4_NL": (0,)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))


def encode(weight: np.ndarray, kind: Kind) -> np.ndarray:
    """[rows, bytes] of a matrix; for formats that the package cannot write, random blocks of about its size."""
    if kind.name not in SCALES:
        return gguf.quants.quantize(weight, kind)
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(weight.size)
    blocks = random.integers(0, 256, (weight.size // columns, size), dtype=np.uint8)
    for place in SCALES[kind.name]:
        scales = (random.uniform(0.5, 1.5, len(blocks)) * weight.std() / 500).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(len(weight), -1)


def llama(**more: Any) -> Any:
    return tiny.model("llama", vocab_size=len(TOKENS), eos_token_id=END_ID, bos_token_id=END_ID, **more)


def written(path: Path, model: Any, kind: str, **kinds: str) -> Path:
    by_name = {name.replace("__", ".") + ".weight": Kind[k] for name, k in kinds.items()}
    return write_gguf(path, model, Kind[kind], encode, by_name)


def dequantized(path: Path) -> dict[str, torch.Tensor]:
    """transformers' own reading, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return dict(model.named_parameters())


def weights_of(layer: QuantizedLinear) -> torch.Tensor:
    """What a layer computes with, [out_features, in_features] float32."""
    unit = torch.eye(layer.in_features, dtype=torch.bfloat16)
    return torch.cat([layer(row) for row in unit.split(8)]).float().t()


# ---------------------------------------------------------------------------------------- formats
@pytest.mark.parametrize("kind", [*INT4, *INT8])
def test_a_layer_computes_with_the_weights_of_the_file(kind: str, tmp_path: Path) -> None:
    """A matrix of each format, of odd sizes, up to the rounding of its scales (and, in int8, of its codes)."""
    size = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    size |= {"num_hidden_layers": 1, "head_dim": 22}
    odd = 256 if gguf.GGML_QUANT_SIZES[Kind[kind]][0] == 256 else 96
    model = llama(**size | {"hidden_size": odd})
    path = written(tmp_path / "m.gguf", model, "F32", blk__0__attn_q=kind, blk__0__attn_k=kind, output=kind)
    meant = dequantized(path)
    weights = GgufWeights(path, model)
    for name in ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "lm_head"):
        layer = weights.layer(name, None)
        assert isinstance(layer, Int4Linear if kind in INT4 else Int8Linear)
        expected = meant[f"{name}.weight"]
        assert (layer.out_features, layer.in_features) == tuple(expected.shape)
        error = (weights_of(layer) - expected).abs()
        if kind in INT4:  # a bfloat16 scale, offset and product; a group spans 15 scales
            spread = expected.unflatten(1, (-1, 32))
            reach = (spread.amax(-1) - spread.amin(-1) + spread.abs().amax(-1)).repeat_interleave(32, dim=1)
            assert (error <= 2**-7 * reach).all()
        else:
            assert (error <= (0.52 / 127 + 2**-8) * expected.abs().amax(1, keepdim=True)).all()
    assert weights.layer("model.layers.0.self_attn.v_proj", None) is None  # float32 in the file


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "F16"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_model_in_its_own_bits_is_the_dequantised_one(kind: str, tied: bool, tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=tied, hidden_size=64, intermediate_size=96)
    source = model
    if tied:  # llama.cpp writes no head then
        source = llama(tie_word_embeddings=True, hidden_size=64, intermediate_size=96)
        weights = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
        source.state_dict = lambda: weights
    path = written(tmp_path / "m.gguf", source, kind)
    if kind == "F16":
        assert not keeps_bits(path)
        return
    kept = tiny.load(path, quantize="keep", dtype="bfloat16")
    whole = tiny.load(path)
    assert (kept.quantize, whole.quantize) == ("keep", "none")
    assert kept.num_rows == whole.num_rows == len(TOKENS)
    assert kept.end_ids == whole.end_ids
    assert not [m for m in kept.model.modules() if type(m) is nn.Linear]
    rounded = [m for m in kept.model.modules() if isinstance(m, QuantizedLinear)]
    assert {type(m) for m in rounded} == {Int4Linear if kind.startswith("Q4") else Int8Linear}
    assert any("own bits" in note and f"{kind} as int" in note for note in kept.notes)
    table, same = (m.model.get_input_embeddings().weight for m in (kept, whole))
    assert torch.equal(table.bfloat16(), same.bfloat16())
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        ours, theirs = kept.model(input_ids=ids).logits, whole.model(input_ids=ids).logits
    assert (ours - theirs).std() < 0.05 * theirs.std()
    models = [TransformersModel(m.model, len(TOKENS)) for m in (kept, whole)]
    found = compare(models[0], models[1], [([5, 6, 7], list(range(20, 50)))])
    assert found.overlap > 0.85  # wide weights: bfloat16 alone moves logits of such a model by some tenths


def test_formats_mix_in_one_file(tmp_path: Path) -> None:
    """As in llama.cpp's Q4_K_M: parts of a layer in 4, others in 6 bits."""
    model = llama(hidden_size=256, intermediate_size=256, num_hidden_layers=1, head_dim=128)
    path = written(tmp_path / "m.gguf", model, "Q4_K", blk__0__ffn_down="Q6_K", output="Q8_0", token_embd="Q5_0")
    kept = tiny.load(path, quantize="keep", dtype="bfloat16", fuse=False)
    parts = dict(kept.model.named_modules())
    assert isinstance(parts["model.layers.0.mlp.down_proj"], Int8Linear)
    assert isinstance(parts["model.layers.0.mlp.up_proj"], Int4Linear)
    assert isinstance(parts["lm_head"], Int8Linear)
    joined = tiny.load(path, quantize="keep", dtype="bfloat16")
    ids = torch.arange(30)[None]
    with torch.inference_mode():
        apart, together = (m.model(input_ids=ids).logits for m in (kept, joined))
        whole = tiny.load(path).model(input_ids=ids).logits
    assert torch.allclose(apart, together, rtol=0.05, atol=0.05 * float(apart.std()))
    assert (apart - whole).std() < 0.05 * whole.std()


def test_memory_is_counted_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "m.gguf", llama(hidden_size=64), "Q4_0")
    model = tiny.load(path, quantize="keep", dtype="bfloat16", fuse=False).model
    assert kept_bytes(path, 2) == pytest.approx(weight_bytes(model), rel=0.3)
    monkeypatch.setattr(plan, "free_memory", lambda device: 1000)
    with pytest.raises(OutOfMemoryError, match="needs about"):
        tiny.load(path, quantize="keep", dtype="bfloat16")


# --------------------------------------------------------------------------------- what is refused
def test_where_own_bits_cannot_be_computed_with_the_file_is_dequantised(tmp_path: Path) -> None:
    quantized = written(tmp_path / "q.gguf", llama(), "Q8_0")
    half = written(tmp_path / "h.gguf", llama(), "F16")
    folder = tiny.save(tmp_path / "folder")
    assert tiny.load(quantized, quantize="keep").quantize == "none"  # tiny.load asks for float32
    assert tiny.load(quantized, quantize="keep", dtype="bfloat16").quantize == "keep"
    for source in (half, folder):
        assert tiny.load(source, quantize="keep", dtype="auto").quantize == "none"


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", llama(), "Q8_0")
    content = path.read_bytes()
    for keep in (30, 5000, len(content) - 40):
        path.write_bytes(content[:keep])
        with pytest.raises(SpecdecError) as caught:
            tiny.load(path, quantize="keep", dtype="bfloat16")
        assert "download it again" in tiny.one_line(caught.value, 1)


def test_what_a_file_lacks_is_told(tmp_path: Path) -> None:
    model = llama()
    names = {k: v for k, v in model.state_dict().items() if "layers.1.mlp.up" not in k}
    model.state_dict = lambda: names
    path = written(tmp_path / "m.gguf", model, "Q8_0")
    _, report = load_gguf(path, llama().config, torch.bfloat16)
    assert report == {"missing_keys": ["model.layers.1.mlp.up_proj.weight"], "mismatched_keys": []}
    with pytest.raises(SpecdecError, match=r"lacks blk.1.ffn_up.weight \(it has 20 of the 21"):
        tiny.load(path, quantize="keep", dtype="bfloat16")
    _, report = load_gguf(path, llama(intermediate_size=32).config, torch.bfloat16)
    assert "model.layers.0.mlp.down_proj.weight" in report["mismatched_keys"]


def test_the_header_is_read_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", llama(), "Q4_1", output="Q8_0")
    file = read_gguf(path)
    architecture, tensors = file.architecture, file.tensors
    assert architecture == "llama"
    for ours, theirs in zip(tensors, gguf.GGUFReader(path).tensors, strict=True):
        assert (ours.name, ours.kind) == (theirs.name, theirs.tensor_type)
        assert list(reversed(ours.shape)) == theirs.shape.tolist()
        assert np.array_equal(ours.data.reshape(-1), theirs.data.view(np.uint8).reshape(-1))


# ------------------------------------------------------------------------------------ the command line
def test_the_command_line_keeps_a_files_bits_unless_told_otherwise(specdec: Specdec, tmp_path: Path) -> None:
    path = str(written(tmp_path / "m.gguf", llama(hidden_size=64), "Q4_0"))
    arguments = ["generate", "hello", "-t", path, "-d", path, "-n", "6", "--seed", "1", "--format", "json"]
    for more, target, draft in (
        ([], "keep", "keep"),
        (["--quantize", "none"], "none", "keep"),
        (["--draft-quantize", "int8"], "keep", "int8"),
        (["--dtype", "float32"], "none", "none"),
    ):
        code, out, err = specdec(*arguments, *more)
        assert code == 0, err
        settings = json.loads(out)["settings"]
        assert (settings["target"]["quantize"], settings["draft"]["quantize"]) == (target, draft)
        assert ("m.gguf: the file's own bits (" in err) == ("keep" in (target, draft))


def test_auto_tries_a_files_own_bits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "m.gguf", llama(hidden_size=64), "Q4_0")
    for fastest, slower, chosen in (("keep", 2.0, "keep"), ("int8", 2.0, "int8"), ("int8", 1.04, "keep")):

        def seconds(steps: dict[str, Any], fastest: str = fastest, slower: float = slower) -> dict[str, float]:
            for step in steps.values():
                step()
            return {how: 1.0 if how == fastest else slower for how in steps}

        monkeypatch.setattr(fit, "step_seconds", seconds)
        monkeypatch.setattr("specdec_cli.runtime.layers.quantize.step_seconds", seconds)
        made = tiny.load(path, "draft", quantize="auto", dtype="bfloat16")
        assert made.quantize == chosen
        assert "as fast as any here" in made.notes[-1]


def test_an_architecture_whose_rows_do_not_stay_whole_is_dequantised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.gguf", llama(), "Q8_0")
    monkeypatch.setattr(own_bits, "MOVES_ROWS_ONLY", ())
    assert not keeps_bits(path)
    assert tiny.load(path, quantize="keep", dtype="bfloat16").quantize == "none"
