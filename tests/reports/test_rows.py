"""CSV and Markdown of records, read back by the csv module and by a Markdown parser."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from specdec_cli.reports.rows import flatten, to_csv, to_markdown

RESULT: dict[str, Any] = {
    "draft": "a|b",
    "k": 4,
    "speedup": 1.8123456789,
    "speedup_ci": [1.7, 1.9],
    "speedup_range": (1.5, 2.5),
    "acceptance": {"alpha": 0.81, "alpha_ci": None, "per_position_joint": [0.8, 0.7]},
    "lossless": {"checked": True, "identical": False, "first_difference": None},
    "samples": [{"plain_s": 1.0}],
}


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def read_markdown(text: str) -> list[list[str]]:
    """The cells of the only table as a reader sees them, a line break in a cell as \\n."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            parts = token.children or []
            assert {part.type for part in parts} <= {"text", "text_special", "html_inline"}
            rows[-1].append("".join("\n" if part.type == "html_inline" else part.content for part in parts))
    return rows


def test_a_nested_record_becomes_one_row() -> None:
    assert flatten(RESULT) == {
        "draft": "a|b",
        "k": 4,
        "speedup": 1.8123456789,
        "speedup_ci_low": 1.7,
        "speedup_ci_high": 1.9,
        "speedup_range_low": 1.5,
        "speedup_range_high": 2.5,
        "acceptance.alpha": 0.81,
        "acceptance.alpha_ci_low": None,
        "acceptance.alpha_ci_high": None,
        "acceptance.per_position_joint": [0.8, 0.7],
        "lossless.checked": True,
        "lossless.identical": False,
        "lossless.first_difference": None,
    }


def test_a_list_of_two_is_no_interval() -> None:
    assert flatten({"joint": [0.8, 0.7]}) == {"joint": [0.8, 0.7]}


def test_csv_comes_back() -> None:
    row = flatten(RESULT)
    (read,) = read_csv(to_csv([row]))
    assert list(read) == list(row)
    assert float(read["speedup"]) == row["speedup"]
    assert json.loads(read["acceptance.per_position_joint"]) == [0.8, 0.7]
    assert (read["draft"], read["acceptance.alpha_ci_low"]) == ("a|b", "")
    assert (read["lossless.checked"], read["lossless.identical"]) == ("true", "false")


def test_rows_may_have_different_keys() -> None:
    rows: list[dict[str, object]] = [{"a": 1}, {"b": 2.5, "a": 3}, {}]
    assert read_csv(to_csv(rows)) == [{"a": "1", "b": ""}, {"a": "3", "b": "2.5"}, {"a": "", "b": ""}]
    assert read_markdown(to_markdown(rows)) == [["a", "b"], ["1", ""], ["3", "2.5"], ["", ""]]


def test_no_rows_are_no_text() -> None:
    assert to_csv([]) == ""
    assert to_markdown([]) == ""


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b c", "d|e"]), st.floats(allow_nan=False)), min_size=1))
def test_csv_keeps_every_digit(rows: list[dict[str, float]]) -> None:
    read = read_csv(to_csv(rows))
    names = {key for row in rows for key in row}
    if names:
        assert [{k: float(v) for k, v in row.items() if v} for row in read] == rows


TEXT = st.text(st.sampled_from("ab1 _|\\`*<>[]()#&\n\"',é-"), max_size=12)


@given(st.lists(st.fixed_dictionaries({"name": TEXT, "other|name": TEXT}), min_size=1))
def test_csv_keeps_every_text(rows: list[dict[str, str]]) -> None:
    assert read_csv(to_csv(rows)) == rows


@pytest.mark.parametrize(
    "text",
    [
        "a|b", "|", "a\\", "a\\|b", "\\\\|", "`a|b`", "*bold*", "2-16*2", "<b>", "<!-- -->", "two\nlines", "C:\\models",
        "Qwen/Qwen2.5-Coder_x_y", "---", "# a", "a  b", "[0.5, 0.25]",
    ],
)  # fmt: skip
def test_markdown_shows_a_text_as_it_is(text: str) -> None:
    read = read_markdown(to_markdown([{"x|y": text, "k": 1}]))
    assert read == [["x|y", "k"], [text, "1"]]


def test_markdown_rounds_for_people() -> None:
    values = [0.8123456, 1234.56, 12345678.9, 1.5e-7, 3, -0.0, float("inf"), None, True, [0.81234, 0.5]]
    read = read_markdown(to_markdown([{"value": value} for value in values]))
    assert [cell for (cell,) in read[1:]] == [
        "0.8123", "1235", "12345679", "1.5e-07", "3", "-0", "inf", "", "true", "0.8123, 0.5",
    ]  # fmt: skip


def test_markdown_puts_numbers_right_and_lines_its_source_up() -> None:
    rows: list[dict[str, object]] = [
        {"draft": "a", "k": 4, "gain": None},
        {"draft": "long name", "k": 16, "gain": 1.5},
    ]
    assert to_markdown(rows).split("\n") == [
        "| draft     |   k | gain |",
        "| --------- | --: | ---: |",
        "| a         |   4 |      |",
        "| long name |  16 |  1.5 |",
        "",
    ]
