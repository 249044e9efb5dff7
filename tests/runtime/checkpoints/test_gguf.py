"""GGUF files: converted once, recognised by content, and one line for each that cannot be read.

The files are written here, a small Llama as llama.cpp's converter would write it: with its names, its order of the
rotary dimensions, and its tokenizer.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
import torch
from gguf import GGMLQuantizationType
from gguf_writer import END_ID, MERGES, TOKENS, write_gguf
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from specdec_cli.errors import OutOfMemoryError, SpecdecError, UsageError
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint
from specdec_cli.runtime.checkpoints.gguf import converted as conversion
from specdec_cli.runtime.checkpoints.gguf.converted import cache_folder, gguf_as_folder
from specdec_cli.runtime.checkpoints.gguf.header import GgufFile
from specdec_cli.runtime.checkpoints.locate import locate
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.pairs.vocabularies import compare_vocabularies, id_to_token


def folder_of(source: str, role: str, report: Report) -> str:
    """The folder that a checkpoint's weights are read from."""
    place = locate(tiny.settings(source), role)
    return place.path if place.gguf is None else str(gguf_as_folder(place.gguf, f"--{role}", report))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """What the files hold."""
    return tiny.model("llama", vocab_size=len(TOKENS), eos_token_id=END_ID, bos_token_id=END_ID)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model: PreTrainedModel) -> Callable[[GGMLQuantizationType], Path]:
    """Writes each kind of file once."""
    folder = tmp_path_factory.mktemp("gguf")

    def file(quantization: GGMLQuantizationType) -> Path:
        path = folder / f"tiny-{quantization.name}.gguf"
        return path if path.exists() else write_gguf(path, model, quantization)

    return file


@pytest.fixture(scope="module")
def converted_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of what is converted share."""
    return tmp_path_factory.mktemp("shared-cache")


@pytest.fixture
def shared_cache(converted_once: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDEC_CACHE", str(converted_once))
    return converted_once


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of one's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECDEC_CACHE", str(folder))
    return folder


@pytest.fixture
def file(files: Callable[[GGMLQuantizationType], Path], tmp_path: Path, cache: Path) -> Path:
    """A small file that may be moved or damaged, and an empty cache."""
    path = tmp_path / "model.gguf"
    path.write_bytes(files(GGMLQuantizationType.F16).read_bytes())
    return path


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are converted, which costs nothing here."""
    names: list[str] = []

    def convert(file: GgufFile, folder: Path, exact: bool) -> None:
        names.append(file.name)
        (folder / "config.json").write_bytes(file.paths[0].read_bytes()[:1000])

    monkeypatch.setattr(conversion, "_convert", convert)
    return names


def silent(line: str) -> None:
    """Nobody listens."""


def kept(cache: Path) -> list[str]:
    """What lies in the cache, hashes apart."""
    folder = cache / "gguf"
    return sorted(p.name for p in folder.iterdir() if p.name != "hashes") if folder.exists() else []


# ------------------------------------------------------------------------------------ what is converted
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
def test_a_file_becomes_the_model_that_it_holds(
    kind: str, files: Callable[[GGMLQuantizationType], Path], model: PreTrainedModel, shared_cache: Path
) -> None:
    quantization = GGMLQuantizationType[kind]
    loaded = tiny.load(files(quantization), fuse=False)
    parameters = dict(loaded.model.named_parameters())
    for name, original in model.state_dict().items():
        exact = original.numpy()
        if original.ndim == 2:
            exact = gguf.quants.dequantize(gguf.quants.quantize(exact, quantization), quantization)
        assert torch.equal(parameters[name], torch.from_numpy(np.array(exact))), name
    assert parameters.keys() == dict(model.named_parameters()).keys()
    assert loaded.num_rows == len(TOKENS)


def test_tokenizer_end_token_and_template_come_along(
    files: Callable[[GGMLQuantizationType], Path], shared_cache: Path
) -> None:
    file = files(GGMLQuantizationType.F16)
    loaded = tiny.load(file)
    tokenizer = loaded.tokenizer
    assert id_to_token(tokenizer, loaded.num_rows) == dict(enumerate(TOKENS))
    assert tokenizer("hello")["input_ids"] == [TOKENS.index("hello")]
    text = "hello, Zoë! 你好\n\tx = [1]"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer(f"a{tiny.END}")["input_ids"][-1] == END_ID
    assert tokenizer.eos_token == tiny.END
    assert loaded.end_ids == {END_ID}
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "[user]Hi"
    assert loaded.name == str(file)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16), ("Q8_0", torch.bfloat16)],
)
def test_the_converted_folder_is_an_ordinary_checkpoint(
    kind: str, dtype: torch.dtype, files: Callable[[GGMLQuantizationType], Path], shared_cache: Path
) -> None:
    """In the file's own number type; its vectors are float32 in every file."""
    folder = Path(folder_of(str(files(GGMLQuantizationType[kind])), "target", silent))
    assert folder.parent == shared_cache / "gguf"
    written = load_file(folder / "model.safetensors")
    assert {t.dtype for t in written.values() if t.ndim == 2} == {dtype}
    assert {t.dtype for t in written.values() if t.ndim == 1} == {torch.float32}
    loaded = tiny.load(folder, dtype="bfloat16")
    assert AutoConfig.from_pretrained(folder).dtype == dtype
    assert getattr(loaded.model.config, "quantization_config", None) is None


def test_files_of_one_model_are_a_pair(files: Callable[[GGMLQuantizationType], Path], shared_cache: Path) -> None:
    pair = tiny.pair(files(GGMLQuantizationType.F16), files(GGMLQuantizationType.Q4_0))
    assert pair.draft is not None
    assert pair.target.vocab_size == pair.draft.vocab_size == len(TOKENS)


# ----------------------------------------------------------------------------------------- only once
def test_it_is_converted_once_and_said_so(file: Path, converted: list[str]) -> None:
    told: list[str] = []
    first = folder_of(str(file), "target", told.append)
    assert told == [f"converting model.gguf to safetensors, once (kept in {first})"]
    assert folder_of(str(file), "draft", told.append) == first
    assert len(told) == 1
    assert converted == ["model.gguf"]


def test_a_file_under_another_name_is_recognised(file: Path, cache: Path, tmp_path: Path, converted: list[str]) -> None:
    first = folder_of(str(file), "target", silent)
    copy = tmp_path / "elsewhere" / "other name.GGUF"
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    moved = file.rename(tmp_path / "moved.gguf")
    for path in (copy, moved):
        assert folder_of(str(path), "target", silent) == first
    assert converted == ["model.gguf"]
    assert kept(cache) == [Path(first).name]


def test_a_changed_file_is_converted_again(file: Path, cache: Path, converted: list[str]) -> None:
    """Also where its size stays."""
    first, before = folder_of(str(file), "target", silent), file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    assert file.stat().st_size == before.st_size
    second = folder_of(str(file), "target", silent)
    assert converted == ["model.gguf"] * 2
    assert kept(cache) == sorted([Path(first).name, Path(second).name])


def test_a_new_version_of_the_conversion_converts_again(
    file: Path, converted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder_of(str(file), "target", silent)
    monkeypatch.setattr(conversion, "CONVERSION_VERSION", conversion.CONVERSION_VERSION + 1)
    assert folder_of(str(file), "target", silent) != first
    assert converted == ["model.gguf"] * 2


def half_way(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[set[str]]:
    """Let conversions fail when the model is written and the tokenizer is not; lists what was written by then."""
    written: list[set[str]] = []

    def save_pretrained(self: PreTrainedTokenizerBase, folder: Path, **kwargs: Any) -> None:
        written.append({p.name for p in Path(folder).iterdir()})
        raise error

    monkeypatch.setattr(PreTrainedTokenizerBase, "save_pretrained", save_pretrained)
    return written


def test_an_interrupted_conversion_leaves_nothing_behind(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        written = half_way(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            folder_of(str(file), "target", silent)
    assert {"config.json", "model.safetensors"} <= written[0]
    assert kept(cache) == []
    told: list[str] = []
    folder = folder_of(str(file), "target", told.append)
    assert len(told) == 1, "the next try converts anew"
    assert (Path(folder) / "tokenizer.json").is_file()


def test_another_process_may_be_faster(
    file: Path, cache: Path, converted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = conversion._convert

    def slow(file: GgufFile, folder: Path, exact: bool) -> None:
        monkeypatch.setattr(conversion, "_convert", ours)
        folder_of(str(file.paths[0]), "target", silent)  # the other one, from beginning to end
        ours(file, folder, exact)

    monkeypatch.setattr(conversion, "_convert", slow)
    folder = folder_of(str(file), "target", silent)
    assert converted == ["model.gguf"] * 2
    assert kept(cache) == [Path(folder).name]


# ------------------------------------------------------------------------------------------- the cache
def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/someone"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SPECDEC_CACHE")
    assert cache_folder() == Path("/xdg/specdec")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/someone/.cache/specdec")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path("/home/someone/Library/Caches/specdec")


def test_a_cache_that_cannot_be_written_falls_back_to_a_temporary_folder(
    file: Path, converted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where the folder should be: nobody, not even root, can write there."""
    (file.parent / "taken").write_text("", encoding="utf-8")
    monkeypatch.setenv("SPECDEC_CACHE", str(file.parent / "taken" / "cache"))
    told: list[str] = []
    folder = Path(folder_of(str(file), "target", told.append))
    assert (folder / "config.json").is_file()
    assert folder.is_relative_to(tempfile.gettempdir())
    (note,) = (line for line in told if line.startswith("note: "))
    assert note.startswith(f"note: the cache folder {file.parent}/taken/cache cannot be written (Not a directory)")
    assert note.endswith("set SPECDEC_CACHE to another")
    assert folder_of(str(file), "draft", silent) == str(folder)
    assert converted == ["model.gguf"], "once in a process"


def test_a_cache_that_can_only_be_read_serves_what_it_holds(
    file: Path, cache: Path, converted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder_of(str(file), "target", silent)
    shutil.rmtree(cache / "gguf" / "hashes")
    (cache / "gguf" / "hashes").write_text("", encoding="utf-8")  # no hash can be remembered
    assert folder_of(str(file), "target", silent) == first
    assert converted == ["model.gguf"]


# ---------------------------------------------------------------------------------- what cannot be read
def line_of(source: Path, exit_code: int = 1, error: type[SpecdecError] = SpecdecError) -> str:
    with pytest.raises(error) as caught:
        folder_of(str(source), "draft", silent)
    return tiny.one_line(caught.value, exit_code)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04 a zip file", b"GGML" * 10, b"<!doctype html>"])
def test_a_file_that_is_no_gguf(content: bytes, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_bytes(content)
    message = line_of(path, 2, UsageError)
    assert message == f"--draft {path} is not a GGUF file (its first bytes are wrong): download it again"
    assert kept(cache) == []


# In the version, the counts, a key, a list of strings, the table of tensors, a tensor, and the last one.
@pytest.mark.parametrize("keep", [5, 20, 30, 1500, 5000, 30_000, -8])
def test_a_truncated_file(keep: int, file: Path, cache: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    assert file.stat().st_size < len(content)
    message = line_of(file)
    assert message.startswith("--draft model.gguf cannot be read (")
    assert message.endswith("): download it again, or use the model's safetensors")
    assert kept(cache) == []


def test_an_architecture_that_transformers_does_not_read(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "future.gguf"
    writer = gguf.GGUFWriter(path, "frobnicator")
    writer.add_block_count(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(MERGES)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    message = line_of(path)
    assert message.startswith("--draft future.gguf is of the architecture 'frobnicator', and GGUF files are read of ")
    assert "download it again" not in message
    assert kept(cache) == []


def test_without_the_gguf_package(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers raises where it is missing."""

    def convert(file: GgufFile, folder: Path, exact: bool) -> None:
        raise ImportError("Please install torch and gguf>=0.10.0 to load a GGUF checkpoint in PyTorch.")

    monkeypatch.setattr(conversion, "_convert", convert)
    message = line_of(file)
    assert "model.gguf" in message
    assert "pip install 'specdec-cli[gguf]'" in message
    assert kept(cache) == []


def test_a_cache_that_cannot_be_made(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands where the cache's folder should be, and nothing temporary can be made either."""
    (tmp_path / "in the way").touch()
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "in the way" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "in the way"))
    conversion._temporary_cache.cache_clear()
    message = line_of(file)
    assert "SPECDEC_CACHE" in message
    assert "download it again" not in message


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["from Python", "from safetensors"],
)
def test_a_full_disk(error: Exception, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half_way(monkeypatch, error)
    message = line_of(file)
    assert "no space left in" in message
    assert "SPECDEC_CACHE" in message
    assert "download it again" not in message
    assert kept(cache) == []


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")],
    ids=["Python", "torch"],
)
def test_too_little_memory_to_convert(
    error: Exception, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_way(monkeypatch, error)
    message = line_of(file, 4, OutOfMemoryError)
    assert "--draft" in message
    assert "model.gguf" in message
    assert kept(cache) == []


# --------------------------------------------------------------------------------------------- folders
def test_a_folder_with_one_file(file: Path, converted: list[str]) -> None:
    expected = folder_of(str(file), "target", silent)
    folder = file.parent / "folder"
    folder.mkdir()
    file.rename(folder / "model.gguf")
    (folder / "README.md").touch()
    assert folder_of(str(folder), "target", silent) == expected


def test_a_folder_with_two_files_asks_which(file: Path, converted: list[str]) -> None:
    folder = file.parent / "folder"
    folder.mkdir()
    for name in ("a.gguf", "b.gguf"):
        (folder / name).write_bytes(file.read_bytes())
    message = line_of(folder, 2, UsageError)
    assert message == f"--draft {folder} is a folder with 2 .gguf files: name one of them"
    assert converted == []


def test_a_folder_with_a_config_is_taken_before_its_gguf(file: Path, converted: list[str]) -> None:
    folder = tiny.save(file.parent / "folder")
    file.rename(folder / "model.gguf")
    assert folder_of(str(folder), "target", silent) == str(folder)
    assert converted == []


# --------------------------------------------------------------------------------------------- SmolLM2
@pytest.fixture(scope="module")
def smollm2_loaded(smollm2_folder: Path) -> Checkpoint:
    """SmolLM2-135M from its converted folder."""
    return tiny.load(smollm2_folder, dtype="bfloat16", fuse=False)


def test_smollm2_loads_from_its_converted_folder(smollm2_loaded: Checkpoint) -> None:
    assert smollm2_loaded.model.config.model_type == "llama"
    assert smollm2_loaded.num_rows == 49_152
    assert sum(p.numel() for p in smollm2_loaded.model.parameters()) == pytest.approx(135e6, rel=0.01)
    assert smollm2_loaded.end_ids == {0, 2}  # <|endoftext|>, <|im_end|>
    tokenizer = smollm2_loaded.tokenizer
    assert tokenizer.eos_token == "<|im_end|>"
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_smollm2_and_the_draft_of_its_layers_speak_the_same_ids(smollm2: Path, smollm2_loaded: Checkpoint) -> None:
    draft = AutoTokenizer.from_pretrained(smollm2 / "first-4-layers")
    maps = [id_to_token(tokenizer, 49_152) for tokenizer in (smollm2_loaded.tokenizer, draft)]
    assert len(maps[0]) == 49_152
    comparison = compare_vocabularies(*maps)
    assert comparison.shared == comparison.vocab_size == 49_152
    assert comparison.differing == comparison.target_only == comparison.draft_only == ()
