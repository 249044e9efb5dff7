"""What every subcommand does around the command itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from specdec_cli.errors import InterruptedByUser
from specdec_cli.streams import leave_stdout

T = TypeVar("T")


@contextmanager
def starting(quiet: bool) -> Iterator[None]:
    """While a command and its libraries are imported, which takes seconds where torch is not in the disk's cache.

    Their own progress bars are switched off, which they read when they are imported: ours is the one line.
    """
    for name in ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    from specdec_cli.activity import doing
    from specdec_cli.reports.console import Aside

    Aside(quiet)
    with doing("starting"):
        yield


def reader_may_leave(run: Callable[[T], int], request: T) -> int:
    """Run a command; `| head` closing the pipe is no error, and not the exit code 1 that Typer makes of it."""
    try:
        return run(request)
    except KeyboardInterrupt as error:  # Typer would end with 130, but silently
        raise InterruptedByUser("interrupted") from error
    except BrokenPipeError:
        leave_stdout()
        return 0
