"""Which GGUF files are one model, on this disk and on the hub; number types; tokenizers; the ids that end a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import tiny
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import TokenType
from gguf_families import byte_level, llama_keys, tensors_of, write_family
from gguf_writer import END_ID, TOKENS
from huggingface_hub import HfApi, constants
from tokenizers import Regex, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from specdec_cli.errors import SpecdecError, UsageError
from specdec_cli.runtime.checkpoints import hub_files
from specdec_cli.runtime.checkpoints.gguf.converted import cache_folder
from specdec_cli.runtime.checkpoints.gguf.pre_tokenizers import SPLITS, pre_tokenizer
from specdec_cli.runtime.checkpoints.inspection import Inspection, inspect
from specdec_cli.runtime.checkpoints.locate import locate

Specdec = Callable[..., tuple[int, str, str]]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny.model("llama", vocab_size=len(TOKENS), eos_token_id=END_ID, bos_token_id=END_ID)


def whole(path: Path, model: PreTrainedModel, kind: Kind = Kind.F32, **more: Any) -> Path:
    keys = llama_keys(model.config) | {k: v for k, v in more.items() if k != "tokenizer"}
    return write_family(path, "llama", keys, tensors_of(model, "llama"), kind, more.get("tokenizer"))


def split(folder: Path, model: PreTrainedModel, kind: Kind = Kind.F32, name: str = "m") -> list[Path]:
    """Three parts: the head alone is in the last one, so that a part of them looks like a tied model."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(tensors_of(model, "llama"))
    names = [n for n in tensors if n != "output.weight"]
    shares = (names[:7], names[7:], ["output.weight"])
    paths = [folder / f"{name}-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    for number, (path, share) in enumerate(zip(paths, shares, strict=True)):
        part = (number, 3, len(tensors))
        write_family(path, "llama", llama_keys(model.config), [(n, tensors[n]) for n in share], kind, part=part)
    return paths


def weights(loaded: Any) -> dict[str, torch.Tensor]:
    return dict(loaded.model.named_parameters())


def line(source: str | Path, error: type[SpecdecError] = SpecdecError, **more: Any) -> str:
    with pytest.raises(error) as caught:
        tiny.load(source, **more)
    return tiny.one_line(caught.value, error.exit_code)


def seen(source: str | Path, **more: Any) -> Inspection:
    return inspect(locate(tiny.settings(source, **more), "target"), lambda _: None)


# ---------------------------------------------------------------------------------------- split sets
@pytest.mark.parametrize("named", [0, 1, 2, "folder"])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_any_part_stands_for_the_whole_set(
    named: int | str, kind: Kind, model: PreTrainedModel, tmp_path: Path
) -> None:
    paths = split(tmp_path / "parts", model, kind)
    source = tmp_path / "parts" if isinstance(named, str) else paths[named]
    found, expected = weights(tiny.load(source)), weights(tiny.load(whole(tmp_path / "whole.gguf", model, kind)))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_a_set_in_its_own_bits(model: PreTrainedModel, tmp_path: Path) -> None:
    paths = split(tmp_path / "parts", model, Kind.Q8_0)
    loaded = tiny.load(paths[1], quantize="keep", dtype="bfloat16", fuse=False)
    other = tiny.load(whole(tmp_path / "whole.gguf", model, Kind.Q8_0), quantize="keep", dtype="bfloat16", fuse=False)
    assert loaded.quantize == other.quantize == "keep"
    assert (loaded.step_bytes, loaded.head_bytes) == (other.step_bytes, other.head_bytes)
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        assert torch.equal(loaded.model(ids).logits, other.model(ids).logits)


def test_all_parts_count_in_the_sizes(model: PreTrainedModel, tmp_path: Path) -> None:
    paths = split(tmp_path / "parts", model)
    assert seen(paths[2]).stored.bytes == sum(path.stat().st_size for path in paths)


def test_a_part_is_missing(model: PreTrainedModel, tmp_path: Path) -> None:
    """Also where the whole set was converted before."""
    paths = split(tmp_path / "parts", model)
    tiny.load(paths[0])
    paths[1].unlink()
    for source in (paths[0], paths[2], tmp_path / "parts"):
        message = line(source)
        assert message.endswith(
            "is one of 3 parts, of which m-00002-of-00003.gguf is not here: put all of them into one folder"
        )
        assert message.startswith("--target m-0000")


def test_a_part_that_changes_is_converted_again(model: PreTrainedModel, tmp_path: Path) -> None:
    """The cache's key is the content of all parts."""
    paths = split(tmp_path / "parts", model)
    before = weights(tiny.load(paths[0], fuse=False))["lm_head.weight"].clone()
    other = tiny.model("llama", vocab_size=len(TOKENS), seed=5, eos_token_id=END_ID, bos_token_id=END_ID)
    split(tmp_path / "others", other)[2].replace(paths[2])
    after = weights(tiny.load(paths[0], fuse=False))["lm_head.weight"]
    assert not torch.equal(before, after)
    assert torch.equal(after, other.lm_head.weight)


def test_parts_of_two_models(model: PreTrainedModel, tmp_path: Path) -> None:
    paths = split(tmp_path / "parts", model)
    paths[1].write_bytes(paths[2].read_bytes())
    assert "m-00002-of-00003.gguf is not the part that its name says" in line(paths[0])


def test_a_part_under_another_name(model: PreTrainedModel, tmp_path: Path) -> None:
    paths = split(tmp_path / "parts", model)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    assert "model.gguf is one of 3 parts of a model, and its name does not tell which" in line(renamed)


def test_parts_under_the_names_of_a_smaller_set(model: PreTrainedModel, tmp_path: Path) -> None:
    paths = split(tmp_path / "parts", model)
    first, _ = (path.rename(tmp_path / f"n-0000{i}-of-00002.gguf") for i, path in enumerate(paths[:2], start=1))
    assert "n-00001-of-00002.gguf is called one of 2 parts, and its metadata say that there are 3" in line(first)


def test_the_part_that_is_damaged_is_named(model: PreTrainedModel, tmp_path: Path) -> None:
    paths = split(tmp_path / "parts", model)
    paths[1].write_bytes(paths[1].read_bytes()[:-64])
    assert "m-00001-of-00003.gguf cannot be read (part m-00002-of-00003.gguf: it ends within " in line(paths[0])


@pytest.mark.parametrize("size", [10, 100, 300, 2000])
def test_a_header_that_is_cut_off(size: int, model: PreTrainedModel, tmp_path: Path) -> None:
    path = whole(tmp_path / "m.gguf", model)
    path.write_bytes(path.read_bytes()[:size])
    assert line(path).startswith("--target m.gguf cannot be read (it ends within its header): download it again")


def test_a_format_of_the_future(model: PreTrainedModel, tmp_path: Path) -> None:
    path = whole(tmp_path / "m.gguf", model)
    content = path.read_bytes()
    name = b"output_norm.weight"
    at = content.index(name) + len(name) + 4 + 8  # how many dimensions, and the size of its only one
    path.write_bytes(content[:at] + (99).to_bytes(4, "little") + content[at + 4 :])
    message = line(path)
    assert message.startswith("--target m.gguf has output_norm.weight in format 99, which this gguf package does not")


@pytest.mark.parametrize("key", ["attention.head_count", "block_count", "embedding_length", "attention.head_count_kv"])
def test_sizes_of_nothing(key: str, model: PreTrainedModel, tmp_path: Path) -> None:
    path = whole(tmp_path / "m.gguf", model, **{key: 0})
    assert line(path) == f"--target m.gguf has llama.{key} = 0, which no model has: download it again"


def test_a_name_of_a_part_on_a_file_that_knows_of_none(model: PreTrainedModel, tmp_path: Path) -> None:
    """Its head is missing, and would be tied."""
    path = split(tmp_path / "parts", model)[0]
    path.write_bytes(path.read_bytes().replace(b"split.count", b"splot.count"))
    assert "m-00001-of-00003.gguf is called one of 3 parts, and its metadata know of none" in line(path)


def test_layers_behind_the_last_are_not_left_out_without_a_word(model: PreTrainedModel, tmp_path: Path) -> None:
    path = write_family(
        tmp_path / "m.gguf", "llama", llama_keys(model.config) | {"block_count": 1}, tensors_of(model, "llama"),
        Kind.F32, None,
    )  # fmt: skip
    assert "m.gguf has blk.1." in line(path)


def test_tensors_that_overlap_are_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    path = whole(tmp_path / "m.gguf", model)
    name = b"blk.1.ffn_up.weight"
    content = bytearray(path.read_bytes())
    at = content.index(name) + len(name) + 4 + 2 * 8 + 4  # dimensions, their sizes, the format; then the offset
    offset = int.from_bytes(content[at : at + 8], "little")
    content[at : at + 8] = (offset + 32).to_bytes(8, "little")
    path.write_bytes(content)
    assert "begins within blk.1.ffn_up.weight" in line(path)


# ------------------------------------------------------------------------------------------- folders
def projector(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("general.type", "mmproj")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_projector_is_no_second_model(model: PreTrainedModel, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = whole(folder / "model.gguf", model)
    projector(folder / "mmproj-model-f16.gguf")
    assert locate(tiny.settings(folder), "target").gguf == path


def test_two_sets_and_a_projector_are_two_models(model: PreTrainedModel, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    split(folder, model)
    split(folder, model, name="n")
    projector(folder / "mmproj-model-f16.gguf")
    assert line(folder, UsageError).endswith("is a folder with 2 .gguf files: name one of them")


def test_a_projector_alone(tmp_path: Path) -> None:
    path = projector(tmp_path / "mmproj-m.gguf")
    assert "turns images into tokens" in line(tmp_path, UsageError)
    renamed = path.rename(tmp_path / "m.gguf")
    for source in (renamed, tmp_path):
        assert line(source).endswith("turns images into tokens and generates no text: name the model it belongs to")


def test_an_adapter_is_no_model(model: PreTrainedModel, tmp_path: Path) -> None:
    path = whole(tmp_path / "lora.gguf", model, **{"general.type": "adapter"})
    assert "lora.gguf is no model but of type 'adapter'" in line(path)


# -------------------------------------------------------------------------------------- number types
@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0])
def test_float32_is_what_the_file_holds(kind: Kind, model: PreTrainedModel, tmp_path: Path) -> None:
    loaded = weights(tiny.load(whole(tmp_path / "m.gguf", model, kind), fuse=False, dtype="float32"))
    for name, tensor in model.state_dict().items():
        used = kind if tensor.ndim > 1 else Kind.F32
        exact = gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), used), used)
        assert torch.equal(loaded[name], torch.from_numpy(exact)), name


def test_blocks_are_written_twice_only_where_float32_is_asked_for(model: PreTrainedModel, tmp_path: Path) -> None:
    path = whole(tmp_path / "m.gguf", model, Kind.Q8_0)

    def kept() -> int:
        return sum(p.is_file() for p in (cache_folder() / "gguf").glob("*/model.safetensors"))

    for dtype, expected in (("auto", 1), ("bfloat16", 1), ("float32", 2), ("float16", 2)):
        tiny.load(path, dtype=dtype, quantize="none")
        assert kept() == expected, dtype
    tiny.load(whole(tmp_path / "f16.gguf", model, Kind.F16), dtype="float32")
    tiny.load(tmp_path / "f16.gguf", dtype="auto")
    assert kept() == 3


# --------------------------------------------------------------------------------------- tokenizers
NUMBERS = (*tiny.ALPHABET, "12", tiny.END)


def numbers(pre: str | None) -> Callable[[gguf.GGUFWriter], None]:
    """A vocabulary of bytes and "12", which is made of a "1" and a "2" in one piece."""

    def write(writer: gguf.GGUFWriter) -> None:
        types = [TokenType.NORMAL] * 257 + [TokenType.CONTROL]
        byte_level(writer, NUMBERS, types, ("1 2",), pre)

    return write


def tokenizer_for(path: Path, tokenizer: Callable[[gguf.GGUFWriter], None], size: int) -> PreTrainedTokenizerBase:
    made = tiny.model("llama", vocab_size=size)
    found = seen(whole(path, made, tokenizer=tokenizer)).tokenizer
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["x", "1", "2", "1", "2"]),
        ("qwen2", ["x", "1", "2", "1", "2"]),
        ("starcoder", ["x", "1", "2", "1", "2"]),
        ("deepseek-coder", ["x", "1", "2", "1", "2"]),
        ("gpt-2", ["x", "12", "12"]),
        ("deepseek-llm", ["x", "12", "12"]),
        ("deepseek-v3", ["x", "12", "1", "2"]),
        ("falcon", ["x", "12", "1", "2"]),
    ],
)
def test_text_is_split_as_the_file_says(pre: str, expected: list[str], tmp_path: Path) -> None:
    found = seen(whole(tmp_path / "m.gguf", tiny.model("llama", vocab_size=len(NUMBERS)), tokenizer=numbers(pre)))
    assert found.tokenizer is not None
    assert found.tokenizer.tokenize("x1212") == expected
    assert found.notes == ()


def test_splits_are_those_of_the_models_own_tokenizers() -> None:
    """Where transformers has the pattern in its code, and for tokenizers made of the steps that a folder has."""
    text = "I'LL say x1212 don't  CamelCase\r\n\n  12345 中文字符, naïve é!? \t(ab)cd [e]f 3.14 ½²"

    def pieces(*steps: Any) -> list[str]:
        return [piece for piece, _ in pre_tokenizers.Sequence(list(steps)).pre_tokenize_str(text)]

    def ours(name: str) -> list[str]:
        return [piece for piece, _ in pre_tokenizer(name).pre_tokenize_str(text)]

    byte_level_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert ours("qwen2") == pieces(pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"), byte_level_alone)
    assert ours("gpt-2") == pieces(gpt2)
    assert ours("smollm") == pieces(pre_tokenizers.Digits(individual_digits=True), gpt2)
    bloom = pre_tokenizers.Split(Regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"), "isolated")
    assert ours("bloom") == pieces(bloom, byte_level_alone)
    for name in SPLITS:
        assert "".join(ours(name)) == "".join(pieces(byte_level_alone)), f"{name} loses characters"


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        (
            "future-9",
            "target m.gguf splits text by 'future-9', which is not known here: as GPT-2 does; ids may be other",
        ),
        (None, "target m.gguf does not say how its tokenizer splits text"),
    ],
)
def test_an_unknown_split_is_told_by_every_command(
    pre: str | None, expected: str, tmp_path: Path, specdec: Specdec
) -> None:
    made = tiny.model("llama", vocab_size=len(NUMBERS))
    path = whole(tmp_path / "m.gguf", made, tokenizer=numbers(pre))
    (note,) = seen(path).notes
    assert note.startswith(expected)
    assert note in tiny.load(path).notes
    code, _, err = specdec("generate", "x1212", "-t", path, "-d", "none", "-n", "2", "--dtype", "float32")
    assert (code, note in err) == (0, True)
    code, out, _ = specdec("pair-check", "-t", path, "-d", path, "--format", "json")
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert checks["reading"]["status"] == "warn"
    assert note in checks["reading"]["detail"]


def test_a_piece_that_is_a_token_is_one(tmp_path: Path) -> None:
    """Llama 3 and Mistral's Tekken have tokens that no merge makes."""
    tokens = (*tiny.ALPHABET, "abc", tiny.END)

    def write(pre: str) -> Callable[[gguf.GGUFWriter], None]:
        types = [TokenType.NORMAL] * 257 + [TokenType.CONTROL]
        return lambda writer: byte_level(writer, tokens, types, (), pre)

    bpe = tokenizer_for(tmp_path / "a.gguf", write("llama-bpe"), len(tokens))
    assert bpe("abc")["input_ids"] == [257, 256]  # bos, and the token
    gpt2 = tokenizer_for(tmp_path / "b.gguf", write("gpt-2"), len(tokens))
    assert gpt2.tokenize("abc") == ["a", "b", "c"]


def test_markers_with_signs_beyond_the_alphabet_stay_whole(tmp_path: Path) -> None:
    """DeepSeek's, which are control tokens and user-defined ones."""
    tokens = (*tiny.ALPHABET, "<｜User｜>", "<think>", "ab", "x", "<｜end▁of▁sentence｜>")
    types = [TokenType.NORMAL] * 256 + [TokenType.USER_DEFINED] * 2 + [TokenType.NORMAL] * 2 + [TokenType.CONTROL]
    tokens = tuple(t if t != "x" else "zz" for t in tokens)
    found = tokenizer_for(
        tmp_path / "m.gguf", lambda writer: byte_level(writer, tokens, types, ("a b",), "deepseek-v3"), len(tokens)
    )
    assert found.tokenize("<｜User｜>ab<think>a<｜end▁of▁sentence｜>") == [
        *("<｜User｜>", "ab", "<think>", "a", "<｜end▁of▁sentence｜>"),
    ]
    assert found.decode(found("<｜User｜>ab")["input_ids"]) == "<｜User｜>ab"


def test_a_sentencepiece_tokenizer(tmp_path: Path) -> None:
    """Bos in front as in the folder; no space in front where the file says so."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "ab", "▁ab"]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256 + [TokenType.NORMAL] * 5

    def write(space: bool | None) -> Callable[[gguf.GGUFWriter], None]:
        def made(writer: gguf.GGUFWriter) -> None:
            writer.add_tokenizer_model("llama")
            writer.add_tokenizer_pre("default")
            writer.add_token_list(pieces)
            writer.add_token_scores([0.0] * 259 + [-3.0, -4.0, -5.0, -1.0, -2.0])
            writer.add_token_types(types)
            if space is not None:
                writer.add_add_space_prefix(space)

        return made

    usual = tokenizer_for(tmp_path / "a.gguf", write(None), len(pieces))
    assert usual.convert_ids_to_tokens(usual("ab ab")["input_ids"]) == ["<s>", "▁ab", "▁ab"]
    assert (usual.bos_token, usual.eos_token, usual.unk_token) == ("<s>", "</s>", "<unk>")
    bare = tokenizer_for(tmp_path / "b.gguf", write(False), len(pieces))
    assert bare.convert_ids_to_tokens(bare("ab ab")["input_ids"]) == ["<s>", "ab", "▁ab"]
    assert bare.decode(bare("ab ab", add_special_tokens=False)["input_ids"]) == "ab ab"


def test_a_split_is_the_files_and_not_its_familys(tmp_path: Path) -> None:
    """transformers' tokenizer class of qwen2 makes splits of its own, whatever is saved."""
    model = tiny.model("qwen2", vocab_size=len(NUMBERS))
    keys = llama_keys(model.config)
    path = write_family(tmp_path / "m.gguf", "qwen2", keys, tensors_of(model, "qwen2"), tokenizer=numbers("gpt-2"))
    for tokenizer in (seen(path).tokenizer, tiny.load(path).tokenizer):
        assert tokenizer is not None
        assert tokenizer.tokenize("x1212") == ["x", "12", "12"]


def test_tokens_that_are_not_there_are_named(tmp_path: Path) -> None:
    made = tiny.model("llama", vocab_size=257)
    tokens = (*tiny.ALPHABET, tiny.END)
    path = whole(tmp_path / "a.gguf", made, tokenizer=lambda w: byte_level(w, tokens, None, ("l l",)))
    assert "--target a.gguf cannot be converted (Error while initializing BPE: Token `ll` out of voc" in line(path)
    path = whole(tmp_path / "b.gguf", made, tokenizer=lambda w: byte_level(w, tokens, None, (), end=900))
    assert "b.gguf has tokenizer.ggml.bos_token_id = 900, and 257 tokens: use the model's safetensors" in line(path)
    path = whole(tmp_path / "c.gguf", made, tokenizer=lambda w: w.add_tokenizer_model("gpt2"))
    assert "c.gguf lacks the metadata tokenizer.ggml.tokens" in line(path)
    path = whole(tmp_path / "d.gguf", made, tokenizer=lambda w: None)
    assert "d.gguf lacks the metadata tokenizer.ggml.model" in line(path)


# ------------------------------------------------------------------------------------------ end ids
def ends(path: Path, tokens: tuple[str, ...], kinds: dict[str, TokenType], **keys: int) -> frozenset[int]:
    types = [TokenType.NORMAL] * 256 + [kinds.get(t, TokenType.CONTROL) for t in tokens]
    everything = (*tiny.ALPHABET, *tokens)

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(everything)
        writer.add_token_types(types)
        writer.add_token_merges(())
        for name, value in keys.items():
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)

    return seen(whole(path, tiny.model("llama", vocab_size=len(everything)), tokenizer=write)).end_ids


def test_every_key_of_an_end_counts(tmp_path: Path) -> None:
    tokens = ("<a>", "<b>", "<c>", "<d>")
    assert ends(tmp_path / "m.gguf", tokens, {}, eos=256, eot=257, eom=258) == {256, 257, 258}


def test_well_known_names_count_where_they_are_no_text(tmp_path: Path) -> None:
    tokens = ("<a>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<EOT>", "<|im_start|>")
    assert ends(tmp_path / "m.gguf", tokens, {"<EOT>": TokenType.NORMAL}, eos=256) == {256, 257, 258, 259}


def test_the_end_of_a_message_is_not_that_of_the_answer(tmp_path: Path) -> None:
    tokens = ("<|end|>", "<|return|>", "<|call|>")
    assert ends(tmp_path / "m.gguf", tokens, {}, eos=257) == {257, 258}
    assert ends(tmp_path / "n.gguf", tokens[:1], {}, eos=256) == {256}


def test_the_end_of_a_turn_ends_the_text(tmp_path: Path, specdec: Specdec) -> None:
    """A model that says A, then the end of its turn, and would go on."""
    tokens = (*tiny.ALPHABET, tiny.END, "<|eot|>")
    a, b, end_of_turn = tiny.ALPHABET.index("A"), tiny.ALPHABET.index("B"), 257
    made = tiny.model("llama", vocab_size=len(tokens))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
        table = torch.eye(len(tokens), tiny.config("llama").hidden_size)
        table = torch.randn(table.shape, generator=torch.Generator().manual_seed(1))
        made.model.embed_tokens.weight.copy_(table)
        head = torch.zeros_like(table)
        for last, following in {tiny.ALPHABET.index("x"): a, a: end_of_turn, end_of_turn: b, b: b}.items():
            head[following] += table[last]
        made.lm_head.weight.copy_(3 * head)

    def write(writer: gguf.GGUFWriter) -> None:
        byte_level(writer, tokens, [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * 2, (), end=256)
        writer.add_uint32("tokenizer.ggml.eot_token_id", end_of_turn)

    path = whole(tmp_path / "m.gguf", made, tokenizer=write)
    arguments = ["generate", "x", "-t", path, "-d", "none", "-n", "5", "--format", "json", "--dtype", "float32"]
    code, out, err = specdec(*arguments, "--temperature", "0")
    assert code == 0, err
    found = json.loads(out)
    assert (found["token_ids"], found["finish_reason"]) == ([a, end_of_turn], "eos")


# ----------------------------------------------------------------------------------------- on the hub
@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's; conftest says offline."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def put(hub_cache: Path, repo: str) -> Path:
    """The folder of a repository's files in the hub's cache."""
    home = hub_cache / f"models--{repo.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT, encoding="ascii")
    folder = home / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("offline", [True, False], ids=["--offline", "HF_HUB_OFFLINE"])
def test_a_repository_of_gguf_files_lists_them(
    offline: bool, hub_cache: Path, model: PreTrainedModel, tmp_path: Path
) -> None:
    folder = put(hub_cache, "org/two-GGUF")
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj-m.gguf"):
        (folder / name).write_bytes(b"GGUF")
    split(folder / "BF16", model)
    assert line("org/two-GGUF", UsageError, offline=offline) == (
        "--target org/two-GGUF holds GGUF files and no config.json (BF16/m-00001-of-00003.gguf, m-Q4_0.gguf, "
        "m-Q8_0.gguf): name one, as org/two-GGUF:BF16/m-00001-of-00003.gguf"
    )


def test_a_file_of_a_repository_is_found_offline(hub_cache: Path, model: PreTrainedModel, tmp_path: Path) -> None:
    folder = put(hub_cache, "org/one-GGUF")
    whole(folder / "m-F16.gguf", model, Kind.F16)
    split(folder / "parts", model)
    loaded = tiny.load("org/one-GGUF:m-F16.gguf", fuse=False, offline=True)
    assert loaded.name == "org/one-GGUF:m-F16.gguf"
    assert torch.equal(weights(loaded)["lm_head.weight"], model.lm_head.weight.half().float())
    parts = tiny.load("org/one-GGUF:parts/m-00002-of-00003.gguf", fuse=False)
    assert torch.equal(weights(parts)["lm_head.weight"], model.lm_head.weight)
    assert line("org/one-GGUF:m-Q2_K.gguf", UsageError) == (
        "--target org/one-GGUF has no m-Q2_K.gguf in its copy here: name one of m-F16.gguf, parts/m-00001-of-00003.gguf"
    )
    assert "org/none:m.gguf is not in the hub's local cache" in line("org/none:m.gguf", offline=True)


def test_a_file_of_a_repository_is_fetched_with_all_its_parts(
    hub_cache: Path, model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split(tmp_path / "there", model)
    asked: list[str] = []

    def download(repo: str, name: str, **options: Any) -> str:
        asked.append(f"{repo} {name} {options['revision']}")
        return str(tmp_path / "there" / name)

    monkeypatch.setattr(hub_files, "is_offline_mode", lambda: False)
    monkeypatch.setattr(hub_files, "hf_hub_download", download)
    told: list[str] = []
    found = hub_files.fetched(locate(tiny.settings("org/r:m-00002-of-00003.gguf", revision="v1"), "draft"), told.append)
    assert asked == [f"org/r m-0000{i}-of-00003.gguf v1" for i in (1, 2, 3)]
    assert found.gguf == tmp_path / "there" / "m-00001-of-00003.gguf"
    assert told == ["fetching m-00002-of-00003.gguf of org/r, unless it is here"]


def test_what_a_repository_holds_is_asked_of_the_hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["README.md", "m-Q4_0.gguf", "mmproj.gguf", "n-00001-of-00002.gguf", "n-00002-of-00002.gguf"]
    monkeypatch.setattr(hub_files, "is_offline_mode", lambda: False)
    monkeypatch.setattr(HfApi, "list_repo_files", lambda self, repo, revision: names)
    assert hub_files.gguf_files(locate(tiny.settings("org/r"), "target")) == ["m-Q4_0.gguf", "n-00001-of-00002.gguf"]
