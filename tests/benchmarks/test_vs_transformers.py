"""The comparison with transformers is between equals: same tokens, same number of them, K drafted tokens a round."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tiny
from running import benchmark_script
from transformers import GenerationConfig, PreTrainedModel

from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.pairs.pair import Pair
from specdec_cli.settings import SamplingSettings

TOKENS = 20
PROMPT = [10, 20, 30]


@pytest.fixture(scope="module")
def comparison() -> Iterator[ModuleType]:
    """benchmarks/vs_transformers.py, which is no part of the package."""
    with benchmark_script("vs_transformers") as module:
        yield module


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Checkpoints whose own generation configs would spoil every comparison: end tokens, a penalty, narrow sampling."""
    folders = []
    for role, seed in (("target", 0), ("draft", 1)):
        folder = tiny.save(tmp_path / role, tiny.model(seed=seed))
        opinionated = GenerationConfig(
            eos_token_id=list(range(0, tiny.VOCAB_SIZE, 2)), repetition_penalty=1.9, do_sample=True, top_k=2
        )
        opinionated.save_pretrained(folder)
        folders.append(folder)
    return tiny.pair(*folders)


class Passes:
    """How many tokens a model read in each pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.sizes: list[int] = []
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: object, args: object, kwargs: dict[str, Any]) -> None:
        self.sizes.append(kwargs["input_ids"].shape[1])


@pytest.mark.parametrize("k", [1, 4])
def test_every_arm_writes_the_same_greedy_text(comparison: ModuleType, pair: Pair, k: int) -> None:
    assert pair.draft is not None
    assert pair.draft_checkpoint is not None
    sampling = SamplingSettings(temperature=0.0)
    big, small = pair.checkpoint.model, pair.draft_checkpoint.model
    arms = {
        "generate": comparison.transformers_arm(big, None, 0, TOKENS, 0.0),
        "assisted": comparison.transformers_arm(big, small, k, TOKENS, 0.0),
        "plain": comparison.specdec_arm(pair, NoDrafter(pair.target.device), 0, TOKENS, sampling),
        "speculative": comparison.specdec_arm(pair, DraftModel(pair.draft, sampling), k, TOKENS, sampling),
    }
    seconds = itertools.count()
    speeds, made = comparison.measure(arms, [PROMPT, [7]], TOKENS, 2, lambda: float(next(seconds)))
    assert speeds == dict.fromkeys(arms, [TOKENS / 1.0] * 4)
    assert len({str(ids) for ids in made.values()}) == 1
    assert any(token_id % 2 == 0 for token_id in made["generate"][0]), "no end token was passed: this proves little"


@pytest.mark.parametrize("k", [1, 3, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_assistant_always_drafts_k_tokens(comparison: ModuleType, pair: Pair, k: int, temperature: float) -> None:
    """Drafting for itself it is always accepted, so the passes tell K: no end token, no doubt, no schedule cuts it."""
    target, twin = pair.checkpoint.model, tiny.model(seed=0)
    passes = Passes(target)
    made = comparison.transformers_arm(target, twin, k, TOKENS, temperature)(PROMPT, seed=1)
    assert len(made) == TOKENS
    assert passes.sizes == expected_passes(k, prompt=len(PROMPT))


def test_specdec_makes_the_same_passes(comparison: ModuleType, pair: Pair) -> None:
    """The same block sizes from the loop, whose prompt is a pass of its own."""
    sampling, target = SamplingSettings(temperature=0.0), pair.checkpoint.model
    twin = TransformersModel(tiny.model(seed=0), pair.target.vocab_size)
    passes = Passes(target)
    comparison.specdec_arm(pair, DraftModel(twin, sampling), 4, TOKENS, sampling)(PROMPT, 1)
    assert passes.sizes == [len(PROMPT) - 1, *expected_passes(4, prompt=1)]


def expected_passes(k: int, prompt: int) -> list[int]:
    """Tokens read in each pass of the target where everything drafted is accepted."""
    sizes, made = [], 0
    while made < TOKENS:
        drafted = min(k, TOKENS - made - 1)
        sizes.append(drafted + (1 if made else prompt))
        made += drafted + 1
    return sizes


def test_too_few_tokens_are_an_error_and_no_figure(comparison: ModuleType) -> None:
    with pytest.raises(SystemExit, match="short made 2 tokens, not 3"):
        comparison.measure({"short": lambda prompt, seed: [1, 2]}, [PROMPT], 3, 1, iter(range(99)).__next__)
