"""What is shipped: a wheel that works away from the checkout, shell completion, and a command that starts fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from specdec_cli.prompts import builtin_names

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("specdec_cli-*.whl")
    return made


def test_the_wheel_brings_presets_prompts_and_the_demo_pair(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "presets").glob("*.yaml"):
        assert f"specdec_cli/presets_data/{path.name}" in names
    for name in builtin_names():
        assert f"specdec_cli/prompt_sets/{name}.jsonl" in names
    for role in ("target", "draft"):
        for file in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"):
            assert f"specdec_cli/demo/{role}/{file}" in names
    demo = [i for i in zipfile.ZipFile(wheel).infolist() if i.filename.startswith("specdec_cli/demo/")]
    assert sum(i.file_size for i in demo) <= 25e6
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/", ".cache"))]


def test_the_wheel_generates_text_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "specdec_cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shipped = {p["name"] for p in json.loads(run("presets", "--format", "json"))}
    assert shipped == {path.stem for path in (ROOT / "presets").glob("*.yaml")}
    record = json.loads(run("generate", "def f(", "-n", "8", "--ignore-eos", "--format", "json"))
    assert record["new_tokens"] == 8
    ask = [sys.executable, "-c", "import specdec_cli; print(specdec_cli.__file__)"]
    done = subprocess.run(ask, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert str(site) in done.stdout  # the wheel's own code ran, not the checkout's


def test_the_demo_presets_sizes_are_the_checkpoints(demo: object) -> None:
    preset = yaml.safe_load((ROOT / "presets" / "demo.yaml").read_text(encoding="utf-8"))
    for role, checkpoint in (("target", "checkpoint"), ("draft", "draft_checkpoint")):
        model = getattr(demo, checkpoint).model
        billions = sum(p.numel() for p in model.parameters()) / 1e9
        assert preset[f"{role}_parameters"] == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("line", "offered"),
    [("specdec ge", {"generate"}), ("specdec generate -p qwen3-3", {"qwen3-32b"})],
)
def test_shell_completion(line: str, offered: set[str]) -> None:
    words = {"_SPECDEC_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "specdec_cli"], env={**os.environ, **words}, capture_output=True, text=True
    )
    assert set(done.stdout.split()) == offered, done.stderr
