"""Prompts from an argument, a pipe or a file, and the sets that travel with specdec.

The built-in sets were written for this project: `mixed` for models that chat (seven categories in turn, so that the
first seven prompts hold one of each), `editing` for the same models (a text and a small change to it, so that the
answer mostly quotes the prompt), `code` for base models that go on with Python source, such as the demo pair.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.settings import is_unicode

_SETS = Path(__file__).parent / "prompt_sets"
_FORMS = frozenset({"prompt", "turns", "messages"})


@dataclass(frozen=True)
class Prompt:
    """Something to answer.

    Attributes:
        turns: what the user says, one after the other; each is answered before the next is sent.
        history: messages that come before the first turn, as {"role", "content"}.
        category: what kind of text it asks for, as its file names it; empty where unknown.
    """

    turns: tuple[str, ...]
    history: tuple[dict[str, str], ...] = ()
    category: str = ""


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
    """A file's prompts: JSONL with `prompt`, `messages` or `turns`, else one prompt a line.

    A file is JSONL by its suffix (.jsonl, .json, .ndjson), or because its first line is such a record. The question
    files of Spec-Bench and MT-Bench (`category`, `turns`) and HumanEval (`task_id`, `prompt`) are read as they are.

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
    if path.suffix.lower() in (".jsonl", ".json", ".ndjson") or _is_record(lines[0][1]):
        return [_from_json(line, f"{name}, line {n}") for n, line in lines]
    return [Prompt((line,)) for _, line in lines]


def builtin_names() -> list[str]:
    """The built-in sets, in alphabetical order."""
    return sorted(path.stem for path in _SETS.glob("*.jsonl"))


def builtin_prompts(name: str) -> list[Prompt]:
    """A built-in set's prompts, categories in turn.

    Raises:
        UsageError: there is no set of that name.
    """
    names = builtin_names()
    if name not in names:
        raise UsageError(f"--prompts {name} is no built-in set; there are: {', '.join(names)}")
    return read_prompts(_SETS / f"{name}.jsonl")


def load_prompts(source: str) -> list[Prompt]:
    """What --prompts names: a built-in set, else a file (`./mixed` is one, whatever the sets are called).

    Raises:
        UsageError: it is neither, or a file that cannot be read.
    """
    names = builtin_names()
    if source in names:
        return builtin_prompts(source)
    if not os.path.exists(source):  # unlike Path's, no error for a prompt's own text, too long for a name
        raise UsageError(f"--prompts {source} is neither a file nor a built-in set ({', '.join(names)})")
    return read_prompts(Path(source))


def _is_record(line: str) -> bool:
    """Whether a line is a JSON object with something to answer, and not a prompt that happens to start with a brace."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and not _FORMS.isdisjoint(record)


def _from_json(line: str, where: str) -> Prompt:
    try:
        record: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets nested as deep
        raise UsageError(f"{where} is JSON beyond what Python reads ({error}): leave it out") from error
    if not isinstance(record, dict):
        raise UsageError(f"{where} is not a JSON object with 'prompt', 'messages' or 'turns'")
    category = _category(record)
    if _is_text(record.get("prompt")):
        return Prompt((record["prompt"],), category=category)
    turns = record.get("turns")
    if isinstance(turns, list) and turns and all(map(_is_text, turns)):
        return Prompt(tuple(turns), category=category)
    messages = record.get("messages")
    if isinstance(messages, list) and messages and all(map(_is_message, messages)):
        if messages[-1]["role"] != "user":
            raise UsageError(f"{where}: the last of 'messages' must be the user's, for the model to answer")
        history = tuple({"role": m["role"], "content": m["content"]} for m in messages[:-1])
        return Prompt((messages[-1]["content"],), history, category)
    raise UsageError(
        f"{where} has no 'prompt' (text), 'turns' (list of texts) or 'messages' (list of role and content)"
    )


def _category(record: dict[str, Any]) -> str:
    category: Any = record.get("category")
    if _is_text(category):
        return " ".join(category.split())
    return "code" if str(record.get("task_id", "")).startswith("HumanEval") else ""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not _is_text(value.get("role")):
        return False
    content = value.get("content")
    return isinstance(content, str) and is_unicode(content)
