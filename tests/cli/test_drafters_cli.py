"""Sources that need no second model, and lists of sources, through the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from running import Specdec

from specdec_cli.commands import bench as command
from specdec_cli.commands.bench.exporting import exported
from specdec_cli.drafters.base import Context
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.spec import parse_draft
from specdec_cli.runtime.pairs.pair import load_pairs
from specdec_cli.runtime.pairs.peers import transformers_generate
from specdec_cli.settings import BenchSettings, SamplingSettings

PROMPT = "abcabcab"
GREEDY = ("--raw", "--max-new-tokens", "24", "--ignore-eos", "--temperature", "0")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {
        "target": tiny.save(home / "target", tiny.model("llama", num_hidden_layers=3)),
        "draft": tiny.save(home / "draft", tiny.model("llama", seed=5)),
    }


@pytest.fixture
def record(specdec: Specdec, folders: dict[str, Path]) -> Callable[..., dict[str, Any]]:
    """One answer's document by `generate --format json`; MODEL in a draft stands for the draft's folder."""

    def generate(draft: str, *options: str | Path) -> dict[str, Any]:
        models = ("--target", folders["target"], "--draft", draft.replace("MODEL", str(folders["draft"])))
        code, out, err = specdec("generate", PROMPT, *models, "--device", "cpu", "--format", "json", *GREEDY, *options)
        assert code == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    return generate


def test_every_source_gives_the_text_of_plain_decoding(record: Callable[..., dict[str, Any]]) -> None:
    plain = record("none")
    sources = (
        "ngram", "ngram:max=2,min=2", "suffix", "early-exit:2", "ngram+early-exit:1", "ngram+suffix+MODEL",
        "lookahead", "ngram+lookahead:window=3,ngram=4,candidates=2",
    )  # fmt: skip
    for draft in sources:
        document = record(draft)
        assert document["token_ids"] == plain["token_ids"]
        assert document["rounds"] <= plain["rounds"]


def test_records_of_several_sources_count_each(
    record: Callable[..., dict[str, Any]], folders: dict[str, Path], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    document = record("ngram+MODEL", "--trace", trace)
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    assert set(document["sources"]) == {"ngram", str(folders["draft"])}
    for name, counts in document["sources"].items():
        mine = [r for r in rounds if r["source"] == name]
        assert counts == {
            "rounds": len(mine),
            "drafted": sum(len(r["draft_token_ids"]) for r in mine),
            "accepted": sum(r["provenance"].count("accepted") for r in mine),
        }
    assert document["settings"]["draft"]["name"] == f"ngram+{folders['draft']}"
    alone = record("ngram")
    assert "sources" not in alone
    assert alone["settings"]["draft"] == {"source": "ngram"}


def test_a_trace_holds_the_whole_tree_and_the_record_counts_one_branch(
    record: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    document = record("lookahead", "--trace", trace, "--k", "2")
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    wide = [r for r in rounds if r["tree"]]
    assert len(wide) > 5
    for r in wide:
        assert len(r["tree"]["token_ids"]) == len(r["tree"]["parents"]) > len(r["draft_token_ids"])
        assert 1 <= len(r["draft_token_ids"]) <= 2
        assert set(r["draft_token_ids"]) <= set(r["tree"]["token_ids"])
    assert document["drafted"] == sum(len(r["draft_token_ids"]) for r in rounds)
    assert document["rounds"] == len(rounds)


@pytest.fixture(scope="module")
def short_sighted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and itself with a context of 64 tokens as its draft."""
    home = tmp_path_factory.mktemp("short")
    draft = tiny.save(home / "draft", tiny.model(max_position_embeddings=64))
    return tiny.save(home / "target", tiny.model()), draft


def passes_of(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass of this model reads, from now on."""
    seen: list[int] = []
    forward = model.forward

    def watched(token_ids: Any, num_logits: int) -> Any:
        seen.append(len(token_ids))
        return forward(token_ids, num_logits)

    monkeypatch.setattr(model, "forward", watched)
    return seen


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "note", "after"),
    [
        (100, 10, "prompt and --max-new-tokens come to 110", "for the last 10 tokens"),
        (40, 40, "prompt and --max-new-tokens come to 80", "for the last 15 tokens"),
        (64, 1, "prompt and --max-new-tokens come to 65", ""),
        (40, 24, "", ""),
    ],
)
def test_a_text_beyond_the_drafts_context_is_told_before_and_after(
    specdec: Specdec,
    short_sighted: tuple[Path, Path],
    tmp_path: Path,
    prompt: int,
    new_tokens: int,
    note: str,
    after: str,
) -> None:
    target, draft = short_sighted
    options = (
        "--device",
        "cpu",
        "-n",
        str(new_tokens),
        "--ignore-eos",
        "--temperature",
        "0",
        "--trace",
        tmp_path / "t",
    )
    code, _, err = specdec("generate", "x" * prompt, "-t", target, "-d", draft, *options)
    assert code == 0
    told = [line for line in err.splitlines() if "context" in line]
    assert len(told) == bool(note) + bool(after)
    if note:
        assert (
            told[0]
            == f"note: draft {draft}: its context is 64 tokens, and {note}: beyond its context it drafts nothing"
        )
    if after:
        assert told[1] == f"the draft's context is full: it drafted nothing {after}"
    # Every round that had room drafted, no other did, and the counts say so.
    length = prompt
    for line in map(json.loads, (tmp_path / "t").read_text().splitlines()):
        left = prompt + new_tokens - length
        assert len(line["draft_token_ids"]) == max(0, min(4, left - 1, 65 - length))
        length += len(line["token_ids"])


def test_a_prompt_beyond_the_drafts_context_is_not_read_by_it(
    short_sighted: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = tiny.pair(*short_sighted)
    assert pair.draft is not None
    passes = passes_of(pair.draft, monkeypatch)
    drafter = DraftModel(pair.draft, SamplingSettings(temperature=0.0))
    for prompt_tokens, read in ((65, 0), (64, 63), (200, 0)):
        passes.clear()
        drafter.reset(Context(prompt_tokens * [1]))
        draft = drafter.propose(Context(prompt_tokens * [1]), 4, torch.Generator())
        assert len(draft.token_ids) == (1 if read else 0)
        assert sum(passes[:1]) == read
        drafter.observe(0)


def test_of_several_prompts_those_beyond_the_drafts_context_are_counted(
    specdec: Specdec, short_sighted: tuple[Path, Path], tmp_path: Path
) -> None:
    target, draft = short_sighted
    prompts = tmp_path / "p.txt"
    prompts.write_text("x" * 100 + "\nshort\n" + "y" * 120 + "\n", encoding="utf-8")
    options = ("-t", target, "-d", draft, "--device", "cpu", "-n", "8", "--temperature", "0", "--prompts", prompts)
    note = (
        f"note: draft {draft}: its context is 64 tokens, and prompt and --max-new-tokens come to up to 128 in 2 of 3 "
        "prompts: beyond its context it drafts nothing"
    )
    for name in ("generate", "bench"):
        code, _, err = specdec(name, *options)
        assert code == 0, err
        assert err.splitlines().count(note) == 1


def test_bench_says_that_nothing_was_drafted(
    specdec: Specdec, short_sighted: tuple[Path, Path], tmp_path: Path
) -> None:
    target, draft = short_sighted
    prompts = tmp_path / "p.txt"
    prompts.write_text("x" * 100 + "\n", encoding="utf-8")
    options = ("-t", target, "-d", draft, "--device", "cpu", "-n", "8", "--temperature", "0", "--prompts", prompts)
    code, out, _ = specdec("bench", *options)
    assert code == 0
    assert "it does not pay: nothing was drafted." in " ".join(out.split())
    assert "it pays" not in out
    code, out, _ = specdec("sweep-k", "--k", "1,2", *options)
    assert code == 0
    assert "it does not pay: nothing was drafted." in " ".join(out.split())
    code, out, _ = specdec("bench", *options, "--format", "json")
    (result,) = json.loads(out)["results"]
    assert (result["drafted"], result["cost"]) == (0, None)
    assert [length for length, _ in result["draft_lengths"]] == [0]
    assert result["acceptance"]["judged"] == 0


def test_a_target_without_trees_is_one_line_and_exit_code_3(specdec: Specdec, tmp_path: Path) -> None:
    target = tiny.save(tmp_path / "sliding", tiny.model("mistral"))
    for draft in ("lookahead", "ngram+lookahead"):
        code, out, err = specdec("generate", "x", "--target", target, "--draft", draft, "--device", "cpu")
        assert (code, out) == (3, "")
        assert err.splitlines()[-1] == (
            "specdec: --draft lookahead: the target cannot read drafts that branch: MistralForCausalLM has "
            "sliding-window layers, whose cache cannot keep one path of a tree; choose another source of drafts"
        )


def test_the_summary_names_each_source(specdec: Specdec, folders: dict[str, Path]) -> None:
    models = ("--target", folders["target"], "--draft", "ngram+early-exit:1", "--device", "cpu")
    code, _, err = specdec("generate", PROMPT, *models, *GREEDY, "--verbose")
    assert code == 0
    assert "\nngram: " in err
    assert "\nearly-exit:1: " in err


def test_a_layer_too_many_is_one_line(specdec: Specdec, folders: dict[str, Path]) -> None:
    code, _, err = specdec("generate", "x", "--target", folders["target"], "--draft", "early-exit:3", "--device", "cpu")
    assert code == 2
    assert err.splitlines()[-1] == (
        "specdec: --draft early-exit:3: the target has 3 layers: give a number from 1 to 2"
    )  # fmt: skip


@pytest.fixture
def bench(specdec: Specdec, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Specdec:
    """`bench` or `sweep-k` with two small prompts and nothing copied to measure the memory."""
    monkeypatch.setattr(command.document, "copy_bandwidth", lambda device, clock: 1e9)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abcabcab\nxyxyxyx\n")

    def run(name: str, *options: str | Path) -> tuple[int, str, str]:
        models = ("--target", folders["target"], "--device", "cpu", "--dtype", "float32", "--seed", "1")
        return specdec(name, *models, "--prompts", prompts, "--raw", "-n", "16", "--quiet", *options)

    return run


def test_bench_measures_every_source_beside_the_others(bench: Specdec, folders: dict[str, Path]) -> None:
    both = f"ngram+{folders['draft']}"
    drafts = [
        word
        for name in ("ngram", "suffix", "early-exit:1", "lookahead", both, str(folders["draft"]))
        for word in ("-d", name)
    ]
    code, out, err = bench("bench", *drafts, "--format", "json", "--k", "3")
    assert code == 0, err
    results = {r["draft"]: r for r in json.loads(out)["results"]}
    assert list(results) == drafts[1::2]
    assert all(r["lossless"]["identical"] for r in results.values())
    assert set(results[both]["sources"]) <= {"ngram", str(folders["draft"])}
    assert sum(c["drafted"] for c in results[both]["sources"].values()) == sum(
        s["drafted"] for s in results[both]["samples"]
    )
    assert not any("sources" in r for name, r in results.items() if name != both)
    assert [name for name, r in results.items() if "tokens_per_pass" in r] == ["lookahead"]
    assert results["lookahead"]["tokens_per_pass"] > 8


def test_lookahead_swept_over_k_and_under_auto(bench: Specdec) -> None:
    code, out, err = bench("sweep-k", "-d", "lookahead", "--k", "1-2", "--format", "json")
    assert code == 0, err
    results = json.loads(out)["results"]
    assert [r["k"] for r in results] == [1, 2]
    assert all(r["lossless"]["identical"] for r in results)
    assert {length for length, _ in results[0]["draft_lengths"]} == {1}
    code, out, err = bench("bench", "-d", "lookahead", "--k", "auto", "--format", "json")
    assert code == 0, err
    assert json.loads(out)["results"][0]["lossless"]["identical"]


def test_the_warm_up_teaches_the_measured_arms_nothing(bench: Specdec) -> None:
    """Without memory every text is read alone; with it the second prompt may profit, the first must not."""
    drafted = []
    for draft in ("suffix", "suffix:memory=off"):
        code, out, err = bench("bench", "-d", draft, "--format", "json", "--k", "4")
        assert code == 0, err
        (result,) = json.loads(out)["results"]
        first = next(s for s in result["samples"] if s["prompt"] == 1)
        drafted.append((first["drafted"], first["accepted"], first["rounds"]))
    assert drafted[0] == drafted[1]


def test_the_table_shows_each_source(bench: Specdec) -> None:
    code, out, err = bench("bench", "-d", "ngram+early-exit:1", "--k", "2")
    assert code == 0, err
    assert "sources" in out
    assert "ngram: " in out
    assert "early-exit:1: " in out


def test_several_drafts_stand_side_by_side_at_the_end(bench: Specdec) -> None:
    code, out, err = bench("bench", "-d", "ngram", "-d", "early-exit:1", "--k", "2", "--fail-if-slower", "0.001")
    assert code == 0, err
    table = out[out.rindex("tok/round") :]
    rows = [line.split()[:3] for line in table.splitlines() if line.lstrip().startswith(("ngram ", "early-exit:1 "))]
    assert rows == [["ngram", "0", "2"], ["early-exit:1", "0", "2"]]
    assert "\nAnswer\n" in table
    assert "At temperature 0 " in table


def test_what_learns_cannot_be_resumed(bench: Specdec, tmp_path: Path) -> None:
    code, _, err = bench("bench", "-d", "ngram+suffix", "--resume", tmp_path / "runs.jsonl")
    assert code == 2
    assert "--draft ngram+suffix learns from prompt to prompt" in err
    assert bench("bench", "-d", "suffix:memory=off", "--resume", tmp_path / "runs.jsonl", "--k", "1")[0] == 0


def test_prompt_lookup_is_exported_with_its_lengths(bench: Specdec, folders: dict[str, Path]) -> None:
    code, out, err = bench("sweep-k", "-d", "ngram:max=4,min=2", "--k", "2", "--export", "vllm")
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if not line.startswith("#")]
    wanted = '{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":4,"prompt_lookup_min":2}'
    assert line == f"vllm serve {folders['target']} --speculative-config '{wanted}'"


@pytest.mark.parametrize(
    ("tool", "draft", "message"),
    [
        ("vllm", "suffix", "--export has no form for --draft suffix"),
        ("vllm", "early-exit:1", "--export has no form for --draft early-exit:1"),
        ("transformers", "ngram+a/b", "--export has no form for --draft ngram+a/b"),
        ("sglang", "ngram", "--export sglang has no form for prompt lookup"),
    ],
)
def test_what_cannot_be_exported_is_told_before_anything_is_measured(
    bench: Specdec, tool: str, draft: str, message: str
) -> None:
    code, out, err = bench("sweep-k", "-d", draft, "--k", "2", "--export", tool)
    assert (code, out) == (2, "")
    assert message in err


def test_the_embedded_pair_is_exported_by_its_folders(demo: Any) -> None:
    request = command.BenchRequest(
        target=tiny.settings("demo:target"), drafts=[(parse_draft("demo:draft"), tiny.settings("demo:draft"))],
        settings=BenchSettings(ks=(2,)), sampling=SamplingSettings(), prompts=[], prompt_source="code",
        prompts_sha256="",
        export="transformers",
    )  # fmt: skip
    best = {"draft": "demo:draft", "k": 2, "temperature": 0.0, "speedup": 1.5}
    text = exported(request, [demo], {"recommendation": [best]})
    assert "demo:" not in text
    for role in ("target", "draft"):
        assert f"specdec_cli/demo/{role}" in text


def test_a_draft_that_is_wanted_twice_is_loaded_once(folders: dict[str, Path]) -> None:
    target, draft = tiny.settings(folders["target"]), tiny.settings(folders["draft"])
    first, plain, again = load_pairs(target, [draft, None, draft], lambda _: None)
    assert first.draft is again.draft is not None
    assert plain.draft is None
    assert (plain.notes, again.notes) == ((), ())


def test_transformers_prompt_lookup_stands_beside_ours(folders: dict[str, Path], bench: Specdec) -> None:
    pair = tiny.pair(folders["target"], None)
    ids = pair.encode([{"role": "user", "content": PROMPT}], raw=True)
    greedy = SamplingSettings(temperature=0.0)
    plain = transformers_generate(pair, greedy, None)(ids, 12, 0)
    assert transformers_generate(pair, greedy, 3, longest_ngram=2)(ids, 12, 0) == plain
    ended = plain[: plain.index(plain[5]) + 1]
    assert transformers_generate(pair, greedy, 3, longest_ngram=2, end_ids={plain[5]})(ids, 12, 0) == ended
    code, out, err = bench("bench", "-d", "ngram", "-d", "suffix", "--compare", "transformers", "--format", "json")
    assert code == 0, err
    peers = [(p["peer"], p["identical"]) for p in json.loads(out)["peers"]]
    assert peers == [("transformers generate", True), ("transformers prompt lookup by ngram", True)]


def test_a_built_in_set_is_answered_and_its_quotations_are_marked(specdec: Specdec) -> None:
    """Prompt lookup on texts that ask their input back, as `--show-draft` shows it."""
    code, out, err = specdec("generate", "--draft", "ngram", "--prompts", "editing", "--show-draft", "-n", "8")
    assert code == 0, err
    assert err.count(" drafted tokens accepted") >= 5
    assert "‹" in out


OWN_MODEL = "is for a draft that is a model of its own, not for --draft"
PROBABILITIES = "is for a draft with probabilities (a model, or early-exit:N), not for --draft"


@pytest.mark.parametrize(
    ("drafts", "options", "message"),
    [
        (["ngram"], ["--draft-quantize", "int8"], f"--draft-quantize {OWN_MODEL} ngram: leave it out"),
        (["suffix"], ["--draft-dtype", "float32"], f"--draft-dtype {OWN_MODEL} suffix: leave it out"),
        (["lookahead"], ["--draft-vocab", "100"], f"--draft-vocab {OWN_MODEL} lookahead: leave it out"),
        (["early-exit:1"], ["--draft-device", "cpu"], f"--draft-device {OWN_MODEL} early-exit:1: leave it out"),
        (["none"], ["--draft-revision", "v2"], f"--draft-revision {OWN_MODEL} none: leave it out"),
        (["ngram+suffix"], ["--draft-stop", "0.3"], f"--draft-stop {PROBABILITIES} ngram+suffix: leave it out"),
        (["none"], ["--draft-stop", "0.3"], f"--draft-stop {PROBABILITIES} none: leave it out"),
        (["MODEL"], ["--draft-revision", "v2"], "--draft-revision is for a hub id, and --draft MODEL is here"),
        (["MODEL"], ["--revision", "v2"], "--revision is for a hub id, and --target TARGET is here: leave it out"),
        (["ngram", "early-exit:1"], ["--draft-quantize", "int8"], f"{OWN_MODEL} ngram, early-exit:1: leave it out"),
        (["ngram", "lookahead"], ["--draft-stop", "0.3"], f"{PROBABILITIES} ngram, lookahead: leave it out"),
        (["MODEL", "ngram"], ["--draft-stop", "0.3", "--compare", "transformers"], "leave out --draft-stop"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_that_would_do_nothing_is_refused(
    specdec: Specdec, folders: dict[str, Path], drafts: list[str], options: list[str], message: str
) -> None:
    words = [word for draft in drafts for word in ("--draft", draft.replace("MODEL", str(folders["draft"])))]
    command = ["bench"] if len(drafts) > 1 else ["generate", "x"]
    code, out, err = specdec(*command, "--target", folders["target"], *words, *options)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert message.replace("MODEL", str(folders["draft"])).replace("TARGET", str(folders["target"])) in line


def test_what_a_script_keeps_while_it_sweeps_temperatures_is_no_mistake(
    specdec: Specdec, folders: dict[str, Path]
) -> None:
    options = ("--top-p", "0.9", "--min-p", "0.1", "--temperature", "0", "-n", "2", "--raw")
    code, _, err = specdec("generate", "x", "--target", folders["target"], "--draft", "none", *options)
    assert code == 0, err


def test_one_draft_that_heeds_an_option_is_enough(bench: Specdec, folders: dict[str, Path]) -> None:
    drafts = ("-d", "ngram", "-d", f"suffix+{folders['draft']}")
    options = ("--draft-dtype", "bfloat16", "--draft-stop", "0.01", "--temperature", "0", "--temperature", "1")
    code, out, err = bench("bench", *drafts, *options, "--top-k", "5", "--k", "1", "--format", "json")
    assert code == 0, err
    settings = json.loads(out)["settings"]
    assert [draft.get("dtype") for draft in settings["drafts"]] == [None, "bfloat16"]
    assert (settings["draft_stop"], settings["sampling"]["top_k"]) == (0.01, 5)
