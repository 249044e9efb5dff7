"""Eight-bit weights times eight-bit activations: whole-number sums, and rows that know nothing of each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from specdec_cli.runtime.layers import w8a8
from specdec_cli.runtime.layers.quantized_linear import int8_codes
from specdec_cli.runtime.layers.w8a8 import W8A8Linear

pytestmark = pytest.mark.skipif(not w8a8.is_exact(), reason="this CPU adds products of bytes with loss")
SHAPES = [(1, 1), (16, 64), (33, 31), (257, 96), (4097, 40)]  # as they lie, and laid out


def by_hand(layer: nn.Linear, states: Tensor, levels: int) -> Tensor:
    """The definition, in float64: rounded weights times rounded activations, and both scales."""
    codes, scales = int8_codes(layer.weight)
    rows = states.float()
    steps = rows.abs().amax(-1, keepdim=True) / levels + w8a8.TINY
    product = (rows / steps).round().double() @ codes.double().t() * scales.double() * steps.double()
    return product if layer.bias is None else product + layer.bias.double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_definition(shape: tuple[int, int], rows: int, bias: bool) -> None:
    torch.manual_seed(sum(shape) + rows)
    layer = nn.Linear(shape[1], shape[0], bias=bias).requires_grad_(False)
    states = torch.randn(rows, shape[1]) * torch.logspace(-3, 3, rows)[:, None]
    made = W8A8Linear.rounded(layer.weight, layer.bias)
    expected = by_hand(layer, states, w8a8.LARGEST)
    assert (made(states).double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@given(st.integers(1, 9), st.integers(0, 2**31))
def test_a_row_does_not_depend_on_the_rows_beside_it(rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer = W8A8Linear.rounded(torch.randn(70, 48, generator=generator), None)
    states = torch.randn(rows, 48, generator=generator) * 10.0 ** torch.randint(-3, 4, (rows, 1), generator=generator)
    together = layer(states)
    apart = torch.cat([layer(row[None]) for row in states])
    assert torch.equal(together, apart)


def test_largest_factors_do_not_saturate() -> None:
    layer = W8A8Linear.rounded(torch.full((16, 512), 2.0), None)
    torch.testing.assert_close(layer(torch.full((1, 512), 3.0)), torch.full((1, 16), 512 * 6.0), rtol=0.01, atol=0)


def saturating(rows: Tensor, columns: Tensor) -> Tensor:
    """As on a CPU without VNNI: unsigned times signed bytes, the products of two pairs added in 16 bits."""
    products = (rows.int()[:, None] + 128) * columns.int().t()
    pairs = products.unflatten(-1, (-1, 2)).sum(-1).clamp(-(2**15), 2**15 - 1)
    return pairs.sum(-1) - 128 * columns.int().sum(0)


def test_saturation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_int_mm", saturating)
    w8a8.is_exact.cache_clear()
    assert not w8a8.is_exact()
    w8a8.is_exact.cache_clear()


def test_a_layout_whose_product_loses_some_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some CPUs add the bytes of one kernel without loss and those of the other with: 8,160 for 1,032,256, once."""
    real = torch.ops.onednn.qlinear_pointwise

    def loses(rows: Tensor, *more: object) -> Tensor:
        return real(rows, *more).clamp(max=8160.0)

    monkeypatch.setattr(torch.ops.onednn, "qlinear_pointwise", loses)
    w8a8._is_exact_laid_out.cache_clear()
    layer = W8A8Linear.rounded(torch.full((64, 16), 2.0), None)  # wide
    product = layer(torch.full((1, 16), 3.0))
    w8a8._is_exact_laid_out.cache_clear()
    torch.testing.assert_close(product, torch.full((1, 64), 16 * 6.0), rtol=0.01, atol=0)


def test_rows_of_zeros_give_the_bias() -> None:
    layer = W8A8Linear.rounded(torch.randn(5, 12), torch.arange(5.0))
    assert torch.equal(layer(torch.zeros(2, 12)), torch.arange(5.0).expand(2, 5))


def test_input_is_left_as_it_was_and_its_type_comes_back() -> None:
    layer = W8A8Linear.rounded(torch.randn(5, 12), None)
    for dtype in (torch.float32, torch.bfloat16):
        states = torch.randn(1, 3, 12, dtype=dtype)
        before = states.clone()
        assert layer(states).dtype == dtype
        assert layer(states).shape == (1, 3, 5)
        assert torch.equal(states, before)
