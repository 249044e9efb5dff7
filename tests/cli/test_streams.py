"""Streams that lack characters, are closed or full, files that cannot be written, and signals.

Where the process's own descriptors matter (closed, full, SIGTERM), a real process is started; `predict` and `presets`
then, since they start fast. Everything else runs in this process, on checkpoints that say other letters than ASCII's.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny
from ascii_checkpoint import CHARACTERS, END_ID, ascii_model
from running import Specdec
from tokenizers.pre_tokenizers import ByteLevel

from specdec_cli import __main__, streams
from specdec_cli.__main__ import main
from specdec_cli.commands import pair_check
from specdec_cli.measurement.arms import LoopArm
from specdec_cli.measurement.benchmark import Case
from specdec_cli.measurement.runs import Run
from specdec_cli.reports.answers import AnswerWriter
from specdec_cli.reports.export import whole_file, write_whole

ENCODINGS = ("ascii", "latin-1", "cp1252")
STRANGE = "éèêüñçåøæœßğšžł日本語中文😀‹›°±"  # what the models say where others say small letters
FULL = Path("/dev/full")
SPECDEC = f"{shlex.quote(sys.executable)} -m specdec_cli"
PREDICT = ("predict", "--alpha", "0.8", "--cost", "0.05", "--k", "1-3")
BEST = "the extended form it pays: K 3"

needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs a full device")


# The models


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options for a pair whose text no 8-bit encoding has."""
    home = tmp_path_factory.mktemp("strange")
    level = ByteLevel(add_prefix_space=False, use_regex=False)
    said = CHARACTERS.translate(dict(zip(map(ord, "abcdefghijklmnopqrstuvwxyz"), STRANGE, strict=False)))
    tokens = {level.pre_tokenize_str(c)[0][0]: i for i, c in enumerate(said)}
    target = tiny.save(home / "target", ascii_model(), tiny.tokenizer_of(tokens), END_ID)
    draft = tiny.save(home / "draft-é", ascii_model(0.04), tiny.tokenizer_of(tokens), END_ID)
    return "--target", str(target), "--draft", str(draft), "--device", "cpu"


@pytest.fixture(scope="module")
def generated(pair: tuple[str, ...]) -> tuple[str, ...]:
    """A command whose answer has strange letters, whatever the machine."""
    return "generate", "A = 1", *pair, "-n", "48", "--ignore-eos", "--temperature", "2", "--seed", "3"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run a command with streams of an encoding, as `streams.prepare` makes them."""

    def run(encoding: str, *arguments: str | Path) -> tuple[int, str, str]:
        raw = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as patched:
            for name, buffer in zip(("stdout", "stderr"), raw, strict=True):
                stream = io.TextIOWrapper(buffer, encoding=encoding, errors=streams.ESCAPE, write_through=True)
                patched.setattr(sys, name, stream)
            code = main([str(a) for a in arguments])
            out, err = (buffer.getvalue().decode(encoding) for buffer in raw)
        return code, out, err

    return run


def unescaped(text: str) -> str:
    """With every escape as the character that it stands for."""
    return re.sub(r"(\\u[0-9a-f]{4})+", lambda found: str(json.loads(f'"{found[0]}"')), text)


# Encodings


def test_what_cannot_be_encoded_is_an_escape_that_json_knows() -> None:
    text = "é😀\udce9\u2028a"
    assert "é😀\udce9a".encode("ascii", streams.ESCAPE) == rb"\u00e9\ud83d\ude00\udce9a"
    assert json.loads(json.dumps(text, ensure_ascii=False).encode("ascii", streams.ESCAPE)) == text
    assert "\udce9".encode("utf-8", streams.ESCAPE) == rb"\udce9"
    with pytest.raises(UnicodeDecodeError):  # nothing is made up where bytes are read
        b"\xe9".decode("ascii", streams.ESCAPE)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_answer_is_the_same_in_every_encoding(
    written: Callable[..., tuple[int, str, str]], generated: tuple[str, ...], encoding: str
) -> None:
    code, wanted, _ = written("utf-8", *generated)
    assert code == 0
    assert sum(c in wanted for c in STRANGE) > 3, "the models should say strange letters"
    code, out, _ = written(encoding, *generated)
    assert (code, unescaped(out)) == (0, wanted)
    for output_format in ("json", "jsonl"):
        code, out, _ = written(encoding, *generated, "--format", output_format)
        made = json.loads(out)
        assert (code, made["text"]) == (0, wanted.removesuffix("\n"))
        assert made["settings"]["draft"]["source"].endswith("draft-é")


@pytest.mark.parametrize(("encoding", "marks"), [("ascii", "<>"), ("latin-1", "<>"), ("cp1252", "‹›"), ("utf-8", "‹›")])
def test_marks_are_those_that_the_stream_has(
    written: Callable[..., tuple[int, str, str]], generated: tuple[str, ...], encoding: str, marks: str
) -> None:
    code, out, err = written(encoding, *generated, "--show-draft")
    assert code == 0
    assert f"{marks[0]}accepted from the draft{marks[1]}, the target's own outside" in err
    assert re.search(f"{marks[0]}[^{marks}]+{marks[1]}", out)


@pytest.mark.parametrize("output_format", ["table", "markdown", "csv", "json", "jsonl"])
def test_a_sweep_is_ascii_where_nothing_else_can_be_written(
    written: Callable[..., tuple[int, str, str]], pair: tuple[str, ...], tmp_path: Path, output_format: str
) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("A = 1\n", encoding="utf-8")
    command = ("sweep-k", *pair, "--prompts", prompts, "--k", "1-2", "-n", "6", "--seed", "1", "--raw")
    code, out, err = written("ascii", *command, "--format", output_format)
    assert code == 0
    assert (out + err).isascii()
    escapes = set(re.findall(r"\\u[0-9a-f]{4}", out + err))
    assert escapes <= {r"\u00e9"}, "only the draft's own name has a letter that ASCII lacks"
    if output_format == "table":
        assert "^ highest of that form" in out
    if output_format == "json":
        assert json.loads(out)["results"][0]["draft"].endswith("draft-é")


@pytest.mark.parametrize(
    "command",
    [("pair-check",), ("pair-check", "-d", "demo:draft"), ("presets",), (*PREDICT, "--simulate", "100"), ("--help",)],
    ids=["one-draft", "two-drafts", "presets", "predict", "help"],
)
def test_tables_say_the_same_in_ascii(
    written: Callable[..., tuple[int, str, str]],
    pair: tuple[str, ...],
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)  # other processes' needs change from run to run
    arguments = (*command, *pair) if command[0] == "pair-check" else command
    _, wanted, _ = written("utf-8", *arguments)
    code, out, err = written("ascii", *arguments)
    assert code in (0, 3)
    assert out.isascii()
    assert err.isascii()
    if command[0] != "pair-check":  # whose draft's name has an escape
        assert "\\u" not in out
    figures = re.compile(r"\d+(?:\.\d+)?x?")
    assert figures.findall(unescaped(out)) == figures.findall(wanted)


@pytest.mark.parametrize(
    ("setting", "arguments"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0"}, [*PREDICT, "--format", "markdown"]),
        ({"PYTHONIOENCODING": "ascii"}, [*PREDICT, "--help"]),
        ({"PYTHONIOENCODING": "latin-1"}, ["predict", "--alpha", "0.8", "--cost", "1", "--plot", "é日/p.png"]),
        (
            {"PYTHONIOENCODING": "ascii", "PYTHONUNBUFFERED": "1"},
            ["predict", "--alpha", "0.8", "--cost", "1", "--k", "日"],
        ),
    ],
    ids=["C", "help", "message", "unbuffered"],
)
def test_a_process_never_fails_at_an_encoding(setting: dict[str, str], arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specdec_cli", *arguments],
        env={**os.environ, **setting},
        capture_output=True,
        encoding="latin-1",
    )
    assert "Traceback" not in done.stderr
    if "日" in arguments[-1]:  # which is refused, by its name
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "\\u65e5" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")


# Closed and full streams


def shell(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `specdec` is the command."""
    script = f'specdec() {{ {SPECDEC} "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ, **more})


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_dev_null(closed: str, tmp_path: Path) -> None:
    """And no file that is opened later takes its number, and with it what others write there."""
    target = tmp_path / "out.csv"
    done = shell(
        f"specdec {shlex.join(PREDICT)} {closed} && specdec {shlex.join(PREDICT)} --format csv -o {target} {closed}"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (BEST in done.stdout) == (closed == "2>&-")
    assert len(target.read_text(encoding="utf-8").splitlines()) == 4


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", [shlex.join(PREDICT), "--version", "--help"])
def test_a_full_stdout_is_one_line(command: str, unbuffered: str) -> None:
    done = shell(f"specdec {command} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (1, "specdec: stdout: No space left on device\n")


@needs_full
def test_a_full_stderr_costs_no_result() -> None:
    done = shell(f"specdec {shlex.join(PREDICT)} 2> /dev/full && specdec presets 2> /dev/full")
    assert done.returncode == 0
    assert BEST in done.stdout
    assert shell("specdec predict 2> /dev/full").returncode == 2


def test_a_reader_of_help_may_leave() -> None:
    done = shell("specdec --help | true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (0, "")


# Files that cannot be written


@needs_full
@pytest.mark.parametrize("output_format", ["text", "json", "jsonl"])
def test_an_answer_goes_to_stdout_where_its_file_is_full(
    specdec: Specdec, generated: tuple[str, ...], output_format: str
) -> None:
    command = (*generated, "--format", output_format, "--quiet")
    _, wanted, _ = specdec(*command)
    code, out, err = specdec(*command, "--output", FULL)
    assert (code, err) == (1, "specdec: /dev/full: No space left on device\n")
    timings = re.compile(r'"timings": \{[^}]*\}')
    assert timings.sub("", out) == timings.sub("", wanted)


@needs_full
def test_a_full_trace_costs_no_answer(specdec: Specdec, generated: tuple[str, ...], tmp_path: Path) -> None:
    _, wanted, _ = specdec(*generated, "--quiet")
    code, out, err = specdec(*generated, "--quiet", "--trace", FULL)
    assert (code, out, err) == (1, wanted, "specdec: /dev/full: No space left on device\n")
    target = tmp_path / "out"
    assert specdec(*generated, "--quiet", "--trace", FULL, "--output", target)[0] == 1
    assert target.read_text(encoding="utf-8") == wanted


@pytest.fixture
def swept(pair: tuple[str, ...], tmp_path: Path) -> tuple[str | Path, ...]:
    prompts = tmp_path / "p.txt"
    prompts.write_text("A = 1\nB = 2\n", encoding="utf-8")
    return ("sweep-k", *pair, "--prompts", prompts, "--k", "1-2", "-n", "6", "--seed", "1", "--quiet")


@needs_full
def test_a_full_runs_file_costs_no_result(specdec: Specdec, swept: tuple[str | Path, ...]) -> None:
    code, out, err = specdec(*swept, "--resume", FULL, "--format", "json")
    assert (code, err) == (1, "specdec: /dev/full: No space left on device\n")
    assert [r["prompts"] for r in json.loads(out)["results"]] == [2, 2]


@needs_full
@pytest.mark.parametrize("output_format", ["jsonl", "json"])
def test_results_go_to_stdout_where_their_file_is_full(
    specdec: Specdec, swept: tuple[str | Path, ...], tmp_path: Path, output_format: str
) -> None:
    """And what else was asked for is made all the same."""
    plot = tmp_path / "plot.svg"
    pytest.importorskip("matplotlib")
    code, out, err = specdec(*swept, "--output", FULL, "--format", output_format, "--plot", plot, "--export", "vllm")
    assert (code, err) == (1, "specdec: /dev/full: No space left on device\n")
    assert "vllm serve" in out
    assert plot.read_text(encoding="utf-8").rstrip().endswith("</svg>")
    lines = [line for line in out.splitlines() if line.startswith('{"kind"')]
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == (["session", *6 * ["run"], *2 * ["result"]] if output_format == "jsonl" else [])
    if output_format == "json":
        assert json.JSONDecoder().raw_decode(out)[0]["schema"] == 1


@needs_full
def test_a_full_plot_costs_no_result(specdec: Specdec, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.png"
    plot.symlink_to(FULL)
    code, out, err = specdec(*PREDICT, "--plot", plot)
    assert (code, err) == (1, f"specdec: {plot}: No space left on device\n")
    assert BEST in out


def test_a_file_that_is_written_in_part_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk that is full halfway."""
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from specdec_cli.reports.export import whole_file, write_whole\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); path = Path(sys.argv[1])\n"
        "def text():\n"
        "    with whole_file(path) as file: file.write('x' * 2000)\n"
        "for step in (text, lambda: write_whole(path, b'x' * 2000)):\n"
        "    try: step()\n"
        "    except OSError as error: print(error.filename == sys.argv[1], error.strerror)\n"
    )
    path = tmp_path / "kept"
    path.write_text("earlier", encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True File too large\n" * 2, "")
    assert path.read_text(encoding="utf-8") == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_whole_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with whole_file(path) as file:
        file.write("é\udce9\n")
        assert not path.exists()
    assert path.read_bytes() == "é".encode() + b"\\udce9\n"
    write_whole(path, b"\0")
    assert path.read_bytes() == b"\0"


# Signals


@pytest.fixture
def own_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's handlers, put back afterwards; its streams are left to the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(streams, "prepare", lambda: None)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def wait_for(signal_number: int) -> int:
    """As a command does that is interrupted: the exit code of one that shows what it has."""
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal_number)).start()
        time.sleep(60)
    except KeyboardInterrupt:
        return 130
    return 0


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_other_signals_are_ctrl_c_with_another_code(monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    monkeypatch.setattr(__main__, "main", lambda: wait_for(number))
    with pytest.raises(SystemExit) as ended:
        __main__.run()
    assert ended.value.code == code


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_the_caller_ignores_stays_ignored(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As nohup does."""
    signal.signal(number, signal.SIG_IGN)
    monkeypatch.setattr(__main__, "main", lambda: 0)
    with pytest.raises(SystemExit) as ended:
        __main__.run()
    assert ended.value.code == 0
    assert signal.getsignal(number) is signal.SIG_IGN


def test_a_process_that_is_terminated_writes_what_it_has(generated: tuple[str, ...], tmp_path: Path) -> None:
    trace, target = tmp_path / "trace.jsonl", tmp_path / "out.json"
    more = ("-n", "1000000", "--format", "json", "--trace", str(trace), "--output", str(target))
    arguments = [word for word in generated if word not in ("-n", "48")]
    process = subprocess.Popen(
        [sys.executable, "-m", "specdec_cli", *arguments, *more], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        while not (trace.exists() and b"\n" in trace.read_bytes()):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 143
    assert b"Traceback" not in err
    made = json.loads(target.read_text(encoding="utf-8"))
    assert made["finish_reason"] == "interrupted"
    assert made["new_tokens"] > 0


def test_an_interrupted_check_of_pairs_tells_those_that_were_checked(
    specdec: Specdec, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = pair_check._check, []

    def check(*arguments: object) -> pair_check.Finding:
        seen.append(arguments)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pair_check, "_check", check)
    code, out, _ = specdec("pair-check", *pair, "-d", "demo:draft", "--format", "json")
    assert code == 130
    assert [made["draft"] for made in json.loads(out)["pairs"]] == [pair[3]]


def test_an_interruption_between_two_answers_keeps_the_first(
    specdec: Specdec, pair: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdec_cli.runtime.pairs.pair import Pair

    real = Pair.encode
    seen: list[Sequence[dict[str, str]]] = []
    answered: list[bool] = []
    add = AnswerWriter.add

    def added(self: AnswerWriter, record: Any) -> None:
        answered.append(True)
        add(self, record)

    monkeypatch.setattr(AnswerWriter, "add", added)

    def encode(self: Pair, messages: Sequence[dict[str, str]], raw: bool, room: int = 1, **more: Any) -> list[int]:
        seen.append(messages)
        if messages[-1]["content"] == "B" and answered:
            raise KeyboardInterrupt
        return real(self, messages, raw, room, **more)

    monkeypatch.setattr(Pair, "encode", encode)
    prompts = tmp_path / "p.txt"
    prompts.write_text("A\nB\n", encoding="utf-8")
    target = tmp_path / "out.jsonl"
    options = ("--prompts", prompts, "-n", "4", "--format", "jsonl", "--output", target)
    assert specdec("generate", *pair, *options)[0] == 130
    assert [json.loads(line)["prompt"] for line in target.read_text(encoding="utf-8").splitlines()] == [1]


def test_a_terminated_benchmark_reports_whole_blocks(
    specdec: Specdec, swept: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What SIGTERM raises in the midst of a run."""
    real, measured = LoopArm.run, []

    def run(self: LoopArm, case: Case, max_new_tokens: int) -> Run:
        measured.append(case.prompt)
        if measured.count(2) == 1:
            raise KeyboardInterrupt
        return real(self, case, max_new_tokens)

    monkeypatch.setattr(LoopArm, "run", run)
    target = tmp_path / "out.json"
    assert specdec(*swept, "--format", "json", "--output", target)[0] == 130
    assert {r["prompts"] for r in json.loads(target.read_text(encoding="utf-8"))["results"]} == {1}
