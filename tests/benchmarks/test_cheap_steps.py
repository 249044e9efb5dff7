"""benchmarks/cheap_steps.py: what its arms may be called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import cheap_steps


def test_an_arm_is_read_from_its_name() -> None:
    arm = cheap_steps.Arm.parse("w8a8+ngram+int4:32768/.5@8")
    assert (arm.target, arm.draft, arm.k, arm.stop, arm.lookup) == ("w8a8", ("int4", "32768"), 8, 0.5, True)
    plain = cheap_steps.Arm.parse("bf16")
    assert (plain.target, plain.draft) == ("none", None)
    assert cheap_steps.Arm.parse("keep+auto:auto@4").draft == ("auto", "auto")


@pytest.mark.parametrize("name", ["", "int3", "bf16+int4", "bf16+@3", "bf16+int4@0.5", "bf16+ngram@3", "int4@3"])
def test_what_is_no_arm_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="an arm is"):
        cheap_steps.Arm.parse(name)
