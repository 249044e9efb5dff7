"""The rule: SPEC.md's worked example, the closed form, and the edges where a sloppy rule breaks."""

from __future__ import annotations

import pytest
import torch
from laws import SIGNIFICANCE, chi_square_p

from specdec_cli.decoding.acceptance import Verdict, verify
from specdec_cli.decoding.sampling import sample
from specdec_cli.theory import tokens_per_round

pytestmark = pytest.mark.exactness

TARGET = torch.tensor([0.30, 0.25, 0.18, 0.12, 0.10, 0.05])
DRAFT = torch.tensor([0.44, 0.15, 0.16, 0.05, 0.12, 0.08])


def rounds(
    target: torch.Tensor, draft: torch.Tensor | None, k: int, number: int, seed: int = 0
) -> tuple[torch.Tensor, Verdict]:
    """Drafted ids [number, k] and the verdicts of `number` rounds with the same distribution at every position."""
    generator = torch.Generator().manual_seed(seed)
    vocab_size = target.shape[0]
    source = target if draft is None else draft
    drafted = sample(source.expand(number, k, vocab_size), generator)
    q = None if draft is None else draft.expand(number, k, vocab_size)
    return drafted, verify(target.expand(number, k + 1, vocab_size), q, drafted, generator)


def emitted_at(position: int, drafted: torch.Tensor, verdict: Verdict) -> list[int]:
    """The token at a position, of the rounds that got so far."""
    reached = verdict.num_accepted >= position
    here = drafted[:, position] if position < drafted.shape[1] else verdict.next_token_id
    return torch.where(verdict.num_accepted > position, here, verdict.next_token_id)[reached].tolist()


def test_worked_example() -> None:
    k, number = 4, 200_000
    drafted, verdict = rounds(TARGET, DRAFT, k, number)
    assert verdict.overlap.mean().item() == pytest.approx(0.810, abs=1e-6)
    expected = dict(enumerate(TARGET.tolist()))
    for position in range(k + 1):
        assert chi_square_p(emitted_at(position, drafted, verdict), expected) > SIGNIFICANCE
    everything = [t for i in range(k + 1) for t in emitted_at(i, drafted, verdict)]
    shares = torch.bincount(torch.tensor(everything), minlength=6) / len(everything)
    assert (shares - TARGET).abs().max().item() < 0.0015
    assert 1 + verdict.num_accepted.float().mean().item() == pytest.approx(3.428, abs=0.01)


def test_the_leftover_goes_to_the_tokens_that_the_draft_under_weights() -> None:
    _, verdict = rounds(TARGET, DRAFT, 1, 200_000)
    recovered = verdict.next_token_id[verdict.num_accepted == 0].tolist()
    shares = torch.bincount(torch.tensor(recovered), minlength=6) / len(recovered)
    assert shares.tolist() == pytest.approx([0, 0.526, 0.105, 0.368, 0, 0], abs=0.01)


@pytest.mark.parametrize("k", [1, 3, 5, 8])
@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9])
def test_tokens_per_round_follow_the_closed_form(alpha: float, k: int) -> None:
    # The draft spends 1 - alpha of its mass where the target has none, so the overlap is alpha to the digit.
    p = torch.cat([TARGET, torch.zeros(6)])
    q = torch.cat([alpha * TARGET, (1 - alpha) * DRAFT])
    drafted, verdict = rounds(p, q, k, 40_000)
    emitted = 1 + verdict.num_accepted.double()
    error = emitted.std().item() / 40_000**0.5
    assert abs(emitted.mean().item() - tokens_per_round(alpha, k)) < 4 * error
    assert chi_square_p(emitted_at(0, drafted, verdict), dict(enumerate(p.tolist()))) > SIGNIFICANCE


def test_a_wrong_rule_is_caught_by_the_same_test() -> None:
    """Recovered tokens drawn from p instead of the leftover: a common mistake, and a drift of a few per cent."""
    drafted, verdict = rounds(TARGET, DRAFT, 1, 200_000)
    wrong = sample(TARGET.expand(200_000, 6), torch.Generator().manual_seed(9))
    first = torch.where(verdict.num_accepted > 0, drafted[:, 0], wrong).tolist()
    assert chi_square_p(first, dict(enumerate(TARGET.tolist()))) < 1e-12


def test_a_deterministic_draft_is_a_one_hot_distribution() -> None:
    number = 100_000
    drafted = torch.full((number, 2), 1)
    target = TARGET.expand(number, 3, 6)
    verdict = verify(target, None, drafted, torch.Generator().manual_seed(0))
    assert chi_square_p(emitted_at(0, drafted, verdict), dict(enumerate(TARGET.tolist()))) > SIGNIFICANCE
    assert (verdict.num_accepted > 0).float().mean().item() == pytest.approx(0.25, abs=0.005)
    assert 1 not in verdict.next_token_id[verdict.num_accepted == 0].tolist()
    assert (verdict.draft_prob == 1).all()


@pytest.mark.parametrize("k", range(9))
def test_a_perfect_draft_is_always_accepted(k: int) -> None:
    _, verdict = rounds(TARGET, TARGET, k, 5_000)
    assert (verdict.num_accepted == k).all()


def test_nothing_drafted_is_plain_sampling() -> None:
    drafted, verdict = rounds(TARGET, DRAFT, 0, 100_000)
    assert drafted.shape == (100_000, 0)
    assert (verdict.num_accepted == 0).all()
    assert chi_square_p(verdict.next_token_id.tolist(), dict(enumerate(TARGET.tolist()))) > SIGNIFICANCE


def test_greedy_accepts_the_argmax_alone() -> None:
    p = torch.eye(4)[[2, 0, 3]].unsqueeze(0)  # argmax 2, 0, 3
    q = torch.eye(4)[[2, 1]].unsqueeze(0)
    verdict = verify(p, q, torch.tensor([[2, 1]]), torch.Generator())
    assert verdict.num_accepted.tolist() == [1]
    assert verdict.next_token_id.tolist() == [0]


def test_what_the_target_cannot_emit_is_never_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the coin shows exactly 0."""
    real = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *a, **k: real(*a, **k) * (0.0 if k.get("dtype") is None else 1.0))
    p = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    q = torch.tensor([[[1.0, 0.0]]])
    verdict = verify(p, q, torch.tensor([[0]]), torch.Generator().manual_seed(0))
    assert verdict.num_accepted.tolist() == [0]
    assert verdict.next_token_id.tolist() == [1]


def test_a_leftover_that_rounds_to_nothing_falls_back_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """p = q up to rounding, and a coin that rejects all the same: emit from p, not NaN or an id without mass."""
    real = torch.rand
    monkeypatch.setattr(
        torch, "rand", lambda *a, **k: real(*a, **k) * 0 + 1.0 if k.get("dtype") is None else real(*a, **k)
    )
    p = torch.tensor([[[0.0, 0.25, 0.75], [0.2, 0.3, 0.5]]]).expand(20_000, 2, 3)
    verdict = verify(p, p[:, :1], torch.full((20_000, 1), 2), torch.Generator().manual_seed(0))
    assert (verdict.num_accepted == 0).all()
    shares = torch.bincount(verdict.next_token_id, minlength=3) / 20_000
    assert shares.tolist() == pytest.approx([0, 0.25, 0.75], abs=0.02)
