"""Totals over hand-made rounds: the four numbers that people call acceptance rate, each by its own definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import step

from specdec_cli.decoding.loop import Step
from specdec_cli.decoding.tree import Tree
from specdec_cli.measurement.metrics import RoundTotals, accepted_in_text, add_up, by_source


def test_of_a_tree_positions_are_counted_not_tokens() -> None:
    """Two branches of two tokens each, one of which was judged: it is the step's draft."""
    wide = replace(step(2, 1), tree=Tree((0, 1, 5, 6), (-1, 0, -1, 2)))
    assert add_up([wide]) == add_up([step(2, 1)])


def test_no_rounds_have_no_rates() -> None:
    assert add_up([]) == RoundTotals(0, 0, 0, 0, 0, None, None, None, None, 0, 0, 0)
    assert add_up([]).decode_s == 0


def test_alpha_counts_judged_positions_alone() -> None:
    """What was drafted behind the first rejection was never judged, which is why accepted / drafted is not alpha."""
    totals = add_up([step(4, 2), step(4, 0), step(4, 4), step(4, 3)])
    assert (totals.rounds, totals.drafted, totals.accepted, totals.new_tokens) == (4, 16, 9, 13)
    assert totals.alpha == pytest.approx(9 / 12)
    assert totals.judged == 12
    assert totals.accepted_over_drafted == pytest.approx(9 / 16)
    assert totals.tokens_per_round == pytest.approx(13 / 4)


@pytest.mark.parametrize(
    ("drafted", "accepted", "alpha", "ratio"),
    [(1, 0, 0.0, 0.0), (1, 1, 1.0, 1.0), (4, 0, 0.0, 0.0), (4, 1, 0.5, 0.25), (4, 3, 0.75, 0.75), (8, 1, 0.5, 0.125)],
)
def test_alpha_and_accepted_over_drafted_of_one_round(drafted: int, accepted: int, alpha: float, ratio: float) -> None:
    totals = add_up([step(drafted, accepted)])
    assert totals.alpha == pytest.approx(alpha)
    assert totals.accepted_over_drafted == pytest.approx(ratio)
    assert totals.tokens_per_round == accepted + 1


def test_all_accepted_is_one_and_k_plus_one() -> None:
    totals = add_up([step(4, 4)] * 3)
    assert (totals.alpha, totals.accepted_over_drafted, totals.tokens_per_round) == (1.0, 1.0, 5.0)


def test_plain_rounds_have_no_acceptance() -> None:
    totals = add_up([step(0, 0)] * 3)
    assert (totals.rounds, totals.new_tokens, totals.drafted, totals.accepted) == (3, 3, 0, 0)
    assert (totals.alpha, totals.overlap, totals.accepted_over_drafted) == (None, None, None)
    assert totals.tokens_per_round == 1.0


def test_a_round_without_a_draft_among_others_changes_no_acceptance() -> None:
    with_plain, without = add_up([step(4, 2), step(0, 0)]), add_up([step(4, 2)])
    assert with_plain.alpha == without.alpha == pytest.approx(2 / 3)
    assert with_plain.overlap == without.overlap
    assert with_plain.tokens_per_round == 2.0


@pytest.mark.parametrize("cut", [step(4, 4, cut=True), step(4, 0, cut=True), step(2, 2, cut=True, kept=1)])
def test_cut_rounds_stay_out_of_alpha_and_overlap_but_in_the_counts(cut: Step) -> None:
    whole = [step(4, 1, overlap=(0.9, 0.3, 0.1, 0.1)), step(4, 3, overlap=(0.9, 0.8, 0.7, 0.6))]
    totals, without = add_up([*whole, cut]), add_up(whole)
    assert totals.alpha == without.alpha == pytest.approx(4 / 6)
    assert totals.overlap == without.overlap == pytest.approx((0.9 + 0.3 + 0.9 + 0.8 + 0.7 + 0.6) / 6)
    assert totals.rounds == 3
    assert totals.drafted == 8 + len(cut.draft_token_ids)
    assert totals.accepted == 4 + min(cut.num_accepted, len(cut.token_ids))
    assert totals.judged == 6
    assert totals.new_tokens == 6 + len(cut.token_ids)
    assert totals.accepted_over_drafted == pytest.approx(totals.accepted / totals.drafted)


def test_only_cut_rounds_say_nothing_about_acceptance() -> None:
    totals = add_up([step(3, 2, cut=True, finish_reason="length")])
    assert (totals.alpha, totals.overlap) == (None, None)
    assert totals.accepted_over_drafted == pytest.approx(2 / 3)


def test_a_last_round_that_was_not_cut_counts() -> None:
    """A length that falls on the border of a round shortens nothing."""
    assert add_up([step(4, 0), step(4, 4, finish_reason="length")]).alpha == pytest.approx(4 / 5)


def test_overlap_is_the_mean_over_judged_positions() -> None:
    steps = [
        step(4, 0, overlap=(0.2, 1.0, 1.0, 1.0)),
        step(4, 2, overlap=(0.5, 0.6, 0.7, 1.0)),
        step(2, 2, overlap=(0.8, 0.9)),
    ]
    assert add_up(steps).overlap == pytest.approx((0.2 + 0.5 + 0.6 + 0.7 + 0.8 + 0.9) / 6)


def test_withdrawn_tokens_are_not_new_ones() -> None:
    """A stop string that began two tokens before its round: what it took back was counted there."""
    totals = add_up([step(4, 4), step(4, 3, kept=0, withdrawn=2, cut=True, finish_reason="stop")])
    assert (totals.new_tokens, totals.rounds) == (3, 2)
    assert totals.tokens_per_round == pytest.approx(1.5)
    assert (totals.drafted, totals.accepted) == (8, 3)
    assert totals.alpha == 1.0


def test_accepted_counts_what_got_into_the_text() -> None:
    """Of eight accepted tokens the third was an end token: three were emitted."""
    totals = add_up([step(8, 8, kept=3, cut=True, finish_reason="eos")])
    assert (totals.drafted, totals.accepted, totals.new_tokens, totals.tokens_per_round) == (8, 3, 3, 3.0)
    assert totals.accepted_over_drafted == pytest.approx(3 / 8)
    assert (totals.alpha, totals.judged) == (None, 0)


def test_what_a_stop_string_took_back_is_subtracted_where_it_was_counted() -> None:
    """Over three rounds, from two sources, and in no prompt but its own."""
    first = replace(step(3, 3), source="a")  # three accepted and a bonus
    second = replace(step(2, 2), source="b")
    last = replace(step(2, 1, kept=0, withdrawn=5, cut=True, finish_reason="stop"), source="a")
    other = replace(step(2, 2), source="b")
    assert accepted_in_text([first, second, last, other]) == [2, 0, 0, 2]
    assert add_up([first, second, last, other]).accepted == 4
    assert {name: counts.accepted for name, counts in by_source([first, second, last, other]).items()} == {
        "a": 2,
        "b": 2,
    }


def test_seconds_add_up_by_part() -> None:
    totals = add_up([step(4, 4, seconds=(1.0, 2.0, 0.25)), step(4, 0, cut=True, seconds=(0.5, 1.0, 0.125))])
    assert (totals.draft_s, totals.verify_s, totals.other_s) == (1.5, 3.0, 0.375)
    assert totals.decode_s == 4.875


def test_rounds_may_come_from_a_generator() -> None:
    assert add_up(step(4, accepted) for accepted in (0, 4)) == add_up([step(4, 0), step(4, 4)])
