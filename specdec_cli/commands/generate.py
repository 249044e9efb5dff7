"""`specdec generate`: prompts in, text out as it is accepted, and a record of every round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specdec_cli.activity import doing
from specdec_cli.decoding.draft_length import DraftLength, draft_length
from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.seeds import answer_seed
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.errors import INTERRUPTED, SpecdecError, UsageError
from specdec_cli.measurement.hardware import environment
from specdec_cli.measurement.metrics import add_up
from specdec_cli.prompts import Prompt
from specdec_cli.quantities import counted
from specdec_cli.reports.answers import AnswerWriter, answers_to
from specdec_cli.reports.console import Aside
from specdec_cli.reports.export import document
from specdec_cli.reports.stream import TextPrinter, legend
from specdec_cli.reports.tables import generation_summary
from specdec_cli.runtime.devices import clock_for, out_of_memory
from specdec_cli.runtime.pairs.pair import (
    Pair,
    describe,
    describe_draft,
    load_pair,
    recorded,
    require_heads,
    without_recording,
)
from specdec_cli.runtime.pairs.prompting import prompt_notes, read_prompt
from specdec_cli.settings import ConversationSettings, GenerationSettings, ModelSettings, SamplingSettings


@dataclass(frozen=True)
class GenerateRequest:
    """Everything that the command line decides.

    Attributes:
        draft: how the checkpoint that `drafter` names is loaded; None where it names none.
        output_format: "text" streams to `out`; "json" is one document (a list for several prompts), "jsonl" one a line.
    """

    target: ModelSettings
    draft: ModelSettings | None
    drafter: DraftSpec
    prompts: Sequence[Prompt]
    sampling: SamplingSettings
    generation: GenerationSettings
    conversation: ConversationSettings = field(default_factory=ConversationSettings)
    output_format: str = "text"
    output: Path | None = None
    trace: Path | None = None
    show_draft: bool = False
    quiet: bool = False
    verbose: bool = False


@dataclass
class Turn:
    """One answer while it is made: what is known of it if it is interrupted."""

    prompt_ids: list[int]
    prompt_number: int
    turn_number: int
    generation: Generation | None = None
    steps: list[Step] = field(default_factory=list)
    text: str = ""

    @property
    def place(self) -> dict[str, int]:
        """Its prompt and its number there, from 1."""
        return {"prompt": self.prompt_number, "turn": self.turn_number}

    def tokens(self) -> tuple[list[int], list[str]]:
        """Ids and provenance of the whole rounds that there are."""
        token_ids: list[int] = []
        provenance: list[str] = []
        for step in self.steps:
            kept = len(token_ids) - step.withdrawn
            token_ids[kept:] = step.token_ids
            provenance[kept:] = step.provenance
        return token_ids, provenance


def run(request: GenerateRequest) -> int:
    """Generate for every prompt, one after the other; the exit code."""
    aside = Aside(request.quiet)
    pair = load_pair(request.target, request.draft, aside)
    aside.notes(pair.notes)
    limits = request.generation
    require_heads([pair], limits.draft_tree)
    parts = pair.drafter_parts(request.sampling, limits.draft_stop, limits.draft_tree)
    drafter = make_drafter(request.drafter, parts)
    if note := pair.draft_context_note(_sizes(request, pair)):
        aside.notes([note])
    aside.notes(prompt_notes(pair, request.prompts, request.conversation))

    with answers_to(request.output, request.output_format, request.trace) as writer:
        if request.show_draft and request.output_format == "text":
            aside.show(legend(writer.text))
        interrupted, failure = _answer_all(request, pair, drafter, writer, aside)

    if graphs := recorded([pair]):
        aside(graphs)
    if failure is not None:
        raise failure
    return INTERRUPTED if interrupted else 0


def _sizes(request: GenerateRequest, pair: Pair) -> list[int]:
    """Tokens that each prompt's first turn and its answer may come to, before one is answered and a file is opened.

    Raises:
        UsageError: one does not fit.
    """
    read = (read_prompt(pair, prompt, request.conversation) for prompt in request.prompts)
    return [len(ids) + request.generation.max_new_tokens for ids in read]


def _answer_all(
    request: GenerateRequest, pair: Pair, drafter: Drafter, writer: AnswerWriter, aside: Aside
) -> tuple[bool, SpecdecError | None]:
    """Answer turn by turn, and keep what was answered however it ends: whether by Ctrl-C, or by which error.

    Raises:
        SpecdecError: there was no answer before it.
    """
    length = draft_length(request.generation.num_draft_tokens)
    try:
        for turn in _turns(request, pair):
            writer.begin()
            interrupted = False
            try:
                answer_turn(turn, request, pair, drafter, length, writer)
            except KeyboardInterrupt:
                interrupted = True
            if turn.generation is not None:
                record = record_of(request, pair, turn)
                writer.add(record)
                aside.show(generation_summary(record, request.verbose), style="dim")
                if turn.generation.context_full:
                    aside(f"the context of {pair.target.max_length:,} tokens is full")
                if alone := pair.beyond_draft_context(record["prompt_tokens"], record["new_tokens"]):
                    aside(f"the draft's context is full: it drafted nothing for the last {counted(alone, 'token')}")
            if interrupted:
                aside("interrupted: this is what there was")
                return True, None
    except KeyboardInterrupt:  # between two answers
        if not writer.records:
            raise
        return True, None
    except SpecdecError as error:
        if not writer.records:
            raise
        return False, error
    return False, None


def _turns(request: GenerateRequest, pair: Pair) -> Iterator[Turn]:
    """Every turn of every prompt; what was answered is part of the conversation that the next turn sees."""
    for prompt_number, prompt in enumerate(request.prompts, start=1):
        answers: list[str] = []
        for turn_number in range(1, len(prompt.turns) + 1):
            try:
                turn = Turn(read_prompt(pair, prompt, request.conversation, answers), prompt_number, turn_number)
            except UsageError as error:
                raise UsageError(f"prompt {prompt_number}, turn {turn_number}: {error}") from error
            yield turn
            answers.append(turn.text)


def answer_turn(
    turn: Turn,
    request: GenerateRequest,
    pair: Pair,
    drafter: Drafter,
    length: DraftLength,
    writer: AnswerWriter,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Run one generation, showing and keeping each round as it ends.

    Args:
        length: the rule for K, which goes on learning from one turn to the next.
        stopped: asked before each round whether the answer is to end there.
    """
    settings = request.generation
    stopping = _stopping(settings, pair, turn.prompt_ids)
    printer = TextPrinter(writer.text, request.show_draft)
    stream = pair.text_stream(turn.prompt_ids)
    provenance: str = "plain"
    try:
        with out_of_memory("for the text and its cache", "shorten the prompt or choose a smaller model"):
            with doing(f"reading {counted(len(turn.prompt_ids), 'token')} of prompt"):
                generation = Generation(
                    pair.target,
                    drafter,
                    turn.prompt_ids,
                    num_draft_tokens=length,
                    sampling=request.sampling,
                    stopping=stopping,
                    seed=answer_seed(settings.seed, turn.prompt_number, turn.turn_number),
                    clock=without_recording(clock_for(*pair.devices), [pair]),
                )
            turn.generation = generation
            for step in () if stopped() else generation:
                turn.steps.append(step)
                writer.add_round(turn.place | {"round": len(turn.steps)}, step)
                for token_id, provenance in zip(step.token_ids, step.provenance, strict=True):
                    printer.push(stream.push(token_id), provenance)
                if step.finish_reason is None:
                    printer.show(stopping.held_back)
                if stopped():
                    break
    finally:
        text = _text_of(turn, stopping, pair)
        printer.push(text[len(printer.text) :], provenance)
        turn.text = printer.finish(len(text))


def _stopping(settings: GenerationSettings, pair: Pair, prompt_ids: Sequence[int]) -> Stopping:
    end_ids = pair.special_ids(settings.stop_strings)
    if not settings.ignore_end_token:
        end_ids |= pair.checkpoint.end_ids
    return Stopping(
        settings.max_new_tokens, end_ids, settings.stop_strings, pair.text_stream(prompt_ids), pair.special_tokens
    )


def _text_of(turn: Turn, stopping: Stopping, pair: Pair) -> str:
    """Up to a stop string, or of the whole rounds: they decide, not how much of the last one Ctrl-C let through."""
    ended = bool(turn.steps) and turn.steps[-1].finish_reason == "stop"
    if ended and stopping.text is not None:
        return stopping.text
    return pair.decode(turn.tokens()[0], turn.prompt_ids)


def record_of(request: GenerateRequest, pair: Pair, turn: Turn) -> dict[str, Any]:
    """The JSON document of one answer; its keys are listed in docs/scripting.md."""
    totals = add_up(turn.steps)
    generation = turn.generation
    assert generation is not None
    token_ids, provenance = turn.tokens()
    reason = turn.steps[-1].finish_reason if turn.steps else None
    return document(
        environment(*pair.devices),
        _settings(request, pair),
        **turn.place,
        text=turn.text,
        token_ids=token_ids,
        prompt_tokens=len(turn.prompt_ids),
        new_tokens=len(token_ids),
        finish_reason=reason or "interrupted",
        rounds=totals.rounds,
        drafted=totals.drafted,
        accepted=totals.accepted,
        judged=totals.judged,
        tokens_per_round=totals.tokens_per_round,
        alpha=totals.alpha,
        **({"sources": {name: asdict(counts) for name, counts in totals.sources.items()}} if totals.sources else {}),
        provenance=provenance,
        timings={
            "prefill_s": generation.prefill_s,
            "decode_s": totals.decode_s,
            "draft_s": totals.draft_s,
            "verify_s": totals.verify_s,
            "other_s": totals.other_s,
            "tokens_per_s": totals.new_tokens / totals.decode_s if totals.decode_s else None,
        },
    )


def _settings(request: GenerateRequest, pair: Pair) -> dict[str, object]:
    return {
        "target": describe(request.target, pair.checkpoint),
        "draft": describe_draft(request.drafter, request.draft, pair),
        "sampling": asdict(request.sampling),
        "generation": asdict(request.generation),
        **asdict(request.conversation),
    }
