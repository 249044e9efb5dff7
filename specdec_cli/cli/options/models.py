"""Which models, and how they are loaded: options, and a preset beside them, to `ModelSettings`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specdec_cli.cli.options.declare import MODELS, flag, option, refuse_given
from specdec_cli.drafters.spec import MODEL, DraftSpec, parse_draft
from specdec_cli.errors import UsageError
from specdec_cli.settings import AUTO, NO_DRAFT, WHOLE_VOCAB, ModelSettings

if TYPE_CHECKING:
    from specdec_cli.presets import Preset


class Dtype(StrEnum):
    """Values of --dtype."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Quantize(StrEnum):
    """Values of --quantize."""

    keep = "keep"
    none = "none"
    int8 = "int8"
    w8a8 = "w8a8"
    int4 = "int4"


class DraftQuantize(StrEnum):
    """Values of --draft-quantize."""

    keep = "keep"
    none = "none"
    int8 = "int8"
    w8a8 = "w8a8"
    int4 = "int4"
    auto = "auto"


class Graphs(StrEnum):
    """Values of --graphs."""

    auto = "auto"
    off = "off"


def _complete_preset(incomplete: str) -> list[str]:
    from specdec_cli.presets import preset_files

    return [name for name in preset_files() if name.startswith(incomplete)]


@dataclass(frozen=True)
class PairOptions(ABC):
    """A target and what drafts for it, by name; a subclass adds one --draft or several."""

    preset: Annotated[
        str | None,
        option(
            "--preset",
            "-p",
            panel=MODELS,
            autocompletion=_complete_preset,
            help="A pair by name or YAML file (default: demo).",
        ),
    ] = None
    target: Annotated[
        str | None, option("--target", "-t", panel=MODELS, help="Folder, .gguf file, hub id, or org/repo:file.gguf.")
    ] = None

    @property
    @abstractmethod
    def drafts(self) -> Sequence[str]:
        """Every --draft, as the user gave it; empty where none was."""


@dataclass(frozen=True)
class OneDraft(PairOptions):
    """Of subcommands in which one draft works."""

    draft: Annotated[
        str | None,
        option(
            "--draft",
            "-d",
            panel=MODELS,
            help="A model with the target's tokenizer; ngram, suffix, lookahead or early-exit:N, which need none; a "
            "list like ngram+MODEL; or none for plain decoding.",
        ),
    ] = None

    @property
    def drafts(self) -> Sequence[str]:
        """The one, or nothing."""
        return [] if self.draft is None else [self.draft]


@dataclass(frozen=True)
class SeveralDrafts(PairOptions):
    """Of subcommands that compare drafts."""

    draft: Annotated[
        list[str] | None,
        option(
            "--draft",
            "-d",
            panel=MODELS,
            metavar="<str>",
            help="A model with the target's tokenizer; ngram, suffix, lookahead or early-exit:N, which need none; or "
            "a list like ngram+MODEL; repeatable.",
        ),
    ] = None

    @property
    def drafts(self) -> Sequence[str]:
        """In the order in which they were given."""
        return self.draft or []


@dataclass(frozen=True)
class LoadingOptions:
    """How both models are loaded."""

    device: Annotated[str, option("--device", panel=MODELS, help="auto, cpu, cuda, cuda:1, mps.")] = (
        ModelSettings.device
    )
    draft_device: Annotated[
        str | None, option("--draft-device", panel=MODELS, help="The draft's device, if another.")
    ] = None
    dtype: Annotated[
        Dtype,
        option(
            "--dtype",
            panel=MODELS,
            help="auto: the preset's, else the checkpoint's where it is fast here, else float32.",
        ),
    ] = Dtype.auto
    draft_dtype: Annotated[
        Dtype | None, option("--draft-dtype", panel=MODELS, help="The draft's type, if another.")
    ] = None
    quantize: Annotated[
        Quantize,
        option(
            "--quantize",
            panel=MODELS,
            help="Bits of the target's weights. keep: a .gguf file's own on a CPU, else none; int8, w8a8 (activations "
            "too) and int4 round them: faster, but another model.",
        ),
    ] = Quantize.keep
    draft_quantize: Annotated[
        DraftQuantize,
        option(
            "--draft-quantize",
            panel=MODELS,
            help="The same for the draft: output keeps its distribution. auto: what steps fastest here, which may give "
            "one seed another text.",
        ),
    ] = DraftQuantize.keep
    draft_vocab: Annotated[
        str,
        option(
            "--draft-vocab",
            panel=MODELS,
            help="Cut the draft's head to N frequent tokens, or to those of a FILE of text: output keeps its "
            "distribution. auto: 32768 where the head is a quarter of a step or more; none: the whole head.",
        ),
    ] = AUTO
    revision: Annotated[str | None, option("--revision", panel=MODELS, help="Hub branch, tag or commit.")] = None
    draft_revision: Annotated[str | None, option("--draft-revision", panel=MODELS, help="The same for the draft.")] = (
        None
    )
    offline: Annotated[bool, flag("--offline", panel=MODELS, help="Never touch the network.")] = False
    trust_remote_code: Annotated[
        bool, flag("--trust-remote-code", panel=MODELS, help="Run a checkpoint's own Python code.")
    ] = False

    def target_settings(self, preset: Preset) -> ModelSettings:
        """How the target of a preset is loaded."""
        return self._alike(
            ModelSettings(
                source=preset.target,
                revision=self.revision or preset.revision,
                device=self.device,
                dtype=self._dtype(preset),
                quantize=self.quantize.value,
            )
        )

    def draft_settings(self, source: str, preset: Preset) -> ModelSettings:
        """How the checkpoint of a draft is loaded, the preset's own or another in its place."""
        return self._alike(
            ModelSettings(
                source=source,
                revision=self.draft_revision or preset.draft_revision,
                device=self.draft_device or self.device,
                dtype=self._dtype(preset) if self.draft_dtype is None else self.draft_dtype.value,
                quantize=self.draft_quantize.value,
                vocab=self.draft_vocab,
            )
        )

    def _dtype(self, preset: Preset) -> str:
        return preset.dtype if self.dtype is Dtype.auto else self.dtype.value

    def _alike(self, settings: ModelSettings) -> ModelSettings:
        """With what holds for target and draft alike."""
        return replace(settings, offline=self.offline, trust_remote_code=self.trust_remote_code)


@dataclass(frozen=True)
class RunningOptions(LoadingOptions):
    """How both models are loaded, and how their steps run, where they decode."""

    graphs: Annotated[
        Graphs, option("--graphs", panel=MODELS, help="On CUDA, auto repeats whole rounds as graphs where it can.")
    ] = Graphs.auto
    compile: Annotated[
        bool,
        flag(
            "--compile",
            panel=MODELS,
            help="Compile both models' steps: seconds to minutes for each K and length of text, in every run.",
        ),
    ] = False

    def _alike(self, settings: ModelSettings) -> ModelSettings:
        return replace(super()._alike(settings), graphs=self.graphs.value, compile=self.compile)


@dataclass(frozen=True)
class DraftChoice:
    """One --draft.

    Attributes:
        spec: which sources of guesses it names.
        model: how the checkpoint among them is loaded; None where there is none.
    """

    spec: DraftSpec
    model: ModelSettings | None

    @property
    def name(self) -> str:
        """As the user gave it."""
        return self.spec.name


@dataclass(frozen=True)
class ModelChoice:
    """A target and what drafts for it, from options and preset.

    Attributes:
        k: the preset's, or the default.
    """

    target: ModelSettings
    drafts: tuple[DraftChoice, ...]
    k: int

    @property
    def kinds(self) -> set[str]:
        """Of all sources of guesses; see `specdec_cli.drafters.spec`."""
        return {source.kind for draft in self.drafts for source in draft.spec.sources}

    @property
    def draft_names(self) -> str:
        """Every --draft, as a message names them."""
        return ", ".join(draft.name for draft in self.drafts)


def choose_models(pair: PairOptions, loading: LoadingOptions) -> ModelChoice:
    """Join the options with the preset that they stand beside.

    Raises:
        UsageError: --preset beside --target, a target without a draft, --draft-vocab names no file, or an option that
            none of these models heeds.
    """
    preset = _preset(pair)
    if loading.offline:  # read when the libraries are imported, which is only later
        os.environ["HF_HUB_OFFLINE"] = "1"
    _require_vocab(loading.draft_vocab)
    specs = [parse_draft(name) for name in dict.fromkeys(pair.drafts or [preset.draft])]
    models = ModelChoice(
        target=loading.target_settings(preset),
        drafts=tuple(
            DraftChoice(spec, None if spec.model is None else loading.draft_settings(spec.model, preset))
            for spec in specs
        ),
        k=preset.k,
    )
    _require_use(loading, models)
    return models


def _preset(pair: PairOptions) -> Preset:
    """The preset chosen, without what it says of its own draft where another takes its place.

    Beside --target it is one that has nothing but this target.
    """
    from specdec_cli.presets import DEFAULT, Preset, load_preset

    if pair.target is None:
        preset = load_preset(pair.preset or DEFAULT)
        return replace(preset, draft_revision=None) if pair.drafts else preset
    if pair.preset is not None:
        raise UsageError("--preset and --target are given both: choose one (--draft may stand beside either)")
    if not pair.drafts:
        _require_path(pair.target or "")  # the mistake that comes first is told first
        raise UsageError(
            f"--draft is missing: name a small model with the target's tokenizer, or {NO_DRAFT} "
            "(ngram, suffix, lookahead and early-exit:N need no second model)"
        )
    return Preset(name=pair.target, target=pair.target, draft=NO_DRAFT)


def _require_path(target: str) -> None:
    """Refuse what can only be meant as a path, and leads nowhere; a hub id is looked up later."""
    is_path = target.startswith((".", "/", "~")) or target.endswith(".gguf") or target.count("/") > 1
    if is_path and not Path(target).expanduser().exists():
        raise UsageError(
            f"--target {target} does not exist: give a folder, a .gguf file, a hub id or org/repo:file.gguf"
        )


def _require_vocab(value: str) -> None:
    number = value.lstrip("-").isdecimal()
    if value not in (AUTO, WHOLE_VOCAB) and not number and not Path(value).is_file():
        raise UsageError(
            f"--draft-vocab {value} is no number, no file, not {AUTO} and not {WHOLE_VOCAB}: give one of these"
        )


def _require_use(loading: LoadingOptions, models: ModelChoice) -> None:
    """Refuse options that none of these models heeds."""
    if MODEL not in models.kinds:
        refuse_given(
            loading,
            ("draft_device", "draft_dtype", "draft_quantize", "draft_vocab", "draft_revision"),
            f"is for a draft that is a model of its own, not for --draft {models.draft_names}: leave it out",
        )
    _require_hub_id("--revision", loading.revision, "--target", [models.target.source])
    _require_hub_id(
        "--draft-revision", loading.draft_revision, "--draft", [d.spec.model for d in models.drafts if d.spec.model]
    )


def _require_hub_id(option: str, revision: str | None, role: str, sources: Sequence[str]) -> None:
    """A folder or a file is what it is; of several sources one hub id will do."""
    here = (source.startswith("demo:") or Path(source).expanduser().exists() for source in sources)
    if revision is not None and all(here):
        raise UsageError(f"{option} is for a hub id, and {role} {', '.join(sources)} is here: leave it out")
