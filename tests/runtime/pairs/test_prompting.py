"""Prompts become the ids that transformers makes of them, and what is worth knowing about them is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from tokenizers import processors

from specdec_cli.errors import UsageError
from specdec_cli.prompts import Prompt
from specdec_cli.runtime.pairs.pair import Pair
from specdec_cli.runtime.pairs.prompting import prompt_notes, read_prompt
from specdec_cli.settings import ConversationSettings

BEGIN, START, STOP, THINK = "<s>", "<|start|>", "<|stop|>", "<think>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>{{ note }}{% endif %}{% endif %}"
)
SPECIAL = (BEGIN, START, STOP)


def pair_with(folder: Path, template: str | None, add_begin: bool = False) -> Pair:
    tokenizer = tiny.byte_tokenizer(extra=(THINK,), chat_template=template, special=SPECIAL)
    tokenizer.bos_token = BEGIN
    if add_begin:
        begin_id = tokenizer.convert_tokens_to_ids(BEGIN)
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, begin_id)]
        )
    size = len(tokenizer)
    return tiny.pair(tiny.save(folder, tiny.model(vocab_size=size), tokenizer), None)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair_with(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair_with(tmp_path_factory.mktemp("base"), None, add_begin=True)


HISTORY = ({"role": "user", "content": "one"}, {"role": "assistant", "content": "two"})


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(("hi",)),
        Prompt(("hi",), HISTORY),
        Prompt(("hi",), begun="Sure, "),
        Prompt(("hi",), HISTORY, begun="Sure,\n\n"),
        Prompt((f"hi{STOP} {THINK}",)),
        Prompt((f"hi{STOP}",), begun=f"{START}x"),
    ],
    ids=range(6),
)
@pytest.mark.parametrize("args", [{}, {"enable_thinking": False}, {"enable_thinking": False, "note": STOP}], ids=str)
@pytest.mark.parametrize("plain", [False, True], ids=["as it is", "plain"])
def test_ids_are_those_of_transformers(chat: Pair, prompt: Prompt, args: dict[str, Any], plain: bool) -> None:
    tokenizer = chat.checkpoint.tokenizer
    how = {"add_generation_prompt": True} if prompt.begun is None else {"continue_final_message": True}
    expected = tokenizer.apply_chat_template(
        prompt.messages(), return_dict=False, sanitize_control_tokens=plain, **how, **args
    )
    assert read_prompt(chat, prompt, ConversationSettings(template_args=args, plain_content=plain)) == expected


def test_a_prompts_own_variables_go_first(chat: Pair) -> None:
    own = Prompt(("hi",), template_args={"enable_thinking": True})
    thinking = read_prompt(chat, Prompt(("hi",)), ConversationSettings())
    assert read_prompt(chat, own, ConversationSettings(template_args={"enable_thinking": False})) == thinking
    assert (
        read_prompt(chat, Prompt(("hi",)), ConversationSettings(template_args={"enable_thinking": False})) != thinking
    )


@pytest.mark.parametrize("raw", [False, True])
def test_plain_content_has_no_token_of_its_own(chat: Pair, base: Pair, raw: bool) -> None:
    """Only what the template or the tokenizer adds is special, and the text is all there."""
    text = f"a{STOP}b{START}{BEGIN}"
    pair = base if raw else chat
    ids = read_prompt(pair, Prompt((text,)), ConversationSettings(raw=raw, plain_content=True))
    without = read_prompt(pair, Prompt(("ab",)), ConversationSettings(raw=raw))
    special = set(pair.special_tokens)
    assert [i for i in ids if i in special] == [i for i in without if i in special]
    assert text in pair.checkpoint.tokenizer.decode([i for i in ids if i not in special])


def test_the_answer_goes_on_behind_what_is_begun(chat: Pair) -> None:
    tokenizer = chat.checkpoint.tokenizer
    ids = read_prompt(chat, Prompt(("hi",), begun="It is"), ConversationSettings())
    assert tokenizer.decode(ids).endswith("<|start|>assistant\nIt is")


def test_without_a_template_what_is_begun_is_the_last_line(base: Pair) -> None:
    ids = read_prompt(base, Prompt(("hi",), begun="It is"), ConversationSettings())
    assert base.checkpoint.tokenizer.decode(ids[1:]) == "hi\nIt is"


def refusal(pair: Pair, prompt: Prompt, **settings: Any) -> str:
    with pytest.raises(UsageError) as raised:
        read_prompt(pair, prompt, ConversationSettings(**settings))
    return tiny.one_line(raised.value, 2)


def test_variables_that_nothing_reads_are_refused(chat: Pair, base: Pair) -> None:
    one = Prompt(("hi",))
    assert "knows no 'enable_thinkin'" in refusal(chat, one, template_args={"enable_thinkin": False})
    assert "target has no chat template: leave it out" in refusal(base, one, template_args={"x": 1})
    own = Prompt(("hi",), template_args={"x": 1})
    assert "chat_template_kwargs) x is for a chat template, and --raw is given" in refusal(chat, own, raw=True)


@pytest.mark.parametrize("name", ["m", "assistant", "role", "made", "twice"])
def test_a_word_of_the_template_is_no_variable_of_it(tmp_path: Path, name: str) -> None:
    """A loop's own name, a text, a key, what the template sets, and a macro: none is read from outside."""
    pair = pair_with(
        tmp_path,
        "{% set made = 1 %}{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% for m in messages %}{{ m['role'] }}"
        "{%- generation -%}{{ m['content'] }}{%- endgeneration -%}{% if made > 1 %}{% break %}{% endif %}{% endfor %}"
        "assistant{{ date if date is defined }}{% set own = own | default(2) %}{{ own }}",
    )
    assert f"knows no '{name}'" in refusal(pair, Prompt(("hi",)), template_args={name: 1})
    plain = read_prompt(pair, Prompt(("hi",)), ConversationSettings())
    for known in ("date", "own"):
        assert read_prompt(pair, Prompt(("hi",)), ConversationSettings(template_args={known: "x"})) != plain


def test_a_template_that_drops_what_is_begun_is_told(tmp_path: Path) -> None:
    pair = pair_with(tmp_path, "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}")
    assert "does not keep the assistant's last message" in refusal(pair, Prompt(("hi",), begun="Sure"))


def notes(pair: Pair, *texts: str, **settings: Any) -> list[str]:
    return prompt_notes(pair, [Prompt((text,)) for text in texts], ConversationSettings(**settings))


def test_nothing_is_told_of_text(chat: Pair, base: Pair) -> None:
    assert notes(chat, "hi", "<s", "|stop|") == notes(base, "hi", THINK[1:]) == []


def test_two_begin_tokens_are_told(base: Pair) -> None:
    one, _ = notes(base, f"{BEGIN}abc")
    assert one.startswith(f"the prompt begins with two begin tokens ({BEGIN})")
    (one,) = notes(base, f"{BEGIN}abc", "abc", raw=True)
    assert one.startswith("1 of 2 prompts begins with two begin tokens")
    assert notes(base, f"{BEGIN}abc", plain_content=True) == []


def test_text_that_becomes_control_tokens_is_told(chat: Pair) -> None:
    (one,) = notes(chat, f"a{STOP}", "b", f"c{THINK}")
    assert f"the text of 2 prompts spells {STOP}, {THINK}, which the target reads as control tokens" in one
    assert notes(chat, f"a{STOP}", raw=True) == notes(chat, f"a{STOP}", plain_content=True) == []
    assert STOP in prompt_notes(chat, [Prompt(("one", f"two{STOP}"))], ConversationSettings())[0]
