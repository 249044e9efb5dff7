"""Hidden states of the target on their way to a drafter: those that transformers gives, of the rows that stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tiny
import torch
from tape import TapeRecorder
from torch import Tensor, nn

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.model import Tap
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Context, Draft, States
from specdec_cli.drafters.composition import Composition
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.runtime.layers.joined import join
from specdec_cli.runtime.models.graphs import Graphs
from specdec_cli.runtime.models.hidden_states import name_of_layers
from specdec_cli.runtime.models.rereading import RereadingModel, text_frequencies
from specdec_cli.runtime.models.static_model import StaticModel
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.settings import SamplingSettings

VOCAB = tiny.VOCAB_SIZE
PROMPT = [3, 17, 5, 9, 3, 17, 5, 2, 3, 17]
GREEDY = SamplingSettings(temperature=0.0)


class Reader:
    """Guesses a chain or a tree, right for a while and then wrong, and keeps the states that it takes."""

    def __init__(self, taps: Sequence[Tap], right: Sequence[int], tree: bool = False, every: int = 1) -> None:
        self.device = torch.device("cpu")
        self.taps = tuple(taps)
        self.taken: list[Tensor] = []
        self._right, self._tree, self._every = list(right), tree, every
        self._rounds = 0

    def reset(self, context: Context) -> None:
        assert context.states is not None
        states = context.states.take()
        assert states is not None
        assert len(states) == len(context.token_ids) - 1
        self.taken = [states]

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        self._rounds += 1
        if self._rounds % self._every == 0:
            assert context.states is not None
            states = context.states.take()
            if states is not None:
                self.taken.append(states)
        done = len(context.token_ids)
        ids = self._right[done : done + num_draft_tokens]
        ids[2:] = [(token + 1) % VOCAB for token in ids[2:]]
        if not ids or not self._tree:
            return Draft(torch.tensor(ids, dtype=torch.long))
        # A wrong branch first, then the right one: what stays does not stand where it was read.
        wrong = [(token + 1) % VOCAB for token in ids]
        parents = [-1, *range(len(ids) - 1), -1, *range(len(ids), 2 * len(ids) - 1)]
        return Draft(torch.tensor(wrong + ids), parents=torch.tensor(parents))

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        pass


def layers_of(model: Any) -> Any:
    return model.get_submodule(name_of_layers(model, model.config.num_hidden_layers))


def hidden(model: Any, ids: Sequence[int], taps: Sequence[Tap]) -> Tensor:
    """What transformers gives for a whole text without any cache."""
    before: list[Tensor] = []
    layers = layers_of(model)
    hook = layers[-1].register_forward_hook(lambda *of: before.append(of[2] if isinstance(of[2], Tensor) else of[2][0]))
    with torch.inference_mode():
        states = model(torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    last = len(layers)
    return torch.cat([before[0][0] if t.boundary == last and not t.normed else states[t.boundary][0] for t in taps], -1)


def every_tap(model: Any) -> list[Tap]:
    last = len(layers_of(model))
    return [Tap(0), Tap(1), Tap(last), Tap(last, normed=True)]


def read(target: Any, drafter: Any, k: int = 4, new: int = 20) -> list[int]:
    generation = Generation(target, drafter, PROMPT, num_draft_tokens=k, sampling=GREEDY, stopping=Stopping(new))
    list(generation)
    return [*PROMPT, *generation.token_ids]


def right_text(target: Any) -> list[int]:
    return read(target, NoDrafter(torch.device("cpu")), new=30)


@pytest.mark.parametrize(
    ("family", "tree"),
    [
        *((family, False) for family in ("llama", "qwen2", "gemma3", "gpt2", "gpt_neox")),
        *((family, True) for family in ("llama", "qwen2", "gpt_neox")),
    ],
)
def test_states_are_those_of_transformers(family: str, tree: bool) -> None:
    model = tiny.model(family)
    taps = every_tap(model)
    plain = tiny.model(family)
    assert (join(model) > 0) == (family in ("llama", "qwen2")), "joined layers hand out the same states"
    target = TransformersModel(model, VOCAB)
    drafter = Reader(taps, right_text(target), tree=tree)
    ids = read(target, drafter)
    taken = torch.cat(drafter.taken)
    assert len(ids) - 8 < len(taken) < len(ids), "all but the last rounds' tokens"
    torch.testing.assert_close(taken, hidden(plain, ids, taps)[: len(taken)], atol=1e-5, rtol=1e-4)


def test_a_drafter_behind_another_source_gets_what_came_meanwhile() -> None:
    model = tiny.model("llama")
    target = TransformersModel(model, VOCAB)
    taps = every_tap(model)
    head = Reader(taps, right_text(target))
    drafter = Composition([("ngram", NgramDrafter(3, 1, torch.device("cpu"))), ("head", head)])
    assert drafter.taps == tuple(taps)
    ids = read(target, drafter)
    taken = torch.cat(head.taken)
    torch.testing.assert_close(taken, hidden(model, ids, taps)[: len(taken)], atol=1e-5, rtol=1e-4)


def test_states_pile_up_until_they_are_taken() -> None:
    model = tiny.model("llama")
    target = TransformersModel(model, VOCAB)
    taps = [Tap(1)]
    drafter = Reader(taps, right_text(target), every=3)
    ids = read(target, drafter)
    taken = torch.cat(drafter.taken)
    torch.testing.assert_close(taken, hidden(model, ids, taps)[: len(taken)], atol=1e-5, rtol=1e-4)


def test_recorded_rounds_hand_out_states_too() -> None:
    """On the tape that stands for CUDA graphs here, whose outputs the next round overwrites."""
    model = tiny.model("llama")
    taps = every_tap(model)
    target = StaticModel(model, VOCAB)
    recorder = TapeRecorder()
    target.repeater = Graphs(target, recorder, lambda _: None, "target")
    drafter = Reader(taps, right_text(target))
    ids = read(target, drafter, new=30)
    assert len(target.repeater) > 0
    taken = torch.cat(drafter.taken)
    torch.testing.assert_close(taken, hidden(model, ids, taps)[: len(taken)], atol=1e-4, rtol=1e-3)


def test_frequencies_that_change_with_the_text() -> None:
    """A prompt beyond the border is read anew in parts, whose states come in one piece."""
    model = tiny.model("llama", rope_parameters=tiny.LONGROPE, max_position_embeddings=4 * tiny.BORDER)
    frequencies = text_frequencies(model, "target")
    assert frequencies is not None
    target = RereadingModel(model, VOCAB, frequencies=frequencies)
    target.tap([Tap(1), Tap(2, normed=True)])
    ids = torch.arange(frequencies.border + 6) % VOCAB
    with torch.inference_mode():
        target.reset()
        target.forward(ids[:4], num_logits=1)
        assert target.take_states().shape == (4, 64)
        target.forward(ids[4:], num_logits=len(ids) - 4)  # some rows before the border, some behind it
        states = target.take_states()
        expected = model(ids[None], output_hidden_states=True, use_cache=False).hidden_states
    assert states.shape == (len(ids) - 4, 64)
    torch.testing.assert_close(states[-3:], torch.cat([expected[1], expected[2]], -1)[0, -3:], atol=1e-5, rtol=1e-4)


def test_nothing_is_hooked_for_a_drafter_without_taps() -> None:
    model = tiny.model("llama")
    target = TransformersModel(model, VOCAB)
    target.tap([Tap(1), Tap(2, normed=True)])
    assert hooks(model) == 2
    read(target, NoDrafter(torch.device("cpu")), new=3)
    assert hooks(model) == 0


def test_the_same_taps_are_hooked_once() -> None:
    model = tiny.model("llama")
    target = TransformersModel(model, VOCAB)
    for _ in range(3):
        target.tap([Tap(1)])
    assert hooks(model) == 1


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("tap", [Tap(-1), Tap(3), Tap(1, normed=True)])
def test_a_tap_that_the_target_does_not_have(tap: Tap) -> None:
    """Whoever reads a head's files refuses it before: see `runtime.heads`."""
    model = tiny.model("llama")
    with pytest.raises(ValueError, match="a model of 2 layers has no"):
        TransformersModel(model, VOCAB).tap([tap])


def test_states_until_they_are_taken() -> None:
    states = States()
    assert states.take() is None
    states.add(torch.ones(2, 3))
    states.add(torch.zeros(1, 3))
    taken = states.take()
    assert taken is not None
    assert taken.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert states.take() is None
