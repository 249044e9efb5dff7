"""Rich's console, but one that leaves a closed pipe to its caller."""

from __future__ import annotations

from rich.console import Console


class PipeConsole(Console):
    """A console whose reader may leave: the BrokenPipeError goes on, where rich would end the process with code 1."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the error."""
        raise
