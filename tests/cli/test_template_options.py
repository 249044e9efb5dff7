"""--template-arg, --plain-content and chat_template_kwargs, on the way from the command line to what a model reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from running import Specdec

from specdec_cli.cli.options.decoding import template_args
from specdec_cli.errors import UsageError

STOP = "<|stop|>"
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}<|stop|>{% endfor %}"
    "{% if thinking is defined and thinking is false %}[none]{% endif %}{{ date }}"
)
FEW = ("-n", "4", "--ignore-eos", "--seed", "1", "--device", "cpu", "--dtype", "float32")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    for name, template in (("chat", TEMPLATE), ("base", None)):
        tokenizer = tiny.byte_tokenizer(chat_template=template, special=(STOP,))
        tiny.save(home / name, tiny.model(vocab_size=len(tokenizer)), tokenizer)
    return home


def pair(models: Path, name: str = "chat") -> tuple[str | Path, ...]:
    return "-t", models / name, "-d", models / name


def answer(specdec: Specdec, *words: str | Path) -> dict[str, Any]:
    code, out, err = specdec("generate", *words, *FEW, "--format", "json")
    assert code == 0, err
    made: dict[str, Any] = json.loads(out)
    return made


def refused(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert (code, out) == (2, ""), err
    last = err.splitlines()[-1]
    assert last.startswith("specdec: ")
    return last.removeprefix("specdec: ")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("x=false", False), ("x=1", 1), ("x=1.5", 1.5), ("x=null", None), ('x="false"', "false"), ("x=yes", "yes"),
        ("x=", ""), ("x=a=b", "a=b"), ('x=[1, {"y": 2}]', [1, {"y": 2}]), ("x=NaN", "NaN"), ("x={", "{"),
    ],
)  # fmt: skip
def test_a_value_is_json_where_it_reads_as_such(word: str, value: object) -> None:
    found = template_args([word])["x"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["x"], "must be NAME=VALUE"),
        (["=1"], "must be NAME=VALUE"),
        (["a b=1"], "must be NAME=VALUE"),
        (["x=1", "x=2"], "--template-arg x is given twice"),
        (["x=False"], "write x=false"),
        (["x=None"], "write x=null"),
        (["x=\udce9"], "is not UTF-8"),
        (['x="\\ud800"'], "is not UTF-8"),
    ],
)
def test_what_is_no_variable_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        template_args(words)
    assert told in tiny.one_line(raised.value, 2)


def test_generate_tells_the_template(specdec: Specdec, models: Path) -> None:
    length = len("hi") + 1
    assert answer(specdec, "hi", *pair(models))["prompt_tokens"] == length
    told = answer(specdec, "hi", *pair(models), "--template-arg", "thinking=false", "--template-arg", "date=May")
    assert told["prompt_tokens"] == length + len("[none]May")
    assert told["settings"]["template_args"] == {"thinking": False, "date": "May"}
    assert told["settings"]["plain_content"] is False


def test_a_prompt_tells_its_own(specdec: Specdec, models: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "hi", "chat_template_kwargs": {"thinking": False, "date": "June"}}))
    told = answer(specdec, "--prompts", path, *pair(models), "--template-arg", "date=May")
    assert told["prompt_tokens"] == len("hi") + 1 + len("[none]June")


def test_a_begun_answer_is_gone_on_with(specdec: Specdec, models: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure, "}]
    path.write_text(json.dumps({"messages": messages}))
    begun = answer(specdec, "--prompts", path, *pair(models))
    assert begun["prompt_tokens"] == len("hi") + 1 + len("Sure, ")
    raw = answer(specdec, f"hi{STOP}Sure, ", *pair(models), "--raw")
    assert begun["token_ids"] == raw["token_ids"]
    assert begun["text"] == raw["text"]


def test_plain_content_keeps_text(specdec: Specdec, models: Path) -> None:
    note = f"note: the text of 1 prompt spells {STOP}, which the target reads as control tokens"
    code, out, err = specdec("generate", STOP, *pair(models), *FEW, "--format", "json")
    assert (code, json.loads(out)["prompt_tokens"]) == (0, 2)
    assert note in err
    code, out, err = specdec("generate", STOP, *pair(models), *FEW, "--format", "json", "--plain-content")
    assert (code, json.loads(out)["prompt_tokens"]) == (0, len(STOP) + 1)
    assert note not in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--template-arg", "x=1", "--raw"), "--template-arg x is for the chat template, which --raw leaves out"),
        (("--template-arg", "tokenize=false"), "--template-arg tokenize is for specdec to decide"),
        (("--template-arg", "thinkin=false"), "the target's chat template knows no 'thinkin'"),
        (("--template-arg", "x"), "--template-arg x must be NAME=VALUE"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "bench", "sweep-k"])
def test_every_command_refuses_alike(
    specdec: Specdec, models: Path, words: tuple[str, ...], told: str, command: str
) -> None:
    prompt = ("hi",) if command == "generate" else ()
    message = refused(specdec(command, *prompt, *pair(models), "--device", "cpu", *words))
    assert told in message


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_there_must_be_a_template(specdec: Specdec, models: Path, command: str) -> None:
    prompt = ("hi",) if command == "generate" else ()
    told = refused(specdec(command, *prompt, *pair(models, "base"), "--device", "cpu", "--template-arg", "x=1"))
    assert "x is for a chat template, and the target has no chat template: leave it out" in told


def test_bench_tells_the_template(specdec: Specdec, models: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": STOP}))
    words = ("bench", *pair(models), *FEW[:2], *FEW[3:], "--prompts", path, "--template-arg", "thinking=false")
    code, out, err = specdec(*words, "--format", "json")
    assert code == 0, err
    assert json.loads(out)["settings"]["template_args"] == {"thinking": False}
    assert f"spells {STOP}" in err
    assert f"spells {STOP}" not in specdec(*words, "--plain-content")[2]


def test_pair_check_measures_with_it(specdec: Specdec, models: Path, tmp_path: Path) -> None:
    message = refused(specdec("pair-check", *pair(models), "--template-arg", "thinking=false"))
    assert message == "--template-arg is for what is measured: add --probe"
    assert "--plain-content" in refused(specdec("pair-check", *pair(models), "--plain-content"))
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{STOP}{n}"}) for n in range(2)))
    words = ("pair-check", *pair(models), "--probe", "--prompts", path, "--device", "cpu", "--format", "json")
    code, out, err = specdec(*words, "--template-arg", "thinking=false")
    assert code == 0, err
    assert json.loads(out)["settings"]["template_args"] == {"thinking": False}
    assert f"the text of 2 prompts spells {STOP}" in err
