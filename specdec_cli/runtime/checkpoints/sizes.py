"""How large a checkpoint is, without its weights: parameters by the model's shape, bytes by its files' headers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub import errors as hub
from huggingface_hub import (
    get_local_safetensors_metadata,
    get_safetensors_metadata,
    is_offline_mode,
    parse_local_safetensors_file_metadata,
)
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from specdec_cli.runtime.checkpoints.families import language_part
from specdec_cli.runtime.checkpoints.gguf.header import split_set
from specdec_cli.runtime.checkpoints.locate import Place
from specdec_cli.runtime.checkpoints.reading import READING_FAILS

# Names under which configurations say how many experts a token visits.
# Names of a folder's weights that transformers looks for; in pieces, with an index beside them.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
ACTIVE_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts")


@dataclass(frozen=True)
class ExpertSizes:
    """The experts of a mixture.

    Attributes:
        number: of them, in a layer.
        active: of those that a token visits.
        step_parameters: weights of the experts that one token visits, over all layers.
    """

    number: int
    active: int
    step_parameters: int


@dataclass(frozen=True)
class Sizes:
    """Numbers of weights, by the shape of the model.

    Attributes:
        parameters: tied ones counted once.
        step_parameters: those that decoding one token reads: without an input embedding that is not the head too (one
            row of it is read), and with the experts that a token visits.
        caveat: what `step_parameters` could not know; empty where all is known.
        table: of the input embedding.
        head: of the output head, which may be the same ones; 0 without a head.
        tied: the head's weights are the embedding's.
        linear_head: the head is a linear layer.
        experts: None where it has none, or its config does not tell how many a token visits.
    """

    parameters: int
    step_parameters: int
    caveat: str
    table: int
    head: int
    tied: bool
    linear_head: bool
    experts: ExpertSizes | None = None


@dataclass(frozen=True)
class Stored:
    """The weights' files.

    Attributes:
        bytes: as the checkpoint is stored; None where its files could not be looked into.
        source: where that figure comes from.
        damage: what keeps its files from being loaded, as a clause; empty where nothing does.
    """

    bytes: int | None
    source: str
    damage: str = ""


def sizes_of(skeleton: PreTrainedModel, config: PreTrainedConfig) -> Sizes:
    """Count a model without data."""
    parameters = num_parameters(skeleton)
    table, head = skeleton.get_input_embeddings().weight, skeleton.get_output_embeddings()
    tied = head is None or head.weight is table
    step = num_parameters(language_part(skeleton)) - (0 if tied else table.numel())
    experts = [p for name, p in skeleton.named_parameters() if re.search(r"\.experts\.", name)]
    caveat, visited = "", None
    if experts:
        text = config.get_text_config(decoder=True)
        active = next((n for name in ACTIVE_EXPERTS if (n := getattr(text, name, None))), None)
        if active is not None and all(p.ndim == 3 for p in experts):
            step -= sum(prod(p.shape[1:]) * max(0, p.shape[0] - active) for p in experts)
            number = max(p.shape[0] for p in experts)
            of_a_step = sum(prod(p.shape[1:]) * min(p.shape[0], active) for p in experts)
            visited = ExpertSizes(number, min(number, active), of_a_step)
        else:
            caveat = "all experts are counted, since its config does not tell how many a token visits"
    head_size = 0 if head is None else sum(parameter.numel() for parameter in head.parameters())
    return Sizes(parameters, step, caveat, table.numel(), head_size, tied, type(head) is nn.Linear, visited)


def num_parameters(skeleton: nn.Module) -> int:
    """Parameters, tied ones counted once."""
    return sum(p.numel() for p in skeleton.parameters())


def stored_at(place: Place, weights: str | None = None) -> Stored:
    """Look into the headers of the weights' files; on a hub, into those of its copies there.

    Args:
        place: of the checkpoint.
        weights: the file that its configuration names, where it does.
    """
    headers, options = "safetensors headers", place.hub_options
    if place.gguf is not None:
        return Stored(sum(path.stat().st_size for path in split_set(place.gguf)), "the size of the GGUF file")
    try:
        if Path(place.path).is_dir():
            folder = Path(place.path)
            if missing := None if weights else _missing(folder):
                return Stored(None, "config.json", f"weights are missing ({missing})")
            return Stored(_header_bytes(get_local_safetensors_metadata(folder)), headers, _cut_short(folder))
        if place.settings.offline or is_offline_mode():
            found = cached_file(place.path, "config.json", **options | {"local_files_only": True})
            return Stored(_header_bytes(get_local_safetensors_metadata(Path(found).parent)), headers)
        return Stored(_header_bytes(get_safetensors_metadata(place.path, revision=place.settings.revision)), headers)
    except hub.SafetensorsParsingError as error:
        return Stored(None, "config.json", f"files are damaged ({' '.join(str(error).split())[:120]})")
    except (*READING_FAILS, hub.NotASafetensorsRepoError):
        return Stored(None, "config.json")  # weights in another form, or not here yet: the configuration has to do


def _missing(folder: Path) -> str:
    """Which of a folder's weights are not there, under the names that transformers looks for."""
    indices = [folder / f"{name}.index.json" for name in WEIGHTS]
    if any((folder / name).is_file() for name in WEIGHTS):
        return ""
    index = next((path for path in indices if path.is_file()), None)
    if index is None:
        return f"there is no {WEIGHTS[0]}"
    shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    return next((f"{shard} is not there" for shard in shards if not (folder / shard).is_file()), "")


def _cut_short(folder: Path) -> str:
    """The first safetensors file that ends before its header says, as after a download that broke off."""
    for path in sorted(folder.glob("*.safetensors")):
        metadata = parse_local_safetensors_file_metadata(path)
        end = max((tensor.data_offsets[1] for tensor in metadata.tensors.values()), default=0)
        with path.open("rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little")
        if path.stat().st_size < begin + end:
            size = f"{path.stat().st_size:,} bytes where its header tells of {begin + end:,}"
            return f"files are damaged ({path.name} has {size})"
    return ""


def _header_bytes(metadata: Any) -> int:
    """Bytes of all tensors in huggingface_hub's safetensors metadata."""
    tensors = (tensor for file in metadata.files_metadata.values() for tensor in file.tensors.values())
    return sum(end - begin for begin, end in (tensor.data_offsets for tensor in tensors))
