"""Weights in 8 or 4 bits: a decoding step costs what its bytes cost, so fewer bits make a cheaper step.

Every linear layer, the head included, is replaced by one of `quantized_linear` (weights alone are rounded) or `w8a8`
(activations too). A draft may be rounded as one likes, since the rule corrects whatever it proposes; a target that is
rounded is another model.

On CUDA int8 and int4 mean torchao's weight-only kernels. That path is written after torchao's documentation and has
not been run: there was no GPU to try it on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from specdec_cli.activity import doing, each_of
from specdec_cli.errors import SpecdecError, UsageError
from specdec_cli.runtime.layers.packed import packed_layer
from specdec_cli.runtime.layers.quantized_linear import GROUP, Int4Linear, Int8Linear, QuantizedLinear, is_plain
from specdec_cli.runtime.layers.w8a8 import W8A8Linear, is_exact
from specdec_cli.settings import AUTO, NOT_QUANTIZED

# In the order of likeness to the whole weights.
KINDS: dict[str, type[QuantizedLinear]] = {"int8": Int8Linear, "w8a8": W8A8Linear, "int4": Int4Linear}
# `auto` times so many turns of so many steps of each choice, after one that is not counted.
TURNS, STEPS = 7, 3
AS_FAST = 1.05  # within this of the fastest, the more like choice is better: it has more drafts accepted


def is_conv1d(layer: nn.Module) -> bool:
    """Whether it is transformers' linear layer of GPT-2's age, by name: nothing of transformers is imported here."""
    kind = type(layer)
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


@dataclass(frozen=True)
class _Place:
    """A linear layer and where it hangs."""

    parent: nn.Module
    name: str
    layer: nn.Module

    def put(self, layer: nn.Module) -> None:
        if getattr(self.parent, self.name) is not layer:
            setattr(self.parent, self.name, layer)

    def quantized(self, kind: type[QuantizedLinear]) -> QuantizedLinear:
        weight: Any = self.layer.weight
        # GPT-2's Conv1D is a linear layer whose weight lies transposed.
        weight = weight.t() if is_conv1d(self.layer) else weight
        return kind.rounded(weight, self.layer.bias)  # type: ignore[arg-type]


def _places(model: nn.Module) -> Iterator[_Place]:
    """Linear layers that are known; any other computes something else, and is left alone."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if is_plain(layer) or (is_conv1d(layer) and layer.weight.is_floating_point()):  # type: ignore[operator]
                yield _Place(parent, name, layer)


def require_kernels(how: str, device: torch.device, option: str) -> None:
    """Refuse bits that cannot be computed with here, before anything is read.

    Args:
        how: one of `KINDS`, or "auto".
        option: what asked for it, for messages.

    Raises:
        UsageError: the device has no such kernels.
        SpecdecError: a package is missing.
    """
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"{option} {how} has no kernels on {device.type}: choose cpu or cuda, or {NOT_QUANTIZED}")
    if device.type == "cpu":
        if how == "w8a8" and not is_exact():
            raise UsageError(f"{option} w8a8: this CPU adds products of bytes with loss (it has no VNNI): choose int8")
        return
    if how == "w8a8":
        raise UsageError(f"{option} w8a8 has kernels for a CPU alone: choose int8 or int4")
    if how == AUTO:
        raise UsageError(f"{option} {AUTO} compares the kernels of a CPU only: choose {NOT_QUANTIZED}, int8 or int4")
    try:
        import torchao.quantization  # noqa: F401  # it takes long, and says much, so only where it is wanted
    except ImportError as error:
        raise SpecdecError(f"{option} {how} on cuda needs torchao: pip install 'specdec-cli[quant]'") from error


def require_dtype(how: str, dtype: torch.dtype, device: torch.device, option: str) -> None:
    """Refuse a number type that the kernels do not compute in.

    Raises:
        UsageError: naming the one that they do.
    """
    if device.type == "cuda" and how == "int4" and dtype != torch.bfloat16:
        raise UsageError(f"{option} int4 on cuda computes in bfloat16 alone: add --dtype bfloat16, or choose int8")


def quantize(model: Any, how: str, device: torch.device, option: str) -> tuple[str, str]:
    """Round a model's linear layers, one after the other, letting go of each as it is replaced.

    Args:
        model: on `device`, in evaluation mode.
        how: one of `KINDS`, or "auto" for what steps fastest here, which may be none of them.
        device: what the model computes on.
        option: what asked for it, for messages.

    Returns:
        what it came to ("none", or one of `KINDS`), and a few words about it for the user.

    Raises:
        UsageError: the device has no such kernels, or they do not take the model's number type.
        SpecdecError: a package is missing.
    """
    require_kernels(how, device, option)
    require_dtype(how, model.dtype, device, option)
    if device.type == "cuda":
        return how, _by_torchao(model, how, option)
    with torch.no_grad():
        if how == AUTO:
            how, words = _fastest(model)
        else:
            words = f"weights rounded to {how}"
            for place in each_of(_places(model), f"rounding weights to {how}"):
                place.put(place.quantized(KINDS[how]))
    return how, f"{words} ({_left_over(model)})" if how != NOT_QUANTIZED else words


def _fastest(model: Any) -> tuple[str, str]:
    """Try every choice in turn, keep the one that steps fastest; the most like of several."""
    with doing("finding the fastest weights"):
        return _fastest_of(model, list(_places(model)))


def _fastest_of(model: Any, places: list[_Place]) -> tuple[str, str]:
    layers: dict[str, list[nn.Module]] = {NOT_QUANTIZED: [packed_layer(place.layer) for place in places]}
    for how, kind in KINDS.items():
        if kind is not W8A8Linear or is_exact():
            layers[how] = [place.quantized(kind) for place in places]
    token = torch.zeros(1, 1, dtype=torch.long)

    def step_with(made: list[nn.Module]) -> Callable[[], None]:
        def steps() -> None:
            for place, layer in zip(places, made, strict=True):
                place.put(layer)
            model(input_ids=token, use_cache=False)

        return steps

    medians = step_seconds({how: step_with(made) for how, made in layers.items()})
    best = next(how for how in medians if medians[how] <= AS_FAST * min(medians.values()))
    for place, layer in zip(places, layers[best], strict=True):
        place.put(layer)
    ranking = ", ".join(f"{how} {value * 1000:.1f}" for how, value in sorted(medians.items(), key=lambda item: item[1]))
    return best, f"weights {'as they are' if best == NOT_QUANTIZED else best}, the fastest here (ms a step: {ranking})"


def step_seconds(steps: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median seconds of a step of each, all in turn."""
    seconds: dict[str, list[float]] = {how: [] for how in steps}
    for turn in range(1 + TURNS):
        for how, step in steps.items():
            step()  # what was put in its place, or has left the caches, is not this step's to pay
            started = time.perf_counter()
            for _ in range(STEPS):
                step()
            if turn:
                seconds[how].append((time.perf_counter() - started) / STEPS)
    return {how: median(values) for how, values in seconds.items()}


def _left_over(model: nn.Module) -> str:
    """How many layers were rounded, to how many bytes, and what stays."""
    layers = sum(isinstance(module, QuantizedLinear) for module in model.modules())
    rest = sum(parameter.nbytes for parameter in model.parameters())
    size = weight_bytes(model) - rest
    return f"{layers} layers, {size / 1e6:,.1f} MB; {rest / 1e6:,.1f} MB stay as they were"


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights, rounded or not; tied ones counted once."""
    rounded = (module for module in model.modules() if isinstance(module, QuantizedLinear))
    return sum(module.nbytes for module in rounded) + sum(parameter.nbytes for parameter in model.parameters())


def _by_torchao(model: Any, how: str, option: str) -> str:
    """torchao's weight-only kernels for CUDA (after its documentation; not run yet)."""
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    if how == "int8":
        quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda layer, _: is_plain(layer))
    else:
        config = Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d")
        quantize_(model, config, filter_fn=lambda layer, _: is_plain(layer))
    return f"weights rounded to {how} by torchao"
