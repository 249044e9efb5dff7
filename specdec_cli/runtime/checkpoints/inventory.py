"""Which checkpoints are here: in the hub's cache, in folders, as GGUF files; and which of them speak the same ids.

Files are listed, and configurations, tokenizers and GGUF metadata read as they lie: no weight, no transformers and
no torch, so that it takes a moment. `pair-check` looks closer.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.runtime.checkpoints.head_marks import is_marked
from specdec_cli.runtime.checkpoints.locate import EMBEDDED
from specdec_cli.runtime.checkpoints.split_sets import one_of_each_set, parts_of

SAFETENSORS, PICKLED, GGUF, HEAD = "safetensors", "pytorch", "gguf", "head"
DEPTH = 4  # of folders within a folder that was given
SMALLER = 0.5  # a draft's share of its target's bytes, at most
# How llama.cpp calls the formats of whole files (`general.file_type`), those that are met often.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "BF16",
}  # fmt: skip
_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error)


@dataclass(frozen=True)
class Model:
    """A checkpoint that is here.

    Attributes:
        name: as -t and -d take it.
        kind: safetensors, pytorch or gguf; head of a trained head, whose tokens are its target's.
        bytes: of its weights' files.
        architecture: as its configuration, or GGUF metadata, name it; empty where they do not.
        stored: number type or format of the weights; empty where it is not told.
        missing: weights that an index or a set's names tell of, and that are not here.
        tokens: by id; empty where they cannot be read without the tokenizer's own code.
    """

    name: str
    kind: str
    bytes: int
    architecture: str
    stored: str
    missing: int
    tokens: dict[int, str] = field(repr=False)


@dataclass(frozen=True)
class Inventory:
    """What was found, and the files that could not be read, a line each."""

    models: tuple[Model, ...]
    faults: tuple[str, ...]


def take_inventory(folders: Sequence[Path]) -> Inventory:
    """The embedded pair, what the hub's cache holds, and what is in these folders.

    Raises:
        UsageError: a folder is not there.
    """
    models: list[Model] = []
    faults: list[str] = []

    def look(name: str, path: Path) -> None:
        try:
            if (model := _folder(name, path) if path.is_dir() else _gguf(name, path)) is not None:
                models.append(model)
        except _DAMAGE as error:
            faults.append(f"{name} cannot be read ({' '.join(str(error).split())[:120] or type(error).__name__})")

    for name, place in EMBEDDED.items():
        if place.is_dir():  # the head may not be trained yet
            look(name, place)
    for name, snapshot in _snapshots():
        look(name, snapshot)
        for file in one_of_each_set(snapshot.rglob("*.gguf")):
            look(f"{name}:{file.relative_to(snapshot).as_posix()}", file)
    for folder in folders:
        for path in _places(folder):
            look(str(path), path)
    return Inventory(tuple(models), tuple(faults))


def speak_alike(one: Model, other: Model) -> bool:
    """Whether no id that both have means two things; False too where either's tokens are not known."""
    both = one.tokens.keys() & other.tokens.keys()
    return bool(both) and all(one.tokens[i] == other.tokens[i] for i in both)


def vocabularies(models: Sequence[Model]) -> list[int | None]:
    """Of each model the number, from 1, of those that all speak alike; None where its tokens are not known."""
    groups: list[list[Model]] = []
    numbers: list[int | None] = []
    for model in models:
        alike = (i for i, group in enumerate(groups) if all(speak_alike(model, member) for member in group))
        place = next(alike, len(groups))
        if model.tokens:
            groups[place:] = groups[place:] or [[]]
            groups[place].append(model)
        numbers.append(place + 1 if model.tokens else None)
    return numbers


def pairs_of(models: Sequence[Model]) -> list[tuple[Model, Model]]:
    """Every target with every draft that is much smaller and speaks its ids, the largest target first."""
    whole = [model for model in models if not model.missing]
    found = [
        (target, draft)
        for target in sorted(whole, key=lambda model: -model.bytes)
        for draft in sorted(whole, key=lambda model: model.bytes)
        if draft.bytes <= SMALLER * target.bytes and speak_alike(target, draft)
    ]
    return [pair for pair in found if len({model.name.startswith("demo:") for model in pair}) == 1]


def _snapshots() -> Iterator[tuple[str, Path]]:
    """Hub ids whose files are in the hub's cache, with the folder of `main`, or else of the newest revision."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:  # nothing was ever fetched
        return
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        if repo.repo_type == "model" and repo.revisions:
            newest = max(repo.revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
            yield repo.repo_id, newest.snapshot_path


def _places(folder: Path) -> Iterator[Path]:
    """Folders of checkpoints and GGUF files in a folder; itself where it is one.

    Raises:
        UsageError: it is not there.
    """
    root = folder.expanduser()
    if root.is_file() and root.suffix.lower() == ".gguf":
        yield root
        return
    if not root.is_dir():
        raise UsageError(f"{folder} is no folder and no .gguf file: name a folder of models")
    for place, inner, files in os.walk(root):
        here = Path(place)
        deep = len(here.relative_to(root).parts)
        inner[:] = sorted(name for name in inner if not name.startswith(".")) if deep < DEPTH else []
        if "config.json" in files:
            yield here
        yield from one_of_each_set(here / name for name in files if name.lower().endswith(".gguf"))


def _folder(name: str, folder: Path) -> Model | None:
    """A folder of a configuration and weights; None where it has no weights."""
    if not (folder / "config.json").is_file():
        return None
    weights = {
        SAFETENSORS: [*folder.glob("*.safetensors")],
        PICKLED: [*folder.glob("pytorch_model*.bin"), *folder.glob("medusa_lm_head.pt")],
    }
    kind, files = next(((kind, files) for kind, files in weights.items() if files), ("", []))
    if not files:
        return None
    config = _json(folder / "config.json")
    text = config.get("text_config") or config
    indices = folder.glob("*.index.json")
    wanted = {file for index in indices for file in _json(index).get("weight_map", {}).values()}
    return Model(
        name=name,
        kind=HEAD if is_marked(config) else kind,
        bytes=sum(file.stat().st_size for file in files),
        architecture=str(config.get("model_type", "")),
        stored=str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or ""),
        missing=sum(not (folder / file).is_file() for file in wanted if Path(file).suffix == files[0].suffix),
        tokens=_tokens(folder, text.get("vocab_size")),
    )


def _tokens(folder: Path, rows: int | None) -> dict[int, str]:
    """The token of each id that has a row; none where the tokenizer is in another form than tokens by id."""
    if (folder / "tokenizer.json").is_file():
        record = _json(folder / "tokenizer.json")
        vocab = record["model"]["vocab"]
        if isinstance(vocab, list):  # unigrams, with their scores
            found = {i: token for i, (token, _) in enumerate(vocab)}
        else:
            found = {i: token for token, i in vocab.items()}
        found |= {added["id"]: added["content"] for added in record.get("added_tokens", [])}
    elif (folder / "vocab.json").is_file():
        found = {i: token for token, i in _json(folder / "vocab.json").items()}
    else:
        return {}
    if (folder / "tokenizer_config.json").is_file():
        more = _json(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
        found |= {int(i): added["content"] for i, added in more.items()}
    return {i: token for i, token in found.items() if rows is None or i < rows}


def _gguf(name: str, file: Path) -> Model:
    from specdec_cli.runtime.checkpoints.gguf.vocabulary import metadata_and_tokens

    metadata, tokens = metadata_and_tokens(file)
    parts = parts_of(file)
    return Model(
        name=name,
        kind=GGUF,
        bytes=sum(part.stat().st_size for part in parts if part.is_file()),
        architecture=str(metadata.get("general.architecture", "")),
        stored=FILE_TYPES.get(metadata.get("general.file_type", -1), ""),
        missing=sum(not part.is_file() for part in parts),
        tokens=dict(enumerate(tokens)),
    )


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
