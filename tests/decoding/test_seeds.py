"""Every answer of a run has random numbers of its own, so that what is carried from answer to answer changes no law."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from laws import PROMPT, SIGNIFICANCE, BagModel, chi_square_p, exact_triples
from torch import Tensor

from specdec_cli.decoding.draft_length import DraftLength, draft_length
from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.seeds import answer_seed, draft_seed, trial_seed
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Drafter, DrafterParts
from specdec_cli.drafters.spec import parse_draft
from specdec_cli.settings import KChoice, SamplingSettings

pytestmark = pytest.mark.exactness

SeedOf = Callable[[int, int, int], int]


# ------------------------------------------------------------------------------------------------- the seeds
def test_the_first_answer_of_the_first_prompt_has_the_seed_of_the_run() -> None:
    assert [answer_seed(seed) for seed in (0, 7, 2**63 - 1)] == [0, 7, 2**63 - 1]


def test_seeds_stay_what_they_are() -> None:
    """A record of one version is repeated by the next."""
    assert [answer_seed(7, 1, 2), answer_seed(7, 2, 1), draft_seed(7), trial_seed("warm-up")] == [
        5440001684132556050, 3395637774150995662, 1592644776, 1050003708452397991
    ]  # fmt: skip


def test_no_two_streams_of_a_run_start_alike() -> None:
    """By the 32 bits of a seed that torch's CPU generator reads: who proposes, who judges, in every text."""
    answers = [answer_seed(8, prompt, turn) for prompt in range(1, 401) for turn in range(1, 4)]
    trials = [trial_seed(purpose, number) for purpose in ("warm-up", "distribution") for number in range(1, 401)]
    streams = [stream % 2**32 for seed in (*answers, *trials) for stream in (seed, draft_seed(seed))]
    assert len(set(streams)) == len(streams)
    assert all(0 <= seed < 2**63 for seed in (*answers, *trials, *map(draft_seed, answers)))


@pytest.mark.parametrize(("prompt", "turn"), [(0, 1), (1, 0)])
def test_prompts_and_turns_count_from_1(prompt: int, turn: int) -> None:
    with pytest.raises(ValueError, match="from 1"):
        answer_seed(3, prompt, turn)


def test_a_stream_uses_no_bit_twice() -> None:
    """A round's float32 coins, then a float64 uniform, as often as there are rounds: other words each time."""
    words = np.random.MT19937()
    words._legacy_seeding(5)  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(5)
    for num_coins in (4, 1, 0, 7, 20):
        coins = torch.rand(num_coins, generator=generator)
        uniform = torch.rand(1, generator=generator, dtype=torch.float64)
        assert coins.tolist() == [int(word) % 2**24 / 2**24 for word in words.random_raw(num_coins)]
        high, low = (int(word) for word in words.random_raw(2))
        assert uniform.item() == (high * 2**32 + low) % 2**53 / 2**53


# --------------------------------------------------------------------------------------------------- the law
SOURCES = (
    "none", "demo:draft", "ngram:min=1", "suffix", "lookahead:window=3,ngram=3", "early-exit:1", "suffix+demo:draft",
)  # fmt: skip
RULES: tuple[KChoice, ...] = (3, "heuristic", "auto")
SAMPLING = SamplingSettings(temperature=1.0)
SIZE = 4
BETWEEN = (1,)  # what is said between two answers
RUNS = 200


class Remembered(BagModel):
    """Computes the logits of a text once."""

    def __init__(self, seed: int) -> None:
        super().__init__(SIZE, seed, spread=0.8)
        self._known: dict[tuple[int, ...], Tensor] = {}

    def logits(self, ids: Sequence[int]) -> Tensor:
        text = tuple(ids)
        if text not in self._known:
            self._known[text] = super().logits(text)
        return self._known[text]


TARGET, DRAFT = Remembered(1), Remembered(2)


class Run:
    """A conversation of two turns, then the first turn's prompt again; drafter and rule for K go on learning."""

    def __init__(self, drafter: Drafter, length: DraftLength, seed: int, seed_of: SeedOf) -> None:
        ticks = itertools.count()

        def answer(ids: Sequence[int], prompt: int, turn: int, most: int) -> tuple[int, ...]:
            generation = Generation(
                TARGET, drafter, ids, num_draft_tokens=length, sampling=SAMPLING, stopping=Stopping(16),
                seed=seed_of(seed, prompt, turn), clock=lambda: float(next(ticks)),
            )  # fmt: skip
            for _ in generation:
                if len(generation.token_ids) >= most:
                    break
            return tuple(generation.token_ids[:most])

        self.first = answer(PROMPT, 1, 1, 2)
        self.second = answer([*PROMPT, *self.first, *BETWEEN], 1, 2, 1)
        self.third = answer(PROMPT, 2, 1, 3)


def p_values(source: str, rule: KChoice, seed_of: SeedOf = answer_seed) -> dict[str, float]:
    """Of the second and the third answer, each with what came before it."""

    def row(ids: Sequence[int]) -> list[float]:
        probs: list[float] = logits_to_probs(TARGET.logits(ids)[None], SAMPLING)[0].tolist()
        return probs

    runs = []
    for seed in range(RUNS):
        drafter = make_drafter(parse_draft(source), DrafterParts(TARGET, DRAFT, SAMPLING, lambda _: DRAFT))
        runs.append(Run(drafter, draft_length(rule), seed, seed_of))
    ids = range(SIZE)
    first = row(PROMPT)
    pairs = {(a, b): first[a] * p for a in ids for b, p in enumerate(row([*PROMPT, a]))}
    turns = {(*pair, c): p * q for pair, p in pairs.items() for c, q in enumerate(row([*PROMPT, *pair, *BETWEEN]))}
    return {
        "second": chi_square_p([(*run.first, *run.second) for run in runs], turns),
        "third": chi_square_p([run.third for run in runs], exact_triples(TARGET, PROMPT, SAMPLING)),
        "first and third": chi_square_p(
            [(run.first[0], run.third[0]) for run in runs], {(a, b): first[a] * first[b] for a in ids for b in ids}
        ),
    }


@pytest.mark.parametrize(
    ("source", "rule"), [(source, rule) for source in SOURCES for rule in RULES if source != "none" or rule == 3]
)
def test_later_answers_are_distributed_as_the_targets(source: str, rule: KChoice) -> None:
    assert min(p_values(source, rule).values()) > SIGNIFICANCE


@pytest.mark.parametrize(
    ("source", "rule", "seen"),
    [("none", 3, "second"), ("demo:draft", 3, "first and third"), ("suffix", "heuristic", "third")],
)
def test_the_same_runs_show_answers_that_share_a_seed(source: str, rule: KChoice, seen: str) -> None:
    """So that the test above can fail: turns reuse uniforms, and drafts repeat what the same coins have judged."""
    shared = p_values(source, rule, lambda seed, prompt, turn: seed)
    assert shared[seen] < SIGNIFICANCE / 1000
