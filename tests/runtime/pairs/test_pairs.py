"""The law on real checkpoints: greedy token for token, sampled by chi-square, through the whole runtime."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from laws import SIGNIFICANCE, chi_square_p
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec_cli.decoding import loop
from specdec_cli.decoding.acceptance import Verdict, verify
from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.model import CachedModel, Tap
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Context, Draft, Drafter
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.pairs.pair import Pair
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
    target: CachedModel, drafter: Drafter, prompt: list[int], k: int, tokens: int, end_ids: frozenset[int]
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


# A bfloat16 number has 8 significant bits, so logits near 10 are whole multiples of 1/16: one unit. A pass over K + 1
# tokens adds up in another order than a pass over one, and what that does to a logit through all layers was measured
# on this pair at 1 unit (median over positions of the largest in the vocabulary), 4 at most. Two logits may each be off
# by so much.
NEAR_TIE = 8


class Recorder:
    """A model that keeps its logits, and may be given the wrong tokens to read."""

    def __init__(self, model: TransformersModel, misread: Callable[[Tensor], Tensor] = lambda ids: ids) -> None:
        self.device, self.vocab_size, self.max_length = model.device, model.vocab_size, model.max_length
        self.block_limit = model.block_limit
        self.rows: list[Tensor] = []
        self._model, self._misread = model, misread

    @property
    def length(self) -> int:
        return self._model.length

    def tap(self, taps: Sequence[Tap]) -> None:
        self._model.tap(taps)

    def reset(self) -> None:
        self._model.reset()

    def roll_back(self, num_tokens: int) -> None:
        self._model.roll_back(num_tokens)

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        logits = self._model.forward(self._misread(token_ids), num_logits)
        self.rows += logits
        return logits


def first_gaps(
    pair: Pair, texts: Sequence[str], misread: Callable[[Tensor], Tensor] = lambda ids: ids
) -> Iterator[float]:
    """Where speculative greedy text first leaves the plain one: how far behind the plain token the other one was.

    By the plain pass's logits, in bfloat16 units of the larger one. Top-2 is what this is at an honest tie; it is
    more where a token was taken that the target never considered.
    """
    assert pair.draft is not None
    for text in texts:
        prompt = pair.encode([{"role": "user", "content": text}], raw=True)
        recorder = Recorder(pair.target)
        plain, _ = generate(recorder, NoDrafter(pair.target.device), prompt, 4, 24, frozenset())
        target = Recorder(pair.target, misread)
        ids, _ = generate(target, DraftModel(pair.draft, GREEDY), prompt, 4, 24, frozenset())
        place = next((i for i, (a, b) in enumerate(zip(plain, ids, strict=True)) if a != b), None)
        if place is None:
            continue
        row = recorder.rows[-len(plain) :][place]
        assert row.argmax() == plain[place]
        unit = torch.finfo(torch.bfloat16).eps * 2.0 ** math.floor(math.log2(row.max().abs().item()))
        yield (row[plain[place]] - row[ids[place]]).item() / unit


@pytest.fixture(scope="module")
def demo_bfloat16() -> Pair:
    """The embedded pair in 16 bit."""
    return tiny.pair("demo:target", "demo:draft", dtype="bfloat16")


def test_in_float32_speculative_text_is_the_plain_text(demo: Pair) -> None:
    assert list(first_gaps(demo, BEGINNINGS[:3])) == []


def test_in_bfloat16_speculative_text_leaves_the_plain_one_only_at_near_ties(demo_bfloat16: Pair) -> None:
    """Symptom 4: kernels for 1 and for K + 1 rows round differently, which may decide a tie and nothing else."""
    assert all(gap <= NEAR_TIE for gap in first_gaps(demo_bfloat16, BEGINNINGS[:5]))


def test_in_bfloat16_every_logit_of_a_block_is_that_of_single_steps(demo_bfloat16: Pair) -> None:
    """The same bound where texts happen to agree: on every logit that could win a tie."""
    target = demo_bfloat16.target
    prompt = demo_bfloat16.encode([{"role": "user", "content": TEXTS[1]}], raw=True)
    ids = torch.tensor(prompt + generate(target, NoDrafter(target.device), prompt, 4, 40, frozenset())[0])
    with torch.inference_mode():
        target.reset()
        steps = torch.cat([target.forward(one, 1) for one in ids.split(1)])
        target.reset()
        blocks = torch.cat([target.forward(block, len(block)) for block in ids.split(5)])
    units = torch.finfo(torch.bfloat16).eps * 2.0 ** steps.amax(-1).abs().log2().floor()
    likely = steps.topk(20).indices
    assert ((steps - blocks).abs().gather(-1, likely).amax(-1) / units).max() <= NEAR_TIE / 2
    assert not torch.equal(steps, blocks), "nothing was rounded otherwise: this proves nothing"


def swap_two(token_ids: Tensor) -> Tensor:
    """The first two drafted tokens exchanged."""
    return token_ids if len(token_ids) != 5 else token_ids[[0, 2, 1, 3, 4]]


@pytest.mark.parametrize("mistake", ["the target reads two drafted tokens swapped", "what is drafted is believed"])
def test_in_bfloat16_a_mistake_is_no_near_tie(
    mistake: str, demo_bfloat16: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the bound is one: text that goes wrong otherwise leaves the plain one by far more."""
    if mistake == "what is drafted is believed":
        monkeypatch.setattr(loop, "verify", believe)
    gaps = first_gaps(demo_bfloat16, BEGINNINGS, swap_two if "swapped" in mistake else lambda ids: ids)
    assert any(gap > 2 * NEAR_TIE for gap in gaps)


def believe(target_probs: Tensor, draft_probs: Tensor | None, draft_ids: Tensor, *more: Any) -> Verdict:
    """A rule that accepts everything."""
    honest = verify(target_probs, draft_probs, draft_ids, *more)
    return honest._replace(num_accepted=torch.tensor(len(draft_ids)), next_token_id=target_probs[-1].argmax())


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


# Where a warper leaves many tokens, top-k leaves few: more of a sample falls into each cell, and more contexts repeat.
SAMPLED = [
    pytest.param("draft", SamplingSettings(temperature=0.7), 1, id="temperature .7"),
    pytest.param("draft", SamplingSettings(temperature=1.3, top_k=6), 3, id="temperature 1.3"),
    pytest.param("draft", SamplingSettings(temperature=1.0, top_k=4), 4, id="top-k"),
    pytest.param("draft", SamplingSettings(temperature=1.0, top_p=0.6), 2, id="top-p"),
    pytest.param("draft", SamplingSettings(temperature=1.0, min_p=0.15), 6, id="min-p"),
    pytest.param("draft", SamplingSettings(temperature=0.9, top_k=4, repetition_penalty=1.5), 5, id="penalty"),
    pytest.param("random", SamplingSettings(temperature=0.8, top_k=4), 2, id="random draft"),
    pytest.param("padded", SamplingSettings(temperature=0.7), 2, id="padded twin"),
]
SAMPLES = 400


class Remembered:
    """A model that computes no context twice: of 400 samples, most share theirs with another.

    What is new goes through the model's own cache, cut back to where it still agrees.
    """

    def __init__(self, model: CachedModel) -> None:
        self.device, self.vocab_size, self.max_length = model.device, model.vocab_size, model.max_length
        self.block_limit = model.block_limit
        self._model = model
        self._rows: dict[tuple[int, ...], Tensor] = {}
        self._ids: list[int] = []
        self._cached: list[int] = []
        model.reset()

    @property
    def length(self) -> int:
        return len(self._ids)

    def tap(self, taps: Sequence[Tap]) -> None:
        assert not taps

    def reset(self) -> None:
        self._ids = []

    def roll_back(self, num_tokens: int) -> None:
        del self._ids[len(self._ids) - num_tokens :]

    def after(self, ids: Sequence[int]) -> Tensor:
        """The logits after a context that was computed before."""
        return self._rows[tuple(ids)]

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        before = len(self._ids)
        self._ids += token_ids.tolist()
        ends = range(len(self._ids) - num_logits + 1, len(self._ids) + 1)
        contexts = [tuple(self._ids[:end]) for end in ends]
        if not all(context in self._rows for context in contexts):
            same = (a == b for a, b in zip(self._cached, self._ids[:before], strict=False))
            agree = sum(itertools.takewhile(bool, same))
            self._model.roll_back(len(self._cached) - agree)
            logits = self._model.forward(torch.tensor(self._ids[agree:]), num_logits=num_logits)
            self._cached = list(self._ids)
            self._rows |= zip(contexts, logits, strict=True)
        return torch.stack([self.after(context) for context in contexts])


@pytest.fixture(scope="module")
def remembered(demo: Pair) -> tuple[Remembered, Remembered]:
    """The demo pair's models."""
    assert demo.draft is not None
    return Remembered(demo.target), Remembered(demo.draft)


@pytest.mark.parametrize(("source", "sampling", "k"), SAMPLED)
def test_sampled_pairs_of_tokens_are_distributed_as_the_targets(
    source: str, sampling: SamplingSettings, k: int, demo: Pair, padded_demo: Pair,
    remembered: tuple[Remembered, Remembered],
) -> None:  # fmt: skip
    """Joint distribution of the first two tokens after one, against its enumeration by the target alone."""
    target, draft = remembered
    pair = demo
    if source == "random":
        draft = Remembered(TransformersModel(tiny.model(vocab_size=target.vocab_size), target.vocab_size))
    if source == "padded":
        pair = padded_demo
        assert pair.draft is not None
        target, draft = Remembered(pair.target), Remembered(pair.draft)
    assert p_of_sampled_pairs(pair, target, DraftModel(draft, sampling), sampling, k) > SIGNIFICANCE


class Misreporting:
    """A drafter that draws its tokens from one distribution and reports another."""

    def __init__(self, model: Remembered, drawn: SamplingSettings, reported: SamplingSettings) -> None:
        self._model, self._reported = model, reported
        self._drafter = DraftModel(model, drawn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        token_ids = self._drafter.propose(context, num_draft_tokens, generator).token_ids
        text = [*context.token_ids, *token_ids.tolist()]
        places = range(len(context.token_ids), len(text))
        logits = torch.stack([self._model.after(text[:place]) for place in places])
        return Draft(token_ids, logits_to_probs(logits, self._reported))


@pytest.mark.parametrize(
    ("source", "sampling", "k", "mistake"),
    [
        pytest.param(*case.values, mistake, id=f"{case.id}-{mistake}")
        for case in SAMPLED
        for mistake in ("drawn greedily", "reported unwarped")
        # What a nucleus leaves out after this prompt is too rare for 400 samples to tell.
        if case.id in ("temperature 1.3", "top-k") or (case.id == "top-p" and mistake == "drawn greedily")
    ],
)
def test_a_draft_that_misreports_its_distribution_is_noticed(
    source: str, sampling: SamplingSettings, k: int, mistake: str, demo: Pair,
    remembered: tuple[Remembered, Remembered],
) -> None:  # fmt: skip
    """Symptom 6's two causes, by the same statistic from as many samples: what the test above is able to see."""
    target, draft = remembered
    drawn, reported = (GREEDY, sampling) if mistake == "drawn greedily" else (sampling, SamplingSettings())
    drafter = Misreporting(draft, drawn, reported)
    assert p_of_sampled_pairs(demo, target, drafter, sampling, k) < SIGNIFICANCE


def p_of_sampled_pairs(pair: Pair, target: CachedModel, drafter: Drafter, sampling: SamplingSettings, k: int) -> float:
    """p-value of the first two tokens of many samples, under the target's own distribution of them."""
    prompt = pair.encode([{"role": "user", "content": "def"}], raw=True)
    assert len(prompt) == 1  # so that a sample costs no prefill
    pairs = []
    for seed in range(SAMPLES):
        generation = Generation(
            target, drafter, prompt, num_draft_tokens=k, sampling=sampling, stopping=Stopping(16), seed=seed
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
    return chi_square_p(seen, cells)


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
            Path(__file__).parents[3] / "specdec_cli" / "demo" / role, dtype=torch.float32
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
        "Describe a sunset over the sea as a pirate would.",
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
