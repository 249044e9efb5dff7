"""Which device, which number type, how much memory, and a clock that waits for the device."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import torch
from torch.nn.functional import linear

from specdec_cli.errors import UsageError


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
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            available.append("mps")
        raise UsageError(f"{option} '{wanted}' is not available; here there is: {', '.join(available)}") from error
    if device.type == "meta":
        raise UsageError(f"{option} 'meta' holds no data: choose cpu, cuda or mps")
    return device


def choose_dtype(wanted: str, stored: torch.dtype, device: torch.device) -> tuple[torch.dtype, str | None]:
    """The number type to compute in, and a note where `auto` leaves the checkpoint's own.

    Args:
        wanted: "auto" or the name of a torch dtype.
        stored: the checkpoint's type.
        device: where the model will run.
    """
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype, None
    if stored == torch.float32 or _is_fast(stored, device):
        return stored, None
    name = str(stored).removeprefix("torch.")
    return torch.float32, f"float32, since {name} is slower on this {device.type}"


def _is_fast(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the device computes in `dtype` at least as fast as in float32, by trying it on a CPU."""
    if device.type == "cuda":
        return dtype != torch.bfloat16 or torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return True
    # A verify pass's worth of rows through a layer that is small enough for the cache: arithmetic decides, which is
    # where a CPU without units for 16-bit types loses. A few milliseconds, best of several tries.
    rows, width = 8, 512

    def best_of(candidate: torch.dtype) -> float:
        x = torch.ones(rows, width, dtype=candidate)
        weight = torch.ones(width, width, dtype=candidate)
        times = []
        for _ in range(12):
            started = time.perf_counter()
            linear(x, weight)
            times.append(time.perf_counter() - started)
        return min(times)

    return best_of(dtype) <= best_of(torch.float32)


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
