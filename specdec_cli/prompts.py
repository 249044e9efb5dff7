"""Prompts from an argument, a pipe or a file, and the sets that travel with specdec.

The built-in sets were written for this project: `mixed` for models that chat (seven categories in turn, so that the
first seven prompts hold one of each), `editing` for the same models (a text and a small change to it, so that the
answer mostly quotes the prompt), `code` for base models that go on with Python source, such as the demo pair.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.settings import NOT_OF_TEMPLATES, is_unicode

_SETS = Path(__file__).parent / "prompt_sets"
_FORMS = frozenset({"prompt", "turns", "messages"})


@dataclass(frozen=True)
class Prompt:
    """Something to answer.

    Attributes:
        turns: what the user says, one after the other; each is answered before the next is sent.
        history: messages that come before the first turn, as {"role", "content"}.
        category: what kind of text it asks for, as its file names it; empty where unknown.
        begun: how the answer to the last turn begins, for the model to go on with; None where it begins anew.
        template_args: variables of the chat template, beside and before those of the command line.
    """

    turns: tuple[str, ...]
    history: tuple[dict[str, str], ...] = ()
    category: str = ""
    begun: str | None = None
    template_args: Mapping[str, Any] = field(default_factory=dict)

    def messages(self, answers: Sequence[str] = (), system: str | None = None) -> list[dict[str, str]]:
        """The conversation up to the turn behind so many answers; the last message is the user's, or what is begun."""
        said = [{"role": "system", "content": system}] if system else []
        said += [dict(message) for message in self.history]
        for text, answer in zip(self.turns, answers, strict=False):
            said += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        said.append({"role": "user", "content": self.turns[len(answers)]})
        if self.begun is not None and len(answers) == len(self.turns) - 1:
            said.append({"role": "assistant", "content": self.begun})
        return said


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
    if record.get("tools"):
        raise UsageError(
            f"{where} has 'tools', which specdec does not hand on: leave them out, or give them to the template as "
            "'chat_template_kwargs', {\"tools\": [...]}"
        )
    about: dict[str, Any] = {"category": _category(record), "template_args": _template_args(record, where)}
    if _is_text(record.get("prompt")):
        return Prompt((record["prompt"],), **about)
    turns = record.get("turns")
    if isinstance(turns, list) and turns and all(map(_is_text, turns)):
        return Prompt(tuple(turns), **about)
    messages = record.get("messages")
    if isinstance(messages, list) and messages:
        read = [_message(message, f"{where}, message {n}") for n, message in enumerate(messages, start=1)]
        said = [message for message in read if message is not None]
        if len(said) == len(read):
            return _conversation(said, where, about)
    raise UsageError(
        f"{where} has no 'prompt' (text), 'turns' (list of texts) or 'messages' (list of role and content)"
    )


def _conversation(messages: list[dict[str, str]], where: str, about: dict[str, Any]) -> Prompt:
    """What to answer of messages: the user's at their end, or the assistant's behind it, which is gone on with."""
    begun = messages.pop()["content"] if messages[-1]["role"] == "assistant" else None
    if not messages or messages[-1]["role"] != "user":
        raise UsageError(
            f"{where}: the last of 'messages' must be the user's, for the model to answer, or the assistant's behind "
            "it, for the model to go on with"
        )
    return Prompt((messages[-1]["content"],), tuple(messages[:-1]), begun=begun, **about)


def _template_args(record: dict[str, Any], where: str) -> dict[str, Any]:
    """`chat_template_kwargs`, as other tools call them."""
    given = record.get("chat_template_kwargs")
    if given is None:
        return {}
    if not isinstance(given, dict) or not is_unicode(json.dumps(given, ensure_ascii=False)):
        raise UsageError(f"{where}: 'chat_template_kwargs' must be an object, as {{\"enable_thinking\": false}}")
    for name in given:
        if name in NOT_OF_TEMPLATES or not name.isidentifier():
            raise UsageError(f"{where}: 'chat_template_kwargs' has {name!r}, which is no variable of a template")
    return given


def _category(record: dict[str, Any]) -> str:
    category: Any = record.get("category")
    if _is_text(category):
        return " ".join(category.split())
    return "code" if str(record.get("task_id", "")).startswith("HumanEval") else ""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)


def _message(value: object, where: str) -> dict[str, str] | None:
    """A message of text, from a text or from parts of type text; None where it is no message.

    Raises:
        UsageError: it is one, with something else than text.
    """
    if not isinstance(value, dict) or not _is_text(value.get("role")) or "content" not in value:
        return None
    content = value["content"]
    if value.get("tool_calls") or value.get("function_call"):
        raise UsageError(f"{where} calls tools: specdec reads text alone, leave 'tool_calls' out")
    if content is None:
        raise UsageError(f"{where} has no text (its 'content' is null): specdec reads text, and no calls of tools")
    if isinstance(content, list) and content and all(isinstance(part, dict) for part in content):
        other = next((part.get("type") for part in content if part.get("type") != "text"), "text")
        if other != "text":
            raise UsageError(f"{where} has a part of type {other!r}: specdec reads text alone, leave the part out")
        texts = [part.get("text") for part in content]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
    if not isinstance(content, str) or not is_unicode(content):
        return None
    return {"role": value["role"], "content": content}
