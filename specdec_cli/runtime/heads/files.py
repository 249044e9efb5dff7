"""A head's files: its configuration as it stands, and its tensors, none of which are unpickled beyond tensors.

Published heads come as safetensors, or as what torch saves (`.bin`, `.pt`); Medusa's have a name of their own.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download, is_offline_mode, snapshot_download
from safetensors import safe_open
from torch import Tensor

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.locate import Place
from specdec_cli.runtime.checkpoints.reading import one_line_errors

CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")  # of two forms of the same tensors the one that needs no unpickling
_NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt")
_NO_STATE_DICT = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError)


@dataclass(frozen=True)
class HeadFiles:
    """A folder, and what its config.json says.

    Attributes:
        place: where it is, for messages.
        folder: on this machine.
        config: its config.json.
    """

    place: Place
    folder: Path
    config: Mapping[str, Any]

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold tensors: safetensors where there are any, else what torch saved.

        Raises:
            SpecdecError: there are none.
        """
        for pattern in WEIGHTS:
            found = sorted(path for path in self.folder.glob(pattern) if path.name not in _NOT_WEIGHTS)
            if found:
                return tuple(found)
        raise SpecdecError(f"{self.place.name} holds no weights ({', '.join(WEIGHTS)}): download it again")

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every tensor, by its name."""
        if self.paths[0].suffix != ".safetensors":
            return {name: tuple(tensor.shape) for name, tensor in self._saved.items()}
        shapes: dict[str, tuple[int, ...]] = {}
        with one_line_errors(self.place):
            for path in self.paths:
                with safe_open(path, framework="pt") as opened:
                    shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        return shapes

    def tensors(self, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
        """Those whose name is wanted, on the CPU, in the number type that they are stored in."""
        if self.paths[0].suffix != ".safetensors":
            return {name: tensor for name, tensor in self._saved.items() if wanted(name)}
        tensors: dict[str, Tensor] = {}
        with one_line_errors(self.place):
            for path in self.paths:
                with safe_open(path, framework="pt") as opened:
                    tensors |= {name: opened.get_tensor(name) for name in opened.keys() if wanted(name)}  # noqa: SIM118
        return tensors

    @cached_property
    def _saved(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for path in self.paths:
            tensors |= _state_dict(path, self.place)
        return tensors


def _state_dict(path: Path, place: Place) -> Mapping[str, Tensor]:
    """What torch saved, where that is a dictionary of tensors.

    Raises:
        SpecdecError: it is anything else; nothing of it was run.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:
        raise _no_tensors(path, place, "it holds other objects, or is damaged") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not found:
        raise _no_tensors(path, place, f"it is a {type(found).__name__}")
    strange = next((key for key, value in found.items() if not isinstance(value, Tensor)), None)
    if strange is not None:
        raise _no_tensors(path, place, f"{str(strange)[:40]!r} in it is no tensor")
    return found


def _no_tensors(path: Path, place: Place, why: str) -> SpecdecError:
    return SpecdecError(
        f"{place.name}: {path.name} is not a state dict ({why}), and is read no further: save its tensors alone, best "
        "as safetensors"
    )


def read_config(place: Place) -> Mapping[str, Any] | None:
    """A folder's or hub id's config.json; None where none can be read, which whoever loads a model says better."""
    if place.gguf is not None or place.hub_file is not None:
        return None
    try:
        with one_line_errors(place):
            path = Path(place.path) / CONFIG
            if not Path(place.path).is_dir():
                path = Path(hf_hub_download(place.path, CONFIG, **_hub_options(place)))
            config = json.loads(path.read_text(encoding="utf-8"))
    except SpecdecError:
        return None
    return config if isinstance(config, dict) else None


def open_files(place: Place, config: Mapping[str, Any] | None = None) -> HeadFiles:
    """A folder's files; a hub id's are fetched first, unless they are here.

    Args:
        place: no GGUF file.
        config: what `read_config` gave, where that was asked already.

    Raises:
        SpecdecError: they cannot be had; one line with the remedy.
    """
    config = read_config(place) if config is None else config
    if config is None:
        raise SpecdecError(f"{place.name} has no {CONFIG} that can be read: download it again")
    folder = Path(place.path)
    if not folder.is_dir():
        with one_line_errors(place):
            folder = Path(snapshot_download(place.path, allow_patterns=["*.json", *WEIGHTS], **_hub_options(place)))
    return HeadFiles(place, folder, config)


def _hub_options(place: Place) -> dict[str, Any]:
    options = place.hub_options
    return {"revision": options["revision"], "local_files_only": options["local_files_only"] or is_offline_mode()}
