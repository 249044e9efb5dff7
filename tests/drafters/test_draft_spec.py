"""What --draft may say: every form is read, and every malformed one is told what to write instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from specdec_cli.cli.options.models import LoadingOptions, SeveralDrafts, choose_models
from specdec_cli.drafters import MODULES
from specdec_cli.drafters.spec import DraftSpec, Source, parse_draft
from specdec_cli.errors import UsageError

DEFAULT_NGRAM = Source("ngram", "ngram", {"max": 3, "min": 1})


def model(source: str) -> Source:
    return Source(source, "model", {}, source)


@pytest.mark.parametrize(
    ("value", "sources"),
    [
        ("none", [Source("none", "none")]),
        ("ngram", [DEFAULT_NGRAM]),
        ("ngram:max=4,min=2", [Source("ngram:max=4,min=2", "ngram", {"max": 4, "min": 2})]),
        ("ngram:min=3", [Source("ngram:min=3", "ngram", {"max": 3, "min": 3})]),
        ("ngram:max=64", [Source("ngram:max=64", "ngram", {"max": 64, "min": 1})]),
        ("suffix", [Source("suffix", "suffix", {"memory": 1})]),
        ("suffix:memory=off", [Source("suffix:memory=off", "suffix", {"memory": 0})]),
        ("suffix:memory=on", [Source("suffix:memory=on", "suffix", {"memory": 1})]),
        ("early-exit:4", [Source("early-exit:4", "early-exit", {"layers": 4})]),
        ("lookahead", [Source("lookahead", "lookahead", {"window": 6, "ngram": 3, "candidates": 4})]),
        ("lookahead:candidates=1,window=64,ngram=2", [
            Source("lookahead:candidates=1,window=64,ngram=2", "lookahead", {"window": 64, "ngram": 2, "candidates": 1})
        ]),
        ("ngram+lookahead:window=2", [
            DEFAULT_NGRAM, Source("lookahead:window=2", "lookahead", {"window": 2, "ngram": 3, "candidates": 4})
        ]),
        ("demo:draft", [model("demo:draft")]),
        ("owner/name", [model("owner/name")]),
        ("ngrams", [model("ngrams")]),
        ("./ngram", [model("./ngram")]),
        ("", [model("")]),  # refused by the model's settings
        ("ngram+demo:draft", [DEFAULT_NGRAM, model("demo:draft")]),
        ("ngram+suffix:memory=off+early-exit:2", [
            DEFAULT_NGRAM,
            Source("suffix:memory=off", "suffix", {"memory": 0}),
            Source("early-exit:2", "early-exit", {"layers": 2}),
        ]),
    ],
)  # fmt: skip
def test_every_form_is_read(value: str, sources: list[Source]) -> None:
    spec = parse_draft(value)
    assert spec == DraftSpec(value, tuple(sources))
    assert spec.model == sources[-1].model
    assert spec.is_model == (len(sources) == 1 and sources[0].kind == "model")
    assert all(source.kind in MODULES for source in sources)


def test_a_path_that_exists_is_a_model_whatever_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a+b", "c:d+ngram"):
        (tmp_path / name).mkdir()
        assert parse_draft(name).sources == (model(name),)
        assert parse_draft(f"suffix+{name}").model == name
    (tmp_path / "ngram").mkdir()  # a built-in source all the same: the folder is ./ngram
    assert parse_draft("ngram").sources == (DEFAULT_NGRAM,)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("none:1", "none takes no options: leave them out"),
        ("none+ngram", "none is plain decoding, which joins with nothing: leave it out"),
        ("ngram+none", "none is plain decoding, which joins with nothing: leave it out"),
        ("ngram:", "ngram takes max=... and min=..., not ''"),
        ("ngram:4", "ngram takes max=... and min=..., not '4'"),
        ("ngram:size=4", "ngram takes max=... and min=..., not 'size=4'"),
        ("ngram:max=4,", "ngram takes max=... and min=..., not ''"),
        ("ngram:max=0", "max must be between 1 and 64, not '0'"),
        ("ngram:max=65", "max must be between 1 and 64, not '65'"),
        ("ngram:min=-1", "min must be between 1 and 64, not '-1'"),
        ("ngram:min=two", "min must be between 1 and 64, not 'two'"),
        ("ngram:max=", "max must be between 1 and 64, not ''"),
        ("ngram:max=4,max=5", "max is given twice: give it once"),
        ("ngram:max=2,min=3", "min is 3, above max, 2: raise max, or lower min"),
        ("ngram:min=4", "min is 4, above max, 3: raise max, or lower min"),
        ("ngram+ngram:max=5", "ngram is named twice: name it once"),
        ("suffix:memory=no", "memory must be on or off, not 'no'"),
        ("suffix:depth=4", "suffix takes memory=..., not 'depth=4'"),
        ("early-exit", "say how many of the target's layers draft, as in early-exit:4"),
        ("early-exit:", "say how many of the target's layers draft, as in early-exit:4"),
        ("early-exit:0", "the number of layers must be 1 or above, not '0'"),
        ("early-exit:half", "the number of layers must be 1 or above, not 'half'"),
        ("early-exit:2+ngram", "early-exit:2 always has a guess: name it last"),
        ("lookahead:", "lookahead takes window=..., ngram=... and candidates=..., not ''"),
        ("lookahead:window=0", "window must be between 1 and 64, not '0'"),
        ("lookahead:ngram=1", "ngram must be between 2 and 64, not '1'"),
        ("lookahead:candidates=65", "candidates must be between 1 and 64, not '65'"),
        ("lookahead+a/b", "lookahead always has a guess: name it last"),
        ("lookahead:window=2+ngram", "lookahead:window=2 always has a guess: name it last"),
        ("a/b+a/c", "a/b is no built-in source, and a model always has a guess: name one model, and last"),
        ("a/b+ngram", "a/b is no built-in source, and a model always has a guess: name one model, and last"),
        ("ngram+a/b+suffix", "a/b is no built-in source, and a model always has a guess: name one model, and last"),
        ("ngram+", "a + joins two sources: name one on each side, or leave the + out"),
        ("+ngram", "a + joins two sources: name one on each side, or leave the + out"),
        ("ngram++a/b", "a + joins two sources: name one on each side, or leave the + out"),
    ],
)
def test_what_is_malformed_is_told_how_to_mend_it(value: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_draft(value)
    assert tiny.one_line(caught.value, 2) == f"--draft {value}: {remedy}"


def test_what_commands_ask_of_a_spec() -> None:
    assert parse_draft("ngram:max=5").prompt_lookup == (5, 1)
    assert parse_draft("ngram+a/b").prompt_lookup is None
    assert parse_draft("suffix").prompt_lookup is None
    assert [parse_draft(v).learns for v in ("suffix", "ngram+suffix", "suffix:memory=off", "ngram", "a/b")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_only_a_model_gets_settings_of_a_model() -> None:
    pair = SeveralDrafts(target="a/b", draft=["ngram", "a/c", "ngram+a/c", "lookahead", "none"])
    models = choose_models(pair, LoadingOptions())
    assert [draft.model and draft.model.source for draft in models.drafts] == [None, "a/c", "a/c", None, None]
    assert [draft.name for draft in models.drafts] == ["ngram", "a/c", "ngram+a/c", "lookahead", "none"]
    assert models.drafts[1].model == models.drafts[2].model


def test_reading_a_draft_needs_no_torch() -> None:
    code = "import sys, specdec_cli.drafters, specdec_cli.drafters.suffix_automaton; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
