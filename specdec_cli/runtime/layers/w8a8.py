"""Weights and activations in 8 bits: whole-number products, at twice and more the speed of kernels for weights alone.

Every row of a layer's input is divided by its own largest value and rounded to 255 steps, as every row of its weights
was once; products and sums are whole numbers, exact, and are multiplied by both scales at the end (Dettmers et al.,
LLM.int8(), arXiv 2208.07339, without its outlier columns; llama.cpp rounds activations likewise). A row's result does
not depend on the rows beside it, so that verifying K + 1 tokens at once gives what single steps give.

The rounded activations cost some likeness beside rounded weights alone (`measurement.fidelity` measures it), and buy a
product whose time hardly grows with the number of rows where the CPU multiplies bytes (AVX-512 VNNI, AMX).

Facts about torch 2.13 that this rests on: `_int_mm` multiplies on the CPU by oneDNN from the weights as they lie, and
`onednn.qlinear_pointwise` from weights that were laid out for it, which is quicker for layers much wider than their
input and slower for others. Without VNNI, oneDNN adds pairs of byte products in 16 bits, which loses some: `is_exact`
and `_is_exact_laid_out` try both products with the largest bytes, and what is not exact here is not used.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from specdec_cli.runtime.layers.quantized_linear import QuantizedLinear, int8_codes, row_blocks

WIDE = 3  # outputs for each input from which a layout of its own pays; measured at 1 to 9 rows
LARGEST = 127  # step of an activation
OFFSET = 128  # what makes it unsigned
TINY = 1e-20  # added to scales, so that a row of zeros is divided by something


class W8A8Linear(QuantizedLinear):
    """Per-row int8 weights, per-row int8 activations.

    Args:
        codes: [out_features, in_features] int8.
        scales: [out_features] float32.
    """

    codes: Tensor | None
    scales: Tensor

    def __init__(self, codes: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        super().__init__(codes.shape[1], len(codes), bias)
        wide = self.out_features >= WIDE * self.in_features and _is_exact_laid_out()
        self.register_buffer("codes", None if wide else codes)
        self.register_buffer("scales", scales)
        self._laid_out: Any = torch.ops.onednn.qlinear_prepack(codes, None) if wide else None
        self._zeros = torch.zeros(self.out_features, dtype=torch.long)

    @property
    def nbytes(self) -> int:
        return self.out_features * self.in_features + self.scales.nbytes

    @classmethod
    def rounded(cls, weight: Tensor, bias: Tensor | None) -> Self:
        weight = weight.detach()
        codes, scales = zip(*(int8_codes(weight[cut]) for cut in row_blocks(*weight.shape)), strict=True)
        return cls(torch.cat(codes), torch.cat(scales).float(), bias)

    def forward(self, states: Tensor) -> Tensor:
        rows = states.reshape(-1, self.in_features).float()
        steps = torch.add(TINY, rows.abs().amax(-1, keepdim=True), alpha=1 / LARGEST)
        product = self._product(rows / steps).mul_(steps).to(states.dtype)
        if self.bias is not None:
            product = product + self.bias
        return product.reshape(*states.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        """[n, in_features] float32 from -127 to 127, rounded, times the weights: [n, out_features] float32."""
        if self.codes is not None:
            return torch._int_mm(rows.round_().to(torch.int8), self.codes.t()) * self.scales
        # Unsigned, since oneDNN multiplies signed bytes quickly with AMX alone.
        unsigned = rows.round_().add_(OFFSET).to(torch.uint8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, OFFSET, self._laid_out, self.scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return product


@cache
def is_exact() -> bool:
    """Whether this CPU adds products of bytes without loss; one without VNNI may add pairs of them in 16 bits."""
    rows, columns, sums = _extremes()
    return torch._int_mm(rows, columns.t())[:, 0].tolist() == sums


@cache
def _is_exact_laid_out() -> bool:
    """The same for the product from a layout of its own, which is another kernel."""
    rows, columns, sums = _extremes()
    scales, zeros = torch.ones(len(columns)), torch.zeros(len(columns), dtype=torch.long)
    product = torch.ops.onednn.qlinear_pointwise(
        (rows.int() + OFFSET).to(torch.uint8), 1.0, OFFSET, torch.ops.onednn.qlinear_prepack(columns, None), scales,
        zeros, None, 1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    exact: bool = product[:, 0].tolist() == sums
    return exact


def _extremes() -> tuple[Tensor, Tensor, list[int]]:
    """Rows whose products overflow 16 bits soonest, [3 * 16, 64], columns [16, 64], both int8, and the right sums."""
    largest = torch.full((16, 64), LARGEST, dtype=torch.int8)
    alternating = largest * torch.tensor([1, -1], dtype=torch.int8).repeat(32)
    sums = [64 * LARGEST**2, -64 * LARGEST**2, 0]
    return torch.cat([largest, -largest, alternating]), largest, [n for n in sums for _ in range(16)]
