"""benchmarks/sources.py: which arms there are, what stands over what, and that nothing but drafts differs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from records import run_of
from running import benchmark_script

from specdec_cli.cli.options.models import DraftChoice
from specdec_cli.drafters.spec import parse_draft
from specdec_cli.errors import UsageError
from specdec_cli.prompts import builtin_prompts


@pytest.fixture(scope="module")
def sources() -> Iterator[ModuleType]:
    """The script, which is no part of the package."""
    with benchmark_script("sources") as module:
        yield module


def test_ks_stand_behind_the_draft(sources: ModuleType) -> None:
    assert sources.split_k("ngram:max=4@8") == ("ngram:max=4", (8,))
    assert sources.split_k("./a@b@1-3,8") == ("./a@b", (1, 2, 3, 8))
    assert sources.split_k("ngram+./a@b") == ("ngram+./a@b", (sources.FIXED_K,))
    assert sources.split_k("ngram@auto") == ("ngram", ())
    with pytest.raises(UsageError, match="--draft"):
        sources.split_k("ngram@0")


def test_open_prompts_are_those_of_the_mixed_set_that_quote_nothing(sources: ModuleType) -> None:
    chat = sources.chosen_prompts("chat", 0)
    assert {prompt.category for prompt in chat} == {"chat", "creative"}
    assert len(chat) >= 12
    assert sources.chosen_prompts("editing", 3) == builtin_prompts("editing")[:3]


def test_auto_stands_over_the_best_k_and_a_list_over_its_parts(sources: ModuleType) -> None:
    """Ten tokens a run; by prompt, so that a prompt that is slow for all weighs as much as any other."""
    seconds = {("a", 2): (4, 40), ("a", 4): (2, 20), ("a", "auto"): (2, 40), ("b", 2): (6, 60), ("b", "auto"): (6, 60)}
    both = {("a+b", 2): (1, 10), ("a+b", "auto"): (1, 5)}
    runs = [run_of("none", 0, 10, prompt=prompt) for prompt in (1, 2)]
    for (name, k), times in (seconds | both).items():
        runs += [run_of(name, k, s, prompt=i, judged=1, lengths=()) for i, s in enumerate(times, start=1)]
    runs += [run_of("transformers' a", 2, s, prompt=i, peer_of="a", prefill_s=0.0) for i, s in ((1, 1), (2, 10))]
    listed = parse_draft("ngram+suffix")
    parts = [type(part)(name, part.kind, part.options) for part, name in zip(listed.sources, "ab", strict=True)]
    spec = type(listed)("a+b", tuple(parts))
    found = sources.ratios(runs, [sources.Source(DraftChoice(spec, None), (2,))])
    assert {(r["draft"], r["k"], r["over"], r["over_k"]): r["value"] for r in found} == pytest.approx(
        {
            ("a", "auto", "a", 4): 0.5**0.5,
            ("a", "auto", "transformers' a", 2): (1 / 3 * 10 / 41) ** 0.5,  # a second of prefill included
            ("b", "auto", "b", 2): 1.0,
            ("a+b", "auto", "a+b", 2): 2**0.5,
            ("a+b", 2, "a", 4): 2.0,
            ("a+b", "auto", "a", "auto"): 4.0,
            ("a+b", 2, "b", 2): 6.0,
            ("a+b", "auto", "b", "auto"): 72**0.5,
        }
    )


def test_everything_in_one_run(
    sources: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "p.txt", tmp_path / "out.json"
    prompts.write_text("def f(x):\nimport os\nimport os\n", encoding="utf-8")
    drafts = ["-d", "ngram:max=2@3", "-d", "early-exit:1", "-d", "demo:draft@1,3", "-d", "ngram:max=2+demo:draft@2"]
    argv = ["sources.py", *drafts, "--hopeless", "demo:draft", "--prompts", str(prompts), "--limit", "2"]
    monkeypatch.setattr(sys, "argv", [*argv, "--tokens", "8", "--dtype", "float32", "-o", str(out)])
    sources.main()
    made: dict[str, Any] = json.loads(out.read_text())
    assert made["settings"]["target"] == "demo:target"
    (record,) = made["sets"].values()
    assert [(r["draft"], r["k"]) for r in record["results"]] == [
        ("ngram:max=2", 3), ("ngram:max=2", "auto"), ("early-exit:1", 4), ("early-exit:1", "auto"),
        ("demo:draft", 1), ("demo:draft", 3), ("demo:draft", "auto"),
        ("ngram:max=2+demo:draft", 2), ("ngram:max=2+demo:draft", "auto"), ("random weights", "auto"),
    ]  # fmt: skip
    assert all(r["lossless"]["identical"] and r["prompts"] == 2 for r in record["results"])
    assert record["results"][-1]["acceptance"]["alpha"] == 0  # not the trained draft under another name
    assert [(p["draft"], p["k"], p["identical"]) for p in record["peers"]] == [("ngram:max=2", 3, True)]
    assert {sample["new_tokens"] for sample in record["baseline_samples"]} == {8}
    shown = capsys.readouterr().out
    assert "ngram:max=2 K 3 over transformers' ngram:max=2, prefill included: " in shown
    assert "ngram:max=2+demo:draft K auto over demo:draft K auto: " in shown
