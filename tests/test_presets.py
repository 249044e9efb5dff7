"""Presets: those shipped are sound, the user's own come first, and what is wrong with a file is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from specdec_cli.cli.options.models import Dtype, LoadingOptions, SeveralDrafts, choose_models
from specdec_cli.errors import UsageError
from specdec_cli.presets import DEFAULT, Preset, load_preset, preset_files, read_preset, shipped_folder
from specdec_cli.settings import DTYPES

Specdec = Callable[..., tuple[int, str, str]]
SHIPPED = sorted(path.stem for path in shipped_folder().glob("*.yaml"))
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def write(folder: Path, content: str, name: str = "mine.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    """The message for a file that must be refused."""
    with pytest.raises(UsageError) as raised:
        read_preset(path)
    assert raised.value.exit_code == 2
    message = str(raised.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for the user's own presets."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("SPECDEC_PRESETS", str(folder))
    return folder


def test_there_are_presets_and_the_default_is_one() -> None:
    assert DEFAULT in SHIPPED
    assert len(SHIPPED) >= 10
    assert sorted(preset_files()) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_preset_is_sound(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name
    embedded = name == DEFAULT
    for model, role in ((preset.target, "target"), (preset.draft, "draft")):
        assert model == f"demo:{role}" if embedded else re.fullmatch(r"[\w.-]+/[\w.-]+", model)
    assert preset.target != preset.draft
    assert preset.target_parameters is not None
    if "head" in preset.notes or "block drafter" in preset.notes:  # whose sizes no card tells
        assert "untried here" in preset.notes
        assert preset.draft_parameters is None
    else:
        assert preset.draft_parameters is not None
    assert 0 < (preset.draft_parameters or 1e-3) < preset.target_parameters < 1000
    assert preset.license.strip() not in ("", "unknown")
    assert isinstance(preset.gated, bool)
    assert preset.gated == (preset.target.split("/")[0] in ("meta-llama", "google"))
    assert preset.stored_dtype in DTYPES
    assert preset.stored_dtype != "auto"
    assert preset.dtype == "auto", "which type is fast depends on the machine: not for us to say"
    assert 1 <= preset.k <= 16
    for line in (preset.description, preset.notes):
        assert line.strip() == line != ""
        assert "\n" not in line
        assert len(line) <= 100


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != DEFAULT])
def test_every_shipped_preset_says_where_its_figures_come_from(name: str) -> None:
    first = (shipped_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert "huggingface.co/" in first or "github.com/" in first


@pytest.mark.parametrize("name", SHIPPED)
def test_memory_is_parameters_times_bytes(name: str) -> None:
    data = yaml.safe_load((shipped_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    if "draft_parameters" not in data:
        assert load_preset(name).memory_gb is None
        return
    expected = (data["target_parameters"] + data["draft_parameters"]) * BYTES[data["stored_dtype"]]
    assert load_preset(name).memory_gb == pytest.approx(expected)


@pytest.mark.parametrize(
    ("target", "draft", "dtype", "stored", "expected"),
    [
        (7.0, 0.5, "auto", "float32", 30.0),
        (7.0, 0.5, "auto", "bfloat16", 15.0),
        (7.0, 0.5, "auto", "float16", 15.0),
        (7.0, 0.5, "auto", "auto", 15.0),
        (7.0, 0.5, "float32", "bfloat16", 30.0),
        (7.0, 0.5, "bfloat16", "float32", 15.0),
        (None, 0.5, "auto", "float32", None),
        (7.0, None, "float32", "auto", None),
    ],
)
def test_memory_of_what_is_known(
    target: float | None, draft: float | None, dtype: str, stored: str, expected: float | None
) -> None:
    """In the type that the preset asks for, else in the stored one."""
    sizes = {"target_parameters": target, "draft_parameters": draft}
    assert Preset("x", "a/b", "a/c", **sizes, dtype=dtype, stored_dtype=stored).memory_gb == expected


@pytest.mark.parametrize(
    ("in_preset", "dtype", "draft_dtype", "expected"),
    [
        ("float32", Dtype.auto, None, ("float32", "float32")),
        ("float32", Dtype.bfloat16, None, ("bfloat16", "bfloat16")),
        ("float32", Dtype.auto, Dtype.float16, ("float32", "float16")),
        ("float32", Dtype.auto, Dtype.auto, ("float32", "auto")),
        ("auto", Dtype.auto, None, ("auto", "auto")),
        ("auto", Dtype.float16, None, ("float16", "float16")),
        (None, Dtype.auto, None, ("auto", "auto")),
    ],
)
@pytest.mark.parametrize("drafts", [[], ["other/draft"]], ids=["own draft", "another draft"])
def test_a_presets_number_type_takes_the_place_of_auto(
    tmp_path: Path, in_preset: str | None, dtype: Dtype, draft_dtype: Dtype | None, expected: tuple[str, str],
    drafts: list[str],
) -> None:  # fmt: skip
    wish = f"dtype: {in_preset}\n" if in_preset else ""
    path = write(tmp_path, f"target: a/b\ndraft: a/c\nstored_dtype: float16\n{wish}")
    models = choose_models(
        SeveralDrafts(preset=str(path), draft=drafts), LoadingOptions(dtype=dtype, draft_dtype=draft_dtype)
    )
    (draft,) = models.drafts
    assert draft.model is not None
    assert (models.target.dtype, draft.model.dtype) == expected


def test_beside_a_target_no_presets_number_type_counts() -> None:
    models = choose_models(SeveralDrafts(target="a/b", draft=["a/c"]), LoadingOptions(dtype=Dtype.auto))
    assert models.target.dtype == "auto"


def test_only_target_and_draft_are_needed(tmp_path: Path) -> None:
    preset = read_preset(write(tmp_path, "target: a/b\ndraft: a/c\n"))
    assert preset == Preset("mine", "a/b", "a/c")
    assert (preset.k, preset.dtype, preset.stored_dtype) == (4, "auto", "auto")
    assert (preset.gated, preset.license) == (False, "unknown")


def test_a_whole_number_of_parameters_is_a_number(tmp_path: Path) -> None:
    preset = read_preset(write(tmp_path, "target: a/b\ndraft: a/c\ntarget_parameters: 7\ndraft_parameters: 0.5\n"))
    assert (preset.target_parameters, preset.draft_parameters) == (7.0, 0.5)


@pytest.mark.parametrize("key", ["tagret", "K", "1", "model"])
def test_an_unknown_key_is_named_beside_the_known(tmp_path: Path, key: str) -> None:
    message = refusal(write(tmp_path, f"target: a/b\ndraft: a/c\n{key}: x\n"))
    assert f"unknown key '{key}'" in message
    for known in ("target", "draft", "draft_revision", "gated", "k"):
        assert re.search(rf"\b{known}\b", message.split("known are:")[1])


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("target: 7", "'target' must be text, not 7"),
        ("draft: [a/c]", "'draft' must be text, not ['a/c']"),
        ("target_parameters: big", "'target_parameters' must be a number, not 'big'"),
        ("draft_parameters: true", "'draft_parameters' must be a number, not True"),
        ("gated: 1", "'gated' must be true or false, not 1"),
        ("gated: 'no'", "'gated' must be true or false, not 'no'"),
        ("k: 4.0", "'k' must be a whole number, not 4.0"),
        ("k: true", "'k' must be a whole number, not True"),
        ("k: auto", "'k' must be a whole number, not 'auto'"),
        ("revision: 1.0", "'revision' must be text, not 1.0"),
        ("notes:", "'notes' must be text, not None"),
        ("k: 0", "'k' must be 1 or above, not 0"),
        ("k: -3", "'k' must be 1 or above, not -3"),
        ("dtype: int8", "'dtype' must be one of auto, float32, bfloat16, float16, not 'int8'"),
        ("stored_dtype: q4", "'stored_dtype' must be one of auto, float32, bfloat16, float16, not 'q4'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(tmp_path: Path, line: str, wanted: str) -> None:
    others = {"target": "target: a/b", "draft": "draft: a/c"}
    others.pop(line.split(":")[0], None)
    assert wanted in refusal(write(tmp_path, "\n".join([*others.values(), line])))


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("draft: a/c\n", "lacks 'target'"),
        ("target: a/b\n", "lacks 'draft'"),
        ("target: ''\ndraft: a/c\n", "lacks 'target'"),
        ("{}\n", "lacks 'target'"),
        ("", "must be a mapping with at least 'target' and 'draft'"),
        ("- a/b\n- a/c\n", "must be a mapping with at least 'target' and 'draft'"),
        ("just text\n", "must be a mapping with at least 'target' and 'draft'"),
        ("target: [a/b\n", "is not valid YAML"),
        ("target: a: b\n", "is not valid YAML"),
        ("target: !!python/object/apply:os.getcwd []\ndraft: a/c\n", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_preset_is_refused(tmp_path: Path, content: str, wanted: str) -> None:
    assert wanted in refusal(write(tmp_path, content))


def test_a_file_that_is_not_utf8_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"target: a/b\ndraft: a/c\nnotes: \xe9t\xe9\n")
    assert "is not valid YAML" in refusal(path)
    assert "cannot be read" in refusal(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("value", "resolved"),
    [("./model", "presets/model"), ("../model", "model"), (".", "presets"), ("./a/../b.gguf", "presets/b.gguf")],
)
def test_a_path_that_starts_with_a_dot_is_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, resolved: str
) -> None:
    monkeypatch.chdir("/")
    preset = read_preset(write(tmp_path / "presets", f"target: {value}\ndraft: {value}\n"))
    expected = str((tmp_path / resolved).resolve())
    assert (preset.target, preset.draft) == (expected, expected)


@pytest.mark.parametrize("value", ["org/model", "demo:target", "/absolute/model", "model.gguf"])
def test_any_other_name_stays_as_it_is(tmp_path: Path, value: str) -> None:
    assert read_preset(write(tmp_path, f"target: {value}\ndraft: a/c\n")).target == value


def test_the_users_preset_comes_before_a_shipped_one(own_folder: Path) -> None:
    assert load_preset("qwen3-8b").target == "Qwen/Qwen3-8B"
    write(own_folder, "target: mine/big\ndraft: mine/small\n", "qwen3-8b.yaml")
    write(own_folder, "target: new/big\ndraft: new/small\n", "new.yml")
    assert load_preset("qwen3-8b").target == "mine/big"
    assert load_preset("new") == Preset("new", "new/big", "new/small")
    assert sorted(preset_files()) == sorted({*SHIPPED, "new"})


def test_the_users_folder_without_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEC_PRESETS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write(tmp_path / "specdec" / "presets", "target: xdg/big\ndraft: xdg/small\n")
    assert load_preset("mine").target == "xdg/big"


def test_a_file_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "target: a/b\ndraft: a/c\n", "demo.yaml")
    assert load_preset(str(path)).target == "a/b"
    monkeypatch.chdir(tmp_path)
    assert load_preset("demo.yaml").target == "a/b"
    assert load_preset("./demo.yaml").target == "a/b"
    assert load_preset("demo").target == "demo:target"


@pytest.mark.parametrize("name", ["missing.yaml", "missing.yml", "folder/missing"])
def test_a_path_without_a_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no such file") as raised:
        load_preset(name)
    assert f"--preset {name}" in str(raised.value)


def test_an_unknown_name_lists_the_known(own_folder: Path) -> None:
    write(own_folder, "target: a/b\ndraft: a/c\n")
    with pytest.raises(UsageError, match="--preset qwen9 is unknown; there are: ") as raised:
        load_preset("qwen9")
    assert str(raised.value).split("there are: ")[1].split(", ") == sorted([*SHIPPED, "mine"])


def as_shown(gigabytes: float) -> str:
    return f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{gigabytes * 1000:.0f} MB"


def test_the_table_keeps_to_80_columns_and_loses_nothing(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = specdec("presets")
    assert code == 0
    assert max(len(line) for line in (out + err).splitlines()) <= 80
    assert "\x1b" not in out + err
    assert "…" not in out
    # A row may be folded: put each column's pieces together again.
    lines = out.splitlines()
    head = next(line for line in lines if "target" in line)
    starts = [head.index(name) for name in ("preset", "target", "draft", "licence")]
    columns = ["".join(line[a:b].strip() for line in lines) for a, b in pairwise(starts)]
    for name in SHIPPED:
        preset = load_preset(name)
        for text, column in zip((name, preset.target, preset.draft), columns, strict=True):
            assert text in column


@pytest.mark.parametrize("name", SHIPPED)
def test_the_table_shows_each_pair_in_a_row(specdec: Specdec, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, out, err = specdec("presets")
    preset = load_preset(name)
    (row,) = (line for line in out.splitlines() if line.split()[:1] == [name])
    assert row.split()[1:3] == [preset.target, preset.draft]
    assert preset.license in row
    assert ("(gated)" in row) == preset.gated
    last = preset.license if preset.memory_gb is None else as_shown(preset.memory_gb)
    assert row.rstrip().removesuffix(" (gated)").endswith(f" {last}")
    assert "weights" in err


def test_the_json_has_every_field(specdec: Specdec, own_folder: Path) -> None:
    write(own_folder, "target: a/b\ndraft: a/c\n")
    code, out, err = specdec("presets", "--format", "json")
    assert (code, err) == (0, "")
    records = json.loads(out)
    assert [record["name"] for record in records] == sorted([*SHIPPED, "mine"])
    for record in records:
        preset = load_preset(record["name"])
        assert record == {**vars(preset), "memory_gb": preset.memory_gb}
    assert next(record for record in records if record["name"] == "mine")["memory_gb"] is None


@pytest.mark.parametrize("output_format", ["table", "json"])
def test_users_presets_that_are_wrong_are_told_after_the_good_ones(
    specdec: Specdec, own_folder: Path, monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    """A line for each on stderr, whole at any width, and an exit code that scripts notice."""
    monkeypatch.setenv("COLUMNS", "60")
    lacking = write(own_folder, "target: a/b\n", "lacking.yaml")
    unknown = write(own_folder, "target: a/b\ndraft: a/c\n'[bold]': 1\n", "unknown.yaml")
    write(own_folder, "target: a/b\ndraft: a/c\n", "zz.yaml")
    code, out, err = specdec("presets", "--format", output_format)
    assert code == 1
    assert all(name in out for name in (*SHIPPED, "zz"))
    assert "lacking" not in out
    told = [line for line in err.splitlines() if line.startswith("specdec: ")]
    assert told[0] == f"specdec: preset {lacking} lacks 'draft'"
    assert told[1].startswith(f"specdec: preset {unknown} has the unknown key '[bold]'; known are: target, draft, ")
    assert told[1].endswith(", notes")
    assert len(told) == 2
