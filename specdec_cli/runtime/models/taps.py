"""Hooks on a transformers model that keep hidden states of a pass, from the places that were asked for.

States are those that `output_hidden_states` would give, boundary by boundary, with two differences: nothing is kept
that nobody reads, and the last layer's output can be had before the final norm too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specdec_cli.decoding.states import Tap
from specdec_cli.errors import IncompatiblePairError


class Taps:
    """Hooks on one model, until `remove`.

    Args:
        model: a causal language model of transformers, or of another with one inside.
        taps: at least one.
        device: where the states are put together.

    Raises:
        IncompatiblePairError: the model's layers are not one list, or it has fewer than a tap says.
    """

    def __init__(self, model: nn.Module, taps: Sequence[Tap], device: torch.device) -> None:
        decoder, layers = decoder_layers(model)
        self._device = device
        self._seen: list[Tensor | None] = [None] * len(taps)
        self._hooks: list[Any] = []
        try:
            for place, tap in enumerate(taps):
                self._hooks.append(self._hook(decoder, layers, place, tap))
        except IncompatiblePairError:
            self.remove()
            raise

    def take(self) -> Tensor:
        """[n, sum of widths] of the last pass; forgotten here."""
        seen = [states for states in self._seen if states is not None]
        if len(seen) < len(self._seen):
            raise RuntimeError("states were taken before a pass was made")
        self._seen = [None] * len(seen)
        return torch.cat([states[0].to(self._device) for states in seen], dim=-1)

    def remove(self) -> None:
        """The model is as it was."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, decoder: nn.Module, layers: nn.ModuleList, place: int, tap: Tap) -> Any:
        last = len(layers)
        if not 0 <= tap.boundary <= last or (tap.normed and tap.boundary != last):
            raise IncompatiblePairError(
                f"the draft reads the target's hidden states behind layer {tap.boundary}, and the target "
                f"({type(decoder).__name__}) has {last} layers: choose a head that was trained for this target"
            )
        if tap.normed:
            return decoder.register_forward_hook(partial(self._after, place))
        if tap.boundary == last:
            return layers[-1].register_forward_hook(partial(self._after, place))
        return layers[tap.boundary].register_forward_pre_hook(partial(self._before, place), with_kwargs=True)

    def _before(self, place: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._seen[place] = args[0] if args else kwargs["hidden_states"]

    def _after(self, place: int, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._seen[place] = output if isinstance(output, Tensor) else output[0]


def decoder_layers(model: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """The module that runs a causal language model's layers and its final norm, and the layers.

    Raises:
        IncompatiblePairError: there is not one such list.
    """
    config: Any = model.config
    count = config.get_text_config(decoder=True).num_hidden_layers
    lists = [
        (parent, part)
        for parent in model.modules()
        for part in parent.children()
        if isinstance(part, nn.ModuleList) and len(part) == count
    ]
    owners = {id(part): (parent, part) for parent, part in lists}
    outer = [(p, m) for p, m in owners.values() if not any(m is not o and _within(m, o) for _, o in owners.values())]
    if len(outer) != 1:
        raise IncompatiblePairError(
            f"the draft reads hidden states, and the target ({type(model).__name__}) has {len(outer)} lists of {count} "
            "modules that might be its layers: choose another draft"
        )
    return outer[0]


def _within(part: nn.Module, other: nn.Module) -> bool:
    return any(part is module for module in other.modules())
