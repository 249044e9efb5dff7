"""Signs of life: one line on a terminal's stderr for what takes long, and nothing of it anywhere else."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console

from specdec_cli import activity
from specdec_cli.activity import doing, each_of
from specdec_cli.reports.console import Aside
from specdec_cli.runtime.checkpoints.hub_files import _Announced


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a terminal of 60 columns gets."""
    out = io.StringIO()
    aside = Aside(quiet=False)
    aside.console = Console(file=out, force_terminal=True, width=60, color_system=None)
    yield out
    monkeypatch.setattr(activity, "_watchers", [])


def test_a_line_names_what_is_done_and_leaves_nothing_behind(screen: io.StringIO) -> None:
    with doing("loading target ./model"):
        assert "loading target ./model" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")  # the line is cleared


def test_what_is_counted_tells_the_time_that_is_left(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    aside = Aside(quiet=False)
    aside.console = Console(file=screen, force_terminal=True, width=60, color_system=None, get_time=lambda: now[0])
    with doing("packing weights", 100) as done:
        for _ in range(4):
            now[0] += 10.0
            done(20)
        assert aside._running is not None
        aside._running.refresh()
    assert "packing weights" in screen.getvalue()
    assert "40 s, " in screen.getvalue()
    assert "s left" in screen.getvalue()


def test_the_inner_of_two_is_shown_and_then_the_outer_again(screen: io.StringIO) -> None:
    with doing("loading the target"):
        with doing("packing weights", 3):
            assert "packing weights" in screen.getvalue()
            screen.truncate(0)
            screen.seek(0)
        with doing("measuring"):
            pass
        screen.truncate(0)
        screen.seek(0)
    assert "loading the target" in screen.getvalue()
    assert "packing weights" not in screen.getvalue()


def test_a_long_name_keeps_to_one_line(screen: io.StringIO) -> None:
    with doing("loading target /a/very/long/path/" + 100 * "x"):
        pass
    assert all(len(line) <= 60 for line in screen.getvalue().replace("\r", "\n").splitlines() if "\x1b" not in line)
    assert "…" in screen.getvalue()


def test_each_of_gives_every_step_and_no_watcher_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_watchers", [])
    assert list(each_of("abc", "spelling")) == ["a", "b", "c"]


def test_a_download_of_the_hub_counts_as_ours(screen: io.StringIO) -> None:
    with _Announced(desc="model.gguf", total=200, initial=50, name="x") as bar:
        bar.update(100)
        assert "fetching model.gguf" in screen.getvalue()
    bar.close()  # the hub may close it once more
    assert screen.getvalue().count("fetching model.gguf") >= 1
    assert "%|" not in screen.getvalue()  # tqdm's own bar


GENERATE = [sys.executable, "-m", "specdec_cli", "generate", "def add(a, b):", "-n", "4"]


def test_the_command_line_says_so_on_a_terminal_alone() -> None:
    leader, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "60"}
    with subprocess.Popen(GENERATE, stdout=subprocess.PIPE, stderr=terminal, env=environment) as process:
        os.close(terminal)
        seen = b""
        while True:
            try:
                block = os.read(leader, 4096)
            except OSError:  # Linux's end of a terminal
                break
            if not block:
                break
            seen += block
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(leader)
    assert process.returncode == 0
    assert (
        -1 < seen.find(b"starting") < seen.find(b"loading target demo:target") < seen.find(b"loading draft demo:draft")
    )
    assert not any(sign in out for sign in (b"starting", b"loading", b"\x1b"))

    piped = subprocess.run(GENERATE, capture_output=True, text=True, check=True)
    assert piped.stdout == out.decode()
    assert not any(sign in piped.stderr for sign in ("starting", "loading", "\x1b"))
