"""Warping agrees with transformers' own processors, and sampling with the probabilities it is given."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import SIGNIFICANCE, chi_square_p
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdec_cli.decoding.sampling import (
    _least_by_digits,
    _least_by_sort,
    logits_to_probs,
    prefix_matrix,
    sample,
)
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness

SETTINGS = [
    SamplingSettings(temperature=1.0),
    SamplingSettings(temperature=0.7),
    SamplingSettings(temperature=1.3),
    SamplingSettings(temperature=2.0, top_k=7),
    SamplingSettings(temperature=0.8, top_k=1),
    SamplingSettings(temperature=1.0, top_p=0.9),
    SamplingSettings(temperature=1.0, top_p=0.05),
    SamplingSettings(temperature=1.0, min_p=0.1),
    SamplingSettings(temperature=1.0, min_p=1.0),
    SamplingSettings(temperature=1.0, repetition_penalty=1.3),
    SamplingSettings(temperature=1.0, repetition_penalty=0.7),
    SamplingSettings(temperature=0.6, top_k=20, top_p=0.8, min_p=0.02, repetition_penalty=1.2),
    SamplingSettings(temperature=1.0, top_k=10_000),
]


def transformers_probs(logits: torch.Tensor, prefix: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """The same by transformers, in the order of its `generate`."""
    processors = LogitsProcessorList()
    if settings.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(settings.temperature))
    if settings.top_k:
        processors.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        processors.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0.0:
        processors.append(MinPLogitsWarper(settings.min_p))
    return processors(prefix, logits).softmax(-1)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["spread", "flat", "ties", "masked"])
def test_warping_equals_transformers(settings: SamplingSettings, kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 50, generator=generator) * (0.01 if kind == "flat" else 4.0)
    if kind == "ties":
        logits = logits.round()
    if kind == "masked":
        logits[:, 30:] = -torch.inf
    prefix = torch.randint(0, 30, (5, 9), generator=generator)
    ours, theirs = logits_to_probs(logits, settings, prefix), transformers_probs(logits, prefix, settings)
    if kind == "ties":  # which of several equals stay in a nucleus is for transformers' sort to say
        assert torch.allclose(ours.sort(-1).values, theirs.sort(-1).values, atol=1e-6)
    else:
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert torch.allclose(ours.sum(-1), torch.ones(5))


@given(st.integers(0, 2**31), st.floats(0.001, 0.999), st.sampled_from([0.1, 1.0, 5.0]), st.sampled_from([2, 70, 5000]))
def test_the_nucleus_is_the_smallest_set_of_that_mass(seed: int, top_p: float, scale: float, size: int) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(seed)) * scale
    probs = logits.softmax(-1).double()  # with the equals that float32 makes
    kept = logits_to_probs(logits, SamplingSettings(top_p=top_p)) > 0
    mass = (probs * kept).sum(-1)
    least = probs.masked_fill(~kept, 2.0).amin(-1)
    assert kept[probs > least[:, None]].all()  # the most likely ones
    assert (mass > top_p - 1e-5).all()
    assert (mass - least < top_p + 1e-5).all()  # none of them can be spared


@given(st.integers(0, 2**31), st.floats(0.001, 0.999), st.sampled_from([2, 70, 5000]))
def test_a_sort_finds_the_same_nucleus(seed: int, top_p: float, size: int) -> None:
    """It is the way on a GPU."""
    probs = (3 * torch.randn(3, size, generator=torch.Generator().manual_seed(seed))).softmax(-1)
    (least, above), (least_too, above_too) = _least_by_digits(probs, top_p), _least_by_sort(probs, top_p)
    near = ((above + least - top_p).abs() < 1e-5) | ((above - top_p).abs() < 1e-5)  # either side of rounding
    assert (near | (least == least_too)).all()
    assert (near | torch.isclose(above, above_too, atol=1e-5)).all()


@pytest.mark.parametrize("top_p", [0.3, 0.999])
def test_a_nucleus_of_a_large_vocabulary_is_not_off_by_rounding(top_p: float) -> None:
    size = 151_936
    kept = (logits_to_probs(torch.zeros(2, size), SamplingSettings(top_p=top_p)) > 0).sum(-1)
    assert (kept - size * top_p).abs().max() <= 2


def test_of_equals_the_first_stay_in_a_nucleus() -> None:
    probs = logits_to_probs(torch.tensor([[0.0, 2.0, 2.0, 2.0, 2.0]]), SamplingSettings(top_p=0.4))
    assert probs.tolist() == [[0.0, 0.5, 0.5, 0.0, 0.0]]


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-3, 2.0])
def test_no_temperature_overflows(temperature: float, scale: float) -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)) * scale
    logits[:, 7] = -torch.inf
    probs = logits_to_probs(logits, SamplingSettings(temperature=temperature))
    assert torch.isfinite(probs).all()
    assert torch.allclose(probs.sum(-1), torch.ones(4))
    assert (probs[:, 7] == 0).all()
    if temperature <= 1e-6:
        assert torch.equal(probs.argmax(-1), logits.argmax(-1))
        assert (probs.amax(-1) > 0.999).all()


def test_greedy_takes_one_of_two_equal_logits() -> None:
    probs = logits_to_probs(torch.tensor([[1.0, 3.0, 3.0]]), SamplingSettings(temperature=0.0))
    assert probs.tolist() == [[0.0, 1.0, 0.0]]


def test_each_position_is_penalised_for_the_prefix_that_it_has() -> None:
    committed, drafted = torch.tensor([4, 9]), torch.tensor([7, 4, 2])
    logits = torch.full((4, 12), 2.0)
    settings = SamplingSettings(repetition_penalty=2.0)
    block = logits_to_probs(logits, settings, prefix_matrix(committed, drafted))
    for i in range(4):
        alone = torch.cat([committed, drafted[:i]])[None]
        assert torch.equal(block[i : i + 1], logits_to_probs(logits[i : i + 1], settings, alone))


def test_the_penalty_needs_a_prefix() -> None:
    with pytest.raises(ValueError, match="repetition penalty"):
        logits_to_probs(torch.zeros(1, 4), SamplingSettings(repetition_penalty=1.5))


def test_sampling_follows_the_probabilities() -> None:
    probs = torch.tensor([0.5, 0.25, 0.125, 0.0, 0.0625, 0.0625, 0.0])
    ids = sample(probs.expand(200_000, -1), torch.Generator().manual_seed(0)).tolist()
    assert set(ids) <= {0, 1, 2, 4, 5}
    assert chi_square_p(ids, dict(enumerate(probs.tolist()))) > SIGNIFICANCE


def test_sampling_needs_no_normalised_rows_and_keeps_leading_dimensions() -> None:
    weights = torch.tensor([[0.0, 3.0, 0.0], [2e-9, 0.0, 0.0]]).expand(4, 2, 3)
    assert sample(weights, torch.Generator().manual_seed(0)).tolist() == [[1, 0]] * 4


def test_a_vocabulary_of_tiny_probabilities_is_sampled_without_bias() -> None:
    # Half of the mass in one id, the other half spread over 200,000: an exponential race in float32 gets this wrong.
    tail = 200_000
    probs = torch.cat([torch.tensor([0.5]), torch.full((tail,), 0.5 / tail)])
    generator = torch.Generator().manual_seed(1)
    ids = torch.cat([sample(probs.expand(20, -1), generator) for _ in range(100)])
    cells = ids.clamp(max=1).add((ids > tail // 2).long()).tolist()
    assert chi_square_p(cells, {0: 0.5, 1: 0.25, 2: 0.25}) > SIGNIFICANCE


def test_the_largest_uniform_draws_the_last_id_that_has_mass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape[0], 1.0, dtype=torch.float64))
    probs = torch.tensor([[0.3, 0.7, 0.0, 0.0]])
    assert sample(probs, torch.Generator()).tolist() == [1]
