"""`specdec chat`: turns from a terminal or a pipe, each answered with all that was said before it.

A turn is what a turn of `generate` is: the conversation so far is read anew, and every answer has a seed of its own. A
turn that failed leaves its number, and so its seed, behind: what was shown of it must not be drawn again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec_cli.commands.generate import GenerateRequest, Turn, answer_turn, record_of
from specdec_cli.commands.typed_lines import CtrlC, Lines, Stopped, lines_of_stdin
from specdec_cli.decoding.draft_length import draft_length
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Drafter
from specdec_cli.errors import INTERRUPTED, SpecdecError, UsageError
from specdec_cli.prompts import Prompt
from specdec_cli.quantities import counted
from specdec_cli.reports.answers import AnswerWriter, answers_to
from specdec_cli.reports.chat import answer_line
from specdec_cli.reports.console import Aside
from specdec_cli.reports.stream import legend
from specdec_cli.runtime.pairs.pair import Pair, load_pair, recorded
from specdec_cli.runtime.pairs.prompting import prompt_notes, read_prompt

HELP = "/reset begins anew, Ctrl-C stops an answer, Ctrl-D ends the chat"


@dataclass
class Talk:
    """A conversation: what was said and answered, and how many turns were tried."""

    number: int = 1
    said: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    tried: int = 0


def run(request: GenerateRequest) -> int:
    """Answer line by line; the exit code."""
    aside = Aside(request.quiet)
    lines = lines_of_stdin()
    pair = load_pair(request.target, request.draft, aside)
    aside.notes(pair.notes)
    drafter = make_drafter(request.drafter, pair.drafter_parts(request.sampling, request.generation.draft_stop))
    ctrl_c = CtrlC()
    with answers_to(request.output, request.output_format, request.trace) as writer, ctrl_c.watched():
        if request.show_draft and request.output_format == "text":
            aside.show(legend(writer.text))
        if lines.is_terminal:
            aside(HELP)
        interrupted, failure = _talk(request, pair, drafter, writer, aside, lines, ctrl_c)
    if graphs := recorded([pair]):
        aside(graphs)
    if failure is not None:
        raise failure
    return INTERRUPTED if interrupted else 0


def _talk(
    request: GenerateRequest,
    pair: Pair,
    drafter: Drafter,
    writer: AnswerWriter,
    aside: Aside,
    lines: Lines,
    ctrl_c: CtrlC,
) -> tuple[bool, SpecdecError | None]:
    """Turn by turn, and keep what was answered however it ends: whether by a signal, or by which error."""
    length = draft_length(request.generation.num_draft_tokens)
    talk = Talk()
    while True:
        try:
            line = lines.read()
            if line is None:
                if not lines.is_terminal and not talk.tried and talk.number == 1:
                    raise UsageError("nothing was piped in: give a turn a line, or start specdec chat in a terminal")
                return False, None
            if line.strip() == "/reset":
                talk = Talk(talk.number + 1)
                aside("a new conversation")
                continue
            if line.strip() == "/help":
                aside(HELP)
                continue
            turn = _turn(line, talk, request, pair, aside)
            writer.begin()
            with ctrl_c.during_an_answer():
                answer_turn(turn, request, pair, drafter, length, writer, lambda: ctrl_c.stopped)
            _tell(turn, request, pair, writer, aside)
            talk.said.append(line)
            talk.answers.append(turn.text)
        except Stopped:
            aside(f"\n{HELP}")
        except KeyboardInterrupt:
            if not writer.records:
                raise
            return True, None
        except SpecdecError as error:
            if not lines.is_terminal:
                if not writer.records:
                    raise
                return False, error
            aside.console.print(f"specdec: {error}", markup=False, soft_wrap=True)


def _turn(line: str, talk: Talk, request: GenerateRequest, pair: Pair, aside: Aside) -> Turn:
    """The next turn of a conversation.

    Raises:
        UsageError: it cannot be encoded; says so of the conversation where that has grown too long.
    """
    talk.tried += 1
    prompt = Prompt((*talk.said, line))
    try:
        ids = read_prompt(pair, prompt, request.conversation, talk.answers)
    except UsageError as error:
        if talk.said:
            raise UsageError(f"{error} (or begin a new conversation with /reset)") from error
        raise
    aside.notes(prompt_notes(pair, [Prompt((line,))], request.conversation))
    return Turn(ids, talk.number, talk.tried)


def _tell(turn: Turn, request: GenerateRequest, pair: Pair, writer: AnswerWriter, aside: Aside) -> None:
    record = record_of(request, pair, turn)
    writer.add(record)
    aside(answer_line(record))
    if turn.generation is not None and turn.generation.context_full:
        aside(f"the context of {pair.target.max_length:,} tokens is full: begin a new conversation with /reset")
    if alone := pair.beyond_draft_context(record["prompt_tokens"], record["new_tokens"]):
        aside(f"the draft's context is full: it drafted nothing for the last {counted(alone, 'token')}")
