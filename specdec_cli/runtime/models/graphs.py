"""A round's passes recorded once and repeated as one launch: CUDA graphs, made of the eager forwards.

A small model's step on a GPU is mostly launches. A graph repeats hundreds of them in one, but repeats them as they
were: every number of Python's is part of it. So the functions recorded here know nothing that changes but tensors
(`static_cache.StaticPass`), and a recording is tried before it is trusted: made at another length and with other tokens
than the round at hand has, it must then give that round's results, or the model goes on without.

What is recorded: the loop's verify pass with the judgement behind it, and a draft model's chain, sampling included; one
recording for each (how many tokens, capacity of the cache, settings), made when it is asked for the second time.
Random draws come from a generator that the recording knows, and advance it as eager draws would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specdec_cli.decoding.model import repeater_of
from specdec_cli.runtime.models.static_model import StaticModel
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.settings import SamplingSettings

NO_MEMORY = "there is not enough memory for them"
KEPT = 256  # recordings; the oldest goes first
# Replayed kernels are the eager ones; a parallel sum may still round differently from one run to the next.
TOLERANCE = 1e-3

Results = tuple[Tensor, ...]


class Recording(Protocol):
    """A function's operations, on the tensors that it saw.

    Attributes:
        outputs: overwritten by every replay.
    """

    outputs: Results

    def replay(self, generator: torch.Generator) -> None:
        """Repeat all operations, drawing from that generator, and advance it."""
        ...


class Recorder(Protocol):
    """How operations are recorded."""

    def record(self, function: Callable[[], Results], generator: torch.Generator) -> Recording:
        """Run a function, perhaps several times.

        Raises:
            RuntimeError: it needs the host in between, or memory is short.
        """
        ...


class _Replayed:
    """One recording and the tensors that it reads."""

    def __init__(self, base: Tensor, inputs: Results, recording: Recording) -> None:
        self._base, self._inputs, self._recording = base, inputs, recording

    def run(self, length: int, inputs: Sequence[Tensor], generator: torch.Generator) -> Results:
        """Results, which stay until the next run."""
        self._base.fill_(length)
        for kept, given in zip(self._inputs, inputs, strict=True):
            kept.copy_(given, non_blocking=True)
        self._recording.replay(generator)
        return self._recording.outputs


class Graphs:
    """The recordings of one model, a `specdec_cli.decoding.model.Repeater`.

    Args:
        model: of which nothing else is recorded.
        recorder: of its device.
        report: told in a line what cannot be.
        role: of the model, for that line.

    Attributes:
        record_s: seconds spent recording, and trying what was recorded.
        off: why nothing is recorded any more; empty while it is.
    """

    def __init__(self, model: StaticModel, recorder: Recorder, report: Callable[[str], None], role: str) -> None:
        self.record_s = 0.0
        self.off = ""
        self._model = model
        self._recorder = recorder
        self._report = report
        self._role = role
        self._told: set[str] = set()
        self._epoch = model.epoch
        # By what is asked for; None where it was asked for once, which is not worth a recording yet.
        self._replayed: dict[Hashable, _Replayed | None] = {}

    def __len__(self) -> int:
        return sum(replayed is not None for replayed in self._replayed.values())

    def repeat(
        self,
        key: Hashable,
        function: Callable[..., Results],
        inputs: Sequence[Tensor],
        num_tokens: int,
        generator: torch.Generator,
    ) -> Results | None:
        """`function(*inputs)`, which feeds so many tokens to the model, as one launch.

        Args:
            key: all that the function knows beside tensors.
            function: reads the text through the model's cache and `inputs` alone, and never waits for the host.
            inputs: copied; may be on another device.
            num_tokens: appended to the cache.
            generator: the only source of random numbers.

        Returns:
            the results, valid until the same key runs again; None where this must be run eagerly.
        """
        length = self._model.length
        if self.off or not length:  # buffers take their shape from the first tokens
            return None
        if self._epoch != self._model.epoch:
            self._epoch = self._model.epoch
            self._replayed.clear()
        try:
            capacity = self._model.reserve(num_tokens + 1)[0].buffer.capacity  # recorded one token further than tried
        except torch.OutOfMemoryError:  # the text has outgrown its buffers: what recordings hold may make the room
            self._stop(NO_MEMORY)
            return None
        at = (key, capacity, tuple((tuple(t.shape), t.dtype) for t in inputs))
        replayed = self._replayed.get(at)
        if replayed is None:
            if at not in self._replayed:
                self._keep(at, None)
                return None
            if length + num_tokens >= self._model.max_length:
                return None
            replayed = self._record(function, inputs, num_tokens, generator)
            if replayed is None:
                return None
            self._keep(at, replayed)
        outputs = replayed.run(length, inputs, generator)
        self._model.advance(num_tokens)
        return outputs

    def _keep(self, at: Hashable, replayed: _Replayed | None) -> None:
        if len(self._replayed) >= KEPT and at not in self._replayed:
            del self._replayed[next(iter(self._replayed))]
        self._replayed[at] = replayed

    def _record(
        self,
        function: Callable[..., Results],
        inputs: Sequence[Tensor],
        num_tokens: int,
        generator: torch.Generator,
    ) -> _Replayed | None:
        """Record and try; None, and nothing any more, where either fails."""
        started = time.perf_counter()
        place = generator.get_state()
        try:
            replayed = self._tried(function, inputs, num_tokens, generator)
            why = "a recorded round gave other numbers than the same round without"
        except torch.OutOfMemoryError:
            replayed, why = None, NO_MEMORY
        except RuntimeError as error:
            replayed, why = None, " ".join(str(error).split())[:160]
        generator.set_state(place)
        if replayed is None:
            self._stop(why)
        self.record_s += time.perf_counter() - started
        return replayed

    def _tried(
        self,
        function: Callable[..., Results],
        inputs: Sequence[Tensor],
        num_tokens: int,
        generator: torch.Generator,
    ) -> _Replayed | None:
        """A recording that gives what the function gives, in results, cache and random numbers; or None.

        It is recorded one token further and with zeros for inputs, so that it cannot know what it is tried on.
        """
        model, length = self._model, self._model.length
        base = torch.full((1,), length + 1, device=model.device)
        kept = tuple(torch.zeros_like(tensor, device=model.device) for tensor in inputs)

        def body() -> Results:
            model.static = model.static_pass(base, num_tokens)
            try:
                return function(*kept)
            finally:
                model.static = None

        place = generator.get_state()
        replayed = _Replayed(base, kept, self._recorder.record(body, generator))
        base.fill_(length)
        for mine, given in zip(kept, inputs, strict=True):
            mine.copy_(given)
        buffers = [tensor for layer in model.reserve(num_tokens) for tensor in layer.buffer.tensors]
        slots = [buffer[:, :, length : length + num_tokens] for buffer in buffers]
        found = []
        for attempt in (body, lambda: replayed.run(length, inputs, generator)):
            for slot in slots:
                slot.zero_()
            generator.set_state(place)
            found.append(([t.clone() for t in (*attempt(), *slots)], generator.get_state()))
        (eager, drawn), (repeated, drawn_too) = found
        same = all(_close(a, b) for a, b in zip(eager, repeated, strict=True)) and torch.equal(drawn, drawn_too)
        return replayed if same else None

    def _stop(self, why: str) -> None:
        self.off = why
        self._replayed.clear()
        self.tell(f"no CUDA graphs for the {self._role} from here on: {why}")

    def expect(self, sampling: SamplingSettings, draft_stop: float) -> None:
        """Tell what of the settings keeps rounds from being recorded."""
        if sampling.repetition_penalty != 1.0:
            self.tell("no CUDA graphs with --repetition-penalty, which reads a text that grows")
        elif draft_stop > 0.0:
            self.tell("no CUDA graphs for drafts with --draft-stop, which asks after each token")

    def tell(self, note: str) -> None:
        """Report something that runs without recordings, once."""
        if note not in self._told:
            self._told.add(note)
            self._report(f"note: {note}")


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=0.0, atol=TOLERANCE)


def stopped_while_recording(clock: Callable[[], float], models: Sequence[TransformersModel]) -> Callable[[], float]:
    """A clock that leaves out what recordings took: they are made once, and would be the slowest round by far."""
    recorded = recordings(models)
    if not recorded:
        return clock
    return lambda: clock() - sum(graphs.record_s for graphs in recorded)


def recordings(models: Sequence[TransformersModel]) -> list[Graphs]:
    """Of those that have any, each once."""
    repeaters = [repeater_of(model) for model in dict.fromkeys(models)]
    return [repeater for repeater in repeaters if isinstance(repeater, Graphs)]
