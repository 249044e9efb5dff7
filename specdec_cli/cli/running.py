"""What every subcommand does around the command itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

from specdec_cli.errors import InterruptedByUser
from specdec_cli.streams import leave_stdout

T = TypeVar("T")


def silence_libraries(quiet: bool) -> None:
    """No progress bars of transformers' and the hub's where nobody watches; read when they are imported."""
    if quiet or not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")


def reader_may_leave(run: Callable[[T], int], request: T) -> int:
    """Run a command; `| head` closing the pipe is no error, and not the exit code 1 that Typer makes of it."""
    try:
        return run(request)
    except KeyboardInterrupt as error:  # Typer would end with 130, but silently
        raise InterruptedByUser("interrupted") from error
    except BrokenPipeError:
        leave_stdout()
        return 0
