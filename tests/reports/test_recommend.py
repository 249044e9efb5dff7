"""Every export, parsed back by a parser of its own kind (shell words, JSON, YAML, Python's ast); Python also runs."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml

from specdec_cli.errors import IncompatiblePairError, UsageError
from specdec_cli.reports.recommend import PROMPT_LOOKUP, TOOLS, Recommendation, export

PAIR = Recommendation(
    target="Qwen/Qwen2.5-Coder-1.5B-Instruct", draft="Qwen/Qwen2.5-Coder-0.5B-Instruct", k=5, temperature=0.0,
    target_vocab_size=151_936, draft_vocab_size=151_936, target_tokenizer_size=151_643, draft_tokenizer_size=151_643,
    target_bos_id=None, draft_bos_id=None, target_eos_id=151_645, draft_eos_id=151_645,
)  # fmt: skip
LOOKUP = replace(PAIR, draft=PROMPT_LOOKUP, draft_vocab_size=None, lookup_max=3, lookup_min=1)
AWKWARD = [
    "/models/two words",
    "/it's/here",
    'C:\\my "models"\\x',
    "/a/$HOME `x` #1; rm *",
    "/größe/モデル",
    "/tab\there/new\nline",
    "/{x: y}/- z",
    "yes",
]


def shell_words(text: str) -> list[str]:
    return shlex.split(text, comments=True)


def options(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))


def vllm(text: str) -> tuple[str, dict[str, Any]]:
    command, serve, target, option, config = shell_words(text)
    assert (command, serve, option) == ("vllm", "serve", "--speculative-config")
    return target, json.loads(config)


def python_facts(text: str) -> dict[str, Any]:
    """What the Python export assigns and passes, by name; models as (name given to from_pretrained, its keywords)."""
    facts: dict[str, Any] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            if isinstance(node.value, ast.Constant):
                facts[ast.unparse(node.targets[0])] = node.value.value
            elif isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("from_pretrained"):
                (source,) = node.value.args
                assert isinstance(source, ast.Constant)
                keywords = {k.arg: ast.literal_eval(k.value) for k in node.value.keywords}
                facts[ast.unparse(node.targets[0])] = (source.value, keywords)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "target.generate":
            facts["generate"] = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg}
    return facts


def test_vllm() -> None:
    target, config = vllm(export(PAIR, "vllm"))
    assert target == PAIR.target
    assert config == {"method": "draft_model", "model": PAIR.draft, "num_speculative_tokens": 5}


def test_vllm_prompt_lookup() -> None:
    target, config = vllm(export(LOOKUP, "vllm"))
    assert target == PAIR.target
    assert config == {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def test_sglang_counts_the_last_committed_token() -> None:
    words = shell_words(export(PAIR, "sglang"))
    assert words[:3] == ["python", "-m", "sglang.launch_server"]
    assert options(words[3:]) == {
        "--model-path": PAIR.target,
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": PAIR.draft,
        "--speculative-num-steps": "5",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "6",
    }


def test_llama_cpp() -> None:
    text = export(
        replace(PAIR, target="/m/t.gguf", draft="/m/d.gguf", target_is_gguf=True, draft_is_gguf=True), "llama.cpp"
    )
    words = shell_words(text)
    assert words[0] == "llama-server"
    assert options(words[1:]) == {
        "-m": "/m/t.gguf",
        "-md": "/m/d.gguf",
        "--spec-type": "draft-simple",
        "--spec-draft-n-max": "5",
        "--spec-draft-n-min": "0",
        "--spec-draft-p-min": "0",
    }
    assert "convert_hf_to_gguf" not in text


def test_llama_cpp_says_how_to_make_the_files_it_reads() -> None:
    text = export(replace(PAIR, target="/big/model", draft="/small/model"), "llama.cpp")
    given = options(shell_words(text)[1:])
    assert (given["-m"], given["-md"]) == ("model.gguf", "draft-model.gguf")
    assert "# First, with convert_hf_to_gguf.py of llama.cpp: /big/model to model.gguf\n" in text
    assert "# First, with convert_hf_to_gguf.py of llama.cpp: /small/model to draft-model.gguf\n" in text


def test_mlx() -> None:
    words = shell_words(export(PAIR, "mlx"))
    assert words[0] == "mlx_lm.generate"
    assert options(words[1:]) == {"--model": PAIR.target, "--draft-model": PAIR.draft, "--num-draft-tokens": "5"}


def test_trtllm() -> None:
    text = export(PAIR, "trtllm")
    assert yaml.safe_load(text) == {
        "speculative_config": {
            "decoding_type": "DraftTarget",
            "max_draft_len": 5,
            "speculative_model": PAIR.draft,
        }
    }
    (command,) = [line.split("then: ")[1] for line in text.splitlines() if "trtllm-serve" in line]
    assert shlex.split(command) == ["trtllm-serve", PAIR.target, "--config", "specdec.yaml"]


def test_transformers_sets_what_the_assistants_config_decides() -> None:
    facts = python_facts(export(replace(PAIR, temperature=0.7), "transformers"))
    assert facts["target"] == (PAIR.target, {"dtype": "auto"})
    assert facts["draft"] == (PAIR.draft, {"dtype": "auto"})
    assert facts["draft.generation_config.num_assistant_tokens"] == 5
    assert facts["draft.generation_config.num_assistant_tokens_schedule"] == "constant"
    assert facts["draft.generation_config.assistant_confidence_threshold"] == 0
    generate = facts["generate"]
    assert (generate["assistant_model"], generate["do_sample"], generate["temperature"]) == ("draft", "True", "0.7")


def test_transformers_greedy_and_prompt_lookup() -> None:
    generate = python_facts(export(LOOKUP, "transformers"))["generate"]
    assert (generate["prompt_lookup_num_tokens"], generate["max_matching_ngram_size"]) == ("5", "3")
    assert generate["do_sample"] == "False"
    assert "temperature" not in generate


HEAD = replace(PAIR, draft="/heads/one", draft_vocab_size=None, head="eagle3")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("eagle", {"method": "eagle", "model": "/heads/one"}),
        ("eagle3", {"method": "eagle3", "model": "/heads/one"}),
        ("medusa", {"method": "medusa", "model": "/heads/one"}),
        ("mtp", {"method": "mtp"}),
        ("peagle", {"method": "eagle3", "parallel_drafting": True, "model": "/heads/one"}),
        ("dflash", {"method": "dflash", "model": "/heads/one"}),
        ("dspark", {"method": "dspark", "model": "/heads/one"}),
    ],
)
def test_vllm_is_told_of_heads(kind: str, expected: dict[str, object]) -> None:
    words = shell_words(export(replace(HEAD, head=kind), "vllm"))
    assert words[:3] == ["vllm", "serve", HEAD.target]
    assert json.loads(words[words.index("--speculative-config") + 1]) == {**expected, "num_speculative_tokens": HEAD.k}


@pytest.mark.parametrize(
    ("kind", "algorithm", "place", "others"),
    [
        ("eagle", "EAGLE", True, {"num-steps": 0, "eagle-topk": None, "num-draft-tokens": 1}),
        ("eagle3", "EAGLE3", True, {"num-steps": 0, "eagle-topk": None, "num-draft-tokens": 1}),
        ("mtp", "EAGLE", False, {"num-steps": 0, "eagle-topk": None, "num-draft-tokens": 1}),
        ("dflash", "DFLASH", True, {"num-draft-tokens": 1}),
        ("dspark", "DSPARK", True, {"dspark-block-size": 0}),
    ],
)
def test_sglang_is_told_of_heads(kind: str, algorithm: str, place: bool, others: dict[str, int | None]) -> None:
    """Numbers are K and so many; None is 1."""
    words = shell_words(export(replace(HEAD, head=kind), "sglang"))[5:]
    given = dict(zip(words[::2], words[1::2], strict=True))
    expected = {f"--speculative-{name}": str(1 if more is None else HEAD.k + more) for name, more in others.items()}
    expected["--speculative-algorithm"] = algorithm
    if place:
        expected["--speculative-draft-model-path"] = "/heads/one"
    assert given == expected


@pytest.mark.parametrize(("kind", "tool"), [("medusa", "sglang"), ("peagle", "sglang"), ("eagle3", "llama.cpp")])
def test_a_tool_without_a_form_for_a_head_says_who_has_one(kind: str, tool: str) -> None:
    with pytest.raises(UsageError, match=f"--export {tool} has no form for a {kind} head here: vllm"):
        export(replace(HEAD, head=kind), tool)


def test_llama_cpp_gets_a_file_of_the_hub_by_its_name() -> None:
    pair = replace(PAIR, target="org/big:Q4/m.gguf", draft="org/small:m.gguf", target_is_gguf=True, draft_is_gguf=True)
    text = export(pair, "llama.cpp")
    assert "-m Q4/m.gguf -md m.gguf" in text
    assert "# First: hf download org/big Q4/m.gguf --local-dir .\n" in text
    assert "# First: hf download org/small m.gguf --local-dir .\n" in text


def test_transformers_reads_gguf_by_folder_and_name() -> None:
    facts = python_facts(export(replace(PAIR, draft="/m/it's/d.gguf", draft_is_gguf=True), "transformers"))
    assert facts["draft"] == ("/m/it's", {"gguf_file": "d.gguf", "dtype": "auto"})


@pytest.mark.parametrize("recommended", [PAIR, LOOKUP], ids=["draft-model", "prompt-lookup"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_python_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recommended: Recommendation, temperature: float
) -> None:
    target = tiny.save(tmp_path / "the target", tiny.model(seed=1))
    draft = tiny.save(tmp_path / "draft's", tiny.model(seed=2))
    names = {"target": str(target)} if recommended is LOOKUP else {"target": str(target), "draft": str(draft)}
    code = export(replace(recommended, temperature=temperature, **names), "transformers")
    exec(compile(code, "export", "exec"), {})
    assert capsys.readouterr().out.startswith("Your prompt")


READERS: dict[str, Callable[[str], tuple[str, str]]] = {
    "vllm": lambda text: (vllm(text)[0], vllm(text)[1]["model"]),
    "sglang": lambda text: (shell_words(text)[4], shell_words(text)[8]),
    "llama.cpp": lambda text: (shell_words(text)[2], shell_words(text)[4]),
    "transformers": lambda text: (python_facts(text)["target"][0], python_facts(text)["draft"][0]),
    "mlx": lambda text: (shell_words(text)[2], shell_words(text)[4]),
    "trtllm": lambda text: (PAIR.target, yaml.safe_load(text)["speculative_config"]["speculative_model"]),
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("path", AWKWARD)
def test_awkward_paths_survive(tool: str, path: str) -> None:
    is_gguf = tool == "llama.cpp"
    target = path if tool != "trtllm" else PAIR.target
    pair = replace(PAIR, target=target, draft=path + "!", target_is_gguf=is_gguf, draft_is_gguf=is_gguf)
    assert READERS[tool](export(pair, tool)) == (target, path + "!")


def test_a_path_in_a_comment_stays_in_it() -> None:
    pair = replace(PAIR, target="/a\nrm -r b")
    assert shell_words(export(pair, "llama.cpp"))[:3] == ["llama-server", "-m", "a\nrm -r b.gguf"]
    assert yaml.safe_load(export(pair, "trtllm")) == yaml.safe_load(export(PAIR, "trtllm"))


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_comments_say_what_does_not_carry_over(tool: str, temperature: float) -> None:
    text = export(replace(PAIR, temperature=temperature), tool)
    comment = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    assert f"K 5 was best here at temperature {temperature:g}." in comment
    assert "Measure the gain again" in comment
    assert TOOLS[tool].acceptance in comment
    assert ("At temperature 0 acceptance carries over" in comment) == (temperature == 0)


@pytest.mark.parametrize("tool", ["vllm", "transformers"])
def test_other_sizes_are_refused_by_tools_that_compare_them(tool: str) -> None:
    with pytest.raises(IncompatiblePairError, match="152,064 and 151,936") as refused:
        export(replace(PAIR, target_vocab_size=152_064), tool)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target_vocab_size": 151_936 + 129}, "differ by 129"),
        ({"draft_vocab_size": 151_936 + 129}, "differ by 129"),
        ({"target_bos_id": 1}, "first token must be the same, and is id 1 and None"),
        ({"draft_eos_id": 2}, "end token must be the same, and is id 151645 and 2"),
        ({"tokens_differing_from_id_5": 1234}, "1,234 differ"),
    ],
)
def test_llama_cpp_refuses(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(IncompatiblePairError, match=reason):
        export(replace(PAIR, **change), "llama.cpp")


def test_llama_cpp_takes_sizes_128_apart() -> None:
    assert "llama-server" in export(replace(PAIR, target_vocab_size=151_936 + 128), "llama.cpp")


@pytest.mark.parametrize("tool", ["mlx", "trtllm"])
@pytest.mark.parametrize("which", ["target_is_gguf", "draft_is_gguf"])
def test_tools_without_gguf_refuse_it(tool: str, which: str) -> None:
    with pytest.raises(IncompatiblePairError, match="reads no GGUF"):
        export(replace(PAIR, **{which: True}), tool)


def test_mlx_refuses_tokenizers_of_other_sizes() -> None:
    with pytest.raises(IncompatiblePairError, match="151,643 and 151,646"):
        export(replace(PAIR, draft_tokenizer_size=151_646), "mlx")


@pytest.mark.parametrize("tool", ["sglang", "llama.cpp", "mlx", "trtllm"])
def test_prompt_lookup_without_a_form_is_told(tool: str) -> None:
    with pytest.raises(UsageError, match="vllm and transformers have"):
        export(LOOKUP, tool)


def test_an_unknown_tool_is_told() -> None:
    with pytest.raises(UsageError, match=r"--export must be one of vllm, .*, not 'ollama'"):
        export(PAIR, "ollama")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft": "none"}, "--draft none"),
        ({"k": 0}, "K is 1"),
        ({"temperature": -1.0}, "temperature"),
        ({"draft": PROMPT_LOOKUP}, "lookup_max"),
        ({"draft_vocab_size": None}, "draft_vocab_size"),
    ],
)
def test_what_is_no_recommendation(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PAIR, **change)
