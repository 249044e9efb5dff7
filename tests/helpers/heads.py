"""The cases of tests/data/heads: tiny heads in published layouts, with logits that other people's code gave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from running import ROOT
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig

from specdec_cli.runtime.checkpoints.locate import locate
from specdec_cli.runtime.heads.kinds import Head, detect
from specdec_cli.runtime.heads.parts import TargetParts
from specdec_cli.settings import ModelSettings

CASES = ROOT / "tests" / "data" / "heads"


@dataclass(frozen=True)
class Case:
    """One of them.

    Attributes:
        folder: that holds head/ and target/.
        inputs: token ids, see its expected.json.
        expected: tensors.
        says: all of expected.json.
    """

    folder: Path
    inputs: Mapping[str, Any]
    expected: Mapping[str, Tensor]
    says: Mapping[str, Any]

    @property
    def head(self) -> Head:
        return head_in(self.folder / "head")

    def parts(self) -> TargetParts:
        """What the head takes of the target, from files alone."""
        (file,) = (self.folder / "target").glob("*.safetensors")
        tensors = load_file(file)
        config = AutoConfig.from_pretrained(self.folder / "target")
        table = tensors["model.embed_tokens.weight"]
        output = tensors.get("lm_head.weight", table)
        linear = nn.Linear(output.shape[1], output.shape[0], bias=False)
        linear.weight = nn.Parameter(output)
        embed = nn.Embedding.from_pretrained(table)
        return TargetParts(embed, linear, config, torch.device("cpu"), torch.float32, config.vocab_size)


def head_in(folder: Path) -> Head:
    """The head that a folder holds."""
    head = detect(locate(ModelSettings(str(folder)), "draft"))
    assert head is not None
    return head


def case(name: str) -> Case:
    """One of them, by its folder's name."""
    says = json.loads((CASES / name / "expected.json").read_text())
    return Case(CASES / name, says["inputs"], load_file(CASES / name / "expected.safetensors"), says)


def names(*kinds: str) -> list[str]:
    """Cases of these kinds."""
    return [path.parent.name for path in sorted(CASES.glob("*/expected.json")) if case_kind(path) in kinds]


def case_kind(path: Path) -> str:
    return str(json.loads(path.read_text())["kind"])
