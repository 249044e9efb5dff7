"""Recorded rounds give the texts that rounds without recordings give, on a stand-in for CUDA graphs (see `tape`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tape
import tiny
import torch
from running import Specdec
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, BloomConfig, PreTrainedModel

from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.composition import Composition
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.caches import buffered
from specdec_cli.runtime.layers.cut_head import CutHead
from specdec_cli.runtime.models import for_loop, graphs
from specdec_cli.runtime.models.cuda_graphs import CudaRecorder
from specdec_cli.runtime.models.graphs import Graphs, stopped_while_recording
from specdec_cli.runtime.models.static_model import NotStatic, StaticModel
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness

FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "gpt_neox")  # full attention only
GREEDY, SAMPLED = SamplingSettings(temperature=0.0), SamplingSettings(temperature=0.9)
WARPED = SamplingSettings(temperature=0.8, top_k=50, top_p=0.95, min_p=0.01)
PROMPTS = ([3, 1, 7], [9], [*range(20, 45)])
NEW_TOKENS = 40
CAPACITY = 16  # of the first buffers, so that a text goes through several


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffered, "FIRST_CAPACITY", CAPACITY)


class Recorded:
    """A model with recordings, and what is known of them."""

    def __init__(self, model: TransformersModel, recorder: Any = None) -> None:
        self.model = static(model)
        self.recorder = tape.TapeRecorder() if recorder is None else recorder
        self.told: list[str] = []
        self.graphs = self.model.repeater = Graphs(self.model, self.recorder, self.told.append, "draft")


def cached(family: str = "llama", seed: int = 1, role: str = "target", **overrides: Any) -> TransformersModel:
    return TransformersModel(tiny.model(family, seed=seed, **overrides), tiny.VOCAB_SIZE, role=role)


def static(model: TransformersModel) -> StaticModel:
    """The same, for static passes."""
    return StaticModel(model.model, model.vocab_size, model._blocked)


def near(model: TransformersModel, noise: float = 0.012) -> TransformersModel:
    """A draft that agrees with a model often, and not always."""
    draft = tiny.model("llama", seed=1)
    draft.load_state_dict(model.model.state_dict())
    generator = torch.Generator().manual_seed(4)
    for parameter in draft.parameters():
        parameter.data += noise * torch.randn(parameter.shape, generator=generator)
    return TransformersModel(draft, tiny.VOCAB_SIZE, role="draft")


def texts(
    target: TransformersModel,
    make: Callable[[SamplingSettings], Drafter],
    k: int,
    sampling: SamplingSettings = GREEDY,
    prompts: Sequence[list[int]] = PROMPTS,
    new_tokens: int = NEW_TOKENS,
    simulated: float | None = None,
) -> list[list[Step]]:
    """The rounds of each prompt, one after the other, with a drafter that stays, without what was timed."""
    drafter = make(sampling)
    found = []
    for seed, prompt in enumerate(prompts):
        generation = Generation(
            target, drafter, prompt, num_draft_tokens=k, sampling=sampling, stopping=Stopping(new_tokens), seed=seed,
            simulated_acceptance=simulated,
        )  # fmt: skip
        found.append([replace(step, draft_s=0.0, verify_s=0.0, other_s=0.0) for step in generation])
    return found


def same(a: list[list[Step]], b: list[list[Step]]) -> bool:
    """The same tokens from the same rounds, and figures equal up to rounding."""

    def what(step: Step) -> object:
        return replace(step, target_probs=(), draft_probs=(), overlap=())

    def figures(step: Step) -> list[float]:
        return [*step.target_probs, *step.draft_probs, *step.overlap]

    flat_a, flat_b = [s for steps in a for s in steps], [s for steps in b for s in steps]
    return list(map(what, flat_a)) == list(map(what, flat_b)) and all(
        figures(x) == pytest.approx(figures(y), abs=1e-4) for x, y in zip(flat_a, flat_b, strict=True)
    )


# -------------------------------------------------------------------------------------------- whole texts
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, WARPED], ids=["greedy", "sampled", "warped"])
def test_texts_from_recordings_equal_those_without(sampling: SamplingSettings, k: int) -> None:
    """Buffers that grow, rejections and full accepts, several prompts with the same recordings; the same seed."""
    plain_target = cached()
    plain_draft = near(plain_target)
    expected = texts(plain_target, lambda s: DraftModel(plain_draft, s), k, sampling)
    target, draft = Recorded(cached()), Recorded(near(plain_target))
    found = texts(target.model, lambda s: DraftModel(draft.model, s), k, sampling)
    assert same(found, expected)
    accepted = {step.num_accepted for steps in expected for step in steps if not step.cut}
    assert {0, k} <= accepted  # pending tokens of the draft: one after a rejection, two after a full accept
    for recorded in (target, draft):
        assert recorded.told == []
        shapes = {at[1] for at in recorded.graphs._replayed}  # capacities
        assert len(shapes) >= 3
        assert len(recorded.recorder.tapes) == len(recorded.graphs)


@pytest.mark.parametrize("sampling", [GREEDY, WARPED], ids=["greedy", "warped"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_decoding_from_a_recording_equals_it_without(family: str, sampling: SamplingSettings) -> None:
    plain = cached(family)
    expected = texts(plain, lambda s: NoDrafter(plain.device), 1, sampling, PROMPTS[:2])
    target = Recorded(cached(family))
    assert same(texts(target.model, lambda s: NoDrafter(plain.device), 1, sampling, PROMPTS[:2]), expected)
    assert target.told == []
    assert len(target.graphs) >= 2


def test_a_second_text_needs_no_further_recordings() -> None:
    target, draft = Recorded(cached()), Recorded(near(cached()))
    made = []
    for _ in range(2):
        texts(target.model, lambda s: DraftModel(draft.model, s), 4, prompts=PROMPTS[:1] * 2)
        made.append((len(target.recorder.tapes), len(draft.recorder.tapes)))
    assert made[0] == made[1]


def test_copied_drafts_and_several_sources_are_recorded_too() -> None:
    """Drafts of many lengths without distributions; and a draft model that lags behind by more than two tokens."""
    prompts = ([1, 2, 3, 4, 5, 6, 1, 2, 3], [7, 7, 7, 8, 7, 7])

    def ngram(sampling: SamplingSettings) -> Drafter:
        return NgramDrafter(3, 1, torch.device("cpu"))

    def both(model: TransformersModel) -> Callable[[SamplingSettings], Drafter]:
        return lambda s: Composition([("ngram", ngram(s)), ("draft", DraftModel(model, s))])

    plain = cached(seed=5)
    target, draft = Recorded(cached(seed=5)), Recorded(near(plain))
    for sampling in (GREEDY, SAMPLED):
        expected = texts(plain, ngram, 3, sampling, prompts)
        assert same(texts(target.model, ngram, 3, sampling, prompts), expected)
        expected = texts(plain, both(near(plain)), 3, sampling, prompts)
        assert same(texts(target.model, both(draft.model), 3, sampling, prompts), expected)
    assert target.told == draft.told == []
    assert len(target.graphs) > 3


def test_simulated_acceptance_is_recorded_with_its_number() -> None:
    plain = cached()
    target, draft = Recorded(cached()), Recorded(near(plain))
    for simulated in (0.5, 0.8):
        expected = texts(plain, lambda s: DraftModel(near(plain), s), 3, prompts=PROMPTS[:1], simulated=simulated)
        found = texts(target.model, lambda s: DraftModel(draft.model, s), 3, prompts=PROMPTS[:1], simulated=simulated)
        assert same(found, expected)


def test_ids_that_cannot_be_emitted_and_narrow_vocabularies() -> None:
    model = tiny.model("llama", seed=1)
    blocked = torch.tensor([2, 5, 200])
    plain = TransformersModel(model, 240, blocked)
    wide = TransformersModel(tiny.model("llama", vocab_size=230, seed=2), 240, role="draft")  # ids that it lacks
    target = Recorded(TransformersModel(model, 240, blocked))
    draft = Recorded(TransformersModel(tiny.model("llama", vocab_size=230, seed=2), 240, role="draft"))
    expected = texts(plain, lambda s: DraftModel(wide, s), 2, SAMPLED)
    assert same(texts(target.model, lambda s: DraftModel(draft.model, s), 2, SAMPLED), expected)
    assert len(target.graphs)
    assert len(draft.graphs)


def test_the_context_ends_where_it_ends_without() -> None:
    """The last rounds of a full context: shorter blocks, and no position behind the last."""
    plain = cached("gpt2", max_position_embeddings=40)
    expected = texts(plain, lambda s: NgramDrafter(3, 1, torch.device("cpu")), 4, new_tokens=100)
    target = Recorded(cached("gpt2", max_position_embeddings=40))
    assert same(texts(target.model, lambda s: NgramDrafter(3, 1, torch.device("cpu")), 4, new_tokens=100), expected)
    assert target.told == []
    assert all(steps[-1].finish_reason == "length" for steps in expected)


@pytest.mark.parametrize("held", [True, False])
def test_a_cut_head_knows_each_prompt_s_own_tokens(held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings hold for every prompt where its rows go into the same tensors, and are made anew where they do not."""
    if not held:
        monkeypatch.setattr(CutHead, "hold", lambda self, num_extra: False)

    def cut_draft() -> TransformersModel:
        model: Any = near(cached()).model
        model.lm_head = CutHead(model.lm_head, torch.arange(0, tiny.VOCAB_SIZE, 3))
        return TransformersModel(model, tiny.VOCAB_SIZE, role="draft")

    plain_draft = cut_draft()
    expected = texts(cached(), lambda s: DraftModel(plain_draft, s), 3, SAMPLED)
    target, draft = Recorded(cached()), Recorded(cut_draft())
    assert same(texts(target.model, lambda s: DraftModel(draft.model, s), 3, SAMPLED), expected)
    assert draft.told == []
    assert len(draft.graphs)
    assert (len(draft.graphs) == len(draft.recorder.tapes)) == held


def test_a_held_head_is_the_same_head_and_leaves_out_what_it_has_no_room_for() -> None:
    head = nn.Linear(4, 20, bias=True)
    states = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    kept = torch.tensor([1, 5, 9])
    with torch.inference_mode():
        plain, held = CutHead(head, kept), CutHead(head, kept)
        assert held.hold(3)
        tensors = [*held._extra[0].parameters(), held._ids, held.outside]
        for prompt in ([], [0, 5, 19], [2, 3, 4], [7]):
            for cut in (plain, held):
                cut.forget_prompt()
                cut.read_prompt(torch.tensor(prompt, dtype=torch.long))
            torch.testing.assert_close(held(states), plain(states))
            assert torch.equal(held.outside, plain.outside)
        held.forget_prompt()
        held.read_prompt(torch.arange(20))
        assert set(torch.isfinite(held(states)).nonzero()[:, 1].tolist()) == {1, 5, 9, 0, 2, 3}
        assert all(
            a is b for a, b in zip(tensors, [*held._extra[0].parameters(), held._ids, held.outside], strict=True)
        )


# ----------------------------------------------------------------------------------- what is not recorded
@pytest.mark.parametrize("case", ["penalty", "draft stop"])
def test_what_cannot_be_recorded_runs_as_it_is(case: str) -> None:
    sampling = replace(SAMPLED, repetition_penalty=1.3) if case == "penalty" else SAMPLED
    stop = 0.0 if case == "penalty" else 0.2
    plain = cached()
    expected = texts(plain, lambda s: DraftModel(near(plain), s, stop), 4, sampling)
    target, draft = Recorded(cached()), Recorded(near(plain))
    assert same(texts(target.model, lambda s: DraftModel(draft.model, s, stop), 4, sampling), expected)
    assert len(draft.graphs) == 0
    assert (len(target.graphs) == 0) == (case == "penalty")


class Refuses(tape.TapeRecorder):
    """Fails at the second recording."""

    def __init__(self, error: RuntimeError) -> None:
        super().__init__()
        self.error = error

    def record(self, function: Callable[[], tuple[Tensor, ...]], generator: torch.Generator) -> tape.Tape:
        function()
        if self.tapes:
            raise self.error
        return super().record(function, generator)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "there is not enough memory for them"),
        (RuntimeError("operation not permitted\nwhen stream is capturing"), "not permitted when stream is capturing"),
    ],
)
def test_where_recording_fails_the_text_goes_on_without(error: RuntimeError, words: str) -> None:
    plain = cached()
    expected = texts(plain, lambda s: DraftModel(near(plain), s), 3, SAMPLED)
    target = Recorded(cached(), Refuses(error))
    assert same(texts(target.model, lambda s: DraftModel(near(plain), s), 3, SAMPLED), expected)
    assert len(target.told) == 1
    assert words in target.told[0]
    assert "\n" not in target.told[0]
    assert len(target.graphs) == 0  # and its memory is given back


def test_where_a_text_outgrows_the_memory_recordings_give_theirs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = cached()
    expected = texts(plain, lambda s: DraftModel(near(plain), s), 3, SAMPLED)
    target = Recorded(cached(), tape.TapeRecorder())
    reserve, asked = target.model.reserve, [0]

    def full_once(num_tokens: int) -> object:
        asked[0] += 1
        if asked[0] == 40:
            assert len(target.graphs) > 0
            raise torch.OutOfMemoryError("CUDA out of memory")
        return reserve(num_tokens)

    monkeypatch.setattr(target.model, "reserve", full_once)
    assert same(texts(target.model, lambda s: DraftModel(near(plain), s), 3, SAMPLED), expected)
    assert asked[0] >= 40
    assert len(target.graphs) == 0
    assert "not enough memory" in target.told[0]


class Forgets(tape.TapeRecorder):
    """Recordings that leave out what writes by index: keys and values are not where they belong."""

    def record(self, function: Callable[[], tuple[Tensor, ...]], generator: torch.Generator) -> tape.Tape:
        made = super().record(function, generator)
        made.calls = [call for call in made.calls if call[0].overloadpacket.__name__ != "index_copy_"]
        return made


class Stale(tape.TapeRecorder):
    """Recordings that draw no new random numbers."""

    def record(self, function: Callable[[], tuple[Tensor, ...]], generator: torch.Generator) -> tape.Tape:
        made = super().record(function, generator)
        made.calls = [call for call in made.calls if call[0].overloadpacket.__name__ != "rand"]
        return made


@pytest.mark.parametrize("recorder", [Forgets, Stale])
def test_a_wrong_recording_is_never_used(recorder: type[tape.TapeRecorder]) -> None:
    plain = cached()
    expected = texts(plain, lambda s: DraftModel(near(plain), s), 3, SAMPLED)
    target, draft = Recorded(cached(), recorder()), Recorded(near(plain), recorder())
    assert same(texts(target.model, lambda s: DraftModel(draft.model, s), 3, SAMPLED), expected)
    for recorded in (target, draft):
        assert len(recorded.told) == 1
        assert "gave other numbers" in recorded.told[0]
        assert len(recorded.recorder.tapes) == 1


class LengthInPython(nn.Module):
    """A rotary embedding that reads a position as a number, as a graph would keep it."""

    def __init__(self, inner: nn.Module, how: Callable[[Tensor], int]) -> None:
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, states: Tensor, position_ids: Tensor) -> Any:
        first = self.how(position_ids)
        return self.inner(states, torch.arange(first, first + position_ids.shape[1])[None])


@pytest.mark.parametrize("waits", [True, False])
@torch.inference_mode()
def test_a_model_that_needs_numbers_of_python_is_found_out(waits: bool) -> None:
    """Whether it waits for the device, which cannot be recorded, or knows them some other way, which would be kept."""
    model: Any = tiny.model("llama", seed=1)
    cheat = TransformersModel(model, tiny.VOCAB_SIZE)

    def how(position_ids: Tensor) -> int:
        return int(position_ids[0, 0]) if waits else position_ids.numpy()[0, 0]

    model.model.rotary_emb = LengthInPython(model.model.rotary_emb, how)
    target = Recorded(cheat)
    expected = texts(cached(), lambda s: NoDrafter(cheat.device), 1, prompts=PROMPTS[:1])
    assert same(texts(target.model, lambda s: NoDrafter(cheat.device), 1, prompts=PROMPTS[:1]), expected)
    assert ("not permitted" if waits else "gave other numbers") in target.told[0]


def test_old_recordings_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "KEPT", 3)
    plain = cached()
    expected = texts(plain, lambda s: DraftModel(near(plain), s), 4)
    target = Recorded(cached())
    assert same(texts(target.model, lambda s: DraftModel(near(plain), s), 4), expected)
    assert len(target.graphs._replayed) <= 3


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3"])
def test_sliding_windows_are_not_recorded_and_told(family: str) -> None:
    with pytest.raises(NotStatic, match="not all of its layers are full attention"):
        static(cached(family))


def bloom() -> PreTrainedModel:
    config = BloomConfig(vocab_size=tiny.VOCAB_SIZE, hidden_size=32, n_layer=2, n_head=2)
    made: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return made


def deaf() -> PreTrainedModel:
    """Heeds no mask of ours: what is dead in the buffers counts too."""
    made: Any = tiny.model("llama")
    forward = made.model.forward

    def unmasked(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        return forward(*args, attention_mask=None if attention_mask is None else 0 * attention_mask, **kwargs)

    made.model.forward = unmasked
    return made


@pytest.mark.parametrize("make", [bloom, deaf])
def test_models_that_make_masks_and_positions_themselves_are_refused(make: Callable[[], PreTrainedModel]) -> None:
    with pytest.raises(NotStatic):
        StaticModel(make(), tiny.VOCAB_SIZE)


# ------------------------------------------------------------------------------------------------ the tape
def test_a_tape_repeats_operations_on_storages_and_random_numbers() -> None:
    """So that the tests above mean something: it keeps Python's numbers, writes in place, and draws anew."""
    state = torch.zeros(3)
    factor = 2.0
    generator = torch.Generator().manual_seed(0)

    def function() -> tuple[Tensor, ...]:
        state.add_(1.0)
        return state[:2] * factor, torch.rand(2, generator=generator)

    made = tape.TapeRecorder().record(function, generator)
    factor = 5.0
    state.fill_(10.0)
    first = made.outputs[1].clone()
    made.replay(generator)
    assert made.outputs[0].tolist() == [22.0, 22.0]
    assert state.tolist() == [11.0] * 3
    again = torch.rand(2, generator=torch.Generator().manual_seed(7))
    made.replay(torch.Generator().manual_seed(7))
    assert torch.equal(made.outputs[1], again)
    assert not torch.equal(first, again)


def test_a_tape_refuses_what_waits() -> None:
    with pytest.raises(RuntimeError, match="capturing"):
        tape.TapeRecorder().record(lambda: (torch.ones(int(torch.ones(1).item())),), torch.Generator())


# ------------------------------------------------------------------------------------------------- compile
def test_a_compiled_model_gives_the_same_text_and_few_shapes() -> None:
    plain = cached()
    expected = texts(plain, lambda s: NoDrafter(plain.device), 1, prompts=PROMPTS[:2], new_tokens=16)
    target = static(cached())
    shapes = []

    def backend(module: Any, example_inputs: Any) -> Any:
        shapes.append(1)
        return module.forward

    target.compile(backend=backend)
    assert same(texts(target, lambda s: NoDrafter(plain.device), 1, prompts=PROMPTS[:2], new_tokens=16), expected)
    assert len(shapes) == 3  # the three tokens that it is tried with; then one, and one at twice the capacity


def test_what_cannot_be_compiled_is_told_in_a_line() -> None:
    def backend(module: Any, example_inputs: Any) -> Any:
        raise RuntimeError("no\ncompiler")

    target = static(cached())
    with pytest.raises(SpecdecError, match=r"--compile: the target cannot be compiled .*: leave it out") as caught:
        target.compile(backend=backend)
    tiny.one_line(caught.value, 1)


# ------------------------------------------------------------------------------------------------ commands
@pytest.fixture
def as_though_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are recorded on the CPU, by tapes."""
    monkeypatch.setattr(for_loop, "RECORDED_ON", "cpu")
    monkeypatch.setattr(for_loop, "CudaRecorder", lambda device: tape.TapeRecorder())


def demo_text(specdec: Specdec, *options: str) -> tuple[str, str]:
    """Output, and what was reported."""
    models = ("--dtype", "float32", "--device", "cpu", "--max-new-tokens", "24", "--seed", "1")
    code, out, err = specdec("generate", "def read(path):", *models, *options)
    assert code == 0, err
    return out, err


@pytest.mark.usefixtures("as_though_on_cuda")
@pytest.mark.parametrize("options", [(), ("--temperature", "0.8"), ("--draft", "ngram+demo:draft", "--k", "3")])
def test_generate_records_rounds_and_gives_the_same_text(specdec: Specdec, options: tuple[str, ...]) -> None:
    expected, silent = demo_text(specdec, *options, "--graphs", "off")
    found, told = demo_text(specdec, *options)
    assert found == expected
    assert "CUDA graphs recorded in" in told
    assert "graph" not in silent


@pytest.mark.usefixtures("as_though_on_cuda")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--repetition-penalty", "1.2"), "no CUDA graphs with --repetition-penalty"),
        (("--draft-stop", "0.1"), "no CUDA graphs for drafts with --draft-stop"),
        (("--draft", "lookahead"), "no CUDA graphs with --draft lookahead"),
        (("--draft", "early-exit:1"), "no CUDA graphs for drafts with --draft early-exit"),
    ],
)
def test_generate_tells_what_is_not_recorded_once(specdec: Specdec, options: tuple[str, ...], words: str) -> None:
    expected, _ = demo_text(specdec, *options, "--graphs", "off")
    found, told = demo_text(specdec, *options)
    assert found == expected
    assert told.count(words) == 1


def test_the_clock_stands_while_rounds_are_recorded() -> None:
    ticks = iter(range(100))
    target = Recorded(cached())
    clock = stopped_while_recording(lambda: float(next(ticks)), [target.model, target.model])
    assert clock() == 0.0
    target.graphs.record_s += 0.25
    assert clock() == 0.75
    bare = stopped_while_recording(clock, [cached()])
    assert bare is clock  # and costs nothing where nothing is recorded


def test_generate_compiles_when_asked_to(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def compiled(model: Any, **options: Any) -> Any:
        def counted(**inputs: Any) -> Any:
            shapes.append(tuple(inputs["input_ids"].shape))
            return model(**inputs)

        return counted

    expected, _ = demo_text(specdec)
    monkeypatch.setattr(torch, "compile", compiled)
    found, told = demo_text(specdec, "--compile")
    assert found == expected
    assert "compiling the target" in told
    assert {(1, 1), (1, 5)} <= set(shapes)


def test_compile_is_refused_in_a_line_where_it_cannot_be(specdec: Specdec, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "mistral", tiny.model("mistral"))
    code, _, err = specdec("generate", "a", "-t", folder, "-d", "none", "--device", "cpu", "--compile")
    assert code == 2
    assert "--compile: the target cannot be compiled: not all of its layers are full attention" in err


# ---------------------------------------------------------------------------------------------------- CUDA
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sampling", [GREEDY, WARPED], ids=["greedy", "warped"])
def test_cuda_graphs_give_the_texts_of_eager_rounds(sampling: SamplingSettings) -> None:
    def on_gpu(model: TransformersModel, role: str) -> TransformersModel:
        return TransformersModel(model.model.to("cuda"), tiny.VOCAB_SIZE, role=role)

    target, draft = on_gpu(cached(), "target"), on_gpu(near(cached()), "draft")
    expected = texts(target, lambda s: DraftModel(draft, s), 4, sampling)
    recorded = [Recorded(model, CudaRecorder(model.device)) for model in (target, draft)]
    assert same(texts(target, lambda s: DraftModel(draft, s), 4, sampling), expected)
    for one in recorded:
        assert one.told == []
        assert len(one.graphs)
