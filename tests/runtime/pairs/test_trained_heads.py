"""--draft HEAD: detected, loaded beside its target, exact, and refused in one line where it cannot be read rightly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import heads
import laws
import pytest
import tiny
import torch
from running import Specdec
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.sampling import logits_to_probs
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.base import Drafter
from specdec_cli.drafters.recurrent_head import RecurrentHeadDrafter
from specdec_cli.drafters.spec import parse_draft
from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.pairs.pair import Pair, load_pairs
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness

WHOLE = ("eagle2_nobias", "eagle3_safeailab", "eagle3_speculators_nbr")  # with a target that can decode
PROMPT = [5, 9, 7, 30, 31, 5, 9]


def load(name: str, head: Path | None = None, **more: Any) -> Pair:
    folder = heads.CASES / name
    return tiny.pair(folder / "target", head or folder / "head", **more)


def drafter_of(pair: Pair, draft: str = "./head", sampling: SamplingSettings = laws.GREEDY, tree: int = 0) -> Drafter:
    return make_drafter(parse_draft(draft), pair.drafter_parts(sampling, 0.0, tree))


@pytest.mark.parametrize("name", WHOLE)
def test_greedy_text_is_plain_decoding_s(name: str) -> None:
    """Alone and behind ngram, as chain and as tree, for several K."""
    pair = load(name)
    plain = drafter_of(pair, "none")
    expected, _ = laws.generate(pair.target, plain, prompt=PROMPT, max_new_tokens=32)
    accepted = 0
    for draft in ("./head", "ngram+./head"):
        for tree, k in ((0, 1), (0, 4), (60, 3)):
            found, steps = laws.generate(
                pair.target, drafter_of(pair, draft, tree=tree), k=k, prompt=PROMPT, max_new_tokens=32
            )
            assert found == expected
            accepted += sum(step.num_accepted for step in steps)
            assert any(step.draft_token_ids for step in steps)
    assert accepted, "a random head of a small vocabulary is right now and then"


@torch.inference_mode()
@pytest.mark.parametrize("tree", [0, 60], ids=["chain", "tree"])
@pytest.mark.parametrize("draft", ["./head", "ngram:max=1+./head"])
@pytest.mark.parametrize("name", WHOLE)
def test_after_every_round_logits_are_a_fresh_head_s(name: str, draft: str, tree: int) -> None:
    """A stale entry in the head's cache would change them, and nobody would see it in the text."""
    pair = load(name)
    assert pair.head is not None
    network: Any = pair.head.network
    said: list[tuple[int, Tensor]] = []
    read = network.read

    def listening(states: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        logits, hidden = read(states, token_ids)
        said.append((network.length, logits))
        return logits, hidden

    network.read = listening
    ids, _ = laws.generate(pair.target, drafter_of(pair, draft, tree=tree), k=3, prompt=PROMPT, max_new_tokens=32)
    network.read = read
    assert len(said) > 3
    text = torch.tensor([*PROMPT, *ids])
    pair.target.tap(network.taps)
    pair.target.reset()
    pair.target.forward(text, num_logits=1)
    states = pair.target.take_states()
    for length, logits in said[1:]:  # the first one is the prompt's, whose logits nobody uses
        network.reset()
        fresh, _ = network.read(states[:length], text[1 : length + 1])
        torch.testing.assert_close(logits, fresh, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tree", [0, 12], ids=["chain", "tree"])
def test_sampled_text_is_distributed_as_the_target_s(tree: int) -> None:
    """The first two tokens of many texts, with a head whose vocabulary is a part of the target's."""
    pair = load("eagle3_safeailab")
    sampling = SamplingSettings(temperature=1.3, top_k=4)
    drafter = drafter_of(pair, sampling=sampling, tree=tree)
    observed = []
    for seed in range(400):
        generation = Generation(
            pair.target, drafter, PROMPT, num_draft_tokens=2, sampling=sampling, stopping=Stopping(2), seed=seed
        )
        for _ in generation:
            pass
        observed.append(tuple(generation.token_ids))

    def after(ids: list[int]) -> list[float]:
        pair.target.reset()
        return logits_to_probs(pair.target.forward(torch.tensor(ids), 1), sampling)[0].tolist()  # type: ignore[no-any-return]

    with torch.inference_mode():
        firsts = {a: p for a, p in enumerate(after(PROMPT)) if p}
        expected = {(a, b): p * q for a, p in firsts.items() for b, q in enumerate(after([*PROMPT, a])) if q}
    assert laws.chi_square_p(observed, expected) > laws.SIGNIFICANCE


def test_a_line_says_what_was_detected_and_how_it_reads_states() -> None:
    notes = "\n".join(load("eagle3_safeailab").notes)
    assert "EAGLE-3 head (SafeAILab), reads the target's states after layer 2, after layer 4 and after layer 5" in notes
    assert "its config.json names none" in notes
    assert "draft head knows 72 of 112 tokens" in notes
    assert "EAGLE head (SafeAILab), reads the target's state after the final norm" in "\n".join(load(WHOLE[0]).notes)


def test_ids_of_layers_are_read_as_their_layout_means_them() -> None:
    """One name, two meanings: SGLang counts layers, speculators and vLLM count boundaries."""
    sglang, speculators = heads.case("eagle3_sglang").head, heads.case("eagle3_speculators").head
    assert [tap.boundary for tap in sglang.taps(8)] == [1, 4, 7]
    assert "ids 0, 3, 6, read as outputs of these layers" in sglang.describe(8)
    assert sglang.alternatives == (0,)
    assert [tap.boundary for tap in speculators.taps(8)] == [2, 4, 5]
    assert speculators.alternatives == ()


@pytest.mark.parametrize("name", heads.names("eagle", "eagle3"))
def test_taps_are_those_that_the_reference_took(name: str) -> None:
    case = heads.case(name)
    layers = json.loads((case.folder / "target" / "config.json").read_text())["num_hidden_layers"]
    declared = case.says.get("taps", {"hidden_states_index": [layers]})["hidden_states_index"]
    assert [tap.boundary for tap in case.head.taps(layers)] == declared


def test_models_are_no_heads() -> None:
    for source in ("demo:draft", heads.CASES / WHOLE[0] / "target"):
        pair = tiny.pair("demo:target" if source == "demo:draft" else source, source)
        assert pair.head is None
        assert pair.draft is not None


def test_rounded_and_of_another_number_type_and_cut_it_is_exact_still() -> None:
    name = "eagle2_nobias"
    expected, _ = laws.generate(load(name).target, drafter_of(load(name), "none"), prompt=PROMPT)
    folder = heads.CASES / name
    changes: tuple[dict[str, Any], ...] = ({"quantize": "int8"}, {"dtype": "bfloat16"}, {"vocab": "40"})
    for change in changes:
        target = tiny.settings(folder / "target", dtype="float32", device="cpu")
        (pair,) = load_pairs(target, [tiny.settings(folder / "head", **change)], print)
        assert pair.head is not None
        found, _ = laws.generate(pair.target, drafter_of(pair), prompt=PROMPT)
        assert found == expected
        if "vocab" in change:
            assert len(pair.head.network.output.words) < 112  # type: ignore[attr-defined]


def test_a_draft_that_is_wanted_twice_is_loaded_once() -> None:
    folder = heads.CASES / "eagle2_nobias"
    head = tiny.settings(folder / "head")
    first, second = load_pairs(tiny.settings(folder / "target"), [head, head], print)
    assert first.head is second.head
    assert not second.notes


# --- what is wrong with it

Change = Callable[[Path], None]


def config(**values: Any) -> Change:
    """Other values in config.json, of what is nested too; None takes a key out."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        found = json.loads(file.read_text())
        for key, value in values.items():
            at = found["transformer_layer_config"] if key in found.get("transformer_layer_config", {}) else found
            at[key] = value
        file.write_text(json.dumps(found))

    return change


def tensors(change: Callable[[dict[str, Tensor]], None]) -> Change:
    def rewrite(folder: Path) -> None:
        (file,) = folder.glob("*.safetensors")
        found = load_file(file)
        change(found)
        save_file(found, file)

    return rewrite


def without(name: str) -> Change:
    return tensors(lambda found: found.__delitem__(name))


def saved(value: Any) -> Change:
    def change(folder: Path) -> None:
        for file in folder.glob("*.safetensors"):
            file.unlink()
        torch.save(value, folder / "pytorch_model.bin")

    return change


def beyond(found: dict[str, Tensor]) -> None:
    found["d2t"][-1] += 1000


def twice(found: dict[str, Tensor]) -> None:
    found["d2t"] = torch.arange(len(found["d2t"])).neg()


class Strange:
    """What no state dict holds."""


MISTAKES: dict[str, tuple[Change, int, str]] = {
    "another width": (config(target_hidden_size=64), 1, "is another head's"),
    "another vocabulary": (config(vocab_size=150), 3, "made for a vocabulary of 150 tokens, and the target has 108"),
    "no d2t": (without("d2t"), 1, "no d2t that says which"),
    "ids beyond the target's": (tensors(beyond), 3, "the head belongs to another target"),
    "ids that stand twice": (tensors(twice), 3, "1 different ones"),
    "layers beyond the target's": (
        config(eagle_aux_hidden_state_layer_ids=[1, 3, 40]), 3, "reads states after layer 40, and the target has 7"
    ),
    "too few layers": (config(eagle_aux_hidden_state_layer_ids=[1, 3]), 1, "its fc takes 3 states"),
    "a missing tensor": (without("norm.weight"), 1, "has no tensor norm.weight"),
    "a tensor too many": (
        tensors(lambda found: found.update({"layers.0.extra.weight": torch.ones(2)})), 1, "layers.0.extra.weight"
    ),
    "another size": (config(intermediate_size=80), 1, "one of the two is another head's"),
    "an unknown kind": (config(speculators_model_type="hydra"), 1, "of the kind 'hydra'"),
    "objects": (saved({"fc.weight": Strange()}), 1, "is not a state dict"),
    "a list": (saved([torch.ones(2)]), 1, "is not a state dict (it is a list)"),
    "a number": (saved({"epoch": 3}), 1, "'epoch' in it is no tensor"),
    "no weights": (lambda folder: next(folder.glob("*.safetensors")).unlink(), 1, "holds no weights"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "code", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_one_line(tmp_path: Path, change: Change, code: int, words: str) -> None:
    name = "eagle3_speculators_nbr"
    head = tmp_path / "head"
    shutil.copytree(heads.CASES / name / "head", head)
    change(head)
    with pytest.raises(SpecdecError) as caught:
        load(name, head)
    assert words in tiny.one_line(caught.value, code)


def test_a_head_for_another_target_is_refused() -> None:
    with pytest.raises(SpecdecError) as caught:
        tiny.pair("demo:target", heads.CASES / "eagle2_nobias" / "head")
    assert "the head belongs to another target" in tiny.one_line(caught.value, 3)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--draft-quantize", "auto"], 2, "choose int8 or int4"),
        (["--draft-stop", "0.5", "--draft-tree", "9"], 2, "leave one out"),
        (["--draft-tree", "-1"], 2, "--draft-tree must be"),
        (["--compile"], 2, "leave it out"),
    ],
)
def test_options_that_do_not_fit_a_head(specdec: Specdec, words: list[str], code: int, message: str) -> None:
    folder = heads.CASES / "eagle2_nobias"
    command = ["generate", "ab", "-t", folder / "target", "-d", folder / "head", "--raw", "-n", "4"]
    found, out, err = specdec(*command, *words)
    assert found == code
    assert message in err
    assert not out
    assert len([line for line in err.splitlines() if message in line]) == 1


@pytest.mark.parametrize("draft", ["ngram", "demo:draft"])
def test_trees_are_for_heads(specdec: Specdec, draft: str) -> None:
    found, _, err = specdec("generate", "ab", "-d", draft, "--draft-tree", "9", "-n", "4")
    assert found == 2
    assert "--draft-tree" in err


def test_from_the_command_line(specdec: Specdec) -> None:
    """A chain above temperature 0, and a tree; the record names the kind and the states."""
    folder = heads.CASES / "eagle3_safeailab"
    command = ["generate", "ab cd ab", "-t", folder / "target", "-d", folder / "head", "--raw", "-n", "12", "-q"]
    for more in (["--temperature", "0.8"], ["--draft-tree", "20"], ["-d", f"ngram+{folder / 'head'}"]):
        words = command if "-d" not in more else [w for w in command if w not in ("-d", folder / "head")]
        code, out, err = specdec(*words, *more, "--format", "json", "--seed", "1")
        assert code == 0, err
        draft = json.loads(out)["settings"]["draft"]
        assert draft["head"] == "eagle3"
        assert draft["states"] == [2, 4, 5]


def test_the_demo_pair_is_loaded_beside_nothing(demo: Pair) -> None:
    """A drafter without a head has no taps, and its target no hooks."""
    drafter = drafter_of(demo, "demo:draft")
    assert not isinstance(drafter, RecurrentHeadDrafter)
    laws.generate(demo.target, drafter, prompt=PROMPT, max_new_tokens=4)
    assert demo.target.taps == ()
