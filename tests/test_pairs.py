"""The law on real checkpoints: greedy token for token, sampled by chi-square, through the whole runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from laws import SIGNIFICANCE, chi_square_p
from transformers import AutoModelForCausalLM

from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.runtime.kv_cache import TransformersModel
from specdec_cli.runtime.pair import Pair
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness

GREEDY = SamplingSettings(temperature=0.0)
BEGINNINGS = (
    "def fibonacci(n):", "class Stack:\n    def __init__(self", "import os\nimport ", "for i in range(",
    "if __name__ == ", "    return self.", "try:\n    ", "def test_", "raise ValueError(", "with open(path) as f:\n",
)  # fmt: skip
TEXTS = [f"{head}{tail}" for tail in ("", "\n", "x", " # ", "(a, b") for head in BEGINNINGS]  # 50 prompts
QUESTIONS = (
    "What is a hash table?", "Write a haiku about rain.", "Translate 'good morning' into French.",
    "List three prime numbers.", "Explain recursion to a child.", "Who wrote Hamlet?",
)  # fmt: skip


def generate(
    target: TransformersModel, drafter: Drafter, prompt: list[int], k: int, tokens: int, end_ids: frozenset[int]
) -> tuple[list[int], list[Step]]:
    generation = Generation(
        target, drafter, prompt, num_draft_tokens=k, sampling=GREEDY, stopping=Stopping(tokens, end_ids)
    )
    steps = list(generation)
    return generation.token_ids, steps


def plain_by_transformers(pair: Pair, prompt: list[int], tokens: int) -> list[int]:
    """Greedy ids by transformers' own generate, end token included."""
    model = pair.checkpoint.model
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=sorted(pair.checkpoint.end_ids),
        pad_token_id=0,
    )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids


def rejections(steps: list[Step]) -> int:
    return sum(step.num_accepted < len(step.draft_token_ids) for step in steps)


# ------------------------------------------------------------------------------------------ demo pair
@pytest.fixture(scope="module")
def plain_texts(demo: Pair) -> list[list[int]]:
    """What transformers makes of the 50 prompts."""
    return [plain_by_transformers(demo, demo.encode([{"role": "user", "content": t}], raw=True), 12) for t in TEXTS]


@pytest.mark.parametrize("k", range(1, 9))
def test_demo_pair_is_greedy_token_for_token(k: int, demo: Pair, plain_texts: list[list[int]]) -> None:
    assert demo.draft is not None
    drafter = DraftModel(demo.draft, GREEDY)
    disagreed = 0
    for text, expected in zip(TEXTS, plain_texts, strict=True):
        prompt = demo.encode([{"role": "user", "content": text}], raw=True)
        ids, steps = generate(demo.target, drafter, prompt, k, 12, demo.checkpoint.end_ids)
        assert ids == expected, text
        disagreed += rejections(steps) > 0
    assert disagreed >= 25, "the draft must be seen to disagree, or this proves nothing"


def test_the_plain_loop_is_greedy_token_for_token(demo: Pair, plain_texts: list[list[int]]) -> None:
    drafter = NoDrafter(demo.target.device)
    for text, expected in zip(TEXTS[:10], plain_texts, strict=False):
        prompt = demo.encode([{"role": "user", "content": text}], raw=True)
        assert generate(demo.target, drafter, prompt, 4, 12, demo.checkpoint.end_ids)[0] == expected


@pytest.mark.parametrize("k", [1, 4, 7])
def test_the_demo_target_drafting_for_itself_is_always_accepted(k: int, demo: Pair) -> None:
    """Symptom 12 on a real cache: nothing is missing from the draft's after a full accept."""
    sampling = SamplingSettings(temperature=1.0)
    twin = TransformersModel(demo.checkpoint.model, demo.target.vocab_size)
    generation = Generation(
        demo.target, DraftModel(twin, sampling), [5, 9], num_draft_tokens=k, sampling=sampling, stopping=Stopping(24)
    )
    steps = list(generation)
    assert rejections(steps) == 0
    assert len(steps) == -(-24 // (k + 1))


SAMPLED = [
    pytest.param("draft", SamplingSettings(temperature=0.7), 1, id="temperature .7"),
    pytest.param("draft", SamplingSettings(temperature=1.3), 3, id="temperature 1.3"),
    pytest.param("draft", SamplingSettings(temperature=1.0, top_k=4), 4, id="top-k"),
    pytest.param("draft", SamplingSettings(temperature=1.0, top_p=0.6), 2, id="top-p"),
    pytest.param("draft", SamplingSettings(temperature=1.0, min_p=0.1), 6, id="min-p"),
    pytest.param("draft", SamplingSettings(temperature=0.9, repetition_penalty=1.5), 5, id="penalty"),
    pytest.param("random", SamplingSettings(temperature=0.8, top_k=6), 3, id="random draft"),
    pytest.param("padded", SamplingSettings(temperature=0.8), 3, id="padded twin"),
]


@pytest.mark.parametrize(("source", "sampling", "k"), SAMPLED)
def test_sampled_pairs_of_tokens_are_distributed_as_the_targets(
    source: str, sampling: SamplingSettings, k: int, demo: Pair, padded_demo: Pair
) -> None:
    """Joint distribution of the first two tokens after one, against its enumeration by the target alone."""
    pair = padded_demo if source == "padded" else demo
    draft = pair.draft
    if source == "random":
        draft = TransformersModel(tiny.model(vocab_size=pair.target.vocab_size), pair.target.vocab_size)
    assert draft is not None
    drafter = DraftModel(draft, sampling)
    prompt = pair.encode([{"role": "user", "content": "def"}], raw=True)
    assert len(prompt) == 1  # so that a sample costs no prefill
    pairs = []
    for seed in range(400):
        generation = Generation(
            pair.target, drafter, prompt, num_draft_tokens=k, sampling=sampling, stopping=Stopping(16), seed=seed
        )
        for _ in generation:
            if len(generation.token_ids) >= 2:
                break
        first, second = generation.token_ids[:2]
        pairs.append((first, second))
    exact = exact_pairs(pair, prompt, sampling)
    # Cells of one first token where pairs are too rare to count.
    likely = {cell: p for cell, p in exact.items() if p * len(pairs) >= 5}
    by_first: dict[int, float] = {}
    for (first, second), p in exact.items():
        if (first, second) not in likely:
            by_first[first] = by_first.get(first, 0.0) + p
    cells = {**likely, **{(first, -1): p for first, p in by_first.items()}}
    seen = [cell if cell in likely else (cell[0], -1) for cell in pairs]
    assert chi_square_p(seen, cells) > SIGNIFICANCE


@torch.inference_mode()
def exact_pairs(pair: Pair, prompt: list[int], sampling: SamplingSettings) -> dict[tuple[int, int], float]:
    """Probability of first and second token, without a cache; firsts below 1e-3 count as a whole (second = -1)."""
    model = pair.checkpoint.model

    def rows(ids: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=ids, use_cache=False).logits[:, -1, : pair.target.vocab_size].float()
        return logits_to_probs(logits, sampling, ids)

    first = rows(torch.tensor([prompt]))[0]
    exact = {}
    likely = (first >= 1e-3).nonzero().flatten()
    second = rows(torch.cat([torch.tensor([prompt]).expand(len(likely), -1), likely[:, None]], dim=1))
    for i, a in enumerate(likely.tolist()):
        exact |= {(a, b): first[a].item() * p for b, p in enumerate(second[i].tolist()) if p}
    for a, p in enumerate(first.tolist()):
        if 0 < p < 1e-3:
            exact[(a, -1)] = p
    return exact


@pytest.fixture(scope="module")
def padded_demo(demo: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The demo pair with its embeddings padded to two other sizes, whose new rows shout (symptom 1)."""
    folders = []
    for role, rows in (("target", 4224), ("draft", 4160)):
        folder = tmp_path_factory.mktemp(f"padded-{role}")
        checkpoint = demo.checkpoint if role == "target" else demo.draft_checkpoint
        assert checkpoint is not None
        model = AutoModelForCausalLM.from_pretrained(
            Path(__file__).parents[1] / "specdec_cli" / "demo" / role, dtype=torch.float32
        )
        model.resize_token_embeddings(rows, mean_resizing=False)
        with torch.no_grad():
            table = model.get_input_embeddings().weight
            table[4096:] = table[:4096].mean(0) + 3 * table[17]
        model.save_pretrained(folder)
        checkpoint.tokenizer.save_pretrained(folder)
        folders.append(folder)
    return tiny.pair(*folders)


def test_padding_rows_are_never_emitted(padded_demo: Pair, demo: Pair) -> None:
    assert padded_demo.target.vocab_size == demo.target.vocab_size == 4096
    assert padded_demo.checkpoint.num_rows == 4224
    assert padded_demo.draft is not None
    for sampling in (GREEDY, SamplingSettings(temperature=2.0)):
        generation = Generation(
            padded_demo.target, DraftModel(padded_demo.draft, sampling), [5, 9], num_draft_tokens=4,
            sampling=sampling, stopping=Stopping(60),
        )  # fmt: skip
        steps = list(generation)
        everything = [*generation.token_ids, *(t for step in steps for t in step.draft_token_ids)]
        assert max(everything) < 4096


# ------------------------------------------------------------------------------------------- SmolLM2
@pytest.fixture(scope="module")
def smollm2_pair(smollm2: Path, smollm2_folder: Path) -> Pair:
    """SmolLM2-135M drafted by its own first layers, in float32."""
    return tiny.pair(smollm2_folder, smollm2 / "first-4-layers")


@pytest.mark.parametrize("question", QUESTIONS)
def test_smollm2_is_greedy_token_for_token(question: str, smollm2_pair: Pair) -> None:
    assert smollm2_pair.draft is not None
    prompt = smollm2_pair.encode([{"role": "user", "content": question}], raw=False)
    expected = plain_by_transformers(smollm2_pair, prompt, 12)
    drafter = DraftModel(smollm2_pair.draft, GREEDY)
    for k in (1, 4, 8):
        ids, steps = generate(smollm2_pair.target, drafter, prompt, k, 12, smollm2_pair.checkpoint.end_ids)
        assert ids == expected
        assert rejections(steps) > 0


# -------------------------------------------------------------------------- the real pair, opt in
@pytest.mark.real_pair
@pytest.mark.parametrize(
    "question",
    [
        "Write a Python function that merges two sorted lists.",
        "Explain what a mutex is in two sentences.",
        "Write a regular expression for an ISO date.",
    ],
)
def test_the_real_pair_is_greedy_token_for_token(question: str, real_pair: tuple[str, str], loaded: Callable) -> None:
    pair = loaded(real_pair)
    prompt = pair.encode([{"role": "user", "content": question}], raw=False)
    expected = plain_by_transformers(pair, prompt, 32)
    ids, steps = generate(pair.target, DraftModel(pair.draft, GREEDY), prompt, 4, 32, pair.checkpoint.end_ids)
    assert ids == expected
    assert rejections(steps) > 0


@pytest.fixture(scope="module")
def loaded() -> Callable[[tuple[str, str]], Pair]:
    """Loads a pair once."""
    kept: dict[tuple[str, str], Pair] = {}

    def load(sources: tuple[str, str]) -> Pair:
        if sources not in kept:
            kept[sources] = tiny.pair(*sources)
        return kept[sources]

    return load
