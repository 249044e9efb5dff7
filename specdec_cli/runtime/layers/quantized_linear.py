"""Linear layers whose weights are whole numbers (codes) with a scale, computed by torch's CPU kernels.

One scale for each row in int8 (w = code * scale), one and an offset for every 32 weights of a row in int4
(w = (code - 8) * scale + offset). Only the weights are rounded; products are in bfloat16 with sums in float32.

Facts about torch 2.13's kernels that this rests on, none of them checked there: `_weight_int8pack_mm` reads behind the
end of a row unless its length is a multiple of 16 (wrong numbers, or a crash); `_weight_int4pack_mm_for_cpu` wants rows
in groups, and keeps blocks of 64 rows together, so that packed blocks may be joined. Odd shapes are filled up with
zeros that change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

GROUP = 32  # weights that share a scale and an offset in int4, and what rows are filled up to
ROWS = 64  # what the number of rows is filled up to in int4, and a multiple of the rows that torch packs together
# Weights that are rounded or unpacked at once: few enough that their copy in float32 stays in the caches.
AT_ONCE = 2**20
# From so many rows of input on the weights are unpacked for an ordinary product: the kernels' time grows with every
# row (`python benchmarks/cheap_steps.py --rows` measures where they meet).
MANY_ROWS_INT8, MANY_ROWS_INT4 = 32, 256
PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # types that torch multiplies as they are


def int8_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to 255 steps between plus and minus its largest weight.

    Args:
        weight: [rows, columns].

    Returns:
        codes [rows, columns] int8 and scales [rows] bfloat16.
    """
    weight = weight.float()
    scales = (weight.abs().amax(1) / 127).bfloat16()
    # By the scale as it is stored, so that its own rounding is made up for; a row of zeros has none.
    codes = (weight / scales.float().clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round()
    return codes.clamp(-127, 127).to(torch.int8), scales


def int4_codes(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round each group of a row to 16 steps between its smallest and its largest weight.

    Args:
        weight: [rows, columns], the columns a multiple of `GROUP`.

    Returns:
        codes [rows, columns] uint8 from 0 to 15, scales and offsets [rows, groups] bfloat16.
    """
    groups = weight.float().unflatten(1, (-1, GROUP))
    low, high = groups.aminmax(dim=-1)
    scales = ((high - low) / 15).bfloat16()
    offsets = (low + 8 * scales.float()).bfloat16()
    steps = scales.float().clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    codes = ((groups - offsets.float()[..., None]) / steps).round() + 8
    return codes.clamp(0, 15).to(torch.uint8).flatten(1), scales, offsets


def row_blocks(rows: int, columns: int) -> list[slice]:
    """Rows of a matrix in blocks of about `AT_ONCE` weights, all but the last a multiple of `ROWS`."""
    height = max(1, AT_ONCE // columns // ROWS) * ROWS
    return [slice(start, min(start + height, rows)) for start in range(0, rows, height)]


class QuantizedLinear(nn.Module):
    """What a linear layer becomes: [..., in_features] of any float type in, [..., out_features] of the same out.

    Attributes:
        many_rows: so many rows of input, and more, cost less by weights that are unpacked on the way.
    """

    bias: Tensor | None
    many_rows: int

    def __init__(self, in_features: int, out_features: int, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._fill = -in_features % GROUP
        self.register_buffer("bias", None if bias is None else bias.detach())

    @classmethod
    def rounded(cls, weight: Tensor, bias: Tensor | None) -> Self:
        """From [out_features, in_features] weights; the bias, [out_features], is kept as it is."""
        raise NotImplementedError

    @classmethod
    def joined(cls, layers: Sequence[Self]) -> Self:
        """Layers of one input as one: their outputs one behind the other."""
        raise NotImplementedError

    def rows(self, ids: Tensor) -> Self:
        """The layer of some rows: [n] ids of outputs, in their order."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Of codes, scales and offsets."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def forward(self, states: Tensor) -> Tensor:
        rows = states.reshape(-1, self.in_features).to(torch.bfloat16)
        if self._fill:
            rows = pad(rows, (0, self._fill))
        product = self._product(rows) if len(rows) < self.many_rows else self._product_of_many(rows)
        product = product[:, : self.out_features].to(states.dtype)
        if self.bias is not None:
            product = product + self.bias
        return product.reshape(*states.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        """[n, filled columns] bfloat16 times the weights: [n, filled rows]."""
        raise NotImplementedError

    def _product_of_many(self, rows: Tensor) -> Tensor:
        """The same, with the weights unpacked block by block for an ordinary product."""
        blocks = row_blocks(self.out_features + -self.out_features % ROWS, self.in_features)
        return torch.cat([self._block_product(rows, block) for block in blocks], dim=-1)

    def _block_product(self, rows: Tensor, block: slice) -> Tensor:
        """The part of the product that some rows of the weights give."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Int8Linear(QuantizedLinear):
    """Per-row int8.

    Args:
        codes: [out_features, filled columns] int8.
        scales: [out_features] bfloat16.
    """

    codes: Tensor
    scales: Tensor
    many_rows = MANY_ROWS_INT8

    def __init__(self, codes: Tensor, scales: Tensor, in_features: int, bias: Tensor | None) -> None:
        super().__init__(in_features, len(codes), bias)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)

    @classmethod
    def rounded(cls, weight: Tensor, bias: Tensor | None) -> Self:
        weight = weight.detach()
        rows, columns = weight.shape
        return cls.of_codes((int8_codes(weight[cut]) for cut in row_blocks(rows, columns)), rows, columns, bias)

    @classmethod
    def of_codes(
        cls, blocks: Iterable[tuple[Tensor, Tensor]], out_features: int, in_features: int, bias: Tensor | None
    ) -> Self:
        """From codes and scales as `int8_codes` gives them, for each of the `row_blocks`."""
        codes = torch.zeros(out_features, in_features + -in_features % GROUP, dtype=torch.int8)
        scales = torch.empty(out_features, dtype=torch.bfloat16)
        for block, made in zip(row_blocks(out_features, in_features), blocks, strict=True):
            codes[block, :in_features], scales[block] = made
        return cls(codes, scales, in_features, bias)

    @classmethod
    def joined(cls, layers: Sequence[Self]) -> Self:
        codes, scales = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("codes", "scales"))
        return cls(codes, scales, layers[0].in_features, _joined_bias(layers))

    def rows(self, ids: Tensor) -> Self:
        return type(self)(self.codes[ids], self.scales[ids], self.in_features, _bias_of(self, ids))

    def _product(self, rows: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(rows, self.codes, self.scales)

    def _block_product(self, rows: Tensor, block: slice) -> Tensor:
        return linear(rows, self.codes[block].to(rows.dtype)) * self.scales[block]


class Int4Linear(QuantizedLinear):
    """int4 in groups of 32.

    Args:
        packed: [filled rows, filled columns / 2] as torch's packing makes it, the rows a multiple of `ROWS`.
        scales_and_offsets: [groups, filled rows, 2] bfloat16.
    """

    packed: Tensor
    scales_and_offsets: Tensor
    many_rows = MANY_ROWS_INT4

    def __init__(
        self, packed: Tensor, scales_and_offsets: Tensor, in_features: int, out_features: int, bias: Tensor | None
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.register_buffer("packed", packed)
        self.register_buffer("scales_and_offsets", scales_and_offsets)

    @classmethod
    def rounded(cls, weight: Tensor, bias: Tensor | None) -> Self:
        rows, columns = weight.shape
        fill = (0, -columns % GROUP)
        blocks = (int4_codes(pad(weight.detach()[block], fill)) for block in row_blocks(rows, columns))
        return cls.of_codes(blocks, rows, columns, bias)

    @classmethod
    def of_codes(
        cls, blocks: Iterable[tuple[Tensor, Tensor, Tensor]], out_features: int, in_features: int, bias: Tensor | None
    ) -> Self:
        """From codes, scales and offsets as `int4_codes` gives them, for each of the `row_blocks`."""
        rows, columns = out_features + -out_features % ROWS, in_features + -in_features % GROUP
        packed = torch.empty(rows, columns // 2, dtype=torch.uint8)
        pairs = torch.zeros(columns // GROUP, rows, 2, dtype=torch.bfloat16)
        for block, (codes, scales, offsets) in zip(row_blocks(out_features, in_features), blocks, strict=True):
            pairs[:, block] = torch.stack([scales.t(), offsets.t()], dim=-1)
            codes = pad(codes, (0, 0, 0, -len(codes) % ROWS)).int()
            packed[block.start : block.start + len(codes)] = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
        return cls(packed, pairs, in_features, out_features, bias)

    @classmethod
    def joined(cls, layers: Sequence[Self]) -> Self:
        sizes = [layer.out_features for layer in layers]
        bias = _joined_bias(layers)
        if any(size % ROWS for size in sizes[:-1]):  # filled rows would come to stand between the others
            parts = [layer._codes(torch.arange(layer.out_features)) for layer in layers]
            codes, scales, offsets = map(torch.cat, zip(*parts, strict=True))
            return cls._of_rows(codes, scales, offsets, layers[0].in_features, bias)
        packed = torch.cat([layer.packed for layer in layers])
        pairs = torch.cat([layer.scales_and_offsets for layer in layers], dim=1)
        return cls(packed, pairs, layers[0].in_features, sum(sizes), bias)

    def rows(self, ids: Tensor) -> Self:
        return self._of_rows(*self._codes(ids), self.in_features, _bias_of(self, ids))

    @classmethod
    def _of_rows(cls, codes: Tensor, scales: Tensor, offsets: Tensor, in_features: int, bias: Tensor | None) -> Self:
        cuts = row_blocks(len(codes), in_features)
        return cls.of_codes(((codes[cut], scales[cut], offsets[cut]) for cut in cuts), len(codes), in_features, bias)

    def _codes(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes (as bytes), scales and offsets of some rows, as `int4_codes` gives them."""
        blocks, place = (ids // ROWS).unique(return_inverse=True)
        packed = self.packed.unflatten(0, (-1, ROWS))[blocks].flatten(0, 1)
        codes = unpack(packed)[:, place * ROWS + ids % ROWS].t()
        scales, offsets = self.scales_and_offsets[:, ids].transpose(0, 1).unbind(-1)
        return codes, scales, offsets

    def _product(self, rows: Tensor) -> Tensor:
        return torch._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, self.scales_and_offsets)

    def _product_of_many(self, rows: Tensor) -> Tensor:
        return super()._product_of_many(rows) if _packing() else self._product(rows)

    def _block_product(self, rows: Tensor, block: slice) -> Tensor:
        steps = unpack(self.packed[block]).to(rows.dtype).sub_(8).unflatten(0, (-1, GROUP))
        scales, offsets = self.scales_and_offsets[:, None, block].unbind(-1)
        return rows @ torch.addcmul(offsets, steps, scales).flatten(0, 1)


@cache
def _packing() -> int | None:
    """Rows that torch's int4 packing puts together on this machine; None where it packs in a way not known here."""
    codes = (torch.arange(ROWS * GROUP, dtype=torch.int32) * 7 % 16).view(ROWS, GROUP)
    packed = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
    return next((rows for rows in (64, 32) if torch.equal(_unpacked(packed, rows).t().int(), codes)), None)


def _unpacked(packed: Tensor, rows: int) -> Tensor:
    """Blocks of so many rows, each column by column; a byte holds a code of the first and one of the second half."""
    pairs = packed.reshape(-1, packed.shape[1] * 2, rows // 2)
    return torch.stack([pairs & 15, pairs >> 4], dim=-2).flatten(2).transpose(0, 1).flatten(1)


def unpack(packed: Tensor) -> Tensor:
    """What torch packed for its int4 kernel: [rows, columns / 2], the rows a multiple of `ROWS`.

    Returns:
        codes [columns, rows] uint8.
    """
    rows = _packing()
    if rows is not None:
        return _unpacked(packed, rows)
    columns = packed.shape[1] * 2
    plain = torch.tensor([1.0, 0.0], dtype=torch.bfloat16).expand(columns // GROUP, len(packed), 2).contiguous()
    unit = torch.eye(columns, dtype=torch.bfloat16)
    return (torch._weight_int4pack_mm_for_cpu(unit, packed, GROUP, plain) + 8).to(torch.uint8)


def _bias_of(layer: nn.Module, ids: Tensor) -> Tensor | None:
    return None if layer.bias is None else layer.bias[ids]  # type: ignore[index]


def _joined_bias(layers: Sequence[nn.Module]) -> Tensor | None:
    """Biases one behind the other, zeros for a layer that has none; None where none has."""
    biases: list[Any] = [layer.bias for layer in layers]
    some = next((bias for bias in biases if bias is not None), None)
    if some is None:
        return None
    sizes: list[Any] = [layer.out_features for layer in layers]
    parts = [some.new_zeros(n) if bias is None else bias for bias, n in zip(biases, sizes, strict=True)]
    return torch.cat(parts).detach()


def is_plain(layer: object) -> bool:
    """Whether this is a linear layer as torch has it, which may be replaced by another of the same weights.

    What a quantiser puts in such a layer's place may be a class of its own, a linear layer whose weight is a tensor of
    its own, one that holds codes, or one with a hook that does the rest: all these compute something else.
    """
    if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    weight = layer.weight
    return type(weight) in (nn.Parameter, Tensor) and weight.dtype in PLAIN


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """An ordinary layer of these weights, [out_features, in_features], which are not copied."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def take_rows(layer: nn.Module, ids: Tensor) -> nn.Module:
    """A linear layer, rounded or not, of some rows of another: [n] ids of outputs, in their order."""
    if isinstance(layer, QuantizedLinear):
        return layer.rows(ids)
    weight: Any = layer.weight
    return plain_linear(weight.detach()[ids], _bias_of(layer, ids))


def join_rows(layers: Sequence[nn.Module]) -> nn.Module:
    """Linear layers of one input as one layer, whose outputs are theirs, one behind the other.

    Args:
        layers: at least one, all `nn.Linear` or all rounded in one way; they are not changed, and share no weights with
            the result.

    Raises:
        ValueError: they differ in kind or in the length of their input.
    """
    kinds = {type(layer) for layer in layers}
    if len(kinds) != 1 or not all(kind is nn.Linear or issubclass(kind, QuantizedLinear) for kind in kinds):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"only linear layers of one kind can be joined, not {names}")
    if len({layer.in_features for layer in layers}) != 1:
        raise ValueError("layers of inputs of several lengths cannot be joined")
    first = layers[0]
    if isinstance(first, QuantizedLinear):
        return type(first).joined(layers)  # type: ignore[arg-type]
    weights: list[Any] = [layer.weight for layer in layers]
    return plain_linear(torch.cat(weights), _joined_bias(layers))
