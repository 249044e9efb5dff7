"""Between ids and text, through the whole tool: special tokens in stop strings, and the space that begins an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from running import Specdec
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from specdec_cli.commands import bench
from specdec_cli.runtime.pairs.pair import Pair

EOT = tiny.VOCAB_SIZE
A, a = (tiny.ALPHABET.index(letter) for letter in "Aa")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says <|eot|>a<|eot|>a... after A; the token is special, and none of the tokenizer's lists names it."""
    tokenizer = tiny.byte_tokenizer(special=("<|eot|>",))
    assert tokenizer.all_special_tokens == [tiny.END]
    model = tiny.successions({EOT: a}, otherwise=EOT, vocab_size=EOT + 1)
    return tiny.save(tmp_path_factory.mktemp("chatty"), model, tokenizer)


def pieces_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2 has it: a space is part of the word behind it, and the one that a text begins with is left out."""
    pieces = ["<unk>", "<s>", "</s>", "▁", *"abcdefghijklmnopqrstuvwxyz", "▁w", "▁the", "th", "the", "▁wo"]
    merges = [("▁", "w"), ("t", "h"), ("th", "e"), ("▁", "the"), ("▁w", "o")]
    tokenizer = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:3]])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says " the wo the wo..." after anything."""
    tokenizer = pieces_tokenizer()
    the, wo = tokenizer.convert_tokens_to_ids(["▁the", "▁wo"])
    model = tiny.successions({the: wo}, otherwise=the, vocab_size=len(tokenizer))
    return tiny.save(tmp_path_factory.mktemp("spaced"), model, tokenizer, end_ids=2)


def arguments(folder: Path, *options: str) -> tuple[str | Path, ...]:
    return "-t", folder, "-d", folder, "--device", "cpu", "--dtype", "float32", "--temperature", "0", *options


def record(specdec: Specdec, prompt: str, folder: Path, *options: str) -> dict[str, Any]:
    code, out, err = specdec("generate", prompt, *arguments(folder, "--ignore-eos", "--format", "json", *options))
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_special_token_that_no_list_names_is_an_end_token_too(specdec: Specdec, chatty: Path) -> None:
    one = record(specdec, "a", chatty, "-n", "9", "--stop", "<|eot|>")
    assert (one["token_ids"], one["text"], one["finish_reason"]) == ([EOT], "", "eos")


def test_special_tokens_are_not_shown_and_end_nothing_by_themselves(specdec: Specdec, chatty: Path) -> None:
    one = record(specdec, "A", chatty, "-n", "6")
    assert (one["token_ids"], one["text"], one["finish_reason"]) == (3 * [EOT, a], "aaa", "length")


@pytest.mark.parametrize("k", ["1", "2", "3", "8"])
@pytest.mark.parametrize(
    ("stop", "kept", "text"),
    [("<|eot|>a<|eot|>", 0, ""), ("a<|eot|>", 1, ""), ("aa", 1, ""), ("eot|>a", 9, "aaaa"), ("<", 9, "aaaa")],
)
def test_a_stop_text_of_special_and_plain_tokens(
    specdec: Specdec, chatty: Path, stop: str, kept: int, text: str, k: str
) -> None:
    one = record(specdec, "A", chatty, "-n", "9", "--stop", stop, "--k", k)
    whole = (5 * [EOT, a])[:9]
    assert (one["token_ids"], one["text"]) == (whole[:kept], text)
    assert one["finish_reason"] == ("length" if kept == 9 else "stop")
    code, out, _ = specdec("generate", "A", *arguments(chatty, "--ignore-eos", "-n", "9", "--stop", stop, "--k", k))
    assert (code, out) == (0, text and text + "\n")


@pytest.mark.parametrize("draft", ["1", "3"])
def test_an_answer_begins_with_its_space(specdec: Specdec, spaced: Path, draft: str) -> None:
    one = record(specdec, "x", spaced, "-n", "4", "--k", draft)
    assert one["text"] == " the wo the wo"
    tokenizer = pieces_tokenizer()
    prompt = tokenizer("x")["input_ids"]
    whole, before = (tokenizer.decode(ids, skip_special_tokens=True) for ids in ([*prompt, *one["token_ids"]], prompt))
    assert one["text"] == whole.removeprefix(before)


@pytest.mark.parametrize(
    ("stop", "kept", "text"),
    [(" the", 0, ""), ("the", 0, " "), (" wo", 1, " the"), ("e w", 0, " th"), ("o the", 1, " the w")],
)
def test_stop_texts_see_the_first_space(specdec: Specdec, spaced: Path, stop: str, kept: int, text: str) -> None:
    one = record(specdec, "x", spaced, "-n", "9", "--stop", stop)
    assert (len(one["token_ids"]), one["text"], one["finish_reason"]) == (kept, text, "stop")


def test_the_space_is_part_of_the_conversation_in_generate_and_bench(
    specdec: Specdec, spaced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read the second turn behind the same text."""
    seen: list[list[str]] = []
    encode = Pair.encode

    def watched(self: Pair, messages: Any, *more: Any, **options: Any) -> list[int]:
        seen.append([m["content"] for m in messages])
        return encode(self, messages, *more, **options)

    monkeypatch.setattr(Pair, "encode", watched)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"turns": ["x", "y"]}) + "\n", encoding="utf-8")
    code, _, err = specdec("generate", "--prompts", prompts, *arguments(spaced, "--ignore-eos", "-n", "2", "-q"))
    assert code == 0, err
    assert ["x", " the wo", "y"] in seen
    seen.clear()
    monkeypatch.setattr(bench.document, "copy_bandwidth", lambda *_: 1e9)
    code, _, err = specdec("bench", "--prompts", prompts, *arguments(spaced, "-n", "2", "-q"))
    assert code == 0, err
    assert ["x", " the wo", "y"] in seen
