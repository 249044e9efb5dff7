"""The command line as a user or a script meets it: help, every bad input, every output, and leaving early.

Most tests run in this process on tiny checkpoints whose 97 tokens are the printable ASCII characters, the line end and
the end token, so that texts compare character by character. What needs a real process (imports, pipes, signals) starts
one.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import typer
from ascii_checkpoint import CHARACTERS, END_ID, TEMPLATE, ascii_model, ascii_tokenizer
from running import Specdec, instead

import specdec_cli
from specdec_cli.__main__ import main
from specdec_cli.cli import app
from specdec_cli.commands import generate
from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.seeds import answer_seed
from specdec_cli.reports.tables import generation_summary
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.devices import clock_for
from specdec_cli.runtime.pairs.pair import Pair, load_pair
from specdec_cli.runtime.pairs.text import TextStream
from specdec_cli.settings import ModelSettings

CONTEXT = 256
NOISE = 0.04
KEYS = [
    "schema", "specdec_version", "environment", "settings", "prompt", "turn", "text",
    "token_ids", "prompt_tokens", "new_tokens",
    "finish_reason", "rounds", "drafted", "accepted", "judged", "tokens_per_round", "alpha", "provenance", "timings",
]  # fmt: skip
TIMINGS = ["prefill_s", "decode_s", "draft_s", "verify_s", "other_s", "tokens_per_s"]
ANSI = re.compile(r"\x1b\[[0-9;]*m")
PROMPT = "def f(x):"
GREEDY = ("-n", "20", "--ignore-eos", "--seed", "7")
SAMPLED = (*GREEDY, "--temperature", "1")


# The models


@dataclass(frozen=True)
class Models:
    """Checkpoint folders."""

    target: Path
    draft: Path  # the target with noise: accepted about two times in three
    chat: Path  # the target with a chat template
    endless: Path  # the target with a context that no test fills
    swapped: Path  # the draft with two ids exchanged

    def pair(
        self, *options: str | Path, target: Path | None = None, draft: str | Path | None = None
    ) -> tuple[str | Path, ...]:
        """The options for a pair, and more options."""
        return "--target", target or self.target, "--draft", draft or self.draft, "--device", "cpu", *options


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Models:
    home = tmp_path_factory.mktemp("models")
    swapped = CHARACTERS.replace("A", "\0").replace("B", "A").replace("\0", "B")
    return Models(
        target=tiny.save(home / "target", ascii_model(), ascii_tokenizer(), END_ID),
        draft=tiny.save(home / "draft", ascii_model(NOISE), ascii_tokenizer(), END_ID),
        chat=tiny.save(home / "chat", ascii_model(), ascii_tokenizer(chat_template=TEMPLATE), END_ID),
        endless=tiny.save(home / "endless", ascii_model(max_position_embeddings=10**6), ascii_tokenizer(), END_ID),
        swapped=tiny.save(home / "swapped", ascii_model(NOISE), ascii_tokenizer(swapped), END_ID),
    )


@pytest.fixture(scope="module")
def loaded() -> dict[object, Pair]:
    """Every pair that a test of this module has loaded."""
    return {}


@pytest.fixture(autouse=True)
def _load_once(loaded: dict[object, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the time would go into loading the same checkpoints again."""

    def load(target: ModelSettings, draft: ModelSettings | None, report: Report) -> Pair:
        if (target, draft) not in loaded:
            loaded[target, draft] = load_pair(target, draft, report)
        return loaded[target, draft]

    monkeypatch.setattr(generate, "load_pair", load)


@pytest.fixture(autouse=True)
def _own_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command leaves behind, it leaves in the test's own folder."""
    monkeypatch.chdir(tmp_path)


def records(specdec: Specdec, *arguments: str | Path) -> list[dict[str, Any]]:
    """Run `generate --format jsonl` and return its documents."""
    code, out, err = specdec("generate", *arguments, "--format", "jsonl")
    assert (code, "Traceback" in err) == (0, False), err
    return [json.loads(line) for line in out.splitlines()]


def record(specdec: Specdec, *arguments: str | Path) -> dict[str, Any]:
    (only,) = records(specdec, *arguments)
    return only


def to_file(path: Path, *arguments: str | Path) -> dict[str, Any]:
    """For fixtures of the module, which cannot capture: `generate --output`."""
    assert main(["generate", *map(str, arguments), "--format", "json", "--output", str(path), "--quiet"]) == 0
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return made


@pytest.fixture(scope="module")
def greedy(checkpoints: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What PROMPT with GREEDY gives when nothing ends it early."""
    return to_file(tmp_path_factory.mktemp("greedy") / "record", PROMPT, *checkpoints.pair(*GREEDY))


@pytest.fixture(scope="module")
def sampled(checkpoints: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What PROMPT with SAMPLED gives when nothing ends it early."""
    return to_file(tmp_path_factory.mktemp("sampled") / "record", PROMPT, *checkpoints.pair(*SAMPLED))


def characters(token_ids: Sequence[int]) -> str:
    return "".join(CHARACTERS[i] for i in token_ids if i != END_ID)


def with_line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def subprocess_environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "specdec_cli", *map(str, arguments)]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Put bytes into the pipe that stdin reads from."""

    def fill(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))

    return fill


# Help, version, start-up

COMMANDS = [
    *("generate", "bench", "sweep-k", "pair-check", "predict", "presets"),
    *("chat", "compare", "models", "show"),
]
GENERATE_OPTIONS = [
    "--preset", "--target", "--draft", "--device", "--draft-device", "--dtype", "--draft-dtype", "--revision",
    "--draft-revision", "--offline", "--trust-remote-code", "--temperature", "--top-k", "--top-p", "--min-p",
    "--repetition-penalty", "--seed", "--k", "--format", "--output", "--prompts", "--system", "--raw",
    "--max-new-tokens", "--stop", "--ignore-eos", "--show-draft", "--trace", "--quiet",
    "-p", "-t", "-d", "-k", "-n", "-o", "-q", "-h",
]  # fmt: skip


def parsers() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    assert sorted(group.commands) == sorted(COMMANDS)
    return dict(group.commands)


def test_help_lists_every_command_with_a_line(specdec: Specdec) -> None:
    code, out, err = specdec("--help")
    assert (code, err) == (0, "")
    for name in COMMANDS:
        assert re.search(rf"^│ {name} +\w", out, re.MULTILINE)
    assert "--version" in out


@pytest.mark.parametrize("columns", ["80", "140"])
def test_help_of_generate_names_every_option(specdec: Specdec, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = specdec("generate", "--help")
    assert (code, err) == (0, "")
    shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", out))
    assert [option for option in GENERATE_OPTIONS if option not in shown] == []
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "…" not in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help_and_every_command_an_example(specdec: Specdec, name: str) -> None:
    parser = parsers()[name]
    assert [p.name for p in parser.params if len((getattr(p, "help", None) or "").strip()) < 10] == []
    code, out, _ = specdec(name, "-h")
    assert code == 0
    examples = [line.strip() for line in out.splitlines() if line.strip().startswith("Example: ")]
    (example,) = examples
    words = shlex.split(example.removeprefix("Example: "))
    assert words[:2] == ["specdec", name]
    parser.make_context(name, words[2:])  # raises where an option or a value is unknown
    # Flags take no value; --help is Typer's own.
    assert [line for line in out.splitlines() if "<bool>" in line and "--help" not in line] == []


def test_the_example_of_generate_works_with_the_embedded_pair(specdec: Specdec) -> None:
    """The one case here that runs the demo pair."""
    example = parsers()["generate"].epilog.removeprefix("Example: specdec ")
    code, out, err = specdec(*instead(shlex.split(example), ("--max-new-tokens", "12")))
    assert code == 0
    assert out.endswith("\n")
    assert "12 tokens in " in err
    assert "Traceback" not in err


def test_version(specdec: Specdec) -> None:
    assert specdec("--version") == (0, f"specdec {specdec_cli.__version__}\n", "")


def test_without_a_command_help_is_shown(specdec: Specdec) -> None:
    code, out, _ = specdec()
    assert code == 2
    assert "Usage: specdec" in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["generate", "--help"], 0),
        (["presets"], 0),
        (["generate", "x", "--k", "0"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_needs_no_model_loads_no_library_for_models(arguments: list[str], code: int) -> None:
    """Or `specdec --help` would take seconds."""
    watched = (
        "import atexit, sys\n"
        "heavy = ('torch', 'transformers', 'numpy', 'accelerate', 'tokenizers')\n"
        "atexit.register(lambda: print('loaded:', [m for m in heavy if m in sys.modules]))\n"
        "import specdec_cli.cli\n"
        "from specdec_cli.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", watched, *arguments], capture_output=True, text=True, env=subprocess_environment()
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, "loaded: []")


# Bad input


def refused(result: tuple[int, str, str], code: int) -> str:
    """The message of a command that must fail before it has said anything; --quiet, where it loads a model first."""
    got, out, err = result
    assert (got, out) == (code, "")
    assert err.startswith("specdec: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.removeprefix("specdec: ").rstrip()


BAD_OPTIONS: list[tuple[list[str], str]] = [
    (["--k", "0"], "--k must be from 1 to 1000, auto or heuristic, not 0; for plain decoding use --draft none"),
    (["-k", "-1"], "--k must be from 1 to 1000, auto or heuristic, not -1"),
    (["--k", "x"], "--k must be a number of 1 or above, auto or heuristic, not 'x'"),
    (["--k", "1.5"], "--k must be a number of 1 or above, auto or heuristic, not '1.5'"),
    (["--k", ""], "--k must be a number of 1 or above, auto or heuristic"),
    (["--k"], "'--k' requires an argument"),
    (["--temperature", "-1"], "--temperature must be 0 (greedy), or between 1e-6 and 1e6, not -1"),
    (["--temperature", "nan"], "--temperature must be 0 (greedy), or between 1e-6 and 1e6, not nan"),
    (["--temperature", "inf"], "--temperature must be 0 (greedy), or between 1e-6 and 1e6, not inf"),
    (["--temperature", "1e-50"], "--temperature must be 0 (greedy), or between 1e-6 and 1e6, not 1e-50"),
    (["--temperature", "hot"], "'--temperature'"),
    (["--top-p", "0"], "--top-p must be above 0 and at most 1"),
    (["--raw", "--system", "x"], "--system needs the chat template that --raw leaves out"),
    (["--top-p", "1.1"], "--top-p must be above 0 and at most 1 (keep all), not 1.1"),
    (["--top-p", "nan"], "--top-p must be"),
    (["--top-k", "-1"], "--top-k must be 0 (keep all) or above, not -1"),
    (["--top-k", "2.5"], "'--top-k'"),
    (["--min-p", "2"], "--min-p must be between 0 (keep all) and 1, not 2"),
    (["--min-p", "-0.1"], "--min-p must be between 0 (keep all) and 1, not -0.1"),
    (["--min-p", "nan"], "--min-p must be"),
    (["--repetition-penalty", "0"], "--repetition-penalty must be above 0"),
    (["--repetition-penalty", "-2"], "--repetition-penalty must be above 0 (1 changes nothing), not -2"),
    (["--repetition-penalty", "inf"], "--repetition-penalty must be above 0"),
    (["--max-new-tokens", "0"], "--max-new-tokens must be 1 or above, not 0"),
    (["-n", "-5"], "--max-new-tokens must be 1 or above, not -5"),
    (["--stop", ""], "--stop is empty"),
    (["--stop", "x", "--stop", ""], "--stop is empty"),
    (["--stop", os.fsdecode(b"caf\xe9")], "--stop is not UTF-8"),
    (["--seed", "-1"], "--seed must be between 0 and 2^63 - 1, not -1"),
    (["--seed", str(2**63)], "--seed must be between 0 and 2^63 - 1"),
    (["--device", "tpu9"], "--device 'tpu9' is not available; here there is: cpu"),
    (["--device", "meta"], "--device 'meta' holds no data"),
    (["--device", ""], "--device '' is not available; here there is: cpu"),
    (["--draft-device", "cuda:99"], "--draft-device 'cuda:99' is not available; here there is: cpu"),
    (["--dtype", "int8"], "'--dtype'"),
    (
        ["--graphs", "on"],
        "Invalid value for '--graphs': 'on' is not one of 'auto', 'off'. (see specdec generate --help)",
    ),
    (["--quantize", "foo"], "'--quantize': 'foo' is not one of 'keep', 'none', 'int8', 'w8a8', 'int4'."),
    (["--preset", "demo"], "--preset and --target are given both"),
    (["--format", "xml"], "'--format'"),
    (["--format", "csv"], "'--format'"),
    (["--nonsense"], "--nonsense"),
    (["--temprature", "1"], "--temprature"),
    (["another prompt"], "another prompt"),
    (["--prompts", "somewhere.txt"], "a prompt and --prompts are given both"),
    (["--system", "Be brief."], "a system message needs a chat template, and the target has no chat template"),
    (["--system", "Be brief.", "--raw"], "--system needs the chat template that --raw leaves out"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[" ".join(options) for options, _ in BAD_OPTIONS])
def test_a_bad_option_is_one_line_and_leaves_nothing(
    specdec: Specdec, checkpoints: Models, tmp_path: Path, options: list[str], message: str
) -> None:
    files = ("--output", "out.txt", "--trace", "trace.jsonl", "--quiet")
    result = specdec("generate", PROMPT, *instead([*checkpoints.pair(), *files], options))
    assert message in refused(result, 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty: give it as an argument, through a pipe, or with --prompts"),
        (" \n\t", "the prompt is empty"),
        ("x" * CONTEXT, f"the prompt has {CONTEXT} tokens, the target's context only {CONTEXT}: shorten it"),
        ("x" * 5000, f"the prompt has 5,000 tokens, the target's context only {CONTEXT}: shorten it"),
        (os.fsdecode(b"caf\xe9"), "the prompt is not UTF-8"),
    ],
    ids=["empty", "white-space", "as-long-as-the-context", "longer-than-the-context", "latin-1"],
)
def test_a_bad_prompt_is_one_line_and_leaves_nothing(
    specdec: Specdec, checkpoints: Models, tmp_path: Path, prompt: str, message: str
) -> None:
    files = ("--output", "out.txt", "--trace", "trace.jsonl", "--quiet")
    result = specdec("generate", prompt, *checkpoints.pair(), *files)
    assert message in refused(result, 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--preset", "no-such"], 2, "--preset no-such is unknown; there are: demo, "),
        (["--preset", "no-such.yaml"], 2, "--preset no-such.yaml: there is no such file"),
        (["--target", "TARGET"], 2, "--draft is missing: name a small model with the target's tokenizer, or none"),
        (["--target", "", "--draft", "none"], 2, "the model is an empty string"),
        (["--target", "./no-such", "--draft", "none"], 2, "--target ./no-such does not exist"),
        (["--target", "./no-such"], 2, "--target ./no-such does not exist"),
        (["--target", "no-such.gguf"], 2, "--target no-such.gguf does not exist"),
        (["--target", "someone/model"], 2, "--draft is missing"),
        (["--target", "no-such.gguf", "--draft", "none"], 2, "--target no-such.gguf does not exist"),
        (["--target", "what is this", "--draft", "none"], 2, "--target what is this does not exist"),
        (["--target", "empty", "--draft", "none"], 2, "--target empty is a folder with no config.json"),
        (["--target", "notes.txt", "--draft", "none"], 2, "--target notes.txt is a file but no .gguf"),
        (["--target", "fake.gguf", "--draft", "none"], 2, "--target fake.gguf is not a GGUF file"),
        (["--target", "TARGET", "--draft", "empty"], 2, "--draft empty is a folder with no config.json"),
        (["--target", "TARGET", "--draft", "notes.txt"], 2, "--draft notes.txt is a file but no .gguf"),
        (["--target", "no-such/model", "--draft", "none"], 1, "--target no-such/model is not in the hub's local cache"),
        (["--target", "TARGET", "--draft", "ngrams"], 1, "--draft ngrams is not in the hub's local cache"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_model_that_is_not_there_is_one_line(
    specdec: Specdec, checkpoints: Models, tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no model", encoding="utf-8")
    (tmp_path / "fake.gguf").write_text("no model", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    named = [str(checkpoints.target) if option == "TARGET" else option for option in options]
    result = specdec("generate", PROMPT, *named, "--offline", "--output", "out.txt", "--trace", "trace.jsonl")
    assert message in refused(result, code)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is neither a file nor a built-in set"),
        (b"", "is empty"),
        (b"one\ncaf\xe9\n", "is not UTF-8 (byte 7)"),
        (b'{"prompt": "one"}\n{"prompt": \n', "line 2 is not JSON"),
        (
            b"one\n" + b"x" * CONTEXT,
            f"the prompt has {CONTEXT} tokens, the target's context only {CONTEXT}: shorten it",
        ),
    ],
    ids=["missing", "empty", "latin-1", "bad-json", "second-too-long"],
)
def test_a_bad_file_of_prompts_is_one_line(
    specdec: Specdec, checkpoints: Models, tmp_path: Path, content: bytes | None, message: str
) -> None:
    """Before the first prompt is answered, whichever is wrong."""
    if content is not None:
        (tmp_path / "prompts.txt").write_bytes(content)
    options = checkpoints.pair("--quiet", "-n", "4", "--trace", "trace.jsonl")
    assert message in refused(specdec("generate", "--prompts", "prompts.txt", *options), 2)
    assert not (tmp_path / "trace.jsonl").exists()


@pytest.mark.parametrize("option", ["--output", "--trace"])
@pytest.mark.parametrize(
    ("place", "message"), [("no-such/file", "the folder no-such does not exist"), (".", "is a folder: name a file")]
)
def test_a_place_that_cannot_be_written_is_told_before_anything_runs(
    specdec: Specdec, checkpoints: Models, tmp_path: Path, option: str, place: str, message: str
) -> None:
    told = refused(specdec("generate", PROMPT, *checkpoints.pair(option, place)), 2)
    assert told.startswith(option)
    assert message in told
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_what_the_files_held_before(specdec: Specdec, checkpoints: Models, tmp_path: Path) -> None:
    for name in ("out.txt", "trace.jsonl"):
        (tmp_path / name).write_text("earlier", encoding="utf-8")
    files = ("--output", "out.txt", "--trace", "trace.jsonl", "--quiet")
    refused(specdec("generate", "x" * CONTEXT, *checkpoints.pair(), *files), 2)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        "out.txt": "earlier",
        "trace.jsonl": "earlier",
    }


def test_a_draft_that_means_something_else_by_two_ids_is_refused_and_the_ids_named(
    specdec: Specdec, checkpoints: Models, tmp_path: Path
) -> None:
    """Symptom 2: equal sizes, another order."""
    result = specdec("generate", PROMPT, *checkpoints.pair("-o", "out.txt", draft=checkpoints.swapped))
    message = refused(result, 3)
    a, b = CHARACTERS.index("A"), CHARACTERS.index("B")
    assert "2 ids" in message
    assert f"{a} is 'A' / 'B'" in message
    assert f"{b} is 'B' / 'A'" in message
    assert list(tmp_path.iterdir()) == []


# Prompts


def test_a_prompt_of_one_token_works(specdec: Specdec, checkpoints: Models) -> None:
    """Symptom 15: nothing to prefill."""
    one = record(specdec, "x", *checkpoints.pair("-n", "8", "--ignore-eos"))
    assert (one["prompt_tokens"], one["new_tokens"]) == (1, 8)


def test_a_prompt_of_all_but_one_position_works(specdec: Specdec, checkpoints: Models) -> None:
    one = record(specdec, "x" * (CONTEXT - 1), *checkpoints.pair("--ignore-eos"))
    assert one["prompt_tokens"] == CONTEXT - 1
    assert one["finish_reason"] == "length"
    assert 1 <= one["new_tokens"] <= 2


@pytest.mark.parametrize("argument", [[], ["-"]], ids=["nothing", "dash"])
@pytest.mark.parametrize("end", [b"", b"\n"], ids=["no-line-end", "line-end"])
def test_what_stands_in_the_pipe_is_the_prompt(
    specdec: Specdec, checkpoints: Models, pipe: Callable[[bytes], None], argument: list[str], end: bytes
) -> None:
    pipe(b"two\nlines" + end)
    piped = record(specdec, *argument, *checkpoints.pair("-n", "8"))
    given = record(specdec, "two\nlines", *checkpoints.pair("-n", "8"))
    assert piped["prompt_tokens"] == len("two\nlines")
    assert piped["token_ids"] == given["token_ids"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"caf\xe9", "the piped prompt is not UTF-8 (byte 3)"), (b"", "from the pipe is empty"), (b" \n", "is empty")],
    ids=["latin-1", "empty", "white-space"],
)
def test_a_bad_pipe_is_one_line(
    specdec: Specdec, checkpoints: Models, pipe: Callable[[bytes], None], content: bytes, message: str
) -> None:
    pipe(content)
    assert message in refused(specdec("generate", *checkpoints.pair()), 2)


@pytest.mark.parametrize("argument", [[], ["-"]], ids=["nothing", "dash"])
def test_a_terminal_is_no_pipe(
    specdec: Specdec, checkpoints: Models, monkeypatch: pytest.MonkeyPatch, argument: list[str]
) -> None:
    """Waiting for a prompt that is never typed would look like a hang."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    message = refused(specdec("generate", *argument, *checkpoints.pair()), 2)
    assert message.startswith("there is no prompt: give it as an argument, through a pipe, or with --prompts")


def test_a_chat_template_is_used_unless_raw(specdec: Specdec, checkpoints: Models) -> None:
    options = checkpoints.pair("-n", "4", target=checkpoints.chat)
    expected = {
        (): f"<user>{PROMPT}<assistant>",
        ("--raw",): PROMPT,
        ("--system", "Be brief."): f"<system>Be brief.<user>{PROMPT}<assistant>",
    }
    for more, sent in expected.items():
        assert record(specdec, PROMPT, *options, *more)["prompt_tokens"] == len(sent)
    refused(specdec("generate", PROMPT, *options, "--raw", "--system", "Be brief.", "--quiet"), 2)


def test_turns_continue_the_conversation(specdec: Specdec, checkpoints: Models, tmp_path: Path) -> None:
    """The second question comes after the first answer, as it was shown; the next prompt starts afresh."""
    lines = [{"turns": ["one", "three"]}, {"prompt": "five"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    options = checkpoints.pair("-n", "6", "--ignore-eos", target=checkpoints.chat)
    first, second, third = records(specdec, "--prompts", "p.jsonl", *options)
    sent = ["<user>one<assistant>", f"<user>one<assistant>{first['text']}<user>three<assistant>"]
    assert [first["prompt_tokens"], second["prompt_tokens"]] == [len(text) for text in sent]
    assert third["prompt_tokens"] == len("<user>five<assistant>")
    again = record(specdec, sent[1], *options, "--raw")
    assert again["token_ids"] == second["token_ids"]


def test_messages_are_the_conversation_so_far(specdec: Specdec, checkpoints: Models, tmp_path: Path) -> None:
    messages = [("system", "S."), ("user", "one"), ("assistant", "two"), ("user", "three")]
    line = {"messages": [{"role": role, "content": content} for role, content in messages]}
    (tmp_path / "p.jsonl").write_text(json.dumps(line), encoding="utf-8")
    options = checkpoints.pair("-n", "4", target=checkpoints.chat)
    one = record(specdec, "--prompts", "p.jsonl", *options)
    assert one["prompt_tokens"] == len("<system>S.<user>one<assistant>two<user>three<assistant>")


def test_without_a_template_turns_are_lines(specdec: Specdec, checkpoints: Models, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"turns": ["one", "three"]}', encoding="utf-8")
    first, second = records(specdec, "--prompts", "p.jsonl", *checkpoints.pair("-n", "6", "--ignore-eos"))
    assert second["prompt_tokens"] == len(f"one\n{first['text']}\nthree")


# Records


def check_consistent(one: dict[str, Any]) -> None:
    """What must hold of every document, however its generation ended."""
    assert list(one) == KEYS
    assert list(one["timings"]) == TIMINGS
    assert one["schema"] == 1
    assert one["specdec_version"] == specdec_cli.__version__
    assert len(one["token_ids"]) == one["new_tokens"] == len(one["provenance"])
    assert set(one["provenance"]) <= {"accepted", "recovered", "bonus", "plain"}
    assert 0 <= one["accepted"] <= one["drafted"]
    assert one["provenance"].count("accepted") == one["accepted"]
    assert (one["alpha"] is None) == (one["judged"] == 0)
    assert len(one["provenance"]) - one["provenance"].count("accepted") <= one["rounds"]
    if one["rounds"]:
        assert one["tokens_per_round"] == pytest.approx(one["new_tokens"] / one["rounds"])
    assert one["alpha"] is None or 0 <= one["alpha"] <= 1
    timings = one["timings"]
    assert all(seconds is None or seconds >= 0 for seconds in timings.values())
    assert timings["decode_s"] == pytest.approx(timings["draft_s"] + timings["verify_s"] + timings["other_s"])
    if timings["decode_s"]:
        assert timings["tokens_per_s"] == pytest.approx(one["new_tokens"] / timings["decode_s"])
    if one["finish_reason"] != "stop":
        assert one["text"] == characters(one["token_ids"])
    else:
        assert one["text"].startswith(characters(one["token_ids"]))


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SAMPLED, (*SAMPLED, "--top-k", "9", "--top-p", ".9", "--min-p", ".01", "--repetition-penalty", "1.2")],
    ids=["greedy", "sampled", "warped"],
)
@pytest.mark.parametrize("k", ["1", "5"])
def test_a_record_has_every_key_and_agrees_with_itself(
    specdec: Specdec, checkpoints: Models, sampling: tuple[str, ...], k: str
) -> None:
    code, out, _ = specdec("generate", PROMPT, *checkpoints.pair("--k", k, *sampling, "--format", "json"))
    assert code == 0
    one = json.loads(out)
    check_consistent(one)
    assert (one["new_tokens"], one["finish_reason"], one["prompt_tokens"]) == (20, "length", len(PROMPT))
    settings = one["settings"]
    assert settings["generation"]["num_draft_tokens"] == int(k)
    assert settings["target"]["source"] == str(checkpoints.target)
    assert settings["draft"]["source"] == str(checkpoints.draft)
    assert (settings["target"]["device"], settings["target"]["dtype"]) == ("cpu", "float32")
    assert {"python", "torch", "transformers", "cpu", "threads", "devices"} <= set(one["environment"])


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_two_runs_with_one_seed_make_one_record(
    specdec: Specdec, checkpoints: Models, sampling: tuple[str, ...]
) -> None:
    """Symptom 14: nothing is carried over from the run before, within a process or a file of prompts."""
    runs = [record(specdec, PROMPT, *checkpoints.pair(*sampling)) for _ in range(2)]
    Path("p.txt").write_text(f"{PROMPT}\nsomething else\n{PROMPT}\n", encoding="utf-8")
    runs += [one for _ in range(2) for one in records(specdec, "--prompts", "p.txt", *checkpoints.pair(*sampling))]
    assert [run["prompt"] for run in runs] == [1, 1, 1, 2, 3, 1, 2, 3]
    first, again, *of_files = [{**run, "timings": None, "prompt": None} for run in runs]
    assert again == of_files[0] == first
    assert of_files[:3] == of_files[3:]
    assert (of_files[2] == first) == (sampling == GREEDY)  # another place in the file has another seed


def test_every_answer_has_a_seed_of_its_own(
    specdec: Specdec, checkpoints: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the first of the first prompt that of the run."""
    seeds: list[int] = []

    class Watched(Generation):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            seeds.append(options["seed"])
            super().__init__(*arguments, **options)

    monkeypatch.setattr("specdec_cli.commands.generate.Generation", Watched)
    Path("p.jsonl").write_text('{"turns": ["one", "three"]}\n{"prompt": "one"}\n', encoding="utf-8")
    records(specdec, "--prompts", "p.jsonl", *checkpoints.pair("-n", "4", "--seed", "9"))
    assert seeds == [9, answer_seed(9, 1, 2), answer_seed(9, 2, 1)]
    assert len(set(seeds)) == 3


def test_without_a_seed_the_record_tells_a_new_one(specdec: Specdec, checkpoints: Models) -> None:
    options = checkpoints.pair("-n", "20", "--temperature", "1", "--ignore-eos")
    first, second = record(specdec, PROMPT, *options), record(specdec, PROMPT, *options)
    seeds = [one["settings"]["generation"]["seed"] for one in (first, second)]
    assert seeds[0] != seeds[1]
    assert first["token_ids"] != second["token_ids"]
    assert record(specdec, PROMPT, *options, "--seed", str(seeds[0]))["token_ids"] == first["token_ids"]


def test_the_models_of_these_tests_make_every_kind_of_token(greedy: dict[str, Any], sampled: dict[str, Any]) -> None:
    """Or the tests would prove less than they say."""
    for one in (greedy, sampled):
        check_consistent(one)
        assert set(one["provenance"]) >= {"accepted", "recovered", "bonus"}
        assert 0.3 < one["alpha"] < 0.95
        assert len(set(one["token_ids"])) > 5


@pytest.mark.parametrize("temperature", ["0", "1e-6", "1e-3", "2"])
def test_every_temperature_works_and_next_to_0_is_greedy(
    specdec: Specdec, checkpoints: Models, greedy: dict[str, Any], temperature: str
) -> None:
    """Symptom 13."""
    one = record(specdec, PROMPT, *checkpoints.pair(*GREEDY, "--temperature", temperature))
    check_consistent(one)
    assert (one["token_ids"] == greedy["token_ids"]) == (temperature != "2")


def test_without_a_draft_decoding_is_plain_and_the_text_the_same(
    specdec: Specdec, checkpoints: Models, greedy: dict[str, Any]
) -> None:
    plain = record(specdec, PROMPT, *checkpoints.pair(*GREEDY, draft="none"))
    check_consistent(plain)
    assert plain["provenance"] == 20 * ["plain"]
    assert (plain["drafted"], plain["accepted"], plain["alpha"], plain["rounds"]) == (0, 0, None, 20)
    assert plain["settings"]["draft"] == {"source": "none"}
    assert plain["token_ids"] == greedy["token_ids"]


@pytest.mark.parametrize("place", range(6))
def test_the_text_ends_with_the_end_token_wherever_it_falls(
    specdec: Specdec, checkpoints: Models, sampled: dict[str, Any], tmp_path: Path, place: int
) -> None:
    """Symptom 7, through the whole tool: every place in a block, with several end ids."""
    last = sampled["token_ids"][place]
    target = tiny.save(tmp_path / "target", ascii_model(), ascii_tokenizer(), [END_ID, last])
    options = [option for option in SAMPLED if option != "--ignore-eos"]
    one = record(specdec, PROMPT, *checkpoints.pair(*options, target=target))
    check_consistent(one)
    end = sampled["token_ids"].index(last) + 1
    assert (one["token_ids"], one["finish_reason"]) == (sampled["token_ids"][:end], "eos")


def test_tokens_behind_the_end_inside_a_block_are_counted_nowhere(
    specdec: Specdec, checkpoints: Models, greedy: dict[str, Any], tmp_path: Path
) -> None:
    """The draft is the target, so that all eight are accepted; the third of them ends the text."""
    last = greedy["token_ids"][2]
    assert greedy["token_ids"].index(last) == 2
    target = tiny.save(tmp_path / "target", ascii_model(), ascii_tokenizer(), [END_ID, last])
    options = checkpoints.pair("--temperature", "0", "--k", "8", "--trace", "t", target=target, draft=target)
    one = record(specdec, PROMPT, *options)
    check_consistent(one)
    assert (one["token_ids"], one["finish_reason"]) == (greedy["token_ids"][:3], "eos")
    assert (one["drafted"], one["accepted"], one["rounds"], one["tokens_per_round"]) == (8, 3, 1, 3.0)
    assert one["provenance"] == 3 * ["accepted"]
    # Alpha is over what the rule judged in whole rounds, and there is none; the trace keeps what it said of this one.
    assert (one["alpha"], one["judged"]) == (None, 0)
    (line,) = map(json.loads, Path("t").read_text(encoding="utf-8").splitlines())
    assert (line["num_accepted"], line["provenance"], line["cut"]) == (8, 3 * ["accepted"], True)


@pytest.mark.parametrize("output_format", ["text", "json"])
@pytest.mark.parametrize(("place", "length"), [(0, 1), (0, 6), (1, 3), (3, 1), (3, 6), (4, 3), (5, 1), (13, 6)])
def test_a_stop_string_ends_text_and_ids_wherever_it_falls(
    specdec: Specdec, checkpoints: Models, sampled: dict[str, Any], place: int, length: int, output_format: str
) -> None:
    """Symptom 8, through the whole tool: inside a block, over the border of rounds, from the first character on."""
    whole = sampled["text"]
    stop = whole[place : place + length]
    before = whole[: whole.index(stop)]
    options = checkpoints.pair(*SAMPLED, "--stop", "never", "--stop", stop, "--format", output_format)
    code, out, err = specdec("generate", PROMPT, *options)
    assert code == 0, err
    if output_format == "text":
        assert out == with_line_end(before)
        return
    one = json.loads(out)
    check_consistent(one)
    assert (one["text"], one["finish_reason"]) == (before, "stop")
    assert characters(one["token_ids"]) == before


def test_a_preset_file_brings_models_and_k(specdec: Specdec, checkpoints: Models) -> None:
    preset = checkpoints.target.parent / "mine.yaml"
    preset.write_text("target: ./target\ndraft: ./draft\nk: 2\n", encoding="utf-8")
    options = ("--preset", preset, "-n", "8")
    one = record(specdec, PROMPT, *options)
    assert one["settings"]["target"]["source"] == str(checkpoints.target)
    assert one["settings"]["draft"]["source"] == str(checkpoints.draft)
    assert one["settings"]["generation"]["num_draft_tokens"] == 2
    assert record(specdec, PROMPT, *options, "--k", "3")["settings"]["generation"]["num_draft_tokens"] == 3
    assert record(specdec, PROMPT, *options, "--draft", "none")["settings"]["draft"] == {"source": "none"}


# Where output goes


@pytest.fixture
def two_prompts(tmp_path: Path) -> Path:
    path = tmp_path / "two.txt"
    path.write_text("first prompt\nsecond\n", encoding="utf-8")
    return path


def test_jsonl_is_a_line_and_json_a_list_item_for_each_prompt(
    specdec: Specdec, checkpoints: Models, two_prompts: Path
) -> None:
    options = checkpoints.pair("-n", "8", "--seed", "1")
    code, lines, _ = specdec("generate", "--prompts", two_prompts, *options, "--format", "jsonl")
    assert (code, lines.count("\n")) == (0, 2)
    code, document, _ = specdec("generate", "--prompts", two_prompts, *options, "--format", "json")
    assert code == 0
    listed, separate = json.loads(document), [json.loads(line) for line in lines.splitlines()]
    for one in (*listed, *separate):
        check_consistent(one)
        one["timings"] = None
    assert listed == separate
    assert [one["prompt_tokens"] for one in listed] == [len("first prompt"), len("second")]


def test_text_is_each_answer_with_a_blank_line_between_them(
    specdec: Specdec, checkpoints: Models, two_prompts: Path
) -> None:
    options = checkpoints.pair(*SAMPLED)
    answers = [one["text"] for one in records(specdec, "--prompts", two_prompts, *options)]
    code, out, err = specdec("generate", "--prompts", two_prompts, *options)
    assert code == 0
    assert out == "\n".join(map(with_line_end, answers))
    assert err.count(" tokens in ") == 2 * 2
    assert "drafted tokens accepted" in err


@pytest.mark.parametrize("output_format", ["text", "json", "jsonl"])
def test_output_writes_the_file_and_nothing_to_stdout(
    specdec: Specdec, checkpoints: Models, two_prompts: Path, tmp_path: Path, output_format: str
) -> None:
    options = ("--prompts", two_prompts, *checkpoints.pair(*SAMPLED, "--format", output_format))
    target = tmp_path / "out"
    target.write_text("earlier", encoding="utf-8")
    code, out, _ = specdec("generate", *options, "--output", target)
    assert (code, out) == (0, "")
    assert sorted(tmp_path.iterdir()) == sorted([target, two_prompts])
    _, shown, _ = specdec("generate", *options)
    written = target.read_text(encoding="utf-8")
    timings = re.compile(r'"timings": \{[^}]*\}')
    assert timings.sub("", written) == timings.sub("", shown)


def test_output_may_be_a_pipe(specdec: Specdec, checkpoints: Models, sampled: dict[str, Any], tmp_path: Path) -> None:
    """Or /dev/null and >(a command): written to, never replaced by a file."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        code, out, _ = specdec("generate", PROMPT, *checkpoints.pair(*SAMPLED, "--output", fifo))
        received = os.read(reader, 4096)
    finally:
        os.close(reader)
    assert (code, out) == (0, "")
    assert fifo.is_fifo()
    assert received.decode() == with_line_end(sampled["text"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk_is_one_line(specdec: Specdec, checkpoints: Models) -> None:
    code, _, err = specdec("generate", PROMPT, *checkpoints.pair(*SAMPLED, "--trace", "/dev/full", "--quiet"))
    assert code == 1
    assert re.fullmatch("specdec: .*No space left on device.*\n", err)


@pytest.mark.parametrize("stop", [[], ["--stop", "e"]], ids=["length", "stop"])
def test_the_trace_has_a_line_a_round_and_adds_up_to_the_record(
    specdec: Specdec, checkpoints: Models, two_prompts: Path, tmp_path: Path, stop: list[str]
) -> None:
    options = checkpoints.pair(*SAMPLED, *stop)
    both = records(specdec, "--prompts", two_prompts, *options, "--trace", "trace.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["prompt"] for line in lines] == both[0]["rounds"] * [1] + both[1]["rounds"] * [2]
    for number, one in enumerate(both, start=1):
        rounds = [line for line in lines if line["prompt"] == number]
        assert [line["round"] for line in rounds] == list(range(1, one["rounds"] + 1))
        token_ids: list[int] = []
        for line in rounds:
            token_ids = [*token_ids[: len(token_ids) - line["withdrawn"]], *line["token_ids"]]
            drafted = len(line["draft_token_ids"])
            assert {len(line[key]) for key in ("target_probs", "draft_probs", "overlap")} == {drafted}
            assert len(line["provenance"]) == len(line["token_ids"])
        assert token_ids == one["token_ids"]
        assert sum(len(line["draft_token_ids"]) for line in rounds) == one["drafted"]
        assert sum(line["num_accepted"] for line in rounds) >= one["accepted"]
        kinds: list[str] = []
        for line in rounds:
            kinds = [*kinds[: len(kinds) - line["withdrawn"]], *line["provenance"]]
        assert kinds.count("accepted") == one["accepted"]
        for part in ("draft_s", "verify_s", "other_s"):
            assert sum(line[part] for line in rounds) == pytest.approx(one["timings"][part])
        assert [line["finish_reason"] for line in rounds] == (len(rounds) - 1) * [None] + [one["finish_reason"]]


@pytest.mark.parametrize(
    "options",
    [(), ("--format", "json"), ("--format", "jsonl"), ("--show-draft",), ("--output", "out.txt"), ("--trace", "t")],
    ids=" ".join,
)
def test_quiet_leaves_stderr_empty(specdec: Specdec, checkpoints: Models, options: tuple[str, ...]) -> None:
    # A draft without the target's template would otherwise be worth a note.
    models = checkpoints.pair("-n", "8", target=checkpoints.chat)
    code, out, err = specdec("generate", PROMPT, *models, *options, "--quiet")
    assert (code, err) == (0, "")
    assert bool(out) == ("--output" not in options)
    _, _, told = specdec("generate", PROMPT, *models, *options)
    assert "note: " in told
    assert " tokens in " in told


def test_a_note_is_one_line_however_narrow_the_terminal(
    specdec: Specdec, checkpoints: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold a long path, and stderr may be a log."""
    monkeypatch.setenv("COLUMNS", "40")
    _, _, err = specdec("generate", PROMPT, *checkpoints.pair("-n", "4", target=checkpoints.chat))
    (note,) = (line for line in err.splitlines() if "chat template" in line)
    assert note.startswith("note: ")
    assert len(note) > 80


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (
            (1, 1, 1, 1),
            ["1 token in 2.00 s", "prompt 1 token in 10 ms", "1 round, 1.00 tokens a round\n0 of 1 drafted t"],
        ),
        (
            (2, 5, 2, 3),
            ["2 tokens in 2.00 s", "prompt 5 tokens in 10 ms", "2 rounds, 1.00 tokens a round\n0 of 3 drafted t"],
        ),
    ],
)
def test_the_summary_counts_in_words_that_fit(counts: tuple[int, int, int, int], expected: list[str]) -> None:
    new_tokens, prompt_tokens, rounds, drafted = counts
    timings = {"decode_s": 2.0, "prefill_s": 0.01, "tokens_per_s": 0.5, "draft_s": 1, "verify_s": 1, "other_s": 0}
    summary = generation_summary(
        {
            "new_tokens": new_tokens, "prompt_tokens": prompt_tokens, "rounds": rounds, "drafted": drafted,
            "accepted": 0, "judged": 0, "alpha": None, "tokens_per_round": new_tokens / rounds, "timings": timings,
        }
    ).plain  # fmt: skip
    assert all(part in summary for part in expected)
    assert f"drafted token{'s' * (drafted > 1)} accepted" in summary
    assert "alpha" not in summary


def test_the_summary_says_what_alpha_is_of() -> None:
    """45 of 73 is not 0.79: without a word on what alpha is over, the two look like an error."""
    timings = {"decode_s": 2.0, "prefill_s": 0.01, "tokens_per_s": 32.0, "draft_s": 1, "verify_s": 1, "other_s": 0}
    counts = {"rounds": 19, "drafted": 73, "accepted": 45, "judged": 57, "alpha": 45 / 57, "tokens_per_round": 3.37}
    summary = generation_summary({"new_tokens": 64, "prompt_tokens": 6, "timings": timings, **counts}).plain
    assert "45 of 73 drafted tokens accepted; alpha 0.79 of the 57 judged" in summary.splitlines()
    assert max(map(len, summary.splitlines())) < 80


# --show-draft


def test_without_colours_accepted_text_stands_between_marks(
    specdec: Specdec, checkpoints: Models, sampled: dict[str, Any]
) -> None:
    code, shown, err = specdec("generate", PROMPT, *checkpoints.pair(*SAMPLED, "--show-draft"))
    assert code == 0
    assert re.sub("[‹›]", "", shown) == with_line_end(sampled["text"])
    kinds = zip(sampled["token_ids"], sampled["provenance"], strict=True)
    accepted = "".join(CHARACTERS[token_id] for token_id, kind in kinds if kind == "accepted")
    assert "".join(re.findall("‹([^›]*)›", shown)) == accepted != ""
    assert "‹accepted from the draft›" in err


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a terminal that has colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.usefixtures("colours")
def test_with_colours_there_are_no_marks(specdec: Specdec, checkpoints: Models, sampled: dict[str, Any]) -> None:
    code, shown, err = specdec("generate", PROMPT, *checkpoints.pair(*SAMPLED, "--show-draft"))
    assert code == 0
    assert "\x1b[32m" in shown
    assert "\x1b[31m" in shown
    assert "‹" not in shown
    assert ANSI.sub("", shown) == with_line_end(sampled["text"])
    assert "accepted from the draft" in ANSI.sub("", err)
    _, plain, _ = specdec("generate", PROMPT, *checkpoints.pair(*SAMPLED))
    assert plain == with_line_end(sampled["text"])


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize("output_format", ["json", "jsonl"])
def test_json_has_no_colours(specdec: Specdec, checkpoints: Models, output_format: str) -> None:
    code, out, _ = specdec("generate", PROMPT, *checkpoints.pair("-n", "8", "--format", output_format))
    assert code == 0
    assert "\x1b" not in out
    check_consistent(json.loads(out))


@pytest.mark.parametrize("output_format", ["json", "jsonl"])
def test_marks_are_for_text_only(specdec: Specdec, output_format: str) -> None:
    """Before anything is loaded: the target is not there."""
    options = ("--target", "nowhere", "--draft", "none", "--show-draft", "--format", output_format)
    code, out, err = specdec("generate", PROMPT, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"specdec: --show-draft marks text, and --format {output_format} tells the same as")
    assert "'provenance'" in err


@pytest.mark.usefixtures("colours")
def test_no_color_wins(specdec: Specdec, checkpoints: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = specdec("generate", PROMPT, *checkpoints.pair(*SAMPLED, "--show-draft"))
    assert "‹" in out
    assert not re.search(r"\x1b\[3\d", out)


# Leaving early


@dataclass(frozen=True)
class Endless:
    """Two processes that would run for hours."""

    into_head: subprocess.Popen[bytes]
    to_interrupt: subprocess.Popen[bytes]
    trace: Path


@pytest.fixture(scope="module")
def endless(checkpoints: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endless]:
    """Started side by side, since most of their time goes into importing torch and transformers."""
    trace = tmp_path_factory.mktemp("endless") / "trace.jsonl"
    options = checkpoints.pair("--ignore-eos", "-n", "1000000", target=checkpoints.endless)
    pipeline = (
        f'{shlex.join(command("generate", PROMPT, *options, "--quiet"))} | head -c 20; echo "${{PIPESTATUS[*]}}" >&2'
    )
    commands = (
        ["bash", "-c", pipeline],
        command("generate", PROMPT, *options, "--format", "json", "--trace", trace),
    )
    started = [
        subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=subprocess_environment(),
            start_new_session=True,
        )
        for arguments in commands
    ]
    yield Endless(*started, trace)
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_reader_of_the_pipe_may_leave(endless: Endless) -> None:
    """`| head` is no error: no traceback, no message, exit code 0."""
    out, err = endless.into_head.communicate(timeout=300)
    assert len(out) == 20
    assert err == b"0 0\n"


def test_ctrl_c_gives_what_there_was(endless: Endless) -> None:
    process = endless.to_interrupt
    for _ in range(6000):
        if endless.trace.exists() and b"\n" in endless.trace.read_bytes():
            break
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert b"interrupted" in err
    one = json.loads(out)
    check_consistent(one)
    assert one["finish_reason"] == "interrupted"
    rounds = [json.loads(line) for line in endless.trace.read_text(encoding="utf-8").splitlines()]
    traced = list(itertools.chain.from_iterable(line["token_ids"] for line in rounds))
    assert traced == one["token_ids"][: len(traced)]
    assert 0 <= one["rounds"] - len(rounds) <= 1  # the signal may come between a round and its line


class Interrupting:
    """A clock that presses Ctrl-C when it is read for the n-th time."""

    def __init__(self, reading: int) -> None:
        self._left = reading

    def __call__(self, *devices: torch.device) -> Callable[[], float]:
        clock = clock_for(*devices)

        def read() -> float:
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
            return clock()

        return read


@pytest.mark.parametrize(
    ("output_format", "reading"),
    [*(("json", reading) for reading in range(1, 12)), *(("text", reading) for reading in (1, 4, 6, 11))],
)
def test_ctrl_c_at_any_moment_leaves_a_record_that_agrees_with_itself(
    specdec: Specdec,
    checkpoints: Models,
    sampled: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    output_format: str,
    reading: int,
) -> None:
    """Twice before the first round, then four times a round: the clock is read all over the loop."""
    monkeypatch.setattr(generate, "clock_for", Interrupting(reading))
    code, out, err = specdec("generate", PROMPT, *checkpoints.pair(*SAMPLED, "--format", output_format))
    assert code == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    if reading <= 2:
        assert out == ""
    elif output_format == "text":
        assert sampled["text"].startswith(out.removesuffix("\n"))
    else:
        one = json.loads(out)
        check_consistent(one)
        assert one["finish_reason"] == "interrupted"
        assert one["rounds"] == (reading - 3) // 4
        assert one["token_ids"] == sampled["token_ids"][: one["new_tokens"]]


@pytest.mark.parametrize("token", [1, 2, 3, 6])
def test_ctrl_c_between_the_tokens_of_a_round_loses_no_text(
    specdec: Specdec, checkpoints: Models, sampled: dict[str, Any], monkeypatch: pytest.MonkeyPatch, token: int
) -> None:
    push, left = TextStream.push, [token]

    def interrupted(stream: TextStream, token_id: int) -> str:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return push(stream, token_id)

    monkeypatch.setattr(TextStream, "push", interrupted)
    code, out, _ = specdec("generate", PROMPT, *checkpoints.pair(*SAMPLED, "--format", "json"))
    assert code == 130
    one = json.loads(out)
    check_consistent(one)
    assert one["new_tokens"] >= token
    assert one["token_ids"] == sampled["token_ids"][: one["new_tokens"]]


def test_ctrl_c_as_a_stop_string_is_found_does_not_count_its_round(
    specdec: Specdec, checkpoints: Models, sampled: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sixth reading ends the first round, which was not handed out yet."""
    monkeypatch.setattr(generate, "clock_for", Interrupting(6))
    options = checkpoints.pair(*SAMPLED, "--stop", sampled["text"][1])
    code, out, _ = specdec("generate", PROMPT, *options, "--format", "json")
    assert code == 130
    one = json.loads(out)
    check_consistent(one)
    assert (one["finish_reason"], one["text"], one["token_ids"]) == ("interrupted", "", [])


def test_ctrl_c_keeps_the_answers_before(
    specdec: Specdec, checkpoints: Models, two_prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--prompts", two_prompts, *checkpoints.pair("-n", "5", "--ignore-eos", draft="none"))
    monkeypatch.setattr(generate, "clock_for", lambda *devices: clocks.pop(0)(*devices))
    clocks: list[Callable[..., Callable[[], float]]] = [clock_for, Interrupting(12)]
    code, out, err = specdec("generate", *options, "--format", "json")
    assert code == 130
    first, second = json.loads(out)
    for one in (first, second):
        check_consistent(one)
    assert (first["finish_reason"], first["new_tokens"]) == ("length", 5)
    assert (second["finish_reason"], second["new_tokens"]) == ("interrupted", 2)
    assert "interrupted" in err


def test_ctrl_c_while_loading_is_one_line(
    specdec: Specdec, checkpoints: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "load_pair", interrupted)
    files = ("--output", "out.txt", "--trace", "trace.jsonl")
    assert specdec("generate", PROMPT, *checkpoints.pair(), *files) == (130, "", "specdec: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_command_or_option_points_to_the_help(specdec: Specdec) -> None:
    """The line points to the right help."""
    assert refused(specdec("generat"), 2).endswith("(see specdec --help)")
    assert refused(specdec("presets", "--nonsense"), 2).endswith("(see specdec presets --help)")


# What was answered is kept, whatever comes after


@pytest.mark.parametrize("output_format", ["json", "jsonl"])
def test_a_turn_that_fails_keeps_the_answers_before_it(
    output_format: str, specdec: Specdec, checkpoints: Models, tmp_path: Path
) -> None:
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers"
    prompts.write_text(json.dumps({"prompt": "one"}) + "\n" + json.dumps({"turns": ["two", "x" * 400]}) + "\n")
    options = ("--prompts", prompts, "--format", output_format, "-o", output, "-n", "4", "--ignore-eos", "-q")
    code, out, err = specdec("generate", *checkpoints.pair(*options))
    assert (code, out) == (2, "")
    assert err.startswith("specdec: prompt 2, turn 2: ")
    text = output.read_text(encoding="utf-8")
    records = json.loads(text) if output_format == "json" else [json.loads(line) for line in text.splitlines()]
    assert [(r["prompt"], r["turn"], r["new_tokens"]) for r in records] == [(1, 1, 4), (2, 1, 4)]


def test_a_special_token_as_stop_string_is_an_end_token(specdec: Specdec, checkpoints: Models) -> None:
    options = ("x", "-n", "200", "--temperature", "6", "--seed", "3", "--format", "json")
    code, out, _ = specdec("generate", *checkpoints.pair(*options, "--ignore-eos"))
    whole = json.loads(out)
    assert code == 0
    assert END_ID in whole["token_ids"][:-1], "choose a seed whose text has the end token inside"
    _, out, _ = specdec("generate", *checkpoints.pair(*options, "--ignore-eos", "--stop", tiny.END))
    record = json.loads(out)
    assert record["finish_reason"] == "eos"
    assert record["token_ids"] == whole["token_ids"][: whole["token_ids"].index(END_ID) + 1]


def test_output_and_trace_cannot_be_one_file(specdec: Specdec, checkpoints: Models, tmp_path: Path) -> None:
    code, _, err = specdec("generate", *checkpoints.pair("x", "-o", tmp_path / "f", "--trace", tmp_path / "f"))
    assert code == 2
    assert "same file" in err
    assert not (tmp_path / "f").exists()


def test_a_reader_that_leaves_at_once_is_no_failure() -> None:
    line = f"{shlex.quote(sys.executable)} -m specdec_cli presets | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
