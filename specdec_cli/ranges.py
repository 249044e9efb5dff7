"""Several K in one option, in the grammar that llama-bench made familiar.

    1,2,4     these
    1-8       from 1 to 8
    1-9+2     every second from 1 to 9: 1 3 5 7 9
    2-16*2    doubling from 2 to 16: 2 4 8 16

Parts are joined by commas, in any order; what several of them name counts once.
"""

from __future__ import annotations

import re

from specdec_cli.errors import UsageError

GRAMMAR = "1,2,4 or 1-8 or 2-16*2 or 1-9+2"
# A round this long would never pay, and a typing error must not plan a sweep for days.
LARGEST = 1000

_PART = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})(?:(?P<kind>[+*])(?P<step>\d{1,9}))?)?", re.ASCII)


def parse_range(text: str, option: str) -> tuple[int, ...]:
    """The numbers that a text of the grammar names, sorted, each once; all from 1 to LARGEST.

    Args:
        text: what the user gave.
        option: its name, for messages.

    Raises:
        UsageError: the text is not of the grammar, or names no number from 1 to LARGEST.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        found = _PART.fullmatch(part)
        if found is None:
            where = f"'{part}' in '{text}'" if part and part != text else f"'{text}'"
            raise _refusal(option, where, "is no number and no range")
        first = int(found["first"])
        last = int(found["last"] or first)
        step = int(found["step"] or 1)
        where = f"'{part}'"
        if first < 1:
            raise _refusal(option, where, "starts below 1")
        if last < first:
            raise _refusal(option, where, f"runs backwards ({last}-{first} is meant?)")
        if last > LARGEST:
            raise _refusal(option, where, f"goes above {LARGEST:,}")
        if step < (2 if found["kind"] == "*" else 1):
            raise _refusal(option, where, f"never gets on by {found['kind']}{step}")
        while first <= last:
            numbers.add(first)
            first = first * step if found["kind"] == "*" else first + step
    return tuple(sorted(numbers))


def _refusal(option: str, where: str, why: str) -> UsageError:
    return UsageError(" ".join(f"{option} {where} {why}: write {GRAMMAR}, with numbers from 1".split()))
