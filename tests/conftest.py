"""Fixtures. No test reaches a hub, whatever the caller's environment says."""

from __future__ import annotations

import os
from pathlib import Path

from running import ROOT, Specdec

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"
os.environ.pop("COLUMNS", None)  # also for what modules make for all of their tests

import pytest
import tiny
import torch
from transformers.utils import logging

from specdec_cli.__main__ import main
from specdec_cli.measurement import plausibility
from specdec_cli.runtime.checkpoints.gguf.converted import gguf_as_folder
from specdec_cli.runtime.pairs.pair import Pair

logging.disable_progress_bar()
# Models this small gain nothing by a second thread, and lose a lot by it where another process wants the core.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No user's presets and no colour settings of the terminal that runs the tests."""
    monkeypatch.setenv("SPECDEC_PRESETS", str(tmp_path_factory.getbasetemp() / "no-presets"))
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def demo() -> Pair:
    """The embedded pair in float32 on the CPU."""
    return tiny.pair("demo:target", "demo:draft")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder with SmolLM2-135M's .gguf and a draft of its first layers; `make models` puts them there."""
    home = Path(os.environ.get("SPECDEC_SMOLLM2", ROOT / ".cache" / "smollm2")).resolve()
    if not list(home.glob("*.gguf")) or not (home / "first-4-layers" / "config.json").exists():
        message = "SmolLM2-135M is not here: run `make models`"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    return home


@pytest.fixture(scope="session")
def smollm2_folder(smollm2: Path) -> Path:
    """SmolLM2-135M converted from its .gguf."""
    (gguf,) = smollm2.glob("*.gguf")
    return gguf_as_folder(gguf, "--target", print)


@pytest.fixture(scope="session")
def real_pair() -> tuple[str, str]:
    """Target and draft of the Qwen2.5-Coder pair; opt in with SPECDEC_REAL_PAIR=FOLDER of the two .gguf files."""
    home = os.environ.get("SPECDEC_REAL_PAIR")
    if not home:
        pytest.skip("the real pair is opt in: SPECDEC_REAL_PAIR=FOLDER of the two .gguf files")
    (target,) = Path(home).glob("*1.5b*.gguf")
    (draft,) = Path(home).glob("*0.5b*.gguf")
    return str(target), str(draft)


@pytest.fixture
def specdec(capfd: pytest.CaptureFixture[str]) -> Specdec:
    """Run the command line in this process: specdec("generate", "x") -> exit code, stdout, stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture(autouse=True)
def _any_time_is_a_measurement(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a moment, on a machine that runs other tests too, would be refused as no measurement.

    The tests of that refusal have a clock of their own.
    """
    if request.path.name in ("test_bench_cli.py", "test_plausibility.py") or request.path.parent.name == "measurement":
        return
    for least in ("LEAST_ROUND", "LEAST_OF_FEW"):
        monkeypatch.setattr(plausibility, least, 0.0)
    for most in ("WIDEST_INTERVAL", "MOST_CONTENTION", "UNSTEADY"):
        monkeypatch.setattr(plausibility, most, float("inf"))
