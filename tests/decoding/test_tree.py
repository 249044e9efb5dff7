"""Drafts that branch: the rule, the masks and positions, the path that stays in the cache, and the records.

Models and trees are random; what a tree should give is always computed branch by branch, without one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import GREEDY, PROMPT, SIGNIFICANCE, BagModel, chi_square_p, exact_triples, generate, sampled_triples
from torch import Tensor
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig, PreTrainedModel

from specdec_cli.decoding import loop
from specdec_cli.decoding.loop import Step
from specdec_cli.decoding.sampling import prefix_matrix
from specdec_cli.decoding.tree import ROOT, Tree, ancestors, verify_tree
from specdec_cli.drafters.base import Context, Draft
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.drafters.trie import Trie
from specdec_cli.errors import IncompatiblePairError
from specdec_cli.measurement.metrics import add_up
from specdec_cli.runtime.caches import buffered
from specdec_cli.runtime.caches.trees import tree_inputs
from specdec_cli.runtime.models import transformers_model
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.models.tree_trial import LONGEST_WINDOW
from specdec_cli.settings import SamplingSettings

pytestmark = pytest.mark.exactness

CPU = torch.device("cpu")
FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "gpt_neox")
SLIDING = ("mistral", "gemma2", "gemma3")
EXACT, WRONG = 1e-4, 1e-2  # as in test_transformers_model
SAMPLES = 1_000
PATHS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), max_size=6)


def planted(paths: Sequence[Sequence[int]]) -> Trie:
    trie = Trie()
    for path in paths:
        at = ROOT
        for token in path:
            at = trie.add(at, token)
    return trie


def as_tree(trie: Trie) -> Tree:
    return Tree(tuple(trie.token_ids), tuple(trie.parents))


def lineage(parents: Sequence[int], place: int) -> list[int]:
    """A token's ancestors and itself, the root's child first."""
    found: list[int] = []
    while place != ROOT:
        found.insert(0, place)
        place = parents[place]
    return found


class Growing:
    """Drafts a random tree each round, often deeper than asked for, and remembers what it is told.

    Args:
        tokens: to guess from.
        branches, depth: of a tree.
        text: what follows PROMPT; some of its next tokens are a branch too, the last.
    """

    device = CPU

    def __init__(
        self, tokens: Sequence[int], *, branches: int = 3, depth: int = 3, seed: int = 0, text: Sequence[int] = ()
    ) -> None:
        self._random = random.Random(seed)
        self._tokens = tokens
        self._text = text
        self._shape = branches, depth
        self.told: list[tuple[Draft, int, Sequence[int]]] = []

    def reset(self, context: Context) -> None:
        self._room = 0

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        branches, depth = self._shape
        depth = min(depth, 64 - len(context.token_ids)) if num_draft_tokens else 0
        guesses = [self._random.choices(self._tokens, k=depth) for _ in range(branches)]
        right = self._text[len(context.token_ids) - len(PROMPT) :][: self._random.randint(0, depth)]
        trie = planted([*guesses, right])
        token_ids, parents = (torch.tensor(part, dtype=torch.long) for part in (trie.token_ids, trie.parents))
        self._draft = Draft(token_ids, parents=parents if len(parents) else None, wants_predictions=True)
        return self._draft

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        self.told.append((self._draft, num_accepted, predictions))


# --------------------------------------------------------------------------------------------- structure
@settings(max_examples=150, deadline=None)
@given(paths=PATHS)
def test_a_trie_holds_every_path_once(paths: list[list[int]]) -> None:
    trie = planted(paths)
    tokens, parents = trie.token_ids, trie.parents
    assert all(parent < place for place, parent in enumerate(parents))
    assert len({*zip(parents, tokens, strict=True)}) == len(tokens)
    spelled = [tuple(tokens[i] for i in lineage(parents, place)) for place in range(len(tokens))]
    assert sorted(spelled) == sorted({tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)})


@settings(max_examples=150, deadline=None)
@given(paths=PATHS, committed=st.lists(st.integers(5, 9), min_size=1, max_size=3))
def test_ancestors_and_prefixes_are_those_of_a_walk_upwards(paths: list[list[int]], committed: list[int]) -> None:
    trie = planted(paths)
    parents = torch.tensor(trie.parents, dtype=torch.long)
    found = ancestors(parents)
    wanted = [lineage(trie.parents, place) for place in range(len(parents))]
    assert [row.nonzero().flatten().tolist() for row in found] == wanted
    rows = prefix_matrix(torch.tensor(committed), torch.tensor(trie.token_ids, dtype=torch.long), found)
    before = [committed, *([*committed, *(trie.token_ids[i] for i in line)] for line in wanted)]
    assert [{*row.tolist()} for row in rows] == [{*ids} for ids in before]


@settings(max_examples=150, deadline=None)
@given(paths=PATHS, text=st.lists(st.integers(0, 4), min_size=6, max_size=6), most=st.integers(0, 5))
def test_a_walk_is_the_longest_path_that_spells_what_is_drawn(
    paths: list[list[int]], text: list[int], most: int
) -> None:
    """Where every token at one depth draws alike, the walk must follow that text as far as any path does."""
    trie = planted(paths)
    depths = [0, *(len(lineage(trie.parents, place)) for place in range(len(trie.parents)))]
    path = as_tree(trie).walk([text[depth] for depth in depths], most)
    shared = [next((i for i, (a, b) in enumerate(zip(p, text, strict=False)) if a != b), len(p)) for p in paths]
    assert [trie.token_ids[place] for place in path] == text[: min(max(shared, default=0), most)]
    assert path == (lineage(trie.parents, path[-1]) if path else [])
    branch = as_tree(trie).branch(path, most)
    assert branch[: len(path)] == path
    assert branch == (lineage(trie.parents, branch[-1]) if branch else [])
    leaf = branch[-1] if branch else ROOT
    assert len(branch) == most or leaf not in trie.parents


def test_of_equal_siblings_the_first_is_taken() -> None:
    doubled = Tree((4, 4, 2), (ROOT, ROOT, 1))
    assert doubled.walk([4, 2, 2, 0], 3) == [0]


def test_a_tree_of_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="leave probs out"):
        Draft(torch.tensor([1]), torch.ones(1, 5), torch.tensor([ROOT]))


# ------------------------------------------------------------------------------------------------- the law
LAWS = [
    (SamplingSettings(temperature=0.7), 4),
    (SamplingSettings(temperature=1.3), 2),
    (SamplingSettings(temperature=1.0, top_k=3), 3),
    (SamplingSettings(temperature=1.0, top_p=0.8), 1),
    (SamplingSettings(temperature=1.0, min_p=0.15), 4),
    (SamplingSettings(temperature=1.0, repetition_penalty=1.8), 4),
    (SamplingSettings(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05, repetition_penalty=1.3), 3),
]


def p_value(sampling: SamplingSettings, k: int) -> float:
    target = BagModel(4, seed=1, spread=1.0)
    triples = sampled_triples(target, Growing(range(4)), PROMPT, sampling, k, SAMPLES)
    exact = exact_triples(target, PROMPT, sampling)
    return chi_square_p(triples, exact) if set(triples) <= set(exact) else 0.0


@pytest.mark.parametrize(("sampling", "k"), LAWS, ids=str)
def test_output_is_distributed_as_the_targets(sampling: SamplingSettings, k: int) -> None:
    assert p_value(sampling, k) > SIGNIFICANCE


def _named(value: object) -> str:
    """Of parameters that are modules, classes and functions: no addresses, which differ between processes."""
    return str(getattr(value, "__name__", value))


def any_child(self: Tree, drawn: Sequence[int], most: int) -> list[int]:
    """Goes on with a child that nobody drew, where the drawn token has none."""
    return self.branch([], min(1, most))


def one_draw_too_few(target_probs: Tensor, token_ids: Tensor, parents: Tensor, *others: Any) -> Any:
    """Every token draws from the row of its parent."""
    rows = torch.cat([target_probs[:1], target_probs[parents + 1]])
    return verify_tree(rows, token_ids, parents, *others)


def of_a_chain(committed: Tensor, draft_ids: Tensor, seen: Tensor | None) -> Tensor:
    """Penalises what stands earlier in the block, on whatever branch."""
    return prefix_matrix(committed, draft_ids)


@pytest.mark.parametrize(
    ("where", "name", "mistake"), [(Tree, "walk", any_child), (loop, "verify_tree", one_draw_too_few)], ids=_named
)
def test_the_same_samples_show_a_wrong_rule(
    where: object, name: str, mistake: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test above can fail."""
    monkeypatch.setattr(where, name, mistake)
    assert p_value(SamplingSettings(temperature=1.0), 4) < 1e-9


PENALISED = SamplingSettings(temperature=0.0, repetition_penalty=1.8)


def texts(sampling: SamplingSettings, k: int) -> list[tuple[list[int], list[int], list[Step]]]:
    """Some by plain decoding, the same by trees, and their rounds."""
    found = []
    for seed in range(5):
        target = BagModel(30, seed, spread=0.7)
        plain, _ = generate(target, NoDrafter(CPU), sampling=sampling)
        drafter = Growing(plain, branches=5, seed=seed, text=plain)
        found.append((plain, *generate(target, drafter, k=k, sampling=sampling)))
    return found


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_greedy_is_the_plain_loop_token_for_token(k: int, sampling: SamplingSettings) -> None:
    found = texts(sampling, k)
    assert all(ids == plain for plain, ids, _ in found)
    rounds = [step for _, _, steps in found for step in steps]
    assert {step.provenance[-1] for step in rounds} == {"recovered", "bonus", "plain"}
    assert max(step.num_accepted for step in rounds) == min(k, 3)  # deeper tokens were drafted, and never taken


def keep_the_first(self: BagModel, num_tokens: int, path: Sequence[int]) -> None:
    self.roll_back(num_tokens - len(path))


@pytest.mark.parametrize(
    ("where", "name", "mistake"),
    [
        (BagModel, "keep_path", keep_the_first),
        (loop, "prefix_matrix", of_a_chain),
        (loop, "verify_tree", one_draw_too_few),
    ],
    ids=_named,
)
def test_the_same_texts_show_a_mistake(
    where: object, name: str, mistake: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likewise."""
    monkeypatch.setattr(where, name, mistake)
    assert sum(ids != plain for plain, ids, _ in texts(PENALISED, 5)) >= 3


@pytest.mark.parametrize("prompt", [[1], [1, 2, 3], [2] * 58, [4] * 63], ids=len)
def test_trees_end_with_the_context(prompt: list[int]) -> None:
    """BagModel asserts that no branch runs past it."""
    target = BagModel(5, 3)
    plain, _ = generate(target, NoDrafter(CPU), prompt=prompt, max_new_tokens=99)
    ids, steps = generate(target, Growing(range(5)), prompt=prompt, k=9, max_new_tokens=99)
    assert ids == plain
    assert len(prompt) + len(ids) == 65
    assert steps[-1].finish_reason == "length"


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_simulated_acceptance_is_the_share_that_was_asked_for(alpha: float, temperature: float) -> None:
    target = BagModel(9, 1, max_length=4_000)
    sampling = SamplingSettings(temperature=temperature)
    steps: list[Step] = []
    for seed in range(10):
        steps += generate(
            target, Growing(range(9), depth=2), k=2, sampling=sampling, seed=seed, simulated_acceptance=alpha,
            max_new_tokens=40,
        )[1]  # fmt: skip
    assert add_up(steps).alpha == pytest.approx(alpha, abs=0.08 if 0 < alpha < 1 else 0)


# ------------------------------------------------------------------------------------------------ records
@pytest.mark.parametrize("sampling", [GREEDY, SamplingSettings(temperature=1.0)], ids=["greedy", "sampled"])
def test_the_record_of_a_tree_adds_up(sampling: SamplingSettings) -> None:
    target = BagModel(5, 1, spread=0.8)
    drafter = Growing(range(5), branches=5)
    ids, steps = generate(target, drafter, k=2, sampling=sampling, max_new_tokens=40)
    assert ids == [token for step in steps for token in step.token_ids]
    text = list(PROMPT)
    for step, (draft, num_accepted, predictions) in zip(steps, drafter.told, strict=True):
        assert num_accepted == step.num_accepted
        assert step.token_ids[:-1] == step.draft_token_ids[:num_accepted]
        assert step.provenance[:-1] == ("accepted",) * num_accepted
        if draft.parents is None or not len(draft.token_ids):
            assert step.provenance == ("plain",)
            continue
        assert step.tree == Tree(tuple(draft.token_ids.tolist()), tuple(draft.parents.tolist()))
        check_figures(step, step.tree, target, text, sampling)
        lines = [lineage(step.tree.parents, place) for place in range(len(draft.token_ids))]
        rows = [[*text, *(step.tree.token_ids[i] for i in line)] for line in [[], *lines]]
        assert predictions == [int(target.logits(row).argmax()) for row in rows]
        text += step.token_ids


def check_figures(step: Step, whole: Tree, target: BagModel, text: list[int], sampling: SamplingSettings) -> None:
    """Each position's probabilities, and whether the round's last token was recovered."""
    at, before = ROOT, list(text)
    for token, prob, draft_prob, overlap in zip(
        step.draft_token_ids, step.target_probs, step.draft_probs, step.overlap, strict=True
    ):
        row = target.logits(before)
        row = torch.eye(5)[row.argmax()] if sampling == GREEDY else row.softmax(-1)
        children = {t: i for i, (p, t) in enumerate(zip(whole.parents, whole.token_ids, strict=True)) if p == at}
        assert draft_prob == 1
        assert prob == pytest.approx(float(row[token]), abs=1e-5)
        assert overlap == pytest.approx(float(row[[*children]].sum()), abs=1e-5)
        before.append(token)
        at = children[token]
    assert step.provenance[-1] == ("bonus" if step.num_accepted == len(step.draft_token_ids) else "recovered")
    assert len(step.draft_token_ids) == 2 or at not in whole.parents or step.cut  # as deep as there was something


def test_alpha_of_trees_is_their_overlap_in_the_long_run() -> None:
    sampling = SamplingSettings(temperature=1.0)
    found = [generate(BagModel(5, 1), Growing(range(5)), sampling=sampling, seed=seed)[1] for seed in range(40)]
    totals = add_up([step for steps in found for step in steps])
    assert totals.alpha is not None
    assert totals.overlap is not None
    assert 0.2 < totals.alpha < 0.9
    assert totals.alpha == pytest.approx(totals.overlap, abs=0.04)


# -------------------------------------------------------------------------------------- masks, positions, cache
@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[PreTrainedModel, TransformersModel]]:
    """A model and its cache, whose buffers are small, so that they fill up and grow within a text."""
    monkeypatch.setattr(buffered, "FIRST_CAPACITY", 8)

    def make(family: str, attention: str = "sdpa", **more: Any) -> tuple[PreTrainedModel, TransformersModel]:
        model = tiny.model(family, **more)
        model.set_attn_implementation(attention)
        return model, TransformersModel(model, tiny.VOCAB_SIZE)

    return make


def recomputed(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """[vocab_size] logits after the last of them, without a cache."""
    logits: Tensor = model(input_ids=torch.tensor([[*ids]]), use_cache=False).logits[0, -1]
    return logits


def worst_in_trees(model: PreTrainedModel, cached: TransformersModel, keep: Callable[[list[int]], list[int]]) -> float:
    """Read random trees, keep a random path of each, and compare every logit with a recompute of its branch."""
    rng = random.Random(3)
    text, worst = [65], 0.0
    cached.reset()
    for _ in range(8):
        trie = planted([rng.choices(range(tiny.BYTES), k=rng.randint(1, 4)) for _ in range(rng.randint(1, 4))])
        logits = cached.forward_tree(torch.tensor([text[-1], *trie.token_ids]), torch.tensor(trie.parents))
        lines = [[], *(lineage(trie.parents, place) for place in range(len(trie.parents)))]
        for row, line in zip(logits, lines, strict=True):
            wanted = recomputed(model, [*text, *(trie.token_ids[i] for i in line)])
            worst = max(worst, (row - wanted).abs().max().item())
        path = rng.choice(lines)
        cached.keep_path(len(logits), [0, *(place + 1 for place in keep(path))])
        text += [*(trie.token_ids[i] for i in path), rng.randrange(tiny.BYTES)]
        assert cached.length == len(text) - 1
        text.append(rng.randrange(tiny.BYTES))  # and a chain between two trees
        (row,) = cached.forward(torch.tensor(text[-2:-1]), num_logits=1)
        worst = max(worst, (row - recomputed(model, text[:-1])).abs().max().item())
        cached.roll_back(0)
    return worst


@torch.inference_mode()
@pytest.mark.parametrize("grouped", ["1", "0"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_and_after_trees_equal_a_recompute(
    family: str, attention: str, grouped: str, subject: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cached = subject(family, attention)
    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", grouped)
    cached.require_trees("--draft x")
    assert cached.length == 0
    assert worst_in_trees(model, cached, keep=lambda path: path) < EXACT


@torch.inference_mode()
def test_the_same_data_show_a_path_that_was_kept_wrongly(subject: Callable[..., Any]) -> None:
    """So that the test above can fail: the right number of tokens, but the block's first ones."""
    model, cached = subject("llama")
    assert worst_in_trees(model, cached, keep=lambda path: list(range(len(path)))) > WRONG


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_generate(family: str, subject: Callable[..., Any]) -> None:
    """Trees grown around the right text, so that paths of every length are kept."""
    model, cached = subject(family)
    plain = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(PROMPT) :].tolist()

    ids, steps = generate(cached, Growing(plain, text=plain, depth=4), k=4, max_new_tokens=40)
    assert ids == plain
    assert len({step.num_accepted for step in steps}) >= 3


# ------------------------------------------------------------------------------------------ who is refused
def refusal(model: PreTrainedModel) -> str:
    target = TransformersModel(model, tiny.VOCAB_SIZE)
    with pytest.raises(IncompatiblePairError) as caught:
        target.require_trees("--draft x")
    assert target.length == 0
    message = tiny.one_line(caught.value, 3)
    assert message.startswith(f"--draft x: the target cannot read drafts that branch: {type(model).__name__} ")
    assert message.endswith("; choose another source of drafts")
    return message


@pytest.mark.parametrize("family", SLIDING)
def test_sliding_windows_are_refused(family: str) -> None:
    assert "has sliding-window layers, whose cache cannot keep one path" in refusal(tiny.model(family))


def test_a_window_that_is_switched_off_is_none() -> None:
    TransformersModel(tiny.model("mistral", sliding_window=None), tiny.VOCAB_SIZE).require_trees("--draft x")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [tiny.WINDOW, 128])
def test_a_window_that_counts_places_in_the_cache_is_refused_however_long(window: int, dtype: torch.dtype) -> None:
    """GPT-Neo's mask: what it hides from a branch depends on the branches read before it."""
    model = tiny.model("gpt_neo", window_size=window).to(dtype)
    assert f"does not read one past its window of {window} tokens as it reads its branches" in refusal(model)


def test_a_window_that_a_trees_mask_takes_the_place_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch sees then what single tokens do not."""
    forward_tree = TransformersModel.forward_tree

    def unmasked(self: TransformersModel, token_ids: Tensor, parents: Tensor) -> Tensor:
        masks = [mask for name, mask in self.model.named_buffers() if name.endswith("attn.attention.bias")]
        own = [mask.clone() for mask in masks]
        for mask in masks:
            mask.copy_(torch.ones_like(mask).tril())
        logits = forward_tree(self, token_ids, parents)
        for mask, before in zip(masks, own, strict=True):
            mask.copy_(before)
        return logits

    monkeypatch.setattr(TransformersModel, "forward_tree", unmasked)
    assert f"past its window of {tiny.WINDOW} tokens" in refusal(tiny.model("gpt_neo"))


def test_a_window_too_long_to_be_tried_is_refused() -> None:
    size = {"window_size": LONGEST_WINDOW + 1, "max_position_embeddings": LONGEST_WINDOW + 2}
    assert "has a window of 1,025 tokens; trees are tried past 1,024 at most" in refusal(tiny.model("gpt_neo", **size))


@pytest.mark.parametrize(
    "unused",
    [{"attention_types": [[["global"], 2]]}, {"window_size": 256}],
    ids=["no local layer", "no shorter context"],
)
def test_a_window_that_hides_nothing_is_none(unused: dict[str, Any]) -> None:
    model = tiny.model("gpt_neo", **unused)
    target = TransformersModel(model, tiny.VOCAB_SIZE)
    target.require_trees("--draft x")
    plain = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=60, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(PROMPT) :].tolist()
    assert generate(target, Growing(plain, text=plain, depth=4), k=4, max_new_tokens=60)[0] == plain


def test_layers_of_another_kind_are_refused() -> None:
    assert "has layers of another kind (LinearAttentionLayer)" in refusal(tiny.model("lfm2"))


def test_positions_by_distance_are_refused() -> None:
    """ALiBi: positions are no input."""
    size = {"vocab_size": tiny.VOCAB_SIZE, "hidden_size": 32, "num_attention_heads": 2}
    bloom = AutoModelForCausalLM.from_config(BloomConfig(**size, n_layer=2)).eval()
    assert "takes no position_ids" in refusal(bloom)
    falcon = AutoModelForCausalLM.from_config(FalconConfig(**size, num_hidden_layers=2, alibi=True)).eval()
    assert "fails on one (" in refusal(falcon) or "does not read one as it reads its branches" in refusal(falcon)


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_that_ignores_its_inputs_is_found_out(
    family: str, ignored: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model(family).to(dtype)
    TransformersModel(model, tiny.VOCAB_SIZE).require_trees("--draft x")

    def without(*arguments: Any) -> dict[str, Tensor]:
        inputs = tree_inputs(*arguments)
        del inputs[ignored]
        return inputs

    monkeypatch.setattr(transformers_model, "tree_inputs", without)
    assert "does not read one as it reads its branches" in refusal(model)


def test_a_cache_that_keeps_the_wrong_path_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        TransformersModel, "keep_path", lambda self, num_tokens, path: self.roll_back(num_tokens - len(path))
    )
    assert "does not read one as it reads its branches" in refusal(tiny.model("llama"))
