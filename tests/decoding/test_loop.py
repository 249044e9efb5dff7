"""The loop on cheap models: its distribution is the target's whatever the draft, and its bookkeeping never slips."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence

import pytest
import tiny
import torch
from laws import (
    GREEDY,
    PROMPT,
    SIGNIFICANCE,
    BagModel,
    GreedyButClaimsOtherwise,
    chi_square_p,
    exact_triples,
    generate,
    sampled_triples,
)

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.base import Context, Draft
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness


# --------------------------------------------------------------------------------------- distribution
SETTINGS = [
    (SamplingSettings(temperature=0.7), 1),
    (SamplingSettings(temperature=1.3), 4),
    (SamplingSettings(temperature=1.0, top_k=3), 2),
    (SamplingSettings(temperature=1.0, top_p=0.8), 6),
    (SamplingSettings(temperature=1.0, min_p=0.15), 3),
    (SamplingSettings(temperature=1.0, repetition_penalty=1.8), 4),
    (SamplingSettings(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05, repetition_penalty=1.3), 5),
]


@pytest.mark.parametrize(("sampling", "k"), SETTINGS, ids=str)
def test_output_is_distributed_as_the_targets(sampling: SamplingSettings, k: int) -> None:
    """Symptom 6: a draft that disagrees, judged for its warped distribution; three tokens cross a round's border."""
    target, draft = BagModel(6, seed=1), BagModel(6, seed=2)
    triples = sampled_triples(target, DraftModel(draft, sampling), PROMPT, sampling, k, 3_000)
    exact = exact_triples(target, PROMPT, sampling)
    assert set(triples) <= set(exact)
    assert chi_square_p(triples, exact) > SIGNIFICANCE


def test_a_draft_that_lies_about_its_distribution_is_caught() -> None:
    sampling = SamplingSettings(temperature=1.0)
    target, draft = BagModel(6, seed=1), BagModel(6, seed=2)
    triples = sampled_triples(target, GreedyButClaimsOtherwise(draft, sampling), PROMPT, sampling, 2, 3_000)
    assert chi_square_p(triples, exact_triples(target, PROMPT, sampling)) < 1e-9


class Fixed:
    """A deterministic drafter: always the same guesses, one-hot."""

    device = torch.device("cpu")

    def __init__(self, guesses: Sequence[int]) -> None:
        self.guesses = torch.tensor(guesses)

    def reset(self, context: Context) -> None: ...

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        return Draft(self.guesses[:num_draft_tokens])

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None: ...


def test_a_deterministic_drafter_keeps_the_distribution() -> None:
    sampling = SamplingSettings(temperature=1.0)
    target = BagModel(6, seed=1)
    triples = sampled_triples(target, Fixed([2, 2, 5]), PROMPT, sampling, 3, 3_000)
    assert chi_square_p(triples, exact_triples(target, PROMPT, sampling)) > SIGNIFICANCE


# --------------------------------------------------------------------------------------- bookkeeping
@pytest.mark.parametrize("sampling", [GREEDY, SamplingSettings(temperature=1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", tiny.ROLLABLE)
def test_cached_logits_equal_a_recompute_after_every_round(family: str, sampling: SamplingSettings) -> None:
    """Also past the sliding window, with rejections on the way (symptoms 5 and 9)."""
    target = tiny.Checked(tiny.model(family), tiny.VOCAB_SIZE)
    draft = tiny.Checked(tiny.model(family, seed=5), tiny.VOCAB_SIZE)
    _, steps = generate(target, DraftModel(draft, sampling), k=3, sampling=sampling, max_new_tokens=40)
    assert target.length > 2 * tiny.WINDOW
    assert sum(step.num_accepted < len(step.draft_token_ids) for step in steps) > 5
    assert target.worst < 1e-4
    assert draft.worst < 1e-4


@pytest.mark.parametrize("family", [*tiny.ROLLABLE, *tiny.LOCAL])
def test_greedy_equals_generate_where_the_draft_disagrees(family: str) -> None:
    model = tiny.model(family)
    target = TransformersModel(model, tiny.VOCAB_SIZE)
    draft = TransformersModel(tiny.model(family, seed=5), tiny.VOCAB_SIZE)
    plain = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(PROMPT) :].tolist()
    for k in (1, 4):
        ids, steps = generate(target, DraftModel(draft, GREEDY), k=k, max_new_tokens=40)
        assert ids == plain
        assert any(step.num_accepted < len(step.draft_token_ids) for step in steps)


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("sampling", [GREEDY, SamplingSettings(temperature=1.0)], ids=["greedy", "sampled"])
def test_a_draft_equal_to_the_target_is_always_accepted(k: int, sampling: SamplingSettings) -> None:
    """Symptom 12: the draft's cache is complete after a full accept."""
    target, draft = BagModel(9, seed=1), BagModel(9, seed=1)
    _, steps = generate(target, DraftModel(draft, sampling), k=k, sampling=sampling, max_new_tokens=30)
    assert all(step.num_accepted == len(step.draft_token_ids) for step in steps)
    assert all(len(step.token_ids) == k + 1 for step in steps if not step.cut)
    assert all(step.provenance[-1] == "bonus" for step in steps if len(step.draft_token_ids) == k)


@pytest.mark.parametrize("k", range(1, 7))
def test_greedy_is_the_plain_loop_token_for_token(k: int) -> None:
    target, draft = BagModel(9, seed=1), BagModel(9, seed=2)
    plain, plain_steps = generate(target, NoDrafter(target.device))
    ids, steps = generate(target, DraftModel(draft, GREEDY), k=k)
    assert ids == plain
    assert any(step.provenance[-1] == "recovered" for step in steps)
    assert all(step.provenance == ("plain",) for step in plain_steps)


def test_the_record_adds_up() -> None:
    target, draft = BagModel(9, seed=1), BagModel(9, seed=2, spread=0.5)
    ids, steps = generate(target, DraftModel(draft, GREEDY), k=3)
    assert ids == [token for step in steps for token in step.token_ids]
    for step in steps:
        assert step.token_ids[:-1] == step.draft_token_ids[: step.num_accepted]
        assert len(step.token_ids) == len(step.provenance) == step.num_accepted + 1
        assert set(step.provenance[:-1]) <= {"accepted"}
        for figures in (step.target_probs, step.draft_probs, step.overlap):
            assert len(figures) == len(step.draft_token_ids)
            assert all(0 <= f <= 1 + 1e-6 for f in figures)
    assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + ["length"]


def test_times_are_split_by_a_clock_from_outside() -> None:
    ticks = itertools.count()
    target, draft = BagModel(9, seed=1), BagModel(9, seed=2)
    generation = Generation(
        target, DraftModel(draft, GREEDY), PROMPT, num_draft_tokens=2, sampling=GREEDY,
        stopping=Stopping(8), clock=lambda: float(next(ticks)),
    )  # fmt: skip
    assert generation.prefill_s == 1
    assert all((s.draft_s, s.verify_s, s.other_s) == (1, 1, 1) for s in generation)


def test_two_runs_of_one_prompt_and_seed_are_one_record() -> None:
    """Symptom 14: no state is carried over."""
    sampling = SamplingSettings(temperature=1.0)
    target, drafter = BagModel(9, seed=1), DraftModel(BagModel(9, seed=2), sampling)

    def record(seed: int) -> list[tuple[object, ...]]:
        _, steps = generate(target, drafter, sampling=sampling, seed=seed)
        return [(s.token_ids, s.draft_token_ids, s.num_accepted, s.target_probs, s.overlap) for s in steps]

    first = record(7)
    assert record(8) != first
    assert record(7) == first


# ------------------------------------------------------------------------------------------- endings
@pytest.mark.parametrize("place", range(9))
def test_an_end_token_ends_the_text_wherever_in_a_block_it_stands(place: int) -> None:
    """Symptom 7, with a draft that is always accepted and with one that never is, and with several end ids."""
    target = BagModel(40, seed=6, spread=1.0)
    text, _ = generate(target, NoDrafter(target.device), max_new_tokens=9)
    assert len(set(text)) == 9, "choose a seed whose text repeats no token"
    for draft in (BagModel(40, seed=6, spread=1.0), BagModel(40, seed=5)):
        for end_ids in ([text[place]], [text[8], text[place], 39]):
            ids, steps = generate(target, DraftModel(draft, GREEDY), k=4, end_ids=end_ids)
            assert ids == text[: place + 1]
            assert steps[-1].finish_reason == "eos"
            assert steps[-1].cut


@pytest.mark.parametrize("limit", range(1, 8))
def test_a_length_limit_is_kept_to_the_token(limit: int) -> None:
    target, draft = BagModel(9, seed=1), BagModel(9, seed=1)
    ids, steps = generate(target, DraftModel(draft, GREEDY), k=4, max_new_tokens=limit)
    plain, _ = generate(target, NoDrafter(target.device), max_new_tokens=limit)
    assert ids == plain
    assert len(ids) == limit
    assert steps[-1].finish_reason == "length"


@pytest.mark.parametrize("draft_context", [4, 7, 12])
@pytest.mark.parametrize("prompt_length", [1, 5, 11])
def test_the_context_ends_the_text_and_a_short_draft_context_does_not(prompt_length: int, draft_context: int) -> None:
    """BagModel asserts that no pass runs over its context; the target's is 12 here."""
    prompt = [1 + i % 5 for i in range(prompt_length)]
    target = BagModel(9, seed=1, max_length=12)
    plain, steps = generate(target, NoDrafter(target.device), prompt=prompt)
    assert len(plain) == 12 - prompt_length + 1
    assert steps[-1].finish_reason == "length"
    draft = BagModel(9, seed=1, max_length=draft_context)
    ids, _ = generate(target, DraftModel(draft, GREEDY), k=4, prompt=prompt)
    assert ids == plain


def test_prompts_that_cannot_be_answered_are_refused() -> None:
    target = BagModel(9, seed=1, max_length=12)
    with pytest.raises(ValueError, match="no tokens"):
        generate(target, NoDrafter(target.device), prompt=[])
    with pytest.raises(ValueError, match="12 tokens"):
        generate(target, NoDrafter(target.device), prompt=[1] * 12)


@pytest.mark.parametrize(
    ("broken", "temperature"),
    # A greedy draft of NaN is a guess like any other: it is judged, and costs nothing but speed.
    [("target", 0.0), ("target", 1.0), ("draft", 1.0)],
)
def test_logits_that_are_not_numbers_are_an_error_and_no_text(broken: str, temperature: float) -> None:
    models = {"target": BagModel(9, seed=1), "draft": BagModel(9, seed=2)}
    models[broken]._weights[:] = torch.nan
    sampling = SamplingSettings(temperature=temperature)
    with pytest.raises(SpecdecError, match="not numbers"):
        generate(models["target"], DraftModel(models["draft"], sampling), sampling=sampling)


# -------------------------------------------------------------------------------------- two devices
# No such device exists here: an operation across two of them, or a read by the host, raises.
PRETEND = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from specdec_cli.decoding import loop
from specdec_cli.drafters.base import Draft
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.settings import SamplingSettings

_setup_privateuseone_for_python_backend("pretend")
SAMPLINGS = [
    SamplingSettings(0.0), SamplingSettings(0.8, top_p=0.9, top_k=5, min_p=0.1),
    SamplingSettings(0.0, repetition_penalty=1.2), SamplingSettings(1.0, repetition_penalty=1.2),
]

def refused(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError as error:
        assert "same device" in str(error), error
    else:
        raise SystemExit("two devices were mixed and nothing noticed")
"""

JUDGING = """
with FakeTensorMode(allow_non_fake_inputs=True):
    logits = torch.empty(4, 30, device="pretend:0")
    ids = torch.empty(3, dtype=torch.long, device="pretend:1")
    for probs in (None, torch.empty(3, 30, device="pretend:1")):
        for sampling in SAMPLINGS[:2]:
            draft = Draft(ids, probs)
            packed = loop._judge(logits, draft.on(logits.device), sampling, None, None)
            assert packed.device == logits.device and packed.shape == (3 + 4 * 3,)
            refused(loop._judge, logits, draft, sampling, None, None)
    for sampling in SAMPLINGS[:2]:
        tree = Draft(ids, parents=ids, wants_predictions=True)
        packed = loop._judge(logits, tree.on(logits.device), sampling, None, None)
        assert packed.device == logits.device and packed.shape == (1 + 3 * 3 + 2 * 4,)
        refused(loop._judge, logits, tree, sampling, None, None)
"""

# Values cannot be carried to a device that does not exist, nor back, nor drawn there: the host's side of these three
# is stood in for, and everything between them is the project's own.
ROUNDS = """
as_host, transfers, generators = torch.tensor, [], []

def tensor(data, dtype=None, device="cpu"):
    host = as_host(data, dtype=dtype)
    return torch.empty(host.shape, dtype=host.dtype, device=device)

def unpack(packed, draft, most):
    drafted = len(draft.token_ids)
    transfers.append(packed.device)
    return loop._Judged(list(range(drafted)), drafted // 2, 7, *[(0.5,) * drafted] * 3, [])

class Generator:
    def __init__(self, device):
        generators.append(torch.device(device))
    def manual_seed(self, seed):
        return None

class Model:
    vocab_size, max_length, block_limit = 30, 64, 99
    def __init__(self, device):
        self.device, self.length = torch.device(device), 0
        self.table = torch.empty(30, 30, device=device)
    def tap(self, taps):
        assert not taps
    def reset(self):
        self.length = 0
    def forward(self, token_ids, num_logits):
        self.length += len(token_ids)
        return self.table.index_select(0, token_ids)[-num_logits:]
    def roll_back(self, num_tokens):
        self.length -= num_tokens

torch.tensor, torch.Generator, loop._unpack = tensor, Generator, unpack
with FakeTensorMode():
    refused(Model("pretend:0").forward, torch.tensor([1], device="pretend:1"), 1)
    for sampling in SAMPLINGS:
        target, draft = Model("pretend:0"), Model("pretend:1")
        drafter = DraftModel(draft, sampling)
        rounds = loop.Generation(
            target, drafter, [1, 2, 3], num_draft_tokens=4, sampling=sampling, stopping=Stopping(20)
        )
        assert generators == [target.device, draft.device]
        steps = list(rounds)
        assert len(rounds.token_ids) == 20 and len(steps) > 5
        assert [len(step.draft_token_ids) for step in steps[:-2]] == [4] * (len(steps) - 2)
        assert transfers == [target.device] * len(steps)
        transfers.clear(), generators.clear()
"""


@pytest.mark.parametrize("script", [JUDGING, ROUNDS], ids=["judging", "whole rounds"])
def test_a_draft_on_another_device_is_moved_and_the_host_asked_once_a_round(script: str) -> None:
    """Symptom 11, in a process of its own, since a pretended backend stays registered."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PRETEND + script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
