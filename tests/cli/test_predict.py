"""`specdec predict`: SPEC.md's figures through the command line, every format, every bad input, and no torch."""

from __future__ import annotations

import csv
import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from running import instead

from specdec_cli import theory
from specdec_cli.prediction import Costs, curves, parse_verify, predictions

Specdec = Callable[..., tuple[int, str, str]]

EXAMPLE = ("predict", "--alpha", "0.8", "--cost", "0.05")
H100 = ("--bandwidth", "3.35TB/s", "--flops", "1979T", "--dtype", "float16")
ESTIMATE = ("predict", "--alpha", "0.8", "--target-params", "70B", "--draft-params", "7B", *H100)


def document(specdec: Specdec, *arguments: str) -> dict[str, Any]:
    code, out, err = specdec(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


# What is predicted


def test_the_specs_figures(specdec: Specdec) -> None:
    results = {r["k"]: r for r in document(specdec, *EXAMPLE)["results"]}
    assert list(results) == list(range(1, 17))
    assert results[4]["tokens_per_round_formula"] == pytest.approx(3.36, abs=0.005)
    assert results[4]["predicted"]["closed_form"] == pytest.approx(2.80, abs=0.005)
    assert [k for k, r in results.items() if r["closed_form_best"]] == [8]
    high = document(specdec, "predict", "--alpha", "0.9", "--cost", "0.05")["results"]
    (best,) = [r for r in high if r["predicted_best"]]
    assert (best["k"], best["predicted"]["extended"]) == (13, pytest.approx(4.7, abs=0.05))


def test_a_document_has_every_key(specdec: Specdec) -> None:
    found = document(specdec, *EXAMPLE, "--k", "2,4", "--simulate", "100", "--verify", "1.1", "--overhead", "0.2")
    assert list(found) == ["schema", "specdec_version", "environment", "settings", "estimate", "results"]
    assert found["settings"] == {
        "alpha": 0.8, "cost": 0.05, "verify": {"2": 1.1, "4": 1.1}, "overhead": 0.2, "k": [2, 4], "simulate": 100,
        "seed": 0, "experts": None,
    }  # fmt: skip
    for result in found["results"]:
        assert list(result) == [
            "k", "alpha", "tokens_per_round_formula", "cost", "predicted", "simulated", "predicted_best",
            "closed_form_best",
        ]  # fmt: skip
        assert result["cost"] == {"c": 0.05, "v": 1.1, "o": 0.2}
        assert result["predicted"]["closed_form"] == theory.speedup(0.8, result["k"], 0.05)
        assert result["predicted"]["extended"] == theory.speedup(0.8, result["k"], 0.05, 1.1, 0.2)
        assert list(result["simulated"]) == ["rounds", "tokens_per_round", "standard_error", "alpha"]


def test_the_simulation_is_the_formula_within_its_error(specdec: Specdec) -> None:
    for result in document(specdec, *EXAMPLE, "--simulate", "20000", "--k", "1-16*2")["results"]:
        run = result["simulated"]
        assert run["rounds"] == 20_000
        assert abs(run["tokens_per_round"] - result["tokens_per_round_formula"]) < 4 * run["standard_error"]
        assert run["alpha"] == pytest.approx(0.8, abs=0.01)


def test_a_seed_is_a_result(specdec: Specdec) -> None:
    first, again, other = (
        document(specdec, *EXAMPLE, "--simulate", "50", "--seed", seed)["results"] for seed in ("1", "1", "2")
    )
    assert first == again != other


def test_costs_by_the_roofline(specdec: Specdec) -> None:
    found = document(specdec, *ESTIMATE, "--k", "4", "--overhead", "0.1")
    target = found["estimate"]["target"]
    assert target["memory_s"] == pytest.approx(41.8e-3, abs=0.05e-3)
    assert target["arithmetic_s"] == pytest.approx(0.07e-3, abs=0.005e-3)
    (result,) = found["results"]
    assert result["cost"]["c"] == pytest.approx(0.1)
    assert result["cost"]["v"] * target["step_s"] == pytest.approx(42.15e-3, abs=0.01e-3)
    assert result["cost"]["o"] == 0.1
    a100 = ("--bandwidth", "2.039TB/s", "--flops", "312T")
    found = document(specdec, *ESTIMATE[:7], *a100, "--draft-dtype", "int8")
    assert found["estimate"]["flop_per_byte"] == pytest.approx(153, abs=0.5)
    assert (found["estimate"]["target"]["dtype"], found["estimate"]["draft"]["dtype"]) == ("bfloat16", "int8")


# Of a step of the case that the figures of issue 14 are from (four layers of 256, 8 experts of 1024, 2 a token), what
# is no expert; and its draft's cost.
MIXTURE = ("--experts", "8", "--active", "2", "--dense-share", "0.1206")


def test_experts_make_the_pass_dearer_than_the_closed_form_knows(specdec: Specdec) -> None:
    results = document(specdec, "predict", "--alpha", "0.8", "--cost", "0.00375", *MIXTURE)["results"]
    by_k = {result["k"]: result["predicted"] for result in results}
    assert by_k[16]["closed_form"] == pytest.approx(4.61, abs=0.005)
    assert by_k[16]["extended"] == pytest.approx(1.33, abs=0.005)
    assert by_k[1]["extended"] == pytest.approx(1.08, abs=0.005)
    assert [result["cost"]["v"] for result in results if result["k"] == 1] == [pytest.approx(1 + 0.75 * 0.8794)]
    code, out, _ = specdec("predict", "--alpha", "0.8", "--cost", "0.00375", *MIXTURE)
    assert code == 0
    flat = " ".join(out.split())
    assert "experts: a token uses 2 of 8, and 12% of a step is shared by all tokens; v counts those that K + 1" in flat
    assert "By the extended form it pays: K 16 gives 1.33x plain decoding" in flat


def test_experts_of_the_roofline(specdec: Specdec) -> None:
    dense, mixture = (
        document(specdec, *ESTIMATE, "--k", "1", *more) for more in ((), ("--experts", "8", "--active", "2"))
    )
    assert mixture["settings"]["experts"] == {"number": 8, "active": 2, "dense_share": 0.0}
    assert dense["settings"]["experts"] is None
    assert mixture["estimate"]["target"] == dense["estimate"]["target"]
    (result,) = mixture["results"]
    assert result["cost"]["v"] == pytest.approx(1.75, abs=0.003)


@pytest.mark.parametrize(
    ("k", "v"), [(1, 1.025), (2, 1.05), (4, 1.1), (6, 1.2), (8, 1.3), (12, 1.5)], ids=lambda value: f"{value:g}"
)
def test_verification_measured_at_some_k_is_a_line_between_them(k: int, v: float) -> None:
    assert theory.verify_cost_at(parse_verify("4=1.1,8=1.3"), k) == pytest.approx(v)


def test_verification_that_got_cheaper_does_not_go_on_getting_cheaper() -> None:
    verify = parse_verify("2=.9,4=.8")
    assert [round(theory.verify_cost_at(verify, k), 9) for k in (1, 2, 3, 4, 9)] == [0.95, 0.9, 0.85, 0.8, 0.8]


def test_best_by_the_extended_form_counts_what_k_costs() -> None:
    results = predictions(0.9, Costs(0.05, lambda k: 1 + 0.1 * k, 0.2), range(1, 33), 0, random.Random(0))
    best = max(results, key=lambda r: r["predicted"]["extended"])
    assert [r["k"] for r in results if r["predicted_best"]] == [best["k"]] != [13]


def test_curves_hold_what_was_asked_for_and_mark_its_optimum() -> None:
    tokens, speedups = curves(0.84, Costs(0.05), range(1, 17), True, random.Random(0))
    assert [c.name for c in tokens][:2] == ["K 1: 1.84 at alpha 0.84", "K 2: 2.55 at alpha 0.84"]
    assert [c.name.split(":")[0] for c in tokens] == ["K 1", "K 2", "K 4", "K 8", "K 16"]
    assert [c.name for c in speedups] == ["alpha 0.5", "alpha 0.6", "alpha 0.7", "alpha 0.84", "alpha 0.9"]
    (chosen,) = [c for c in speedups if c.chosen]
    assert chosen.best == (9, theory.speedup(0.84, 9, 0.05))
    assert max(chosen.ys) == chosen.best[1]
    for curve, k in zip(tokens, (1, 2, 4, 8, 16), strict=True):
        assert curve.ys[-1] == k + 1
        for a, simulated in curve.simulated:
            assert simulated == pytest.approx(theory.tokens_per_round(a, k), abs=0.35)
    assert not any(c.simulated for c in curves(0.84, Costs(0.05), range(1, 17), False, random.Random(0))[0])


# How it is shown


@pytest.mark.parametrize("arguments", [(*EXAMPLE, "--simulate", "100"), ESTIMATE, (*ESTIMATE, "--simulate", "100")])
def test_a_table_fits_80_columns(specdec: Specdec, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = specdec(*arguments)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert "By the extended form it pays: K " in out.partition("\nAnswer\n")[2]


def test_a_table_says_what_it_holds_for_and_what_is_best(specdec: Specdec) -> None:
    _, out, _ = specdec(*ESTIMATE, "--k", "1-8", "--simulate", "1000")
    assert "target: 70B parameters, float16, 140 GB: a step 41.79 ms of memory traffic" in out
    assert "a pass over 7 tokens 42.29 ms" in out
    assert "busy from 591 FLOP a byte; decoding one token has 1" in out
    assert "alpha 0.8, c 0.1, v 1 to 1.01, o 0 (in target steps)" in out
    assert "Simulated: 1,000 rounds" in out
    assert out.endswith(
        "\nAnswer\nBy the extended form it pays: K 6 gives 2.45x plain decoding. By the closed form: K 6, 2.47x.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--alpha", "0.3", "--cost", "0.5"), "no K of these pays: the best, K 1, gives 0.87x plain decoding."),
        (
            ("--alpha", "0.99", "--cost", "0.01", "--k", "1-4"),
            "K 4 gives 4.71x plain decoding, the largest K asked for.",
        ),
    ],
)
def test_what_to_make_of_it(specdec: Specdec, arguments: tuple[str, ...], said: str) -> None:
    code, out, _ = specdec("predict", *arguments)
    assert code == 0
    assert said in out


def test_jsonl_is_a_whole_document_a_line(specdec: Specdec) -> None:
    _, out, _ = specdec(*EXAMPLE, "--k", "1-3", "--format", "jsonl")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["k"] for line in lines] == [1, 2, 3]
    whole = document(specdec, *EXAMPLE, "--k", "1-3")
    for line, result in zip(lines, whole.pop("results"), strict=True):
        assert line == whole | result


def test_csv_has_every_digit(specdec: Specdec) -> None:
    _, out, _ = specdec(*EXAMPLE, "--k", "1-3", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    for row, result in zip(rows, document(specdec, *EXAMPLE, "--k", "1-3")["results"], strict=True):
        assert float(row["predicted.closed_form"]) == result["predicted"]["closed_form"]
        assert (row["k"], row["cost.c"], row["simulated"]) == (str(result["k"]), "0.05", "")


def test_markdown_marks_the_best(specdec: Specdec) -> None:
    _, out, _ = specdec(*EXAMPLE, "--k", "4,8", "--format", "markdown")
    assert out.splitlines()[0].startswith("| K")
    assert [line.split("|")[-2].strip() for line in out.splitlines()[2:]] == ["2.80x", "3.09x\\*"]


@pytest.mark.parametrize("output_format", ["table", "json", "jsonl", "csv", "markdown"])
def test_output_writes_the_file_and_nothing_to_stdout(specdec: Specdec, tmp_path: Path, output_format: str) -> None:
    arguments = (*EXAMPLE, "--k", "1-3", "--format", output_format)
    _, shown, _ = specdec(*arguments)
    assert specdec(*arguments, "--output", tmp_path / "out") == (0, "", "")
    assert (tmp_path / "out").read_text(encoding="utf-8") == shown
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_plot_has_both_panels(specdec: Specdec, tmp_path: Path) -> None:
    plain, simulated = tmp_path / "plain.svg", tmp_path / "simulated.svg"
    specdec(*EXAMPLE, "--plot", plain, "--verify", "1.2", "--overhead", "0.1", "--output", tmp_path / "out")
    code, _, err = specdec(*EXAMPLE, "--plot", simulated, "--simulate", "100", "--seed", "5")
    assert (code, err) == (0, "")

    def texts(path: Path) -> set[str]:
        found = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
        return {"".join(element.itertext()) for element in found}

    best = theory.speedup(0.8, 8, 0.05)
    assert {
        "tokens a pass of the target", "speedup over plain decoding", "K 4: 3.36 at alpha 0.8",
        f"alpha 0.8: best {best:.2f}x at K 8", "alpha 0.9: best 4.67x at K 13",
        "alpha 0.8, c 0.05, v 1, o 0 (in target steps); 4,000 rounds simulated a point, seed 5",
    } <= texts(simulated)  # fmt: skip
    assert "alpha 0.8, c 0.05, v 1.2, o 0.1 (in target steps)" in texts(plain)
    assert any(text.startswith("points: ") for text in texts(simulated))
    assert not any(text.startswith("points: ") for text in texts(plain))


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--alpha", "1.2", "--cost", "0.1"), "--alpha must be between 0 and 1 (a probability), not 1.2"),
        (("--alpha", "nan", "--cost", "0.1"), "--alpha must be between 0 and 1"),
        (("--alpha", "-0.1", "--cost", "0.1"), "--alpha must be between 0 and 1"),
        (("--cost", "0.1"), "Missing option '--alpha'"),
        (("--alpha", "0.5"), "--cost is missing"),
        (("--alpha", "0.5", "--cost", "-1"), "--cost must be 0 or above (a draft step in target steps), not -1"),
        (("--alpha", "0.5", "--cost", "inf"), "--cost must be 0 or above"),
        (("--alpha", "0.5", "--cost", "0.1", "--overhead", "-1"), "--overhead must be 0 or above"),
        *(
            (("--alpha", "0.5", "--cost", "0.1", "--verify", verify), "--verify must be above 0")
            for verify in ("0", "-1", "nan", "inf", "x", "", "4=x", "4=0", "0=1", "4=1,4=2", "4=1.1,1.2")
        ),
        (("--alpha", "0.5", "--cost", "0.1", "--k", "8-1"), "--k '8-1' runs backwards"),
        (("--alpha", "0.5", "--cost", "0.1", "--simulate", "1"), "--simulate must be 2 to 10,000,000 rounds"),
        (("--alpha", "0.5", "--cost", "0.1", "--simulate", "10000001"), "--simulate must be 2 to"),
        (("--alpha", "0.5", "--cost", "0.1", "--seed", "-1"), "--seed must be 0 or above"),
        (("--alpha", "0.5", "--target-params", "7B"), "--draft-params, --bandwidth, --flops missing"),
        (instead(ESTIMATE[1:], ("--cost", "0.1")), "--cost and --verify are estimated from"),
        (instead(ESTIMATE[1:], ("--verify", "1.1")), "--cost and --verify are estimated from"),
        (instead(ESTIMATE[1:], ("--bandwidth", "3.35Tb/s")), "--bandwidth must be bytes a second"),
        (instead(ESTIMATE[1:], ("--flops", "fast")), "--flops must be operations a second"),
        (instead(ESTIMATE[1:], ("--target-params", "0")), "--target-params must be a number of parameters"),
        (
            instead(ESTIMATE[1:], ("--target-params", "1e308")),
            "--target-params with this --bandwidth and --flops gives no time",
        ),
        (
            instead(ESTIMATE[1:], ("--draft-params", "1e308")),
            "--draft-params with this --bandwidth and --flops gives no time",
        ),
        (instead(ESTIMATE[1:], ("--draft-params", "7Q")), "--draft-params must be a number of parameters"),
        (
            instead(ESTIMATE[1:], ("--dtype", "int3")),
            "Invalid value for '--dtype': 'int3' is not one of 'float32', 'bfloat16'",
        ),
        (("--alpha", "0.5", "--cost", "0.1", "--dtype", "int8"), "--dtype is for costs that are estimated from"),
        (("--alpha", "0.5", "--cost", "0.1", "--draft-dtype", "int8"), "--draft-dtype is for costs that are estimated"),
        (("--alpha", "0.5", "--cost", "0.1", "--seed", "3"), "--seed is of the simulation: add --simulate"),
        ((*EXAMPLE[1:], "--experts", "8"), "--active is missing: a mixture of experts has both"),
        ((*EXAMPLE[1:], "--active", "2"), "--experts is missing"),
        ((*EXAMPLE[1:], "--dense-share", ".2"), "--dense-share is of a mixture of experts: add --experts and --active"),
        ((*EXAMPLE[1:], "--experts", "8", "--active", "9"), "--active must be 1 to --experts (8), not 9"),
        ((*EXAMPLE[1:], "--experts", "8", "--active", "0"), "--active must be 1 to --experts (8), not 0"),
        (
            (*EXAMPLE[1:], "--experts", "8", "--active", "2", "--dense-share", "1"),
            "--dense-share must be 0 or above and below 1, not 1",
        ),
        (
            ("--alpha", "0.5", "--cost", "0.1", "--verify", "1.1", "--experts", "8", "--active", "2"),
            "--verify is computed from --experts and --active",
        ),
        ((*EXAMPLE[1:], "--plot", "file.txt"), "--plot file.txt must end in .png or .svg"),
        ((*EXAMPLE[1:], "--plot", "no/folder/x.png"), "--plot no/folder/x.png: the folder no/folder does not exist"),
        ((*EXAMPLE[1:], "--output", "no/folder/x"), "--output no/folder/x: the folder no/folder does not exist"),
        ((*EXAMPLE[1:], "--plot", "x.svg", "--output", "./x.svg"), "--output and --plot name the same file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, (tuple, list)) else "",
)
def test_a_bad_option_is_one_line_and_leaves_nothing(
    specdec: Specdec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = specdec("predict", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"specdec: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_is_named(
    specdec: Specdec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = specdec(*EXAMPLE, "--plot", tmp_path / "x.png")
    assert (code, out) == (1, "")
    assert err == "specdec: --plot needs matplotlib: pip install 'specdec-cli[plot]'\n"


def test_no_library_for_models_is_loaded_not_even_for_the_plot(tmp_path: Path) -> None:
    code = (
        "import sys; from specdec_cli.__main__ import main\n"
        f"assert main([*{EXAMPLE!r}, '--simulate', '10', '--output', {str(tmp_path / 'o')!r}]) == 0\n"
        "assert 'numpy' not in sys.modules and 'matplotlib' not in sys.modules\n"
        f"assert main([*{EXAMPLE!r}, '--plot', {str(tmp_path / 'p.png')!r}, '--format', 'json']) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "p.png").stat().st_size > 10_000
