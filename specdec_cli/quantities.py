"""Sizes and speeds as people write them: 70B parameters, 3.35TB/s, 1979T operations a second; and counts in words."""

from __future__ import annotations

import math
import re

from specdec_cli.errors import UsageError

POWERS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}

# Below these a number without a letter is one whose letter was forgotten: no model, and no machine, is so small.
LEAST_PARAMETERS, LEAST_ARITHMETIC = 1e3, 1e6

_NUMBER = r"\s*(?P<number>(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*"
_PARAMETERS = re.compile(_NUMBER + r"(?P<power>[KMBT]?)\s*", re.ASCII | re.IGNORECASE)
# Upper case only: a small b is a bit.
_BANDWIDTH = re.compile(_NUMBER + r"(?:(?P<power>[KMGTP])(?:B/s)?|B/s)\s*", re.ASCII)
_ARITHMETIC = re.compile(_NUMBER + r"(?P<power>[KMGTP]?)(?:FLOPS|FLOPs|FLOP/s)?\s*", re.ASCII)


def parse_parameters(text: str, option: str) -> float:
    """A model's size: 70B, 1.5B, 135M or a count.

    Raises:
        UsageError: anything else, 0, or a count so small that its letter must be missing.
    """
    return _parse(_PARAMETERS, text, option, "a number of parameters, such as 70B or 135M", LEAST_PARAMETERS)


def parse_bandwidth(text: str, option: str) -> float:
    """Bytes a second: 3.35TB/s, 3350GB/s, 50G. A number alone may be meant in any unit.

    Raises:
        UsageError: anything else, or 0.
    """
    return _parse(_BANDWIDTH, text, option, "bytes a second with their unit, such as 3.35TB/s or 3350GB/s")


def parse_arithmetic(text: str, option: str) -> float:
    """Floating-point operations a second: 1979T, 312TFLOP/s or a count.

    Raises:
        UsageError: anything else, 0, or a count so small that its letter must be missing.
    """
    return _parse(_ARITHMETIC, text, option, "operations a second, such as 1979T or 312TFLOP/s", LEAST_ARITHMETIC)


def counted(number: int, noun: str) -> str:
    """`1 answer`, `2,000 answers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _parse(pattern: re.Pattern[str], text: str, option: str, wanted: str, least: float = 0.0) -> float:
    found = pattern.fullmatch(text)
    power = (found["power"] or "").upper() if found else ""
    value = float(found["number"]) * POWERS[power] if found else 0.0
    if not 0 < value < math.inf or (not power and value < least):
        raise UsageError(f"{option} must be {wanted}, not '{' '.join(text.split())}'")
    return value
