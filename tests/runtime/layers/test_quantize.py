"""Rounded weights and cut heads: what they compute, and that a draft with either leaves the output's distribution."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from laws import SIGNIFICANCE, BagModel, chi_square_p
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.errors import SpecdecError, UsageError
from specdec_cli.measurement.fidelity import compare, greedy_answers
from specdec_cli.prompts import builtin_names, builtin_prompts
from specdec_cli.runtime.checkpoints import inspection
from specdec_cli.runtime.checkpoints.frequent_tokens import kept_tokens
from specdec_cli.runtime.layers import quantize as q
from specdec_cli.runtime.layers import quantized_linear as ql
from specdec_cli.runtime.layers.cut_head import CutHead
from specdec_cli.runtime.layers.w8a8 import W8A8Linear
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.settings import ModelSettings, SamplingSettings

Specdec = Callable[..., tuple[int, str, str]]
CPU = torch.device("cpu")
SAMPLED = SamplingSettings(temperature=1.0)
# What rounds activations too has its own tests (test_w8a8.py).
WEIGHT_ONLY = {"int8": ql.Int8Linear, "int4": ql.Int4Linear}
GREEDY = SamplingSettings(temperature=0.0)
# Rows and columns: multiples of every block, of some of them, of none; one of each; more than is rounded at once.
SHAPES = [(64, 64), (96, 32), (16, 576), (48, 100), (17, 33), (257, 40), (1, 1), (5, 7), (4200, 31)]


def dequantized(weight: Tensor, how: str) -> Tensor:
    """What the rounded weights stand for, in float64."""
    if how == "int8":
        codes, scales = ql.int8_codes(weight)
        return codes.double() * scales.double()[:, None]
    filled = torch.nn.functional.pad(weight, (0, -weight.shape[1] % ql.GROUP))
    codes, scales, offsets = ql.int4_codes(filled)
    groups = codes.double().unflatten(1, (-1, ql.GROUP)) - 8
    values = groups * scales.double()[..., None] + offsets.double()[..., None]
    return values.flatten(1)[:, : weight.shape[1]]


def reference(model: Any, how: str) -> Any:
    """The model with what its rounded weights stand for in their place, in ordinary float32 layers."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) in (nn.Linear, Conv1D):
                weight = layer.weight.detach()
                weight = weight.t() if isinstance(layer, Conv1D) else weight
                plain = nn.Linear(weight.shape[1], weight.shape[0], layer.bias is not None)
                plain.weight = nn.Parameter(dequantized(weight, how).float())
                if layer.bias is not None:
                    plain.bias = nn.Parameter(layer.bias.detach())
                setattr(parent, name, plain)
    return model


def quantized(family: str, how: str, **more: Any) -> Any:
    made = tiny.model(family, **more)
    assert q.quantize(made, how, CPU, "--quantize")[0] == how
    return made


# ------------------------------------------------------------------------------------------ layers
@pytest.mark.parametrize("how", WEIGHT_ONLY)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_a_rounded_layer_computes_what_its_codes_stand_for(how: str, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(shape[0])
    weight = torch.randn(shape, generator=generator)
    meant = dequantized(weight, how)
    for bias in (None, torch.randn(shape[0], generator=generator)):
        layer = WEIGHT_ONLY[how].rounded(weight, bias)
        for rows in (1, 3, 5, 9):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                # Values that bfloat16 holds, so that the reference starts from the same.
                states = torch.randn(2, rows, shape[1], generator=generator).bfloat16()
                exact = states.double() @ meant.T + (0 if bias is None else bias.double())
                if bias is not None:
                    layer.bias = bias.to(dtype)
                out = layer(states.to(dtype))
                assert (out.shape, out.dtype) == ((2, rows, shape[0]), dtype)
                size = states.double().abs() @ meant.abs().T + (0 if bias is None else bias.double().abs())
                # One rounding of the result and one of the bias; sums are in float32.
                assert ((out.double() - exact).abs() <= 2**-8 * exact.abs() + 2**-7 * (size + 1e-3)).all()
                assert (out.double() - exact).norm() <= 2**-7 * (exact.norm() + 1e-3)


@pytest.mark.parametrize("how", WEIGHT_ONLY)
def test_codes_are_within_half_a_step_of_the_weights(how: str) -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 6, 64)[:, None]
    error = (dequantized(weight, how) - weight).abs()
    if how == "int8":
        step = weight.abs().amax(1, keepdim=True) / 127
    else:
        low, high = weight.unflatten(1, (-1, ql.GROUP)).aminmax(dim=-1)
        step = ((high - low) / 15).repeat_interleave(ql.GROUP, dim=1)
    # The scale and the offset are bfloat16, so the ends of the range may be a little beyond the last step.
    assert (error <= 0.57 * step).all()
    assert error.mean() <= 0.27 * step.mean()


@pytest.mark.parametrize("how", WEIGHT_ONLY)
@pytest.mark.parametrize("value", [0.0, 0.37, -1e-30])
def test_weights_that_are_all_alike(how: str, value: float) -> None:
    weight = torch.full((16, 64), value)
    assert torch.allclose(dequantized(weight, how).float(), weight, rtol=2**-8, atol=1e-30)
    out = WEIGHT_ONLY[how].rounded(weight, None)(torch.ones(1, 64))
    assert torch.allclose(out, torch.full((1, 16), 64 * value), rtol=2**-7, atol=1e-28)


@pytest.mark.parametrize("how", WEIGHT_ONLY)
@pytest.mark.parametrize("shape", [(64, 64), (130, 40), (1, 33), (4200, 300)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_many_rows_of_input_give_what_few_give(how: str, shape: tuple[int, int]) -> None:
    """On both sides of where the weights are unpacked for an ordinary product, which rounds each of them once more."""
    generator = torch.Generator().manual_seed(shape[1])
    weight, bias = torch.randn(shape, generator=generator), torch.randn(shape[0], generator=generator)
    layer = WEIGHT_ONLY[how].rounded(weight, bias)
    states = torch.randn(layer.many_rows, shape[1], generator=generator).bfloat16()
    exact = states.double() @ dequantized(weight, how).T + bias.double()
    for rows in (layer.many_rows - 1, layer.many_rows):
        out = layer(states[:rows].float())
        assert out.shape == (rows, shape[0])
        assert (out.double() - exact[:rows]).norm() <= 2**-7 * exact[:rows].norm()


@pytest.mark.parametrize("known", [True, False], ids=["known packing", "another packing"])
@pytest.mark.parametrize("shape", [(64, 64), (100, 32), (17, 96)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_int4_codes_come_back_from_their_packing(
    known: bool, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not known:
        monkeypatch.setattr(ql, "_packing", lambda: None)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    layer = ql.Int4Linear.rounded(weight, None)
    codes, _, _ = ql.int4_codes(weight)
    assert torch.equal(ql.unpack(layer.packed).t()[: shape[0]], codes)
    many = torch.randn(layer.many_rows, shape[1], generator=torch.Generator().manual_seed(4)).bfloat16()
    packed = layer._product(many)[:, : shape[0]].float()
    assert (layer(many).float() - packed).norm() <= 2**-7 * packed.norm()  # unpacked weights are rounded to bfloat16


@pytest.mark.parametrize("how", ["none", *WEIGHT_ONLY])
@pytest.mark.parametrize("columns", [64, 40])
def test_rows_of_a_layer_are_a_layer(how: str, columns: int) -> None:
    weight, bias = torch.randn(150, columns), torch.randn(150)
    for given in (bias, None):
        layer = ql.plain_linear(weight, given) if how == "none" else WEIGHT_ONLY[how].rounded(weight, given)
        ids = torch.tensor([149, 0, 3, 3, 64, 63, 100])
        part = ql.take_rows(layer, ids)
        assert type(part) is type(layer)
        states = torch.randn(3, columns)
        torch.testing.assert_close(part(states), layer(states)[:, ids], rtol=1e-6, atol=1e-5)  # sums of other orders


@pytest.mark.parametrize("how", ["none", *WEIGHT_ONLY])
@pytest.mark.parametrize("sizes", [(128, 64, 64), (64, 30, 1), (48, 16, 16)], ids=str)
@pytest.mark.parametrize("biases", ["all", "some", "none"])
def test_joined_layers_compute_what_they_computed_apart(how: str, sizes: tuple[int, ...], biases: str) -> None:
    layers: list[nn.Module] = []
    for i, size in enumerate(sizes):
        bias = torch.randn(size) if biases == "all" or (biases == "some" and i == 1) else None
        weight = torch.randn(size, 72)
        layers.append(ql.plain_linear(weight, bias) if how == "none" else WEIGHT_ONLY[how].rounded(weight, bias))
    joined: Any = ql.join_rows(layers)
    assert (type(joined), joined.in_features, joined.out_features) == (type(layers[0]), 72, sum(sizes))
    assert (joined.bias is None) == (biases == "none")
    for rows in (1, 5, 9):
        states = torch.randn(2, rows, 72)
        apart = torch.cat([layer(states) for layer in layers], dim=-1)
        if how == "none":
            assert torch.allclose(joined(states), apart, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(joined(states), apart)


def test_layers_that_cannot_be_joined_say_so() -> None:
    a, b = nn.Linear(32, 4), nn.Linear(64, 4)
    for layers in ([a, b], [a, ql.Int8Linear.rounded(a.weight, None)], [Conv1D(4, 4)]):
        with pytest.raises(ValueError, match="joined"):
            ql.join_rows(layers)


def test_codes_are_the_same_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(300, 64)
    for kind in WEIGHT_ONLY.values():
        whole = kind.rounded(weight, None)
        with monkeypatch.context() as patch:
            patch.setattr(ql, "AT_ONCE", 64 * 128)
            parts = kind.rounded(weight, None)
        for name, buffer in whole.named_buffers():
            assert torch.equal(buffer, dict(parts.named_buffers())[name])


# ------------------------------------------------------------------------------------------ models
@pytest.mark.parametrize("how", WEIGHT_ONLY)
@pytest.mark.parametrize("family", tiny.ROLLABLE)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_every_linear_layer_is_rounded_heads_included_and_the_table_stays(family: str, tied: bool, how: str) -> None:
    plain = tiny.model(family, tie_word_embeddings=tied)
    linear = [m for m in plain.modules() if type(m) in (nn.Linear, Conv1D)]
    made = quantized(family, how, tie_word_embeddings=tied)
    assert not [m for m in made.modules() if type(m) in (nn.Linear, Conv1D)]
    assert sum(isinstance(m, ql.QuantizedLinear) for m in made.modules()) == len(linear)
    assert torch.equal(made.get_input_embeddings().weight, plain.get_input_embeddings().weight)
    assert isinstance(made.get_output_embeddings(), WEIGHT_ONLY[how])
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        ours = made(input_ids=ids).logits
        meant = reference(plain, how)(input_ids=ids).logits
        exact = tiny.model(family, tie_word_embeddings=tied)(input_ids=ids).logits
    spread = meant.std()
    assert ours.dtype == torch.float32
    assert (ours - meant).std() < 0.03 * spread  # bfloat16 on the way
    assert (ours - exact).std() > 0.002 * spread  # and it was rounded indeed


@pytest.mark.parametrize("how", WEIGHT_ONLY)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_greedy_text_of_a_rounded_target_is_transformers_on_the_same_weights(family: str, how: str) -> None:
    """Except where two tokens are nearly tied: the rounded layers compute in bfloat16, the reference in float32."""
    ours = TransformersModel(quantized(family, how), tiny.VOCAB_SIZE)
    meant = reference(tiny.model(family), how)
    draft = DraftModel(TransformersModel(quantized(family, "int4", seed=1), tiny.VOCAB_SIZE), GREEDY)
    prompt, length = list(range(3, 9)), 40
    generation = Generation(ours, draft, prompt, num_draft_tokens=3, sampling=GREEDY, stopping=Stopping(length))
    made = [i for step in generation for i in step.token_ids]
    ties = 0
    agreed = 0
    while agreed < length:  # after a near tie `generate` goes on from our text
        prefix = torch.tensor([prompt + made[:agreed]])
        with torch.inference_mode():
            theirs = meant.generate(
                prefix, attention_mask=torch.ones_like(prefix), max_new_tokens=length - agreed, do_sample=False,
                pad_token_id=0, eos_token_id=None,
            )[0, prefix.shape[1] :].tolist()  # fmt: skip
            same = next(
                (i for i, pair in enumerate(zip(made[agreed:], theirs, strict=True)) if len(set(pair)) > 1), None
            )
            if same is None:
                break
            logits = meant(input_ids=torch.tensor([prompt + made[: agreed + same]])).logits[0, -1]
        gap = logits.max() - logits[made[agreed + same]]
        assert gap < 0.1 * logits.std(), f"token {agreed + same} is {gap / logits.std():.3f} standard deviations behind"
        ties += 1
        agreed += same + 1
    print(f"{family} {how}: {ties} near ties in {length} tokens")
    assert ties <= length // 5


def test_auto_keeps_the_fastest_and_says_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"none": 3.0, "int8": 1.0, "w8a8": 4.0, "int4": 2.0}
    now = [0.0]
    made = tiny.model()
    kinds = {nn.Linear: "none", ql.Int8Linear: "int8", W8A8Linear: "w8a8", ql.Int4Linear: "int4"}
    head = made.get_output_embeddings

    def step(**inputs: Any) -> None:
        now[0] += clock[kinds[type(head())]] / 1000

    monkeypatch.setattr(q.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(type(made), "forward", lambda self, **inputs: step(**inputs))
    monkeypatch.setattr(q, "is_exact", lambda: True)
    for fastest in ("int8", "w8a8", "int4", "none"):
        made = tiny.model()
        head = made.get_output_embeddings
        clock[fastest] = 0.5
        how, words = q.quantize(made, "auto", CPU, "--draft-quantize")
        assert how == fastest
        assert f"{fastest} 0.5" in words
        assert {kinds[type(m)] for m in made.modules() if type(m) in kinds} == {fastest}
        clock[fastest] = 5.0
    clock |= {"int8": 0.51, "w8a8": 0.5}  # hardly slower, and more like the whole weights
    made = tiny.model()
    head = made.get_output_embeddings
    assert q.quantize(made, "auto", CPU, "--draft-quantize")[0] == "int8"


def test_w8a8_is_refused_where_sums_of_bytes_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q, "is_exact", lambda: False)
    with pytest.raises(UsageError, match=r"--quantize w8a8: this CPU .* choose int8"):
        q.quantize(tiny.model(), "w8a8", CPU, "--quantize")
    assert "w8a8" not in q.quantize(tiny.model(), "auto", CPU, "--draft-quantize")[1]


# --------------------------------------------------------------------------------------- exactness
def close_draft(**more: Any) -> Any:
    """A draft that agrees with the target often: the same weights, moved a little."""
    draft = tiny.model(**more)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.03 * torch.randn(weight.shape, generator=generator)
    return draft


@pytest.mark.exactness
@pytest.mark.parametrize("kind", ["int8", "w8a8", "int4", "cut and int4"])
def test_a_cheap_draft_leaves_the_targets_distribution(kind: str) -> None:
    """First tokens of real rounds, after a prompt of one token, so that a sample costs three short passes."""
    more: dict[str, Any] = {"num_hidden_layers": 1, "initializer_range": 0.2}
    draft = close_draft(**more)
    if "cut" in kind:
        tiny.cut(draft, tiny.byte_tokenizer(), "60", {tiny.BYTES})
    q.quantize(draft, kind[-4:], CPU, "--draft-quantize")
    target = TransformersModel(tiny.model(**more), tiny.VOCAB_SIZE)
    drafter = DraftModel(TransformersModel(draft, tiny.VOCAB_SIZE, role="draft"), SAMPLED)
    prompt = [66]
    rounds = [
        next(
            iter(
                Generation(
                    target, drafter, prompt, num_draft_tokens=2, sampling=SAMPLED, stopping=Stopping(3), seed=seed
                )
            )
        )
        for seed in range(600)
    ]
    accepted = sum(min(1, step.num_accepted) for step in rounds) / len(rounds)
    assert 0.1 < accepted < 0.95  # both branches of the rule ran
    with torch.inference_mode():
        target.reset()
        expected = logits_to_probs(target.forward(torch.tensor(prompt), 1), SAMPLED)[0]
    p_value = chi_square_p([step.token_ids[0] for step in rounds], dict(enumerate(expected.tolist())))
    wrong = chi_square_p([step.draft_token_ids[0] for step in rounds], dict(enumerate(expected.tolist())))
    print(f"{kind}: p {p_value:.3f}, first token accepted {accepted:.2f}; the drafted tokens alone {wrong:.1e}")
    assert p_value > SIGNIFICANCE
    assert wrong < SIGNIFICANCE  # the test can tell the draft's distribution from the target's


# ------------------------------------------------------------------------------------------- heads
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("how", ["none", "int8", "int4"])
def test_a_cut_head_never_proposes_outside_its_set_and_agrees_inside(family: str, how: str) -> None:
    made = tiny.model(family)
    whole = TransformersModel(tiny.model(family), tiny.VOCAB_SIZE)
    assert len(tiny.cut(made, tiny.byte_tokenizer(), "40", {tiny.BYTES})) == 41
    if how != "none":
        q.quantize(made, how, CPU, "--draft-quantize")
    kept = kept_tokens(tiny.byte_tokenizer(), "40", {tiny.BYTES}, tiny.VOCAB_SIZE)
    cut = TransformersModel(made, tiny.VOCAB_SIZE)
    prompt = torch.tensor(tiny.byte_tokenizer()("Zürich ÿ")["input_ids"])
    inside = sorted({*kept, *prompt.tolist()})
    assert len(inside) > len(kept)  # the prompt brings tokens of its own
    with torch.inference_mode():
        logits = _first(cut, prompt)
        other = _first(whole, prompt)
        assert torch.isfinite(logits).nonzero()[:, 1].tolist() == inside
        if how == "none":
            assert torch.allclose(logits[:, inside], other[:, inside], atol=1e-5)
        assert tiny.BYTES in inside
        # Another text: what the first one brought is forgotten.
        again = _first(cut, torch.tensor(kept[:5]))
        assert torch.isfinite(again).nonzero()[:, 1].tolist() == kept
    drafter = DraftModel(cut, SAMPLED)
    proposed = {
        i
        for seed in range(12)
        for step in Generation(
            whole, drafter, prompt.tolist(), num_draft_tokens=4, sampling=SAMPLED, stopping=Stopping(8), seed=seed
        )
        for i in step.draft_token_ids
    }
    assert proposed <= set(inside)
    assert len(proposed) > 5


def _first(model: TransformersModel, prompt: Tensor) -> Tensor:
    model.reset()
    return model.forward(prompt, num_logits=1)


def test_kept_tokens_are_the_frequent_ones_then_low_ids_and_always_the_special_ones(tmp_path: Path) -> None:
    tokenizer = tiny.byte_tokenizer(extra=("<tool>",))
    rows = len(tokenizer)
    texts = [turn for name in builtin_names() for prompt in builtin_prompts(name) for turn in prompt.turns]
    counts = Counter(i for text in texts for i in tokenizer(text)["input_ids"])
    special = {tiny.BYTES, tokenizer.convert_tokens_to_ids("<tool>")}
    assert set(kept_tokens(tokenizer, "5", {3}, rows)) == {*(i for i, _ in counts.most_common(5)), 3, *special}
    unseen = [i for i in range(rows) if i not in counts]
    many = kept_tokens(tokenizer, str(len(counts) + 10), set(), rows)
    assert set(many) == {*counts, *unseen[:10], *special}
    assert kept_tokens(tokenizer, "100000", set(), rows) == list(range(rows))
    file = tmp_path / "text.txt"
    new = next(c for c in map(chr, range(0x80, 0x3000)) if not set(tokenizer(c)["input_ids"]) <= set(counts))
    file.write_text(new, encoding="utf-8")
    assert set(kept_tokens(tokenizer, str(file), set(), rows)) == {*tokenizer(new)["input_ids"], *counts, *special}
    low = [i for i, _ in counts.most_common() if i < 10]
    assert kept_tokens(tokenizer, "5", {9_999}, 10) == sorted([*low, *unseen][:5])  # a head of ten rows


def test_a_file_of_frequent_text_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (binary, tmp_path / "nothing"):
        with pytest.raises(UsageError) as caught:
            kept_tokens(tiny.byte_tokenizer(), str(file), set(), 10)
        assert "--draft-vocab" in tiny.one_line(caught.value, 2)


def test_a_head_is_cut_where_that_leaves_something_out_and_refused_where_it_is_no_linear_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.save(tmp_path / "draft", tiny.model())
    whole, cut = (tiny.load(folder, "draft", vocab=number) for number in ("300", "30"))
    assert (whole.head_rows, type(whole.model.get_output_embeddings())) == (tiny.VOCAB_SIZE, torch.nn.Linear)
    assert isinstance(cut.model.get_output_embeddings(), CutHead)
    assert cut.head_rows == len(cut.model.get_output_embeddings().kept_ids) < tiny.VOCAB_SIZE
    real = inspection.sizes_of
    monkeypatch.setattr(inspection, "sizes_of", lambda *of: replace(real(*of), linear_head=False))
    with pytest.raises(UsageError, match="--draft-vocab needs a linear head, which LlamaForCausalLM has not"):
        tiny.load(folder, "draft", vocab="30")


# ----------------------------------------------------------------------------------------- loading
def test_loading_says_what_was_rounded_and_counts_its_bytes(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", tiny.model(tie_word_embeddings=True))
    plain = tiny.load(folder)
    rounded = tiny.load(folder, quantize="int8")
    assert (plain.quantize, rounded.quantize) == ("none", "int8")
    assert "another model" in rounded.notes[-1]
    assert "int8" in rounded.notes[-1]
    assert (plain.coarsest_dtype, rounded.coarsest_dtype) == (torch.float32, torch.bfloat16)
    # A quarter of the float32 bytes and a scale of two bytes a row; the tied table is no longer read by a step.
    linear = [m for m in plain.model.modules() if isinstance(m, nn.Linear)]
    norms = sum(p.nbytes for n, p in plain.model.named_parameters() if "norm" in n)
    assert plain.step_bytes == sum(p.nbytes for p in plain.model.parameters())
    assert rounded.step_bytes == sum(m.weight.numel() + 2 * m.out_features for m in linear) + norms
    cut = tiny.load(folder, "draft", vocab="30", quantize="int4")
    assert (cut.head_rows, cut.num_rows) == (31, tiny.VOCAB_SIZE)
    assert any("cut to 31 of 257" in note for note in cut.notes)
    assert cut.step_bytes < rounded.step_bytes
    with pytest.raises(UsageError, match="--quantize auto"):
        tiny.load(folder, quantize="auto")


def test_a_device_without_kernels_and_a_missing_package_are_one_line() -> None:
    model = tiny.model()
    with pytest.raises(UsageError) as refused:
        q.quantize(model, "int8", torch.device("mps"), "--quantize")
    assert "no kernels on mps" in tiny.one_line(refused.value, 2)
    with pytest.raises(SpecdecError) as missing:  # torchao is not part of the test environment
        q.quantize(model, "int8", torch.device("cuda"), "--quantize")
    assert "specdec-cli[quant]" in tiny.one_line(missing.value, 1)
    with pytest.raises(UsageError, match="CPU only"):
        q.quantize(model, "auto", torch.device("cuda"), "--draft-quantize")


@pytest.mark.parametrize(
    "more", [{"quantize": "int3"}, {"vocab": "0"}, {"vocab": "-5"}, {"vocab": ""}], ids=lambda m: str(m)
)
def test_settings_refuse_unknown_values(more: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        ModelSettings("x", **more)
    assert ("--quantize" if "quantize" in more else "--draft-vocab") in tiny.one_line(caught.value, 2)


def test_the_command_line_takes_all_three_and_tells_json(specdec: Specdec) -> None:
    arguments = ["generate", "x = ", "-n", "6", "--device", "cpu", "--seed", "1", "--format", "json"]
    cheap = ["--quantize", "int8", "--draft-quantize", "int4", "--draft-vocab", "200"]
    code, out, err = specdec(*arguments, *cheap)
    assert code == 0, err
    settings = json.loads(out)["settings"]
    assert (settings["target"]["quantize"], settings["draft"]["quantize"]) == ("int8", "int4")
    assert settings["draft"]["head_rows"] < 300
    assert settings["draft"]["vocab"] == "200"
    assert "note: target weights rounded to int8" in err
    assert "note: draft head cut to" in err
    code, out, err = specdec(*arguments, "--draft-quantize", "auto")
    assert code == 0, err
    assert json.loads(out)["settings"]["draft"]["quantize"] in ("none", "int8", "int4")
    assert "ms a step" in err
    for wrong in (["--quantize", "auto"], ["--quantize", "int2"], ["--draft-vocab", "no-such-file"]):
        code, _, err = specdec(*arguments, *wrong)
        assert code == 2
        assert wrong[0] in err


def test_the_same_seed_gives_the_same_record_with_a_cut_head(specdec: Specdec) -> None:
    """Symptom 14: the prompt's tokens of one answer must not stay for the next."""
    pair = tiny.pair("demo:target", "demo:draft")
    assert pair.draft_checkpoint is not None
    tiny.cut(pair.draft_checkpoint.model, pair.checkpoint.tokenizer, "100", pair.checkpoint.end_ids)
    draft = TransformersModel(pair.draft_checkpoint.model, pair.target.vocab_size)
    drafter = DraftModel(draft, SAMPLED)

    def record(text: str) -> list[tuple[int, ...]]:
        ids = pair.encode([{"role": "user", "content": text}], raw=True)
        generation = Generation(
            pair.target, drafter, ids, num_draft_tokens=3, sampling=SAMPLED, stopping=Stopping(12), seed=4
        )
        return [step.draft_token_ids for step in generation]

    before = record("def read(path):")
    record("import socket, struct; zlib = None  # another text")
    assert record("def read(path):") == before


def test_plain_decoding_of_a_rounded_target_equals_itself_in_blocks() -> None:
    """The target's own draft, both rounded: everything is accepted, but for near ties in bfloat16."""
    made = quantized("llama", "int4")
    target = TransformersModel(made, tiny.VOCAB_SIZE)
    twin = TransformersModel(quantized("llama", "int4"), tiny.VOCAB_SIZE)
    prompt = list(range(40, 52))
    plain = Generation(target, NoDrafter(CPU), prompt, num_draft_tokens=1, sampling=GREEDY, stopping=Stopping(30))
    alone = [i for step in plain for i in step.token_ids]
    rounds = list(
        Generation(target, DraftModel(twin, GREEDY), prompt, num_draft_tokens=3, sampling=GREEDY, stopping=Stopping(30))
    )
    assert [i for step in rounds for i in step.token_ids] == alone
    assert all(step.num_accepted == len(step.draft_token_ids) for step in rounds)


# ---------------------------------------------------------------------------------------- fidelity
def test_overlap_and_agreement_are_those_of_the_distributions_after_every_token_of_the_answers() -> None:
    model, reference = BagModel(11, seed=1), BagModel(11, seed=2)
    texts = [([3], [1, 2, 3]), ([5, 6, 7], [4] * 20), ([1, 2], [])]
    overlaps, same = [], []
    for prompt, answer in texts:
        for end in range(len(answer)):
            ours, theirs = (m.logits([*prompt, *answer[:end]]).softmax(-1) for m in (model, reference))
            overlaps.append(float(torch.minimum(ours, theirs).sum()))
            same.append(bool(ours.argmax() == theirs.argmax()))
    found = compare(model, reference, texts)
    assert found.positions == len(overlaps) == 23
    assert found.overlap == pytest.approx(sum(overlaps) / 23, abs=1e-5)
    assert found.greedy_agreement == pytest.approx(sum(same) / 23)
    assert 0.05 < found.overlap < 0.95
    itself = compare(model, BagModel(11, seed=1), texts)
    assert (itself.overlap, itself.greedy_agreement) == (pytest.approx(1.0, abs=1e-6), 1.0)
    with pytest.raises(ValueError, match="no answers"):
        compare(model, reference, [([1, 2], [])])


def test_greedy_answers_are_the_models_own() -> None:
    model = BagModel(11, seed=1)
    ((prompt, answer),) = greedy_answers(model, [[4, 5]], 6)
    assert len(answer) == 6
    for end, token_id in enumerate(answer):
        assert token_id == int(model.logits([*prompt, *answer[:end]]).argmax())


def test_bench_says_how_far_a_rounded_target_is_from_itself(specdec: Specdec, tmp_path: Path) -> None:
    folder = str(tiny.save(tmp_path / "model", tiny.model(initializer_range=0.1)))
    arguments = ["bench", "-t", folder, "-d", folder, "--device", "cpu", "--limit", "1", "-n", "8", "--k", "2"]
    arguments += ["--prompts", "code", "--raw", "--seed", "1"]
    code, out, err = specdec(*arguments, "--quantize", "int4", "--draft-quantize", "int8", "--draft-vocab", "90")
    assert code == 0, err
    said = " ".join(out.split())
    assert "rounded to int4, which is another model: its distributions overlap by" in said
    assert f"{folder} in int4 with {folder} in int8 (head of 91 tokens), K 2" in said
    code, out, _ = specdec(*arguments, "--quantize", "int8", "--format", "json", "-q")
    record = json.loads(out)
    assert code == 0
    assert 0.9 < record["quantisation"]["overlap"] < 1
    assert 0 <= record["quantisation"]["greedy_agreement"] <= 1
    assert record["quantisation"]["positions"] == 8
    assert record["settings"]["target"]["quantize"] == "int8"
    code, out, _ = specdec(*arguments, "--draft-quantize", "int8", "--format", "json", "-q")
    assert json.loads(out)["quantisation"] is None  # of the target, and it is whole
    code, out, _ = specdec(*arguments, "--quantize", "int8", "--format", "markdown", "-q")
    assert "| target |" in out
    assert "| int8 " in out
