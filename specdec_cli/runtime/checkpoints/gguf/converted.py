"""A GGUF file as an ordinary folder of safetensors: converted once, and cached by its content.

Each number is written in the type that the file holds it in: float32, float16 or bfloat16. What the file has in blocks
of fewer bits is written in bfloat16, which is twice or more its size already; only where another --dtype is asked for
by name is it written once more, in float32.

Nothing is written of a file whose architecture, metadata or tensors cannot all be honoured.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    GenerationConfig,
    GgufConfig,
    PreTrainedTokenizerBase,
)
from transformers.integrations.gguf import is_gguf_arch_supported

from specdec_cli.activity import doing
from specdec_cli.errors import SpecdecError, UsageError
from specdec_cli.runtime.checkpoints.gguf.config import STORED_DTYPES, config_of, require_architecture, stored_dtype
from specdec_cli.runtime.checkpoints.gguf.header import GgufFile, read_gguf
from specdec_cli.runtime.checkpoints.gguf.names import empty_model, require_all_tensors
from specdec_cli.runtime.checkpoints.gguf.own_bits import GgufWeights
from specdec_cli.runtime.checkpoints.gguf.tokenizer import end_ids_of, tokenizer_of
from specdec_cli.runtime.checkpoints.reading import READING_FAILS, Report, fails_reading, gguf_damage, gguf_failure
from specdec_cli.runtime.devices import out_of_memory

# Part of the cache's key: raise it when what is written changes.
CONVERSION_VERSION = 2
HASHED_AT_ONCE = 2**24


def is_converted(path: Path) -> bool:
    """Whether a GGUF file was converted before, so that its dequantised weights cost no minute and no disk."""
    return (_converted_folder(read_gguf(path)) / "config.json").is_file()


def cache_folder() -> Path:
    """The user's cache folder for specdec: SPECDEC_CACHE, else the platform's usual place."""
    chosen = os.environ.get("SPECDEC_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    if sys.platform == "darwin" and not base:
        return Path.home() / "Library" / "Caches" / "specdec"
    return Path(base) / "specdec" if base else Path.home() / ".cache" / "specdec"


def open_gguf(path: Path, option: str) -> GgufFile:
    """The header of a file, or of the split set that it belongs to.

    Raises:
        UsageError: it is not a GGUF file.
        SpecdecError: it is damaged, a part of it is missing, or it is of no architecture that is read here.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UsageError(f"{option} {path} is not a GGUF file (its first bytes are wrong): download it again")
    try:
        found = read_gguf(path)
        require_architecture(found)
    except SpecdecError as error:
        raise SpecdecError(f"{option} {error}") from error
    except READING_FAILS as error:
        raise gguf_damage(error, option, path) from error
    return found


def gguf_as_folder(path: Path, option: str, report: Report, weights: bool = True, exact: bool = False) -> Path:
    """The file as an ordinary checkpoint, converted at its first use.

    The cache's key is the content of all its parts, so a renamed or moved file is recognised and a changed one is not
    mistaken.

    Args:
        path: of the file, or of any one of a split set.
        weights: False is content with a folder of configuration and tokenizer, which takes seconds to make.
        exact: blocks of few bits become float32.

    Raises:
        UsageError: it is not a GGUF file.
        SpecdecError: the gguf package is missing, or the file cannot be read rightly; one line with the remedy.
    """
    file = open_gguf(path, option)
    with _writable_cache():
        folder = _converted_folder(file, exact)
    if (folder / "config.json").is_file():
        return folder
    if weights:
        report(f"converting {path.name} to safetensors, once (kept in {folder})")
    else:
        folder = folder.with_name(f"{folder.name}-metadata")
        if (folder / "config.json").is_file():
            return folder
        report(f"reading the metadata of {path.name}, once (kept in {folder})")
    with _writable_cache():
        folder, unfinished = _place_for(folder, report)
    if (folder / "config.json").is_file():
        unfinished.rmdir()
        return folder
    try:
        with (
            out_of_memory(f"to convert {option} {path.name}", "choose a smaller model, or its safetensors"),
            doing(f"converting {path.name}" if weights else f"reading the metadata of {path.name}"),
        ):
            _convert(file, unfinished, exact) if weights else _convert_metadata(file, unfinished)
        os.replace(unfinished, folder)
    except SpecdecError as error:
        raise type(error)(f"{option} {error}") from error
    except Exception as error:
        if not fails_reading(error):
            raise
        if not (folder / "config.json").is_file():  # else another process was faster
            raise gguf_failure(error, option, path, folder.parent) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _converted_folder(file: GgufFile, exact: bool = False) -> Path:
    key = f"{_content_hash(file.paths)[:32]}-v{CONVERSION_VERSION}"
    has_blocks = any(t.kind.name not in STORED_DTYPES for t in file.tensors)
    return cache_folder() / "gguf" / (f"{key}-float32" if exact and has_blocks else key)


def _place_for(folder: Path, report: Report) -> tuple[Path, Path]:
    """A folder of the cache, else of one that lasts as long as this process; and an unfinished one to fill first."""

    def unfinished_beside(folder: Path) -> Path:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))

    try:
        return folder, unfinished_beside(folder)
    except OSError as error:
        report(
            f"note: the cache folder {cache_folder()} cannot be written ({error.strerror}): kept in a temporary folder "
            "for this run alone; set SPECDEC_CACHE to another"
        )
    folder = _temporary_cache() / folder.name
    return folder, unfinished_beside(folder)


@cache
def _temporary_cache() -> Path:
    folder = tempfile.mkdtemp(prefix="specdec-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _writable_cache() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecdecError(
            f"the cache folder {cache_folder()} cannot be written ({error.strerror}): set SPECDEC_CACHE to another"
        ) from error


def _convert(file: GgufFile, folder: Path, exact: bool) -> None:
    config, tokenizer = config_of(file), tokenizer_of(file)
    model = empty_model(config)
    require_all_tensors(file, model)
    blocks = torch.float32 if exact else torch.bfloat16
    if is_gguf_arch_supported(file.architecture):
        model = _by_transformers(file, blocks)
    else:
        weights = GgufWeights(file.paths[0], model)
        found = weights.ordinary(lambda kind: STORED_DTYPES.get(kind, blocks))
        model.load_state_dict(found, strict=False, assign=True)
        model.tie_weights()
    model.generation_config = _generation(file, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _save_config(file, config, folder, blocks)


def _by_transformers(file: GgufFile, blocks: torch.dtype) -> Any:
    """The architectures whose tensors only transformers knows how to turn; it reads one file."""
    if len(file.paths) > 1:
        raise SpecdecError(
            f"{file.name} is split into {len(file.paths)} files, and those of a {file.architecture} are read in one "
            "piece only: join them with llama-gguf-split --merge"
        )
    stored = stored_dtype(file)
    return AutoModelForCausalLM.from_pretrained(
        file.paths[0].parent, gguf_file=file.name, local_files_only=True, config=config_of(file),
        quantization_config=GgufConfig(dequantize=True),
        dtype=blocks if stored == torch.bfloat16 else torch.float32,
    )  # fmt: skip


def _convert_metadata(file: GgufFile, folder: Path) -> None:
    """What `_convert` writes, without the weights."""
    config, tokenizer = config_of(file), tokenizer_of(file)
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        with torch.device("meta"):
            require_all_tensors(file, AutoModelForCausalLM.from_config(config))
    _generation(file, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _save_config(file, config, folder, torch.bfloat16)


def _generation(file: GgufFile, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """The ids that end a text, where transformers looks for them."""
    return GenerationConfig(eos_token_id=end_ids_of(file, tokenizer) or None, bos_token_id=tokenizer.bos_token_id)


def _save_config(file: GgufFile, config: Any, folder: Path, blocks: torch.dtype) -> None:
    """The configuration, whose number type is that of the file's matrices."""
    config.dtype = stored_dtype(file) if stored_dtype(file) != torch.bfloat16 else blocks
    config.save_pretrained(folder)


def _content_hash(paths: tuple[Path, ...]) -> str:
    """SHA-256 of the files; remembered by place, size and time of change, since large files take seconds."""
    if len(paths) > 1:
        return hashlib.sha256("".join(_content_hash((path,)) for path in paths).encode()).hexdigest()
    (path,) = paths
    status = path.stat()
    identity = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    remembered = cache_folder() / "gguf" / "hashes" / hashlib.sha256(identity.encode()).hexdigest()
    if remembered.is_file():
        return remembered.read_text(encoding="ascii")
    with path.open("rb") as file, doing(f"reading {path.name}", status.st_size) as advance:
        digest = hashlib.sha256()
        while block := file.read(HASHED_AT_ONCE):
            digest.update(block)
            advance(len(block))
    content_hash = digest.hexdigest()
    partial = remembered.with_suffix(f".{os.getpid()}")
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(content_hash, encoding="ascii")
        os.replace(partial, remembered)
    except OSError:  # a full disk, or a cache that is only to be read: what is there is of use all the same
        with suppress(OSError):
            partial.unlink()
    return content_hash
