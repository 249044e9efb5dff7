"""Ids to text as it becomes certain, over three kinds of tokenizer, and text to a person as it becomes safe."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

import specdec_cli
from specdec_cli.decoding.stopping import safe_length
from specdec_cli.reports.stream import LEGEND, TextPrinter, legend
from specdec_cli.runtime.pairs.text import REPLACEMENT, TextStream, special_tokens

CORPUS = (
    "def naïve(café):\n    return '中文字😀' + \"e\u0301\"\n",
    "hello world, hello words\n\n\tfor x in range(10):\n",
)
DIFFICULT = (
    "é",
    "中文",
    "😀",
    "👩‍👩‍👧",
    "e\u0301\u0323",
    "\ufffd",
    "\ufeff",
    "a\r\nb",
    "\x00\x7f",
    "ﷺ",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "\u2028",
    "  a",
    "\t",
)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def small_bpe() -> PreTrainedTokenizerFast:
    """Byte-level BPE as the demo pair has it: tokens end anywhere, also inside a character."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"[\r\n]+[ \t]*|[ ]?\p{L}+|\p{N}|[ ]?[^\s\p{L}\p{N}]+|[ \t]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=[tiny.END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 10, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=tiny.END)


def small_sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama 2 has it: ▁ for a space, the first of which is no text, and a token for every byte that has no other."""
    pieces = [tiny.END, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghilnorstuvwxy():,'中文é"]
    tokenizer = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], byte_fallback=True, unk_token=tiny.END))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([tiny.END])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=tiny.END)


TOKENIZERS = {"bytes": tiny.byte_tokenizer(), "bpe": small_bpe(), "sentencepiece": small_sentencepiece()}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
every_byte_level = pytest.mark.parametrize("tokenizer", [TOKENIZERS["bytes"], TOKENIZERS["bpe"]], ids=["bytes", "bpe"])
on_a_busy_machine = settings(deadline=None)


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def ids_of_bytes(tokenizer: PreTrainedTokenizerBase, content: bytes) -> list[int]:
    """One id a byte, by the characters that stand for bytes in byte-level BPE."""
    names = {}
    spare = 256
    for byte in range(256):
        printable = 33 <= byte <= 126 or (byte >= 161 and byte != 173)
        names[byte] = chr(byte) if printable else chr(spare)
        spare += not printable
    ids: list[int] = tokenizer.convert_tokens_to_ids([names[byte] for byte in content])
    return ids


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def streamed(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> list[str]:
    """The text after every token, and after the flush."""
    stream = TextStream(tokenizer, prompt_ids)
    texts = [""]
    for token_id in token_ids:
        texts.append(texts[-1] + stream.push(token_id))
    return [*texts, texts[-1] + stream.flush()]


def test_the_bytes_are_what_they_are_called() -> None:
    text = "aé\n😀\x00\x7f\u00a0"
    assert ids_of_bytes(TOKENIZERS["bytes"], text.encode()) == ids_of(TOKENIZERS["bytes"], text)


@every_tokenizer
@pytest.mark.parametrize("text", [*DIFFICULT, *CORPUS, "a😀" * 5, "中" * 20, "", "hello"], ids=ascii)
def test_text_is_given_out_as_soon_as_it_is_certain(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    token_ids = ids_of(tokenizer, text)
    *texts, flushed = streamed(tokenizer, token_ids)
    assert flushed == decode(tokenizer, token_ids) == text
    if not text.endswith(REPLACEMENT):
        assert texts[-1] == text
    for n, shown in enumerate(texts):
        assert text.startswith(shown)
        so_far = decode(tokenizer, token_ids[:n])
        if REPLACEMENT not in so_far:
            assert shown == so_far


@every_tokenizer
@on_a_busy_machine
@given(text=st.text())
def test_pushes_and_flush_add_up_to_the_text(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    token_ids = ids_of(tokenizer, text)
    assert streamed(tokenizer, token_ids)[-1] == decode(tokenizer, token_ids)


@every_tokenizer
@on_a_busy_machine
@given(text=st.text(st.sampled_from(["a", " ", "\n", "é", "中", "😀", "\u0301"])))
def test_nothing_given_out_ever_changes(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    token_ids = ids_of(tokenizer, text)
    whole = decode(tokenizer, token_ids)
    assert [shown for shown in streamed(tokenizer, token_ids) if not whole.startswith(shown)] == []


@every_byte_level
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xc3", "\ufffd"),
        (b"\xc3a", "\ufffda"),
        (b"\xe4\xb8a", "\ufffda"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\x80\xc3\xa9", "\ufffdé"),
        (b"\xff\xff\xff\xf0\x9f\x98\x80", "\ufffd\ufffd\ufffd😀"),
        (b"a\xff\xffb\xff", "a\ufffd\ufffdb\ufffd"),
        (b"\xff" * 7 + "é".encode(), "\ufffd" * 7 + "é"),
        (b"\xff" * 6 + "😀".encode(), "\ufffd" * 6 + "😀"),
        ("\ufffd\ufffd😀".encode(), "\ufffd\ufffd😀"),
        (b"\xff" * 40 + b"a", "\ufffd" * 40 + "a"),
    ],
    ids=ascii,
)
def test_invalid_bytes_become_replacement_characters_and_swallow_nothing(
    tokenizer: PreTrainedTokenizerBase, content: bytes, text: str
) -> None:
    token_ids = ids_of_bytes(tokenizer, content)
    texts = streamed(tokenizer, token_ids)
    assert texts[-1] == decode(tokenizer, token_ids) == text
    assert all(text.startswith(shown) for shown in texts)


@every_byte_level
@on_a_busy_machine
@given(data=st.data())
def test_any_ids_add_up_to_their_text(tokenizer: PreTrainedTokenizerBase, data: st.DataObject) -> None:
    """A model may emit any ids: halves of characters, runs of bad bytes, end tokens where they are ignored."""
    any_id = st.integers(0, len(tokenizer) - 1).map(lambda i: [i])
    parts = st.sampled_from([b"\xff", b"\x80", b"\xf0", b"\xe4\xb8", "é".encode(), "😀".encode(), b"\xff" * 7])
    pieces = data.draw(st.lists(st.one_of(any_id, parts.map(partial(ids_of_bytes, tokenizer))), max_size=12))
    token_ids = [token_id for piece in pieces for token_id in piece]
    texts = streamed(tokenizer, token_ids)
    whole = decode(tokenizer, token_ids)
    assert texts[-1] == whole
    assert all(whole.startswith(shown) for shown in texts)


@every_byte_level
def test_invalid_bytes_are_not_held_back_for_ever(tokenizer: PreTrainedTokenizerBase) -> None:
    """The text stands still for a few tokens at most, or decoding the next one would cost more and more."""
    texts = streamed(tokenizer, ids_of_bytes(tokenizer, b"\xff" * 100))
    assert all(len(texts[n]) > n - 10 for n in range(len(texts) - 1))


def test_special_tokens_are_no_text() -> None:
    tokenizer = TOKENIZERS["bytes"]
    token_ids = [*ids_of(tokenizer, "a"), tiny.BYTES, *ids_of(tokenizer, "é"), tiny.BYTES]
    assert streamed(tokenizer, token_ids) == ["", "a", "a", "a", "aé", "aé", "aé"]


def test_the_demo_pairs_tokenizer_streams_its_own_kind_of_text() -> None:
    folder = Path(specdec_cli.__file__).parent / "demo" / "target"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    text = Path(specdec_cli.__file__).with_name("prompts.py").read_text(encoding="utf-8")[:2000] + "".join(DIFFICULT)
    token_ids = ids_of(tokenizer, text)
    assert streamed(tokenizer, token_ids)[-1] == decode(tokenizer, token_ids) == text


# Behind a prompt


def small_wordpiece() -> PreTrainedTokenizerFast:
    """As BERT has it: ## goes on with a word, and all else begins one with a space."""
    tokenizer = Tokenizer(models.WordPiece({tiny.END: 0, "ab": 1, "##c": 2, "d": 3}, unk_token=tiny.END))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([tiny.END])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=tiny.END)


def small_metaspace() -> PreTrainedTokenizerFast:
    """As T5 and older Llama conversions have it."""
    tokenizer = Tokenizer(models.BPE({tiny.END: 0, "▁": 1, "a": 2, "b": 3, "▁a": 4}, [("▁", "a")], unk_token=tiny.END))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([tiny.END])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=tiny.END)


def small_suffix_bpe() -> PreTrainedTokenizerFast:
    """As CLIP has it: the end of a word is marked, and becomes a space unless the text ends there."""
    tokenizer = Tokenizer(models.BPE({tiny.END: 0, "a</w>": 1, "b</w>": 2, "c": 3}, []))
    tokenizer.decoder = decoders.BPEDecoder()
    tokenizer.add_special_tokens([tiny.END])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=tiny.END)


SPACED = {
    "sentencepiece": TOKENIZERS["sentencepiece"],
    "wordpiece": small_wordpiece(),
    "metaspace": small_metaspace(),
    "suffix": small_suffix_bpe(),
}


def test_the_first_space_of_an_answer_is_text() -> None:
    """SentencePiece leaves out the space that a text begins with; an answer is in the middle of one."""
    tokenizer = TOKENIZERS["sentencepiece"]
    prompt, answer = ids_of(tokenizer, "hello"), tokenizer.convert_tokens_to_ids(list("▁wo▁the"))
    assert decode(tokenizer, answer) == "wo the"
    assert streamed(tokenizer, answer, prompt) == [
        "",
        " ",
        " w",
        " wo",
        " wo ",
        " wo t",
        " wo th",
        " wo the",
        " wo the",
    ]


@pytest.mark.parametrize("tokenizer", SPACED.values(), ids=SPACED)
@on_a_busy_machine
@given(data=st.data())
def test_an_answer_is_what_it_adds_to_the_whole_text(tokenizer: PreTrainedTokenizerBase, data: st.DataObject) -> None:
    # Tokens that are whole characters: what bytes come to that are no text depends on the decoder.
    names = [t for t in tokenizer.get_vocab() if not t.startswith("<0x")]
    ids = st.lists(st.sampled_from(names).map(tokenizer.convert_tokens_to_ids), max_size=20)
    prompt, answer = data.draw(ids), data.draw(ids)
    whole, before = decode(tokenizer, [*prompt, *answer]), decode(tokenizer, prompt)
    assert whole.startswith(before)
    texts = streamed(tokenizer, answer, prompt)
    assert before + texts[-1] == whole
    assert all(whole.startswith(before + shown) for shown in texts)


@every_tokenizer
@on_a_busy_machine
@given(
    prompt=st.text(st.sampled_from(["a", " ", "é", "中", "😀"])), answer=st.text(st.sampled_from(["b", "é", "中", " "]))
)
def test_a_prompt_is_not_cut_inside_a_character(tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str) -> None:
    """The stream looks at the prompt's end alone, which may be bytes of one long run."""
    ids = [ids_of(tokenizer, "x" + prompt), ids_of(tokenizer, answer)]
    whole = decode(tokenizer, [*ids[0], *ids[1]])
    assert streamed(tokenizer, ids[1], ids[0])[-1] == whole[len("x" + prompt) :]


def test_bytes_that_are_no_text_do_not_spoil_the_prompt() -> None:
    """A run of bytes is decoded as a whole here: one that is no text makes the prompt's last character unreadable."""
    tokenizer = TOKENIZERS["sentencepiece"]
    prompt = ids_of(tokenizer, "hello 字")
    assert streamed(tokenizer, tokenizer.convert_tokens_to_ids(["<0xE4>"]), prompt)[-1] == REPLACEMENT
    assert streamed(tokenizer, tokenizer.convert_tokens_to_ids(["<0xE4>", "a"]), prompt)[-1] == REPLACEMENT + "a"


def test_special_tokens_are_those_that_decoding_leaves_out() -> None:
    """Named in one of the tokenizer's lists, or added as special and named nowhere; not every added token."""
    tokenizer = tiny.byte_tokenizer(extra=("<think>",), special=("<|eot|>",))
    assert "<|eot|>" not in tokenizer.all_special_tokens
    found = special_tokens(tokenizer)
    assert found == {tiny.BYTES: tiny.END, tiny.BYTES + 1: "<|eot|>"}
    assert [i for i in range(len(tokenizer)) if not decode(tokenizer, [i])] == sorted(found)


# The printer


def show(pieces: Sequence[tuple[str, str]], show_draft: bool, stops: Sequence[str] = ()) -> str:
    """What a person sees of these (text, provenance)."""
    out = io.StringIO()
    printer = TextPrinter(out, show_draft)
    for text, provenance in pieces:
        printer.push(text, provenance)
        printer.show(len(printer.text) - safe_length(printer.text, stops))
    assert printer.finish() == "".join(text for text, _ in pieces)
    return out.getvalue()


def with_line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def test_text_is_shown_as_it_becomes_safe() -> None:
    out = io.StringIO()
    printer = TextPrinter(out, False)
    seen = []
    for text in ("ab", "cS", "TO", "", "Xd", "ST"):
        printer.push(text, "plain")
        printer.show(len(printer.text) - safe_length(printer.text, ["STOP"]))
        seen.append(out.getvalue())
    assert seen == ["ab", "abc", "abc", "abc", "abcSTOXd", "abcSTOXd"]
    assert printer.text == "abcSTOXdST"
    assert printer.finish(8) == "abcSTOXd"
    assert out.getvalue() == "abcSTOXd\n"


@pytest.mark.parametrize("show_draft", [False, True])
@pytest.mark.parametrize(
    ("text", "length", "shown"),
    [("ab", None, "ab\n"), ("ab\n", None, "ab\n"), ("", None, ""), ("ab", 1, "a\n"), ("ab", 0, ""), ("\n", None, "\n")],
)
def test_the_output_ends_with_one_line_end(show_draft: bool, text: str, length: int | None, shown: str) -> None:
    out = io.StringIO()
    printer = TextPrinter(out, show_draft)
    printer.push(text, "recovered")
    printer.show(held_back=len(text))
    assert out.getvalue() == ""
    assert printer.finish(length) == text[:length]
    assert out.getvalue() == shown


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([("a", "accepted"), ("b", "accepted"), ("c", "bonus")], "‹ab›c\n"),
        ([("a", "recovered"), ("b", "accepted"), ("c", "recovered"), ("d", "accepted")], "a‹b›c‹d›\n"),
        ([("a", "plain"), ("b", "bonus")], "ab\n"),
        ([("a", "accepted")], "‹a›\n"),
        ([("", "accepted"), ("b", "bonus")], "b\n"),
        ([("a", "bonus"), ("\n\t", "accepted"), ("b", "bonus")], "a‹\n\t›b\n"),
        ([], ""),
    ],
)
def test_marks_stand_around_what_was_accepted(pieces: list[tuple[str, str]], shown: str) -> None:
    assert show(pieces, show_draft=True) == shown


@pytest.mark.parametrize("stops", [[], ["ab", "b\n"]], ids=["no-stop-string", "stop-strings"])
@on_a_busy_machine
@given(pieces=st.lists(st.tuples(st.text("ab\n\té", max_size=3), st.sampled_from(["accepted", "recovered", "bonus"]))))
def test_without_its_marks_the_text_is_the_text(stops: list[str], pieces: list[tuple[str, str]]) -> None:
    text = "".join(piece for piece, _ in pieces)
    shown = show(pieces, True, stops)
    assert re.sub("[‹›]", "", shown) == show(pieces, False, stops) == with_line_end(text)
    marked = "".join(re.findall("‹([^›]*)›", shown))
    assert marked == "".join(piece for piece, provenance in pieces if provenance == "accepted")


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a terminal that has colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.usefixtures("colours")
def test_each_provenance_has_its_colour() -> None:
    shown = show([("a", "accepted"), ("b", "recovered"), ("c", "bonus"), ("d", "plain")], show_draft=True)
    assert re.findall(r"\x1b\[(\d+)m([abcd])\x1b\[0m", shown) == [("32", "a"), ("31", "b"), ("36", "c")]
    assert ANSI.sub("", shown) == "abcd\n"


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize(
    "text",
    [
        "  a  b ",
        "\n\n",
        "a\n",
        "\n  a\n\n",
        "x" * 300,
        "中" * 90,
        "[bold]a[/bold]",
        ":smile:",
        "\ta\tb",
        "a\x0cb",
        "a\rb",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("provenance", ["accepted", "plain"])
def test_without_its_colours_the_text_is_the_text(text: str, provenance: str) -> None:
    """Tabs are tabs, long lines are not folded, and brackets are no markup."""
    assert ANSI.sub("", show([(text, provenance)], show_draft=True)) == with_line_end(text)


@pytest.mark.usefixtures("colours")
def test_no_colour_means_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert show([("a", "accepted"), ("b", "bonus")], show_draft=True) == "‹a›b\n"


@pytest.mark.usefixtures("colours")
def test_colours_are_for_show_draft_alone() -> None:
    assert show([("a", "accepted"), ("b", "bonus")], show_draft=False) == "ab\n"


def test_the_legend_explains_the_marks() -> None:
    assert legend(Console(file=io.StringIO())).plain == "‹accepted from the draft›, the target's own outside"


@pytest.mark.usefixtures("colours")
def test_the_legend_explains_the_colours() -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(legend(Console(file=out)))
    shown = out.getvalue()
    for code, (_, label) in zip(("32", "31", "36"), LEGEND, strict=True):
        assert f"\x1b[{code}m{label}\x1b[0m" in shown
