"""What a benchmark recommends beside draft and K."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_cli.reports.verdict import cheaper_draft

RESULT = {"cost": {"c": 0.4, "v": 1.1, "o": 0.02}, "draft_lengths": [[4, 10]]}
DRAFT = {"vocab": "none", "head_share": 0.4, "head_rows": 151_936, "quantize": "none", "device": "cpu"}


@pytest.mark.parametrize(
    ("change", "vocab", "bits"),
    [
        ({}, True, True),
        ({"vocab": "24000"}, False, True),
        ({"quantize": "int8"}, True, False),
        ({"quantize": "keep", "vocab": "32768"}, False, False),
        ({"head_share": 0.2}, False, True),
        ({"head_rows": 30_000}, False, True),
        ({"device": "cuda:0"}, True, False),
    ],
    ids=str,
)
def test_only_what_was_not_done_and_would_gain_is_recommended(change: dict[str, Any], vocab: bool, bits: bool) -> None:
    said = cheaper_draft(RESULT, DRAFT | change)
    assert ("head is 40% of the bytes of its step: try --draft-vocab 32768" in said) == vocab
    assert ("try --draft-quantize auto" in said) == bits
    assert bool(said) == (vocab or bits)


def test_a_draft_that_is_cheap_already_or_no_model_gets_no_advice() -> None:
    assert cheaper_draft(RESULT | {"cost": {"c": 0.05, "v": 1.1, "o": 0.02}}, DRAFT) == ""
    assert cheaper_draft(RESULT | {"cost": None}, DRAFT) == ""
    assert cheaper_draft(RESULT, {"source": "ngram"}) == ""
