"""`specdec generate`: prompts in, text out as it is accepted, and a record of every round."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from specdec_cli.decoding.draft_length import DraftLength, draft_length
from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.seeds import answer_seed
from specdec_cli.decoding.stopping import Stopping, safe_length
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.errors import INTERRUPTED, SpecdecError, UsageError
from specdec_cli.measurement.hardware import environment
from specdec_cli.measurement.metrics import add_up
from specdec_cli.prompts import Prompt
from specdec_cli.reports.console import PipeConsole
from specdec_cli.reports.export import document, to_json, whole_file
from specdec_cli.reports.stream import TextPrinter, legend
from specdec_cli.reports.tables import generation_summary
from specdec_cli.runtime.devices import clock_for, out_of_memory
from specdec_cli.runtime.pairs.pair import (
    Pair,
    conversation,
    describe,
    describe_draft,
    load_pair,
    recorded,
    without_recording,
)
from specdec_cli.settings import GenerationSettings, ModelSettings, SamplingSettings


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
    system: str | None = None
    raw: bool = False
    output_format: str = "text"
    output: Path | None = None
    trace: Path | None = None
    show_draft: bool = False
    quiet: bool = False


@dataclass
class Turn:
    """One answer while it is made: what is known of it if it is interrupted."""

    prompt_ids: list[int]
    prompt_number: int
    turn_number: int
    generation: Generation | None = None
    steps: list[Step] = field(default_factory=list)
    text: str = ""

    def tokens(self) -> tuple[list[int], list[str]]:
        """Ids and provenance of the whole rounds that there are."""
        token_ids: list[int] = []
        provenance: list[str] = []
        for step in self.steps:
            kept = len(token_ids) - step.withdrawn
            token_ids[kept:] = step.token_ids
            provenance[kept:] = step.provenance
        return token_ids, provenance


class _Nowhere(io.TextIOBase):
    """Swallows what is not for this output format."""

    def write(self, text: str) -> int:
        return len(text)


_NOWHERE = cast(TextIO, _Nowhere())


def run(request: GenerateRequest) -> int:
    """Generate for every prompt, one after the other; the exit code."""
    err = PipeConsole(stderr=True, highlight=False)

    def report(line: str) -> None:
        if not request.quiet:
            err.print(line, style="dim", markup=False, soft_wrap=True)

    pair = load_pair(request.target, request.draft, report)
    for note in pair.notes:
        report(f"note: {note}")
    drafter = make_drafter(request.drafter, pair.drafter_parts(request.sampling, request.generation.draft_stop))
    for prompt in request.prompts:  # before the first is answered and a file is opened
        opening = {"role": "user", "content": prompt.turns[0]}
        pair.encode([*conversation(prompt, request.system), opening], request.raw)
    length = draft_length(request.generation.num_draft_tokens)
    records: list[dict[str, Any]] = []
    interrupted = False
    failure: SpecdecError | None = None
    with ExitStack() as stack:
        out = stack.enter_context(whole_file(request.output)) if request.output else sys.stdout
        trace = stack.enter_context(request.trace.open("w", encoding="utf-8")) if request.trace else None
        shown = out if request.output_format == "text" else _NOWHERE
        if request.show_draft and shown is out and not request.quiet:
            err.print(legend(PipeConsole(file=out)))
        try:
            for turn in _turns(request, pair):
                if records:
                    shown.write("\n")  # a blank line between answers
                printer = TextPrinter(
                    shown, request.show_draft, partial(safe_length, stop_strings=request.generation.stop_strings)
                )
                try:
                    _answer(turn, request, pair, drafter, length, printer, partial(_trace, trace, turn))
                except KeyboardInterrupt:
                    interrupted = True
                if turn.generation is not None:
                    record = _record(request, pair, turn)
                    records.append(record)
                    if request.output_format == "jsonl":
                        out.write(to_json(record) + "\n")
                        out.flush()
                    if not request.quiet:
                        err.print(generation_summary(record), style="dim")
                    if turn.generation.context_full:
                        report(f"the context of {pair.target.max_length:,} tokens is full")
                if interrupted:
                    report("interrupted: this is what there was")
                    break
        except SpecdecError as error:
            if not records:
                raise
            failure = error  # what was answered before is kept
        if request.output_format == "json" and records:
            out.write(to_json(records[0] if len(records) == 1 else records, indent=2) + "\n")
            out.flush()
    if graphs := recorded([pair]):
        report(graphs)
    if failure is not None:
        raise failure
    return INTERRUPTED if interrupted else 0


def _turns(request: GenerateRequest, pair: Pair) -> Iterator[Turn]:
    """Every turn of every prompt; what was answered is part of the conversation that the next turn sees."""
    for prompt_number, prompt in enumerate(request.prompts, start=1):
        messages = conversation(prompt, request.system)
        for turn_number, text in enumerate(prompt.turns, start=1):
            messages.append({"role": "user", "content": text})
            try:
                turn = Turn(pair.encode(messages, request.raw), prompt_number, turn_number)
            except UsageError as error:
                raise UsageError(f"prompt {prompt_number}, turn {turn_number}: {error}") from error
            yield turn
            messages.append({"role": "assistant", "content": turn.text})


def _trace(trace: TextIO | None, turn: Turn, step: Step) -> None:
    if trace is not None:
        where = {"prompt": turn.prompt_number, "turn": turn.turn_number, "round": len(turn.steps)}
        trace.write(to_json({**where, **asdict(step)}) + "\n")
        trace.flush()


def _answer(
    turn: Turn,
    request: GenerateRequest,
    pair: Pair,
    drafter: Drafter,
    length: DraftLength,
    printer: TextPrinter,
    on_step: Callable[[Step], None],
) -> None:
    """Run one generation, showing and keeping each round as it ends."""
    settings = request.generation
    stream = pair.text_stream()
    end_ids = pair.special_ids(settings.stop_strings)
    if not settings.ignore_end_token:
        end_ids |= pair.checkpoint.end_ids
    stopping = Stopping(
        settings.max_new_tokens,
        end_ids,
        settings.stop_strings,
        pair.text_stream(),
    )
    provenance: str = "plain"
    try:
        with out_of_memory("for the text and its cache", "shorten the prompt or choose a smaller model"):
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
            for step in generation:
                turn.steps.append(step)
                on_step(step)
                for token_id, provenance in zip(step.token_ids, step.provenance, strict=True):
                    printer.push(stream.push(token_id), provenance)
                printer.show_safe()
    finally:
        # The rounds decide, not how much of the last one was shown when Ctrl-C came.
        ended = bool(turn.steps) and turn.steps[-1].finish_reason == "stop"
        text = stopping.text if ended else None
        if text is None:
            stream = pair.text_stream()
            text = "".join([*map(stream.push, turn.tokens()[0]), stream.flush()])
        printer.push(text[len(printer.text) :], provenance)
        turn.text = printer.finish(len(text))


def _record(request: GenerateRequest, pair: Pair, turn: Turn) -> dict[str, Any]:
    """The JSON document of one answer; its keys are listed in the README."""
    totals = add_up(turn.steps)
    generation = turn.generation
    assert generation is not None
    token_ids, provenance = turn.tokens()
    reason = turn.steps[-1].finish_reason if turn.steps else None
    return document(
        environment(*pair.devices),
        _settings(request, pair),
        prompt=turn.prompt_number,
        turn=turn.turn_number,
        text=turn.text,
        token_ids=token_ids,
        prompt_tokens=len(turn.prompt_ids),
        new_tokens=len(token_ids),
        finish_reason=reason or "interrupted",
        rounds=totals.rounds,
        drafted=totals.drafted,
        accepted=totals.accepted,
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
        "system": request.system,
        "raw": request.raw,
    }
