"""Checkpoints that load, and every way in which they do not: one line, the option, the remedy, the exit code.

Nothing here reaches a network. Where the hub must fail, a fake one answers the HTTP requests of huggingface_hub, so
that the errors and their chains are the libraries' own.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from huggingface_hub import constants
from huggingface_hub.utils import _http, httpx
from huggingface_hub.utils import logging as hub_logging
from laws import generate
from running import Specdec
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    CLIPTextConfig,
    LlamaConfig,
    PreTrainedConfig,
    T5Config,
    dynamic_module_utils,
)

from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.errors import OutOfMemoryError, SpecdecError, UsageError
from specdec_cli.runtime import devices
from specdec_cli.runtime.checkpoints import families, inspection, plan
from specdec_cli.runtime.devices import out_of_memory
from specdec_cli.runtime.models.transformers_model import TransformersModel

HUB_ID = "org/name"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROLES = pytest.mark.parametrize("role", ["target", "draft"])
Response = Any  # httpx.Response, whose package huggingface_hub chooses
Answer = Callable[[Any], Response]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 Llama."""
    return tiny.save(tmp_path_factory.mktemp("float32"))


@pytest.fixture(scope="module")
def bfloat16_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, stored in bfloat16."""
    return tiny.save(tmp_path_factory.mktemp("bfloat16"), tiny.model().to(torch.bfloat16))


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """The float32 Llama, to be damaged."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def message_of(source: str | Path, role: str = "target", exit_code: int = 1, **settings: Any) -> str:
    """What a user is told when this does not load, with HERE for the source.

    It is checked to be one line that names the option and the source.
    """
    with pytest.raises(SpecdecError) as caught:
        tiny.load(source, role, **settings)
    message = tiny.one_line(caught.value, exit_code)
    assert f"--{role} {source}" in message
    return message.replace(str(source), "HERE")


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}), encoding="utf-8")


# ------------------------------------------------------------------------------------- what is not there
@ROLES
@pytest.mark.parametrize("place", ["nowhere", "./nowhere", "~/nowhere-at-all", "a/b/c", "model.gguf", "with space"])
def test_what_can_be_no_hub_id_must_exist(place: str, role: str, tmp_path: Path) -> None:
    source = str(tmp_path / place) if place == "nowhere" else place
    message = message_of(source, role, exit_code=2)
    assert message == f"--{role} HERE does not exist: give a folder, a .gguf file or a hub id"


@ROLES
def test_a_folder_without_a_checkpoint(role: str, tmp_path: Path) -> None:
    assert message_of(tmp_path, role, exit_code=2).endswith("is a folder with no config.json")


@ROLES
def test_an_adapter_without_its_model(role: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert "HERE is a folder with an adapter alone: merge it into its model" in message_of(tmp_path, role, exit_code=2)


@ROLES
def test_a_file_that_is_no_gguf(role: str, checkpoint: Path) -> None:
    message = message_of(checkpoint / "model.safetensors", role, exit_code=2)
    assert message.endswith("is a file but no .gguf: give the checkpoint's folder")


@ROLES
def test_a_device_is_refused_under_its_own_option(role: str, checkpoint: Path) -> None:
    option = "--device" if role == "target" else "--draft-device"
    with pytest.raises(UsageError, match=f"^{option} 'cuda:99' is not available"):
        tiny.load(checkpoint, role, device="cuda:99")


# --------------------------------------------------------------------------------------------- the hub
@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Answer], None]:
    """hub(answer): go online, to a hub that answers every request so, with an empty cache and no waiting."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between retries

    def answers(answer: Answer) -> None:
        client = httpx.Client(transport=httpx.MockTransport(answer), follow_redirects=True)
        monkeypatch.setattr(_http, "_GLOBAL_CLIENT", client)

    return answers


def status(code: int, error_code: str = "", error_message: str = "") -> Answer:
    """An answer as the hub gives its errors."""
    headers = {"X-Error-Code": error_code, "X-Error-Message": error_message}
    return lambda request: httpx.Response(code, headers={k: v for k, v in headers.items() if v})


def broken(error: str) -> Answer:
    """No answer at all."""

    def answer(request: Any) -> Response:
        raise getattr(httpx, error)("the line is dead", request=request)

    return answer


def serving(folder: Path, asked: list[str], **exceptions: Answer) -> Answer:
    """A hub that has one model, and answers otherwise for the files named (dots written as underscores)."""

    def answer(request: Any) -> Response:
        path = request.url.path
        asked.append(path)
        if "/resolve/" not in path:
            if "/tree/" in path:
                return status(404, "EntryNotFound")(request)
            return httpx.Response(200, json={"id": HUB_ID, "sha": COMMIT, "siblings": []})
        name = path.rsplit("/", 1)[1]
        if name.replace(".", "_") in exceptions:
            return exceptions[name.replace(".", "_")](request)
        if not (folder / name).is_file():
            return httpx.Response(404, headers={"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{name}"'}
        return httpx.Response(200, headers=headers, content=(folder / name).read_bytes())

    return answer


def test_a_hub_id_is_fetched_once_and_then_found_offline(
    checkpoint: Path, hub: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    hub(serving(checkpoint, asked))
    fetched = tiny.load(HUB_ID, revision="v1.0")
    assert any("/revision/v1.0" in path for path in asked)
    assert any(path.endswith("/model.safetensors") for path in asked)
    assert not any("/main/" in path for path in asked)

    def unexpected(request: Any) -> Response:
        raise AssertionError(f"--offline asked the hub for {request.url}")

    hub(unexpected)
    for name, settings in (("--offline", {"offline": True}), ("HF_HUB_OFFLINE", {})):
        if name == "HF_HUB_OFFLINE":
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        found = tiny.load(HUB_ID, revision="v1.0", **settings)
        assert torch.equal(found.model.lm_head.weight, fetched.model.lm_head.weight), name
    assert fetched.name == HUB_ID


NOT_FOUND = r"is neither a folder here nor a model on the hub; if it is private, run 'hf auth login'"
GATED = r"is gated: accept its terms on the hub, then log in with 'hf auth login'"
NO_NETWORK = r"no network to fetch .*: connect, or give a folder that is already here"
HUB_FAILURES = [
    pytest.param(status(404, "RepoNotFound", "Repository not found"), NOT_FOUND, id="repository not found"),
    pytest.param(status(401, "", "Invalid username or password."), NOT_FOUND, id="private or missing, not logged in"),
    pytest.param(status(401, "GatedRepo", "Access to model is restricted."), GATED, id="gated, not logged in"),
    pytest.param(status(403, "GatedRepo", "You are not in the authorized list."), GATED, id="gated, not accepted"),
    pytest.param(broken("ConnectError"), NO_NETWORK, id="no route"),
    pytest.param(broken("ConnectTimeout"), NO_NETWORK, id="no answer"),
    pytest.param(broken("ReadError"), NO_NETWORK, id="connection reset"),
    pytest.param(broken("ProxyError"), NO_NETWORK, id="proxy"),
    # The network is there, so "connect" would be no remedy.
    pytest.param(
        status(401, "", "Invalid credentials in Authorization header"),
        r"^(?!.*no network).*hf auth login",
        id="old token",
    ),
    pytest.param(
        status(403, "", "your token lacks the permission"), r"^(?!.*no network).*hf auth login", id="token too narrow"
    ),
    pytest.param(
        status(403, "", "Access to this resource is disabled."),
        r"^(?!.*no network).*disabled",
        id="disabled by the hub",
    ),
    pytest.param(status(429), r"^(?!.*no network).*429.*later", id="too many requests"),
    pytest.param(status(503), r"^(?!.*no network).*503.*later", id="the hub is down"),
]


@pytest.mark.parametrize(("answer", "expected"), HUB_FAILURES)
def test_hub_failures(answer: Answer, expected: str, hub: Callable[[Answer], None]) -> None:
    hub(answer)
    assert re.search(expected, message_of(HUB_ID, "draft"))


@pytest.mark.parametrize("command", [("generate", "x", "--quiet"), ("pair-check", "--quiet")])
@pytest.mark.parametrize("answer", [status(503), broken("ReadError")])
def test_retries_are_not_told_beside_the_error(
    command: tuple[str, ...], answer: Answer, hub: Callable[[Answer], None], specdec: Specdec
) -> None:
    """The hub's package warns at each of its retries, to a stream that it took at import."""
    hub(answer)
    hub_logging.set_verbosity_warning()
    told = _Records()
    library = logging.getLogger("huggingface_hub")
    library.addHandler(told)
    try:
        code, _, err = specdec(*command, "--target", "demo:target", "--draft", "nosuch")
    finally:
        library.removeHandler(told)
    assert code == 1
    assert len(err.splitlines()) == (command[0] == "generate")
    assert told.records == []


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_a_name_that_is_no_folder_is_one_line_offline(specdec: Specdec) -> None:
    code, out, err = specdec("generate", "x", "--target", "demo:target", "--draft", "nosuch", "--quiet")
    assert (code, out) == (1, "")
    assert err == "specdec: --draft nosuch is not in the hub's local cache: download it first, without HF_HUB_OFFLINE\n"


@pytest.mark.parametrize(("role", "option"), [("target", "--revision"), ("draft", "--draft-revision")])
def test_an_unknown_revision_names_the_option_it_came_from(
    role: str, option: str, hub: Callable[[Answer], None]
) -> None:
    hub(status(404, "RevisionNotFound", "Invalid rev id: v9"))
    message = message_of(HUB_ID, role, revision="v9")
    assert message == f"--{role} HERE has no revision 'v9': check {option}"


@pytest.mark.parametrize("name", ["config_json", "tokenizer_json", "model_safetensors"])
def test_a_connection_that_is_reset_half_way(name: str, checkpoint: Path, hub: Callable[[Answer], None]) -> None:
    hub(serving(checkpoint, [], **{name: broken("ReadError")}))
    assert re.search(NO_NETWORK, message_of(HUB_ID))


def test_a_hub_model_without_weights(checkpoint: Path, hub: Callable[[Answer], None]) -> None:
    hub(serving(checkpoint, [], model_safetensors=status(404, "EntryNotFound")))
    assert "model.safetensors" in message_of(HUB_ID)


@ROLES
def test_an_unknown_hub_id_with_offline(role: str) -> None:
    message = message_of(HUB_ID, role, offline=True)
    assert message == f"--{role} HERE is not in the hub's local cache: download it first, without --offline"


@ROLES
def test_an_unknown_hub_id_where_the_environment_says_offline(role: str) -> None:
    """conftest sets HF_HUB_OFFLINE: the network may be fine, so the remedy is the variable."""
    message = message_of(HUB_ID, role)
    assert "not in the hub's local cache" in message
    assert "HF_HUB_OFFLINE" in message
    assert "--offline" not in message


@pytest.mark.parametrize("offline", [True, False])
def test_offline_revision_and_trust_reach_every_loader(
    offline: bool, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, dict[str, Any]] = {}
    for auto in (inspection.AutoConfig, inspection.AutoTokenizer, families.AutoModelForCausalLM):
        real = auto.from_pretrained

        def record(*args: Any, _real: Any = real, _name: str = auto.__name__, **kwargs: Any) -> Any:
            seen[_name] = kwargs
            return _real(*args, **kwargs)

        monkeypatch.setattr(auto, "from_pretrained", record)
    tiny.load(checkpoint, offline=offline, revision="v2", trust_remote_code=True)
    assert seen.keys() == {"AutoConfig", "AutoTokenizer", "AutoModelForCausalLM"}
    for name, kwargs in seen.items():
        assert kwargs["local_files_only"] is offline, name
        assert kwargs["revision"] == "v2", name
        assert kwargs["trust_remote_code"] is True, name


# ------------------------------------------------------------------------------------- the wrong kind
def small_bert() -> BertConfig:
    return BertConfig(
        vocab_size=tiny.VOCAB_SIZE,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        architectures=["BertForMaskedLM"],
    )


@ROLES
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # transformers has a BertLMHeadModel, so its own list of causal models does not tell.
        pytest.param(small_bert(), r"is not a causal language model \(bert\): choose", id="bert"),
        pytest.param(CLIPTextConfig(), r"is not a causal language model \(clip_text_model\): choose", id="clip"),
        pytest.param(T5Config(), r"is an encoder-decoder \(t5\): choose a decoder-only model", id="t5"),
    ],
)
def test_not_a_causal_language_model(config: PreTrainedConfig, expected: str, role: str, tmp_path: Path) -> None:
    if isinstance(config, BertConfig):
        BertForMaskedLM(config).save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    assert re.search(expected, message_of(tmp_path, role, exit_code=2))


# --------------------------------------------------------------------------------------- what is broken
def truncate(path: Path, size: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:size])
    assert path.stat().st_size < len(content)


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def first_shard_only(folder: Path) -> None:
    without_weights(folder)
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def pickled_rubbish(folder: Path) -> None:
    without_weights(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02junk")


DAMAGED = r"its safetensors file is damaged \(.+\); download it again"
# What is done to a checkpoint's folder, and what must be said about it.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights cut short": (lambda f: truncate(f / "model.safetensors", 40_000), DAMAGED),
    "weights cut inside the header": (lambda f: truncate(f / "model.safetensors", 100), DAMAGED),
    "weights empty": (lambda f: truncate(f / "model.safetensors", 0), DAMAGED),
    "weights with a header that is no JSON": (lambda f: overwrite(f / "model.safetensors", 8, b"x" * 32), DAMAGED),
    "weights with an absurd header length": (lambda f: overwrite(f / "model.safetensors", 0, b"\xff" * 8), DAMAGED),
    "no weights": (without_weights, r"model\.safetensors.*download"),
    "a shard is missing": (first_shard_only, r"model-00002-of-00002\.safetensors.*download"),
    "pickled weights damaged": (pickled_rubbish, r"download"),
    "no tokenizer": (
        lambda f: [path.unlink() for path in f.glob("tokenizer*")],
        r"has no tokenizer that can be read: copy the original model's tokenizer files into it",
    ),
    "tokenizer damaged": (
        lambda f: (f / "tokenizer.json").write_text("{", encoding="utf-8"),
        r"has no tokenizer that can be read: copy the original model's tokenizer files into it",
    ),
    "tokenizer with merges of nothing": (
        lambda f: edit_json(
            f / "tokenizer.json",
            model=json.loads((f / "tokenizer.json").read_text(encoding="utf-8"))["model"] | {"merges": [["q", "q"]]},
        ),
        r"has no tokenizer that can be read: copy the original model's tokenizer files into it",
    ),
    "tokenizer of an unknown kind": (
        lambda f: (f / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Nope"}}', encoding="utf-8"),
        r"has no tokenizer that can be read: copy the original model's tokenizer files into it",
    ),
    "quantised by what nobody knows": (
        lambda f: edit_json(f / "config.json", quantization_config={"quant_method": "moonquant"}),
        r"was quantised by moonquant, which this transformers does not know: upgrade transformers",
    ),
    "config is no JSON": (
        lambda f: (f / "config.json").write_text('{"model_type": ', encoding="utf-8"),
        r"config\.json.*not a valid JSON.*download",
    ),
    "config is a list": (lambda f: (f / "config.json").write_text("[]", encoding="utf-8"), r"model_type.*download"),
    "config without a type": (lambda f: edit_json(f / "config.json", model_type=None), r"model_type.*download"),
    "architecture from the future": (
        lambda f: edit_json(f / "config.json", model_type="frobnicator"),
        r"is of an architecture that this transformers does not know: upgrade transformers",
    ),
    "config contradicts itself": (
        lambda f: edit_json(f / "config.json", num_attention_heads=3),
        r"hidden size.*not a multiple",
    ),
    "config with a word for a number": (lambda f: edit_json(f / "config.json", hidden_size="big"), r"hidden_size"),
    "config with an unknown activation": (lambda f: edit_json(f / "config.json", hidden_act="gulu"), r"gulu"),
    "config with an unknown rope": (
        lambda f: edit_json(f / "config.json", rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}),
        r"spiral",
    ),
    # The weights are those of another config: nothing must be made up.
    "weights of other sizes": (
        lambda f: edit_json(f / "config.json", intermediate_size=128),
        r"^(?!.*above report).*size",
    ),
    "weights of fewer layers": (
        lambda f: edit_json(f / "config.json", num_hidden_layers=3),
        r"lack|miss",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_checkpoint(damage: str, copy: Path) -> None:
    do, expected = DAMAGES[damage]
    do(copy)
    message = message_of(copy, "draft")
    assert re.search(expected, message), message


@ROLES
def test_a_broken_checkpoint_names_the_role(role: str, copy: Path) -> None:
    truncate(copy / "model.safetensors", 40_000)
    assert re.search(DAMAGED, message_of(copy, role))


def test_a_broken_checkpoint_is_no_matter_of_the_network(copy: Path) -> None:
    """--offline explains what is missing from the hub's cache, nothing else."""
    truncate(copy / "model.safetensors", 40_000)
    assert re.search(DAMAGED, message_of(copy, offline=True))


# ------------------------------------------------------------------------------------------ remote code
@pytest.fixture
def code_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers copies and imports a checkpoint's code."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])


def bring_code(folder: Path, head: str = "") -> None:
    """Make it a model of a type of its own, which is Llama."""
    edit_json(
        folder / "config.json",
        model_type="mine",
        auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"},
    )
    (folder / "mine.py").write_text(
        f"{head}\nfrom transformers import LlamaConfig, LlamaForCausalLM\n\n\n"
        "class Config(LlamaConfig):\n    model_type = 'mine'\n\n\n"
        "class Model(LlamaForCausalLM):\n    config_class = Config\n",
        encoding="utf-8",
    )


def bring_tokenizer_code(folder: Path) -> None:
    """The same for the tokenizer."""
    edit_json(
        folder / "tokenizer_config.json",
        tokenizer_class="Mine",
        auto_map={"AutoTokenizer": ["mine_tokenizer.Mine", None]},
    )
    (folder / "mine_tokenizer.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n\n\nclass Mine(PreTrainedTokenizerFast):\n    pass\n",
        encoding="utf-8",
    )


@ROLES
@pytest.mark.parametrize("bring", [bring_code, bring_tokenizer_code])
def test_a_checkpoint_with_code_of_its_own_needs_consent(
    bring: Callable[[Path], None], role: str, copy: Path, code_cache: None
) -> None:
    bring(copy)
    message = message_of(copy, role)
    assert message == (f"--{role} HERE brings its own Python code: read it, then allow it with --trust-remote-code")
    loaded = tiny.load(copy, role, trust_remote_code=True)
    assert loaded.num_rows == tiny.VOCAB_SIZE
    module = type(loaded.model if bring is bring_code else loaded.tokenizer).__module__
    assert module.startswith("transformers_modules")


def test_code_that_needs_a_package_names_it(copy: Path, code_cache: None) -> None:
    bring_code(copy, head="import a_package_that_nobody_has")
    message = message_of(copy, trust_remote_code=True)
    assert re.search(r"needs a package that is not installed.*a_package_that_nobody_has", message)


def test_code_that_imports_what_transformers_no_longer_has(copy: Path, code_cache: None) -> None:
    bring_code(copy, head="from transformers.cache_utils import CacheOfOld")
    message = message_of(copy, trust_remote_code=True)
    assert re.search(
        r"its own Python code does not run with transformers 5\.\S+ \(cannot import name 'CacheOfOld'", message
    )
    assert message.endswith("or one whose code is newer")


def test_code_that_fails_while_the_model_is_made(copy: Path, code_cache: None) -> None:
    bring_code(copy)
    file = copy / "mine.py"
    body = "    def __init__(self, config):\n        self.a_method_of_old()\n"
    file.write_text(file.read_text(encoding="utf-8") + body, encoding="utf-8")
    message = message_of(copy, trust_remote_code=True)
    assert re.search(r"its own Python code does not run with transformers .*a_method_of_old", message)


def test_a_checkpoint_in_another_librarys_layers_gives_what_transformers_gives(tmp_path: Path) -> None:
    """BitNet's, whose weights are rounded to three values as they are used."""
    folder = tiny.save(tmp_path, tiny.model("llama"))
    edit_json(
        folder / "config.json",
        quantization_config={"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"},
    )
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map={"": "cpu"})
    prompt = torch.tensor([[7, 80, 33, 41]])
    expected = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, eos_token_id=None
    )
    target = TransformersModel(tiny.load(folder).model, tiny.VOCAB_SIZE)
    found, _ = generate(target, NoDrafter(target.device), prompt=prompt[0].tolist(), max_new_tokens=12)
    assert found == expected[0, 4:].tolist()


def test_a_quantised_checkpoint_whose_package_is_missing_names_it(copy: Path) -> None:
    edit_json(copy / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    message = message_of(copy)
    assert re.search(r"needs a package that is not installed: .*(optimum|gptq)", message, re.IGNORECASE)


# ---------------------------------------------------------------------------------------------- memory
@pytest.fixture
def large(tmp_path: Path) -> tuple[Path, int]:
    """A checkpoint of a billion parameters without weights, so that reading them would fail; and their number."""
    hidden, inner, layers, rows = 2048, 8192, 16, 32_000
    LlamaConfig(
        vocab_size=rows,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        tie_word_embeddings=False,
    ).save_pretrained(tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    a_layer = 4 * hidden * hidden + 3 * hidden * inner + 2 * hidden
    return tmp_path, layers * a_layer + 2 * rows * hidden + hidden


@ROLES
@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_too_large_for_memory_is_said_before_weights_are_read(
    dtype: str, itemsize: int, role: str, large: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, num_parameters = large
    asked: list[torch.device] = []

    def free_memory(device: torch.device) -> int:
        asked.append(device)
        return 1_500_000_000

    monkeypatch.setattr(plan, "free_memory", free_memory)
    message = message_of(folder, role, exit_code=4, dtype=dtype)
    assert set(asked) == {torch.device("cpu")}
    needed = num_parameters * itemsize * plan.HEADROOM / 1e9
    assert f"needs about {needed:.1f} GB in {dtype}, cpu has 1.5 GB free: choose a smaller model" in message


def test_the_memory_that_is_needed_is_enough(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_bytes = 4 * sum(tensor.numel() for tensor in load_file(checkpoint / "model.safetensors").values())
    monkeypatch.setattr(plan, "free_memory", lambda device: int(num_bytes * plan.HEADROOM) + 1)
    assert tiny.load(checkpoint).num_rows == tiny.VOCAB_SIZE
    monkeypatch.setattr(plan, "free_memory", lambda device: num_bytes)
    with pytest.raises(OutOfMemoryError):
        tiny.load(checkpoint)


def test_auto_keeps_the_stored_type_where_only_that_fits(
    bfloat16_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_parameters = sum(t.numel() for t in load_file(bfloat16_checkpoint / "model.safetensors").values())
    monkeypatch.setattr(devices, "_is_fast", lambda *_: False)
    monkeypatch.setattr(plan, "free_memory", lambda device: 3 * num_parameters)
    loaded = tiny.load(bfloat16_checkpoint, dtype="auto")
    assert loaded.dtype == loaded.model.dtype == torch.bfloat16
    assert any("float32 does not fit" in note for note in loaded.notes)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """A GPU with hardly any memory. Lists the device maps that from_pretrained is given; CPU and disk do the rest."""
    maps: list[Any] = []
    real = families.AutoModelForCausalLM.from_pretrained
    on_cpu = ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head")
    over_two = {"model.layers.1": "disk", **dict.fromkeys(on_cpu, "cpu")}

    def from_pretrained(*args: Any, device_map: Any, **kwargs: Any) -> Any:
        maps.append(device_map)
        places = over_two if device_map == "auto" else {"": "cpu"}
        return real(*args, device_map=places, offload_folder=tmp_path / "offloaded", **kwargs)

    monkeypatch.setattr(families.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(plan, "choose_device", lambda wanted, option: torch.device("cuda"))
    monkeypatch.setattr(plan, "free_memory", lambda device: 1000)
    return maps


def test_a_target_too_large_for_one_gpu_is_spread(checkpoint: Path, fake_cuda: list[Any]) -> None:
    loaded = tiny.load(checkpoint, "target", device="cuda")
    assert fake_cuda == ["auto"]
    expected = "target is too large for one GPU: accelerate spread it over disk (1 modules), cpu (5 modules)"
    assert expected in loaded.notes


def test_a_draft_too_large_for_one_gpu_is_refused(checkpoint: Path, fake_cuda: list[Any]) -> None:
    message = message_of(checkpoint, "draft", exit_code=4, device="cuda")
    assert "cuda has 0.0 GB free" in message
    assert fake_cuda == []


@ROLES
def test_what_fits_on_one_gpu_goes_there_whole(
    role: str, checkpoint: Path, fake_cuda: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "free_memory", lambda device: 10**9)
    loaded = tiny.load(checkpoint, role, device="cuda")
    assert fake_cuda == [{"": torch.device("cuda")}]
    assert not any("too large" in note for note in loaded.notes)


def exhausted() -> None:
    """torch's own complaint: 256 TB is more than addresses reach."""
    torch.empty(2**48, dtype=torch.uint8)


def raising(error: BaseException) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


ALLOCATIONS = {
    "a CPU": exhausted,
    "CUDA": raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")),
    "MPS": raising(RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB, other allocations: 1 MB)")),
    "Python": raising(MemoryError()),
}


@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_a_failed_allocation_becomes_one_line(allocate: Callable[[], None]) -> None:
    with pytest.raises(OutOfMemoryError) as caught, out_of_memory("for the cache", "shorten the prompt"):
        allocate()
    assert str(caught.value) == "not enough memory for the cache: shorten the prompt"
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("out of memory"), KeyError("x")])
def test_other_errors_pass_through(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, out_of_memory("for the cache", "shorten the prompt"):
        raise error
    assert caught.value is error


@ROLES
@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_a_failed_allocation_while_weights_are_read(
    allocate: Callable[[], None], role: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families.AutoModelForCausalLM, "from_pretrained", lambda *args, **kwargs: allocate())
    message = message_of(checkpoint, role, exit_code=4)
    assert message == f"not enough memory to load --{role} HERE: choose a smaller model or a 16-bit --dtype"


# -------------------------------------------------------------------------------------- what is loaded
def test_what_a_checkpoint_says_about_itself(checkpoint: Path) -> None:
    loaded = tiny.load(checkpoint, "draft")
    assert loaded.name == str(checkpoint)
    assert loaded.device == torch.device("cpu")
    assert loaded.dtype == loaded.model.dtype == torch.float32
    assert loaded.num_rows == tiny.VOCAB_SIZE
    assert not loaded.model.training
    assert loaded.tokenizer.decode([1, 2]) == tiny.byte_tokenizer().decode([1, 2])


def test_rows_count_padding(tmp_path: Path) -> None:
    assert tiny.load(tiny.save(tmp_path, tiny.model(vocab_size=300))).num_rows == 300


@ROLES
@pytest.mark.parametrize("fast", [True, False])
def test_auto_takes_the_stored_type_where_it_is_fast_and_says_what_it_took(
    fast: bool, role: str, bfloat16_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_is_fast", lambda dtype, *_: fast and dtype == torch.bfloat16)
    loaded = tiny.load(bfloat16_checkpoint, role, dtype="auto")
    assert loaded.dtype == loaded.model.dtype == (torch.bfloat16 if fast else torch.float32)
    (note,) = loaded.notes
    assert note.startswith(f"{role} {bfloat16_checkpoint}: ")
    assert ("bfloat16 (as stored)" if fast else "float32 (this cpu has no fast bfloat16)") in note


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_explicit_type(dtype: str, stored: str, checkpoint: Path, bfloat16_checkpoint: Path) -> None:
    loaded = tiny.load(checkpoint if stored == "float32" else bfloat16_checkpoint, dtype=dtype)
    assert loaded.dtype == getattr(torch, dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {loaded.dtype}


def test_a_config_without_a_type_is_float32(copy: Path) -> None:
    edit_json(copy / "config.json", dtype=None, torch_dtype=None)
    assert tiny.load(copy, dtype="auto").dtype == torch.float32


@pytest.mark.parametrize(
    ("declared", "tokenizers", "expected"),
    [
        pytest.param(tiny.BYTES, tiny.END, {tiny.BYTES}, id="the same"),
        pytest.param(7, tiny.END, {7, tiny.BYTES}, id="two"),
        pytest.param([5, 7], tiny.END, {5, 7, tiny.BYTES}, id="a list and another"),
        pytest.param([0], None, {0}, id="id 0, none of the tokenizer's"),
        pytest.param(None, tiny.END, {tiny.BYTES}, id="the tokenizer's alone"),
        pytest.param(None, None, set(), id="none"),
    ],
)
def test_end_ids_are_the_generation_configs_and_the_tokenizers(
    declared: int | list[int] | None, tokenizers: str | None, expected: set[int], tmp_path: Path
) -> None:
    tokenizer = tiny.byte_tokenizer()
    tokenizer.eos_token = tokenizers
    model = tiny.model(eos_token_id=None)
    assert tiny.load(tiny.save(tmp_path, model, tokenizer, end_ids=declared)).end_ids == expected


def test_without_a_generation_config_the_configs_end_id_counts(copy: Path) -> None:
    (copy / "generation_config.json").unlink()
    edit_json(copy / "config.json", eos_token_id=[3, 4])
    assert tiny.load(copy).end_ids == {3, 4, tiny.BYTES}


def test_safetensors_are_preferred_to_pickled_weights(copy: Path) -> None:
    expected = load_file(copy / "model.safetensors")
    torch.save({name: torch.zeros_like(tensor) for name, tensor in expected.items()}, copy / "pytorch_model.bin")
    assert torch.equal(tiny.load(copy).model.lm_head.weight, expected["lm_head.weight"])
    (copy / "model.safetensors").unlink()
    assert not tiny.load(copy).model.lm_head.weight.any()
