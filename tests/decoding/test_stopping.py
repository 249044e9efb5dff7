"""Where a generation ends: end tokens, stop strings and lengths, wherever the borders of the rounds fall.

Symptoms 7 and 8: what stands behind an end token in an accepted block must not get out, and neither may a stop string
that begins in one token or round and ends in another.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.stopping import FinishReason, Stopping, find_stop, safe_length
from specdec_cli.reports.stream import TextPrinter

END, OTHER_END = 256, 257


class Pieces:
    """A detokenizer whose tokens are the given texts."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]


class Bytes:
    """A detokenizer with one token a byte; ids from 256 on have no text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id])) if token_id < 256 else ""


class Outcome(NamedTuple):
    """What a generation comes to."""

    token_ids: list[int]
    text: str | None
    reason: FinishReason | None


def play(stopping: Stopping, rounds: Iterable[Sequence[int]]) -> Outcome:
    """Feed rounds as the loop does, until something ends the text."""
    token_ids: list[int] = []
    for emitted in rounds:
        kept, withdrawn, reason = stopping.admit(emitted)
        assert 0 <= kept <= len(emitted)
        assert 0 <= withdrawn <= len(token_ids)
        assert not (withdrawn and kept)
        assert reason is not None or (kept, withdrawn) == (len(emitted), 0)
        del token_ids[len(token_ids) - withdrawn :]
        token_ids += emitted[:kept]
        if reason is not None:
            return Outcome(token_ids, stopping.text, reason)
    return Outcome(token_ids, stopping.text, None)


def spell(pieces: Sequence[str], stops: Sequence[str], rounds: Iterable[Sequence[int]]) -> Outcome:
    return play(Stopping(100, stop_strings=stops, detokenizer=Pieces(pieces)), rounds)


def one_by_one(token_ids: Iterable[int]) -> Iterator[list[int]]:
    return ([token_id] for token_id in token_ids)


def split(token_ids: Sequence[int], sizes: Iterable[int]) -> Iterator[Sequence[int]]:
    """Rounds of these sizes, then the rest."""
    start = 0
    for size in sizes:
        yield token_ids[start : start + size]
        start += size
    yield token_ids[start:]


# End tokens and lengths


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("end", [END, OTHER_END])
@pytest.mark.parametrize("stops", [(), ("never",)], ids=["no-stop-string", "stop-string"])
def test_an_end_token_ends_the_text_anywhere_in_a_block(place: int, end: int, stops: tuple[str, ...]) -> None:
    stopping = Stopping(100, {END, OTHER_END}, stops, Bytes())
    block = [97, 98, 99, 100, 101]
    block[place] = end
    assert stopping.admit([65, 66]) == (2, 0, None)
    assert stopping.admit(block) == (place + 1, 0, "eos")
    assert stopping.text is None


def test_the_first_of_several_end_tokens_counts() -> None:
    assert Stopping(100, [END, OTHER_END]).admit([1, OTHER_END, 2, END]) == (2, 0, "eos")


def test_an_end_token_that_is_to_be_ignored_is_a_token() -> None:
    assert play(Stopping(5), [[1, END, 2], [END, 3, 4]]) == ([1, END, 2, END, 3], None, "length")


@pytest.mark.parametrize(
    ("limit", "rounds", "kept", "remaining"),
    [
        (1, [[1, 2, 3]], 1, [1]),
        (3, [[1, 2, 3, 4, 5]], 3, [3]),
        (3, [[1, 2, 3]], 3, [3]),
        (5, [[1, 2], [3], [4, 5, 6]], 5, [5, 3, 2]),
        (5, [[1, 2], [3], [4]], 4, [5, 3, 2]),
    ],
)
def test_a_length_may_end_inside_a_block(limit: int, rounds: list[list[int]], kept: int, remaining: list[int]) -> None:
    stopping = Stopping(limit)
    seen = []

    def watched() -> Iterator[list[int]]:
        for emitted in rounds:
            seen.append(stopping.remaining)
            yield emitted

    outcome = play(stopping, watched())
    assert outcome == (list(chain(*rounds))[:kept], None, "length" if kept == limit else None)
    assert seen == remaining
    assert stopping.remaining == limit - kept


@pytest.mark.parametrize(
    ("block", "outcome"),
    [
        ([97, 98, END], ([97, 98, END], None, "eos")),
        ([97, 98, 99, END], ([97, 98, 99], None, "length")),
        ([97, 98, 120], ([97, 98], "ab", "stop")),
        ([97, 98, 99, 120], ([97, 98, 99], None, "length")),
        ([97, END, 120], ([97, END], None, "eos")),
        ([97, 120, END], ([97], "a", "stop")),
    ],
    ids=["end-at-limit", "end-after-limit", "stop-at-limit", "stop-after-limit", "end-first", "stop-first"],
)
def test_what_comes_first_ends_the_text(block: list[int], outcome: tuple[list[int], str | None, str]) -> None:
    assert play(Stopping(3, {END}, ["x"], Bytes()), [block]) == outcome


# Stop strings


@pytest.mark.parametrize(
    ("pieces", "stops", "rounds", "token_ids", "text"),
    [
        (["ab", "cSTOPd", "e"], ["STOP"], [[0, 1, 2]], [0], "abc"),
        (["ab", "STOP", "e"], ["STOP"], [[0, 1, 2]], [0], "ab"),
        (["STOP", "e"], ["STOP"], [[0, 1]], [], ""),
        (["ab", "ST", "OP", "e"], ["STOP"], [[0, 1, 2, 3]], [0], "ab"),
        (["ab", "cS", "TO", "Pd", "e"], ["STOP"], [[0, 1, 2, 3, 4]], [0], "abc"),
        (["ab", "ST", "OP", "e"], ["STOP"], [[0, 1], [2, 3]], [0], "ab"),
        (["ab", "c", "S", "T", "O", "P"], ["STOP"], [[0, 1, 2], [3], [4], [5, 0]], [0, 1], "abc"),
        (["S", "T", "O", "P"], ["STOP"], [[0, 1], [2], [3]], [], ""),
        (["a", "S", "T", "S", "TOP"], ["STOP"], [[0, 1, 2], [3, 4]], [0, 1, 2], "aST"),
        (["a", "a", "a", "b"], ["aab"], [[0, 1, 2, 3]], [0], "a"),
        (["a", "a", "a", "b"], ["aab"], [[0], [1], [2], [3]], [0], "a"),
        (["aa", "ab"], ["aab"], [[0], [1]], [], "a"),
        (["a", "bc", "d"], ["bcd", "c"], [[0, 1, 2]], [0], "ab"),
        (["a", "bcd"], ["cd", "b"], [[0, 1]], [0], "a"),
        (["a", "bcd"], ["b", "cd"], [[0, 1]], [0], "a"),
        (["a", "b", "c"], ["abc", "bc"], [[0, 1, 2]], [], ""),
        (["a", "b", "c"], ["bc", "abc"], [[0, 1], [2]], [], ""),
        (["a\n", "\nb"], ["\n\n"], [[0, 1]], [], "a"),
        (["é", "中", "x"], ["x"], [[0, 1, 2]], [0, 1], "é中"),
        (["a", "中文"], ["文"], [[0, 1]], [0], "a中"),
    ],
)
def test_a_stop_string_is_cut_off_with_the_tokens_that_hold_any_of_it(
    pieces: list[str], stops: list[str], rounds: list[list[int]], token_ids: list[int], text: str
) -> None:
    assert spell(pieces, stops, rounds) == (token_ids, text, "stop")


@pytest.mark.parametrize("size", range(1, 8))
def test_tokens_of_earlier_rounds_are_withdrawn(size: int) -> None:
    """The loop is told how many: all that hold a part of the stop string."""
    stopping = Stopping(100, stop_strings=["STOPPED"], detokenizer=Bytes())
    text = b"abSTOPPED"
    admitted = [stopping.admit(text[i : i + size]) for i in range(0, len(text), size)]
    whole, last = divmod(2, size)
    before = size * ((len(text) - 1) // size)
    assert admitted[-1] == (max(0, 2 - before), max(0, before - 2), "stop")
    assert all(a == (size, 0, None) for a in admitted[:-1])
    assert stopping.text == "ab"
    assert whole * size + last == 2
    assert stopping.remaining == 100 - before - (len(text) - 1 - before)


@pytest.mark.parametrize(
    ("text", "stop"), [("é", "x"), ("中😀", "x"), ("aé", "é!"), ("e\u0301", "x"), ("😀", "😁"), ("é", "中"), ("", "😀")]
)
@pytest.mark.parametrize("size", range(1, 5))
def test_characters_of_several_tokens_stay_whole(text: str, stop: str, size: int) -> None:
    """No half of a character stays before the stop string, and none of its bytes is lost."""
    token_ids = list((text + stop + "z").encode())
    outcome = play(Stopping(100, (), [stop], Bytes()), split(token_ids, len(token_ids) * [size]))
    assert outcome == (list(text.encode()), text, "stop")


def test_a_character_that_shares_its_first_bytes_with_the_stop_string_is_text() -> None:
    """Of 😀 and 😁 only the last byte differs."""
    token_ids = list("😀😁".encode())
    outcome = play(Stopping(100, (), ["😁"], Bytes()), one_by_one(token_ids))
    assert outcome == (list("😀".encode()), "😀", "stop")


def test_a_token_without_text_before_the_stop_string_is_allowed() -> None:
    outcome = play(Stopping(100, (), ["x"], Bytes()), [[97, END], [120]])
    assert (outcome.text, outcome.reason) == ("a", "stop")
    assert outcome.token_ids in ([97], [97, END])


EOT, USER = 256, 257
NAMES = {EOT: "<|eot|>", USER: "<|user|>"}


def spell_named(stops: Sequence[str], rounds: Iterable[Sequence[int]], ends: Iterable[int] = ()) -> Outcome:
    return play(Stopping(100, list(ends), stops, Bytes(), NAMES), rounds)


@pytest.mark.parametrize(
    ("token_ids", "stop", "kept", "text"),
    [
        ([*b"ab", EOT, *b"\nuser", 65], "<|eot|>\nuser", 2, "ab"),
        ([*b"ab\n", EOT, 65], "\n<|eot|>", 2, "ab"),
        ([*b"ab", EOT, USER, 65], "<|eot|><|user|>", 2, "ab"),
        ([*b"a", EOT, *b"b", EOT, *b"c"], "<|eot|>c", 3, "ab"),
        ([EOT, *b"a", USER, *b"b"], "a<|user|>b", 1, ""),
        ([*b"a", EOT, *b"bc"], "bc", 2, "a"),  # a special token before the stop string stays
        ([*b"ab", EOT, *b"c"], "bc", 1, "a"),  # which is on the screen, so it is found
        (list(b"ab<|eot|>c"), "<|eot|>c", 2, "ab"),  # spelt out by other tokens
        ([*"é".encode(), EOT, *"中".encode()], "<|eot|>中", 2, "é"),
    ],
)
@pytest.mark.parametrize("size", range(1, 6))
def test_a_stop_string_of_special_and_plain_tokens(
    token_ids: list[int], stop: str, kept: int, text: str, size: int
) -> None:
    assert spell_named([stop], split(token_ids, len(token_ids) * [size])) == (token_ids[:kept], text, "stop")


@pytest.mark.parametrize("stop", ["<", "|", "eot|>", "eot|>a", "<|", "a<|", "a<|eot", "|><|"])
def test_no_stop_string_begins_or_ends_inside_a_special_token(stop: str) -> None:
    """It is one token, and its name is not what a person sees."""
    token_ids = [97, EOT, 97, EOT, EOT, 97]
    assert spell_named([stop], one_by_one(token_ids)) == (token_ids, None, None)


def test_a_stop_string_may_end_with_an_end_token_and_is_not_its_name_alone() -> None:
    assert spell_named(["<|eot|>"], [[97, 98, EOT]], [EOT]) == ([97, 98, EOT], None, "eos")
    assert spell_named(["b<|eot|>"], [[97, 98, EOT]], [EOT]) == ([97], "a", "stop")
    assert spell_named(["<|eot|>b"], [[97, EOT, 98]], [EOT]) == ([97, EOT], None, "eos")


def test_the_end_token_itself_is_no_text() -> None:
    """Its name may be a stop string as well: the token wins, since it is never decoded."""
    assert spell(["a", "<end>"], ["<end>"], [[0, 1]]).reason == "stop"
    stopping = Stopping(100, {1}, ["<end>"], Pieces(["a", "<end>"]))
    assert play(stopping, [[0, 1]]) == ([0, 1], None, "eos")


def test_stop_strings_need_a_detokenizer() -> None:
    with pytest.raises(ValueError, match="detokenizer"):
        Stopping(100, stop_strings=["x"])


def test_without_stop_strings_nothing_is_decoded() -> None:
    assert play(Stopping(2, (), (), Pieces([])), [[0, 1]]) == ([0, 1], None, "length")


# Properties

on_a_busy_machine = settings(deadline=None)
TEXTS = st.text("abé😀", max_size=12)
STOPS = st.lists(st.text("abé😀", min_size=1, max_size=4), min_size=1, max_size=3)
TOKENS = st.lists(st.sampled_from([97, 97, 98, 0xC3, 0xA9, 0xFF, END]), max_size=24)
SIZES = st.lists(st.integers(0, 5), max_size=12)
PIECES = st.lists(st.text("ab\n", max_size=3), min_size=1, max_size=5)


@on_a_busy_machine
@given(TOKENS, SIZES, st.lists(st.text("abé\ufffd", min_size=1, max_size=3), max_size=3), st.integers(1, 24))
def test_the_borders_of_rounds_change_nothing(
    token_ids: list[int], sizes: list[int], stops: list[str], limit: int
) -> None:
    rounds, singles = (Stopping(limit, {END}, stops, Bytes()) for _ in range(2))
    assert play(rounds, split(token_ids, sizes)) == play(singles, one_by_one(token_ids))
    assert rounds.remaining == singles.remaining


NAMED_TOKENS = st.lists(st.sampled_from([97, 98, 0xC3, 0xA9, EOT, USER]), max_size=16)
NAMED_STOPS = st.lists(
    st.lists(st.sampled_from(["a", "b", "é", "<|eot|>", "<|user|>"]), min_size=1, max_size=4).map("".join),
    min_size=1,
    max_size=2,
)


@on_a_busy_machine
@given(NAMED_TOKENS, SIZES, NAMED_STOPS)
def test_of_special_and_plain_tokens_nothing_is_shown_that_is_taken_back(
    token_ids: list[int], sizes: list[int], stops: list[str]
) -> None:
    """And the borders of rounds change nothing, and no stop string is in what is left, with names or without."""
    stopping, detokenizer = Stopping(100, (), stops, Bytes(), NAMES), Bytes()
    out = io.StringIO()
    printer = TextPrinter(out, False)
    outcome, named = Outcome([], None, None), ""
    for emitted in split(token_ids, sizes):
        kept, withdrawn, reason = stopping.admit(emitted)
        left = [*outcome.token_ids, *emitted[:kept]]
        outcome = Outcome(left[: len(left) - withdrawn], stopping.text, reason)
        if reason is not None:
            break
        for token_id in emitted:
            piece = detokenizer.push(token_id)
            printer.push(piece, "plain")
            named += piece + NAMES.get(token_id, "")
        printer.show(stopping.held_back)
    assert outcome == spell_named(stops, one_by_one(token_ids))
    final = printer.text if stopping.text is None else stopping.text
    assert final.startswith(out.getvalue())
    if outcome.reason is None:
        assert not any(stop in text for stop in stops for text in (printer.text, named))


@on_a_busy_machine
@given(PIECES, st.lists(st.integers(0, 4), max_size=16), SIZES, STOPS)
def test_the_borders_of_rounds_change_nothing_for_longer_tokens(
    pieces: list[str], picks: list[int], sizes: list[int], stops: list[str]
) -> None:
    token_ids = [pick % len(pieces) for pick in picks]
    outcome = spell(pieces, stops, split(token_ids, sizes))
    assert outcome == spell(pieces, stops, one_by_one(token_ids))
    whole = "".join(pieces[i] for i in token_ids)
    if outcome.reason is None:
        assert outcome == (token_ids, None, None)
        assert not any(stop in whole for stop in stops)
        return
    assert outcome.text is not None
    assert outcome.token_ids == token_ids[: len(outcome.token_ids)]
    assert any(whole.startswith(stop, len(outcome.text)) for stop in stops)
    assert outcome.text.startswith("".join(pieces[i] for i in outcome.token_ids))
    # No token too many was cut off: the next one reaches into the stop string, or is empty.
    next_piece = pieces[token_ids[len(outcome.token_ids)]]
    kept_text = "".join(pieces[i] for i in outcome.token_ids)
    assert not next_piece or len(kept_text + next_piece) > len(outcome.text)


@on_a_busy_machine
@given(TEXTS, STOPS, SIZES)
def test_ids_and_text_agree_and_end_right_before_the_stop_string(text: str, stops: list[str], sizes: list[int]) -> None:
    """With one token a byte, the kept ids are the bytes of the text."""
    outcome = play(Stopping(100, (), stops, Bytes()), split(list(text.encode()), sizes))
    # The first stop string to be complete ends it; of several that end there, the one that begins first.
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert outcome == (list(text.encode()), None, None)
        return
    place = min(ends[0] - len(stop) for stop in stops if text[: ends[0]].endswith(stop))
    assert outcome == (list(text[:place].encode()), text[:place], "stop")


@pytest.mark.parametrize(
    ("text", "stops", "start", "place"),
    [
        ("abc", ["b"], 0, 1),
        ("abc", ["c", "b"], 0, 1),
        ("abc", ["x"], 0, None),
        ("abc", [], 0, None),
        ("aaab", ["aab"], 0, 1),
        ("abab", ["ab"], 1, 2),
    ],
)
def test_find_stop(text: str, stops: list[str], start: int, place: int | None) -> None:
    assert find_stop(text, stops, start) == place


@pytest.mark.parametrize(
    ("text", "stops", "length"),
    [
        ("abc", [], 3),
        ("abc", ["x"], 3),
        ("abS", ["STOP"], 2),
        ("abSTO", ["STOP"], 2),
        ("abSTOx", ["STOP"], 6),
        ("aaa", ["aab"], 1),
        ("ab", ["bcd", "abx"], 0),
        ("", ["x"], 0),
        ("a\n", ["\n\n"], 1),
        ("a", ["a"], 1),
    ],
)
def test_safe_length(text: str, stops: list[str], length: int) -> None:
    assert safe_length(text, stops) == length


@on_a_busy_machine
@given(TEXTS, STOPS)
def test_safe_length_holds_back_every_beginning_of_a_stop_string_and_nothing_else(text: str, stops: list[str]) -> None:
    # Where a stop string is complete, the generation has ended.
    text = text[: min((text.find(stop) + len(stop) - 1 for stop in stops if stop in text), default=len(text))]
    length = safe_length(text, stops)
    beginnings = {stop[:i] for stop in stops for i in range(1, len(stop))}
    assert length == min((len(text) - len(b) for b in beginnings if text.endswith(b)), default=len(text))


@on_a_busy_machine
@given(TEXTS, STOPS, SIZES)
def test_nothing_of_a_stop_string_is_shown_and_everything_else_is(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    """What `generate` does with a printer: shown after every round, never taken back."""
    stopping = Stopping(100, (), stops, Bytes())
    out, detokenizer = io.StringIO(), Bytes()
    printer = TextPrinter(out, False)
    shown = [""]
    for emitted in split(list(text.encode()), sizes):
        kept, _, reason = stopping.admit(emitted)
        for token_id in emitted[:kept]:
            printer.push(detokenizer.push(token_id), "plain")
        if reason is not None:
            break
        printer.show(stopping.held_back)
        assert stopping.held_back == len(printer.text) - safe_length(printer.text, stops)
        shown.append(out.getvalue())
    final = text if stopping.text is None else stopping.text
    printer.push(final[len(printer.text) :], "plain")
    assert printer.finish(len(final)) == final
    shown.append(out.getvalue().removesuffix("\n") if final and not final.endswith("\n") else out.getvalue())
    assert shown[-1] == final
    assert all(later.startswith(earlier) for earlier, later in pairwise(shown))
