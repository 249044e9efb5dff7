"""`specdec pair-check` as a script meets it: exit codes, JSON, and every kind of pair that works, limps or cannot."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from gguf_writer import END_ID, TOKENS, write_gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from specdec_cli.commands import pair_check as command
from specdec_cli.runtime.checkpoints.gguf import converted
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.pairs import resources
from specdec_cli.runtime.pairs.checks import Check, undecided, verdict
from specdec_cli.runtime.pairs.side import Side, look_at
from specdec_cli.settings import ModelSettings

Specdec = Callable[..., tuple[int, str, str]]
SIZE = tiny.VOCAB_SIZE
CHAT = tiny.CHAT_TEMPLATE
LAYERS = 6  # of a target beside which a draft of one layer costs little


@pytest.fixture
def ask(specdec: Specdec) -> Callable[..., tuple[int, dict[str, Any]]]:
    """ask(target, draft, ..., options=()): the exit code and the document."""

    def run(target: str | Path, *drafts: str | Path, options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
        named = [part for draft in drafts for part in ("--draft", str(draft))]
        code, out, err = specdec(
            "pair-check", "--target", target, *named, "--device", "cpu", "--format", "json", *options
        )
        assert out, err
        return code, json.loads(out)

    return run


Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def inspected() -> dict[object, Side]:
    """Every checkpoint that a test of this module has looked into."""
    return {}


@pytest.fixture(autouse=True)
def _inspect_once(inspected: dict[object, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the time would go into building the same models again."""

    def inspect(settings: ModelSettings, role: str, report: Report) -> Side:
        if (settings, role) not in inspected:
            inspected[settings, role] = look_at(settings, role, report)
        return inspected[settings, role]

    monkeypatch.setattr(command, "look_at", inspect)


def named(document: dict[str, Any], name: str) -> dict[str, Any]:
    """One check of the deciding pair."""
    (found,) = (check for check in document["checks"] if check["name"] == name)
    return found


def statuses(document: dict[str, Any]) -> dict[str, str]:
    """Every check that is not ok."""
    return {c["name"]: c["status"] for c in document["checks"] if c["status"] != "ok"}


def big(vocab_size: int = SIZE, **overrides: Any) -> Any:
    """A target beside which `small` costs little."""
    return tiny.model("llama", vocab_size, **{"num_hidden_layers": LAYERS} | overrides)


def small(vocab_size: int = SIZE, **overrides: Any) -> Any:
    """A draft: one layer."""
    return tiny.model("llama", vocab_size, seed=1, **{"num_hidden_layers": 1} | overrides)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("target"), big())


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("draft"), small())


@pytest.fixture(scope="module")
def swapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The draft's twin, whose A and B have changed places."""
    ids = {c: i for i, c in enumerate(tiny.ALPHABET)}
    ids["A"], ids["B"] = ids["B"], ids["A"]
    return tiny.save(tmp_path_factory.mktemp("swapped"), small(), tiny.tokenizer_of(ids))


@pytest.fixture(scope="module")
def unreadable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft whose tokenizer is damaged."""
    folder = tiny.save(tmp_path_factory.mktemp("unreadable"), small())
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    return folder


# ------------------------------------------------------------------------------------- pairs that work
def test_a_pair_that_fits_is_ok_throughout(ask: Ask, target: Path, draft: Path) -> None:
    code, document = ask(target, draft)
    assert code == 0
    assert document["compatible"] is True
    assert statuses(document) == {}
    assert all(check["remedy"] == "" for check in document["checks"])
    assert [fact["accepts"] for fact in document["pairs"][0]["elsewhere"]] == [True, True, True]


def test_the_shape_of_the_document(ask: Ask, target: Path, draft: Path) -> None:
    _, document = ask(target, draft)
    assert list(document) == [
        "schema", "specdec_version", "environment", "settings", "draft", "compatible", "checks", "memory", "pairs",
    ]  # fmt: skip
    (pair,) = document["pairs"]
    assert list(pair) == ["draft", "compatible", "checks", "memory", "cost", "elsewhere", "head", "probe"]
    assert {key: pair[key] for key in ("draft", "compatible", "checks", "memory")} == {
        key: document[key] for key in ("draft", "compatible", "checks", "memory")
    }
    assert all(set(check) == {"name", "status", "detail", "remedy", "decided"} for check in pair["checks"])
    assert pair["probe"] is None


def test_the_demo_pair_is_checked_without_any_option(specdec: Specdec) -> None:
    code, out, _ = specdec("pair-check")
    assert code == 0
    lines = out.splitlines()
    assert "ok: vocabulary, one-sided tokens, special tokens" in " ".join(lines)
    assert not any(line.startswith(" vocabulary") for line in lines)  # what is ok is folded
    answer = " ".join(lines[lines.index("Answer") :])
    assert answer.startswith("Answer compatible; it pays where more than 27% of drafted tokens are accepted")
    assert any(line.split() == ["0.8", "3", "1.62x"] for line in lines)  # the cost as a table
    code, out, _ = specdec("pair-check", "--verbose")
    assert code == 0
    assert {"vocabulary", "memory", "cost"} <= {line.split(" ")[1] for line in out.splitlines() if " ok " in line}


def test_a_model_beside_itself_is_compatible_and_cannot_pay(ask: Ask, target: Path) -> None:
    code, document = ask(target, target)
    assert code == 0
    assert statuses(document) == {"cost": "warn"}
    assert document["pairs"][0]["cost"]["c_by_bytes"] == 1
    assert "smaller --draft" in named(document, "cost")["remedy"]


def test_a_draft_larger_than_its_target(ask: Ask, target: Path, draft: Path) -> None:
    code, document = ask(draft, target)
    assert (code, statuses(document)) == (0, {"cost": "warn"})
    assert document["pairs"][0]["cost"]["c_by_bytes"] > 2
    assert "no alpha can pay" in named(document, "cost")["detail"]


@pytest.mark.parametrize(("ours", "theirs"), [(15, 0), (0, 15), (400, 7)])
def test_padded_embeddings_work_here_and_are_refused_where_sizes_count(
    ours: int, theirs: int, ask: Ask, tmp_path: Path
) -> None:
    """Symptom 1."""
    target, draft = tiny.save(tmp_path / "t", big(SIZE + ours)), tiny.save(tmp_path / "d", small(SIZE + theirs))
    code, document = ask(target, draft)
    assert (code, statuses(document)) == (0, {})
    detail = named(document, "embedding rows")["detail"]
    for role, more in (("target", ours), ("draft", theirs)):
        padding = f", {more} of padding, masked" if more else ""
        assert f"{role} {SIZE + more} rows for {SIZE} tokens{padding}" in detail
    facts = {fact["engine"]: fact["accepts"] for fact in document["pairs"][0]["elsewhere"]}
    assert facts == {"vLLM": False, "llama.cpp": abs(ours - theirs) <= 128, "transformers": False}


@pytest.mark.parametrize(("ours", "theirs", "who"), [(("<x>",), (), "target"), ((), ("<x>",), "draft")])
def test_one_added_token_more_on_either_side(
    ours: tuple[str, ...], theirs: tuple[str, ...], who: str, ask: Ask, tmp_path: Path
) -> None:
    target = tiny.save(tmp_path / "t", big(SIZE + len(ours)), tiny.byte_tokenizer(ours))
    draft = tiny.save(tmp_path / "d", small(SIZE + len(theirs)), tiny.byte_tokenizer(theirs))
    code, document = ask(target, draft)
    assert (code, statuses(document)) == (0, {"one-sided tokens": "warn"})
    assert f"only the {who} has 1 ({SIZE} '<x>')" in named(document, "one-sided tokens")["detail"]
    code, document = ask(target, draft, options=("--strict",))
    assert (code, document["compatible"]) == (3, False)


def test_sliding_windows_can_be_rolled_back(ask: Ask, tmp_path: Path) -> None:
    target = tiny.save(
        tmp_path / "t", tiny.model("gemma3", num_hidden_layers=LAYERS, layer_types=["sliding_attention"] * LAYERS)
    )
    draft = tiny.save(tmp_path / "d", tiny.model("mistral", num_hidden_layers=1))
    code, document = ask(target, draft)
    assert (code, statuses(document)) == (0, {})
    detail = named(document, "roll back")["detail"]
    assert f"target has {LAYERS} sliding-window layers ({tiny.WINDOW} tokens)" in detail
    assert f"draft has 1 sliding-window layers ({tiny.WINDOW} tokens)" in detail


# ------------------------------------------------------------------------------ pairs that work less well
def tokenizer_with(
    merges: tuple[tuple[str, str], ...], pre_tokenizer: Any = None, extra: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    """The bytes, some merges, and another step before them."""
    vocabulary = [*tiny.ALPHABET, *sorted({a + b for a, b in merges}), *extra]
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocabulary)}, merges=list(merges)))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = level if pre_tokenizer is None else pre_tokenizers.Sequence([pre_tokenizer, level])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(tiny.END, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=tiny.END, bos_token=tiny.END)


MERGES = (("1", "4"), ("o", "w"), ("t", "h"))


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (tokenizer_with(MERGES, pre_tokenizers.Digits(individual_digits=True)), "numbers"),
        (tokenizer_with((MERGES[0], ("b", "r"), MERGES[2]), extra=()), None),
    ],
    ids=["pre-tokenizer", "merges"],
)
def test_the_same_vocabulary_cut_in_another_way(
    other: PreTrainedTokenizerFast, kind: str | None, ask: Ask, tmp_path: Path
) -> None:
    """What only encoding shows. Where the merges differ, so does a token, and that is no longer the same pair."""
    rows = SIZE + len(MERGES)
    target = tiny.save(tmp_path / "t", big(rows), tokenizer_with(MERGES), end_ids=rows - 1)
    draft = tiny.save(tmp_path / "d", small(rows), other, end_ids=rows - 1)
    code, document = ask(target, draft)
    if kind is None:
        assert (code, named(document, "vocabulary")["status"]) == (3, "fail")
        return
    assert (code, statuses(document)) == (0, {"text to ids": "warn"})
    assert named(document, "vocabulary")["status"] == "ok"
    detail = named(document, "text to ids")["detail"]
    assert kind in detail
    assert "'14' " in detail or "'14'" in detail
    assert "pre-tokenizer" in named(document, "tokenizer type")["detail"]


def test_the_same_tokens_merged_in_another_order(ask: Ask, tmp_path: Path) -> None:
    rows = SIZE + 3
    merges = (("o", "w"), ("w", "n"), ("b", "r"))
    target = tiny.save(tmp_path / "t", big(rows), tokenizer_with(merges), end_ids=rows - 1)
    draft = tiny.save(tmp_path / "d", small(rows), tokenizer_with(merges[::-1]), end_ids=rows - 1)
    code, document = ask(target, draft)
    assert (code, statuses(document)) == (0, {"text to ids": "warn"})
    assert "in 'prose' 'ow' " in named(document, "text to ids")["detail"]
    assert "merges" in named(document, "tokenizer type")["detail"]


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (CHAT, CHAT.replace("[{{", "<{{"), "render differently from character 0 on"),
        (CHAT, None, "the target has a chat template, the draft has none"),
        (None, CHAT, "the draft has a chat template, the target has none"),
    ],
)
def test_other_chat_templates_and_base_beside_chat(
    ours: str | None, theirs: str | None, word: str, ask: Ask, tmp_path: Path
) -> None:
    """Symptom 16, both ways."""
    target = tiny.save(tmp_path / "t", big(), tiny.byte_tokenizer(chat_template=ours))
    draft = tiny.save(tmp_path / "d", small(), tiny.byte_tokenizer(chat_template=theirs))
    code, document = ask(target, draft)
    assert (code, statuses(document)) == (0, {"chat template": "warn"})
    assert word in named(document, "chat template")["detail"]


def test_templates_are_compared_by_what_they_render(ask: Ask, tmp_path: Path) -> None:
    target = tiny.save(tmp_path / "t", big(), tiny.byte_tokenizer(chat_template=CHAT))
    draft = tiny.save(tmp_path / "d", small(), tiny.byte_tokenizer(chat_template=CHAT + "{# a comment #}"))
    assert statuses(ask(target, draft)[1]) == {}


def test_other_end_tokens(ask: Ask, tmp_path: Path) -> None:
    extra = ("<|im_end|>",)
    instruct = tiny.byte_tokenizer(extra)
    instruct.eos_token = extra[0]
    target = tiny.save(tmp_path / "t", big(SIZE + 1), instruct, end_ids=[tiny.BYTES, SIZE])
    draft = tiny.save(tmp_path / "d", small(SIZE + 1), tiny.byte_tokenizer(extra))
    code, document = ask(target, draft)
    assert (code, statuses(document)) == (0, {"special tokens": "warn", "end tokens": "warn"})
    assert f"target '{tiny.END}' ({tiny.BYTES}), '<|im_end|>' ({SIZE})" in named(document, "end tokens")["detail"]
    assert f"eos '<|im_end|>' ({SIZE}) / '{tiny.END}' ({tiny.BYTES})" in named(document, "special tokens")["detail"]
    llama_cpp = next(f for f in document["pairs"][0]["elsewhere"] if f["engine"] == "llama.cpp")
    assert llama_cpp["accepts"] is False
    assert "eos" in llama_cpp["detail"]


def test_a_draft_with_a_shorter_context_and_the_remedy(ask: Ask, target: Path, tmp_path: Path) -> None:
    draft = tiny.save(tmp_path / "d", small(max_position_embeddings=100))
    code, document = ask(target, draft)
    assert (code, statuses(document)) == (0, {"context": "warn"})
    assert "beyond 100 the draft proposes nothing" in named(document, "context")["detail"]
    assert document["memory"]["context"] == 100
    assert "--context 100" in named(document, "context")["remedy"]
    assert statuses(ask(target, draft, options=("--context", "100"))[1]) == {}


def test_a_context_beyond_the_targets_and_the_remedy(ask: Ask, target: Path, draft: Path) -> None:
    _, document = ask(target, draft, options=("--context", "5000"))
    assert statuses(document) == {"context": "warn"}
    assert "you asked for 5,000" in named(document, "context")["detail"]
    assert "--context 256" in named(document, "context")["remedy"]
    assert statuses(ask(target, draft, options=("--context", "256"))[1]) == {}


# -------------------------------------------------------------------------------------- pairs that cannot
@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({"rope_type": "default"}, 64),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "linear", "factor": 2.5}, 160),
        ({"rope_type": "dynamic", "factor": 4.0}, 256),
        (
            {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            | {"original_max_position_embeddings": 16},
            64,
        ),
    ],
    ids=["default", "yarn", "yarn-extended-already", "linear", "dynamic", "llama3"],
)
def test_a_declared_factor_extends_the_context(
    rope: dict[str, Any], context: int, ask: Ask, specdec: Specdec, tmp_path: Path
) -> None:
    """And generate has the same positions: its text ends with the token behind the last of them."""
    model = tiny.model(max_position_embeddings=64, rope_parameters={"rope_theta": 1e4, **rope})
    folder = tiny.save(tmp_path / "target", model)
    code, document = ask(folder, folder)
    assert code == 0
    assert named(document, "context")["detail"].startswith(f"target {context}, draft ")
    assert named(document, "rotary embedding")["detail"].startswith(f"target {rope['rope_type']}")
    code, out, err = specdec(
        "generate", "x" * (context - 2), "-t", folder, "-d", "none", "--ignore-eos", "-n", "9", "--format", "json"
    )
    assert code == 0
    assert len(json.loads(out)["token_ids"]) == 3
    assert f"the context of {context:,} tokens is full" in err


def test_frequencies_that_follow_the_length_of_the_text(ask: Ask, tmp_path: Path) -> None:
    long = tiny.save(tmp_path / "long", tiny.model(rope_parameters=tiny.LONGROPE, max_position_embeddings=128))
    dynamic = tiny.save(tmp_path / "dynamic", tiny.model(rope_parameters=tiny.DYNAMIC, max_position_embeddings=32))
    code, document = ask(long, dynamic)
    assert code == 0
    check = named(document, "rotary embedding")
    assert check["status"] == "ok"
    assert check["detail"] == (
        "target longrope (rotary frequencies change beyond 32 tokens: there it reads the text anew, once); "
        "draft dynamic (rotary frequencies change with every token beyond 32 tokens: there it proposes nothing)"
    )
    assert named(document, "context")["detail"].startswith("target 128, draft 32; beyond 32 the draft")
    code, document = ask(dynamic, long)
    check = named(document, "rotary embedding")
    assert (check["status"], check["remedy"]) == ("warn", "keep texts within 32 tokens")
    assert named(document, "roll back")["status"] == "ok"


def test_two_ids_swapped(ask: Ask, target: Path, swapped: Path) -> None:
    """Symptom 2: sizes are equal, and only the maps show it."""
    code, document = ask(target, swapped)
    assert (code, document["compatible"]) == (3, False)
    a, b = (tiny.ALPHABET.index(c) for c in "AB")
    check = named(document, "vocabulary")
    assert check["status"] == "fail"
    assert f"2 ids mean different tokens (id: target / draft): {a} is 'A' / 'B'; {b} is 'B' / 'A'" in check["detail"]
    facts = {fact["engine"]: fact for fact in document["pairs"][0]["elsewhere"]}
    assert facts["vLLM"]["accepts"] is facts["transformers"]["accepts"] is True, "they look at sizes alone"
    assert facts["llama.cpp"]["accepts"] is False
    assert f"id {a} " in facts["llama.cpp"]["detail"]


@pytest.mark.parametrize("family", tiny.RECURRENT)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_recurrent_and_hybrid_models_cannot_be_rolled_back(
    family: str, role: str, ask: Ask, target: Path, tmp_path: Path
) -> None:
    """Symptom 10."""
    stuck = tiny.save(tmp_path / "stuck", tiny.model(family))
    code, document = ask(stuck, target) if role == "target" else ask(target, stuck)
    assert (code, document["compatible"]) == (3, False)
    check = named(document, "roll back")
    assert check["status"] == "fail"
    assert f"the {role} " in check["detail"]
    assert f"choose another {role}" in check["remedy"]


def encoder_decoder(folder: Path) -> Path:
    config = T5Config(
        vocab_size=SIZE, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tiny.byte_tokenizer().save_pretrained(folder)
    return folder


def encoder(folder: Path) -> Path:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=SIZE, **sizes)).save_pretrained(folder)
    tiny.byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("make", "word"), [(encoder_decoder, "encoder-decoder"), (encoder, "not a causal")])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_what_does_not_generate_from_left_to_right(
    make: Callable[[Path], Path], word: str, role: str, ask: Ask, target: Path, tmp_path: Path
) -> None:
    other = make(tmp_path / "other")
    code, document = ask(other, target) if role == "target" else ask(target, other)
    assert (code, document["compatible"]) == (3, False)
    check = named(document, "architecture")
    assert (check["status"], word in check["detail"], f"--{role}" in check["detail"]) == ("fail", True, True)
    assert document["memory"] is None


# ----------------------------------------------------------------------------------------- could not tell
def test_a_damaged_tokenizer_leaves_the_answer_open(ask: Ask, target: Path, unreadable: Path) -> None:
    code, document = ask(target, unreadable)
    assert (code, document["compatible"]) == (1, None)
    check = named(document, "vocabulary")
    assert (check["status"], check["decided"]) == ("fail", False)
    assert "no tokenizer that can be read" in check["detail"]
    assert "copy the original model's tokenizer files" in check["remedy"]
    assert named(document, "roll back")["status"] == "ok", "what needs no tokenizer is answered all the same"


def test_the_remedy_for_a_damaged_tokenizer(ask: Ask, target: Path, unreadable: Path, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    mended.mkdir()
    for file in unreadable.iterdir():
        (mended / file.name).write_bytes(file.read_bytes())
    (mended / "tokenizer.json").write_bytes((target / "tokenizer.json").read_bytes())
    assert ask(target, mended)[0] == 0


@pytest.mark.parametrize("missing", ["missing", "someone/not-in-the-cache"])
def test_a_draft_that_is_not_there_hides_no_other(missing: str, ask: Ask, target: Path, draft: Path) -> None:
    source = f"./{missing}" if missing == "missing" else missing
    code, document = ask(target, source, draft, options=("--offline",))
    assert (code, document["compatible"], document["draft"]) == (1, None, source)
    assert [pair["compatible"] for pair in document["pairs"]] == [None, True]
    (check,) = document["checks"]
    assert check["decided"] is False
    assert source in check["detail"]


def test_the_worst_answer_decides(ask: Ask, target: Path, draft: Path, swapped: Path, unreadable: Path) -> None:
    code, document = ask(target, draft, unreadable, swapped)
    assert [pair["compatible"] for pair in document["pairs"]] == [True, None, False]
    assert (code, document["compatible"], document["draft"]) == (3, False, str(swapped))


@pytest.mark.parametrize(
    ("source", "code", "word"), [("./missing", 2, "does not exist"), ("someone/not-in-the-cache", 1, "local cache")]
)
def test_a_target_that_is_not_there_is_one_line(
    source: str, code: int, word: str, specdec: Specdec, draft: Path
) -> None:
    found, out, err = specdec("pair-check", "-t", source, "-d", draft, "--offline", "--format", "json")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert word in err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--context", "0"), "--context must be 1 or above"),
        (("--prompts", "code"), "add --probe"),
        (("--draft", "none"), "is no model"),
        (("--draft", "ngram", "--probe"), "is no model"),
        (("--draft", "lookahead", "--probe"), "name a folder, file or hub id, or early-exit:N"),
        (("--draft", "ngram+early-exit:2", "--probe"), "is no model"),
        (("--draft", "early-exit:2"), "add --probe"),
        (("--probe", "--prompts", "./missing.txt"), "cannot be read"),
        (("--output", "./missing/file"), "does not exist"),
        (("--format", "csv"), "csv"),
    ],
)
def test_usage_errors_are_one_line(options: tuple[str, ...], word: str, specdec: Specdec) -> None:
    code, out, err = specdec("pair-check", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert word in err


def test_a_draft_without_anything_to_compare_refuses_no_other(specdec: Specdec, target: Path, draft: Path) -> None:
    drafts = ("-d", "early-exit:1", "-d", draft, "-d", "ngram")
    code, out, err = specdec("pair-check", "-t", target, *drafts, "--device", "cpu", "--format", "json")
    assert code == 0
    assert [pair["draft"] for pair in json.loads(out)["pairs"]] == [str(draft)]
    assert "early-exit:1 is the target itself, so there is nothing to compare: add --probe" in err
    assert "--draft ngram is no model, so there is nothing to compare" in err


@pytest.mark.parametrize("option", ["--device", "--draft-device"])
def test_a_device_that_is_not_here_is_a_usage_error(option: str, specdec: Specdec, target: Path, draft: Path) -> None:
    code, out, err = specdec("pair-check", "-t", target, "-d", draft, option, "cuda:77")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{option} 'cuda:77' is not available" in err


def test_a_folder_without_a_checkpoint_has_a_remedy(ask: Ask, target: Path, tmp_path: Path) -> None:
    code, document = ask(target, tmp_path)
    (check,) = document["checks"]
    assert (code, check["decided"]) == (1, False)
    assert check["detail"].endswith("is a folder with no config.json")
    assert check["remedy"].startswith("give a folder")


def change(folder: Path, file: str, **values: Any) -> Path:
    """Change some values of one of a checkpoint's JSON files."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("file", "values", "word"),
    [
        ("generation_config.json", {"eos_token_id": "<end>"}, "'<end>' as eos_token_id"),
        ("generation_config.json", {"eos_token_id": [256, None]}, "as eos_token_id"),
        ("config.json", {"hidden_size": 0}, "without a single weight"),
    ],
)
def test_a_configuration_with_nonsense_leaves_the_answer_open(
    file: str, values: dict[str, Any], word: str, ask: Ask, target: Path, tmp_path: Path
) -> None:
    code, document = ask(target, change(tiny.save(tmp_path, small()), file, **values))
    (check,) = document["checks"]
    assert (code, check["decided"]) == (1, False)
    assert word in check["detail"]


def test_numbers_that_mean_none(ask: Ask, target: Path, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path, small(), end_ids=-1)
    code, document = ask(target, change(folder, "config.json", max_position_embeddings=-1))
    assert (code, statuses(document)) == (0, {"end tokens": "warn"})
    assert "none (-1)" in named(document, "end tokens")["detail"]
    assert named(document, "context")["detail"] == "target 256, draft without a limit"


@pytest.mark.parametrize("damage", ["cut short", "no header", "empty"])
def test_damaged_weights_leave_the_answer_open(damage: str, ask: Ask, target: Path, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path, small())
    file = folder / "model.safetensors"
    file.write_bytes({"cut short": file.read_bytes()[:-1], "no header": b"\xff" * 100, "empty": b""}[damage])
    code, document = ask(target, folder)
    assert (code, document["compatible"], statuses(document)) == (1, None, {"weights": "fail"})
    check = named(document, "weights")
    assert "the draft's files are damaged" in check["detail"]
    assert check["remedy"] == "download them again"


def test_a_piece_of_the_weights_that_is_not_there(ask: Ask, target: Path, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path, small())
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    code, document = ask(folder, target)
    assert (code, document["compatible"]) == (1, None)
    assert "(model-00002-of-00002.safetensors is not there)" in named(document, "weights")["detail"]


@pytest.mark.parametrize(
    ("quantiser", "word"),
    [({"quant_method": "gptq", "bits": 4}, "optimum"), ({"quant_method": "moonquant"}, "was quantised by moonquant")],
)
def test_a_quantiser_that_is_not_here_leaves_the_answer_open(
    quantiser: dict[str, Any], word: str, ask: Ask, specdec: Specdec, target: Path, tmp_path: Path
) -> None:
    """generate says the same, with the same exit code."""
    folder = tiny.save(tmp_path, small())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantiser}), encoding="utf-8")
    code, document = ask(target, folder)
    check = named(document, "quantisation")
    assert (code, document["compatible"], check["status"]) == (1, None, "fail")
    assert word in check["detail"] + check["remedy"]
    code, _, err = specdec("generate", "hi", "-t", target, "-d", folder, "--device", "cpu")
    assert code == 1
    assert word in err.splitlines()[-1]


@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl"])
def test_a_model_that_sees_too_writes_text(kind: str, ask: Ask, specdec: Specdec, tmp_path: Path) -> None:
    """As transformers' generate does without an image; pictures' weights are loaded, and no step reads them."""
    model = tiny.seeing_model(kind)
    folder, draft = tiny.save(tmp_path / "target", model), tiny.save(tmp_path / "draft", small())
    code, document = ask(folder, draft)
    assert code == 0
    assert document["memory"]["target"]["parameters"] == sum(p.numel() for p in model.parameters())
    step = document["pairs"][0]["cost"]["target"]["step_bytes"] / document["memory"]["target"]["weights_bytes"]
    total = sum(p.numel() for p in model.parameters())
    text = sum(p.numel() for p in model.model.language_model.parameters()) + model.lm_head.weight.numel()
    assert step == pytest.approx((text - model.get_input_embeddings().weight.numel()) / total)
    prompt = torch.tensor([tiny.byte_tokenizer()("what is this")["input_ids"]])
    expected = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False, eos_token_id=None
    )[0, prompt.shape[1] :].tolist()
    for source in ("none", draft, "early-exit:1", "lookahead"):
        code, out, err = specdec(
            "generate", "what is this", "-t", folder, "-d", source, "-n", "16", "--dtype", "float32",
            "--device", "cpu", "--ignore-eos", "--temperature", "0", "--format", "json",
        )  # fmt: skip
        assert code == 0, err
        assert json.loads(out)["token_ids"] == expected


# ------------------------------------------------------------------------------------------------ memory
def test_memory_counts_weights_and_caches_of_both(ask: Ask, target: Path, draft: Path) -> None:
    _, document = ask(target, draft, options=("--dtype", "float32", "--context", "200"))
    memory = document["memory"]
    for role, layers in (("target", LAYERS), ("draft", 1)):
        sizes = memory[role]
        assert sizes["weights_bytes"] == sizes["parameters"] * 4
        assert sizes["kv_bytes_per_token"] == layers * 2 * 1 * 16 * 4  # keys and values, one head of 16, float32
        assert sizes["kv_bytes"] == 200 * sizes["kv_bytes_per_token"]
        assert sizes["stored_bytes"] == sizes["weights_bytes"]
    weights = sum(memory[role]["weights_bytes"] for role in ("target", "draft"))
    caches = sum(memory[role]["kv_bytes"] for role in ("target", "draft"))
    (device,) = memory["devices"]
    assert device["needed_bytes"] == pytest.approx(1.1 * weights + caches, abs=1)
    assert (memory["fits"], memory["largest_context"]) == (True, 256)


def test_weights_that_are_not_there_are_sized_by_the_configuration(ask: Ask, target: Path, tmp_path: Path) -> None:
    whole, without = (tiny.save(tmp_path / name, small()) for name in ("whole", "without"))
    (without / "model.safetensors").unlink()
    _, before = ask(target, whole)
    code, after = ask(target, without)
    assert (code, after["compatible"], statuses(after)) == (1, None, {"weights": "fail"})
    assert "the draft's weights are missing (there is no model.safetensors)" in named(after, "weights")["detail"]
    assert after["memory"]["draft"]["weights_bytes"] == before["memory"]["draft"]["weights_bytes"]
    assert (after["memory"]["draft"]["stored_bytes"], after["memory"]["draft"]["stored_bytes_from"]) == (
        None, "config.json",
    )  # fmt: skip


def short_of_memory(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(resources, "free_memory", lambda _: size)


def test_too_little_memory_for_the_context_and_the_remedy(
    ask: Ask, target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, document = ask(target, draft, options=("--dtype", "float32"))
    short_of_memory(monkeypatch, document["memory"]["devices"][0]["needed_bytes"] - 10_000)
    code, document = ask(target, draft, options=("--dtype", "float32"))
    assert (code, statuses(document)) == (0, {"memory": "warn"})
    fits = document["memory"]["largest_context"]
    assert 0 < fits < 256
    assert f"--context {fits}" in named(document, "memory")["remedy"]
    for context, status in ((fits, {}), (fits + 1, {"memory": "warn"})):
        options = ("--dtype", "float32", "--context", str(context))
        assert statuses(ask(target, draft, options=options)[1]) == status


def test_too_little_memory_for_the_weights_and_the_remedies(
    ask: Ask, target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, document = ask(target, draft, options=("--dtype", "float32"))
    weights = {role: document["memory"][role]["weights_bytes"] for role in ("target", "draft")}
    short_of_memory(monkeypatch, round(1.1 * weights["target"] + 50_000))
    code, document = ask(target, draft, options=("--dtype", "float32", "--context", "8"))
    assert (code, statuses(document)) == (3, {"memory": "fail"})
    assert (document["memory"]["fits"], document["memory"]["largest_context"]) == (False, 0)
    remedy = named(document, "memory")["remedy"]
    assert remedy == "--dtype bfloat16 fits; a smaller --draft may fit: the target does"
    assert ask(target, draft, options=("--dtype", "bfloat16", "--context", "8"))[0] == 0
    short_of_memory(monkeypatch, 1000)
    _, document = ask(target, draft, options=("--dtype", "bfloat16"))
    assert named(document, "memory")["remedy"] == "choose a smaller --target or a larger --device"


# -------------------------------------------------------------------------------------------------- GGUF
def test_a_gguf_file_beside_the_folder_of_the_same_model(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its metadata is read; and that says what the converted folder says."""
    from gguf import GGMLQuantizationType

    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    model = tiny.model("llama", vocab_size=len(TOKENS), eos_token_id=END_ID, bos_token_id=END_ID)
    file = write_gguf(tmp_path / "model.gguf", model, GGMLQuantizationType.F16)
    with monkeypatch.context() as other_cache:
        other_cache.setenv("SPECDEC_CACHE", str(tmp_path / "another-cache"))
        folder = converted.gguf_as_folder(file, "--draft", lambda _: None)
    with monkeypatch.context() as without:
        without.setattr(converted, "_convert", lambda *_: pytest.fail("the weights were converted"))
        for pair in ((file, folder), (folder, file)):
            code, document = ask(*pair)
            assert (code, statuses(document)) == (0, {"cost": "warn"})
    (metadata,) = (tmp_path / "cache" / "gguf").glob("*-metadata")
    assert not list(metadata.glob("*.safetensors"))
    assert document["memory"]["draft"]["stored_bytes"] == file.stat().st_size
    assert document["memory"]["draft"]["parameters"] == sum(p.numel() for p in model.parameters())


def test_smollm2_from_gguf_beside_its_folder_and_the_demo_draft(ask: Ask, smollm2: Path, smollm2_folder: Path) -> None:
    (file,) = smollm2.glob("*.gguf")
    code, document = ask(file, smollm2_folder, "demo:draft")
    assert code == 3
    assert [pair["compatible"] for pair in document["pairs"]] == [True, False]
    assert document["draft"] == "demo:draft"
    assert named(document, "vocabulary")["status"] == "fail"
    (first, _) = document["pairs"]
    assert {c["name"] for c in first["checks"] if c["status"] != "ok"} == {"cost"}, "it costs as much as the target"


# ----------------------------------------------------------------------------------------- what is shown
def test_one_draft_is_a_page_of_checks_with_remedies(specdec: Specdec, target: Path, swapped: Path) -> None:
    code, out, err = specdec("pair-check", "-t", target, "-d", swapped)
    assert (code, err) == (3, "")
    lines = out.splitlines()
    assert max(map(len, lines[2:])) <= 80
    assert any(line.split()[:2] == ["vocabulary", "fail"] for line in lines)
    assert "→ choose a --draft made with the target's tokenizer" in " ".join(out.split())
    assert lines[-1] == "not compatible: vocabulary"


def test_several_drafts_are_columns_with_a_verdict(
    specdec: Specdec, target: Path, draft: Path, swapped: Path, unreadable: Path
) -> None:
    options = ("-t", target, "-d", draft, "-d", swapped, "-d", unreadable)
    code, out, _ = specdec("pair-check", *options, "--format", "markdown")
    rows = {
        cells[1].strip(): cells[2:-1] for cells in (line.split("|") for line in out.splitlines()) if len(cells) == 6
    }
    assert code == 3
    assert [cell.strip() for cell in rows["**verdict**"]] == [
        "compatible", "not compatible: vocabulary", "could not be told: vocabulary",
    ]  # fmt: skip
    assert rows["vocabulary"][0].strip() == "ok"
    assert "is 'A' / 'B'" in rows["vocabulary"][1]
    assert "no tokenizer that can be read" in rows["vocabulary"][2]
    code, out, _ = specdec("pair-check", *options)
    assert code == 3
    lines = out.splitlines()
    assert max(len(line) for line in lines[1:] if "/" not in line) <= 80  # a path is never broken
    assert sum(line.startswith(" verdict") for line in lines) == 1


def test_strict_says_so(specdec: Specdec, target: Path) -> None:
    code, out, _ = specdec("pair-check", "-t", target, "-d", target, "--strict")
    assert code == 3
    assert out.splitlines()[-1] == "not compatible by --strict: cost"


@pytest.mark.parametrize("output_format", ["table", "json", "markdown"])
def test_output_to_a_file_is_what_stdout_would_get(
    output_format: str, specdec: Specdec, target: Path, draft: Path, tmp_path: Path
) -> None:
    options = ("pair-check", "-t", target, "-d", draft, "--device", "cpu", "--format", output_format)
    _, out, _ = specdec(*options)
    path = tmp_path / "report"
    code, nothing, _ = specdec(*options, "--output", path)
    assert (code, nothing) == (0, "")
    written = path.read_text(encoding="utf-8")
    if output_format == "json":  # free memory differs from run to run
        assert json.loads(written).keys() == json.loads(out).keys()
    else:
        assert len(written.splitlines()) == len(out.splitlines())


def test_tokens_and_names_that_look_like_markup_are_shown_as_they_are(specdec: Specdec, tmp_path: Path) -> None:
    marks = ("[INST]", "[/INST]")
    folders = [
        tiny.save(tmp_path / name, small(SIZE + 2), tiny.byte_tokenizer(extra))
        for name, extra in (("[b]", marks), ("x[", marks[::-1]))
    ]
    named = tmp_path / "x[" / "y]"  # a draft called .../x[/y]
    folders[1].rename(tmp_path / "aside")
    named.parent.mkdir()
    (tmp_path / "aside").rename(named)
    for drafts in ((named,), (named, folders[0])):
        code, out, err = specdec("pair-check", "-t", folders[0], *(part for d in drafts for part in ("-d", d)))
        assert (code, err) == (3, "")
        assert "'[/INST]'" in " ".join(out.split())
        assert "x[/y]" in "".join(out.split())


@pytest.mark.parametrize("output_format", ["table", "json", "markdown"])
def test_a_reader_that_leaves_does_not_change_the_exit_code(
    output_format: str, specdec: Specdec, target: Path, swapped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", os.fdopen(writing, "w", encoding="utf-8"))
        code, _, err = specdec("pair-check", "-t", target, "-d", swapped, "--format", output_format)
    assert (code, err) == (3, "")


def test_markdown_cells_hold_no_bar(specdec: Specdec, target: Path, draft: Path) -> None:
    _, out, _ = specdec("pair-check", "-t", target, "-d", draft, "--format", "markdown")
    table = [line for line in out.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {5}
    assert "end tokens" in out


# ------------------------------------------------------------------------------------------------ checks
def test_a_warning_without_a_remedy_is_refused() -> None:
    with pytest.raises(ValueError, match="remedy"):
        Check("x", "warn", "something")
    with pytest.raises(ValueError, match="remedy"):
        Check("x", "ok", "nothing", "do that")
    with pytest.raises(ValueError, match="ok, warn or fail"):
        Check("x", "bad", "something", "do that")  # type: ignore[arg-type]


OK, WARN, FAIL = Check("a", "ok", ""), Check("b", "warn", "x", "y"), Check("c", "fail", "x", "y")
OPEN = undecided("d", "--draft x is gone: bring it back")


@pytest.mark.parametrize(
    ("checks", "loose", "strict"),
    [
        ([OK], True, True),
        ([OK, WARN], True, False),
        ([WARN, FAIL], False, False),
        ([OK, OPEN], None, None),
        ([OPEN, WARN], None, False),
        ([OPEN, FAIL], False, False),
    ],
)
def test_verdicts(checks: list[Check], loose: bool | None, strict: bool | None) -> None:
    assert (verdict(checks, strict=False), verdict(checks, strict=True)) == (loose, strict)


def test_an_open_check_keeps_cause_and_remedy_apart() -> None:
    assert (OPEN.detail, OPEN.remedy) == ("could not be told: --draft x is gone", "bring it back")
