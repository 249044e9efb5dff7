"""Prompts from text and from files: lines, JSONL in its forms, the built-in sets, and each way to be wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from specdec_cli.errors import UsageError
from specdec_cli.prompts import Prompt, builtin_names, builtin_prompts, from_text, load_prompts, read_prompts

USER = {"role": "user", "content": "What is it?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "A parrot."}


def write(folder: Path, content: str | bytes, name: str = "prompts.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path) -> str:
    """The message for a file that must be refused."""
    with pytest.raises(UsageError) as raised:
        read_prompts(path)
    assert raised.value.exit_code == 2
    message = str(raised.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("one", ["one"]),
        ("one\ntwo\n", ["one", "two"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("\n\none\n   \n\t\ntwo\n\n", ["one", "two"]),
        ("  indented\n", ["  indented"]),
        ('say {"a": 1}\n', ['say {"a": 1}']),
        ("{x | x > 0} is\na set\n", ["{x | x > 0} is", "a set"]),
        ("{\n  return 1;\n", ["{", "  return 1;"]),
        ('{"name": "Ann", "age":\n{"prompt": "one"}\n', ['{"name": "Ann", "age":', '{"prompt": "one"}']),
        ('{"name": "Ann"}\n', ['{"name": "Ann"}']),
        ("[" * 9999, ["[" * 9999]),
        ("größer als 中文 😀\n", ["größer als 中文 😀"]),
        ("\ufeffone\ntwo\n", ["one", "two"]),
    ],
)
def test_every_line_with_text_is_a_prompt(tmp_path: Path, content: str, expected: list[str]) -> None:
    assert read_prompts(write(tmp_path, content)) == [Prompt((line,)) for line in expected]


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("jsonl", [False, True])
def test_only_line_ends_separate_prompts(tmp_path: Path, separator: str, jsonl: bool) -> None:
    """What Unicode calls a line boundary may stand inside a prompt, also unescaped in JSON."""
    text = f"before{separator}after"
    line = json.dumps({"prompt": text}, ensure_ascii=False) if jsonl else text
    assert read_prompts(write(tmp_path, f"{line}\n{line}\n")) == [Prompt((text,)), Prompt((text,))]


@pytest.mark.parametrize("name", ["p.jsonl", "p.json", "p.ndjson", "p.JSONL", "p.txt", "p"])
@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": "one"}, Prompt(("one",))),
        ({"prompt": "one\ntwo", "id": 7}, Prompt(("one\ntwo",))),
        ({"turns": ["one", "two"]}, Prompt(("one", "two"))),
        ({"messages": [USER]}, Prompt((USER["content"],))),
        ({"messages": [SYSTEM, USER, ANSWER, USER]}, Prompt((USER["content"],), (SYSTEM, USER, ANSWER))),
        ({"messages": [{**USER, "name": "Ann"}, ANSWER, USER]}, Prompt((USER["content"],), (USER, ANSWER))),
    ],
    ids=["prompt", "prompt-of-two-lines", "turns", "one-message", "messages", "message-with-more-keys"],
)
def test_jsonl_in_its_three_forms(tmp_path: Path, name: str, record: dict[str, object], expected: Prompt) -> None:
    """Known by the suffix, or by the first line; further keys are somebody else's."""
    line = json.dumps(record)
    assert read_prompts(write(tmp_path, f"{line}\n\n{line}\n", name)) == [expected, expected]


def test_forms_can_be_mixed_and_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    lines = [{"prompt": "one"}, {"turns": ["two", "three"]}, {"messages": [SYSTEM, USER]}]
    path = write(tmp_path, "\ufeff" + "\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    assert read_prompts(path) == [Prompt(("one",)), Prompt(("two", "three")), Prompt((USER["content"],), (SYSTEM,))]


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt"])
@pytest.mark.parametrize(
    ("line", "column"),
    [('{"prompt": "two"', 17), ('{"prompt": two}', 12), ("two", 1), ('{"prompt": "two"} x', 19)],
)
def test_bad_json_is_told_by_line_and_column(tmp_path: Path, line: str, column: int, name: str) -> None:
    """Also in a file that only its first line shows to be JSONL."""
    message = refusal(write(tmp_path, '{"prompt": "one"}\n\n' + line + "\n", name))
    assert "line 3 " in message
    assert message.endswith(f"at column {column}")


@pytest.mark.parametrize(
    "line", ["[" * 99_999, '{"prompt": "two", "id": ' + "1" * 5000 + "}"], ids=["deep", "long number"]
)
def test_json_beyond_what_python_reads_is_told_by_line(tmp_path: Path, line: str) -> None:
    message = refusal(write(tmp_path, '{"prompt": "one"}\n' + line + "\n", "p.jsonl"))
    assert "line 2 is JSON beyond what Python reads" in message


@pytest.mark.parametrize("line", ['["one"]', '"one"', "1", "null", "true"])
def test_json_that_is_no_object_is_told_by_line(tmp_path: Path, line: str) -> None:
    message = refusal(write(tmp_path, f'{{"prompt": "one"}}\n{line}\n', "p.jsonl"))
    assert "line 2 is not a JSON object" in message
    assert "'prompt'" in message


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"text": "one"},
        {"prompt": 1},
        {"prompt": ""},
        {"prompt": " \n"},
        {"prompt": ["one"]},
        {"prompt": None},
        {"turns": []},
        {"turns": "one"},
        {"turns": ["one", ""]},
        {"turns": ["one", 2]},
        {"messages": []},
        {"messages": "one"},
        {"messages": ["one"]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"content": "one"}]},
        {"messages": [{"role": "", "content": "one"}]},
        {"messages": [{"role": "user", "content": ["one"]}]},
    ],
    ids=json.dumps,
)
def test_a_record_without_something_to_answer_is_told_by_line(tmp_path: Path, record: dict[str, object]) -> None:
    message = refusal(write(tmp_path, f'{{"prompt": "one"}}\n{json.dumps(record)}\n', "p.jsonl"))
    assert "line 2 has no 'prompt'" in message
    assert "'turns'" in message
    assert "'messages'" in message


@pytest.mark.parametrize(
    "record",
    [{"prompt": "\ud800"}, {"turns": ["one", "\ud800"]}, {"messages": [{**USER, "content": "\ud800"}]}],
    ids=["prompt", "turns", "messages"],
)
def test_half_a_surrogate_pair_is_no_text(tmp_path: Path, record: dict[str, object]) -> None:
    """JSON can escape what no UTF-8 file, and no tokenizer, can hold."""
    message = refusal(write(tmp_path, f'{{"prompt": "one"}}\n{json.dumps(record)}\n', "p.jsonl"))
    assert "line 2" in message


@pytest.mark.parametrize(
    "messages", [[USER, SYSTEM], [ANSWER], [SYSTEM, ANSWER], [USER, ANSWER, ANSWER]], ids=["system", "one", "two", "3"]
)
def test_the_last_message_must_be_the_users_or_what_follows_it(tmp_path: Path, messages: list[object]) -> None:
    message = refusal(write(tmp_path, json.dumps({"messages": messages}), "p.jsonl"))
    assert "line 1: the last of 'messages' must be the user's" in message


def test_a_conversation_that_ends_with_the_assistant_is_gone_on_with(tmp_path: Path) -> None:
    messages = [SYSTEM, USER, ANSWER, USER, {"role": "assistant", "content": "It is "}]
    (prompt,) = read_prompts(write(tmp_path, json.dumps({"messages": messages}), "p.jsonl"))
    assert prompt == Prompt((USER["content"],), (SYSTEM, USER, ANSWER), begun="It is ")
    assert prompt.messages() == messages


def test_messages_of_later_turns_hold_the_answers_so_far() -> None:
    said = Prompt(("one", "two"), (USER, ANSWER)).messages(["first"], "Be brief.")
    texts = ["Be brief.", USER["content"], ANSWER["content"], "one", "first", "two"]
    assert [m["content"] for m in said] == texts
    assert [m["role"] for m in said] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_parts_of_text_are_one_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]
    line = json.dumps({"messages": [{"role": "user", "content": parts}]})
    assert read_prompts(write(tmp_path, line, "p.jsonl")) == [Prompt((USER["content"],))]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}], "a part of type 'image_url'"),
        ([{"text": "x"}], "a part of type None"),
        (None, "has no text (its 'content' is null)"),
        ([{"type": "text", "text": 1}], "has no 'prompt'"),
        ([], "has no 'prompt'"),
    ],
)
def test_content_that_is_no_text_is_told_by_line_and_message(tmp_path: Path, content: object, told: str) -> None:
    line = json.dumps({"messages": [USER, ANSWER, {"role": "user", "content": content}]})
    message = refusal(write(tmp_path, f"{line}\n", "p.jsonl"))
    assert "line 1" in message
    assert told in message
    assert "message 3" in message or told == "has no 'prompt'"


@pytest.mark.parametrize("content", ["", "I look it up.", None])
def test_calls_of_tools_are_not_left_out_unsaid(tmp_path: Path, content: str | None) -> None:
    call = {"role": "assistant", "content": content, "tool_calls": [{"type": "function"}]}
    message = refusal(write(tmp_path, json.dumps({"messages": [USER, call, USER]}), "p.jsonl"))
    assert "line 1, message 2 calls tools" in message
    empty = json.dumps({"messages": [USER, {**ANSWER, "tool_calls": []}, USER]})
    assert len(read_prompts(write(tmp_path, empty, "p.jsonl"))) == 1


@pytest.mark.parametrize("form", [{"prompt": "one"}, {"messages": [USER]}], ids=["prompt", "messages"])
def test_tools_of_a_record_are_not_left_out_unsaid(tmp_path: Path, form: dict[str, object]) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert "line 1 has 'tools'" in refusal(write(tmp_path, json.dumps({**form, "tools": tools}), "p.jsonl"))
    given = json.dumps({**form, "chat_template_kwargs": {"tools": tools}, "tools": []})
    (prompt,) = read_prompts(write(tmp_path, given, "p.jsonl"))
    assert prompt.template_args == {"tools": tools}


def test_variables_of_the_template_come_with_a_prompt(tmp_path: Path) -> None:
    args = {"enable_thinking": False, "date": "today"}
    path = write(
        tmp_path, json.dumps({"prompt": "one", "chat_template_kwargs": args}) + '\n{"prompt": "two"}', "p.jsonl"
    )
    assert [prompt.template_args for prompt in read_prompts(path)] == [args, {}]


@pytest.mark.parametrize("args", [1, [], "x", {"tokenize": False}, {"a b": 1}, {"x": "\ud800"}], ids=json.dumps)
def test_what_is_no_variable_is_told_by_line(tmp_path: Path, args: object) -> None:
    line = json.dumps({"prompt": "one", "chat_template_kwargs": args})
    assert "line 1: 'chat_template_kwargs'" in refusal(write(tmp_path, line, "p.jsonl"))


@pytest.mark.parametrize("content", ["", "\n", " \n\t\r\n", "\ufeff", "\ufeff\n"])
@pytest.mark.parametrize("name", ["p.txt", "p.jsonl"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: str, name: str) -> None:
    assert "is empty: write one prompt a line" in refusal(write(tmp_path, content, name))


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (b"\xffabc", "0"),
        (b"abc\n\xe9t\xe9\n", "4"),
        (b"a" * 20_000 + b"\xc3", "20,000"),
        (b"\xef\xbb\xbfabc\xff", "6"),
        ("one\n".encode("utf-16"), "0"),
    ],
    ids=["first", "latin-1", "far-away", "after-a-byte-order-mark", "utf-16"],
)
def test_what_is_not_utf8_is_told_by_its_byte(tmp_path: Path, content: bytes, position: str) -> None:
    message = refusal(write(tmp_path, content))
    assert f"is not UTF-8 (byte {position})" in message
    assert "save it as UTF-8" in message


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "missing.txt")
    assert "cannot be read: Is a directory" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["one", "  one\n", "中", "{"])
def test_a_typed_prompt_is_taken_as_it_is(text: str) -> None:
    assert from_text(text, "") == Prompt((text,))


@pytest.mark.parametrize("text", ["", " ", "\n", "\t \r\n", "\u3000"])
def test_a_typed_prompt_of_white_space_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the prompt from the pipe is empty: give it as an argument") as raised:
        from_text(text, " from the pipe")
    assert raised.value.exit_code == 2


# ---------------------------------------------------------------------------------- files of benchmarks
def test_question_files_keep_categories_and_turns(tmp_path: Path) -> None:
    """The form of Spec-Bench's and MT-Bench's question.jsonl; MT-Bench adds reference answers to some."""
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["Write a letter.", "Now make it shorter."]},
        {"question_id": 101, "category": "reasoning", "turns": ["Who is first?", "Why?"], "reference": ["Ann", ""]},
        {"question_id": 241, "category": "translation", "turns": ["Translate: Guten Tag"]},
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, lines)), "question.jsonl")
    assert read_prompts(path) == [
        Prompt(("Write a letter.", "Now make it shorter."), category="writing"),
        Prompt(("Who is first?", "Why?"), category="reasoning"),
        Prompt(("Translate: Guten Tag",), category="translation"),
    ]


@pytest.mark.parametrize(
    ("more", "category"),
    [
        ({"task_id": "HumanEval/0", "entry_point": "f", "canonical_solution": "    pass\n", "test": "pass"}, "code"),
        ({"task_id": "HumanEval/1", "category": "sorting"}, "sorting"),
        ({"task_id": "other/1"}, ""),
        ({"task_id": 7}, ""),
        ({"category": " open\n  qa "}, "open qa"),
        ({"category": ""}, ""),
        ({"category": None}, ""),
        ({"category": ["chat"]}, ""),
        ({"category": "\ud800"}, ""),
    ],
)
@pytest.mark.parametrize("form", [{"prompt": "x"}, {"turns": ["x"]}, {"messages": [{**USER, "content": "x"}]}], ids=str)
def test_a_category_is_kept_where_it_is_known(
    tmp_path: Path, form: dict[str, object], more: dict[str, object], category: str
) -> None:
    path = write(tmp_path, json.dumps({**more, **form}), "p.jsonl")
    assert read_prompts(path) == [Prompt(("x",), category=category)]


# ------------------------------------------------------------------------------------ built-in sets
KINDS = ("chat", "code", "math", "summarisation", "qa", "translation", "creative")


def test_the_mixed_set_has_every_category_in_turn() -> None:
    prompts = builtin_prompts("mixed")
    categories = [prompt.category for prompt in prompts]
    assert len(prompts) >= 42
    assert all(count >= 6 for count in Counter(categories).values())
    for start in range(0, len(prompts), len(KINDS)):  # so that any --limit is as even as it can be
        assert categories[start : start + len(KINDS)] == list(KINDS)


def test_the_code_set_goes_on_from_a_few_lines() -> None:
    prompts = builtin_prompts("code")
    assert len(prompts) >= 24
    for prompt in prompts:
        (text,) = prompt.turns
        assert prompt.category == "code"
        assert 2 <= len(text.split("\n")) <= 12
        assert text == text.rstrip(), "a blank at the end would be tokenised unlike the text that follows"


def test_summaries_have_their_text_with_them() -> None:
    for prompt in builtin_prompts("mixed"):
        words = len(prompt.turns[0].split())
        assert words > {"summarisation": 120, "qa": 70}.get(prompt.category, 0)
        assert words < 230


def test_the_editing_set_quotes_what_it_asks_back() -> None:
    """An order that asks for (nearly) all of a text and for nothing else, a blank line, and the text."""
    prompts = builtin_prompts("editing")
    assert Counter(prompt.category for prompt in prompts) == {"editing": 7, "extraction": 3}
    assert "extraction" in {prompt.category for prompt in prompts[:3]}  # a low --limit has both
    for prompt in prompts:
        order, text = prompt.turns[0].split("\n\n", 1)
        assert "\n" not in order
        assert re.search(r"[Pp]rint the (whole|quotations)|[Pp]rint these (lines|sentences)", order), order
        assert 600 < len(text) < 1300
        if re.match(r"(import|class) ", text):
            compile(text, "prompt", "exec")
            assert 20 <= len(text.split("\n")) <= 30


def test_a_set_goes_by_its_name_and_a_file_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "one\n", "editing")
    assert load_prompts("editing") == builtin_prompts("editing")
    assert load_prompts("./editing") == [Prompt(("one",))]
    for source in ("nowhere", "x" * 5000):
        with pytest.raises(UsageError, match=r"is neither a file nor a built-in set \(code, editing, mixed\)$"):
            load_prompts(source)


def test_no_two_prompts_are_equal() -> None:
    texts = Counter(prompt.turns for name in builtin_names() for prompt in builtin_prompts(name))
    assert set(texts.values()) == {1}


@pytest.mark.parametrize("name", ["", "Mixed", "mixed.jsonl", "../prompt_sets/mixed"])
def test_an_unknown_set_lists_the_known(name: str) -> None:
    with pytest.raises(UsageError, match=r"is no built-in set; there are: code, editing, mixed$"):
        builtin_prompts(name)
