"""The machine and the software a record was made with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch


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
