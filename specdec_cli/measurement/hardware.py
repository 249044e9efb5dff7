"""The machine and the software a record was made with."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from types import TracebackType

import psutil
import torch

COPIED_BYTES = 256 * 2**20
COPIES = 7
# Of all cores together: below it, the system's counters are too coarse for a share.
LEAST_CORE_S = 0.5


def environment(*devices: torch.device) -> dict[str, object]:
    """What a reader of a record needs to know about where it was made.

    Args:
        devices: those that computed.
    """
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [device_name(device) for device in dict.fromkeys(devices)],
    }


def device_name(device: torch.device) -> str:
    """The accelerator's own name, or cpu."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def cpu_name() -> str:
    """The processor's model as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def threads_and_cores() -> tuple[int, int] | None:
    """torch's threads, and the physical cores that this process may use; None where the system does not tell."""
    cores = psutil.cpu_count(logical=False)
    if cores is None:
        return None
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return torch.get_num_threads(), min(cores, allowed)


def cores_needed() -> float:
    """The share of the physical cores that torch has threads for, at most 1; 1 where the system does not tell."""
    known = threads_and_cores()
    return 1.0 if known is None else min(1.0, known[0] / known[1])


def copy_bandwidth(device: torch.device, clock: Callable[[], float]) -> float:
    """Bytes a second that the device moves when it copies a large tensor, reading and writing counted both.

    What a target step achieves is measured against this: the median of several copies, after one to warm up.
    """
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(COPIES + 1):
        started = clock()
        target.copy_(source)
        seconds.append(clock() - started)
    return 2 * COPIED_BYTES / median(seconds[1:])


def peak_memory(device: torch.device) -> int | None:
    """Bytes at most taken so far: on cuda by tensors, elsewhere by this process; None where it is not told."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


class OtherProcesses:
    """What share of the time of all cores that this process may use other processes take while the block runs.

    Args:
        needed: the share of these cores that this process has threads for.

    Attributes:
        share: 0 to 1, known after the block; None where the system does not tell.
        contention: what of it this process had use for: not what its threads leave free, and not while as much stood
            idle. None where the block was too short to tell.
    """

    share: float | None = None
    contention: float | None = None

    def __init__(self, needed: float = 1.0) -> None:
        self._needed = needed

    def __enter__(self) -> OtherProcesses:
        self._before = self._seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        busy, idle, own = (after - before for after, before in zip(self._seconds(), self._before, strict=True))
        total = busy + idle
        if total > 0:
            self.share = max(0.0, busy - own) / total
        if self.share is not None and total >= LEAST_CORE_S:
            self.contention = max(0.0, self.share - max(idle / total, 1 - self._needed))

    @staticmethod
    def _seconds() -> tuple[float, float, float]:
        every = psutil.cpu_times(percpu=True)
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
        cores = [times for i, times in enumerate(every) if i in allowed] or every
        idle = sum(times.idle + getattr(times, "iowait", 0.0) for times in cores)
        # Guest time is already in user time.
        guests = sum(getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0) for times in cores)
        own = psutil.Process().cpu_times()
        return sum(map(sum, cores)) - idle - guests, idle, own.user + own.system
