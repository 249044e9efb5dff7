"""A GGUF file as an ordinary folder: converted once to safetensors in bfloat16, and cached by its content."""

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

from specdec_cli.errors import SpecdecError, UsageError
from specdec_cli.runtime.checkpoints.reading import READING_FAILS, Report, gguf_failure
from specdec_cli.runtime.devices import out_of_memory

# Part of the cache's key: raise it when what is written changes.
CONVERSION_VERSION = 1


def is_converted(path: Path) -> bool:
    """Whether a GGUF file was converted before, so that its dequantised weights cost no minute and no disk."""
    return (_converted_folder(path) / "config.json").is_file()


def cache_folder() -> Path:
    """The user's cache folder for specdec: SPECDEC_CACHE, else the platform's usual place."""
    chosen = os.environ.get("SPECDEC_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    if sys.platform == "darwin" and not base:
        return Path.home() / "Library" / "Caches" / "specdec"
    return Path(base) / "specdec" if base else Path.home() / ".cache" / "specdec"


def gguf_as_folder(path: Path, option: str, report: Report, weights: bool = True) -> Path:
    """The file as an ordinary checkpoint in bfloat16, converted at its first use.

    The cache's key is the file's content, so a renamed or moved file is recognised and a changed one is not mistaken.

    Args:
        weights: False is content with a folder of configuration and tokenizer, which takes seconds to make.

    Raises:
        UsageError: it is not a GGUF file.
        SpecdecError: the gguf package is missing, or transformers cannot read this file.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UsageError(f"{option} {path} is not a GGUF file (its first bytes are wrong): download it again")
    with _writable_cache():
        folder = _converted_folder(path)
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
        with out_of_memory(f"to convert {option} {path.name}", "choose a smaller model, or its safetensors"):
            (_convert if weights else _convert_metadata)(path, unfinished)
        os.replace(unfinished, folder)
    except READING_FAILS as error:
        if not (folder / "config.json").is_file():  # else another process was faster
            raise gguf_failure(error, option, path) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _converted_folder(path: Path) -> Path:
    return cache_folder() / "gguf" / f"{_content_hash(path)[:32]}-v{CONVERSION_VERSION}"


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


def _convert(path: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    logging.set_verbosity_error()
    # transformers' own bar counts the tensors as they are dequantised.
    (logging.enable_progress_bar if sys.stderr.isatty() else logging.disable_progress_bar)()
    dense = GgufConfig(dequantize=True)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.bfloat16, quantization_config=dense, **where
        )
    finally:
        logging.disable_progress_bar()
    # The end token is the tokenizer's business in GGUF; transformers looks for it in the generation config.
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _convert_metadata(path: Path, folder: Path) -> None:
    """What `_convert` writes, without the weights."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(path.parent, **where)
    config.dtype = torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    GenerationConfig(**ends).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)


def _content_hash(path: Path) -> str:
    """SHA-256 of the file; remembered by place, size and time of change, since large files take seconds."""
    status = path.stat()
    identity = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    remembered = cache_folder() / "gguf" / "hashes" / hashlib.sha256(identity.encode()).hexdigest()
    if remembered.is_file():
        return remembered.read_text(encoding="ascii")
    with path.open("rb") as file:
        content_hash = hashlib.file_digest(file, "sha256").hexdigest()
    partial = remembered.with_suffix(f".{os.getpid()}")
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(content_hash, encoding="ascii")
        os.replace(partial, remembered)
    except OSError:  # a full disk, or a cache that is only to be read: what is there is of use all the same
        with suppress(OSError):
            partial.unlink()
    return content_hash
