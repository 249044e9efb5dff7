"""Which device, which number type, how much memory, and a clock that waits for the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import torch
from torch.nn.functional import linear

from specdec_cli.errors import OutOfMemoryError, UsageError


def choose_device(wanted: str, option: str) -> torch.device:
    """`auto` is cuda, then mps, then cpu.

    Raises:
        UsageError: torch does not know the device, or it is not here.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, AttributeError) as error:
        available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            available.append("mps")
        raise UsageError(f"{option} '{wanted}' is not available; here there is: {', '.join(available)}") from error
    if device.type == "meta":
        raise UsageError(f"{option} 'meta' holds no data: choose cpu, cuda or mps")
    return device


class LinearShape(NamedTuple):
    """A model's typical weight matrix, and how many of them it has."""

    out_features: int
    in_features: int
    copies: int


def choose_dtype(wanted: str, stored: torch.dtype, device: torch.device, shape: LinearShape) -> tuple[torch.dtype, str]:
    """The number type to compute in, and why, in a word or two.

    Args:
        wanted: "auto" or the name of a torch dtype.
        stored: the checkpoint's type.
        device: where the model will run.
        shape: what the model spends its time on.
    """
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype, "as asked"
    if stored == torch.float32 or _is_fast(stored, device, shape):
        return stored, "as stored"
    return torch.float32, f"{str(stored).removeprefix('torch.')} is slower here"


def _is_fast(dtype: torch.dtype, device: torch.device, shape: LinearShape) -> bool:
    """Whether the device computes in `dtype` at least as fast as in float32; a CPU is asked by trying it.

    Sizes decide: a weight matrix that must come from memory is faster in 16 bits on almost any CPU, one that is in the
    cache only where there are units for the type. So the model's own shape is tried, as many copies of it as the model
    has (64 MB of float32 at most), with one row and with five, as decoding and verifying do.
    """
    if device.type == "cuda":
        return dtype != torch.bfloat16 or torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return True
    size = 4 * shape.out_features * shape.in_features
    copies = max(1, min(shape.copies, 64_000_000 // size))
    weights = {t: torch.ones(copies, shape.out_features, shape.in_features, dtype=t) for t in (dtype, torch.float32)}
    best = dict.fromkeys(weights, math.inf)
    with torch.inference_mode():
        for _ in range(5):
            for candidate, matrices in weights.items():
                started = time.perf_counter()
                for rows in (1, 5):
                    x = torch.ones(rows, shape.in_features, dtype=candidate)
                    for matrix in matrices:
                        linear(x, matrix)
                best[candidate] = min(best[candidate], time.perf_counter() - started)
    return best[dtype] <= best[torch.float32]


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    # mps shares the machine's memory.
    return psutil.virtual_memory().available


def clock_for(*devices: torch.device) -> Callable[[], float]:
    """Seconds, read after the devices have finished what they were given."""
    busy = sorted({d for d in devices if d.type != "cpu"}, key=str)
    if not busy:
        return time.perf_counter

    def clock() -> float:
        for device in busy:
            if device.type == "mps":
                torch.mps.synchronize()
            else:
                torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


@contextmanager
def out_of_memory(what: str, remedy: str) -> Iterator[None]:
    """Turn a failed allocation on any device into one line.

    Raises:
        OutOfMemoryError: the block ran out of memory.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemoryError(f"not enough memory {what}: {remedy}") from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        raise OutOfMemoryError(f"not enough memory {what}: {remedy}") from error
