"""What is told behind each answer of a chat, in a line."""

from __future__ import annotations

from typing import Any

from specdec_cli.quantities import counted


def answer_line(record: dict[str, Any]) -> str:
    """Its speed, and how much of what was drafted stands in it."""
    parts = [counted(record["new_tokens"], "token")]
    if speed := record["timings"]["tokens_per_s"]:
        parts.append(f"{speed:.1f} tokens/s")
    if record["drafted"]:
        alpha = "" if record["alpha"] is None else f" (alpha {record['alpha']:.2f})"
        parts.append(f"{record['accepted']} of {counted(record['drafted'], 'drafted token')} accepted{alpha}")
    if record["finish_reason"] == "length":
        parts.append("cut at the length limit")
    if record["finish_reason"] == "interrupted":
        parts.append("stopped")
    return ", ".join(parts)
