"""Rotary frequencies that follow the length of the text: every logit is that of a pass over the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import tiny
import torch
from laws import GREEDY, generate
from torch import Tensor
from transformers import PreTrainedModel

from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Drafter, DrafterParts
from specdec_cli.drafters.spec import parse_draft
from specdec_cli.errors import IncompatiblePairError, UsageError
from specdec_cli.runtime.layers.joined import join
from specdec_cli.runtime.models.early_exit import EarlyExitModel
from specdec_cli.runtime.models.for_loop import model_for_loop
from specdec_cli.runtime.models.rereading import RereadingModel, text_frequencies
from specdec_cli.runtime.models.static_model import NotStatic, StaticModel
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness
BORDER = tiny.BORDER
SAMPLED = SamplingSettings(temperature=1.0)
DRAFTS = ("none", "model", "ngram", "suffix", "early-exit:1", "lookahead", "ngram+lookahead", "ngram+model")
TEXT = 3 + torch.arange(2 * BORDER) % 11  # something to look up from the first round on
KINDS: dict[str, dict[str, Any]] = {
    "phi3": {
        "family": "phi3",
        "sliding_window": None,
        "rope_parameters": tiny.LONGROPE,
        "max_position_embeddings": 4 * BORDER,
        "original_max_position_embeddings": BORDER,
    },
    "llama": {"family": "llama", "rope_parameters": tiny.LONGROPE, "max_position_embeddings": 4 * BORDER},
    "dynamic": {"family": "llama", "rope_parameters": tiny.DYNAMIC, "max_position_embeddings": BORDER},
}


def tiny_model(kind: str, seed: int = 0, **more: Any) -> PreTrainedModel:
    made: Any = KINDS[kind] | more
    return tiny.model(seed=seed, **made)


class Reference:
    """A model's logits after a text, from one pass over that text and nothing else."""

    def __init__(self, kind: str, **more: Any) -> None:
        self._model: Any = tiny_model(kind, **more)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        self._model(input_ids=torch.tensor([ids[:1]]), use_cache=False)  # dynamic frequencies remember longer texts
        logits: Tensor = self._model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
        return logits

    def continued(self, ids: Sequence[int], new_tokens: int) -> list[int]:
        text = list(ids)
        for _ in range(new_tokens):
            text.append(int(self.logits(text).argmax()))
        return text[len(ids) :]


class Checked(RereadingModel):
    """Compares every row of every block with the reference."""

    def __init__(self, kind: str, reference: Reference, **more: Any) -> None:
        model = tiny_model(kind, **more)
        frequencies = text_frequencies(model, "target")
        assert frequencies is not None
        assert frequencies.border == BORDER
        self.reference, self.worst, self.passes = reference, 0.0, 0
        super().__init__(model, tiny.VOCAB_SIZE, frequencies=frequencies)

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        before = self.length
        logits = super().forward(token_ids, num_logits)
        ids = self._ids.tolist()
        assert len(ids) == self.length == before + len(token_ids)
        for row, end in zip(logits, range(len(ids) - num_logits + 1, len(ids) + 1), strict=True):
            self.worst = max(self.worst, float((self.reference.logits(ids[:end]) - row).abs().max()))
        return logits

    def logits_of(self, *args: Any, **inputs: Tensor) -> Tensor:
        self.passes += 1
        return super().logits_of(*args, **inputs)


@pytest.fixture(scope="module")
def references() -> dict[str, Reference]:
    return {kind: Reference(kind) for kind in KINDS}


def wrapped(kind: str, seed: int = 0, role: str = "target") -> TransformersModel:
    model = tiny_model(kind, seed)
    cached, notes = model_for_loop(model, tiny.VOCAB_SIZE, torch.empty(0), role, tiny.settings("x"), lambda _: None)
    assert len(notes) == 1
    return cached


def drafter_of(name: str, target: TransformersModel, draft: TransformersModel, sampling: SamplingSettings) -> Drafter:
    return make_drafter(parse_draft(name), DrafterParts(target, draft, sampling, partial(EarlyExitModel, target)))


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("kind", ["phi3", "dynamic"])
def test_greedy_text_is_that_of_passes_over_the_text_alone(
    kind: str, draft: str, references: dict[str, Reference]
) -> None:
    """K 1 to 6; prompts that end before the border, at it and behind it; several texts in a row on the same models."""
    target, small = wrapped(kind), wrapped(kind, seed=5, role="draft")
    for prompt, new_tokens in ((BORDER - 9, 20), (BORDER - 1, 6), (BORDER, 6), (BORDER + 1, 6), (BORDER + 5, 6)):
        ids = TEXT[:prompt].tolist()
        expected = references[kind].continued(ids, new_tokens)
        for k in range(1, 7):
            drafter = drafter_of(draft, target, small, GREEDY)
            found, _ = generate(target, drafter, k=k, prompt=ids, max_new_tokens=new_tokens)
            assert found == expected, (prompt, k)


@pytest.mark.parametrize("offset", range(8))
def test_the_border_is_crossed_at_every_place_of_a_round(offset: int, references: dict[str, Reference]) -> None:
    """With the target itself as the draft all is accepted, so that rounds end where K says; rejected with another."""
    ids = TEXT[: BORDER - 8 + offset].tolist()
    expected = references["phi3"].continued(ids, 16)
    target = wrapped("phi3")
    for seed in (0, 5):
        draft = wrapped("phi3", seed=seed, role="draft")
        for k in range(1, 7):
            drafter = drafter_of("model", target, draft, GREEDY)
            found, steps = generate(target, drafter, k=k, prompt=ids, max_new_tokens=16)
            assert found == expected
            rejected = sum(step.num_accepted < len(step.draft_token_ids) for step in steps)
            assert (rejected == 0) == (seed == 0)


@pytest.mark.parametrize("draft", ["model", "early-exit:1", "ngram"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_judged_row_is_the_models_own_when_sampled(
    kind: str, draft: str, references: dict[str, Reference]
) -> None:
    """So the distribution at each committed length is, whatever was drafted and rejected before."""
    target, small = Checked(kind, references[kind]), wrapped(kind, seed=5, role="draft")
    drafter = drafter_of(draft, target, small, SAMPLED)
    _, steps = generate(target, drafter, k=4, sampling=SAMPLED, prompt=TEXT[: BORDER - 9].tolist(), max_new_tokens=24)
    assert target.worst < 1e-4
    assert any(step.num_accepted < len(step.draft_token_ids) for step in steps)


def test_the_text_is_read_anew_once(references: dict[str, Reference]) -> None:
    """Rounds end at the border, so that rejections never lead back over it: a pass each, the prompt's, one more."""
    target = Checked("phi3", references["phi3"])
    small = wrapped("phi3", seed=5, role="draft")
    target.passes = 0
    _, steps = generate(
        target, drafter_of("model", target, small, GREEDY), k=6, prompt=TEXT[: BORDER - 9].tolist(), max_new_tokens=20
    )
    assert target.passes == len(steps) + 2
    lengths = [BORDER - 9]
    for step in steps:
        lengths.append(lengths[-1] + len(step.token_ids))
    drafted = [len(step.draft_token_ids) for step in steps]
    assert all(n > BORDER or n + k <= BORDER for n, k in zip(lengths[:-1], drafted, strict=True))


def test_behind_the_border_of_growing_frequencies_nothing_is_drafted(references: dict[str, Reference]) -> None:
    target, small = wrapped("dynamic"), wrapped("dynamic", seed=5, role="draft")
    _, steps = generate(
        target, drafter_of("model", target, small, GREEDY), k=3, prompt=TEXT[: BORDER - 3].tolist(), max_new_tokens=9
    )
    assert [len(step.draft_token_ids) for step in steps[-6:]] == [0] * 6
    assert len(steps[0].draft_token_ids) == 3
    assert target.max_length == 4 * BORDER
    assert small.max_length == BORDER


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_over_the_border_is_right_too(kind: str, references: dict[str, Reference]) -> None:
    """As measurements ask for them; and so is what follows a roll-back over it, in both directions."""
    target = Checked(kind, references[kind])
    with torch.inference_mode():
        for start in (1, BORDER - 4, BORDER):
            target.reset()
            target.forward(TEXT[:start], num_logits=1)
            for _ in range(2):
                target.forward(TEXT[start : BORDER + 5], num_logits=BORDER + 5 - start)
                target.roll_back(BORDER + 5 - start)
                target.forward(TEXT[start : start + 2], num_logits=2)
                target.roll_back(2)
    assert target.worst < 1e-4


@pytest.mark.parametrize("kind", ["phi3", "llama"])
def test_a_path_of_a_tree_is_kept_across_the_border(kind: str, references: dict[str, Reference]) -> None:
    """The branch that is kept is no beginning of the block, and is read anew afterwards."""
    target = Checked(kind, references[kind])
    with torch.inference_mode():
        target.reset()
        target.forward(TEXT[: BORDER - 3], num_logits=1)
        target.forward_tree(torch.tensor([1, 7, 8, 9]), torch.tensor([-1, -1, 1]))
        target.keep_path(4, [0, 2, 3])
        assert target.length == BORDER
        target.forward(torch.tensor([4, 5]), num_logits=2)
    assert target._ids[-5:].tolist() == [1, 8, 9, 4, 5]
    assert target.worst < 1e-4


def test_joined_layers_hold_their_frequencies_too(references: dict[str, Reference]) -> None:
    model = tiny_model("llama")
    assert join(model) == 4
    target, _ = model_for_loop(model, tiny.VOCAB_SIZE, torch.empty(0), "target", tiny.settings("x"), lambda _: None)
    ids = TEXT[: BORDER - 5].tolist()
    found, _ = generate(target, drafter_of("ngram", target, target, GREEDY), k=3, prompt=ids, max_new_tokens=12)
    assert found == references["llama"].continued(ids, 12)


def test_afterwards_the_model_is_as_transformers_made_it() -> None:
    """Its own `generate` runs on the same modules in comparisons."""
    model: Any = tiny_model("phi3")
    rotary = model.model.rotary_emb
    before = rotary.inv_freq.clone()
    target, _ = model_for_loop(model, tiny.VOCAB_SIZE, torch.empty(0), "target", tiny.settings("x"), lambda _: None)
    generate(target, drafter_of("none", target, target, GREEDY), prompt=TEXT[:BORDER].tolist(), max_new_tokens=4)
    assert rotary.rope_type == "longrope"
    assert torch.equal(rotary.inv_freq, before)


def test_frequencies_of_some_layers_only() -> None:
    """Gemma 3 names them by the type of layer."""
    rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": tiny.LONGROPE}
    model = tiny.model("gemma3", rope_parameters=rope, max_position_embeddings=4 * BORDER)
    alone = tiny.model("gemma3", rope_parameters=rope, max_position_embeddings=4 * BORDER)
    target, notes = model_for_loop(model, tiny.VOCAB_SIZE, torch.empty(0), "target", tiny.settings("x"), lambda _: None)
    assert notes == ("target's rotary frequencies change beyond 32 tokens: there it reads the text anew, once",)
    with torch.inference_mode():
        target.reset()
        target.forward(TEXT[: BORDER - 2], num_logits=1)
        target.roll_back(0)
        for end in range(BORDER - 1, BORDER + 6):
            logits = target.forward(TEXT[end - 1 : end], num_logits=1)
            target.roll_back(0)
            expected = alone(input_ids=TEXT[None, :end], use_cache=False).logits[0, -1]
            assert (logits[0] - expected).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["phi3", "dynamic"])
def test_no_pass_of_theirs_is_recorded_or_compiled(kind: str) -> None:
    model = tiny_model(kind)
    with pytest.raises(NotStatic, match="follow the length of the text"):
        StaticModel(model, tiny.VOCAB_SIZE)
    settings = tiny.settings("x", compile=True)
    with pytest.raises(UsageError) as caught:
        model_for_loop(model, tiny.VOCAB_SIZE, torch.empty(0), "draft", settings, lambda _: None)
    assert "the draft cannot be compiled: its rotary frequencies" in tiny.one_line(caught.value, 2)


def test_code_of_a_checkpoints_own_is_refused() -> None:
    model: Any = tiny_model("phi3")
    del model.model.rotary_emb.rope_type
    with pytest.raises(IncompatiblePairError) as caught:
        text_frequencies(model, "draft")
    message = tiny.one_line(caught.value, 3)
    assert message.startswith("the draft (Phi3ForCausalLM) has a rotary embedding of type longrope in code of its own")
    assert message.endswith("choose another draft")
