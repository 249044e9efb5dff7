"""Between text and ids: prompts in, text out as it becomes certain."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from specdec_cli.errors import UsageError

REPLACEMENT = "\ufffd"


class TextStream:
    """Decodes ids one at a time into text that will not change any more, and that has no special tokens in it.

    A token may hold part of a character, and some tokenizers join tokens with a space that depends on the token
    before, or leave out the space that a text begins with. So each new token is decoded together with those since the
    last certain character, at first with the end of the prompt, and what they add to the text before is given out once
    it is a whole character.

    Args:
        prompt_ids: what the ids follow; their text is no part of what is given out.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._special = special_tokens(tokenizer).keys()
        self._ids = self._end_with_text(prompt_ids)
        self._start = 0  # decode from here,
        self._certain = len(self._ids)  # given out up to here

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; empty inside a character, and of a special token."""
        if token_id in self._special:  # without text, it is no context for what follows
            return ""
        self._ids.append(token_id)
        before, now = self._texts()
        certain = len(self._ids)
        if now.endswith(REPLACEMENT):
            if certain - self._certain < 8:
                return ""
            # A run of bytes that are no text: give it out, but for the last bytes, which may begin a character.
            for whole in range(certain - 1, certain - 4, -1):
                text = self._decode(self._ids[self._start : whole])
                if text + REPLACEMENT == now and self._decode(self._ids[whole:]) == REPLACEMENT:
                    certain, now = whole, text
                    break
        added = self._added(before, now, certain)
        self._start, self._certain = self._certain, certain
        return added

    def flush(self) -> str:
        """What is left at the end, with replacement characters for bytes that never became a character."""
        before, now = self._texts()
        added = self._added(before, now, len(self._ids))
        self._start = self._certain = len(self._ids)
        return added

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._ids[self._start : self._certain]), self._decode(self._ids[self._start :])

    def _added(self, before: str, now: str, end: int) -> str:
        if now.startswith(before):
            return now[len(before) :]
        # Some decoders make whole characters unreadable where bytes that are no text follow them.
        return self._decode(self._ids[self._certain : end])

    def _end_with_text(self, token_ids: Sequence[int]) -> list[int]:
        """As much of the end as it takes to have some text, and to begin with a whole character."""
        size = 8
        while size < len(token_ids):
            ids = list(token_ids[-size:])
            text = self._decode(ids)
            if text and not text.startswith(REPLACEMENT):
                return ids
            size *= 2
        return list(token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Names of the tokens that decoding leaves out, whether or not one of the tokenizer's lists has them."""
    if tokenizer.is_fast:
        return {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))


def is_chat_tokenizer(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether prompts are to be wrapped in a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str, plain: bool = False) -> list[int]:
    """Ids of a plain prompt, with the tokens that the tokenizer itself puts in front.

    Args:
        plain: what spells a special token is text.
    """
    ids: list[int] = tokenizer(text, **({"split_special_tokens": True} if plain else {}))["input_ids"]
    end = tokenizer.eos_token_id
    if len(ids) > 1 and ids[-1] == end and end != tokenizer.bos_token_id:
        return ids[:-1]  # some tokenizers close what they encode; a prompt goes on
    return ids


def encode_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, str]],
    template_args: Mapping[str, Any] | None = None,
    plain: bool = False,
) -> list[int]:
    """Ids of a conversation, up to where the assistant's answer begins, or goes on behind what it has said.

    Args:
        template_args: variables of the template.
        plain: what spells a control token in a message or a variable is text.

    Raises:
        UsageError: the template refuses the conversation (a system message in Gemma's, say), does not keep what is to
            be gone on with, or knows no such variable.
    """
    args = dict(template_args or {})
    for name in args:
        if not _reads(tokenizer, name):
            raise UsageError(
                f"the target's chat template knows no '{name}': leave it out of --template-arg and chat_template_kwargs"
            )
    going_on = messages[-1]["role"] == "assistant"
    how = {"continue_final_message": True} if going_on else {"add_generation_prompt": True}
    try:
        if plain:
            sanitised = {"tokenize": True, "return_dict": False, "sanitize_control_tokens": True}
            return list(_apply_template(tokenizer, messages, **how, **sanitised, **args))
        text = _apply_template(tokenizer, messages, tokenize=False, **how, **args)
    except ValueError as error:
        if going_on and str(error).startswith("ValueError: continue_final_message"):
            raise UsageError(
                "the target's chat template does not keep the assistant's last message, so it cannot be gone on with: "
                "leave the message out, or use --raw to send plain text"
            ) from error
        raise UsageError(
            f"the target's chat template refuses this conversation ({error}); use --raw to send plain text"
        ) from error
    ids: list[int] = tokenizer(str(text), add_special_tokens=False)["input_ids"]
    return ids


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> str:
    """A conversation as the model reads it, up to where the assistant's answer begins.

    Raises:
        ValueError: the template refuses it, on purpose or by an error of its own; the message is one line.
    """
    return str(_apply_template(tokenizer, messages, tokenize=False, add_generation_prompt=True))


def control_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[str]:
    """Added tokens that these texts spell, and that are read as tokens there unless the texts are kept plain."""
    if not tokenizer.is_fast:
        names = list(tokenizer.all_special_tokens)
    else:
        template = _template_text(tokenizer)
        added = tokenizer.added_tokens_decoder.values()
        names = [t.content for t in added if t.special or (t.content in template and not t.content.isspace())]
    return [name for name in names if any(name in text for text in texts)]


def _template_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat template, or all of them where there are several."""
    template: Any = tokenizer.chat_template or ""
    return template if isinstance(template, str) else "\n".join(map(str, template.values()))


def _reads(tokenizer: PreTrainedTokenizerBase, name: str) -> bool:
    """Whether a chat template reads a variable of that name from outside; a word of its text or its own loop is none.

    In a template that Jinja alone cannot parse, the word is taken for the variable.
    """
    from jinja2 import Environment, TemplateSyntaxError, meta

    jinja = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=True)  # it parses, and renders nothing
    given: Any = tokenizer.chat_template or ""
    for template in [given] if isinstance(given, str) else map(str, given.values()):
        try:  # {% generation %} is a tag of transformers', around what the assistant said
            tree = jinja.parse(re.sub(r"{%[-+]?\s*(end)?generation\s*[-+]?%}", "", template))
        except TemplateSyntaxError:
            if re.search(rf"\b{re.escape(name)}\b", template):
                return True
        else:
            if name in meta.find_undeclared_variables(tree):
                return True
    return False


def _apply_template(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], **how: Any) -> Any:
    """What transformers makes of it.

    Raises:
        ValueError: the template refuses it, on purpose or by an error of its own; the message is one line.
    """
    from jinja2 import TemplateError

    # A template is a small program: it adds, indexes and calls, and Python's errors for these come out as they are.
    mistakes = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
    try:
        return tokenizer.apply_chat_template(messages, **how)
    except (TemplateError, *mistakes) as error:
        name = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        raise ValueError(name + " ".join(str(error).split())) from error
