"""Which device, which number type, how much memory, and a clock that waits for the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import torch

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


def choose_dtype(wanted: str, stored: torch.dtype, device: torch.device) -> tuple[torch.dtype, str]:
    """The number type to compute in, and why, in a word or two.

    Args:
        wanted: "auto" or the name of a torch dtype.
        stored: the checkpoint's type.
        device: where the model will run.
    """
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype, "as asked"
    if stored == torch.float32 or _is_fast(stored, device):
        return stored, "as stored"
    return torch.float32, f"this {device.type} has no fast {str(stored).removeprefix('torch.')}"


def _is_fast(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the device has units for a 16-bit type.

    It is asked, not timed: a race that noise decides now and then would give one seed two texts.
    """
    if device.type == "cuda":
        return dtype != torch.bfloat16 or torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return True
    if not torch.backends.mkldnn.is_available():
        return False
    mkldnn = torch.ops.mkldnn
    supported = mkldnn._is_mkldnn_bf16_supported if dtype == torch.bfloat16 else mkldnn._is_mkldnn_fp16_supported
    return bool(supported())


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
