"""What a person sees: nothing is cut or broken at 60, 80 and 120 columns, and the answer stands last."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from running import Specdec

from specdec_cli.presets import preset_files, read_preset
from specdec_cli.reports import bench as reports
from specdec_cli.reports.bench_tables import category_table, comparison, peers, sweep_table
from specdec_cli.reports.command_line import generate_command
from specdec_cli.reports.conclusion import HEADING, conclusion
from specdec_cli.reports.fitting import Sentence
from specdec_cli.reports.predict import predict_report
from specdec_cli.reports.tables import PresetsList
from specdec_cli.settings import ConversationSettings, ModelSettings, SamplingSettings

WIDTHS = (60, 80, 120)
PATH = "/home/somebody/models of mine/" + "a-rather-long-name-for-a-model/" * 3 + "model-q4_k_m.gguf"


def result(k: int = 4, draft: str = "d", **more: Any) -> dict[str, Any]:
    """Figures as wide as they get."""
    made = {
        "draft": draft, "category": "all", "temperature": 0.8, "prompts": 480, "k": k, "turns": 480,
        "baseline_tokens_per_s": 1234.5, "speculative_tokens_per_s": 12345.6, "new_tokens": 123456,
        "speedup": 12.34, "speedup_ci": [11.17, 13.58], "speedup_range": [10.12, 14.01], "end_to_end_speedup": 11.11,
        "first_token_s": {"baseline": 1.5, "speculative": 1.75}, "tokens_per_round": 14.29,
        "tokens_per_round_formula": 15.01, "best": True, "closed_form_best": True, "predicted_best": True,
        "acceptance": {
            "alpha": 0.97, "alpha_ci": [0.95, 0.99], "judged": 123456, "overlap": 0.96, "accepted_over_drafted": 0.5,
            "per_position_joint": [0.9] * k, "per_position_conditional": [0.9] * k,
        },
        "cost": {
            "target_step_s": 0.01, "draft_step_s": 0.1, "verify_s": 0.1, "other_s": 0.1, "c": 10.25, "v": 11.75,
            "o": -0.33,
        },
        "predicted": {
            "closed_form": 16.21, "extended": 15.43, "measured_over_closed_form": 0.76, "measured_over_extended": 0.8,
        },
        "lossless": {"checked": False, "identical": None}, "draft_lengths": [[k, 90]], "drafted": 99,
        "measurable": True, "reasons": [],
    }  # fmt: skip
    return made | more


def document(*results: dict[str, Any], **more: Any) -> dict[str, Any]:
    point = {"temperature": 0.8, "draft": results[0]["draft"], "k": 4, "speedup": 12.34, "speedup_ci": [11.17, 13.58]}
    point |= {"drafted": 99, "pays": True, "command": f"specdec generate -t '{PATH}' -d d --k 4 'your prompt'"}
    peer = {
        "peer": "transformers assisted by something", "k": 24, "temperature": 0.8, "end_to_end_tokens_per_s": 1234.5,
        "specdec_over_peer": 1.25, "specdec_over_peer_ci": [1.11, 1.39], "specdec_over_peer_range": [1.0, 1.5],
    }  # fmt: skip
    made = {
        "results": list(results), "recommendation": [point], "peers": [peer], "measurable": True, "reasons": [],
        "warnings": [{"kind": "drift", "detail": "it drifted " * 9, "remedy": "wait"}],
        "settings": {"target": {"source": PATH}, "drafts": []}, "memory": {"peak_bytes": 10**9},
        "bandwidth": {"share": 0.5, "step_bytes": 10**6, "copy_bytes_per_s": 10**9},
    }  # fmt: skip
    return made | more


def rendered(what: RenderableType, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(what, crop=False)
    return out.getvalue()


def headings(text: str) -> list[str]:
    """Of the first table."""
    lines = text.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.strip() and not line.strip("─ "))
    return lines[rule - 1].replace("95 %", "95%").split()


def require_whole(text: str, width: int, *may_stick_out: str) -> None:
    assert "…" not in text
    for line in text.splitlines():
        assert len(line.rstrip()) <= width or any(word in line for word in may_stick_out), line


@pytest.mark.parametrize("width", WIDTHS)
def test_a_sweep_loses_columns_from_the_right(width: int) -> None:
    text = rendered(sweep_table([result(24)]), width)
    require_whole(text, width)
    every = ["K", "speedup", "95%", "tok/s", "tok/round", "alpha", "c", "v", "o", "closed", "ext."]
    found = headings(text)
    assert found == every[: len(found)]
    assert found[:3] == every[:3]
    assert "11.17-13.58" in text
    assert (len(found) == len(every)) == (width >= 80)
    legend = text.splitlines()[-1]
    for name, words in (("c", "c draft"), ("v", "v verify"), ("o", "o rest"), ("ext.", "ext."), ("closed", "closed")):
        assert (words in legend) == (name in found)


@pytest.mark.parametrize("width", [24, 30, 40])
def test_k_speedup_and_interval_stay_however_narrow_it_is(width: int) -> None:
    assert headings(rendered(sweep_table([result(24)]), width))[:3] == ["K", "speedup", "95%"]


@pytest.mark.parametrize("width", WIDTHS)
def test_drafts_side_by_side_keep_their_names_whole(width: int) -> None:
    short = rendered(comparison([result(), result(draft="ngram")]), width)
    require_whole(short, width)
    text = rendered(comparison([result(), result(draft=PATH)]), width)
    require_whole(text, width, PATH)
    assert PATH in text
    assert "11.17-13.58" in text
    assert {"K", "speedup", "95%"} <= set(headings(text))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_other_tables_are_whole_too(width: int) -> None:
    named = [result(category=name) for name in ("summarisation", "code")]
    text = rendered(category_table(named), width)
    require_whole(text, width)
    assert "summarisation" in text
    (table,) = peers(document(result()))
    text = rendered(table, width)
    require_whole(text, width, "transformers assisted by something")
    assert "1.11-1.39" in text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("verbose", [False, True])
def test_reports_are_whole_and_end_in_the_answer(width: int, verbose: bool) -> None:
    made = document(result(1), result(4))
    for text in (
        rendered(reports.sweep_report(made, verbose), width),
        rendered(reports.bench_report(document(result(4)), verbose), width),
        rendered(reports.bench_report(made, verbose), width),
    ):
        require_whole(text, width, PATH, "your prompt", *PATH.split())
        last = text[text.index(f"\n{HEADING}\n") :]
        assert last.count("─") == 0  # no table after it
        assert "Warning" not in last
        assert "At temperature 0.8 it pays: K 4 with d gives 12.34x" in " ".join(last.split())
        assert text.rstrip().endswith(f"specdec generate -t '{PATH}' -d d --k 4 'your prompt'")
        assert text.index("Warning") < text.index(f"\n{HEADING}\n")
        assert text.rindex("─") < text.index(f"\n{HEADING}\n")


def test_what_experts_read_is_told_on_request_alone() -> None:
    made = document(result(4))
    plain, verbose = (rendered(reports.bench_report(made, wanted), 120) for wanted in (False, True))
    for words in ("by position", "overlap", "closed form 16.21x", "in target steps: c", "MB of weights"):
        assert words not in plain
        assert words in verbose
    for words in ("12.34x", "95 % 11.17-13.58", "0.97 of 123,456 judged"):
        assert words in plain
        assert words in verbose


@pytest.mark.parametrize("width", WIDTHS)
def test_presets_can_be_copied(width: int) -> None:
    presets = [read_preset(path) for _, path in sorted(preset_files().items())]
    text = rendered(PresetsList(presets), width)
    require_whole(text, width)
    words = set(text.split())
    for preset in presets:
        assert {preset.name, preset.target, preset.draft} <= words


@pytest.mark.parametrize("width", WIDTHS)
def test_a_prediction_is_whole(width: int) -> None:
    one = {
        "k": 16, "tokens_per_round_formula": 14.123, "cost": {"c": 0.1, "v": 1.25}, "closed_form_best": True,
        "predicted_best": True, "predicted": {"closed_form": 12.34, "extended": 11.22},
        "simulated": {"tokens_per_round": 14.2, "standard_error": 0.012, "alpha": 0.97, "rounds": 40_000},
    }  # fmt: skip
    settings = {"alpha": 0.97, "overhead": 0.1, "experts": None}
    text = rendered(predict_report({"results": [one], "estimate": None, "settings": settings}), width)
    require_whole(text, width)
    assert {"K", "extended"} <= set(headings(text))
    assert "it pays: K 16 gives 11.22x" in " ".join(text[text.index(f"\n{HEADING}\n") :].split())
    assert text.rindex("─") < text.index(f"\n{HEADING}\n")


def test_sentences_are_broken_at_blanks_only() -> None:
    text = rendered(Sentence(f"a draft at {PATH.replace(' ', '_')}, and a --flag-with-hyphens, are told here"), 30)
    assert PATH.replace(" ", "_") in text
    assert "--flag-with-hyphens" in text
    assert max(len(line) for line in text.splitlines() if "/" not in line) <= 30


# ---------------------------------------------------------------------------------------------- the answer
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "it pays: K 4 with d gives 12.34x plain decoding (95 %: 11.17 to 13.58)."),
        ({"pays": None}, "it is open whether it pays"),
        ({"pays": False}, "it does not pay: the best, K 4 with d"),
        ({"drafted": 0, "pays": False}, "it does not pay: nothing was drafted."),
        ({"speedup_ci": None, "pays": None}, "(one answer: no interval), and one answer tells little: raise --limit"),
    ],
)
def test_the_answer_in_words(change: dict[str, Any], words: str) -> None:
    made = document(result(4))
    made["recommendation"][0] |= change
    text = "".join(rendered(part, 200) for part in conclusion(made))
    assert words in text
    assert "specdec generate" in text


def test_nothing_is_recommended_of_what_is_no_measurement() -> None:
    reasons = [{"kind": "busy", "detail": "others took it all", "remedy": "stop them"}]
    made = document(result(4, measurable=False, reasons=reasons), measurable=False, reasons=reasons, recommendation=[])
    text = "".join(rendered(part, 200) for part in conclusion(made))
    assert "Not measurable now: others took it all; stop them." in text
    assert "specdec generate" not in text
    twice = document(result(4, measurable=False, reasons=reasons), result(4, temperature=0.0))
    twice["recommendation"][0]["temperature"] = 0.0
    text = "".join(rendered(part, 200) for part in conclusion(twice))
    assert "At temperature 0 it pays" in text
    assert "At temperature 0.8: Not measurable now" in text


def test_the_command_has_every_option_that_matters_and_no_other() -> None:
    target = ModelSettings("./my models/it's.gguf", quantize="int8", dtype="bfloat16", revision="v1", offline=True)
    draft = ModelSettings("./d", quantize="auto", dtype="bfloat16", vocab="32768")
    made = generate_command(
        target, "ngram+./d", draft, "auto", SamplingSettings(0.8, top_k=5), draft_stop=0.3, draft_tree=8,
        conversation=ConversationSettings(system="Be brief.", template_args={"thinking": False}, plain_content=True),
    )  # fmt: skip
    assert shlex.split(made) == [
        "specdec", "generate", "-t", "./my models/it's.gguf", "-d", "ngram+./d", "--k", "auto", "--revision", "v1",
        "--dtype", "bfloat16", "--quantize", "int8", "--draft-quantize", "auto", "--draft-vocab", "32768", "--offline",
        "--draft-stop", "0.3", "--draft-tree", "8", "--temperature", "0.8", "--top-k", "5", "--system", "Be brief.",
        "--template-arg", "thinking=false", "--plain-content", "your prompt",
    ]  # fmt: skip
    plain = generate_command(target, "none", draft, 4, SamplingSettings(0.0), draft_stop=0.3)
    assert shlex.split(plain) == [
        "specdec", "generate", "-t", "./my models/it's.gguf", "-d", "none", "--revision", "v1", "--dtype", "bfloat16",
        "--quantize", "int8", "--offline", "your prompt",
    ]  # fmt: skip


def test_the_command_runs_as_it_was_told(specdec: Specdec, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("def add(a, b):\n", encoding="utf-8")
    code, out, _ = specdec(
        "sweep-k", "--k", "2", "-n", "4", "--prompts", tmp_path / "p.txt", "--draft-quantize", "int8", "--dtype",
        "float32", "--temperature", "0.5", "--top-p", "0.9",
    )  # fmt: skip
    assert code == 0
    words = shlex.split(out.splitlines()[-1])
    assert words[0] == "specdec"
    if "none" not in words:  # it pays, or may
        assert {"--draft-quantize", "--k", "--top-p"} <= set(words)
    assert {"--dtype", "--temperature"} <= set(words)
    code, out, _ = specdec(*words[1:], "-n", "4")
    assert code == 0
    assert out
