"""What --draft may say, and how it is read.

    none                          plain decoding
    ngram, ngram:max=4,min=2      what followed the last n tokens when they last stood in the text
    suffix, suffix:memory=off     the same over all texts of a run, by frequency
    early-exit:4                  the target's own first four layers
    lookahead, lookahead:window=6,ngram=3,candidates=4    the target's own n-grams, by Jacobi iteration
    demo:draft, ./folder, a/b     anything else is a model
    ngram+suffix+./folder         the first source that has a guess makes the draft

A value that begins with the name of a built-in source, up to its end, a colon or a plus, means that source (a folder of
such a name is ./ngram); what stands behind the last of them is a model as it stands, whatever colons and pluses are in
it. A model, early-exit and lookahead always have a guess, so nothing can stand behind them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specdec_cli.errors import UsageError
from specdec_cli.settings import NO_DRAFT

MODEL = "model"
LONGEST_NGRAM = 64  # every committed token costs an entry for each length
WIDEST = 64  # of lookahead: what is beyond makes a pass too wide to be worth it


@dataclass(frozen=True)
class Source:
    """One part of a --draft.

    Attributes:
        name: as the user gave it.
        kind: "none", "ngram", "suffix", "early-exit", "lookahead" or "model".
        options: of that kind, all of them: max and min; memory (0 or 1); layers; window, ngram and candidates.
        model: where its checkpoint comes from, for a model.
    """

    name: str
    kind: str
    options: Mapping[str, int] = field(default_factory=dict)
    model: str | None = None


@dataclass(frozen=True)
class DraftSpec:
    """One --draft.

    Attributes:
        name: as the user gave it; what records call it.
        sources: in the order in which they are asked.
    """

    name: str
    sources: tuple[Source, ...]

    @property
    def model(self) -> str | None:
        """Where the checkpoint among its sources comes from; None where there is none."""
        return self.sources[-1].model

    @property
    def is_model(self) -> bool:
        """A model and nothing else."""
        return len(self.sources) == 1 and self.model is not None

    @property
    def prompt_lookup(self) -> tuple[int, int] | None:
        """The longest and the shortest n-gram, where this is prompt lookup and nothing else."""
        (first, *others) = self.sources
        return None if others or first.kind != "ngram" else (first.options["max"], first.options["min"])

    @property
    def own_layers(self) -> int | None:
        """How many of the target's layers draft, where this is early exit and nothing else."""
        (first, *others) = self.sources
        return None if others else first.options.get("layers")

    @property
    def learns(self) -> bool:
        """Whether one text's guesses depend on the texts before it."""
        return any(source.options.get("memory") for source in self.sources)


def parse_draft(value: str) -> DraftSpec:
    """Read one --draft.

    Raises:
        UsageError: naming --draft and the remedy.
    """
    sources: list[Source] = []
    rest: str | None = value
    while rest is not None and (kind := re.split("[:+]", rest, maxsplit=1)[0]) in _READERS:
        name, plus, behind = rest.partition("+")
        rest = behind if plus else None
        options = _READERS[kind](value, name.partition(":")[2] if ":" in name else None)
        if kind in (other.kind for other in sources):
            raise UsageError(f"--draft {value}: {kind} is named twice: name it once")
        if kind == NO_DRAFT and (sources or plus):
            raise UsageError(f"--draft {value}: {NO_DRAFT} is plain decoding, which joins with nothing: leave it out")
        if kind in ("early-exit", "lookahead") and plus:
            raise UsageError(f"--draft {value}: {name} always has a guess: name it last")
        sources.append(Source(name, kind, options))
    if rest is not None:
        sources.append(_model(value, rest, alone=not sources))
    return DraftSpec(value, tuple(sources))


def _model(value: str, source: str, alone: bool) -> Source:
    if source.startswith("+") or (not source and not alone):
        raise UsageError(f"--draft {value}: a + joins two sources: name one on each side, or leave the + out")
    if "+" in source and not Path(source).expanduser().exists():
        first = source.partition("+")[0]
        raise UsageError(
            f"--draft {value}: {first} is no built-in source, and a model always has a guess: name one model, and last"
        )
    return Source(source, MODEL, model=source)


def _no_options(value: str, text: str | None) -> dict[str, int]:
    if text is not None:
        raise UsageError(f"--draft {value}: {NO_DRAFT} takes no options: leave them out")
    return {}


def _ngram(value: str, text: str | None) -> dict[str, int]:
    options = {"max": 3, "min": 1}
    for key, given in _pairs(value, "ngram", text, tuple(options)).items():
        options[key] = _whole(value, key, given, LONGEST_NGRAM)
    if options["min"] > options["max"]:
        raise UsageError(
            f"--draft {value}: min is {options['min']}, above max, {options['max']}: raise max, or lower min"
        )
    return options


def _suffix(value: str, text: str | None) -> dict[str, int]:
    given = _pairs(value, "suffix", text, ("memory",)).get("memory", "on")
    if given not in ("on", "off"):
        raise UsageError(f"--draft {value}: memory must be on or off, not '{given}'")
    return {"memory": int(given == "on")}


def _early_exit(value: str, text: str | None) -> dict[str, int]:
    if not text:
        raise UsageError(f"--draft {value}: say how many of the target's layers draft, as in early-exit:4")
    return {"layers": _whole(value, "the number of layers", text)}


def _lookahead(value: str, text: str | None) -> dict[str, int]:
    options = {"window": 6, "ngram": 3, "candidates": 4}
    for key, given in _pairs(value, "lookahead", text, tuple(options)).items():
        options[key] = _whole(value, key, given, WIDEST, least=2 if key == "ngram" else 1)
    return options


_READERS: dict[str, Callable[[str, str | None], dict[str, int]]] = {
    NO_DRAFT: _no_options,
    "ngram": _ngram,
    "suffix": _suffix,
    "early-exit": _early_exit,
    "lookahead": _lookahead,
}


def _pairs(value: str, kind: str, text: str | None, known: tuple[str, ...]) -> dict[str, str]:
    """The name=value pairs behind a colon."""
    found: dict[str, str] = {}
    for pair in [] if text is None else text.split(","):
        key, equals, given = pair.partition("=")
        if key not in known or not equals:
            *others, last = (f"{name}=..." for name in known)
            options = f"{', '.join(others)} and {last}" if others else last
            raise UsageError(f"--draft {value}: {kind} takes {options}, not '{pair}'")
        if key in found:
            raise UsageError(f"--draft {value}: {key} is given twice: give it once")
        found[key] = given
    return found


def _whole(value: str, name: str, text: str, most: int | None = None, least: int = 1) -> int:
    number = int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
    if number < least or (most is not None and number > most):
        wanted = f"{least} or above" if most is None else f"between {least} and {most}"
        raise UsageError(f"--draft {value}: {name} must be {wanted}, not '{text}'")
    return number
