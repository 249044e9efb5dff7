"""A stand-in for CUDA graphs on a machine without a GPU: it records operations, and repeats them on the same tensors.

Like a graph, a tape keeps every number of Python's as it was, knows nothing but operations on storages, and refuses
what would have to wait for the device. So where whole texts from tapes equal those without, nothing that was recorded
hangs on Python's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

WAITING = {"_local_scalar_dense", "item", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero", "one_hot"}


class Tape(TorchDispatchMode):
    """Operations in their order, with what they read and what they made.

    Attributes:
        outputs: of the recorded function.
    """

    def __init__(self, function: Callable[[], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        with self:
            self.outputs = function()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in WAITING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        made = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, made))
        return made

    def replay(self, generator: torch.Generator) -> None:
        for func, args, kwargs, made in self.calls:
            drawn = {k: generator if isinstance(v, torch.Generator) else v for k, v in kwargs.items()}
            again = func(*args, **drawn)
            for old, new in zip(tensors(made), tensors(again), strict=True):
                if storage(old) != storage(new):  # else a view, or written where it stands
                    old.copy_(new)


class TapeRecorder:
    """A `specdec_cli.runtime.models.graphs.Recorder` on the CPU.

    Attributes:
        tapes: all that it made.
    """

    def __init__(self) -> None:
        self.tapes: list[Tape] = []

    def record(self, function: Callable[[], tuple[Tensor, ...]], generator: torch.Generator) -> Tape:
        function()  # warm up
        self.tapes.append(Tape(function))
        return self.tapes[-1]


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
