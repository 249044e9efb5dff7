"""Lookahead: what it reads and learns is Jacobi iteration, and the text is the target's whatever it guesses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import (
    GREEDY,
    PROMPT,
    SIGNIFICANCE,
    BagModel,
    Counting,
    chi_square_p,
    exact_triples,
    generate,
    sampled_triples,
)

from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.tree import Tree
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Context, Draft, Drafter, DrafterParts
from specdec_cli.drafters.lookahead import Lookahead
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.drafters.spec import parse_draft
from specdec_cli.errors import IncompatiblePairError
from specdec_cli.measurement.metrics import add_up
from specdec_cli.runtime.models.early_exit import EarlyExitModel
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.pairs.pair import Pair
from specdec_cli.settings import SamplingSettings

CPU = torch.device("cpu")
COINS = torch.Generator().manual_seed(0)
VALUES = ("lookahead", "lookahead:window=1,ngram=2,candidates=1", "lookahead:window=3,ngram=5,candidates=2")


def made(value: str, target: CachedModel, sampling: SamplingSettings = GREEDY) -> Drafter:
    """The drafter that a command would make."""
    return make_drafter(parse_draft(value), DrafterParts(target, None, sampling, partial(EarlyExitModel, target)))


def tree_of(draft: Draft) -> Tree:
    assert draft.parents is not None
    assert draft.wants_predictions
    return Tree(tuple(draft.token_ids.tolist()), tuple(draft.parents.tolist()))


def spelled(tree: Tree, place: int) -> list[int]:
    """The tokens from the root's child to that one."""
    tokens: list[int] = []
    while place >= 0:
        tokens.insert(0, tree.token_ids[place])
        place = tree.parents[place]
    return tokens


# --------------------------------------------------------------------------------------- what it reads and learns
@settings(max_examples=100, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(2, 4), st.integers(1, 3)),
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    rounds=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)), max_size=10),
    room=st.integers(1, 40),
)
def test_whatever_happens_the_tree_is_the_window_and_the_pool(
    shape: tuple[int, int, int], prompt: list[int], rounds: list[tuple[int, int, int]], room: int
) -> None:
    """Rounds of any K, with any outcome, in between those of other sources, up to the context's end."""
    window, ngram, candidates = shape
    drafter = Lookahead(window, ngram, candidates, len(prompt) + room, CPU)
    text = list(prompt)
    drafter.reset(Context(text))
    for number, (k, accepted, elsewhere) in enumerate(rounds):
        left = drafter._max_length - len(text)
        if left < 0:
            break
        k = min(k, left)
        draft = drafter.propose(Context(text), k, COINS)
        assert k or not len(draft.token_ids)
        if len(draft.token_ids):
            tree = tree_of(draft)
            assert all(parent < place for place, parent in enumerate(tree.parents))
            assert len({*zip(tree.parents, tree.token_ids, strict=True)}) == len(tree.token_ids)
            paths = [spelled(tree, place) for place in range(len(tree.token_ids))]
            assert max(map(len, paths)) <= left
            columns = drafter._columns
            assert len({len(column) for column in columns}) <= 1
            chain = [column[0] for column in columns]
            wanted = [chain[:w] + column[: h + 1] for w, column in enumerate(columns) for h in range(len(column))]
            wanted += [list(n[: i + 1]) for n in drafter._pool.get(text[-1], []) for i in range(min(k, ngram - 1))]
            assert sorted(paths) == sorted(map(list, {tuple(path) for path in wanted}))
            assert [paths[end] for end in drafter._ends] == [chain[:w] + c for w, c in enumerate(columns)]
            predictions = [(7 * number + place) % 4 for place in range(len(tree.token_ids) + 1)]
            drafter.observe(min(accepted, k), predictions)
            for column, end in zip(columns, drafter._ends, strict=True):
                assert column[-1] == predictions[end + 1]
        assert all(len(ngrams) <= candidates for ngrams in drafter._pool.values())
        text += [number % 4] * (1 + min(accepted, k) + elsewhere)


def test_the_pool_fills_with_what_the_target_says() -> None:
    """On a text that repeats, once every number was said."""
    target = Counting(7, 0, max_length=400)
    drafter = Lookahead(4, 4, 2, 400, CPU)
    ids, steps = generate(target, drafter, max_new_tokens=200, k=3)
    assert ids == [(4 + i) % 7 for i in range(200)]
    assert {first: ngrams[0] for first, ngrams in drafter._pool.items()} == {
        n: tuple((n + i) % 7 for i in (1, 2, 3)) for n in range(7)
    }
    assert all(step.num_accepted == 3 for step in steps[20:-2])


def test_the_latest_n_gram_comes_first_and_none_is_kept_twice() -> None:
    drafter = Lookahead(1, 3, 2, 99, CPU)
    for others in ((1, 2), (1, 3), (1, 2), (4, 5)):
        drafter._remember(9, others)
    assert drafter._pool == {9: [(4, 5), (1, 2)]}
    tree = tree_of(drafter.propose(Context([8, 9]), 1, COINS))
    assert tree.token_ids[:2] == (4, 1)
    assert tree.parents[:2] == (-1, -1)


def test_without_drafting_nothing_is_read() -> None:
    draft = Lookahead(4, 3, 4, 99, CPU).propose(Context([1, 2]), 0, COINS)
    assert not len(draft.token_ids)
    assert draft.parents is None


def test_where_no_column_fits_none_is_read() -> None:
    drafter = Lookahead(4, 4, 4, 10, CPU)
    assert not len(drafter.propose(Context([1] * 8), 2, COINS).token_ids)
    assert len(drafter.propose(Context([1] * 7), 3, COINS).token_ids)


@pytest.mark.parametrize("shape", [(0, 3, 4), (4, 1, 4), (4, 3, 0)])
def test_shapes_that_cannot_be_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="n-grams of 2"):
        Lookahead(*shape, 99, CPU)


# ----------------------------------------------------------------------------------------------------- exact
@pytest.mark.exactness
@pytest.mark.parametrize("sampling", [GREEDY, SamplingSettings(0.0, repetition_penalty=1.4)], ids=["", "penalised"])
@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("value", [*VALUES, "ngram:max=2,min=2+lookahead:window=3,ngram=3"])
def test_greedy_text_is_the_targets(value: str, k: int, sampling: SamplingSettings) -> None:
    rejected = accepted = 0
    for seed in range(4):
        target = BagModel(6, seed, max_length=128, spread=0.7)
        plain, _ = generate(target, NoDrafter(CPU), sampling=sampling)
        ids, steps = generate(target, made(value, target, sampling), k=k, sampling=sampling)
        assert ids == plain
        rejected += sum(step.num_accepted < len(step.draft_token_ids) for step in steps)
        accepted += sum(step.num_accepted for step in steps)
    assert rejected > 5
    assert accepted > 5


@pytest.mark.exactness
def test_greedy_text_of_the_demo_pairs_target_is_that_of_plain_decoding(demo: Pair) -> None:
    ids = demo.encode([{"role": "user", "content": "def mean(values):"}], raw=True)
    plain, _ = generate(demo.target, NoDrafter(CPU), prompt=ids, max_new_tokens=64)
    drafter = make_drafter(parse_draft("lookahead"), demo.drafter_parts(GREEDY, 0.0))
    found, steps = generate(demo.target, drafter, prompt=ids, max_new_tokens=64)
    assert found == plain
    assert len(steps) < 50


@pytest.mark.exactness
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_greedy_text_is_that_of_generate(family: str) -> None:
    """On random weights, where most guesses are wrong; behind an early exit's sources too."""
    model = tiny.model(family, initializer_range=0.1)
    target = TransformersModel(model, tiny.VOCAB_SIZE)
    plain = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(PROMPT) :].tolist()
    for value in ("lookahead", "ngram+lookahead:window=3"):
        assert generate(target, made(value, target))[0] == plain


LAWS = [
    ("lookahead", SamplingSettings(temperature=0.7), 4),
    ("lookahead", SamplingSettings(temperature=1.0, repetition_penalty=1.8), 3),
    ("lookahead:window=3,ngram=4,candidates=6", SamplingSettings(temperature=1.3, top_k=4), 2),
    ("lookahead:window=2,ngram=2,candidates=4", SamplingSettings(temperature=1.0, top_p=0.8, min_p=0.05), 1),
]


class Practised:
    """Lookahead with a pool: what a long text would have taught it, so that the first round is no beginner's."""

    device = CPU

    def __init__(self, drafter: Drafter) -> None:
        assert isinstance(drafter, Lookahead)
        self._drafter = drafter
        self.propose, self.observe = drafter.propose, drafter.observe

    def reset(self, context: Context) -> None:
        drafter = self._drafter
        drafter.reset(context)
        for first in range(5):
            for second in range(4):
                rest = [(first + second * i) % 5 for i in range(1, drafter._ngram)]
                drafter._remember(first, tuple(rest))


@pytest.mark.exactness
@pytest.mark.parametrize(("value", "sampling", "k"), LAWS, ids=str)
def test_sampled_text_is_distributed_as_the_targets(value: str, sampling: SamplingSettings, k: int) -> None:
    target = BagModel(5, seed=1, spread=1.0)
    triples = sampled_triples(target, Practised(made(value, target, sampling)), PROMPT, sampling, k, 800)
    exact = exact_triples(target, PROMPT, sampling)
    assert set(triples) <= set(exact)
    assert chi_square_p(triples, exact) > SIGNIFICANCE


@pytest.mark.exactness
def test_the_same_samples_show_a_rule_that_prefers_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above can fail: typical acceptance's mistake, a likely guess is taken for good enough."""
    monkeypatch.setattr(Tree, "walk", lambda self, drawn, most: self.branch([], min(most, 1)))
    sampling = SamplingSettings(temperature=0.7)
    target = BagModel(5, seed=1, spread=1.0)
    triples = sampled_triples(target, Practised(made("lookahead", target, sampling)), PROMPT, sampling, 4, 800)
    assert chi_square_p(triples, exact_triples(target, PROMPT, sampling)) < 1e-9


# ------------------------------------------------------------------------------------------------- a text's ends
def test_a_second_run_is_the_first_over_again() -> None:
    """Symptom 14."""
    target = BagModel(5, 1, 128, spread=0.8)
    sampling = SamplingSettings(temperature=0.8)
    drafter = made("lookahead", target, sampling)

    def record(seed: int, prompt: Sequence[int] = PROMPT) -> list[tuple[object, ...]]:
        _, steps = generate(target, drafter, sampling=sampling, seed=seed, prompt=prompt)
        return [(s.token_ids, s.provenance, s.tree, s.num_accepted, s.overlap) for s in steps]

    first = record(3)
    assert record(4, [2, 2, 0]) != first
    assert record(3) == first


def test_end_tokens_and_limits_inside_blocks() -> None:
    """Symptom 7."""
    target = Counting(7, 0, max_length=400)  # once it has learnt, all is accepted
    plain, _ = generate(target, NoDrafter(CPU), max_new_tokens=60)
    for limit in range(1, 60, 3):
        ids, steps = generate(target, made("lookahead", target), max_new_tokens=limit)
        assert ids == plain[:limit]
        assert all(len(step.draft_token_ids) < limit for step in steps)
    model = BagModel(40, 3, 128)
    plain, _ = generate(model, NoDrafter(CPU), max_new_tokens=24)
    for end in set(plain):
        ids, steps = generate(model, made("lookahead", model), end_ids=[end], max_new_tokens=24)
        assert ids == plain[: plain.index(end) + 1]
        assert steps[-1].finish_reason == "eos"


@pytest.mark.parametrize("prompt", [[4], [4, 4], [4] * 9, [1, 2, 1, 2, 1], [0] * 19], ids=str)
def test_short_repetitive_and_long_prompts_up_to_the_contexts_end(prompt: list[int]) -> None:
    """BagModel asserts that no branch runs past its context."""
    target = BagModel(5, 4, max_length=20)
    plain, _ = generate(target, NoDrafter(CPU), prompt=prompt, max_new_tokens=99)
    for value in VALUES:
        ids, _ = generate(target, made(value, target), prompt=prompt, max_new_tokens=99)
        assert ids == plain
        assert len(prompt) + len(ids) == 21


def test_behind_another_source_the_window_follows_the_text() -> None:
    target = Counting(9, 0, max_length=400)
    ids, steps = generate(target, made("ngram:max=3,min=3+lookahead", target), prompt=[0], max_new_tokens=80)
    assert ids == [(1 + i) % 9 for i in range(80)]
    sources = add_up(steps).sources
    assert set(sources) == {"ngram:max=3,min=3", "lookahead"}
    assert sources["lookahead"].accepted > 0


def test_a_target_that_reads_no_trees_is_refused_before_anything_is_drafted() -> None:
    target = TransformersModel(tiny.model("mistral"), tiny.VOCAB_SIZE)
    for value in ("lookahead", "ngram+lookahead:window=3"):
        with pytest.raises(IncompatiblePairError) as caught:
            made(value, target)
        message = tiny.one_line(caught.value, 3)
        assert message.startswith(
            "--draft lookahead: the target cannot read drafts that branch: MistralForCausalLM has "
        )
