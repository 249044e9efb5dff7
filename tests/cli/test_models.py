"""`specdec models`: what is in the hub's cache, in folders and in GGUF files, and which pairs that makes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from gguf import GGMLQuantizationType
from gguf_writer import END_ID, TOKENS, write_gguf
from huggingface_hub import constants
from running import Specdec

from specdec_cli.reports.models import models_text
from specdec_cli.runtime.checkpoints import inventory

LARGE = {"num_hidden_layers": 6}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache of this test alone; there is none until a test makes it."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


def listed(specdec: Specdec, *words: str | Path, code: int = 0) -> dict[str, Any]:
    found, out, err = specdec("models", *words, "--format", "json")
    assert found == code, err
    made: dict[str, Any] = json.loads(out)
    return made


def named(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in document["models"]}


def pairs(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(pair["target"], pair["draft"]) for pair in document["pairs"]}


def in_cache(hub: Path, repo: str, folder: Path, revision: str = "a" * 40, ref: str | None = "main") -> Path:
    """A folder's files as the hub's cache keeps them."""
    home = hub / f"models--{repo.replace('/', '--')}"
    snapshot = home / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir(exist_ok=True)
    (home / "blobs").mkdir(exist_ok=True)
    if ref:
        (home / "refs" / ref).write_text(revision)
    for file in folder.iterdir():
        blob = home / "blobs" / f"{revision[0]}-{file.name}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(blob)
    return snapshot


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    tiny.save(home / "large", tiny.model(**LARGE))
    tiny.save(home / "small", tiny.model(num_hidden_layers=1))
    swapped = tiny.ALPHABET[1], tiny.ALPHABET[0], *tiny.ALPHABET[2:]
    tiny.save(home / "other", tiny.model(num_hidden_layers=1), tiny.tokenizer_of({c: i for i, c in enumerate(swapped)}))
    return home


def test_the_embedded_pair_is_always_here(specdec: Specdec) -> None:
    code, out, err = specdec("models")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "specdec pair-check -t demo:target -d demo:draft"
    document = listed(specdec)
    assert [model["name"] for model in document["models"]] == ["demo:target", "demo:draft", "demo:head"]
    assert pairs(document) == {("demo:target", "demo:draft")}
    target = named(document)["demo:target"]
    assert (target["kind"], target["stored"], target["missing"]) == ("safetensors", "bfloat16", 0)
    assert target["bytes"] > 10**7


def test_folders_make_pairs_by_tokenizer_and_size(specdec: Specdec, folders: Path) -> None:
    document = listed(specdec, folders)
    found = named(document)
    large, small, other = (str(folders / name) for name in ("large", "small", "other"))
    assert {large, small, other} <= found.keys()
    assert found[large]["vocabulary"] == found[small]["vocabulary"] != found[other]["vocabulary"]
    assert found[large]["bytes"] == (folders / "large" / "model.safetensors").stat().st_size
    assert found[large]["tokens"] == tiny.VOCAB_SIZE
    assert pairs(document) == {("demo:target", "demo:draft"), (large, small)}
    code, out, _ = specdec("pair-check", "-t", large, "-d", other, "--format", "json")  # the surer answer
    assert (code, json.loads(out)["compatible"]) == (3, False)


def test_gguf_files_stand_beside_folders(specdec: Specdec, tmp_path: Path) -> None:
    more = {"vocab_size": len(TOKENS), "eos_token_id": END_ID, "bos_token_id": END_ID}
    write_gguf(tmp_path / "large.gguf", tiny.model("llama", **more, **LARGE), GGMLQuantizationType.F32)
    write_gguf(tmp_path / "small.gguf", tiny.model("llama", **more, num_hidden_layers=1), GGMLQuantizationType.Q4_0)
    (tmp_path / "mmproj-model.gguf").write_bytes(b"not a model of text")
    document = listed(specdec, tmp_path / "large.gguf", tmp_path / "small.gguf")
    large, small = str(tmp_path / "large.gguf"), str(tmp_path / "small.gguf")
    assert named(document)[large]["kind"] == "gguf"
    assert named(document)[large]["architecture"] == "llama"
    assert named(document)[large]["tokens"] == len(TOKENS)
    assert (large, small) in pairs(document)
    assert named(listed(specdec, tmp_path)).keys() == named(document).keys()


def test_the_hubs_cache_is_looked_into(specdec: Specdec, hub: Path, folders: Path) -> None:
    in_cache(hub, "org/large", folders / "large")
    in_cache(hub, "org/small", folders / "other", "b" * 40, None)
    in_cache(hub, "org/small", folders / "small")  # main
    only = in_cache(hub, "org/only-config", folders / "small")
    (only / "model.safetensors").unlink()
    document = listed(specdec)
    assert named(document).keys() == {"demo:target", "demo:draft", "demo:head", "org/large", "org/small"}
    assert ("org/large", "org/small") in pairs(document)


def test_gguf_files_of_the_hub_go_by_their_repository(specdec: Specdec, hub: Path, tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    write_gguf(tmp_path / "repo" / "m-q4.gguf", tiny.model("llama", vocab_size=len(TOKENS)), GGMLQuantizationType.Q4_0)
    in_cache(hub, "org/gguf", tmp_path / "repo")
    assert "org/gguf:m-q4.gguf" in named(listed(specdec))


def test_what_is_not_whole_is_no_part_of_a_pair(specdec: Specdec, folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "large", tmp_path / "large")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "large" / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copytree(folders / "small", tmp_path / "small")
    document = listed(specdec, tmp_path)
    assert named(document)[str(tmp_path / "large")]["missing"] == 1
    assert pairs(document) == {("demo:target", "demo:draft")}
    assert "safetensors float32, 1 file missing" in specdec("models", tmp_path)[1]


def test_tokens_in_a_form_of_their_own_are_not_told(specdec: Specdec, folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "small", tmp_path / "small")
    (tmp_path / "small" / "tokenizer.json").unlink()
    model = named(listed(specdec, tmp_path))[str(tmp_path / "small")]
    assert (model["vocabulary"], model["tokens"]) == (None, 0)


def test_what_cannot_be_read_is_told_after_the_rest(specdec: Specdec, folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "small", tmp_path / "small")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"")
    (tmp_path / "broken.gguf").write_bytes(b"GGML" + bytes(40))
    (tmp_path / "short.gguf").write_bytes(b"GGUF")
    code, out, err = specdec("models", tmp_path)
    assert code == 1
    assert str(tmp_path / "small") in out
    lines = err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"specdec: {tmp_path}") and "cannot be read" in line for line in lines)
    assert len(listed(specdec, tmp_path, code=1)["faults"]) == 3


@pytest.mark.parametrize("name", ["missing", "file.txt"])
def test_what_is_no_folder_is_refused(specdec: Specdec, tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    code, out, err = specdec("models", tmp_path / name)
    assert (code, out) == (2, "")
    assert err == f"specdec: {tmp_path / name} is no folder and no .gguf file: name a folder of models\n"


def test_names_stay_whole_at_any_width(specdec: Specdec, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = specdec("models", folders)[1]
    assert any(line.endswith(f"  {folders / 'large'}") for line in out.splitlines())
    assert out.splitlines()[-1].startswith("specdec pair-check -t ")


def test_letters_go_on_behind_z() -> None:
    models = [
        {"name": str(n), "kind": "gguf", "stored": "", "bytes": 1, "missing": 0, "vocabulary": n} for n in (1, 26, 27)
    ]
    lines = models_text({"models": models, "pairs": []}).plain.splitlines()
    assert [line.split()[3] for line in lines[1:4]] == ["A", "Z", "AA"]
    assert lines[-1].startswith("No two of these make a pair")


def test_no_model_is_loaded(folders: Path) -> None:
    code = "import sys; from specdec_cli.__main__ import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, "models", str(folders)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert "specdec_cli.runtime.checkpoints.inventory" in loaded
    assert loaded.isdisjoint({"torch", "transformers"})


def test_an_embedded_model_that_is_not_there_is_no_fault(
    specdec: Specdec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {**inventory.EMBEDDED, "demo:missing": tmp_path / "missing"}
    monkeypatch.setattr(inventory, "EMBEDDED", missing)
    document = listed(specdec)
    assert document["faults"] == []
    assert {"demo:target", "demo:draft"} <= named(document).keys()
    assert "demo:missing" not in named(document)
