"""`pair-check` of trained heads: what their files say against the target's configuration, and what --probe measures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import heads
import pytest
from running import Specdec
from safetensors.torch import load_file, save_file

CASE = heads.CASES / "eagle3_speculators_nbr"
TARGET = CASE / "target"


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A copy of a head, to be spoilt."""
    return Path(shutil.copytree(CASE / "head", tmp_path / "head"))


def change(head: Path, **values: Any) -> None:
    path = head / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def checked(specdec: Specdec, head: Path, *options: str, target: str | Path = TARGET) -> tuple[int, dict[str, Any]]:
    code, out, _ = specdec("pair-check", "-t", target, "-d", head, "--format", "json", *options)
    record: dict[str, Any] = json.loads(out)["pairs"][0]
    return code, record


def found(record: dict[str, Any], name: str) -> dict[str, Any]:
    (check,) = (check for check in record["checks"] if check["name"] == name)
    return dict(check)


def test_a_head_that_fits(specdec: Specdec, head: Path) -> None:
    code, record = checked(specdec, head)
    assert code == 0
    assert record["compatible"]
    assert found(record, "hidden size")["detail"] == "both 32"
    assert record["head"]["kind"] == "eagle3"
    assert record["head"]["layout"] == "speculators"
    assert len(record["head"]["states"]) == 3
    assert 0 < record["cost"]["c_by_bytes"] < 1
    assert record["head"]["weights_bytes"] > record["head"]["step_bytes"] > 0
    without = checked(specdec, head, target="demo:target")[1]["memory"]
    assert record["memory"]["fits"]
    assert without is not None


def test_a_head_of_another_target(specdec: Specdec, head: Path) -> None:
    code, record = checked(specdec, head, target="demo:target")
    assert code == 3
    assert record["compatible"] is False
    size = found(record, "hidden size")
    assert (size["status"], size["remedy"]) == ("fail", "choose a head that was trained for this target")
    assert "states of 32 numbers, and the target's have 128" in size["detail"]


@pytest.mark.parametrize(
    ("values", "name", "message"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 40]}, "tapped states", "reads states after layer 40"),
        (
            {"transformer_layer_config": {"vocab_size": 99}},
            "hidden size",
            "was made for a vocabulary of 99 tokens, and the target has 108",
        ),
    ],
    ids=["layer ids", "vocabulary"],
)
def test_what_the_target_does_not_have(
    specdec: Specdec, head: Path, values: dict[str, Any], name: str, message: str
) -> None:
    layers = json.loads((head / "config.json").read_text())["transformer_layer_config"]
    if "transformer_layer_config" in values:
        values = {"transformer_layer_config": layers | values["transformer_layer_config"]}
    change(head, **values)
    code, record = checked(specdec, head)
    assert code == 3
    assert message in found(record, name)["detail"]
    assert found(record, name)["remedy"] == "choose a head that was trained for this target"


@pytest.mark.parametrize("d2t", ["missing", "out of range"])
def test_a_vocabulary_that_nothing_maps(specdec: Specdec, head: Path, d2t: str) -> None:
    (file,) = head.glob("*.safetensors")
    tensors = load_file(file)
    if "d2t" not in tensors:
        pytest.fail("the case has a reduced vocabulary")
    tensors["d2t"] = tensors["d2t"] + 1000
    if d2t == "missing":
        del tensors["d2t"]
    save_file(tensors, file, metadata={"format": "pt"})
    code, record = checked(specdec, head)
    assert code == 3
    words = found(record, "draft vocabulary")
    assert words["status"] == "fail"
    assert ("no d2t" if d2t == "missing" else "its d2t makes ids from") in words["detail"]


@pytest.mark.parametrize(
    ("named", "status", "told"),
    [
        ("../target", "ok", "../target, as the target is called"),
        ("org/other-model", "warn", "its tokenizer was not compared (it is not on this machine)"),
        ("demo:target", "fail", "demo:target, and the target is"),
    ],
)
def test_the_target_that_it_was_trained_for(specdec: Specdec, head: Path, named: str, status: str, told: str) -> None:
    config = json.loads((head / "config.json").read_text())["speculators_config"]
    change(head, speculators_config=config | {"verifier": {"name_or_path": named}})
    check = found(checked(specdec, head)[1], "trained for")
    assert check["status"] == status
    assert told in check["detail"]


def test_numbers_of_layers_that_mean_two_things(specdec: Specdec, tmp_path: Path) -> None:
    sglang = heads.CASES / "eagle3_sglang"
    _, record = checked(specdec, sglang / "head", target=sglang / "target")
    check = found(record, "tapped states")
    assert check["status"] == "warn"
    assert "--probe" in check["remedy"]


def test_a_probe_measures_positions_and_other_readings(specdec: Specdec, head: Path) -> None:
    code, record = checked(specdec, head, "--probe")
    assert code == 0
    probe = record["probe"]
    for at in probe["acceptance"]:
        assert len(at["by_position"]) == 4
        assert at["tokens_per_round"] == pytest.approx(1 + sum(at["by_position"]))
        assert list(at["by_position"]) == sorted(at["by_position"], reverse=True)
    assert probe["cost"]["draft_step_s"] > 0
    assert [reading["name"] for reading in probe["readings"]] == [
        "",
        "layer ids as outputs of these layers",
        "the norm after the residual",
        "going on with the normed state",
    ]
    assert probe["readings"][2]["change"] == "norm_before_residual: false"
    assert probe["draft"]["head"] == "eagle3"


def test_the_screen_names_the_kind(specdec: Specdec, head: Path) -> None:
    code, out, _ = specdec("pair-check", "-t", TARGET, "-d", head, "--verbose")
    assert code == 0
    assert "EAGLE-3 head (speculators)" in " ".join(out.split())
