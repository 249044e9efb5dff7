"""Every source of guesses: what it proposes, that the output is the target's whatever it proposes, and what it costs.

Structures are held against naive scans; costs are counted in operations, never timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import GREEDY, PROMPT, SIGNIFICANCE, BagModel, chi_square_p, generate
from torch import Tensor, nn

from specdec_cli.decoding.loop import Generation, Step
from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Context, Draft, Drafter, DrafterParts
from specdec_cli.drafters.composition import Composition
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.drafters.spec import parse_draft
from specdec_cli.drafters.suffix import BREAK, DEPTH, SuffixDrafter
from specdec_cli.drafters.suffix_automaton import SuffixAutomaton
from specdec_cli.errors import IncompatiblePairError, UsageError
from specdec_cli.measurement.metrics import SourceCounts, add_up
from specdec_cli.runtime.models.early_exit import EarlyExitModel
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.settings import SamplingSettings

CPU = torch.device("cpu")
COINS = torch.Generator().manual_seed(0)
TEXTS = st.lists(st.integers(0, 3), max_size=40)


def made(
    value: str, target: CachedModel, draft: CachedModel | None = None, sampling: SamplingSettings = GREEDY
) -> Drafter:
    """The drafter that a command would make."""
    return make_drafter(parse_draft(value), DrafterParts(target, draft, sampling, no_layers))


def no_layers(num_layers: int) -> CachedModel:
    raise AssertionError("nobody asked for layers")


def propose(drafter: Drafter, ids: Sequence[int], k: int = 4) -> list[int]:
    draft = drafter.propose(Context(ids), k, COINS)
    assert draft.probs is None
    assert draft.token_ids.dtype == torch.int64
    found: list[int] = draft.token_ids.tolist()
    return found


# ------------------------------------------------------------------------------------------------ n-grams
def scanned(ids: Sequence[int], longest: int, shortest: int, k: int, lag: int | None) -> tuple[list[int], int | None]:
    """Prompt lookup by looking everywhere, and the copy one token at a time; where it began, from the text's end."""
    for n in range(longest, shortest - 1, -1):
        places = [place for place in range(n, len(ids)) if ids[place - n : place] == ids[len(ids) - n :]]
        if places:
            ahead = [] if lag is None else [place for place in places if place >= len(ids) - lag]
            place = ahead[0] if ahead else places[-1]
            text = list(ids)
            for i in range(k):
                text.append(text[place + i])
            return text[len(ids) :], len(ids) - place
    return [], lag


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(1, 7), max_size=12), shortest=st.integers(1, 3), more=st.integers(0, 3))
def test_the_index_finds_what_a_scan_finds(text: list[int], cuts: list[int], shortest: int, more: int) -> None:
    """At every length, whatever was committed between two looks."""
    drafter = NgramDrafter(shortest + more, shortest, CPU)
    start = cuts[0] if cuts else 0
    drafter.reset(Context(text[:start]))
    lag = None
    for length in [start, *(start + sum(cuts[1 : i + 1]) for i in range(1, len(cuts))), len(text)]:
        ids = text[:length] if length < len(text) else text
        expected, lag = scanned(ids, shortest + more, shortest, 5, lag)
        assert propose(drafter, ids, 5) == expected


def test_the_longest_match_comes_first_and_of_equals_the_most_recent() -> None:
    text = [1, 2, 3, 7, 9, 3, 8, 1, 2, 3]
    assert propose(NgramDrafter(3, 1, CPU), text, 2) == [7, 9]  # behind 1 2 3
    assert propose(NgramDrafter(1, 1, CPU), text, 2) == [8, 1]  # behind the last 3
    assert propose(NgramDrafter(4, 4, CPU), text, 2) == []
    assert propose(NgramDrafter(2, 1, CPU), [5, 1, 5, 2, 5], 1) == [2]


def test_of_several_occurrences_the_one_comes_where_the_last_copy_goes_on() -> None:
    source = [1, 2, 3, 0, 4, 3, 0, 5, 3, 0, 6]
    drafter = NgramDrafter(2, 1, CPU)
    text = [*source, 9, 1, 2]
    assert propose(drafter, text, 4) == [3, 0, 4, 3]
    text += [3, 0, 7]  # where the source has a 4, the answer has a 7, and goes on with what is behind the 4
    assert propose(drafter, text, 4) == []
    text += [3, 0]
    assert propose(drafter, text, 3) == [5, 3, 0]  # not the most recent 3 0, which the 7 follows, nor the first
    drafter.reset(Context(text))
    assert propose(drafter, text, 3) == [7, 3, 0]


def test_a_copy_goes_on_with_what_it_copied() -> None:
    assert propose(NgramDrafter(3, 1, CPU), [4, 4], 5) == [4] * 5
    assert propose(NgramDrafter(3, 1, CPU), [1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("value", ["ngram", "suffix", "suffix:memory=off", "ngram:max=5,min=2"])
def test_with_nothing_to_go_by_nothing_is_drafted(value: str) -> None:
    drafter = made(value, BagModel(6, 1))
    for ids in ([], [3], [3, 1], [1, 2, 3, 4]):
        drafter.reset(Context(ids))
        assert propose(drafter, ids) == []
        drafter.observe(0)
    drafter.reset(Context([2, 2, 2, 2]))
    assert propose(drafter, [2, 2, 2, 2], 0) == []


@pytest.mark.parametrize(("longest", "shortest"), [(0, 0), (2, 3), (3, 0)])
def test_lengths_that_cannot_be_are_refused(longest: int, shortest: int) -> None:
    with pytest.raises(ValueError, match="n-grams are 1 token or more"):
        NgramDrafter(longest, shortest, CPU)


class Counted(dict[tuple[int, ...], list[int]]):
    """Counts what is asked and stored."""

    operations = 0

    def get(self, *arguments: Any) -> Any:
        self.operations += 1
        return super().get(*arguments)

    def setdefault(self, *arguments: Any) -> Any:
        self.operations += 1
        return super().setdefault(*arguments)


class Unscanned(list[int]):
    """A long text that counts how many of its tokens are looked at."""

    looked_at = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.looked_at += len(found) if isinstance(place, slice) else 1
        return found


def test_an_n_gram_round_costs_the_same_at_any_length_of_context() -> None:
    tokens, lengths = 5, 3
    for length in (100, 32_000):
        text = Unscanned(torch.randint(0, 10, (length,), generator=torch.Generator().manual_seed(1)).tolist())
        drafter = NgramDrafter(3, 1, CPU)
        drafter.reset(Context(text))
        drafter._follows = Counted(drafter._follows)
        text.looked_at = 0
        for token in range(tokens):
            text.append(token)
            assert len(propose(drafter, text)) == 4
        assert tokens * (lengths + 1) <= drafter._follows.operations <= tokens * 2 * lengths
        assert text.looked_at <= tokens * (2 * sum(range(lengths + 1)) + 4)


# ----------------------------------------------------------------------------------------- suffix automaton
def occurrences(text: Sequence[int], piece: Sequence[int]) -> list[int]:
    """Where a piece ends in a text."""
    return [end for end in range(len(piece), len(text) + 1) if text[end - len(piece) : end] == piece]


def followers(text: Sequence[int], piece: Sequence[int]) -> list[int]:
    return [text[end] for end in occurrences(text, piece) if end < len(text)]


def scanned_continuation(text: list[int], depth: int, factor: int, most: int, least: float) -> list[int]:
    """`SuffixAutomaton.continuation` by looking everywhere."""

    def known(piece: list[int]) -> list[int]:
        piece = piece[-(depth - 1) :]
        while piece and not followers(text, piece):
            piece = piece[1:]
        return piece

    piece = known(text)
    most = min(most, factor * len(piece))
    tokens: list[int] = []
    probability = 1.0
    while len(tokens) < most and piece:
        behind = followers(text, piece)
        last = {token: i for i, token in enumerate(behind)}
        token = max(last, key=lambda t: (behind.count(t), last[t]))
        probability *= behind.count(token) / len(behind)
        if probability < least:
            break
        tokens.append(token)
        piece = known([*piece, token])
    return tokens


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, depth=st.integers(2, 6))
def test_the_automaton_counts_what_a_scan_counts(text: list[int], depth: int) -> None:
    automaton = SuffixAutomaton(depth)
    for length, token in enumerate(text, start=1):
        automaton.append(token)
        if length % 7 == 0 or length == len(text):
            pieces = {tuple(text[i:j]) for i in range(length) for j in range(i + 1, min(i + depth, length) + 1)}
            for piece in pieces:
                assert automaton.count(piece) == len(occurrences(text[:length], list(piece)))
    assert automaton.count([9]) == 0
    assert automaton.length == len(text)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, depth=st.integers(2, 6), factor=st.integers(1, 3), least=st.sampled_from([0.0, 0.2, 0.5, 0.8]))
def test_the_automaton_goes_on_as_a_scan_does(text: list[int], depth: int, factor: int, least: float) -> None:
    automaton = SuffixAutomaton(depth)
    for length, token in enumerate(text, start=1):
        automaton.append(token)
        wanted = scanned_continuation(text[:length], depth, factor, 6, least)
        assert automaton.continuation(factor, 6, least) == wanted


def test_a_drafts_length_follows_the_match_and_its_frequency() -> None:
    sure, split = [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5, 1, 2, 6, 1, 2, 7]
    assert propose(SuffixDrafter(False, CPU), [*sure, 1], 8) == [2, 3]  # one token matched: twice so many
    assert propose(SuffixDrafter(False, CPU), [*sure, 1, 2, 3], 8) == [4, 5, 6, 7, 8, 9]
    assert propose(SuffixDrafter(False, CPU), [*split, 1], 8) == [2, 7]  # then it is anyone's guess: a third each
    many = [token for i in range(11) for token in (1, 2, 20 + i)]
    assert propose(SuffixDrafter(False, CPU), [*many, 1], 8) == [2]  # one of eleven is below a tenth


def test_an_append_costs_the_same_at_any_length_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the text that is worst for counting: every suffix of "aaaa..." occurs everywhere."""
    visited = 0
    suffixes = SuffixAutomaton.suffixes

    def counted(self: SuffixAutomaton, state: int) -> list[int]:
        nonlocal visited
        found = suffixes(self, state)
        visited += len(found)
        return found

    monkeypatch.setattr(SuffixAutomaton, "suffixes", counted)
    automaton = SuffixAutomaton(DEPTH)
    costs = {}
    for length in range(1, 3_001):
        visited = 0
        automaton.append(4)
        if length % 50 == 0:
            assert automaton.continuation(2, 4, 0.1) == [4] * 4
        costs[length] = visited
    assert costs[3_000] == costs[200] <= 3 * DEPTH
    assert len(automaton._next) <= 2 * automaton.length


def test_memory_goes_from_text_to_text_and_can_be_switched_off() -> None:
    with_memory, without = SuffixDrafter(True, CPU), SuffixDrafter(False, CPU)
    for drafter in (with_memory, without):
        drafter.reset(Context([5, 6, 7, 8, 9]))
        assert propose(drafter, [5, 6, 7, 8, 9]) == []
        drafter.reset(Context([1, 6]))
    assert propose(with_memory, [1, 6]) == [7, 8]
    assert propose(without, [1, 6]) == []
    with_memory.reset(Context([3, 8]))
    assert propose(with_memory, [3, 8]) == [9]  # and not over the end of that text
    assert BREAK < 0


def test_memory_begins_anew_before_it_outgrows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_cli.drafters.suffix.MOST_REMEMBERED", 10)
    drafter = SuffixDrafter(True, CPU)
    for text in ([5, 6, 7, 8], [1, 2, 3], [5, 6]):
        drafter.reset(Context(text))
    assert propose(drafter, [5, 6]) == []
    assert drafter._automaton.length == 2


def test_a_depth_that_counts_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="the depth is 2 or above"):
        SuffixAutomaton(1)


# ------------------------------------------------------------------------------------------- exact, all of them
SOURCES = ("ngram", "ngram:max=2,min=2", "suffix", "ngram+suffix", "ngram:min=3+demo:draft", "suffix+demo:draft")


@pytest.mark.exactness
@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("value", SOURCES)
def test_greedy_text_is_the_targets_where_the_source_is_often_wrong(value: str, k: int) -> None:
    rejected = 0
    for seed in range(6):
        target = BagModel(5, seed, max_length=128, spread=0.7)
        plain, _ = generate(target, NoDrafter(CPU), max_new_tokens=60)
        ids, steps = generate(target, made(value, target, BagModel(5, seed + 50, 128)), k=k, max_new_tokens=60)
        assert ids == plain
        rejected += sum(step.num_accepted < len(step.draft_token_ids) for step in steps)
    assert rejected > 5


LAWS = [
    ("ngram", SamplingSettings(temperature=0.7), 3),
    ("ngram", SamplingSettings(temperature=1.0, top_p=0.8), 1),
    ("suffix", SamplingSettings(temperature=1.3), 4),
    ("suffix", SamplingSettings(temperature=1.0, repetition_penalty=1.8), 2),
    ("suffix:memory=off", SamplingSettings(temperature=1.0, min_p=0.1), 3),
    ("ngram+demo:draft", SamplingSettings(temperature=1.0, top_k=3), 2),
    ("ngram:max=2,min=2+demo:draft", SamplingSettings(temperature=0.8, repetition_penalty=1.4), 3),
]


def exact_pairs(
    logits_after: Callable[[Sequence[int]], Tensor], size: int, sampling: SamplingSettings
) -> dict[tuple[int, ...], float]:
    """Probability of every first two tokens, by enumeration of the plain target."""

    def row(ids: Sequence[int]) -> list[float]:
        return logits_to_probs(logits_after(ids)[None], sampling, torch.tensor([list(ids)]))[0].tolist()

    first = row(PROMPT)
    second = {a: row([*PROMPT, a]) for a in range(size) if first[a]}
    return {(a, b): first[a] * second[a][b] for a in second for b in range(size) if second[a][b]}


def sampled_pairs(
    target: CachedModel, drafter: Drafter, sampling: SamplingSettings, k: int, number: int
) -> tuple[list[tuple[int, ...]], int]:
    """First two tokens of many generations, and how many drafted tokens they saw."""
    pairs, drafted = [], 0
    for seed in range(number):
        generation = Generation(
            target, drafter, PROMPT, num_draft_tokens=k, sampling=sampling, stopping=Stopping(16), seed=seed
        )
        for step in generation:
            drafted += len(step.draft_token_ids)
            if len(generation.token_ids) >= 2:
                break
        pairs.append(tuple(generation.token_ids[:2]))
    return pairs, drafted


@pytest.mark.exactness
@pytest.mark.parametrize(("value", "sampling", "k"), LAWS, ids=str)
def test_sampled_text_is_distributed_as_the_targets(value: str, sampling: SamplingSettings, k: int) -> None:
    """Also while the memory grows from sample to sample, so that no two drafts are alike."""
    target = BagModel(6, seed=1, spread=0.8)
    drafter = made(value, target, BagModel(6, seed=2), sampling)
    pairs, drafted = sampled_pairs(target, drafter, sampling, k, 600)
    exact = exact_pairs(target.logits, 6, sampling)
    assert drafted > 400
    assert set(pairs) <= set(exact)
    assert chi_square_p(pairs, exact) > SIGNIFICANCE


def records(steps: Sequence[Step]) -> list[tuple[object, ...]]:
    """What does not depend on the clock."""
    return [(s.token_ids, s.provenance, s.draft_token_ids, s.num_accepted, s.source, s.overlap) for s in steps]


@pytest.mark.parametrize("value", [v for v in SOURCES if not parse_draft(v).learns])
def test_a_second_run_is_the_first_over_again(value: str) -> None:
    """Symptom 14."""
    target = BagModel(5, 1, 128, spread=0.8)
    sampling = SamplingSettings(temperature=0.8)
    drafter = made(value, target, BagModel(5, 2, 128), sampling)
    first = records(generate(target, drafter, sampling=sampling, seed=3)[1])
    generate(target, drafter, sampling=sampling, seed=4, prompt=[2, 2, 0])
    assert records(generate(target, drafter, sampling=sampling, seed=3)[1]) == first


def test_with_memory_a_second_run_is_drafted_better_and_comes_out_the_same() -> None:
    target = BagModel(8, 1, 128)
    drafter = made("suffix", target)
    first, steps = generate(target, drafter)
    again, better = generate(target, drafter)
    assert again == first
    assert add_up(better).accepted > add_up(steps).accepted


@pytest.mark.parametrize("value", SOURCES)
def test_end_tokens_and_limits_inside_blocks(value: str) -> None:
    """Symptom 7: whatever a drafted block holds behind the end never gets out."""
    target = BagModel(5, 3, 128)
    draft = BagModel(5, 3, 128)  # agrees, so that blocks are accepted whole
    plain, _ = generate(target, NoDrafter(CPU), max_new_tokens=24)
    for end in set(plain):
        ids, steps = generate(target, made(value, target, draft), end_ids=[end], max_new_tokens=24)
        assert ids == plain[: plain.index(end) + 1]
        assert steps[-1].finish_reason == "eos"
    for limit in range(1, 12):
        ids, steps = generate(target, made(value, target, draft), max_new_tokens=limit)
        assert ids == plain[:limit]
        assert all(len(step.draft_token_ids) < limit for step in steps)


@pytest.mark.parametrize("prompt", [[4], [4, 4], [4] * 9, [1, 2, 1, 2, 1]], ids=str)
@pytest.mark.parametrize("value", SOURCES)
def test_short_and_repetitive_prompts(value: str, prompt: list[int]) -> None:
    target = BagModel(5, 4)
    plain, _ = generate(target, NoDrafter(CPU), prompt=prompt, max_new_tokens=20)
    assert generate(target, made(value, target, BagModel(5, 5)), prompt=prompt, max_new_tokens=20)[0] == plain


def test_every_source_drafts_up_to_the_contexts_end() -> None:
    for value in SOURCES:
        target = BagModel(5, 4, max_length=20)
        ids, _ = generate(target, made(value, target, BagModel(5, 5, max_length=12)), max_new_tokens=99)
        assert len(PROMPT) + len(ids) == 21  # the last token needs no position


# ------------------------------------------------------------------------------------------------ composition
class Scripted:
    """Drafts what a script says, and keeps what it is told."""

    device = CPU

    def __init__(self, *drafts: list[int]) -> None:
        self.drafts = list(drafts)
        self.told: list[object] = []

    def reset(self, context: Context) -> None:
        self.told.append(list(context.token_ids))

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        return Draft(torch.tensor(self.drafts.pop(0), dtype=torch.long))

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        self.told.append((num_accepted, *predictions) if predictions else num_accepted)


def test_the_first_part_with_a_guess_drafts_and_only_those_asked_are_told() -> None:
    first, second, third = Scripted([1], [], []), Scripted([2, 3], []), Scripted([4])
    parts = Composition([("a", first), ("b", second), ("c", third)])
    parts.reset(Context([7, 8]))
    seen = []
    for accepted in (1, 2, 0):
        draft = parts.propose(Context([7, 8]), 4, COINS)
        seen.append((draft.source, draft.token_ids.tolist()))
        parts.observe(accepted)
    assert seen == [("a", [1]), ("b", [2, 3]), ("c", [4])]
    assert first.told == [[7, 8], 1, 0, 0]
    assert second.told == [[7, 8], 2, 0]
    assert third.told == [[7, 8], 0]


def test_where_no_part_has_a_guess_the_round_is_plain() -> None:
    target = BagModel(6, 1)
    _, steps = generate(target, Composition([("a", Scripted(*[[]] * 9)), ("b", Scripted(*[[]] * 9))]), max_new_tokens=9)
    assert [(s.provenance, s.source) for s in steps] == [(("plain",), "")] * 9


def test_parts_on_two_devices_are_refused() -> None:
    elsewhere = NoDrafter(torch.device("meta"))
    with pytest.raises(ValueError, match="draft on one device, not on 2"):
        Composition([("a", Scripted()), ("b", elsewhere)])


@pytest.mark.exactness
def test_a_model_catches_up_with_what_another_source_drafted() -> None:
    """Its cache lags by whole rounds, and still its guesses are those of the twin that it is."""
    target = BagModel(6, 1, 256, spread=1.0)
    sampling = SamplingSettings(temperature=1.0)
    drafter = made("ngram:max=2,min=2+demo:draft", target, BagModel(6, 1, 256, spread=1.0), sampling)
    _, steps = generate(target, drafter, sampling=sampling, max_new_tokens=120)
    by_source = add_up(steps).sources
    assert by_source["ngram:max=2,min=2"].rounds > 5
    assert by_source["ngram:max=2,min=2"].accepted < by_source["ngram:max=2,min=2"].drafted
    twin = by_source["demo:draft"]
    assert twin.rounds > 5
    assert twin.accepted == twin.drafted


def test_counts_by_source_add_up_to_the_rounds() -> None:
    target = BagModel(5, 1, 128)
    _, steps = generate(target, made("ngram:min=3+demo:draft", target, BagModel(5, 2, 128)), max_new_tokens=60)
    totals = add_up(steps)
    assert set(totals.sources) == {"ngram:min=3", "demo:draft"}
    for part in ("drafted", "accepted"):
        assert sum(getattr(counts, part) for counts in totals.sources.values()) == getattr(totals, part)
    assert add_up(generate(target, made("ngram", target))[1]).sources == {}
    assert isinstance(totals.sources["demo:draft"], SourceCounts)


# ------------------------------------------------------------------------------------------------- early exit
class CheckedExit(EarlyExitModel):
    """The same for the early layers, whose cache is the target's."""

    passes = 0
    worst = 0.0

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        target: Any = self._target
        self.drafted: list[int] = [*(self.drafted if self._ahead else []), *token_ids.tolist()]
        logits = super().forward(token_ids, num_logits)
        ids = torch.tensor([target.history + self.drafted])
        full = self._model(input_ids=ids, use_cache=False).logits[0, -num_logits:]
        self.worst = max(self.worst, (full.float() - logits).abs().max().item())
        self.passes += 1
        return logits


def exits(target: TransformersModel, layers: int, sampling: SamplingSettings = GREEDY) -> Drafter:
    parts = DrafterParts(target, None, sampling, partial(EarlyExitModel, target))
    return make_drafter(parse_draft(f"early-exit:{layers}"), parts)


@pytest.mark.exactness
@pytest.mark.parametrize("family", tiny.ROLLABLE)
def test_early_exit_leaves_the_targets_cache_as_it_found_it(family: str) -> None:
    """Also past the sliding window; every logit of both is that of a recompute, and the text is `generate`'s."""
    model = tiny.model(family, num_hidden_layers=3, **({"layer_types": None} if family.startswith("gemma") else {}))
    plain = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(PROMPT) :].tolist()
    for layers in (1, 2):
        target = tiny.Checked(model, tiny.VOCAB_SIZE)
        early = CheckedExit(target, layers)
        drafter = make_drafter(
            parse_draft(f"early-exit:{layers}"), DrafterParts(target, None, GREEDY, lambda _, early=early: early)
        )
        ids, steps = generate(target, drafter, k=3, max_new_tokens=30)
        assert ids == plain
        assert sum(step.num_accepted < len(step.draft_token_ids) for step in steps) > 5
        assert target.worst < 1e-4
        assert early.worst < 1e-4
        assert early.passes == sum(len(step.draft_token_ids) for step in steps)  # and none to read the prompt
        assert early.length == target.length


@pytest.mark.exactness
@pytest.mark.parametrize(("sampling", "k"), [(SamplingSettings(temperature=0.8), 2), (SamplingSettings(top_k=4), 1)])
def test_early_exit_is_exact_when_sampled(sampling: SamplingSettings, k: int) -> None:
    model = tiny.model("llama", 8, hidden_size=16, intermediate_size=16, bos_token_id=0, eos_token_id=0)
    target = TransformersModel(model, 8)

    def logits_after(ids: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
        return logits

    pairs, drafted = sampled_pairs(target, exits(target, 1, sampling), sampling, k, 300)
    assert drafted > 300
    assert chi_square_p(pairs, exact_pairs(logits_after, 8, sampling)) > SIGNIFICANCE


def test_early_exit_behind_an_n_gram() -> None:
    target = tiny.Checked(tiny.model("llama"), tiny.VOCAB_SIZE)
    plain, _ = generate(target, NoDrafter(CPU))
    drafter = make_drafter(
        parse_draft("ngram+early-exit:1"), DrafterParts(target, None, GREEDY, partial(EarlyExitModel, target))
    )
    ids, steps = generate(target, drafter, prompt=PROMPT)
    assert ids == plain
    assert {step.source for step in steps if step.draft_token_ids} == {"ngram", "early-exit:1"}
    assert target.worst < 1e-4


def test_all_layers_but_the_last_agree_more_than_one() -> None:
    """Or the layers would not be those of the target."""
    model = tiny.model("llama", num_hidden_layers=6, initializer_range=0.05)
    target = TransformersModel(model, tiny.VOCAB_SIZE)
    sampling = SamplingSettings(temperature=1.0)
    overlaps = [add_up(generate(target, exits(target, n, sampling), sampling=sampling)[1]).overlap for n in (1, 5)]
    assert overlaps[0] is not None
    assert overlaps[1] is not None
    assert overlaps[0] < overlaps[1] < 1


def test_the_early_layers_are_the_targets_own() -> None:
    """No second copy of a weight or of a cached key, and the target keeps all its layers."""
    model = tiny.model("llama", num_hidden_layers=3)
    target = TransformersModel(model, tiny.VOCAB_SIZE)
    early = EarlyExitModel(target, 2)
    assert {p.data_ptr() for p in early._model.parameters()} < {p.data_ptr() for p in model.parameters()}
    assert len(model.model.layers) == model.config.num_hidden_layers == 3
    assert len(early._model.model.layers) == 2
    with torch.inference_mode():
        target.reset()
        target.forward(torch.arange(4), num_logits=1)
        early.forward(torch.arange(3), num_logits=1)
        assert [layer.get_seq_length() for layer in target.cache.layers] == [7, 7, 4]
        assert (early.length, target.length) == (7, 4)
        early.reset()
    assert [layer.get_seq_length() for layer in target.cache.layers] == [4, 4, 4]
    assert (early.device, early.vocab_size, early.max_length) == (target.device, target.vocab_size, target.max_length)


@pytest.mark.parametrize(
    ("layers", "of", "remedy"),
    [(2, 2, "from 1 to 1"), (99, 4, "from 1 to 3"), (0, 3, "from 1 to 2"), (1, 1, "leave --draft early-exit out")],
)
def test_a_number_of_layers_that_the_target_has_not_to_spare(layers: int, of: int, remedy: str) -> None:
    target = TransformersModel(tiny.model("llama", num_hidden_layers=of), tiny.VOCAB_SIZE)
    with pytest.raises(UsageError) as caught:
        EarlyExitModel(target, layers)
    message = tiny.one_line(caught.value, 2)
    assert message.startswith(f"--draft early-exit:{layers}: the target has ")
    assert message.endswith(remedy)


def two_lists(model: Any) -> None:
    model.model.more = nn.ModuleList([nn.Identity(), nn.Identity()])


def calls_itself(model: Any) -> None:
    """As accelerate leaves a model that it spread over devices: `forward` is bound to the original."""
    model.model.forward = model.model.forward


def says_no(model: Any) -> None:
    model.model.norm.forward = "not callable"


@pytest.mark.parametrize(
    ("family", "change", "why"),
    [
        ("llama", two_lists, "2 lists of 2 modules might be its layers"),
        ("llama", calls_itself, "its later layers ran too"),
        ("llama", says_no, "its first layers do not run alone ('str' object is not callable)"),
        ("lfm2", lambda model: None, "not all of its layers are attention"),
    ],
)
def test_a_family_that_does_not_fit_is_refused(family: str, change: Callable[[Any], None], why: str) -> None:
    model = tiny.model(family)
    target = TransformersModel(model, tiny.VOCAB_SIZE)
    change(model)
    with pytest.raises(IncompatiblePairError) as caught:
        EarlyExitModel(target, 1)
    message = tiny.one_line(caught.value, 3)
    assert message.startswith(f"--draft early-exit: the target ({type(model).__name__}) is not built for it: {why}")
    assert message.endswith("leave --draft early-exit out")


def test_a_model_that_was_not_loaded_cannot_draft() -> None:
    with pytest.raises(ValueError, match="none was loaded"):
        made("demo:draft", BagModel(5, 1))
    assert isinstance(made("demo:draft", BagModel(5, 1), BagModel(5, 2)), DraftModel)
