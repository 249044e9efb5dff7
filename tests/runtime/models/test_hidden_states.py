"""The states that the loop hands to a drafter are those that transformers computes for the same text."""

from __future__ import annotations

from collections.abc import Sequence

import laws
import pytest
import tape
import tiny
import torch
from torch import Tensor

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.model import Tap
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Context, Draft
from specdec_cli.drafters.composition import Composition
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.errors import IncompatiblePairError
from specdec_cli.runtime.layers.joined import join
from specdec_cli.runtime.models.graphs import Graphs
from specdec_cli.runtime.models.rereading import RereadingModel, text_frequencies
from specdec_cli.runtime.models.static_model import StaticModel
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness

LAYERS = 2  # of the tiny models
TAPS = (Tap(1), Tap(0), Tap(LAYERS, normed=True), Tap(LAYERS))
CLOSE = {"atol": 2e-5, "rtol": 1e-4}
CPU = torch.device("cpu")


class Listener:
    """Drafts what the target will say, and what it will not, as a chain or as a tree; keeps every state it is given."""

    device = CPU

    def __init__(self, target: TransformersModel, taps: tuple[Tap, ...] = TAPS, tree: bool = False) -> None:
        self.taps = taps
        self._tree = tree
        self._model = target.model
        self.rows: list[Tensor] = []
        self.rounds = 0

    def reset(self, context: Context) -> None:
        self.rows = []
        self._take(context)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        self._take(context)
        assert sum(map(len, self.rows)) == len(context.token_ids) - 1
        self.rounds += 1
        ids = list(context.token_ids)
        while len(ids) < len(context.token_ids) + num_draft_tokens:
            ids.append(int(self._model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        good = ids[len(context.token_ids) :]
        if self.rounds % 2 and len(good) > 1:
            good[1] = (good[1] + 1) % 256  # half of the drafts are rejected at their second token
        if not self._tree or not good:
            return Draft(torch.tensor(good, dtype=torch.long))
        bad = [(token + 3) % 256 for token in good]
        tokens = [token for both in zip(bad, good, strict=True) for token in both]
        parents = [-1, -1] + [2 * (i // 2) + 1 for i in range(len(tokens) - 2)]
        return Draft(torch.tensor(tokens, dtype=torch.long), parents=torch.tensor(parents[: len(tokens)]))

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        """Nothing to forget."""

    def _take(self, context: Context) -> None:
        assert context.states is not None
        rows = context.states.take()
        if rows is not None:
            self.rows.append(rows)


def expected_states(model: TransformersModel, ids: Sequence[int], taps: Sequence[Tap]) -> Tensor:
    """By output_hidden_states; the last layer's before the norm by a hook of our own."""
    raw: list[Tensor] = []
    decoder = model.model.model
    hook = decoder.norm.register_forward_pre_hook(lambda module, inputs: raw.append(inputs[0]))
    states = model.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    hook.remove()
    parts = [raw[0] if tap == Tap(LAYERS) else states[tap.boundary] for tap in taps]
    return torch.cat([part[0] for part in parts], -1)


def heard(
    target: TransformersModel, listener: Listener, drafter: object = None, prompt: Sequence[int] = laws.PROMPT
) -> list[int]:
    """The text but its last round, and checks of its rounds."""
    ids, steps = laws.generate(target, drafter or listener, prompt=prompt, max_new_tokens=24)
    assert any(0 < step.num_accepted < len(step.draft_token_ids) for step in steps)
    return [*prompt, *ids]


def model(family: str = "llama", **overrides: object) -> TransformersModel:
    return TransformersModel(tiny.model(family, seed=1, **overrides), tiny.VOCAB_SIZE)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("family", "tree"),
    [("llama", False), ("qwen3", False), ("mistral", False), ("gemma2", False), ("llama", True), ("qwen3", True)],
)
def test_states_are_those_of_transformers(family: str, tree: bool) -> None:
    """Prompt, rounds with rejections, and paths of trees that do not stand where they belong."""
    target = model(family)
    listener = Listener(target, tree=tree)
    ids = heard(target, listener)
    rows = torch.cat(listener.rows)
    assert len(rows) > len(laws.PROMPT) + 5
    torch.testing.assert_close(rows, expected_states(target, ids, TAPS)[: len(rows)], **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("prompt", [(7,), (7, 3)], ids=["one token", "two"])
def test_states_of_short_prompts(prompt: tuple[int, ...]) -> None:
    target = model()
    listener = Listener(target)
    ids = heard(target, listener, prompt=prompt)
    rows = torch.cat(listener.rows)
    torch.testing.assert_close(rows, expected_states(target, ids, TAPS)[: len(rows)], **CLOSE)


@torch.inference_mode()
def test_states_wait_for_a_source_that_is_not_asked() -> None:
    """Behind ngram, which drafts in some rounds: the listener then gets those rounds' states too."""
    target = model()
    listener = Listener(target)
    both = Composition([("ngram", NgramDrafter(1, 1, CPU)), ("listener", listener)])
    assert both.taps == TAPS
    _, steps = laws.generate(target, both, max_new_tokens=24)
    assert {step.source for step in steps} >= {"ngram", "listener"}
    ids, _ = laws.generate(target, NoDrafter(CPU), max_new_tokens=24)
    rows = torch.cat(listener.rows)
    torch.testing.assert_close(rows, expected_states(target, [*laws.PROMPT, *ids], TAPS)[: len(rows)], **CLOSE)


@torch.inference_mode()
def test_states_of_joined_layers() -> None:
    made = tiny.model("llama", seed=1)
    plain = model()
    assert join(made)
    target = TransformersModel(made, tiny.VOCAB_SIZE)
    listener = Listener(target)
    ids = heard(target, listener)
    rows = torch.cat(listener.rows)
    torch.testing.assert_close(rows, expected_states(plain, ids, TAPS)[: len(rows)], **CLOSE)


@torch.inference_mode()
def test_states_of_recorded_rounds() -> None:
    """They are results of the recording, which overwrites them in the next round."""
    plain = model()
    target = StaticModel(plain.model, tiny.VOCAB_SIZE)
    recorder = tape.TapeRecorder()
    target.repeater = Graphs(target, recorder, print, "target")
    listener = Listener(target)
    ids = heard(target, listener)
    assert recorder.tapes, "nothing was recorded"
    rows = torch.cat(listener.rows)
    torch.testing.assert_close(rows, expected_states(plain, ids, TAPS)[: len(rows)], **CLOSE)
    without, _ = laws.generate(target, NoDrafter(CPU), max_new_tokens=24)
    assert ids[len(laws.PROMPT) :] == without


@torch.inference_mode()
def test_a_text_that_is_read_anew_gives_no_state_twice() -> None:
    made = tiny.model("llama", seed=1, rope_parameters=tiny.LONGROPE, max_position_embeddings=128)
    frequencies = text_frequencies(made, "target")
    assert frequencies is not None
    target = RereadingModel(made, tiny.VOCAB_SIZE, frequencies=frequencies)
    listener = Listener(target)
    prompt = list(range(20, 20 + tiny.BORDER - 6))  # the border is crossed by the rounds
    laws.generate(target, listener, prompt=prompt, max_new_tokens=24)
    assert sum(map(len, listener.rows)) > tiny.BORDER + 4


def hooks(target: TransformersModel) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in target.model.modules())


def test_nothing_is_hooked_where_nobody_asks() -> None:
    """Nor is what an earlier drafter asked for kept on for a later one."""
    target = model()
    laws.generate(target, NoDrafter(CPU), max_new_tokens=4)
    assert hooks(target) == 0
    assert target.taps == ()
    with pytest.raises(ValueError, match="tapped"):
        target.take_states()
    laws.generate(target, Listener(target), max_new_tokens=4)
    assert hooks(target) == len(TAPS)
    laws.generate(target, NoDrafter(CPU), max_new_tokens=4)
    assert hooks(target) == 0


def test_a_plain_drafter_sees_no_states() -> None:
    seen: list[object] = []

    class Plain(NoDrafter):
        def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
            seen.append(context.states)
            return super().propose(context, num_draft_tokens, generator)

    Generation(
        model(), Plain(CPU), laws.PROMPT, num_draft_tokens=2, sampling=SamplingSettings(), stopping=Stopping(3)
    ).__iter__().__next__()
    assert seen == [None]


@pytest.mark.parametrize("tap", [Tap(LAYERS + 1), Tap(1, normed=True), Tap(-1)])
def test_a_boundary_that_is_not_there(tap: Tap) -> None:
    with pytest.raises(ValueError, match="has no"):
        model().tap([tap])


def test_layers_that_are_no_plain_list_are_refused() -> None:
    target = model()
    target.model.config.num_hidden_layers = 5
    with pytest.raises(IncompatiblePairError, match="0 lists of 5 modules"):
        target.tap(TAPS[:1])
