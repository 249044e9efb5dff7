"""SPEC.md's A100 and H100 figures, and what follows from them for c and v; sizes and speeds as people write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specdec_cli.errors import UsageError
from specdec_cli.quantities import parse_arithmetic, parse_bandwidth, parse_parameters
from specdec_cli.roofline import Experts, Machine, Model, arithmetic_s, draft_cost, memory_s, step_s, verify_cost

A100 = Machine(bytes_per_s=2.039e12, flop_per_s=312e12)
H100 = Machine(bytes_per_s=3.35e12, flop_per_s=1979e12)
LARGE = Model(70e9, "float16")


def test_an_a100_needs_153_operations_a_byte() -> None:
    assert A100.flop_per_byte == pytest.approx(153, abs=0.5)


def test_70b_on_an_h100() -> None:
    assert LARGE.bytes == 140e9
    assert memory_s(LARGE, H100) == pytest.approx(41.8e-3, abs=0.05e-3)
    assert arithmetic_s(LARGE, H100) == pytest.approx(0.07e-3, abs=0.005e-3)
    assert arithmetic_s(LARGE, H100, 5) == pytest.approx(0.35e-3, abs=0.005e-3)
    assert step_s(LARGE, H100, 5) == pytest.approx(42.15e-3, abs=0.01e-3)  # 41.8 + 0.35, both rounded


def test_costs_in_target_steps() -> None:
    assert draft_cost(LARGE, Model(7e9, "float16"), H100) == pytest.approx(0.1)
    assert draft_cost(LARGE, Model(7e9, "int8"), H100) == pytest.approx(0.05, rel=0.01)
    assert verify_cost(LARGE, H100, 0) == 1
    assert verify_cost(LARGE, H100, 4) == pytest.approx(42.15 / 41.86, abs=2e-4)


def test_experts_that_several_tokens_wake() -> None:
    """Eight, of which a token wakes two: of the second token's one and a half are new on average, two at most."""
    experts = Experts(8, 2)
    assert [experts.woken(n) for n in (0, 1, 2)] == [0, 2, 3.5]
    assert experts.woken(100) == pytest.approx(8)
    assert (experts.pass_cost(2), experts.most_pass_cost(2), experts.most_pass_cost(9)) == (1.75, 2, 4)
    half = Experts(8, 2, dense_share=0.5)
    assert (half.pass_cost(1), half.pass_cost(2), half.most_pass_cost(2)) == (1, 1.375, 1.5)
    assert Experts(4, 4).pass_cost(9) == 1


def test_a_pass_over_several_tokens_reads_the_experts_of_all() -> None:
    """And computes with those of each token, so that arithmetic grows as in a dense model."""
    mixture = Model(70e9, "float16", Experts(8, 2))
    assert step_s(mixture, H100) == step_s(LARGE, H100)
    assert memory_s(mixture, H100, 2) == pytest.approx(1.75 * memory_s(LARGE, H100))
    assert arithmetic_s(mixture, H100, 2) == arithmetic_s(LARGE, H100, 2)
    assert verify_cost(mixture, H100, 1) == pytest.approx(1.75, abs=2e-3)


@pytest.mark.parametrize("make", [lambda: Experts(8, 0), lambda: Experts(8, 9), lambda: Experts(8, 2, 1.0)])
def test_what_is_no_mixture(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"experts, not|a share of the weights"):
        make()


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2), ("float8", 1), ("int8", 1), ("int4", 0.5)]
)
def test_bytes_of_each_type(dtype: str, size: float) -> None:
    assert Model(10, dtype).bytes == 10 * size


@pytest.mark.parametrize(
    "make", [lambda: Machine(0, 1), lambda: Machine(1, 0), lambda: Model(0, "int8"), lambda: Model(1, "int3")]
)
def test_what_is_no_machine_and_no_model(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"above 0|has parameters|dtype must be"):
        make()


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_parameters, "70B", 70e9), (parse_parameters, "1.5b", 1.5e9), (parse_parameters, "135M", 135e6),
        (parse_parameters, "1T", 1e12), (parse_parameters, "135000000", 135e6), (parse_parameters, "7e9", 7e9),
        (parse_parameters, " 0.5 B ", 0.5e9), (parse_parameters, "600k", 600e3),
        (parse_bandwidth, "3.35TB/s", 3.35e12), (parse_bandwidth, "3350GB/s", 3.35e12),
        (parse_bandwidth, "3350 GB/s", 3.35e12), (parse_bandwidth, "50G", 50e9), (parse_bandwidth, "5e10B/s", 5e10),
        (parse_bandwidth, "900B/s", 900), (parse_arithmetic, "1979T", 1979e12), (parse_arithmetic, "1.979P", 1979e12),
        (parse_arithmetic, "312TFLOP/s", 312e12), (parse_arithmetic, "312 TFLOPS", 312e12),
        (parse_arithmetic, "312TFLOPs", 312e12), (parse_arithmetic, "2e11", 2e11),
    ],
)  # fmt: skip
def test_quantities(parse: Callable[[str, str], float], text: str, value: float) -> None:
    assert parse(text, "--x") == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *(
            (parse_parameters, text)
            for text in ("", "B", "-7B", "0", "70BB", "7 GB", "x", "1e999", "7\nB x", "nan", "٧")
        ),
        *(
            (parse_bandwidth, text)
            for text in ("", "3.35Tb/s", "3.35TB", "0GB/s", "-1GB/s", "fast", "3,35TB/s", "30", "5e10")
        ),
        *((parse_arithmetic, text) for text in ("", "0T", "312TOPS", "312Tflop", "inf", "-1T", "1979")),
    ],
)
def test_what_is_no_quantity_is_one_line(parse: Callable[[str, str], float], text: str) -> None:
    with pytest.raises(UsageError, match=r"^--x must be .*, such as .*, not '.*'$"):
        parse(text, "--x")
