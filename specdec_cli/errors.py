"""What goes wrong for a user, as one line with its remedy, and the exit code a script sees.

Exit codes: 0 done, 1 failed, 2 usage, 3 pair incompatible, 4 out of memory, 5 slower than asked,
130 interrupted by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP (the terminal was closed).
"""

from __future__ import annotations


class SpecdecError(Exception):
    """Something failed; the message is one line that names the cause and the remedy."""

    exit_code = 1


class UsageError(SpecdecError, ValueError):
    """An option, a prompt or a preset is not what it must be."""

    exit_code = 2


class IncompatiblePairError(SpecdecError):
    """Target and draft cannot work together, or one of them cannot roll its cache back."""

    exit_code = 3


class OutOfMemoryError(SpecdecError):
    """The models, or their caches, do not fit."""

    exit_code = 4


SLOWER = 5
INTERRUPTED = 130
TERMINATED = 143
HUNG_UP = 129


class InterruptedByUser(SpecdecError):
    """Ctrl-C before there was anything to show."""

    exit_code = INTERRUPTED
