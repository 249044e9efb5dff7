"""`specdec show` and `specdec compare`: what was saved is shown as it was, and set side by side, without measuring."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from running import Specdec

from specdec_cli.__main__ import main
from specdec_cli.commands import bench
from specdec_cli.measurement import plausibility, statistics
from specdec_cli.reports.export import to_json

FEW = ("-n", "8", "--seed", "1", "-q")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what every command saves, with the embedded pair; `screen-NAME.txt` is what was shown of it."""
    home = tmp_path_factory.mktemp("saved")
    document_of = bench.document_of

    with pytest.MonkeyPatch.context() as patched:
        for least in ("LEAST_ROUND", "LEAST_OF_FEW"):  # as tests/conftest.py has it for each test
            patched.setattr(plausibility, least, 0.0)
        for most in ("WIDEST_INTERVAL", "MOST_CONTENTION", "UNSTEADY"):
            patched.setattr(plausibility, most, float("inf"))
        for name, words in {
            "bench": ("bench", "--limit", "2"),
            "sweep-k": ("sweep-k", "--k", "1-2", "--limit", "3", "--temperature", "0", "--temperature", "1"),
        }.items():

            def keep(*arguments: Any, name: str = name) -> dict[str, Any]:
                made = document_of(*arguments)
                (home / f"{name}.json").write_text(to_json(made, indent=2))
                return made

            patched.setattr(bench, "document_of", keep)
            runs = ("--resume", str(home / f"{name}.jsonl"))
            assert main([*words, *FEW, *runs, "-o", str(home / f"screen-{name}.txt")]) == 0
    predict = ("predict", "--alpha", "0.8", "--cost", "0.1", "--k", "1-4", "--simulate", "50")
    for kind, file in (("table", "screen-predict.txt"), ("json", "predict.json"), ("jsonl", "predict.jsonl")):
        assert main([*predict, "--format", kind, "-o", str(home / file)]) == 0
    assert main(["pair-check", "-q", "--format", "json", "-o", str(home / "pair-check.json")]) == 0
    (home / "p.txt").write_text("def f(x):\nclass A:\n")
    files = ("--trace", str(home / "trace.jsonl"), "-o", str(home / "generate.json"))
    assert main(["generate", "--prompts", str(home / "p.txt"), *FEW, *files, "--format", "json"]) == 0
    assert main(["compare", str(home / "bench.json"), str(home / "sweep-k.json"), "--format", "json", "-o",
                 str(home / "compare.json")]) == 0  # fmt: skip
    return home


def shown(specdec: Specdec, *words: str | Path) -> str:
    code, out, err = specdec(*words)
    assert (code, err) == (0, ""), err
    return out


def refused(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert (code, out) == (2, ""), err
    (line,) = err.splitlines()
    return line.removeprefix("specdec: ")


@pytest.mark.parametrize("name", ["bench", "sweep-k", "predict"])
def test_the_screen_is_the_commands_own(specdec: Specdec, saved: Path, name: str) -> None:
    assert shown(specdec, "show", saved / f"{name}.json") == (saved / f"screen-{name}.txt").read_text()


def before_warnings(screen: str) -> list[str]:
    """Its lines, without the blanks that a wider row elsewhere makes."""
    return [line.rstrip() for line in screen.partition("Warning:")[0].splitlines()]


@pytest.mark.parametrize("name", ["bench", "sweep-k"])
def test_runs_alone_are_as_good(specdec: Specdec, saved: Path, name: str) -> None:
    """All but the memory, and the warnings that rest on more than runs; also where the command was killed."""
    screen = before_warnings((saved / f"screen-{name}.txt").read_text())
    lines = (saved / f"{name}.jsonl").read_text().splitlines(keepends=True)
    killed = saved / f"{name}-killed.jsonl"
    killed.write_text("".join(line for line in lines if json.loads(line)["kind"] != "result") + '{"kind": "ru')
    for path in (saved / f"{name}.jsonl", killed):
        again = before_warnings(shown(specdec, "show", path))
        assert len(again) > 6
        assert [line for line in again if line not in screen] == []


def test_a_block_that_is_not_whole_is_left_out(specdec: Specdec, saved: Path) -> None:
    lines = (saved / "bench.jsonl").read_text().splitlines(keepends=True)
    runs = [line for line in lines if json.loads(line)["kind"] == "run"]
    part = saved / "part.jsonl"
    part.write_text("".join([lines[0], *runs[:3]]))
    assert "1 answer, 8 tokens" in shown(specdec, "show", part)
    part.write_text("".join([lines[0], runs[0]]))
    assert "holds no block that was measured to its end" in refused(specdec("show", part))


def test_predictions_of_lines_are_the_same(specdec: Specdec, saved: Path) -> None:
    assert shown(specdec, "show", saved / "predict.jsonl") == (saved / "screen-predict.txt").read_text()


def test_checks_are_shown(specdec: Specdec, saved: Path) -> None:
    out = shown(specdec, "show", saved / "pair-check.json")
    assert "demo:target" in out
    assert "compatible" in out


def test_answers_are_shown_with_their_figures(specdec: Specdec, saved: Path) -> None:
    records = json.loads((saved / "generate.json").read_text())
    out = shown(specdec, "show", saved / "generate.json")
    lines = saved / "lines.jsonl"
    lines.write_text("".join(to_json(record) + "\n" for record in records))
    assert shown(specdec, "show", lines) == out
    for record in records:
        assert record["text"].strip() in out
        assert f"{record['accepted']} of {record['drafted']} drafted tokens accepted" in out


def test_a_trace_adds_up_to_the_answers(specdec: Specdec, saved: Path) -> None:
    out = shown(specdec, "show", saved / "trace.jsonl")
    rows = [line.split() for line in out.splitlines()]
    for record in json.loads((saved / "generate.json").read_text()):
        (row,) = [row for row in rows if row[:2] == [str(record["prompt"]), "1"] and len(row) > 4]
        counts = [record[key] for key in ("new_tokens", "rounds")]
        alpha = f"{record['alpha']:.2f}"
        assert row[2:5] == [*map(str, counts), f"{record['tokens_per_round']:.2f}"]
        assert row[5:8] == [str(record["drafted"]), str(record["accepted"]), alpha]
    assert "accepted a round:" in out


@pytest.mark.parametrize("name", ["bench.json", "sweep-k.jsonl", "predict.json"])
def test_a_plot_is_drawn(specdec: Specdec, saved: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    code, out, err = specdec("show", saved / name, "--plot", tmp_path / "plot.svg", "-o", tmp_path / "screen.txt")
    assert (code, out, err.split()) == (0, "", ["plot:", str(tmp_path / "plot.svg")])
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
    assert (tmp_path / "screen.txt").stat().st_size > 100


@pytest.mark.parametrize("name", ["trace.jsonl", "generate.json", "pair-check.json", "compare.json"])
def test_what_has_no_k_has_no_plot(specdec: Specdec, saved: Path, tmp_path: Path, name: str) -> None:
    assert "--plot is for results of" in refused(specdec("show", saved / name, "--plot", tmp_path / "plot.svg"))


BAD = {
    "missing.json": (None, "cannot be read: No such file or directory"),
    "empty.json": ("", "is empty"),
    "text.json": ("hello\nworld\n", "line 1 is not JSON"),
    "one-line.json": ("hello", "is not JSON"),
    "list.json": ("[1, 2]", "is no result of specdec"),
    "none.json": ("[]", "is no result of specdec"),
    "other.json": ('{"a": 1}', "is no result of specdec"),
    "presets.json": ('[{"name": "demo"}]', "is no result of specdec"),
    "later.json": (
        '{"schema": 2, "specdec_version": "9.9", "settings": {}, "results": [], "recommendation": []}',
        "has format 2 (of specdec 9.9)",
    ),
    "damaged.json": (
        '{"schema": 1, "settings": {}, "results": [], "recommendation": []}',
        "is a result of bench or sweep-k, but not a whole one",
    ),
    "no-session.jsonl": ('{"kind": "run"}\n{"kind": "run"}\n', "does not begin with a session"),
    "mixed.jsonl": (
        '{"kind": "run"}\n{"round": 1, "draft_token_ids": [], "num_accepted": 0}\n',
        "holds runs of bench or sweep-k, line by line and a trace of generate",
    ),
    "bytes.json": (b"\xff\xfe", "byte 0 is not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("command", ["show", "compare"])
def test_what_is_no_result_is_refused(specdec: Specdec, saved: Path, tmp_path: Path, name: str, command: str) -> None:
    content, told = BAD[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refused(specdec("show", path) if command == "show" else specdec("compare", saved / "bench.json", path))
    if command == "show" or name != "mixed.jsonl":
        assert told in message
    assert str(path) in message


@pytest.mark.parametrize("value", [None, "x", [1]])
@pytest.mark.parametrize("key", ["speedup", "cost", "samples", "acceptance", "speculative_tokens_per_s"])
def test_a_result_that_was_edited_is_told(
    specdec: Specdec, saved: Path, tmp_path: Path, key: str, value: object
) -> None:
    """Or shown: a cost of null is what a result without drafts has. Never a traceback, and nothing half shown."""
    document = json.loads((saved / "bench.json").read_text())
    for result in document["results"]:
        result[key] = value
    (tmp_path / "b.json").write_text(json.dumps(document))
    for command in (("show",), ("compare", saved / "bench.json")):
        code, out, err = specdec(*command, tmp_path / "b.json")
        assert code in (0, 2)
        if code:
            assert out == ""
            assert "but not a whole one" in err
            assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["predict.json", "pair-check.json", "trace.jsonl", "generate.json", "compare.json"])
def test_other_kinds_are_not_compared(specdec: Specdec, saved: Path, name: str) -> None:
    message = refused(specdec("compare", saved / "bench.json", saved / name))
    assert message.startswith(f"{saved / name} is a")
    assert message.endswith("name a result of bench or sweep-k")


def test_a_result_beside_itself_is_the_same(specdec: Specdec, saved: Path) -> None:
    path = saved / "sweep-k.json"
    out = shown(specdec, "compare", path, path)
    assert "Machine, versions and settings are the same." in out
    last = out.splitlines()[-1]
    assert "no difference that could be told from none at k 1, 2" in last.lower()
    found = json.loads(shown(specdec, "compare", path, path, "--format", "json"))
    assert (found["differences"], found["only_in_a"], found["only_in_b"], found["paired"]) == ([], [], [], True)
    assert {(r["a"]["k"], r["a"]["temperature"]) for r in found["rows"]} == {(1, 0), (2, 0), (1, 1), (2, 1)}
    for row in found["rows"]:
        for figure in ("speedup", "tokens_per_s", "plain_tokens_per_s"):
            assert row[figure]["ratio"] == pytest.approx(1)
            assert row[figure]["ratio_ci"] == pytest.approx([1, 1])


def faster(document: dict[str, Any], times: float) -> dict[str, Any]:
    """The same with speculation so much faster."""
    made = deepcopy(document)
    for result in made["results"]:
        result["speedup"] *= times
        result["speculative_tokens_per_s"] *= times
        for sample in result["samples"]:
            for key in ("draft_s", "verify_s", "other_s"):
                sample[key] /= times
    return made


def test_ratios_are_those_of_the_answers(specdec: Specdec, saved: Path, tmp_path: Path) -> None:
    one = json.loads((saved / "bench.json").read_text())
    other = faster(one, 2)
    other["settings"]["max_new_tokens"] = 9
    other["environment"]["threads"] += 1
    (tmp_path / "b.json").write_text(json.dumps(other))
    found = json.loads(shown(specdec, "compare", saved / "bench.json", tmp_path / "b.json", "--format", "json"))
    (row,) = found["rows"]
    assert row["speedup"]["ratio"] == row["tokens_per_s"]["ratio"] == pytest.approx(2)
    assert row["plain_tokens_per_s"]["ratio"] == pytest.approx(1)
    assert {d["key"] for d in found["differences"]} == {"settings.max_new_tokens", "environment.threads"}
    out = shown(specdec, "compare", saved / "bench.json", tmp_path / "b.json")
    assert "B is faster at K 4: 2.00 of A's tokens a second" in out.splitlines()[-1]
    back = shown(specdec, "compare", tmp_path / "b.json", saved / "bench.json")
    assert "B is slower at K 4: 0.50 of A's tokens a second" in back.splitlines()[-1]


def test_other_prompts_are_compared_by_their_means(specdec: Specdec, saved: Path, tmp_path: Path) -> None:
    one = json.loads((saved / "bench.json").read_text())
    other = faster(one, 3)
    other["settings"] |= {"prompts_sha256": "another", "prompts": "p.txt"}
    (tmp_path / "b.json").write_text(json.dumps(other))
    found = json.loads(shown(specdec, "compare", saved / "bench.json", tmp_path / "b.json", "--format", "json"))
    (row,) = found["rows"]
    assert found["paired"] is False
    assert row["tokens_per_s"]["ratio"] == pytest.approx(3)
    low, high = row["tokens_per_s"]["ratio_ci"]
    assert low <= 3 <= high
    assert [d["key"] for d in found["differences"]] == ["settings.prompts"]


def test_points_of_one_alone_are_named(specdec: Specdec, saved: Path, tmp_path: Path) -> None:
    sweep = json.loads((saved / "sweep-k.json").read_text())
    sweep["results"] = [r for r in sweep["results"] if r["k"] == 2]
    (tmp_path / "b.json").write_text(json.dumps(sweep))
    out = shown(specdec, "compare", saved / "sweep-k.json", tmp_path / "b.json")
    assert "only in A: demo:draft at K 1, temperature 0; demo:draft at K 1, temperature 1" in out


def test_another_draft_and_k_stand_beside_each_other(specdec: Specdec, saved: Path, tmp_path: Path) -> None:
    """As long as either has one of them alone."""
    other = json.loads((saved / "bench.json").read_text())
    for result in other["results"]:
        result |= {"draft": "./mine", "k": 7}
    (tmp_path / "b.json").write_text(json.dumps(other))
    out = shown(specdec, "compare", saved / "bench.json", tmp_path / "b.json")
    assert "draft demo:draft | ./mine, temperature 0" in out
    assert "4 | 7" in out


def test_a_comparison_is_shown_again(specdec: Specdec, saved: Path) -> None:
    again = shown(specdec, "compare", saved / "bench.json", saved / "sweep-k.json")
    assert shown(specdec, "show", saved / "compare.json") == again


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("words", [("compare", "bench.json", "sweep-k.json"), ("show", "trace.jsonl")], ids=" ".join)
def test_figures_fit(
    specdec: Specdec, saved: Path, monkeypatch: pytest.MonkeyPatch, width: int, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(saved)
    out = shown(specdec, *words)
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out


def test_means_that_were_measured_apart_have_an_interval_over_both() -> None:
    value, interval = statistics.ratio_of_means([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert value == pytest.approx(2)
    assert interval is not None
    assert interval[0] < 1 < 2 < interval[1]
    assert statistics.ratio_of_means([1.0], [2.0, 4.0])[1] is None
    for wrong in ([], [0.0], [-1.0]):
        with pytest.raises(ValueError, match="above 0"):
            statistics.ratio_of_means([1.0], wrong)


@pytest.mark.parametrize(
    "words", [("show", "bench.json"), ("show", "trace.jsonl"), ("compare", "bench.json", "bench.json")]
)
def test_no_model_is_near(saved: Path, words: tuple[str, ...]) -> None:
    """They start fast: neither torch nor transformers is imported."""
    code = "import sys; from specdec_cli.__main__ import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=saved, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "specdec_cli.reports.saved" in loaded
    assert loaded.isdisjoint({"torch", "transformers"})
