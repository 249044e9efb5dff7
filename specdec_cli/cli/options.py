"""Options that several subcommands take, with the same names, the same help and the same checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from specdec_cli.drafters.spec import MODEL, DraftSpec, parse_draft
from specdec_cli.errors import InterruptedByUser, UsageError
from specdec_cli.settings import AUTO, K_RULES, NO_DRAFT, WHOLE_VOCAB, KChoice, ModelSettings

T = TypeVar("T")
MODELS, SAMPLING, SPECULATION, OUTPUT = "Models", "Sampling", "Speculation", "Output"


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


def _option(*names: str, panel: str, show_default: bool = True, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, show_default=show_default, **more)


def flag(*names: str, panel: str | None = None, help: str) -> Any:
    """An option that is given or not; Typer's help would name it a <bool>, as though it took a value."""
    return typer.Option(*names, rich_help_panel=panel, metavar="", help=help)


# ------------------------------------------------------------------------------------------ models
PresetOption = Annotated[
    str | None,
    _option(
        "--preset", "-p", panel=MODELS, show_default=False, autocompletion=_complete_preset,
        help="A pair by name or YAML file (default: demo, unless --target is given).",
    ),
]  # fmt: skip
TargetOption = Annotated[
    str | None, _option("--target", "-t", panel=MODELS, show_default=False, help="Folder, .gguf file or hub id.")
]
DraftOption = Annotated[
    str | None,
    _option(
        "--draft", "-d", panel=MODELS, show_default=False,
        help="A model with the target's tokenizer; ngram, suffix, lookahead or early-exit:N, which need none; a list "
        "like ngram+MODEL; or none for plain decoding.",
    ),
]  # fmt: skip
DraftsOption = Annotated[
    list[str] | None,
    _option(
        "--draft", "-d", panel=MODELS, show_default=False,
        help="A model with the target's tokenizer; ngram, suffix, lookahead or early-exit:N, which need none; or a "
        "list like ngram+MODEL; repeatable.",
    ),
]  # fmt: skip
DeviceOption = Annotated[str, _option("--device", panel=MODELS, help="auto, cpu, cuda, cuda:1, mps.")]
DraftDeviceOption = Annotated[
    str | None, _option("--draft-device", panel=MODELS, show_default=False, help="The draft's device, if another.")
]
DtypeOption = Annotated[
    Dtype,
    _option(
        "--dtype",
        panel=MODELS,
        help="auto: the preset's, else the checkpoint's where it is fast here, else float32.",
    ),
]
DraftDtypeOption = Annotated[
    Dtype | None, _option("--draft-dtype", panel=MODELS, show_default=False, help="The draft's type, if another.")
]
QuantizeOption = Annotated[
    Quantize,
    _option(
        "--quantize",
        panel=MODELS,
        help="Bits of the target's weights. keep: a .gguf file's own on a CPU, else none; int8, w8a8 (activations too) "
        "and int4 round them: faster, but another model.",
    ),
]
DraftQuantizeOption = Annotated[
    DraftQuantize,
    _option(
        "--draft-quantize",
        panel=MODELS,
        help="The same for the draft: output keeps its distribution. auto: what steps fastest here, which may give one "
        "seed another text.",
    ),
]
DraftVocabOption = Annotated[
    str,
    _option(
        "--draft-vocab",
        panel=MODELS,
        help="Cut the draft's head to N frequent tokens, or to those of a FILE of text: output keeps its distribution. "
        "auto: 32768 where the head is a quarter of a step or more; none: the whole head.",
    ),
]
RevisionOption = Annotated[
    str | None, _option("--revision", panel=MODELS, show_default=False, help="Hub branch, tag or commit.")
]
DraftRevisionOption = Annotated[
    str | None, _option("--draft-revision", panel=MODELS, show_default=False, help="The same for the draft.")
]
OfflineOption = Annotated[bool, flag("--offline", panel=MODELS, help="Never touch the network.")]
TrustOption = Annotated[bool, flag("--trust-remote-code", panel=MODELS, help="Run a checkpoint's own Python code.")]
GraphsOption = Annotated[
    Graphs, _option("--graphs", panel=MODELS, help="On CUDA, auto repeats whole rounds as graphs where it can.")
]
CompileOption = Annotated[
    bool,
    flag(
        "--compile",
        panel=MODELS,
        help="Compile both models' steps: seconds to minutes for each K and length of text, in every run.",
    ),
]

# ------------------------------------------------------------------------------------- speculation
KOption = Annotated[
    str | None,
    _option(
        "--k", "-k", panel=SPECULATION, show_default=False, metavar="<int|auto|heuristic>",
        help="Tokens drafted a round (default: the preset's, or 4); auto follows what is measured, heuristic what was "
        "accepted.",
    ),
]  # fmt: skip

DraftStopOption = Annotated[
    float,
    _option(
        "--draft-stop", panel=SPECULATION,
        help="End a draft behind a token that its own model gave less than this probability; 0: never.",
    ),
]  # fmt: skip

# ---------------------------------------------------------------------------------------- sampling
TemperatureOption = Annotated[float, _option("--temperature", panel=SAMPLING, help="0 is greedy.")]
TopKOption = Annotated[int, _option("--top-k", panel=SAMPLING, help="Keep the k most likely tokens; 0: all.")]
TopPOption = Annotated[
    float, _option("--top-p", panel=SAMPLING, help="Keep the most likely tokens up to this mass; 1: all.")
]
MinPOption = Annotated[
    float,
    _option("--min-p", panel=SAMPLING, help="Keep tokens at least this likely, relative to the best; 0: all."),
]
PenaltyOption = Annotated[
    float,
    _option("--repetition-penalty", panel=SAMPLING, help="Divides the logits of tokens already seen; 1: off."),
]
SeedOption = Annotated[
    int | None,
    _option(
        "--seed", panel=SAMPLING, show_default=False, help="Same seed, same text; without it a new one, told in JSON."
    ),
]

# ------------------------------------------------------------------------------------------ output
OutputOption = Annotated[
    Path | None,
    _option("--output", "-o", panel=OUTPUT, show_default=False, help="Write there instead of stdout."),
]
QuietOption = Annotated[
    bool, flag("--quiet", "-q", panel=OUTPUT, help="No notes, no progress and no summary on stderr.")
]


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


def choose_models(
    *,
    preset: str | None,
    target: str | None,
    drafts: Sequence[str],
    device: str = "auto",
    draft_device: str | None = None,
    dtype: Dtype = Dtype.auto,
    draft_dtype: Dtype | None = None,
    quantize: Quantize = Quantize.keep,
    draft_quantize: DraftQuantize = DraftQuantize.keep,
    draft_vocab: str = AUTO,
    revision: str | None = None,
    draft_revision: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    dummy_weights: bool = False,
    graphs: Graphs = Graphs.auto,
    compile: bool = False,
    draft_stop: float = 0.0,
) -> ModelChoice:
    """Join the model options with the preset that they stand beside.

    Raises:
        UsageError: --preset beside --target, a target without a draft, --draft-vocab names no file, or an option that
            none of these models heeds.
    """
    from specdec_cli.presets import DEFAULT, load_preset

    if preset is not None and target is not None:
        raise UsageError("--preset and --target are given both: choose one (--draft may stand beside either)")
    pair = load_preset(preset or DEFAULT) if target is None else None
    if not drafts and pair is None:
        _require_path(target or "")  # the mistake that comes first is told first
        raise UsageError(
            f"--draft is missing: name a small model with the target's tokenizer, or {NO_DRAFT} "
            "(ngram, suffix, lookahead and early-exit:N need no second model)"
        )
    own_draft = pair is not None and not drafts
    wanted = pair.dtype if pair is not None and dtype is Dtype.auto else dtype.value
    if offline:  # read when the libraries are imported, which is only later
        os.environ["HF_HUB_OFFLINE"] = "1"
    target_settings = ModelSettings(
        source=target or (pair.target if pair else ""),
        revision=revision or (pair.revision if pair else None),
        device=device, dtype=wanted, offline=offline, trust_remote_code=trust_remote_code,
        dummy_weights=dummy_weights, quantize=quantize.value, graphs=graphs.value, compile=compile,
    )  # fmt: skip
    number = draft_vocab.lstrip("-").isdecimal()
    if draft_vocab not in (AUTO, WHOLE_VOCAB) and not number and not Path(draft_vocab).is_file():
        raise UsageError(
            f"--draft-vocab {draft_vocab} is no number, no file, not {AUTO} and not {WHOLE_VOCAB}: give one of these"
        )

    def draft_settings(source: str | None) -> ModelSettings | None:
        if source is None:
            return None
        return ModelSettings(
            source=source,
            revision=draft_revision or (pair.draft_revision if pair and own_draft else None),
            device=draft_device or device, dtype=wanted if draft_dtype is None else draft_dtype.value,
            offline=offline, trust_remote_code=trust_remote_code, dummy_weights=dummy_weights,
            quantize=draft_quantize.value, vocab=draft_vocab, graphs=graphs.value, compile=compile,
        )  # fmt: skip

    names = list(drafts) or [pair.draft if pair else NO_DRAFT]
    specs = [parse_draft(name) for name in dict.fromkeys(names)]
    for_models = {
        "--draft-device": draft_device is not None,
        "--draft-dtype": draft_dtype is not None,
        "--draft-quantize": draft_quantize is not DraftQuantize.keep,
        "--draft-vocab": draft_vocab != AUTO,
        "--draft-revision": draft_revision is not None,
    }
    _require_use_in_drafts(specs, for_models, draft_stop)
    _require_use_of_revision("--revision", revision, "--target", [target_settings.source])
    _require_use_of_revision(
        "--draft-revision", draft_revision, "--draft", [spec.model for spec in specs if spec.model]
    )
    chosen = tuple(DraftChoice(spec, draft_settings(spec.model)) for spec in specs)
    return ModelChoice(target_settings, chosen, pair.k if pair else 4)


def _require_path(target: str) -> None:
    """Refuse what can only be meant as a path, and leads nowhere; a hub id is looked up later."""
    is_path = target.startswith((".", "/", "~")) or target.endswith(".gguf") or target.count("/") > 1
    if is_path and not Path(target).expanduser().exists():
        raise UsageError(f"--target {target} does not exist: give a folder, a .gguf file or a hub id")


def refuse_given(options: Mapping[str, bool], why: str) -> None:
    """Refuse options that would do nothing here.

    Args:
        options: name, and whether it was given another value than its default.
        why: the rest of the message behind the name, with the remedy.

    Raises:
        UsageError: one was.
    """
    for name, given in options.items():
        if given:
            raise UsageError(f"{name} {why}")


def _require_use_in_drafts(specs: Sequence[DraftSpec], for_models: Mapping[str, bool], draft_stop: float) -> None:
    named = f"--draft {', '.join(spec.name for spec in specs)}"
    kinds = {source.kind for spec in specs for source in spec.sources}
    if MODEL not in kinds:
        refuse_given(for_models, f"is for a draft that is a model of its own, not for {named}: leave it out")
    if kinds.isdisjoint((MODEL, "early-exit")):
        refuse_given(
            {"--draft-stop": draft_stop != 0.0},
            f"is for a draft with probabilities (a model, or early-exit:N), not for {named}: leave it out",
        )


def _require_use_of_revision(option: str, value: str | None, role: str, sources: Sequence[str]) -> None:
    """A folder or a file is what it is; of several sources one hub id will do."""
    here = (source.startswith("demo:") or Path(source).expanduser().exists() for source in sources)
    if value is not None and all(here):
        raise UsageError(f"{option} is for a hub id, and {role} {', '.join(sources)} is here: leave it out")


def parse_k(text: str | None, default: KChoice) -> KChoice:
    """The value of --k where it is one number or a rule.

    Raises:
        UsageError: it is neither.
    """
    if text is None:
        return default
    if text in K_RULES:
        return text
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"--k must be a number of 1 or above, {' or '.join(K_RULES)}, not '{text}'") from error


def silence_libraries(quiet: bool) -> None:
    """No progress bars of transformers' and the hub's where nobody watches; read when they are imported."""
    if quiet or not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")


def reader_may_leave(run: Callable[[T], int], request: T) -> int:
    """Run a command; `| head` closing the pipe is no error, and not the exit code 1 that Typer makes of it."""
    try:
        return run(request)
    except KeyboardInterrupt as error:  # Typer would end with 130, but silently
        raise InterruptedByUser("interrupted") from error
    except BrokenPipeError:
        # Whatever is still buffered has nowhere to go, and Python would complain about that when it exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
        return 0
