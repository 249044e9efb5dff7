"""The K grammar: what it names, and that everything else is one line naming the option and the grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.errors import UsageError
from specdec_cli.ranges import GRAMMAR, LARGEST, parse_range


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", (4,)),
        ("1,2,4", (1, 2, 4)),
        ("4,2,1,2", (1, 2, 4)),
        ("1-8", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("5-5", (5,)),
        ("2-16*2", (2, 4, 8, 16)),
        ("2-15*2", (2, 4, 8)),
        ("1-9+2", (1, 3, 5, 7, 9)),
        ("1-8+2", (1, 3, 5, 7)),
        ("3-5*100", (3,)),
        ("1-4,8-32*2,5", (1, 2, 3, 4, 5, 8, 16, 32)),
        ("007", (7,)),
    ],
)
def test_the_grammar(text: str, expected: tuple[int, ...]) -> None:
    assert parse_range(text, "--k") == expected


def test_the_largest_range_is_the_largest_number() -> None:
    assert parse_range(f"1-{LARGEST}", "--k") == tuple(range(1, LARGEST + 1))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no number"), (",", "no number"), ("1,", "no number"), ("1,,2", "no number"), ("auto", "no number"),
        ("1.5", "no number"), ("-3", "no number"), ("1 - 3", "no number"), ("1-3-5", "no number"),
        ("1+2", "no number"), ("2*2", "no number"), ("1-9+", "no number"), ("1-", "no number"), ("1-8/2", "no number"),
        ("٣", "no number"), ("1\n2", "no number"), ("9" * 5000, "no number"),
        ("0", "below 1"), ("0-4", "below 1"), ("3,0", "below 1"), ("0-4*2", "below 1"),
        ("8-1", "1-8 is meant"), ("1-8+0", r"\+0"), ("1-8*1", r"\*1"), ("1-8*0", r"\*0"),
        (f"1-{LARGEST + 1}", "above 1,000"), ("1-999999999", "above 1,000"), ("5000", "above 1,000"),
    ],
)  # fmt: skip
def test_everything_else_names_the_option_and_the_grammar(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        parse_range(text, "--num")
    message = str(refused.value)
    assert message.startswith("--num ")
    assert GRAMMAR in message
    assert len(message.splitlines()) == 1


@given(st.sets(st.integers(1, LARGEST), min_size=1))
def test_a_list_names_itself(numbers: set[int]) -> None:
    assert parse_range(",".join(map(str, numbers)), "--k") == tuple(sorted(numbers))


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 9))
def test_a_range_is_what_range_says(first: int, more: int, step: int) -> None:
    assert parse_range(f"{first}-{first + more}+{step}", "--k") == tuple(range(first, first + more + 1, step))
