"""The cache after rejections: what it computes next equals a recompute without a cache, or the family is refused.

One random text is read by each model once, without a cache: the reference. The cached model reads the same text in
random blocks that end in wrong tokens, and rolls these back. A cache entry that stays, is lost or stands at a wrong
position changes the logits by whole units.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import tiny
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, BloomConfig, PreTrainedConfig, PreTrainedModel, RwkvConfig, xLSTMConfig

from specdec_cli.errors import IncompatiblePairError
from specdec_cli.runtime.caches import buffered
from specdec_cli.runtime.models.transformers_model import UNLIMITED, TransformersModel

pytestmark = pytest.mark.exactness

FAMILIES = tuple(dict.fromkeys((*tiny.ROLLABLE, "lfm2")))
SLIDING = ("mistral", "gemma2", "gemma3")
PROMPTS = (1, tiny.WINDOW - 1, tiny.WINDOW, tiny.WINDOW + 1, 3 * tiny.WINDOW)
LENGTH = 6 * tiny.WINDOW  # of the text: reads go well past the window, whatever the prompt
LARGEST_BLOCK = 6
EXACT, WRONG = 1e-4, 1e-2  # float32 rounding stays two orders below, a wrong cache is two orders above
SMALL = 8  # tokens that a buffer has room for at first, so that it fills up and grows within the text


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffered, "FIRST_CAPACITY", SMALL)


@dataclass(frozen=True)
class Subject:
    """A model with its cache, a text, and the logits after each of the text's tokens by a recompute."""

    cached: TransformersModel
    model: PreTrainedModel
    text: Tensor
    reference: Tensor


@pytest.fixture(scope="module")
def subjects() -> Callable[[str], Subject]:
    """Makes each family once."""
    made: dict[str, Subject] = {}

    def subject(family: str) -> Subject:
        if family not in made:
            model = tiny.model(family)
            text = torch.randint(0, tiny.BYTES, (LENGTH,), generator=torch.Generator().manual_seed(7))
            with torch.inference_mode():
                reference = model(input_ids=text[None], use_cache=False).logits[0].float()
            made[family] = Subject(TransformersModel(model, tiny.VOCAB_SIZE), model, text, reference)
        return made[family]

    return subject


def one_block(block: Tensor, rng: random.Random) -> list[Tensor]:
    """As the target reads."""
    return [block]


def token_by_token(block: Tensor, rng: random.Random) -> list[Tensor]:
    """As a draft model reads: several passes before one roll back."""
    return list(block.split(1))


def two_passes(block: Tensor, rng: random.Random) -> list[Tensor]:
    """As a draft model reads after a full accept: what it lacks in one pass, then more."""
    middle = rng.randint(1, len(block))
    return [part for part in (block[:middle], block[middle:]) if len(part)]


@torch.inference_mode()
def worst_difference(
    subject: Subject,
    prompt: int,
    passes: Callable[[Tensor, random.Random], list[Tensor]],
    seed: int,
    trims_after_prefill: bool = True,
    removed: Callable[[int], int] = lambda num_rejected: num_rejected,
    enough: float = float("inf"),
) -> float:
    """Read the text in random blocks; the largest error of any logit after a right token.

    Args:
        subject: whose cache.
        prompt: tokens that are read first.
        passes: how a block is cut into forwards.
        seed: of lengths, of how many tokens of a block are wrong, and of these.
        trims_after_prefill: roll back 0 after the prompt, as the loop does for the target and no draft model does.
        removed: how many tokens are rolled back, of how many wrong ones.
        enough: stop at an error this large.
    """
    rng = random.Random(seed)
    cached, text, reference = subject.cached, subject.text, subject.reference
    cached.reset()
    logits = cached.forward(text[:prompt], num_logits=1)
    worst = (logits[-1] - reference[prompt - 1]).abs().max().item()
    if trims_after_prefill:
        cached.roll_back(0)
    at, rejections = prompt, rng.sample(range(LARGEST_BLOCK + 1), LARGEST_BLOCK + 1)
    while at < LENGTH and worst < enough:
        right = min(rng.randint(1, LARGEST_BLOCK), LENGTH - at)
        rejected = rejections.pop() if rejections else rng.randint(0, LARGEST_BLOCK)  # each number at least once
        wrong = torch.tensor([rng.randrange(tiny.BYTES) for _ in range(rejected)], dtype=torch.long)
        block = torch.cat([text[at : at + right], wrong])
        logits = torch.cat([cached.forward(ids, num_logits=len(ids)) for ids in passes(block, rng)])
        worst = max(worst, (logits[:right] - reference[at : at + right]).abs().max().item())
        cached.roll_back(removed(rejected))
        at += right
    assert not rejections or worst >= enough
    return worst


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("family", [*FAMILIES, *tiny.LOCAL])
def test_logits_after_rejections_equal_a_recompute(
    family: str, prompt: int, subjects: Callable[[str], Subject]
) -> None:
    subject = subjects(family)
    for passes in (one_block, token_by_token, two_passes):
        assert worst_difference(subject, prompt, passes, seed=prompt) < EXACT, passes.__doc__
        assert subject.cached.length == LENGTH


@pytest.mark.parametrize("family", FAMILIES)
def test_a_drafter_may_roll_back_for_the_first_time_after_prompt_and_block(
    family: str, subjects: Callable[[str], Subject]
) -> None:
    for prompt in (tiny.WINDOW - 3, tiny.WINDOW + 3):
        worst = worst_difference(subjects(family), prompt, token_by_token, seed=prompt, trims_after_prefill=False)
        assert worst < EXACT


@pytest.mark.parametrize(
    "removed",
    [
        pytest.param(lambda num_rejected: 0, id="nothing"),
        pytest.param(lambda num_rejected: max(0, num_rejected - 1), id="one too few"),
        pytest.param(lambda num_rejected: num_rejected + (num_rejected == LARGEST_BLOCK), id="one too many"),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_data_show_a_wrong_roll_back(
    family: str, removed: Callable[[int], int], subjects: Callable[[str], Subject]
) -> None:
    """So that the tests above can fail."""
    for prompt in PROMPTS:
        worst = worst_difference(subjects(family), prompt, one_block, prompt, removed=removed, enough=WRONG)
        assert worst > WRONG


@pytest.mark.parametrize("family", SLIDING)
def test_the_window_is_shorter_than_the_text_and_matters(family: str, subjects: Callable[[str], Subject]) -> None:
    """The reference itself forgets: without that, crossing the window would prove nothing."""
    text = subjects(family).text
    wide = tiny.model(family, sliding_window=2 * LENGTH)
    with torch.inference_mode():
        unbounded = wide(input_ids=text[None], use_cache=False).logits[0]
    difference = (unbounded - subjects(family).reference).abs().amax(dim=-1)
    assert difference[: tiny.WINDOW].max() < EXACT
    assert difference[2 * tiny.WINDOW :].min() > WRONG


@torch.inference_mode()
@pytest.mark.parametrize("family", SLIDING)
def test_roll_back_lets_sliding_layers_drop_what_is_out_of_the_window(
    family: str, subjects: Callable[[str], Subject]
) -> None:
    subject = subjects(family)
    subject.cached.reset()
    capacities = []
    for ids in [*subject.text.split(5), *subject.text.split(5)]:
        subject.cached.forward(ids, num_logits=1)
        subject.cached.roll_back(0)
        buffers = [layer._buffer for layer in subject.cached._cache.layers if layer.is_sliding]
        assert buffers
        assert all(buffer.end - buffer.start < tiny.WINDOW for buffer in buffers)
        capacities.append({buffer.capacity for buffer in buffers})
    assert capacities[-1] == capacities[len(capacities) // 2]  # and no longer grows


def test_buffers_grow_by_doubling_and_never_by_a_token(subjects: Callable[[str], Subject]) -> None:
    """A step's cost must not depend on how much is cached: no copy of everything but when the length has doubled."""
    cached = subjects("llama").cached
    cached.reset()
    buffers = set()
    with torch.inference_mode():
        for ids in subjects("llama").text.split(1):
            cached.forward(ids, num_logits=1)
            cached.roll_back(0)
            buffers.add(cached._cache.layers[0]._buffer._tensors[0].data_ptr())
    assert len(buffers) <= 1 + (LENGTH // SMALL).bit_length()


@torch.inference_mode()
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_rolling_back_nothing_is_harmless(family: str, prompt: int, subjects: Callable[[str], Subject]) -> None:
    subject = subjects(family)
    cached = subject.cached
    cached.reset()
    cached.forward(subject.text[:prompt], num_logits=1)
    for _ in range(3):
        cached.roll_back(0)
        assert cached.length == prompt
    logits = cached.forward(subject.text[prompt : prompt + 2], num_logits=2)
    assert (logits - subject.reference[prompt : prompt + 2]).abs().max() < EXACT


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_rolling_back_nothing_is_harmless_on_an_empty_cache(family: str, subjects: Callable[[str], Subject]) -> None:
    """Symptom 15: all but the last token of a prompt of one token are none."""
    subject = subjects(family)
    subject.cached.reset()
    subject.cached.roll_back(0)
    logits = subject.cached.forward(subject.text[:1], num_logits=1)
    assert (logits - subject.reference[:1]).abs().max() < EXACT


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_can_be_rolled_back(family: str, subjects: Callable[[str], Subject]) -> None:
    subject = subjects(family)
    subject.cached.reset()
    subject.cached.forward(torch.arange(5), num_logits=1)
    subject.cached.roll_back(5)
    assert subject.cached.length == 0
    logits = subject.cached.forward(subject.text[:3], num_logits=3)
    assert (logits - subject.reference[:3]).abs().max() < EXACT


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_reset_forgets_and_a_new_model_is_empty(family: str, subjects: Callable[[str], Subject]) -> None:
    """Symptom 14, and the probe for a cache that can be cut must leave nothing behind."""
    subject = subjects(family)
    fresh = TransformersModel(subject.model, tiny.VOCAB_SIZE)
    used = subject.cached
    used.forward(torch.arange(9), num_logits=1)
    used.reset()
    for cached in (fresh, used):
        assert cached.length == 0
        logits = cached.forward(subject.text[:4], num_logits=2)
        assert logits.shape == (2, tiny.VOCAB_SIZE)
        assert logits.dtype == torch.float32
        assert (logits - subject.reference[2:4]).abs().max() < EXACT
        assert cached.length == 4


@torch.inference_mode()
def test_logits_are_float32_whatever_the_model_computes_in() -> None:
    cached = TransformersModel(tiny.model("llama").to(torch.bfloat16), tiny.VOCAB_SIZE)
    assert cached.forward(torch.arange(3), num_logits=3).dtype == torch.float32


@torch.inference_mode()
def test_width_and_blocked_ids() -> None:
    """Narrower than the model's rows: cut. Wider: -inf there. Blocked: -inf there. The rest is untouched."""
    model = tiny.model("llama")
    text = torch.arange(4)
    plain = TransformersModel(model, tiny.VOCAB_SIZE).forward(text, num_logits=4)
    narrow = TransformersModel(model, 200, torch.tensor([3, 199])).forward(text, num_logits=4)
    free = torch.ones(200, dtype=torch.bool)
    free[[3, 199]] = False
    assert narrow.shape == (4, 200)
    assert torch.isneginf(narrow[:, ~free]).all()
    torch.testing.assert_close(narrow[:, free], plain[:, :200][:, free], rtol=0, atol=EXACT)
    wide = TransformersModel(model, tiny.VOCAB_SIZE + 3, torch.tensor([0])).forward(text, num_logits=4)
    assert wide.shape == (4, tiny.VOCAB_SIZE + 3)
    assert torch.isneginf(wide[:, [0, -3, -2, -1]]).all()
    torch.testing.assert_close(wide[:, 1:-3], plain[:, 1:], rtol=0, atol=EXACT)


def test_max_length_is_the_number_of_positions() -> None:
    assert TransformersModel(tiny.model("llama", max_position_embeddings=77), tiny.VOCAB_SIZE).max_length == 77
    assert TransformersModel(tiny.model("gpt2", max_position_embeddings=78), tiny.VOCAB_SIZE).max_length == 78
    boundless = BloomConfig(vocab_size=tiny.VOCAB_SIZE, hidden_size=32, n_layer=2, n_head=2)
    assert TransformersModel(AutoModelForCausalLM.from_config(boundless), tiny.VOCAB_SIZE).max_length == UNLIMITED


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("family", tiny.RECURRENT)
def test_recurrent_families_are_refused_by_the_kind_of_their_layers(family: str, role: str) -> None:
    model = tiny.model(family)
    with pytest.raises(IncompatiblePairError) as caught:
        TransformersModel(model, tiny.VOCAB_SIZE, role=role)
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert message.startswith(f"the {role} ({type(model).__name__}) has linear_attention layers (LinearAttention")
    assert f"choose another {role}" in message
    assert "\n" not in message


STATES_OF_THEIR_OWN = {
    "no cache argument": RwkvConfig(vocab_size=tiny.VOCAB_SIZE, hidden_size=32, num_hidden_layers=2),
    "a cache class of its own": xLSTMConfig(
        vocab_size=tiny.VOCAB_SIZE, hidden_size=64, num_hidden_layers=2, num_heads=4
    ),
}


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("config", STATES_OF_THEIR_OWN.values(), ids=STATES_OF_THEIR_OWN)
def test_a_state_outside_of_transformers_caches_is_refused(config: PreTrainedConfig, role: str) -> None:
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(IncompatiblePairError) as caught:
        TransformersModel(model, tiny.VOCAB_SIZE, role=role)
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert message.startswith(f"the {role} ({type(model).__name__}) ")
    assert f"choose another {role}" in message
    assert "\n" not in message


def test_rwkv_is_still_an_example_without_a_cache_argument() -> None:
    model = AutoModelForCausalLM.from_config(STATES_OF_THEIR_OWN["no cache argument"])
    assert "cache" not in inspect.signature(model.forward).parameters
