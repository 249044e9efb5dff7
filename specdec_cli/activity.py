"""What is being done, announced by the code that does it and shown by whoever watches.

What takes long stands deep in the runtime, which knows no screen. So it says `with doing("packing weights", 120) as
done` and calls `done(1)` for each of the 120; a command's `reports.console.Aside` makes a line of it on a terminal.
Where nobody watches, nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

T = TypeVar("T")
# So much more of the total is done.
Advance = Callable[[float], None]
# Shows a line as long as its context lasts; the total is None where it is not known.
Watcher = Callable[[str, float | None], AbstractContextManager[Advance]]

_watchers: list[Watcher] = []


def watch(watcher: Watcher) -> None:
    """Have everything that is done from now on shown here, and nowhere else."""
    _watchers[:] = [watcher]


@contextmanager
def doing(what: str, total: float | None = None) -> Iterator[Advance]:
    """Announce something that may take longer than a second.

    Args:
        what: in a few words, as "loading target ./model".
        total: of whatever is counted; None where that is not known.
    """
    shown = _watchers[-1](what, total) if _watchers else nullcontext(_unseen)
    with shown as advance:
        yield advance


def each_of(todo: Iterable[T], what: str) -> Iterator[T]:
    """The same for steps that are about as long as each other."""
    steps = list(todo)
    with doing(what, len(steps)) as advance:
        for step in steps:
            yield step
            advance(1)


def _unseen(amount: float) -> None:
    """Nobody watches."""
