"""Hidden states of a model on request: hooks that keep what passes by, for the passes that somebody wants them of.

No second pass, and no `output_hidden_states`, which would keep every layer's. Without a tap there is no hook.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from specdec_cli.decoding.model import Tap
from specdec_cli.errors import IncompatiblePairError


def name_of_layers(model: nn.Module, number: int) -> str:
    """Where a model's list of so many decoder layers is.

    Raises:
        LookupError: there is none, or more than one; in a few words.
    """
    lists = [name for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == number]
    lists = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(lists) != 1:
        raise LookupError(f"{len(lists)} lists of {number} modules might be its layers")
    return lists[0]


class HiddenStates:
    """What some taps of a model give, one row a token.

    Args:
        model: a causal language model of transformers; gets hooks until `remove`.
        taps: at least one.

    Raises:
        IncompatiblePairError: its layers are not a plain list.
    """

    def __init__(self, model: Any, taps: Sequence[Tap]) -> None:
        self.taps = tuple(taps)
        self._name = type(model).__name__
        self._device = model.device
        self._passing: dict[Tap, Tensor] | None = None  # of the pass that is watched
        self._rows: list[Tensor] = []
        number = model.config.get_text_config(decoder=True).num_hidden_layers
        try:
            parent, _, last = name_of_layers(model, number).rpartition(".")
        except LookupError as error:
            raise self._unfit(str(error)) from error
        decoder = model.get_submodule(parent)
        layers = decoder.get_submodule(last)
        self._hooks = []
        for tap in dict.fromkeys(self.taps):
            if tap.normed and tap.boundary == number:
                hook = decoder.register_forward_hook(self._after(tap))
            elif tap.normed or not 0 <= tap.boundary <= number:
                raise ValueError(f"a model of {number} layers has no {tap}")
            elif tap.boundary == 0:
                hook = layers[0].register_forward_pre_hook(self._before(tap), with_kwargs=True)
            else:
                hook = layers[tap.boundary - 1].register_forward_hook(self._after(tap))
            self._hooks.append(hook)

    def remove(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def forget(self) -> None:
        """Drop what was not taken."""
        self._rows = []

    @contextmanager
    def watch(self, num_tokens: int) -> Iterator[None]:
        """Keep the states of the one pass within, over so many tokens."""
        self._passing = {}
        try:
            yield
            self._rows.append(self._joined(self._passing, num_tokens))
        finally:
            self._passing = None

    def take(self) -> Tensor:
        """[n, width] of all tokens of watched passes since the last time, in the model's number type."""
        rows, self._rows = self._rows, []
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _joined(self, passed: dict[Tap, Tensor], num_tokens: int) -> Tensor:
        parts = []
        for tap in self.taps:
            found = passed.get(tap)
            if found is None or found.dim() != 3 or found.shape[:2] != (1, num_tokens):
                shape = "none" if found is None else list(found.shape)
                raise self._unfit(f"it gives {shape} for {num_tokens} tokens at boundary {tap.boundary}")
            parts.append(found[0].to(self._device))
        return torch.cat(parts, -1)

    def _after(self, tap: Tap) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if self._passing is not None:
                self._passing[tap] = output if isinstance(output, Tensor) else output[0]

        return hook

    def _before(self, tap: Tap) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            if self._passing is not None:
                self._passing[tap] = inputs[0] if inputs else named["hidden_states"]

        return hook

    def _unfit(self, why: str) -> IncompatiblePairError:
        return IncompatiblePairError(
            f"the target ({self._name}) does not give the hidden states that a trained head reads: {why}: choose "
            "another source of drafts"
        )
