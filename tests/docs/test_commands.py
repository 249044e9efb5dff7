"""Every command of README.md and docs/*.md does what it did when the page was written.

A command is run as it stands, in a folder that holds the files which the pages speak of, with the options of `SHORTER`,
so that it ends in a moment. Where a page says `<!-- not run: REASON -->` before a block, its commands are only read, by
their own parsers, so that a misspelled option fails here all the same.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
from gguf import GGMLQuantizationType
from gguf_writer import END_ID, TOKENS, write_gguf
from packaging.requirements import Requirement
from pages import PAGES, Command, blocks, commands, name, spans
from running import ROOT, Specdec, benchmark_script, instead

from specdec_cli.commands import bench, chat, compare, generate, models, pair_check, predict, presets, show
from specdec_cli.measurement.distribution import check_first_tokens
from specdec_cli.prompts import builtin_prompts

# Set in a command that is run, so that it takes a moment instead of minutes. Nothing else is changed.
SHORTER = {
    "generate": ("--max-new-tokens", "4"),
    "chat": ("--max-new-tokens", "4"),
    "bench": ("--limit", "1", "--max-new-tokens", "4"),
    "bench --check-distribution": ("--k", "1"),
    "sweep-k": ("--limit", "1", "--max-new-tokens", "4", "--k", "2"),
    "pair-check --probe": ("--prompts", "prompts.jsonl"),
    "predict --simulate": ("--simulate", "100"),
    "benchmarks/sources.py": ("--limit", "1", "--tokens", "4"),
}
SAMPLES = 50  # of --check-distribution, in place of 500
# Why a command may be read without being run.
REASONS = {
    "compiles for minutes", "installs packages", "needs a GPU", "needs a hub", "needs a terminal",
    "needs the real pair", "sets up an environment",
}  # fmt: skip
RUNNERS = {
    "generate": generate, "bench": bench, "pair-check": pair_check, "predict": predict, "presets": presets,
    "chat": chat, "show": show, "compare": compare, "models": models,
}  # fmt: skip
SLOWER = 5  # the exit code that --fail-if-slower asks for
ALL = list(commands())


# The folder in which commands run


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that the pages speak of: folders and GGUF files with random weights, whose ids are bytes."""
    home = tmp_path_factory.mktemp("models")
    thinking = "{% if enable_thinking is defined %}<think>{% endif %}"  # a variable that pages set
    tokenizer = tiny.byte_tokenizer(chat_template=tiny.CHAT_TEMPLATE + thinking)
    shape = {"max_position_embeddings": 4096, "eos_token_id": tiny.BYTES, "bos_token_id": tiny.BYTES}
    target = tiny.model("llama", num_hidden_layers=5, **shape)
    draft = tiny.model("llama", num_hidden_layers=1, **shape)
    for folder in ("target", "my-7b"):
        tiny.save(home / folder, target, tokenizer)
    for folder in ("draft", "draft-a", "draft-b", "my-0.5b"):
        tiny.save(home / folder, draft, tokenizer)
    for role in ("target", "draft"):
        model = tiny.model("llama", vocab_size=len(TOKENS), **shape | {"eos_token_id": END_ID, "bos_token_id": END_ID})
        write_gguf(home / f"{role}.gguf", model, GGMLQuantizationType.Q4_0)
    return home


@pytest.fixture
def folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a command: the models, files that pages show, and files that they only name."""
    for path in models.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for block in blocks():
        if shown := block.noted("file"):
            (tmp_path / shown).write_text(block.text, encoding="utf-8")
    question = {"question_id": 81, "category": "writing", "turns": ["Compose a haiku.", "Rewrite it."]}
    (tmp_path / "question.jsonl").write_text(json.dumps(question) + "\n", encoding="utf-8")
    (tmp_path / "corpus.txt").write_text(builtin_prompts("code")[0].turns[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(check_first_tokens, "__defaults__", (SAMPLES,))
    return tmp_path


# Running a line, or reading it


def stages(line: str) -> list[tuple[str, list[str]]]:
    """The commands of a line, each with what stands before it: nothing, a pipe or &&."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    made: list[tuple[str, list[str]]] = [("", [])]
    for word in lexer:
        if word in ("|", "&&"):
            made.append((word, []))
        else:
            made[-1][1].append(word)
    return made


def shortened(words: Sequence[str]) -> list[str]:
    """A command with what makes it short."""
    keys = (words[1], *(f"{words[1]} {word}" for word in words[2:]))
    return instead(words, [extra for key in keys for extra in SHORTER.get(key, ())])


def run_line(line: str, specdec: Specdec, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Run a line as a shell would, without starting processes."""
    code, output = 0, ""
    for before, words in stages(line):
        if before == "&&" and code:
            break
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(output.encode() if before == "|" else b"")))
        if words[0] == "echo":
            code, output = 0, " ".join(words[1:]) + "\n"
        elif words[:3] == ["python", "-m", "json.tool"]:
            json.loads(output)
        elif words[0] == "specdec":
            code, output, errors = specdec(*shortened(words)[1:])
            assert code == 0 or (code == SLOWER and "--fail-if-slower" in words), errors
        elif words[0] == "python" and words[1].startswith("benchmarks/"):
            monkeypatch.setattr(sys, "argv", shortened(words)[1:])
            with benchmark_script(Path(words[1]).stem) as script:
                script.main()
            capfd.readouterr()
        else:
            pytest.fail(f"{words[0]} is not run: say before the block why, as <!-- not run: REASON -->")


class Read(Exception):
    """The command line is valid, and what it asks for is left undone."""


def read_words(words: list[str], specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command read its options and stop before it does anything."""
    if words[0] == "specdec":
        with monkeypatch.context() as patched:
            for runner in RUNNERS.values():
                patched.setattr(runner, "run", lambda *_, **__: 0)
            code, _, errors = specdec(*words[1:])
        assert code == 0, errors
    elif words[0] == "python" and words[1].startswith("benchmarks/"):
        with monkeypatch.context() as patched, benchmark_script(Path(words[1]).stem) as script:
            patched.setattr(sys, "argv", words[1:])
            patched.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
            with pytest.raises(Read):
                script.main()
    elif words[0] == "make":
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        dry = ["make", "--dry-run", *words[1:]]
        done = subprocess.run(dry, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words[:2] == ["pip", "install"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        (wanted,) = map(Requirement, words[2:])
        assert wanted.name == project["name"]
        assert wanted.extras <= set(project["optional-dependencies"])
    else:
        pytest.fail(f"this test knows no way to read {words[0]}")


def parse_and_stop(parser: argparse.ArgumentParser) -> None:
    """In place of `parse_args`."""
    options, unknown = parser.parse_known_args()
    assert options is not None
    assert not unknown
    raise Read


# The tests


def label(command: Command) -> str:
    """A command as the name of its test."""
    return f"{command.where} {' '.join(command.line.split()[:2])}"


@pytest.mark.parametrize("command", {str(stages(c.line)): c for c in ALL if not c.not_run}.values(), ids=label)
def test_a_command_runs(
    command: Command, folder: Path, specdec: Specdec, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_line(command.line, specdec, monkeypatch, capfd)


@pytest.mark.parametrize("command", [c for c in ALL if c.not_run], ids=label)
def test_a_command_that_is_not_run_is_valid(
    command: Command, folder: Path, specdec: Specdec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.not_run in REASONS
    for _, words in stages(command.line):
        read_words(words, specdec, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_command_within_a_sentence_is_valid(
    page: Path, folder: Path, specdec: Specdec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for span in spans(page):
        words = shlex.split(span) if span.startswith(("specdec ", "python benchmarks/", "make ")) else [""]
        if words[0] == "specdec" and not (words[1] in RUNNERS and len(words) > 2):
            continue  # the name of a command, no more; or options of specdec itself
        if words[0]:
            read_words(words, specdec, monkeypatch)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("specdec generate --temprature 1 x", "--temprature"),
        ("specdec sweep-k --k 8-1", "--k"),
        ("make demonstration", "demonstration"),
        ("pip install 'specdec-cli[gpu]'", "gpu"),
        ("rm x", "rm"),
    ],
)
def test_a_misspelled_command_is_found(
    line: str, told: str, folder: Path, specdec: Specdec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=told):
        read_words(stages(line)[0][1], specdec, monkeypatch)


def test_a_misspelled_option_of_a_script_is_found(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        read_words(["python", "benchmarks/sources.py", "--tokns", "4"], specdec, monkeypatch)
