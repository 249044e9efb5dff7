"""What a benchmark recommends beside draft and K, and what it says of the threads it ran with."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_cli.measurement.caveats import caveats
from specdec_cli.measurement.hardware import threads_and_cores
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


@pytest.mark.parametrize(
    ("threads_and_cores", "said"), [((2, 2), False), ((1, 4), True), ((8, 4), True), (None, False)]
)
def test_threads_other_than_the_cores_are_told(threads_and_cores: tuple[int, int] | None, said: bool) -> None:
    found = [c for c in caveats([], [], threads_and_cores=threads_and_cores) if c.kind == "threads"]
    assert bool(found) == said
    if found and threads_and_cores:
        assert f"OMP_NUM_THREADS={threads_and_cores[1]}" in found[0].remedy


def test_this_machines_threads_are_counted() -> None:
    counts = threads_and_cores()
    assert counts is None or min(counts) >= 1
