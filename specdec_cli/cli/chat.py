"""Options of `specdec chat`: those of `specdec generate` but its prompts."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from specdec_cli.cli.generate import AnswerOptions
from specdec_cli.cli.running import reader_may_leave, starting
from specdec_cli.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Everything that `specdec chat` takes."""

    answers: AnswerOptions


def chat(options: ChatOptions) -> int:
    """Talk with the target, turn by turn, each answer streamed and followed by its speed.

    Ctrl-C stops an answer, Ctrl-D ends the chat, /reset begins a new conversation. Lines of a pipe are turns.
    """
    if options.answers.output.output is not None and sys.stdin is not None and sys.stdin.isatty():
        raise UsageError("--output would keep the answers from the terminal: leave it out, or pipe the turns in")
    checked = options.answers.checked()
    with starting(options.answers.output.quiet):
        from specdec_cli.commands import chat as command
        from specdec_cli.commands.generate import GenerateRequest

    return reader_may_leave(command.run, GenerateRequest(prompts=(), **checked))
