"""What can be known of a checkpoint before its weights are read, or even downloaded.

Configuration and tokenizer are small files, and the sizes of the weights stand in the headers of the safetensors
files. The rest is asked of the model itself, built without memory (torch's meta device): how many parameters a step
reads, what one token leaves in the cache, and whether that cache can be rolled back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import errors as hub
from huggingface_hub import (
    get_local_safetensors_metadata,
    get_safetensors_metadata,
    is_offline_mode,
    parse_local_safetensors_file_metadata,
)
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from specdec_cli.errors import IncompatiblePairError, SpecdecError, UsageError
from specdec_cli.runtime.checkpoints.gguf_bits import BITS_OF_GROUPS, keeps_bits, kept_bytes
from specdec_cli.runtime.checkpoints.loading import (
    READING_FAILS,
    compute_dtype,
    end_ids,
    hub_options,
    load_tokenizer,
    num_parameters,
    one_line_errors,
    own_bits,
    require_causal_lm,
)
from specdec_cli.runtime.checkpoints.sources import Report, locate, report_errors_only
from specdec_cli.runtime.devices import choose_device
from specdec_cli.runtime.models.transformers_model import UNLIMITED, TransformersModel
from specdec_cli.settings import ModelSettings

# What a forward pass without data may raise: code that reads values, and layers that the meta device does not know.
NO_DATA = (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError, LookupError)
BITS = {"int8": 8.0, "w8a8": 8.0, "int4": BITS_OF_GROUPS}  # of a weight; scales of whole rows do not count
# Names under which configurations say how many experts a token visits.
ACTIVE_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts")


@dataclass(frozen=True)
class CacheLayer:
    """What one layer keeps.

    Attributes:
        numbers: elements of keys and values that a token adds.
        window: tokens that it keeps at most; None keeps all.
    """

    numbers: int
    window: int | None


@dataclass(frozen=True)
class Weights:
    """Sizes of the weights.

    Attributes:
        parameters: tied ones counted once.
        step_parameters: those that decoding one token reads: without an input embedding that is not the head too (one
            row of it is read), and with the experts that a token visits.
        caveat: what `step_parameters` could not know; empty where all is known.
        stored_bytes: as the checkpoint is stored; None where its files could not be looked into.
        stored_in: where that figure comes from.
        dtype: the type that the model will compute in here.
        reason: why that one, in a few words.
        quantised: stored in blocks that stay as they are.
        damage: why the files that are here cannot be loaded; empty where nothing speaks against it.
        rounded: bytes in memory and bytes that a step reads, where linear layers are quantised once loaded.
    """

    parameters: int
    step_parameters: int
    caveat: str
    stored_bytes: int | None
    stored_in: str
    dtype: torch.dtype
    reason: str
    quantised: bool
    damage: str = ""
    rounded: tuple[int, int] | None = None

    @property
    def bytes(self) -> int:
        """In memory, once loaded."""
        if self.rounded is not None:
            return self.rounded[0]
        if self.quantised and self.stored_bytes is not None:
            return self.stored_bytes
        return self.parameters * self.dtype.itemsize

    @property
    def step_bytes(self) -> int:
        """Read by decoding one token."""
        if self.rounded is not None:
            return self.rounded[1]
        return round(self.bytes * self.step_parameters / self.parameters)


@dataclass(frozen=True)
class Inspection:
    """A checkpoint, without its weights.

    Attributes:
        name: what the user called it.
        role: "target" or "draft".
        device: where it would run.
        config: of the model, text part included.
        tokenizer: None where it cannot be read; `tokenizer_problem` then says why.
        architecture_problem: why this is no model that generates from left to right; None where it is one.
        cache_problem: why its state cannot be rolled back; None where it can, or where that is not known.
        cache_layers: None where only a run with weights can tell.
        weights: None where there is no causal model to size.
        num_rows: rows of the head, padding included.
        end_ids: ids that end a text; empty without a tokenizer.
        max_length: tokens that it has positions for; None without a limit.
        cache_implementation: what its generation config asks `generate` to use, if anything.
    """

    name: str
    role: str
    device: torch.device
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase | None
    tokenizer_problem: str
    architecture_problem: str | None
    cache_problem: str | None
    cache_layers: tuple[CacheLayer, ...] | None
    weights: Weights | None
    num_rows: int
    end_ids: frozenset[int]
    max_length: int | None
    cache_implementation: str | None

    @property
    def text_config(self) -> PreTrainedConfig:
        """The part of the configuration that describes the language model."""
        text: PreTrainedConfig = self.config.get_text_config(decoder=True)
        return text

    def kv_bytes(self, num_tokens: int) -> int | None:
        """Bytes of its cache after so many tokens; windows are full at most. None where it is not known."""
        if self.cache_layers is None or self.weights is None:
            return None
        kept = (layer.numbers * min(num_tokens, layer.window or num_tokens) for layer in self.cache_layers)
        return sum(kept) * self.weights.dtype.itemsize


def inspect_checkpoint(settings: ModelSettings, role: str, report: Report) -> Inspection:
    """Read everything but the weights.

    Args:
        settings: where it is and how it would be loaded.
        role: "target" or "draft".
        report: told in a line what takes long.

    Raises:
        SpecdecError: its configuration cannot be read; one line with the remedy.
    """
    report_errors_only()
    option = f"--{role}"
    device = choose_device(settings.device, "--device" if role == "target" else "--draft-device")
    place = locate(settings.source, option, report, weights=False)
    where = hub_options(settings)
    with one_line_errors(settings, option):
        config = AutoConfig.from_pretrained(place, **where)
        generation = _generation_config(place, where, config)
        _require_ids(generation)
    architecture_problem, skeleton = None, None
    try:
        require_causal_lm(config, settings, option)
    except UsageError as error:
        architecture_problem = str(error)
    else:
        with one_line_errors(settings, option):
            skeleton = _skeleton(config, settings.trust_remote_code)
            if not num_parameters(skeleton):
                raise ValueError("its config.json describes a model without a single weight")
    tokenizer, tokenizer_problem = None, ""
    try:
        tokenizer = load_tokenizer(place, where, settings, option)
    except SpecdecError as error:
        tokenizer_problem = str(error)
    text = config.get_text_config(decoder=True)
    rows = int(getattr(text, "vocab_size", 0))
    weights, layers, cache_problem = None, None, None
    if skeleton is not None:
        head = skeleton.get_output_embeddings()
        rows = rows if head is None else int(head.weight.shape[0])
        dtype, reason = compute_dtype(settings, config, num_parameters(skeleton), device)
        weights = _weights(skeleton, config, dtype, reason, *_stored_bytes(settings, place))
        with one_line_errors(settings, option):
            weights = replace(weights, rounded=_rounded(settings, device, skeleton, weights))
        layers, cache_problem = _inspect_cache(skeleton, role)
    return Inspection(
        name=settings.source,
        role=role,
        device=device,
        config=config,
        tokenizer=tokenizer,
        tokenizer_problem=tokenizer_problem,
        architecture_problem=architecture_problem,
        cache_problem=cache_problem,
        cache_layers=layers,
        weights=weights,
        num_rows=rows,
        end_ids=frozenset() if tokenizer is None else end_ids(generation, tokenizer),
        max_length=int(limit) if (limit := getattr(text, "max_position_embeddings", None) or 0) > 0 else None,
        cache_implementation=getattr(generation, "cache_implementation", None),
    )


def _generation_config(place: str, where: dict[str, Any], config: PreTrainedConfig) -> GenerationConfig:
    """As from_pretrained of a model finds it: the file, or else what the model's configuration says."""
    try:
        return GenerationConfig.from_pretrained(place, **where)
    except OSError:
        return GenerationConfig.from_model_config(config)


def _require_ids(generation: GenerationConfig) -> None:
    """transformers takes anything for the ids that end a text."""
    declared = generation.eos_token_id
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(isinstance(i, int) for i in ids):
        raise ValueError(f"its generation_config.json gives {declared!r} as eos_token_id, which is no id")


def _skeleton(config: PreTrainedConfig, trust_remote_code: bool) -> PreTrainedModel:
    # bfloat16: some expert kernels refuse float32, and no number is ever computed.
    with torch.device("meta"):
        made: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, trust_remote_code=trust_remote_code
        )
    return made.eval()


def _weights(
    skeleton: PreTrainedModel,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    reason: str,
    stored: int | None,
    source: str,
    damage: str,
) -> Weights:
    parameters = num_parameters(skeleton)
    table, head = skeleton.get_input_embeddings().weight, skeleton.get_output_embeddings()
    step = parameters if head is None or head.weight is table else parameters - table.numel()
    experts = [p for name, p in skeleton.named_parameters() if re.search(r"\.experts\.", name)]
    caveat = ""
    if experts:
        text = config.get_text_config(decoder=True)
        active = next((n for name in ACTIVE_EXPERTS if (n := getattr(text, name, None))), None)
        if active is not None and all(p.ndim == 3 for p in experts):
            step -= sum(prod(p.shape[1:]) * max(0, p.shape[0] - active) for p in experts)
            caveat = "a pass over several tokens reads more experts than a step"
        else:
            caveat = "all experts are counted, since its config does not tell how many a token visits"
    quantised = getattr(config, "quantization_config", None) is not None
    return Weights(parameters, step, caveat, stored, source, dtype, reason, quantised, damage)


def _rounded(
    settings: ModelSettings, device: torch.device, skeleton: PreTrainedModel, weights: Weights
) -> tuple[int, int] | None:
    """Bytes in memory and of a step with quantised layers; None where there are none, or a race is to decide."""
    table, head = skeleton.get_input_embeddings().weight, skeleton.get_output_embeddings()
    tied = head is None or head.weight is table
    table_bytes = table.numel() * weights.dtype.itemsize
    file = own_bits(settings, device)
    if file is not None and keeps_bits(file):
        kept = kept_bytes(file, weights.dtype.itemsize)
        step = kept - table_bytes + (table.numel() if tied else 0)
    elif settings.quantize in BITS:
        step = round((weights.parameters - (0 if tied else table.numel())) * BITS[settings.quantize] / 8)
    else:
        return None
    return step + table_bytes, step


def _stored_bytes(settings: ModelSettings, place: str) -> tuple[int | None, str, str]:
    """The size of the stored weights, where it was read, and what is wrong with the files; empty where nothing is."""
    headers = "safetensors headers"
    gguf = Path(settings.source).expanduser()
    if gguf.suffix.lower() == ".gguf" and gguf.is_file():
        return gguf.stat().st_size, "the size of the GGUF file", ""
    try:
        if Path(place).is_dir():
            return _header_bytes(get_local_safetensors_metadata(place)), headers, _cut_short(Path(place))
        if settings.offline or is_offline_mode():
            found = cached_file(place, "config.json", **hub_options(settings) | {"local_files_only": True})
            return _header_bytes(get_local_safetensors_metadata(Path(found).parent)), headers, ""
        return _header_bytes(get_safetensors_metadata(place, revision=settings.revision)), headers, ""
    except hub.SafetensorsParsingError as error:
        return None, "config.json", " ".join(str(error).split())[:120]
    except (*READING_FAILS, hub.NotASafetensorsRepoError):
        return None, "config.json", ""  # weights in another form, or not here yet: the configuration has to do


def _cut_short(folder: Path) -> str:
    """The first safetensors file that ends before its header says, as after a download that broke off."""
    for path in sorted(folder.glob("*.safetensors")):
        metadata = parse_local_safetensors_file_metadata(path)
        end = max((tensor.data_offsets[1] for tensor in metadata.tensors.values()), default=0)
        with path.open("rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little")
        if path.stat().st_size < begin + end:
            return f"{path.name} has {path.stat().st_size:,} bytes where its header tells of {begin + end:,}"
    return ""


def _header_bytes(metadata: Any) -> int:
    """Bytes of all tensors in huggingface_hub's safetensors metadata."""
    tensors = (tensor for file in metadata.files_metadata.values() for tensor in file.tensors.values())
    return sum(end - begin for begin, end in (tensor.data_offsets for tensor in tensors))


@torch.inference_mode()
def _inspect_cache(skeleton: PreTrainedModel, role: str) -> tuple[tuple[CacheLayer, ...] | None, str | None]:
    """What a token leaves in each layer, or why that cannot be rolled back; neither where only weights can tell."""
    cache = DynamicCache(config=skeleton.config)
    try:
        skeleton(input_ids=torch.zeros(1, 1, dtype=torch.long, device="meta"), cache=cache, use_cache=True)
        if all(layer.is_croppable for layer in cache.layers):
            return tuple(_cache_layer(layer) for layer in cache.layers), None
        # In the words of the rule that would refuse it.
        TransformersModel(skeleton, skeleton.config.get_text_config(decoder=True).vocab_size, None, role)
    except IncompatiblePairError as error:
        return None, str(error)
    except NO_DATA:
        pass
    return None, None


def _cache_layer(layer: Any) -> CacheLayer:
    kept = [getattr(layer, name, None) for name in ("keys", "values")]
    numbers = sum(tensor.numel() for tensor in kept if tensor is not None)
    return CacheLayer(numbers, getattr(layer, "sliding_window", None))


def effective_context(inspections: Sequence[Inspection]) -> int:
    """Tokens that all of them have positions for."""
    return min((i.max_length for i in inspections if i.max_length), default=UNLIMITED)
