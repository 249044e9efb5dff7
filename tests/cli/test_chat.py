"""`specdec chat`: the turns of `generate`, typed or piped; what stops an answer, and what ends the chat."""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from ascii_checkpoint import END_ID, TEMPLATE, ascii_model, ascii_tokenizer
from running import Specdec

from specdec_cli.commands import chat, generate
from specdec_cli.commands.typed_lines import CtrlC, Stopped
from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.seeds import answer_seed
from specdec_cli.runtime.pairs.text import TextStream

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    tiny.save(home / "target", ascii_model(), ascii_tokenizer(chat_template=TEMPLATE), END_ID)
    tiny.save(home / "draft", ascii_model(0.04), ascii_tokenizer(chat_template=TEMPLATE), END_ID)
    return home


def words(models: Path, *more: str | Path) -> tuple[str | Path, ...]:
    few = ("-n", "8", "--ignore-eos", "--seed", "7", "--device", "cpu", "--dtype", "float32")
    return "-t", models / "target", "-d", models / "draft", *few, *more


def pipe(monkeypatch: pytest.MonkeyPatch, content: str | bytes) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))


@pytest.fixture(autouse=True)
def _ctrl_c_is_heeded() -> Iterator[None]:
    """Also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Script:
    """Lines of a terminal, where an exception may stand for a key."""

    is_terminal = True

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = list(lines)

    def read(self) -> str | None:
        line = self._lines.pop(0) if self._lines else None
        if isinstance(line, type):
            raise line
        return line


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    monkeypatch.setattr(chat, "lines_of_stdin", lambda: Script(*lines))


def records(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def kept(of: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["turn"], one["text"], one["token_ids"], one["prompt_tokens"]) for one in of]


# The turns


@pytest.mark.parametrize("temperature", ["0", "1"])
@pytest.mark.parametrize("draft", [(), ("-d", "suffix")], ids=["model", "suffix"])
def test_lines_of_a_pipe_are_the_turns_of_generate(
    specdec: Specdec, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: str, draft: tuple[str]
) -> None:
    """With the same seed the same ids: the same prompts, and a seed of its own for each turn."""
    turns = ["one", "two three", "four"]
    more = words(models, "--temperature", temperature, "--format", "jsonl")
    if draft:
        more = tuple(draft[1] if word == models / "draft" else word for word in more)
    (tmp_path / "p.jsonl").write_text(json.dumps({"turns": turns}))
    code, out, _ = specdec("generate", "--prompts", tmp_path / "p.jsonl", *more)
    assert code == 0
    expected = kept(records(out))
    pipe(monkeypatch, "one\n\n  \ntwo three\r\nfour")
    code, out, err = specdec("chat", *more)
    assert code == 0, err
    assert kept(records(out)) == expected
    assert len(expected) == 3


def test_what_was_said_comes_before_what_is_asked(
    specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "one\ntwo\n/reset\nthree\n")
    _, out, err = specdec("chat", *words(models, "--format", "jsonl", "--system", "Be brief."))
    first, second, third = records(out)
    head = "<system>Be brief."
    sent = [f"{head}<user>one<assistant>", f"{head}<user>one<assistant>{first['text']}<user>two<assistant>"]
    assert [first["prompt_tokens"], second["prompt_tokens"]] == [len(text) for text in sent]
    assert third["prompt_tokens"] == len(f"{head}<user>three<assistant>")
    assert [(one["prompt"], one["turn"]) for one in (first, second, third)] == [(1, 1), (1, 2), (2, 1)]
    assert "a new conversation" in err


def test_every_answer_is_followed_by_its_speed(specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "one\ntwo\n")
    code, out, err = specdec("chat", *words(models))
    assert code == 0
    line = r"^8 tokens, [\d.]+ tokens/s, \d+ of \d+ drafted tokens accepted \(alpha [\d.]+\), cut at the length limit$"
    assert len(re.findall(line, err, re.MULTILINE)) == 2
    assert out.count("\n\n") >= 1
    pipe(monkeypatch, "one\ntwo\n")
    assert specdec("chat", *words(models, "-q"))[1:] == (out, "")


def test_drafts_are_shown_and_rounds_traced(
    specdec: Specdec, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "one\ntwo\n")
    code, out, err = specdec("chat", *words(models, "--show-draft", "--trace", tmp_path / "t.jsonl"))
    assert code == 0
    assert "‹" in out
    assert "‹accepted from the draft›" in err
    rounds = records((tmp_path / "t.jsonl").read_text())
    assert {one["turn"] for one in rounds} == {1, 2}


# What goes wrong


@pytest.mark.parametrize(
    ("content", "told"),
    [("", "nothing was piped in"), ("\n \n", "nothing was piped in"), (b"\xff\n", "a piped line is not UTF-8")],
)
def test_a_pipe_without_turns_is_refused(
    specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, told: str
) -> None:
    pipe(monkeypatch, content)
    code, out, err = specdec("chat", *words(models, "-q"))
    assert (code, out) == (2, "")
    assert err.startswith(f"specdec: {told}")
    assert len(err.splitlines()) == 1


def test_options_are_refused_as_by_generate(specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "one\n")
    for more, told in (
        (("--format", "json", "--show-draft"), "--show-draft marks text"),
        (("--prompts", "x"), "No such option"),
        (("--max-new-tokens", "0"), "--max-new-tokens must be 1 or above"),
    ):
        given = [w for w in words(models) if w not in ("-n", "8")] if more[0] == "--max-new-tokens" else words(models)
        code, out, err = specdec("chat", *given, *more)
        assert (code, out) == (2, "")
        assert told in err


def test_a_pipe_ends_where_a_turn_fails(specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "one\n" + "x" * 300 + "\ntwo\n")
    code, out, err = specdec("chat", *words(models, "--format", "jsonl"))
    assert code == 2
    assert len(records(out)) == 1
    assert "(or begin a new conversation with /reset)" in err.splitlines()[-1]


def test_a_person_may_say_it_again(specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn that failed is not part of the conversation, and its seed is not used again."""
    seeds: list[int] = []

    class Watched(Generation):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            seeds.append(options["seed"])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(generate, "Generation", Watched)
    typed(monkeypatch, "one", "x" * 300, "two")
    code, out, err = specdec("chat", *words(models, "--format", "jsonl"))
    first, second = records(out)
    assert code == 0
    assert "specdec: the prompt has" in err
    assert second["prompt_tokens"] == len(f"<user>one<assistant>{first['text']}<user>two<assistant>")
    assert seeds == [7, answer_seed(7, 1, 3)]


# Ctrl-C and signals


def press(monkeypatch: pytest.MonkeyPatch, at: set[int]) -> None:
    """Ctrl-C as the n-th token of all becomes text."""
    push, count = TextStream.push, [0]

    def pressed(stream: TextStream, token_id: int) -> str:
        count[0] += 1
        if count[0] in at:
            signal.raise_signal(signal.SIGINT)
        return push(stream, token_id)

    monkeypatch.setattr(TextStream, "push", pressed)


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(
    specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "one", "two")
    whole = records(specdec("chat", *words(models, "--format", "jsonl"))[1])
    typed(monkeypatch, "one", "two")
    press(monkeypatch, {2})
    code, out, err = specdec("chat", *words(models, "--format", "jsonl"))
    first, second = records(out)
    assert code == 0
    assert first["finish_reason"] == "interrupted"
    assert 2 <= first["new_tokens"] < 8
    assert first["token_ids"] == whole[0]["token_ids"][: first["new_tokens"]]
    assert second["finish_reason"] == "length"
    assert second["prompt_tokens"] == len(f"<user>one<assistant>{first['text']}<user>two<assistant>")
    assert ", stopped" in err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_twice_ends_it(specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "one", "two", "three")
    push = TextStream.push

    def pressed(stream: TextStream, token_id: int) -> str:
        signal.raise_signal(signal.SIGINT)
        return push(stream, token_id)

    answers: list[object] = []
    monkeypatch.setattr(TextStream, "push", lambda *of: (pressed if answers else push)(*of))
    monkeypatch.setattr(chat, "answer_line", lambda record: answers.append(record) or "")
    code, out, err = specdec("chat", *words(models, "-k", "8", "--format", "jsonl"))
    assert (code, len(records(out))) == (130, 1)
    assert "Traceback" not in err


def test_keys_count_for_what_goes_on() -> None:
    watch = CtrlC()
    with watch.watched(), watch.during_an_answer():
        signal.raise_signal(signal.SIGINT)
        assert watch.stopped
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with watch.watched(), pytest.raises(Stopped):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_while_typing_drops_the_line(specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, Stopped, "one", Stopped)
    code, out, err = specdec("chat", *words(models, "--format", "jsonl"))
    assert (code, len(records(out))) == (0, 1)
    assert err.count("Ctrl-D ends the chat") == 3  # at the start too


@pytest.mark.parametrize(("lines", "answers"), [(("one", KeyboardInterrupt, "two"), 1), ((KeyboardInterrupt,), 0)])
def test_a_signal_ends_it_with_what_there_was(
    specdec: Specdec, models: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[Any, ...], answers: int
) -> None:
    """SIGTERM and SIGHUP come as KeyboardInterrupt."""
    typed(monkeypatch, *lines)
    code, out, err = specdec("chat", *words(models, "--format", "jsonl"))
    assert (code, len(records(out))) == (130, answers)
    assert "Traceback" not in err


# A terminal


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_two_turns_in_a_terminal_then_ctrl_d(models: Path) -> None:
    import pty

    main, side = pty.openpty()
    command = [sys.executable, "-m", "specdec_cli", "chat", *map(str, words(models))]
    environment = os.environ | {"TERM": "dumb", "NO_COLOR": "1"}
    with subprocess.Popen(
        command, stdin=side, stdout=side, stderr=side, env=environment, start_new_session=True
    ) as talk:
        os.close(side)
        shown = ""

        def wait_for(pattern: str) -> None:
            nonlocal shown
            until = time.monotonic() + 240
            while not re.search(pattern, shown, re.DOTALL):
                assert time.monotonic() < until, shown
                if select.select([main], [], [], 1)[0]:
                    shown += ANSI.sub("", os.read(main, 4096).decode())

        try:
            wait_for(r"Ctrl-D ends the chat.*> $")
            os.write(main, b"one\r")
            wait_for(r"> one.*8 tokens, .* tokens/s.*> $")
            os.write(main, b"twx\x7fo\r")  # edited
            wait_for(r"8 tokens, .*8 tokens, .* tokens/s.*> $")
            os.write(main, b"\x04")
            assert talk.wait(60) == 0
        finally:
            talk.kill()
            os.close(main)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_file_of_answers_needs_turns_from_a_pipe(
    specdec: Specdec, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    pipe(monkeypatch, "one\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal)
    code, out, err = specdec("chat", *words(models, "-o", tmp_path / "out.txt", "-q"))
    assert out == ""
    if terminal:
        assert code == 2
        assert err.startswith("specdec: --output would keep the answers from the terminal")
    else:
        assert (code, err) == (0, "")
        assert (tmp_path / "out.txt").stat().st_size > 8
