"""`specdec bench` and `specdec sweep-k` as a user or a script meets them, on tiny checkpoints.

The clock ticks once each time it is read, so every part of a round takes one second whatever the machine does, and a
round of plain decoding as long as a speculative one: speedups are tokens a round, and the same each time.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from ascii_checkpoint import CHARACTERS, END_ID, TEMPLATE, ascii_model, ascii_tokenizer
from rich.console import Console
from running import instead
from torch import Tensor
from transformers import GenerationConfig

from specdec_cli.__main__ import _with_defaults
from specdec_cli.commands import bench as command
from specdec_cli.commands.bench import BenchRequest
from specdec_cli.decoding.seeds import answer_seed
from specdec_cli.measurement import distribution
from specdec_cli.measurement.arms import LoopArm
from specdec_cli.measurement.distribution import DistributionCheck, check_first_tokens
from specdec_cli.measurement.hardware import OtherProcesses
from specdec_cli.measurement.runs import Case, Run
from specdec_cli.reports import bench as reports
from specdec_cli.reports.console import PLAIN_WIDTH
from specdec_cli.reports.runs_file import RunsFile
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.pairs.pair import Pair, load_pairs
from specdec_cli.runtime.pairs.peers import transformers_generate
from specdec_cli.settings import ModelSettings, SamplingSettings

Specdec = Callable[..., tuple[int, str, str]]
CONTEXT = 256
TOKENS = 10
RESULT_KEYS = {
    "draft", "k", "category", "temperature", "baseline_tokens_per_s", "speculative_tokens_per_s", "speedup",
    "speedup_ci", "acceptance", "tokens_per_round", "tokens_per_round_formula", "cost", "predicted", "lossless",
    "samples",
}  # fmt: skip
KEYS_INSIDE = {
    "acceptance": {
        "alpha", "alpha_ci", "overlap", "accepted_over_drafted", "per_position_joint", "per_position_conditional",
    },
    "cost": {"target_step_s", "draft_step_s", "verify_s", "c", "v", "o"},
    "predicted": {"closed_form", "extended"},
    "lossless": {"checked", "identical", "first_difference"},
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- the models
@dataclass(frozen=True)
class Models:
    """Checkpoint folders; `other` is a worse draft, `padded` one with more rows than the target."""

    target: Path
    draft: Path
    other: Path
    chat: Path
    padded: Path

    def pair(self, *options: str | Path) -> tuple[str | Path, ...]:
        return "--target", self.target, "--draft", self.draft, "--device", "cpu", "--dtype", "float32", *options


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Models:
    home = tmp_path_factory.mktemp("models")
    padded = tiny.model("llama", END_ID + 9, num_hidden_layers=1)
    return Models(
        target=tiny.save(home / "target", ascii_model(), ascii_tokenizer(), END_ID),
        draft=tiny.save(home / "draft", ascii_model(0.04), ascii_tokenizer(), END_ID),
        other=tiny.save(home / "other", ascii_model(0.3), ascii_tokenizer(), END_ID),
        chat=tiny.save(home / "chat", ascii_model(), ascii_tokenizer(chat_template=TEMPLATE), END_ID),
        padded=tiny.save(home / "padded", padded, ascii_tokenizer(), END_ID),
    )


@pytest.fixture(scope="module")
def loaded() -> dict[object, list[Pair]]:
    """Every pair that a test of this module has loaded."""
    return {}


class Ticks:
    """A clock that goes on by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture(autouse=True)
def _cheap(loaded: dict[object, list[Pair]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are loaded once, nothing is copied to measure the memory, and no machine decides what comes out."""

    def load(target: ModelSettings, drafts: Sequence[ModelSettings | None], report: Report) -> list[Pair]:
        key = (target, *drafts)
        if key not in loaded:
            loaded[key] = load_pairs(target, drafts, report)
        return loaded[key]

    for module in (command, command.arms):
        monkeypatch.setattr(module, "load_pairs", load)
    for module in (command.arms, command.document):
        monkeypatch.setattr(module, "clock_for", lambda *devices: Ticks())
    monkeypatch.setattr(command.document, "copy_bandwidth", lambda device, clock: 1e9)
    monkeypatch.setattr(OtherProcesses, "_seconds", staticmethod(lambda: (1.0, 1.0, 1.0)))
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Call:
    arm: str
    k: int
    case: Case
    tokens: int


class Watch:
    """Every run of specdec's loop; may press Ctrl-C at one of them.

    Attributes:
        calls: of measured runs; `warm` of those that warm up.
        interrupt_at: a number of a measured run, from 1.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.warm: list[Call] = []
        self.interrupt_at: int | None = None

    def clear(self) -> None:
        self.calls, self.warm, self.interrupt_at = [], [], None


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    seen = Watch()
    real = LoopArm.run

    def run(self: LoopArm, case: Case, max_new_tokens: int) -> Run:
        (seen.calls if case.prompt else seen.warm).append(Call(self.name, self.k, case, max_new_tokens))
        if case.prompt and len(seen.calls) == seen.interrupt_at:
            raise KeyboardInterrupt
        return real(self, case, max_new_tokens)

    monkeypatch.setattr(LoopArm, "run", run)
    return seen


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("def f(x):\nclass A:\nimport os\n", encoding="utf-8")
    return path


@pytest.fixture
def options(checkpoints: Models, prompts: Path) -> tuple[str | Path, ...]:
    """What a short benchmark takes, without --seed and --k."""
    return checkpoints.pair("--prompts", prompts, "-n", str(TOKENS))


def document(specdec: Specdec, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    got, out, err = specdec(*arguments, "--format", "json", "--quiet")
    assert (got, err) == (code, ""), err
    made: dict[str, Any] = json.loads(out)
    return made


def lines_of(text: str) -> list[dict[str, Any]]:
    """JSONL; every line must be finished."""
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def runs_of(text: str) -> list[dict[str, Any]]:
    return [line for line in lines_of(text) if line["kind"] == "run"]


def refused(result: tuple[int, str, str], code: int = 2) -> str:
    """The message of a command that must fail before it has measured anything."""
    got, out, err = result
    assert (got, out, err.count("\n")) == (code, "", 1), result
    assert err.startswith("specdec: ")
    return err.removeprefix("specdec: ").rstrip()


# ------------------------------------------------------------------------------------------------ bench
def test_json_has_every_key_that_scripts_rely_on(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    made = document(specdec, "bench", *options, "--k", "3", "--seed", "7")
    assert {"schema", "specdec_version", "environment", "settings", "results"} <= made.keys()
    assert {"recommendation", "peers", "control", "memory", "bandwidth", "warnings"} <= made.keys()
    (result,) = made["results"]
    assert result.keys() >= RESULT_KEYS
    for key, wanted in KEYS_INSIDE.items():
        assert wanted <= result[key].keys(), key
    assert (result["k"], result["category"], result["temperature"]) == (3, "all", 0.0)
    assert (result["prompts"], result["new_tokens"]) == (3, 3 * TOKENS)
    assert len(result["samples"]) == 3
    assert all(sample["new_tokens"] == TOKENS for sample in result["samples"])
    plain, fast = (
        [s["new_tokens"] / (s["draft_s"] + s["verify_s"] + s["other_s"]) for s in samples]
        for samples in (made["baseline_samples"], result["samples"])
    )
    assert {(s["arm"], s["k"]) for s in made["baseline_samples"]} == {("none", 0)}
    assert math.prod(f / p for f, p in zip(fast, plain, strict=True)) ** (1 / 3) == pytest.approx(result["speedup"])
    assert made["settings"]["seed"] == 7
    assert made["settings"]["drafts"][0]["dtype"] == "float32"
    assert made["bandwidth"]["share"] == pytest.approx(made["bandwidth"]["step_bytes"] / 3 / 1e9)


def test_costs_are_what_the_clock_says(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    """A tick each for drafting, the pass and the rest, in every round of either kind."""
    (result,) = document(specdec, "bench", *options, "--k", "3")["results"]
    assert result["cost"] == {
        "target_step_s": 3.0, "draft_step_s": pytest.approx(1 / 3), "verify_s": 1.0, "other_s": 1.0,
        "c": pytest.approx(1 / 9), "v": 1.0, "o": pytest.approx(-1 / 3),
    }  # fmt: skip
    speedups = [TOKENS / sample["rounds"] for sample in result["samples"]]
    assert result["speedup"] == pytest.approx(math.prod(speedups) ** (1 / 3))
    assert result["baseline_tokens_per_s"] == pytest.approx(1 / 3)


def test_the_table_says_what_json_does(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    (result,) = document(specdec, "bench", *options, "--k", "3")["results"]
    code, out, err = specdec("bench", *options, "--k", "3")
    assert code == 0
    assert [line for line in err.splitlines() if not line.startswith("note: ")] == []  # no progress bar in a pipe
    assert f"speedup         {result['speedup']:.2f}x" in out
    assert f"acceptance      {result['acceptance']['alpha']:.2f} of " in out
    assert "closed form" in out
    answer = out.partition("\nAnswer\n")[2]
    assert f"At temperature 0 it pays: K 3 with {result['draft']} gives {result['speedup']:.2f}x" in " ".join(
        answer.split()
    )
    assert answer.splitlines()[-1].startswith("  specdec generate -t ")
    assert "Lossless: the same ids as plain decoding in all 3 answers." in out
    assert "Warning: alpha rests on" in out
    assert "\x1b" not in out


def test_one_answer_has_no_interval_and_none_is_announced(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    code, out, _ = specdec("bench", *options, "--limit", "1")
    assert code == 0
    assert re.search(r"^speedup +\d+\.\d\dx  by answer ", out, re.MULTILINE)


@pytest.mark.parametrize("columns", [None, "80", "60"])
def test_tables_keep_to_the_width(
    specdec: Specdec, options: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = specdec("bench", *options)
    assert code == 0
    # A path is never broken: it sticks out.
    lines = [line for line in out.splitlines() if not any(str(path) in line for path in options)]
    assert max(map(len, lines)) <= int(columns or PLAIN_WIDTH)
    assert "…" not in out


def test_quiet_says_nothing_on_stderr(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    code, out, err = specdec("bench", *options, "--quiet")
    assert (code, err) == (0, "")
    assert "speedup" in out


def test_csv_has_every_figure_and_no_samples(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    (result,) = document(specdec, "bench", *options)["results"]
    code, out, err = specdec("bench", *options, "--format", "csv", "--quiet")
    assert (code, err) == (0, "")
    (row,) = csv.DictReader(io.StringIO(out))
    assert float(row["speedup"]) == result["speedup"]
    assert float(row["acceptance.alpha"]) == result["acceptance"]["alpha"]
    assert float(row["cost.c"]) == result["cost"]["c"]
    assert row["lossless.identical"] == "true"
    assert [name for name in row if "samples" in name or "difference." in name] == []


def test_markdown_is_one_table(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    code, out, err = specdec("sweep-k", *options, "--k", "1,3", "--format", "markdown", "--quiet")
    assert (code, err) == (0, "")
    head, rule, *rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in out.splitlines()]
    assert head[:4] == ["draft", "K", "T", "plain tok/s"]
    assert all(set(cell) <= set("-:") for cell in rule)
    assert [row[1] for row in rows] == ["1", "3"]
    assert sum("*" in row[head.index("speedup")] for row in rows) == 1


@pytest.mark.parametrize("output_format", ["table", "json", "jsonl", "csv", "markdown"])
def test_output_takes_what_would_go_to_stdout(
    specdec: Specdec, options: tuple[str | Path, ...], tmp_path: Path, output_format: str
) -> None:
    chosen = ("bench", *options, "--limit", "1", "--seed", "7", "--format", output_format, "--quiet")
    _, shown, _ = specdec(*chosen)
    path = tmp_path / "report"
    assert specdec(*chosen, "--output", path) == (0, "", "")
    written = path.read_text(encoding="utf-8")
    if output_format == "json":  # peak memory is what it is
        one, other = json.loads(shown), json.loads(written)
        assert one.pop("memory").keys() == other.pop("memory").keys()
        assert one == other
    else:
        assert re.sub(r"peak [\d.]+ GB", "", written) == re.sub(r"peak [\d.]+ GB", "", shown)
    assert [p for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_jsonl_is_session_runs_and_results(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    code, out, _ = specdec("bench", *options, "--format", "jsonl", "--quiet")
    assert code == 0
    lines = lines_of(out)
    assert [line["kind"] for line in lines] == ["session", *["run"] * 6, "result"]
    assert lines[0]["settings"] == lines[-1]["settings"]
    assert {"environment", "schema", "specdec_version"} <= lines[0].keys() & lines[-1].keys()
    assert "samples" not in lines[-1]
    assert len(lines[1]["token_ids"]) == TOKENS


def test_jsonl_is_whole_at_every_moment(
    specdec: Specdec, options: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a process that is killed leaves what it has measured."""
    path, kinds = tmp_path / "runs.jsonl", []
    real = RunsFile.write

    def write(self: RunsFile, kind: str, record: dict[str, Any]) -> None:
        real(self, kind, record)
        kinds.append(lines_of(path.read_text(encoding="utf-8"))[-1]["kind"])

    monkeypatch.setattr(RunsFile, "write", write)
    assert specdec("bench", *options, "--format", "jsonl", "--output", path, "--quiet")[0] == 0
    assert kinds == ["session", *["run"] * 6, "result"]


def test_several_drafts_and_temperatures_stand_beside_one_baseline(
    specdec: Specdec, options: tuple[str | Path, ...], checkpoints: Models, watch: Watch
) -> None:
    more = ("--draft", checkpoints.other, "--temperature", "0", "--temperature", "0.8", "--limit", "2")
    made = document(specdec, "bench", *options, *more, "--k", "2")
    found = [(Path(r["draft"]).name, r["temperature"]) for r in made["results"]]
    assert found == [("draft", 0.0), ("other", 0.0), ("draft", 0.8), ("other", 0.8)]
    alphas = [r["acceptance"]["alpha"] for r in made["results"]]
    assert alphas[0] > alphas[1]
    blocks = [call for call in watch.calls if call.case.prompt][: 2 * 2 * 3]
    assert Counter(call.arm for call in blocks)["none"] == 4
    assert [point["temperature"] for point in made["recommendation"]] == [0.0, 0.8]


def test_both_sides_get_the_same_prompts_seeds_and_lengths(
    specdec: Specdec, options: tuple[str | Path, ...], watch: Watch
) -> None:
    document(specdec, "bench", *options, "--seed", "40", "--temperature", "1")
    for number, text in enumerate(["def f(x):", "class A:", "import os"], start=1):
        cases = {call.case for call in watch.calls if call.case.prompt == number}
        ids = tuple(CHARACTERS.index(c) for c in text)
        assert cases == {Case(number, 1, "", ids, answer_seed(40, number))}
    assert {call.tokens for call in watch.calls} == {TOKENS}
    assert len(watch.calls) == 3 * 2 + 3  # and the controls


@pytest.mark.parametrize("ignore", [True, False])
def test_end_tokens_are_ignored_unless_told_otherwise(
    specdec: Specdec, checkpoints: Models, prompts: Path, tmp_path: Path, ignore: bool
) -> None:
    ids = runs_of(specdec("bench", *checkpoints.pair("--prompts", prompts), "-n", "9", "--format", "jsonl")[1])
    ends = tmp_path / "ends"
    tiny.save(ends, ascii_model(), ascii_tokenizer(), [END_ID, ids[0]["token_ids"][3]])
    arguments = ("--target", ends, "--draft", checkpoints.draft, "--dtype", "float32", "--prompts", prompts, "-n", "9")
    flag = () if ignore else ("--no-ignore-eos",)
    made = runs_of(specdec("bench", *arguments, *flag, "--format", "jsonl", "--quiet")[1])
    lengths = [run["new_tokens"] for run in made if run["prompt"] == 1]
    assert lengths == [9, 9] if ignore else max(lengths) <= 4 and len(set(lengths)) == 1


def test_categories_get_results_and_a_table(specdec: Specdec, checkpoints: Models, tmp_path: Path) -> None:
    questions = tmp_path / "question.jsonl"
    records = [{"question_id": i, "category": c, "turns": [f"{c}?"]} for i, c in enumerate(["maths", "code", "code"])]
    questions.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    chosen = checkpoints.pair("--prompts", questions, "-n", "6")
    made = document(specdec, "bench", *chosen)
    assert [(r["category"], r["prompts"]) for r in made["results"]] == [("all", 3), ("code", 2), ("maths", 1)]
    _, out, _ = specdec("bench", *chosen)
    assert re.search(r"^ *code +2 ", out, re.MULTILINE)


def test_a_second_turn_follows_the_first_answer(
    specdec: Specdec, checkpoints: Models, tmp_path: Path, watch: Watch
) -> None:
    """Also after a resume, where the first answer is in the file."""
    questions = tmp_path / "question.jsonl"
    questions.write_text(json.dumps({"turns": ["first?", "second?"]}) + "\n", encoding="utf-8")
    arguments = ("--target", checkpoints.chat, "--draft", checkpoints.draft, "--dtype", "float32", "--seed", "1")
    file = tmp_path / "runs.jsonl"
    chosen = ("bench", *arguments, "--prompts", questions, "-n", "7", "--resume", file, "--quiet")
    assert specdec(*chosen)[0] == 0
    text = file.read_text(encoding="utf-8")
    answer = next(run["token_ids"] for run in runs_of(text) if run["arm"] == "none" and run["turn"] == 1)
    said = "".join(CHARACTERS[i] for i in answer if i != END_ID)
    whole = f"<user>first?<assistant>{said}<user>second?<assistant>"

    def second() -> set[str]:
        return {"".join(CHARACTERS[i] for i in c.case.prompt_ids) for c in watch.calls if c.case.turn == 2}

    assert second() == {whole}
    watch.clear()
    file.write_text("".join(text.splitlines(keepends=True)[:3]), encoding="utf-8")
    assert specdec(*chosen)[0] == 0
    assert second() == {whole}
    assert len(watch.calls) == 2 + 1  # the second turn, and the control


def test_the_embedded_pair_is_measured_on_its_own_prompts(specdec: Specdec) -> None:
    """No options but those that make it short; the figures are the pair's own business."""
    made = document(specdec, "bench", "--limit", "1", "-n", "6", "--dtype", "float32")
    assert made["settings"]["prompts"] == "code"
    (result,) = made["results"]
    assert result["draft"] == "demo:draft"
    assert result["lossless"]["identical"] is True
    assert [warning["kind"] for warning in made["warnings"]][:2] == ["few_answers", "few_tokens"]


# ------------------------------------------------------------------------------------------- losslessness
@pytest.mark.parametrize("output_format", ["table", "json"])
def test_a_difference_in_float32_fails_after_everything_was_shown(
    specdec: Specdec, options: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    real = TransformersModel.forward

    def wrong(self: TransformersModel, token_ids: Tensor, num_logits: int) -> Tensor:
        logits = real(self, token_ids, num_logits)
        return -logits if num_logits > 1 and self.length > 12 else logits

    monkeypatch.setattr(TransformersModel, "forward", wrong)
    code, out, err = specdec("bench", *options, "--quiet", "--format", output_format)
    assert code == 1
    assert err.count("\n") == 1
    assert "not lossless with --draft" in err
    assert "at K 4" in err
    if output_format == "json":
        lossless = json.loads(out)["results"][0]["lossless"]
        assert (lossless["identical"], lossless["unexplained"]) == (False, 3)
        assert lossless["first_difference"]["near_tie"] is False
    else:
        assert "NOT lossless: 3 answers differ from plain decoding's, first at prompt 1, token " in out


def test_the_distribution_of_first_tokens_is_checked_on_request(
    specdec: Specdec, options: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribution, "check_first_tokens", functools.partial(check_first_tokens, samples=60))
    chosen = ("--temperature", "0", "--temperature", "1", "--top-k", "6", "--check-distribution")
    greedy, sampled = document(specdec, "bench", *options, *chosen)["results"]
    assert greedy["lossless"]["identical"] is True
    assert "distribution" not in greedy["lossless"]
    assert (sampled["lossless"]["checked"], sampled["lossless"]["identical"]) == (True, None)
    assert sampled["lossless"]["distribution"]["samples"] == 60
    assert sampled["lossless"]["distribution"]["passed"] is True


def test_a_wrong_distribution_fails(
    specdec: Specdec, options: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribution, "check_first_tokens", lambda *a, **k: DistributionCheck(500, 1e-9, False))
    code, out, err = specdec("bench", *options, "--temperature", "1", "--check-distribution", "--quiet")
    assert code == 1
    assert "not lossless" in err
    assert "distributed NOT as the target's" in " ".join(out.split())


# ------------------------------------------------------------------------------------------ interruption
@pytest.mark.parametrize("output_format", ["table", "json", "jsonl", "csv"])
def test_an_interruption_shows_what_is_whole_and_exits_with_130(
    specdec: Specdec, options: tuple[str | Path, ...], watch: Watch, output_format: str
) -> None:
    """In the second run of the second block."""
    watch.interrupt_at = 4
    code, out, err = specdec("bench", *options, "--format", output_format, "--quiet")
    assert (code, err) == (130, "")
    if output_format == "json":
        made = json.loads(out)
        assert made["results"][0]["prompts"] == 1
        assert "interrupted" in [warning["kind"] for warning in made["warnings"]]
    elif output_format == "jsonl":
        assert [line["kind"] for line in lines_of(out)] == ["session", "run", "run", "result"]
    elif output_format == "csv":
        assert len(out.splitlines()) == 2
    else:
        assert "1 answer, 10 tokens" in out
        assert "Warning: not everything was measured; repeat, with --resume FILE to go on." in " ".join(out.split())


def test_an_interruption_before_the_first_block_is_one_line(
    specdec: Specdec, options: tuple[str | Path, ...], watch: Watch
) -> None:
    watch.interrupt_at = 2
    assert refused(specdec("bench", *options, "--quiet"), 130) == "interrupted before the first prompt was measured"


def test_an_interruption_while_loading_or_warming_up_is_one_line(
    specdec: Specdec, options: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "warm_up", pressed)
    assert refused(specdec("bench", *options, "--quiet"), 130) == "interrupted"
    monkeypatch.setattr(command, "load_pairs", pressed)
    assert refused(specdec("bench", *options, "--quiet"), 130) == "interrupted"


def test_an_interrupted_check_leaves_what_was_measured(
    specdec: Specdec, options: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(distribution, "check_first_tokens", pressed)
    made = document(specdec, "bench", *options, "--temperature", "1", "--check-distribution", code=130)
    assert made["results"][0]["prompts"] == 3
    assert "interrupted" in [warning["kind"] for warning in made["warnings"]]


# ----------------------------------------------------------------------------------------------- resuming
@dataclass(frozen=True)
class Kept:
    """A finished session's command, its file, and how many lines precede the results."""

    command: tuple[str | Path, ...]
    path: Path
    content: bytes

    @property
    def lines(self) -> list[bytes]:
        return self.content.splitlines(keepends=True)


@pytest.fixture(scope="module")
def finished() -> dict[str, bytes]:
    """The file of a session that is measured once for all tests."""
    return {}


@pytest.fixture
def kept(specdec: Specdec, checkpoints: Models, tmp_path: Path, finished: dict[str, bytes], watch: Watch) -> Kept:
    """Three blocks of three runs. The name of the prompts' file has a character that some take for a line end, and one
    of two bytes: both are in the settings.
    """
    path = tmp_path / "runs.jsonl"
    prompts = checkpoints.target.parent / "pröm\u2028pts.jsonl"
    chosen = ("sweep-k", *checkpoints.pair("--prompts", prompts, "-n", "6"), "--k", "1,2", "--resume", path, "--quiet")
    if not finished:
        prompts.write_text("".join(json.dumps({"prompt": p, "category": "é"}) + "\n" for p in "abc"), encoding="utf-8")
        assert specdec(*chosen)[0] == 0
        finished["session"] = path.read_bytes()
        watch.clear()
    path.write_bytes(finished["session"])
    return Kept(chosen, path, finished["session"])


def places(content: bytes) -> list[tuple[int, str, int]]:
    return [(run["prompt"], run["arm"], run["k"]) for run in runs_of(content.decode())]


@pytest.mark.parametrize(
    ("whole_lines", "torn"),
    [
        (1, ""),
        (1, "byte"),
        (2, ""),
        (3, "character"),
        (4, ""),
        (4, "byte"),
        (6, "line end"),
        (7, ""),
        (10, ""),
        (11, ""),
    ],
)
def test_a_cut_file_resumes_to_the_same_blocks(
    specdec: Specdec, kept: Kept, watch: Watch, whole_lines: int, torn: str
) -> None:
    """After any line, or inside one: at its first byte, inside a character of two bytes, before its line end."""
    lines = kept.lines
    following = lines[whole_lines]
    inside = {"": 0, "byte": 1, "character": following.find("é".encode()) + 1, "line end": len(following) - 1}[torn]
    kept.path.write_bytes(b"".join(lines[:whole_lines]) + following[:inside])
    code, _, err = specdec(*kept.command)
    assert (code, err) == (0, "")
    known = min(3, (whole_lines - 1) // 3)
    assert len(watch.calls) == 3 * (3 - known) + 3  # the controls always
    again = kept.path.read_bytes()
    assert set(places(again)) == set(places(kept.content))
    made = [
        {(r["prompt"], r["arm"], r["k"]): r["token_ids"] for r in runs_of(c.decode())} for c in (again, kept.content)
    ]
    assert made[0] == made[1]


def test_what_was_mended_stays_so(specdec: Specdec, kept: Kept, watch: Watch) -> None:
    """A line that lacked nothing but its end is measured again, and then there."""
    kept.path.write_bytes(b"".join(kept.lines[:4])[:-1])
    for expected in (3 * 3 + 3, 3):
        watch.clear()
        assert specdec(*kept.command)[0] == 0
        assert len(watch.calls) == expected


def test_results_stand_in_the_file_once_however_often_it_is_resumed(specdec: Specdec, kept: Kept, watch: Watch) -> None:
    """Behind all runs; also where an earlier session left its results between them."""
    results = [line for line in lines_of(kept.content.decode()) if line["kind"] == "result"]
    for before in (kept.content, b"".join([*kept.lines[:4], kept.lines[-1], *kept.lines[4:]])):
        kept.path.write_bytes(before)
        for _ in range(2):
            watch.clear()
            assert specdec(*kept.command)[0] == 0
            assert len(watch.calls) == 3  # the controls
            lines = lines_of(kept.path.read_text(encoding="utf-8"))
            assert [line["kind"] for line in lines][-len(results) :] == ["result"] * len(results)
            assert Counter(line["kind"] for line in lines)["result"] == len(results)


def test_a_resumed_session_reports_all_blocks_once(specdec: Specdec, kept: Kept) -> None:
    lines = kept.lines
    kept.path.write_bytes(b"".join([*lines[:6]]))
    made = document(specdec, *kept.command)
    assert [(r["k"], r["prompts"]) for r in made["results"]] == [(1, 3), (2, 3)]
    code, out, _ = specdec(*kept.command, "--format", "jsonl")
    assert code == 0
    assert Counter(places(out.encode())) == Counter(places(kept.content))


def test_the_seed_of_the_file_is_taken_where_none_is_given(specdec: Specdec, kept: Kept) -> None:
    """Or the same command twice would be another session."""
    seed = json.loads(kept.lines[0])["settings"]["seed"]
    assert document(specdec, *kept.command)["settings"]["seed"] == seed
    assert document(specdec, *kept.command, "--seed", str(seed))["settings"]["seed"] == seed


def test_other_limits_may_share_a_file(specdec: Specdec, kept: Kept, watch: Watch) -> None:
    watch.clear()
    made = document(specdec, *kept.command, "--limit", "2")
    assert [r["prompts"] for r in made["results"]] == [2, 2]
    assert len(watch.calls) == 2
    kept.path.unlink()
    assert specdec(*kept.command, "--limit", "1")[0] == 0
    watch.clear()
    assert [r["prompts"] for r in document(specdec, *kept.command)["results"]] == [3, 3]
    assert len(watch.calls) == 2 * 3 + 3


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (("-n", "7"), "max_new_tokens"),
        (("--k", "1,3"), "ks"),
        (("--temperature", "1"), "temperatures"),
        (("--seed", "3", "--repetition-penalty", "1.1"), "sampling, seed"),
        (("--draft", "OTHER"), "drafts"),
    ],
)
def test_another_session_is_refused_by_the_names_of_what_differs(
    specdec: Specdec, kept: Kept, checkpoints: Models, change: tuple[str, ...], names: str
) -> None:
    given = [str(checkpoints.other) if word == "OTHER" else word for word in change]
    words = [*kept.command, *given] if "--draft" in change else instead(kept.command, given)
    message = refused(specdec(*words))
    assert f"{kept.path} was measured with another {names}: repeat that command, or name a new file" in message
    assert kept.path.read_bytes() == kept.content


def test_another_machine_or_other_prompts_are_refused_too(specdec: Specdec, kept: Kept) -> None:
    """Runs of two machines make no ratio, nor do those of a set that has been edited meanwhile."""
    head, rest = kept.content.split(b"\n", 1)
    session = json.loads(head)
    for name, change in (
        ("cpu", {"environment": session["environment"] | {"cpu": "another"}}),
        ("prompts_sha256", {"settings": session["settings"] | {"prompts_sha256": "0"}}),
    ):
        kept.path.write_bytes(json.dumps(session | change).encode() + b"\n" + rest)
        assert f"was measured with another {name}" in refused(specdec(*kept.command))


SESSION = b'{"kind": "session", "settings": {}}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not JSON\n", "line 1 is not JSON: choose another file"),
        (b"no line end", "does not begin with a session"),
        (b'{"prompt": "a"}\n', "line 1 was not written by bench or sweep-k"),
        (b"[1]\n", "line 1 was not written by bench or sweep-k"),
        (b'{"kind": "run"}\n', "does not begin with a session"),
        (b'{"kind": "session"}\n', "does not begin with a session"),
        (SESSION + b"{\n" + SESSION, "line 2 is not JSON"),
        (b"\xff\xfe\n", "cannot be read"),
        (SESSION, "was written by another version of specdec: name a new file"),
    ],
)
def test_a_foreign_file_is_refused_and_left_alone(
    specdec: Specdec, options: tuple[str | Path, ...], tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "precious.txt"
    path.write_bytes(content)
    assert message in refused(specdec("bench", *options, "--resume", path, "--quiet"))
    assert path.read_bytes() == content


def test_a_file_of_another_version_is_refused(specdec: Specdec, kept: Kept) -> None:
    lines = kept.lines
    run = json.loads(lines[1]) | {"unheard_of": 1}
    kept.path.write_bytes(lines[0] + json.dumps(run).encode() + b"\n")
    message = refused(specdec(*kept.command))
    assert message == f"--resume {kept.path} was written by another version of specdec: name a new file"


def test_a_file_whose_answers_got_their_seeds_by_another_rule_is_refused(specdec: Specdec, kept: Kept) -> None:
    """Once, each prompt added its number to the seed, and the turns of a prompt shared one."""
    head, rest = kept.content.split(b"\n", 1)
    session = json.loads(head)
    del session["settings"]["seed_derivation"]
    kept.path.write_bytes(json.dumps(session).encode() + b"\n" + rest)
    message = refused(specdec(*kept.command))
    assert message == f"--resume {kept.path} was written by another version of specdec: name a new file"


def test_an_empty_file_begins_a_session(specdec: Specdec, options: tuple[str | Path, ...], tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.touch()
    assert specdec("bench", *options, "--resume", path, "--quiet")[0] == 0
    assert [line["kind"] for line in lines_of(path.read_text())] == ["session", *["run"] * 6, "result"]


# ----------------------------------------------------------------------------------------------- plan
def test_a_dry_run_shows_the_plan_and_measures_nothing(
    specdec: Specdec, options: tuple[str | Path, ...], tmp_path: Path, watch: Watch
) -> None:
    files = (tmp_path / "out", tmp_path / "runs")
    chosen = ("sweep-k", *options, "--k", "1,3", "--temperature", "0", "--temperature", "0.5", "--dry-run", "--quiet")
    code, out, err = specdec(*chosen, "--output", files[0], "--resume", files[1])
    assert (code, err) == (0, "")
    assert watch.calls == []
    draft = options[3]
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == [f"load target {options[1]}", f"load draft {draft}"]
    assert lines[2:4] == [f"temperature {t}: plain decoding against {draft} K 1, {draft} K 3" for t in ("0", "0.5")]
    assert lines[4:] == [
        "3 prompts, 3 answers of 10 tokens each, 18 runs", "4 rows of results, 180 tokens still to generate at most",
    ]  # fmt: skip
    assert watch.warm == []
    assert not any(path.exists() for path in files)


def test_a_dry_run_knows_what_is_there_already(specdec: Specdec, kept: Kept) -> None:
    kept.path.write_bytes(b"".join(kept.lines[:4]))
    before = kept.path.read_bytes()
    code, out, _ = specdec(*kept.command, "--dry-run")
    assert code == 0
    assert f"9 runs, 3 of them in {kept.path} already" in out
    assert "36 tokens still to generate at most" in out
    assert kept.path.read_bytes() == before


def test_a_resumed_session_says_what_it_leaves_out_and_why(specdec: Specdec, kept: Kept) -> None:
    kept.path.write_bytes(b"".join(kept.lines[:6]) + kept.lines[6][:20])  # a block of three runs, two of the next
    _, _, err = specdec(*[word for word in kept.command if word != "--quiet"])
    assert f"2 runs of {kept.path} not used: their answers were not finished by every draft and K" in err
    assert f"the last line of {kept.path} was cut off while it was written: dropped" in err
    _, _, err = specdec(*[word for word in kept.command if word != "--quiet"], "--limit", "1")
    assert f"6 runs of {kept.path} not used: --limit leaves out their prompts now (1 are used)" in err
    assert "cut off" not in err


# ------------------------------------------------------------------------------------- slower than asked
@pytest.fixture
def request_of(monkeypatch: pytest.MonkeyPatch, specdec: Specdec) -> Callable[..., BenchRequest]:
    """What the command line makes of its words, without running it."""
    requests: list[BenchRequest] = []

    def keep(request: BenchRequest) -> int:
        requests.append(request)
        return 0

    monkeypatch.setattr(command, "run", keep)

    def ask(*arguments: str | Path) -> BenchRequest:
        assert specdec(*arguments) == (0, "", "")
        return requests[-1]

    return ask


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], None),
        (["--fail-if-slower"], 1.0),
        (["--fail-if-slower", "--quiet"], 1.0),
        (["--fail-if-slower", "-q"], 1.0),
        (["--fail-if-slower", "1.5"], 1.5),
        (["--fail-if-slower", ".5", "--quiet"], 0.5),
        (["--fail-if-slower=2"], 2.0),
        (["--fail-if-slower", "1e3"], 1000.0),
    ],
)
@pytest.mark.parametrize("name", ["bench", "sweep-k"])
def test_fail_if_slower_with_and_without_a_number(
    request_of: Callable[..., BenchRequest], name: str, words: list[str], wanted: float | None
) -> None:
    assert request_of(name, *words).fail_if_slower == wanted
    assert request_of(name, *words, "--limit", "2").fail_if_slower == wanted


def test_only_that_option_may_lack_its_value() -> None:
    assert _with_defaults(["generate", "--", "--fail-if-slower"]) == ["generate", "--", "--fail-if-slower"]
    assert _with_defaults(["bench", "--limit"]) == ["bench", "--limit"]


@pytest.mark.parametrize("word", ["0", "-1", "nan"])
def test_a_speedup_is_above_0(specdec: Specdec, word: str) -> None:
    assert "--fail-if-slower" in refused(specdec("bench", f"--fail-if-slower={word}"))


@pytest.mark.parametrize(("least", "code"), [((), 0), (("3.9",), 5)])
@pytest.mark.parametrize("name", ["bench", "sweep-k"])
def test_slower_than_asked_is_exit_code_5_after_the_report(
    specdec: Specdec, options: tuple[str | Path, ...], name: str, least: tuple[str, ...], code: int
) -> None:
    """The clock makes the speedup the tokens a round, which are between 1 and K + 1."""
    got, out, err = specdec(name, *options, "--k", "2", "--quiet", "--fail-if-slower", *least)
    assert (got, err) == (code, "")
    assert "speedup" in out


# ------------------------------------------------------------------------------------ not measurable now
@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether other processes take half of the cores' time whenever it is looked at: the last of the list."""
    there, at = [False], [0.0, 0.0]

    def seconds() -> tuple[float, float, float]:
        at[0] += 10.0
        at[1] += 5.0 if there[-1] else 10.0
        return at[0], 0.0, at[1]

    monkeypatch.setattr(OtherProcesses, "_seconds", staticmethod(seconds))
    monkeypatch.setattr(command.measuring, "cores_needed", lambda: 1.0)
    return there


def test_a_sweep_beside_a_busy_process_ends_without_a_recommendation_and_with_one_when_it_is_alone(
    specdec: Specdec, options: tuple[str | Path, ...], crowd: list[bool], tmp_path: Path, watch: Watch
) -> None:
    """With --resume the second session measures again what was disturbed."""
    chosen = ("sweep-k", *options, "--k", "1,2", "--resume", tmp_path / "runs.jsonl")
    crowd.append(True)
    code, out, err = specdec(*chosen)
    assert code == 0
    told = "3 answers disturbed (other processes took 50% of the cores' time, which this one needed): measuring again"
    assert [line for line in err.splitlines() if not line.startswith("note: ")] == [told]
    assert len(watch.calls) == 2 * 3 * 3 + 3
    flat = " ".join(out.split())
    assert "Not measurable now: other processes took 50% of the cores' time" in flat
    assert "Recommended" not in flat
    assert "*" not in flat.replace("* best", "")
    assert " K speedup" in out  # the table is there all the same
    crowd.append(False)
    watch.clear()
    made = document(specdec, *chosen)
    assert len(watch.calls) == 3 * 3 + 3
    assert (made["measurable"], made["reasons"], made["repeated"]) == (True, [], 3)
    assert [sample["repeat"] for sample in made["baseline_samples"]] == [2] * 3
    assert len(made["recommendation"]) == 1
    assert "shared_cores" not in [warning["kind"] for warning in made["warnings"]]


def test_without_a_measurement_nothing_is_exported_and_no_speedup_is_vouched_for(
    specdec: Specdec, options: tuple[str | Path, ...], crowd: list[bool]
) -> None:
    crowd.append(True)
    for asked in (
        ("sweep-k", "--export", "vllm"),
        ("sweep-k", "--fail-if-slower", ".1"),
        ("bench", "--fail-if-slower"),
    ):
        name, option, *value = asked
        code, out, err = specdec(name, *options, "--k", "2", "--quiet", option, *value)
        assert code == 1
        assert err.startswith(f"specdec: {option}: not measurable now: other processes took 50%")
        assert err.count("\n") == 1
        assert "vllm" not in out
    made = document(specdec, "bench", *options, "--k", "2")
    assert (made["measurable"], made["recommendation"]) == (False, [])
    assert made["reasons"] == made["results"][0]["reasons"]
    assert "no" in specdec("bench", *options, "--k", "2", "--format", "markdown", "--quiet")[1].split()


def test_a_draft_that_remembers_is_not_asked_the_same_twice(
    specdec: Specdec, options: tuple[str | Path, ...], crowd: list[bool]
) -> None:
    crowd.append(True)
    pair = (*options[:2], "--draft", "suffix", *options[4:])
    made = document(specdec, "bench", *pair, "--k", "2")
    assert (made["measurable"], made["repeated"]) == (False, 0)


# --------------------------------------------------------------------------------------------- sweep-k
def test_a_sweep_marks_one_best_k_for_each_draft_and_recommends_one(
    specdec: Specdec, options: tuple[str | Path, ...], checkpoints: Models
) -> None:
    chosen = ("sweep-k", *options, "--draft", checkpoints.other, "--k", "1-3")
    made = document(specdec, *chosen)
    assert [(Path(r["draft"]).name, r["k"]) for r in made["results"]] == [
        (name, k) for name in ("draft", "other") for k in (1, 2, 3)
    ]
    for name in ("draft", "other"):
        points = [r for r in made["results"] if Path(r["draft"]).name == name]
        for mark in ("best", "predicted_best", "closed_form_best"):
            assert sum(point[mark] for point in points) == 1
    (point,) = made["recommendation"]
    assert Path(point["draft"]).name == "draft"
    code, out, err = specdec(*chosen, "--quiet")
    assert (code, err) == (0, "")
    flat = " ".join(out.split())
    assert f"At temperature 0 it pays: K {point['k']} with {point['draft']} gives " in flat
    assert flat.endswith(f"{point['command']}")
    assert flat.count("Lossless: the same ids as plain decoding in every answer at every K.") == 2
    assert "K 2  " in out.rpartition("Lossless")[2]  # the plot of plain characters
    assert "K 2  " not in out.rpartition("\nAnswer\n")[2]


def test_a_plot_is_written_and_stdout_keeps_the_report(
    specdec: Specdec, options: tuple[str | Path, ...], tmp_path: Path
) -> None:
    path = tmp_path / "sweep.svg"
    code, out, err = specdec("sweep-k", *options, "--k", "1,2", "--plot", path, "--format", "csv")
    assert code == 0
    assert path.read_text(encoding="utf-8").startswith("<?xml")
    assert len(out.splitlines()) == 3
    assert err.splitlines()[-1] == f"plot: {path}"


def test_an_export_has_stdout_for_itself(specdec: Specdec, options: tuple[str | Path, ...], tmp_path: Path) -> None:
    chosen = ("sweep-k", *options, "--k", "1-3", "--seed", "7", "--export", "vllm")
    code, out, err = specdec(*chosen)
    assert code == 0
    words = shlex.split(out, comments=True)
    assert words[:3] == ["vllm", "serve", str(options[1])]
    config = json.loads(words[-1])
    assert (config["model"], config["method"]) == (str(options[3]), "draft_model")
    assert f"it pays: K {config['num_speculative_tokens']} with " in err
    assert specdec(*chosen, "--quiet") == (0, out, "")
    path = tmp_path / "report.json"
    assert specdec(*chosen, "--quiet", "--format", "json", "--output", path) == (0, out, "")
    assert json.loads(path.read_text())["recommendation"][0]["k"] == config["num_speculative_tokens"]


def test_an_export_is_refused_before_anything_is_measured(
    specdec: Specdec, checkpoints: Models, prompts: Path, tmp_path: Path, watch: Watch
) -> None:
    plot = tmp_path / "sweep.png"
    chosen = ("--target", checkpoints.target, "--draft", checkpoints.padded, "--dtype", "float32", "--prompts", prompts)
    code, out, err = specdec("sweep-k", *chosen, "-n", "6", "--k", "1", "--export", "vllm", "--plot", plot, "--quiet")
    assert (code, out) == (3, "")
    assert "--export vllm: vLLM would refuse this pair, which works here" in err
    assert not plot.exists()
    assert not watch.warm + watch.calls


def sweep_of_large_figures() -> dict[str, Any]:
    """Figures as wide as they get."""
    wide = {
        "draft": "d", "category": "all", "temperature": 0.8, "prompts": 480, "baseline_tokens_per_s": 1234.5,
        "speculative_tokens_per_s": 12345.6, "speedup": 12.34, "speedup_ci": (11.17, 13.58), "tokens_per_round": 14.29,
        "tokens_per_round_formula": 15.01, "acceptance": {"alpha": 0.97}, "best": True, "closed_form_best": True,
        "predicted_best": True, "cost": {"target_step_s": 0.01, "c": 10.25, "v": 11.75, "o": -0.33},
        "predicted": {"closed_form": 16.21, "extended": 15.43}, "lossless": {"checked": False, "identical": None},
        "draft_lengths": [[24, 90]],
    }  # fmt: skip
    return {
        "results": [wide | {"k": 24}],
        "recommendation": [],
        "peers": [],
        "warnings": [],
        "settings": {"target": {}, "drafts": []},
    }


@pytest.mark.parametrize("width", [80, 100])
def test_no_figure_of_a_sweep_is_cut_at_80_columns(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(reports.sweep_report(sweep_of_large_figures()))
    text = out.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    (row,) = [line.split() for line in text.splitlines() if line.strip().startswith("24 ")]
    assert row == [
        "24", "12.34*", "11.17-13.58", "12345.6", "14.29", "0.97", "10.25", "11.75", "-0.33", "16.21°", "15.43°",
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------- transformers
def test_transformers_stands_beside_with_the_same_ids(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    chosen = ("bench", *options, "--k", "3", "--compare", "transformers")
    made = document(specdec, *chosen)
    assert [(peer["peer"], peer["k"], peer["identical"]) for peer in made["peers"]] == [
        ("transformers generate", 0, True), ("transformers assisted", 3, True),
    ]  # fmt: skip
    assert all(peer["specdec_over_peer"] > 0 for peer in made["peers"])
    assert [r["k"] for r in made["results"]] == [3]
    runs = runs_of(specdec(*chosen, "--format", "jsonl", "--quiet")[1])
    by_prompt: dict[int, set[tuple[int, ...]]] = {}
    for run in runs:
        by_prompt.setdefault(run["prompt"], set()).add(tuple(run["token_ids"]))
    assert len(runs) == 3 * 4
    assert [len(ids) for ids in by_prompt.values()] == [1, 1, 1]
    _, out, _ = specdec(*chosen)
    assert "Beside other tools, prefill included" in out
    assert re.search(r"^ *transformers assisted +3 +0 ", out, re.MULTILINE)


def test_transformers_assisted_is_named_by_draft_where_there_are_several(
    specdec: Specdec, options: tuple[str | Path, ...], checkpoints: Models
) -> None:
    more = ("--draft", checkpoints.other, "--limit", "1", "--temperature", "0.9", "--compare", "transformers")
    made = document(specdec, "bench", *options, *more)
    assert [peer["peer"] for peer in made["peers"]] == [
        "transformers generate", *(f"transformers assisted by {d}" for d in (checkpoints.draft, checkpoints.other)),
    ]  # fmt: skip
    assert {peer["identical"] for peer in made["peers"]} == {None}  # both sample


def test_a_checkpoints_own_generation_config_does_not_reach_the_comparison(tmp_path: Path) -> None:
    """A penalty there would change the text, and at its end tokens an assistant would stop drafting."""
    folders = [tiny.save(tmp_path / role, tiny.model(seed=seed)) for role, seed in (("target", 0), ("draft", 1))]
    plain = TransformersModel(tiny.model(seed=0), tiny.VOCAB_SIZE)
    greedy = SamplingSettings(temperature=0.0)
    wanted = []
    with torch.inference_mode():
        ids = [10, 20, 30]
        for _ in range(20):
            plain.reset()
            ids.append(int(plain.forward(torch.tensor(ids), 1).argmax()))
        wanted = ids[3:]
    for folder in folders:
        GenerationConfig(
            eos_token_id=wanted[4:6], repetition_penalty=1.9, do_sample=True, top_k=2, temperature=0.3
        ).save_pretrained(folder)
    pair = tiny.pair(*folders)
    sizes: list[int] = []
    pair.checkpoint.model.register_forward_pre_hook(
        lambda module, given, kwargs: sizes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    assert list(transformers_generate(pair, greedy, None)([10, 20, 30], 20, 0)) == wanted
    sizes.clear()
    assert list(transformers_generate(pair, greedy, 4)([10, 20, 30], 20, 0)) == wanted
    assert set(sizes[1:-4]) == {5}  # K drafted tokens and the last one of the text


def test_sampled_peers_obey_the_seed_and_the_warping(checkpoints: Models) -> None:
    pair = tiny.pair(checkpoints.target, checkpoints.draft)
    wide = SamplingSettings(temperature=1.0)
    made = [list(transformers_generate(pair, wide, 3)([1, 2, 3], 15, seed)) for seed in (4, 4, 5)]
    assert made[0] == made[1] != made[2]
    assert [len(ids) for ids in made] == [15] * 3
    narrow = SamplingSettings(temperature=1.0, top_k=1, top_p=0.9, min_p=0.1, repetition_penalty=1.2)
    greedy = SamplingSettings(temperature=0.0, repetition_penalty=1.2)
    sampled, best = (list(transformers_generate(pair, s, None)([1, 2, 3], 15, 0)) for s in (narrow, greedy))
    assert sampled == best


# ------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize("name", ["bench", "sweep-k"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--k", "0"], "--k"),
        (["--limit", "-1"], "--limit must be 0 (all prompts) or above, not -1"),
        (["-n", "1"], "--max-new-tokens must be 2 or above here, not 1"),
        (["--draft", "none"], "--draft none is the baseline, which is always measured: name a draft"),
        (["--temperature", "-1"], "--temperature must be 0 (greedy)"),
        (["--temperature", "0", "--temperature", "nan"], "--temperature must be 0 (greedy)"),
        (["--top-p", "0"], "--top-p must be above 0"),
        (["--seed", "-1"], "--seed must be between 0"),
        (["--seed", str(2**63)], "--seed must be between 0"),
        (["--check-distribution"], "--check-distribution needs a --temperature above 0"),
        (["--compare", "vllm"], "'--compare'"),
        (["--compare", "transformers", "--no-ignore-eos"], "--compare needs --ignore-eos"),
        (["--format", "text"], "'--format'"),
        (["--prompts", "nowhere.txt"], "--prompts nowhere.txt is neither a file nor a built-in set"),
        (["--output", "nowhere/x"], "--output nowhere/x: the folder nowhere does not exist"),
        (["--resume", "nowhere/x"], "--resume nowhere/x: the folder nowhere does not exist"),
        (["--output", "x", "--resume", "./x"], "--output and --resume name the same file"),
        (["--preset", "demo", "--target", "x"], "--preset and --target are given both"),
        (["stray"], "stray"),
    ],
)
def test_bad_options_are_refused_in_one_line(specdec: Specdec, name: str, words: list[str], message: str) -> None:
    assert message in refused(specdec(name, *words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--k", "x"], "--k"),
        (["--k", "4-2"], "--k"),
        (["--k", "0-2"], "--k"),
        (["--export", "ollama"], "--export must be one of vllm, sglang, llama.cpp, transformers, mlx, trtllm"),
        (["--plot", "x.pdf"], "--plot x.pdf must end in .png or .svg"),
        (["--plot", "nowhere/x.png"], "--plot nowhere/x.png: the folder nowhere does not exist"),
        (["--plot", "x.svg", "--output", "./x.svg"], "--output and --plot name the same file"),
        (["--export", "vllm", "--format", "jsonl"], "--export and --format jsonl both write to stdout"),
    ],
)
def test_bad_options_of_a_sweep(specdec: Specdec, words: list[str], message: str) -> None:
    assert message in refused(specdec("sweep-k", *words))


@pytest.mark.parametrize("option", ["--plot", "--export"])
def test_only_a_sweep_draws_and_exports(specdec: Specdec, option: str) -> None:
    assert f"No such option: {option}" in refused(specdec("bench", option, "x.png"))


def test_prompts_that_leave_no_room_are_named_before_anything_is_measured(
    specdec: Specdec, checkpoints: Models, tmp_path: Path, watch: Watch
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("short\n" + "x" * (CONTEXT - 8) + "\n", encoding="utf-8")
    chosen = checkpoints.pair("--prompts", path, "--quiet")
    message = refused(specdec("bench", *chosen, "-n", "9"))
    assert message == (
        "prompt 2: a prompt of 248 tokens leaves no room for 9 more in the target's context of 256: "
        "lower --max-new-tokens"
    )
    assert watch.warm == watch.calls == []
    assert specdec("bench", *chosen, "-n", "8")[0] == 0


def test_all_turns_and_answers_must_fit(specdec: Specdec, checkpoints: Models, tmp_path: Path, watch: Watch) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"turns": ["x" * 100, "y" * 100]}) + "\n", encoding="utf-8")
    message = refused(specdec("bench", *checkpoints.pair("--prompts", path, "--quiet"), "-n", "30"))
    assert message.startswith("prompt 1: a prompt of 202 tokens leaves no room for 60 more")
    assert watch.warm == watch.calls == []


def test_a_system_message_needs_a_template(specdec: Specdec, options: tuple[str | Path, ...]) -> None:
    message = refused(specdec("bench", *options, "--system", "Be brief.", "--quiet"))
    assert message.startswith("prompt 1: a system message needs a chat template")


def test_transformers_is_not_measured_with_a_pair_that_it_refuses(
    specdec: Specdec, checkpoints: Models, prompts: Path
) -> None:
    chosen = ("--target", checkpoints.target, "--draft", checkpoints.padded, "--dtype", "float32", "--prompts", prompts)
    assert specdec("bench", *chosen, "-n", "4", "--quiet")[0] == 0
    message = refused(specdec("bench", *chosen, "-n", "4", "--quiet", "--compare", "transformers"))
    assert message.startswith("--compare transformers: it refuses a draft of 105 rows beside a target of 97")


# ------------------------------------------------------------------------------------------------- help
@pytest.mark.parametrize("name", ["bench", "sweep-k"])
def test_help_names_every_option_has_an_example_and_keeps_to_80_columns(
    specdec: Specdec, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = specdec(name, "--help")
    assert (code, err) == (0, "")
    flat = " ".join(out.split())
    assert f"Example: specdec {name} " in flat
    shared = ["--target", "--draft", "--k", "--temperature", "--prompts", "--limit", "--max-new-tokens", "--ignore-eos"]
    shared += ["--no-ignore-eos", "--compare", "--check-distribution", "--dry-run", "--resume", "--fail-if-slower"]
    shared += ["--format", "--output", "--quiet", "--seed", "--raw", "--system"]
    own = ["--plot", "--export"] if name == "sweep-k" else []
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", out))
    assert [option for option in shared + own if option not in shown] == []
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert [line for line in out.splitlines() if "<bool>" in line and "--help" not in line] == []


def test_exports_named_in_help_are_those_there_are() -> None:
    from specdec_cli.cli.sweep_k import EXPORT_TOOLS
    from specdec_cli.reports.recommend import TOOLS

    assert re.split(", | or ", EXPORT_TOOLS) == list(TOOLS)


def test_a_wrong_option_costs_no_library_for_models() -> None:
    watched = (
        "import sys\nfrom specdec_cli.__main__ import main\n"
        "code = main(['sweep-k', '--k', '0'])\n"
        "print(code, [m for m in ('torch', 'transformers', 'numpy', 'matplotlib') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True)
    assert done.stdout == "2 []\n", done.stderr
