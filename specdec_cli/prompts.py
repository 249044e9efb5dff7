"""Prompts from an argument, a pipe or a file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.settings import is_unicode


@dataclass(frozen=True)
class Prompt:
    """Something to answer.

    Attributes:
        turns: what the user says, one after the other; each is answered before the next is sent.
        history: messages that come before the first turn, as {"role", "content"}.
    """

    turns: tuple[str, ...]
    history: tuple[dict[str, str], ...] = ()


def from_text(text: str, source: str) -> Prompt:
    """A prompt as it was typed or piped.

    Raises:
        UsageError: nothing but white space.
    """
    if not text.strip():
        raise UsageError(f"the prompt{source} is empty: give it as an argument, through a pipe, or with --prompts")
    if not is_unicode(text):
        raise UsageError(f"the prompt{source} is not UTF-8: convert it first")
    return Prompt((text,))


def read_prompts(path: Path) -> list[Prompt]:
    """A file's prompts: JSONL with `prompt`, `messages` or `turns` where the first line is a JSON object, else lines.

    Raises:
        UsageError: the file cannot be read, or holds no prompt; names the line.
    """
    name = f"--prompts {path}"
    try:
        text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 (byte {error.start:,}): save it as UTF-8") from error
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    lines = [(n, line) for n, line in enumerate(re.split("\r\n?|\n", text), start=1) if line.strip()]
    if not lines:
        raise UsageError(f"{name} is empty: write one prompt a line, or JSONL")
    if path.suffix.lower() in (".jsonl", ".json", ".ndjson") or lines[0][1].lstrip().startswith("{"):
        return [_from_json(line, f"{name}, line {n}") for n, line in lines]
    return [Prompt((line,)) for _, line in lines]


def _from_json(line: str, where: str) -> Prompt:
    try:
        record: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(record, dict):
        raise UsageError(f"{where} is not a JSON object with 'prompt', 'messages' or 'turns'")
    if _is_text(record.get("prompt")):
        return Prompt((record["prompt"],))
    turns = record.get("turns")
    if isinstance(turns, list) and turns and all(map(_is_text, turns)):
        return Prompt(tuple(turns))
    messages = record.get("messages")
    if isinstance(messages, list) and messages and all(map(_is_message, messages)):
        if messages[-1]["role"] != "user":
            raise UsageError(f"{where}: the last of 'messages' must be the user's, for the model to answer")
        history = tuple({"role": m["role"], "content": m["content"]} for m in messages[:-1])
        return Prompt((messages[-1]["content"],), history)
    raise UsageError(
        f"{where} has no 'prompt' (text), 'turns' (list of texts) or 'messages' (list of role and content)"
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not _is_text(value.get("role")):
        return False
    content = value.get("content")
    return isinstance(content, str) and is_unicode(content)
