"""Do two checkpoints speak the same ids? Refused where one id means two things; masked or noted where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.errors import IncompatiblePairError, UsageError
from specdec_cli.runtime.pairs.pair import Pair
from specdec_cli.runtime.pairs.text import encode_chat
from specdec_cli.runtime.pairs.vocabularies import (
    SHOWN,
    VocabularyComparison,
    compare_vocabularies,
    describe_differences,
    id_to_token,
    require_same_vocabulary,
)
from specdec_cli.settings import SamplingSettings

BYTES, SIZE = tiny.BYTES, tiny.VOCAB_SIZE  # 256 bytes; with the end token 257
CHAT = tiny.CHAT_TEMPLATE
NO_TEMPLATE_NOTE = "an instruct and a base model may agree seldom"


def bytes_at(place: Callable[[int], int]) -> dict[str, int]:
    """The byte tokens and the end token, each at place(its usual id)."""
    return {token: place(i) for i, token in enumerate((*tiny.ALPHABET, tiny.END))}


def swapped(a: int, b: int) -> PreTrainedTokenizerFast:
    """The usual tokens, with two ids exchanged."""
    return tiny.tokenizer_of(bytes_at(lambda i: {a: b, b: a}.get(i, i)))


Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """folder(rows, tokenizer=..., seed=...): a checkpoint with that many rows of embedding."""

    def make(rows: int = SIZE, tokenizer: PreTrainedTokenizerFast | None = None, seed: int = 0) -> Path:
        model = tiny.model(vocab_size=rows, seed=seed)
        return tiny.save(tmp_path_factory.mktemp("checkpoint"), model, tokenizer)

    return make


def both(pair: Pair) -> tuple[CachedModel, CachedModel]:
    assert pair.draft is not None
    return pair.target, pair.draft


def notes_on(pair: Pair) -> list[str]:
    """What is said about the two together, without what is said about each."""
    assert pair.draft_checkpoint is not None
    own = (*pair.checkpoint.notes, *pair.draft_checkpoint.notes)
    assert pair.notes[: len(own)] == own
    return list(pair.notes[len(own) :])


@torch.inference_mode()
def logits_of(model: CachedModel) -> Tensor:
    """After a few tokens that every tokenizer here has."""
    model.reset()
    return model.forward(torch.tensor([10, 20, 30]), num_logits=3)


def everything_sampled(pair: Pair, num_tokens: int = 60) -> tuple[set[int], set[int]]:
    """Ids that were emitted and ids that were drafted, hot enough that every row has its chance."""
    target, draft = both(pair)
    sampling = SamplingSettings(temperature=8.0)
    generation = Generation(
        target,
        DraftModel(draft, sampling),
        [10, 20, 30],
        num_draft_tokens=4,
        sampling=sampling,
        stopping=Stopping(num_tokens),
    )
    drafted = {token_id for step in generation for token_id in step.draft_token_ids}
    return set(generation.token_ids), drafted


# ---------------------------------------------------------------------------------------- maps of ids
def test_id_to_token_holds_added_tokens_and_only_ids_that_the_model_has() -> None:
    tokenizer = tiny.byte_tokenizer(extra=("<x>", "<y>"))
    everything = id_to_token(tokenizer, num_rows=10_000)
    assert len(everything) == SIZE + 2
    assert [everything[i] for i in (0, BYTES, SIZE, SIZE + 1)] == [tiny.ALPHABET[0], tiny.END, "<x>", "<y>"]
    assert id_to_token(tokenizer, num_rows=SIZE + 1) == {i: t for i, t in everything.items() if i <= SIZE}


def test_compare_counts_and_places_every_kind_of_difference() -> None:
    target = {0: "a", 1: "b", 2: "c", 4: "e", 5: "f"}
    draft = {0: "a", 1: "B", 2: "c", 3: "d", 4: "E", 9: "z"}
    assert compare_vocabularies(target, draft) == VocabularyComparison(
        differing=((1, "b", "B"), (4, "e", "E")),
        shared=2,
        target_only=(5,),
        draft_only=(3, 9),
        vocab_size=6,
        target_padding=(3,),
    )


def test_identical_maps_differ_in_nothing() -> None:
    same = {i: str(i) for i in range(7)}
    comparison = compare_vocabularies(same, dict(same))
    assert comparison == VocabularyComparison((), 7, (), (), 7, ())
    assert comparison.target_blocked.tolist() == comparison.draft_blocked.tolist() == []
    require_same_vocabulary(comparison)


def test_blocked_ids() -> None:
    """The target's holes on both sides; what the target has alone only for the draft; never what the draft has."""
    comparison = compare_vocabularies({0: "a", 2: "c", 3: "d"}, {0: "a", 1: "b", 2: "c", 5: "f"})
    assert comparison.target_blocked.tolist() == [1]
    assert sorted(comparison.draft_blocked.tolist()) == [1, 3]
    assert comparison.target_blocked.dtype == comparison.draft_blocked.dtype == torch.long


def test_refusal_shows_ids_and_tokens_readably_and_counts_the_rest() -> None:
    names = {i: f"t{i}" for i in range(2000)}
    other = {i: t.upper() if i >= 10 else t for i, t in names.items()} | {10: "\n", 11: "'"}
    with pytest.raises(IncompatiblePairError) as caught:
        require_same_vocabulary(compare_vocabularies(names, other))
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "1,990 ids" in message
    assert r"10 is 't10' / '\n'; 11 is 't11' / " in message
    assert f"and {1990 - SHOWN:,} more" in message
    assert "t14" in message
    assert "t15" not in message
    assert "\n" not in message
    assert "--draft" in message


def test_few_differences_are_all_shown() -> None:
    with pytest.raises(IncompatiblePairError) as caught:
        require_same_vocabulary(compare_vocabularies({0: "a", 1: "b", 2: "c"}, {0: "a", 1: "c", 2: "b"}))
    assert "1 is 'b' / 'c'; 2 is 'c' / 'b'" in str(caught.value)
    assert "more" not in str(caught.value)


def test_no_id_in_common_is_refused() -> None:
    with pytest.raises(IncompatiblePairError, match=r"share no token id.*--draft") as caught:
        require_same_vocabulary(compare_vocabularies({0: "a"}, {1: "a"}))
    assert caught.value.exit_code == 3


# ------------------------------------------------------------------------------------- pairs that work
def test_identical_checkpoints_have_no_notes(folder: Folder) -> None:
    pair = tiny.pair(folder(), folder(seed=1))
    assert notes_on(pair) == []
    for model in both(pair):
        assert model.vocab_size == SIZE
        assert torch.isfinite(logits_of(model)).all()


@pytest.mark.parametrize(
    ("target_rows", "draft_rows"), [(SIZE + 15, SIZE), (SIZE, SIZE + 15), (SIZE + 15, SIZE + 7), (SIZE + 7, SIZE + 15)]
)
def test_padding_rows_are_neither_emitted_nor_proposed(target_rows: int, draft_rows: int, folder: Folder) -> None:
    """Symptom 1: one tokenizer, embeddings padded to two sizes."""
    pair = tiny.pair(folder(target_rows), folder(draft_rows, seed=1))
    assert notes_on(pair) == []
    assert pair.draft_checkpoint is not None
    assert (pair.checkpoint.num_rows, pair.draft_checkpoint.num_rows) == (target_rows, draft_rows)
    for model in both(pair):
        assert model.vocab_size == SIZE
        assert logits_of(model).shape == (3, SIZE)
        assert torch.isfinite(logits_of(model)).all()
    for ids in everything_sampled(pair):
        assert len(ids) > 20
        assert max(ids) < SIZE


def test_the_first_logits_do_not_depend_on_padding(folder: Folder) -> None:
    """What is masked is masked, and nothing is moved: the rows before are the checkpoint's own."""
    path = folder(SIZE + 15)
    pair = tiny.pair(path, folder(seed=1))
    with torch.inference_mode():
        own = pair.checkpoint.model(input_ids=torch.tensor([[10, 20, 30]])).logits[0]
    torch.testing.assert_close(logits_of(pair.target), own[:, :SIZE])


HOLES = tuple(range(40, 60))


def with_holes() -> PreTrainedTokenizerFast:
    """The usual tokens, those from 40 on moved behind twenty ids that have none."""
    return tiny.tokenizer_of(bytes_at(lambda i: i if i < HOLES[0] else i + len(HOLES)))


def without_holes() -> PreTrainedTokenizerFast:
    """The same, with a token for each of these ids."""
    tokens = bytes_at(lambda i: i if i < HOLES[0] else i + len(HOLES))
    return tiny.tokenizer_of(tokens | {f"filler{i}": i for i in HOLES})


@pytest.mark.parametrize("filled", ["neither", "draft"])
def test_ids_without_a_token_are_masked_on_both_sides(filled: str, folder: Folder) -> None:
    rows = SIZE + len(HOLES)
    draft_tokenizer = without_holes() if filled == "draft" else with_holes()
    pair = tiny.pair(folder(rows, with_holes()), folder(rows, draft_tokenizer, seed=1))
    for model in both(pair):
        assert model.vocab_size == rows
        logits = logits_of(model)
        assert torch.isneginf(logits[:, list(HOLES)]).all()
        assert torch.isfinite(logits).sum() == 3 * SIZE
    for ids in everything_sampled(pair):
        assert len(ids) > 20
        assert not ids & set(HOLES)
    expected = ["20 tokens only the draft has (first: 40); they are never proposed"] if filled == "draft" else []
    assert notes_on(pair) == expected


def test_tokens_that_only_the_target_has_are_emitted_and_not_proposed(folder: Folder) -> None:
    rows = SIZE + len(HOLES)
    pair = tiny.pair(folder(rows, without_holes()), folder(rows, with_holes(), seed=1))
    target, draft = both(pair)
    assert torch.isfinite(logits_of(target)).all()
    assert torch.isneginf(logits_of(draft)[:, list(HOLES)]).all()
    emitted, drafted = everything_sampled(pair, 120)
    assert emitted & set(HOLES)
    assert not drafted & set(HOLES)
    assert notes_on(pair) == ["20 tokens only the target has (first: 40); the draft never proposes them"]


@pytest.mark.parametrize("draft_rows", [SIZE, SIZE + 1, SIZE + 15])
def test_an_added_token_of_the_target_is_legal(draft_rows: int, folder: Folder) -> None:
    pair = tiny.pair(folder(SIZE + 1, tiny.byte_tokenizer(extra=("<think>",))), folder(draft_rows, seed=1))
    target, draft = both(pair)
    assert target.vocab_size == draft.vocab_size == SIZE + 1
    assert torch.isfinite(logits_of(target)).all()
    assert torch.isneginf(logits_of(draft)[:, SIZE]).all()
    assert torch.isfinite(logits_of(draft)[:, :SIZE]).all()
    (note,) = notes_on(pair)
    assert f"only the target has (first: {SIZE})" in note


@torch.inference_mode()
@pytest.mark.parametrize("draft_rows", [SIZE, SIZE + 15])
def test_the_draft_reads_on_after_a_token_that_it_has_no_row_for(draft_rows: int, folder: Folder) -> None:
    """The target may emit its own token, or a prompt hold it; what the draft makes of it is only a guess."""
    pair = tiny.pair(folder(SIZE + 1, tiny.byte_tokenizer(extra=("<think>",))), folder(draft_rows, seed=1))
    target, draft = both(pair)
    for model in (target, draft):
        model.reset()
        logits = model.forward(torch.tensor([10, SIZE, 20]), num_logits=3)
        assert torch.isfinite(logits[:, :SIZE]).all()
        assert model.length == 3


def test_an_added_token_of_the_draft_is_never_proposed(folder: Folder) -> None:
    pair = tiny.pair(folder(), folder(SIZE + 1, tiny.byte_tokenizer(extra=("<think>",)), seed=1))
    for model in both(pair):
        assert model.vocab_size == SIZE
        assert torch.isfinite(logits_of(model)).all()
    (note,) = notes_on(pair)
    assert f"only the draft has (first: {SIZE}); they are never proposed" in note


@pytest.mark.parametrize("draft_rows", [SIZE, SIZE + 1, SIZE + 15])
def test_a_tokenizer_with_one_token_more_than_the_embedding_has_rows(draft_rows: int, folder: Folder) -> None:
    """Gemma 3's image token, which the small text models of the family have no row for."""
    tokenizer = tiny.byte_tokenizer(extra=("<image>",))
    pair = tiny.pair(folder(SIZE, tokenizer), folder(draft_rows, tokenizer, seed=1))
    for model in both(pair):
        assert model.vocab_size == SIZE
        assert torch.isfinite(logits_of(model)).all()
    for ids in everything_sampled(pair):
        assert max(ids) < SIZE


@pytest.mark.parametrize("raw", [True, False])
def test_a_prompt_with_a_token_that_the_target_has_no_row_for_is_a_usage_error(raw: bool, folder: Folder) -> None:
    tokenizer = tiny.byte_tokenizer(extra=("<image>",), chat_template=CHAT)
    pair = tiny.pair(folder(SIZE, tokenizer), folder(SIZE, tokenizer, seed=1))
    assert max(pair.encode([{"role": "user", "content": "image"}], raw)) < SIZE
    with pytest.raises(UsageError, match="<image>"):
        pair.encode([{"role": "user", "content": "look: <image>"}], raw)


def test_a_target_alone_masks_its_own_padding_and_holes(folder: Folder) -> None:
    path = folder(SIZE + len(HOLES) + 15, with_holes())
    pair = tiny.pair(path, None)
    assert pair.draft is None
    assert pair.draft_checkpoint is None
    assert pair.target.vocab_size == SIZE + len(HOLES)
    assert torch.isneginf(logits_of(pair.target)[:, list(HOLES)]).all()
    assert torch.isfinite(logits_of(pair.target)).sum() == 3 * SIZE


# ----------------------------------------------------------------------------------- pairs that do not
def test_equal_sizes_with_two_ids_swapped_are_refused(folder: Folder) -> None:
    """Symptom 2: only the maps show it."""
    a, b = tiny.ALPHABET.index("A"), tiny.ALPHABET.index("B")
    with pytest.raises(IncompatiblePairError) as caught:
        tiny.pair(folder(), folder(tokenizer=swapped(a, b), seed=1))
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "2 ids" in message
    assert f"{a} is 'A' / 'B'; {b} is 'B' / 'A'" in message
    assert "--draft" in message
    assert "\n" not in message


def test_a_special_token_with_another_name_is_refused(folder: Folder) -> None:
    target, draft = (tiny.byte_tokenizer(extra=(name,)) for name in ("<tool>", "<reserved_1>"))
    with pytest.raises(IncompatiblePairError, match=f"1 ids .* {SIZE} is '<tool>' / '<reserved_1>'"):
        tiny.pair(folder(SIZE + 1, target), folder(SIZE + 1, draft))


def test_two_different_tokenizers_are_refused(folder: Folder) -> None:
    reversed_bytes = tiny.tokenizer_of(bytes_at(lambda i: i if i == BYTES else BYTES - 1 - i))
    with pytest.raises(IncompatiblePairError) as caught:
        tiny.pair(folder(), folder(tokenizer=reversed_bytes))
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "256 ids" in message
    assert f"0 is {tiny.ALPHABET[0]!r} / {tiny.ALPHABET[-1]!r}" in message
    assert "and 251 more" in message


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_recurrent_model_is_refused_by_its_role(role: str, folder: Folder, tmp_path: Path) -> None:
    recurrent = tiny.save(tmp_path / "mamba", tiny.model("mamba"))
    pair = (recurrent, folder()) if role == "target" else (folder(), recurrent)
    with pytest.raises(IncompatiblePairError, match=f"^the {role} .*linear_attention layers.*choose another {role}"):
        tiny.pair(*pair)


# ---------------------------------------------------------------------------------------------- notes
@pytest.mark.parametrize(
    ("target", "draft", "note"),
    [
        pytest.param(None, None, None, id="two base models"),
        pytest.param(
            CHAT,
            None,
            f"the target has a chat template, the draft has none: {NO_TEMPLATE_NOTE}",
            id="base",
        ),
        pytest.param(
            None,
            CHAT,
            f"the draft has a chat template, the target has none: {NO_TEMPLATE_NOTE}",
            id="chat",
        ),
        pytest.param(CHAT, CHAT, None, id="same template"),
        pytest.param(CHAT, CHAT + "{# a comment #}", None, id="other text, same output"),
        pytest.param(
            CHAT,
            CHAT.replace("[{{", "<{{"),
            "the chat templates render differently; the target's is used for both",
            id="other output",
        ),
        pytest.param(
            CHAT,
            "{{ raise_exception('no assistant turns') }}",
            "the chat templates render differently; the target's is used for both",
            id="one refuses",
        ),
        pytest.param(
            CHAT,
            "{{ 'a' + 1 }}",
            "the chat templates render differently; the target's is used for both",
            id="one has a mistake",
        ),
        pytest.param("{{ 'a' + 1 }}", "{{ 'b' + 1 }}", None, id="the same mistake"),
    ],
)
def test_chat_templates(target: str | None, draft: str | None, note: str | None, folder: Folder) -> None:
    """Symptom 16, both ways."""
    pair = tiny.pair(
        folder(tokenizer=tiny.byte_tokenizer(chat_template=target)),
        folder(tokenizer=tiny.byte_tokenizer(chat_template=draft), seed=1),
    )
    assert notes_on(pair) == ([] if note is None else [note])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no\\n  system message') }}", "no system message"),
        ("{{ messages[9].content }}", "list object has no element 9"),
        ("{% for m in", "unexpected 'end of template'"),
        ("{{ ''.__class__.mro() }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ 'a' + 1 }}", 'TypeError: can only concatenate str (not "int") to str'),
        ("{{ 'a'.index('b') }}", "ValueError: substring not found"),
        ("{{ 'a'.encode('nope') }}", "LookupError: unknown encoding: nope"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ range(10 ** 9) }}", "OverflowError: Range too big."),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_a_template_that_cannot_render_is_told_in_one_line(template: str, reason: str) -> None:
    """Whether it refuses on purpose or has a mistake of its own, which Python reports in its own words."""
    tokenizer = tiny.byte_tokenizer(chat_template=template)
    with pytest.raises(UsageError) as raised:
        encode_chat(tokenizer, [{"role": "user", "content": "x"}])
    message = str(raised.value)
    assert message.startswith(f"the target's chat template refuses this conversation ({reason}")
    assert message.endswith("; use --raw to send plain text")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["bos_token", "eos_token"])
def test_different_special_tokens_are_noted(name: str) -> None:
    target, draft = tiny.byte_tokenizer(extra=("<|im_end|>",)), tiny.byte_tokenizer(extra=("<|im_end|>",))
    setattr(target, name, "<|im_end|>")
    assert target.get_vocab() == draft.get_vocab()
    same = compare_vocabularies(*(id_to_token(t, SIZE + 1) for t in (target, draft)))
    what = name.replace("_", " ")
    assert describe_differences(target, draft, same) == [
        f"{what} differs: target '<|im_end|>', draft '{tiny.END}'",
    ]
    assert describe_differences(draft, draft, same) == []


def test_a_missing_special_token_is_noted() -> None:
    target, draft = tiny.byte_tokenizer(), tiny.byte_tokenizer()
    draft.bos_token = None
    same = compare_vocabularies(*(id_to_token(t, SIZE) for t in (target, draft)))
    assert describe_differences(target, draft, same) == [f"bos token differs: target '{tiny.END}', draft None"]


def test_notes_about_different_end_tokens_reach_the_user(folder: Folder) -> None:
    """Base against instruct: same ids, another end. The target's end tokens are the pair's."""
    base, instruct = (tiny.byte_tokenizer(extra=("<|im_end|>",)) for _ in range(2))
    instruct.eos_token = "<|im_end|>"
    pair = tiny.pair(folder(SIZE + 1, instruct), folder(SIZE + 1, base, seed=1))
    assert notes_on(pair) == [f"eos token differs: target '<|im_end|>', draft '{tiny.END}'"]
    assert pair.checkpoint.end_ids == {BYTES, SIZE}
