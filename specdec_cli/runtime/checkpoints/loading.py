"""A checkpoint becomes a model on a device, in a number type, with its tokenizer: or one clear line says why not."""

from __future__ import annotations

import os
import pickle
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub import errors as hub
from huggingface_hub import is_offline_mode
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # whichever it was built on
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from specdec_cli.errors import OutOfMemoryError, SpecdecError, UsageError
from specdec_cli.runtime.checkpoints.dummy import dummy_model
from specdec_cli.runtime.checkpoints.frequent_tokens import cut_to_frequent
from specdec_cli.runtime.checkpoints.gguf_bits import describe_bits, keeps_bits, kept_bytes, load_gguf
from specdec_cli.runtime.checkpoints.sources import Report, gguf_file, locate, report_errors_only
from specdec_cli.runtime.devices import choose_device, choose_dtype, free_memory, out_of_memory
from specdec_cli.runtime.layers.cut_head import can_be_cut
from specdec_cli.runtime.layers.joined import join
from specdec_cli.runtime.layers.packed import pack
from specdec_cli.runtime.layers.quantize import AS_FAST, quantize, step_seconds, weight_bytes
from specdec_cli.runtime.layers.quantized_linear import QuantizedLinear
from specdec_cli.settings import AUTO, FREQUENT, KEEP, LARGE_HEAD, NOT_QUANTIZED, WHOLE_VOCAB, ModelSettings

# What transformers, huggingface_hub, safetensors and pickle raise at files that are missing or wrong.
READING_FAILS = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ImportError),
    *(SafetensorError, httpx.HTTPError, hub.StrictDataclassError, struct.error, EOFError, pickle.UnpicklingError),
)
# What a model takes beside its weights: activations, the cache of a short text, the allocator's slack.
HEADROOM = 1.1
GENERATES = r"(CausalLM|LMHeadModel|ConditionalGeneration)$"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model and what belongs to it.

    Attributes:
        name: what the user called it.
        model, tokenizer: transformers' own.
        device: where ids go in and logits come out.
        dtype: of the weights.
        num_rows: rows of the embedding, padding included.
        end_ids: ids that end a text, from the generation config and the tokenizer.
        notes: what was decided while loading, a line each.
        quantize: bits that linear layers keep of their weights: "none", "int8", "w8a8" (activations too), "int4",
            or "keep" for a file's own.
        head_rows: tokens that the head computes; `num_rows` unless it was cut.
        step_bytes: of weights that decoding one token reads.
        head_bytes: those of them that are the head's.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    num_rows: int
    end_ids: frozenset[int]
    notes: tuple[str, ...]
    quantize: str
    head_rows: int
    step_bytes: int
    head_bytes: int

    @property
    def coarsest_dtype(self) -> torch.dtype:
        """Of the types that logits pass through, the one that rounds most: quantised layers compute in bfloat16."""
        return self.dtype if self.quantize == NOT_QUANTIZED else torch.bfloat16


def step_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that decoding one token reads: all but an embedding table that is not the head too."""
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    tied = head is None or getattr(head, "weight", None) is table  # a quantised head has weights of its own
    return weight_bytes(model) - (0 if tied else table.nbytes)


def load_checkpoint(settings: ModelSettings, role: str, report: Report) -> Checkpoint:
    """Load a target or a draft; see `_load`. Of a GGUF file `auto` also tries its own bits, which it prefers."""
    device = choose_device(settings.device, "--device" if role == "target" else "--draft-device")
    kept = replace(settings, quantize=KEEP)
    if role == "target" or settings.quantize != AUTO or own_bits(kept, device) is None:
        return _load(settings, role, report)
    own = _load(kept, role, report)
    if own.quantize != KEEP:
        return _load(settings, role, report)
    rounded = _load(settings, role, report)
    seconds = step_seconds({KEEP: lambda: _step(own.model), rounded.quantize: lambda: _step(rounded.model)})
    best = own if seconds[KEEP] <= AS_FAST * seconds[rounded.quantize] else rounded
    times = ", ".join(f"{how} {value * 1000:.1f}" for how, value in seconds.items())
    return replace(best, notes=(*best.notes, f"{role} {best.quantize}, as fast as any here (ms a step: {times})"))


def _load(settings: ModelSettings, role: str, report: Report) -> Checkpoint:
    """Load what was asked for.

    Args:
        settings: where it is and how it is wanted.
        role: "target" or "draft"; a target too large for one GPU is spread, a draft is refused.
        report: told in a line what takes long.

    Raises:
        SpecdecError: one line with the remedy; its subclass gives the exit code.
    """
    report_errors_only()
    prefix = "" if role == "target" else "draft-"
    option = f"--{role}"
    device = choose_device(settings.device, f"--{prefix}device")
    if role == "target" and settings.quantize == AUTO:
        raise UsageError(f"--quantize {AUTO} is for a draft; another target is another model: choose one by name")
    file = own_bits(settings, device)
    place = locate(settings.source, option, report, weights=file is None)
    if file is not None and not _has_own_bits(file, settings, option):
        file, place = None, locate(settings.source, option, report)
    where = hub_options(settings)
    with one_line_errors(settings, option):
        config = AutoConfig.from_pretrained(place, **where)
    require_causal_lm(config, settings, option)
    tokenizer = load_tokenizer(place, where, settings, option)

    with one_line_errors(settings, option), init_empty_weights():
        skeleton = AutoModelForCausalLM.from_config(config, trust_remote_code=settings.trust_remote_code)
    parameters = num_parameters(skeleton)
    dtype, why = compute_dtype(settings, config, parameters, device)
    size = parameters * dtype.itemsize if file is None else kept_bytes(file, dtype.itemsize)
    device_map = _device_map(size, dtype, device, role, settings)
    with one_line_errors(settings, option):
        if settings.dummy_weights:
            model = dummy_model(config, dtype, device, settings.trust_remote_code)
        elif file is not None:
            model, report_on_weights = load_gguf(file, config, dtype)
            model.generation_config = GenerationConfig.from_pretrained(place)
            _require_all_weights(report_on_weights, settings, option)
        else:
            model, report_on_weights = AutoModelForCausalLM.from_pretrained(
                place, config=config, dtype=dtype, device_map=device_map, ignore_mismatched_sizes=True,
                output_loading_info=True, **where,
            )  # fmt: skip
            _require_all_weights(report_on_weights, settings, option)
    model.eval()
    weights = "random weights, " if settings.dummy_weights else ""
    notes = [f"{role} {settings.source}: {weights}{_name(dtype)} ({why}) on {model.device}"]
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        notes.append(f"{role} is too large for one GPU: {_where_layers_went(model)}")
    embeddings = model.get_output_embeddings()
    rows = _num_rows(embeddings, config)
    ends = end_ids(model.generation_config, tokenizer)
    head_rows, quantized = rows, NOT_QUANTIZED
    if file is not None:
        quantized = KEEP
        notes.append(f"{role} in the file's own bits: {describe_bits(file)} (--{prefix}quantize none: 16 bit)")
    if settings.fuse:
        join(model)
    vocab, why = chosen_vocab(model, settings.vocab)
    if vocab != WHOLE_VOCAB:
        head_rows = cut_to_frequent(model, tokenizer, vocab, ends) or rows
        notes.append(f"{role} head cut to {head_rows:,} of {rows:,} tokens{why}; it never proposes the others")
    if settings.quantize not in (NOT_QUANTIZED, KEEP):
        with out_of_memory(f"to quantise {option} {settings.source}", "leave the quantisation out"):
            quantized, words = quantize(model, settings.quantize, device, f"--{prefix}quantize")
        notes.append(f"{role} {words}" + (": another model than the one named" if role == "target" else ""))
    read_bytes, head = step_bytes(model), model.get_output_embeddings()
    head_bytes = 0 if head is None else weight_bytes(head)
    if settings.fuse and not settings.compile:  # the compiler lays weights out itself, and does not take packed ones
        pack(model)
    return Checkpoint(
        name=settings.source,
        model=model,
        tokenizer=tokenizer,
        device=model.device,
        dtype=dtype,
        num_rows=rows,
        end_ids=ends,
        notes=tuple(notes),
        quantize=quantized,
        head_rows=head_rows,
        step_bytes=read_bytes,
        head_bytes=head_bytes,
    )


def own_bits(settings: ModelSettings, device: torch.device) -> Path | None:
    """The GGUF file whose own bits are wanted, where there are kernels for them: for the CPU, in bfloat16."""
    wanted = settings.quantize == KEEP and settings.dtype in (AUTO, "bfloat16") and not settings.dummy_weights
    return gguf_file(settings.source) if wanted and device.type == "cpu" else None


def _has_own_bits(file: Path, settings: ModelSettings, option: str) -> bool:
    with one_line_errors(settings, option):
        return keeps_bits(file)


def _step(model: PreTrainedModel) -> None:
    with torch.inference_mode():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=False)


def chosen_vocab(model: PreTrainedModel, vocab: str) -> tuple[str, str]:
    """What a draft's head is cut to, and why where that is for this to decide: a head that is much of a step is cut."""
    if vocab != AUTO:
        return vocab, ""
    head = model.get_output_embeddings()
    if not can_be_cut(head) or _num_rows(head, model.config) <= FREQUENT:
        return WHOLE_VOCAB, ""
    share = weight_bytes(head) / step_bytes(model)
    return (
        (str(FREQUENT), f", since it was {share:.0%} of a step's bytes") if share >= LARGE_HEAD else (WHOLE_VOCAB, "")
    )


def _num_rows(head: Any, config: PreTrainedConfig) -> int:
    """Tokens that a head computes."""
    if head is None:
        return int(config.get_text_config().vocab_size)
    return int(head.out_features if isinstance(head, QuantizedLinear) else head.weight.shape[0])


def hub_options(settings: ModelSettings) -> dict[str, Any]:
    """Keywords that every from_pretrained takes."""
    return {
        "revision": settings.revision or "main",
        "local_files_only": settings.offline,
        "trust_remote_code": settings.trust_remote_code,
    }


def compute_dtype(
    settings: ModelSettings, config: PreTrainedConfig, parameters: int, device: torch.device
) -> tuple[torch.dtype, str]:
    """The number type that the model will compute in, and why; the stored one where only that fits."""
    stored = getattr(config.get_text_config(decoder=True), "dtype", None) or config.dtype or torch.float32
    dtype, why = choose_dtype(settings.dtype, stored, device)
    if settings.dtype == "auto" and dtype != stored and parameters * dtype.itemsize * HEADROOM > free_memory(device):
        return stored, "as stored, since float32 does not fit"
    return dtype, why


@contextmanager
def one_line_errors(settings: ModelSettings, option: str) -> Iterator[None]:
    """Every way in which reading a checkpoint fails for a user, with the remedy."""
    name = f"{option} {settings.source}"
    revision = f" at revision '{settings.revision}'" if settings.revision else ""
    try:
        with out_of_memory(f"to load {name}", "choose a smaller model or a 16-bit --dtype"):
            yield
    except SpecdecError:
        raise
    except READING_FAILS as error:
        causes = _chain(error)
        text = " ".join(str(error).split())
        refusals = [c for c in causes if isinstance(c, hub.HfHubHTTPError)]
        unreachable = any(
            isinstance(c, (hub.LocalEntryNotFoundError, ConnectionError, httpx.TransportError)) for c in causes
        )
        if any(isinstance(c, hub.GatedRepoError) for c in causes):
            line = f"{name} is gated: accept its terms on the hub, then log in with 'hf auth login'"
        elif any(isinstance(c, hub.RevisionNotFoundError) for c in causes):
            flag = "--revision" if option == "--target" else "--draft-revision"
            line = f"{name} has no revision '{settings.revision}': check {flag}"
        elif any(isinstance(c, hub.RepositoryNotFoundError) for c in causes):
            line = f"{name} is neither a folder here nor a model on the hub; if it is private, run 'hf auth login'"
        elif any(isinstance(c, hub.DisabledRepoError) for c in causes):
            line = f"{name} is disabled by the hub: choose another model"
        elif refusals and refusals[-1].response.status_code in (401, 403):
            line = f"the hub refuses your token for {name}: log in again with 'hf auth login'"
        elif refusals and refusals[-1].response.status_code != 404:
            line = f"the hub answers {refusals[-1].response.status_code} for {name}{revision}: try again later"
        elif unreachable and (settings.offline or is_offline_mode()):
            without = "--offline" if settings.offline else "HF_HUB_OFFLINE"
            line = f"{name}{revision} is not in the hub's local cache: download it first, without {without}"
        elif unreachable:
            line = f"no network to fetch {name}{revision}: connect, or give a folder that is already here"
        elif any(isinstance(c, SafetensorError) for c in causes):
            line = f"{name}: its safetensors file is damaged ({text[:120]}); download it again"
        elif "trust_remote_code" in text:
            line = f"{name} brings its own Python code: read it, then allow it with --trust-remote-code"
        elif any(isinstance(c, ImportError) for c in causes):
            line = f"{name} needs a package that is not installed: {text[:200]}"
        elif "model type" in text and "does not recognize" in text:
            line = f"{name} is of an architecture that this transformers does not know: upgrade transformers"
        else:
            line = f"{name}{revision} cannot be loaded ({text[:300]}): download it again, or choose another"
        raise SpecdecError(line) from error


def _chain(error: BaseException) -> Sequence[BaseException]:
    causes: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in causes:
        causes.append(current)
        current = current.__cause__ or current.__context__
    return causes


def require_causal_lm(config: PreTrainedConfig, settings: ModelSettings, option: str) -> None:
    """Refuse what does not generate text from left to right.

    Raises:
        UsageError: an encoder-decoder, an encoder, or no language model at all.
    """
    name = f"{option} {settings.source}"
    if config.is_encoder_decoder:
        raise UsageError(f"{name} is an encoder-decoder ({config.model_type}): choose a decoder-only model")
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    # Encoders stand in the mapping too (BertLMHeadModel), so what the checkpoint was made as counts as well.
    declared = config.architectures or []
    made_to_generate = not declared or any(re.search(GENERATES, name) for name in declared)
    if not remote and (type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or not made_to_generate):
        raise UsageError(f"{name} is not a causal language model ({config.model_type}): choose one that generates text")


def _require_all_weights(report: dict[str, Any], settings: ModelSettings, option: str) -> None:
    """transformers fills what it does not find with random numbers."""
    for what, names in (("lacks", report["missing_keys"]), ("has other sizes for", report["mismatched_keys"])):
        if names:
            first = sorted(name if isinstance(name, str) else name[0] for name in names)[0]
            raise SpecdecError(
                f"{option} {settings.source} {what} {len(names):,} of the weights that its config.json describes "
                f"(first: {first}): download it again"
            )


def load_tokenizer(place: str, where: dict[str, Any], settings: ModelSettings, option: str) -> PreTrainedTokenizerBase:
    """A checkpoint's tokenizer, or one line that says why not."""
    name = f"{option} {settings.source}"
    try:
        with one_line_errors(settings, option):
            tokenizer = AutoTokenizer.from_pretrained(place, **where)
    except SpecdecError as error:
        if os.path.isdir(place) and "cannot be loaded" in str(error):
            raise SpecdecError(
                f"{name} has no tokenizer that can be read: copy the original model's tokenizer files into it"
            ) from error
        raise
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_ids):
        raise SpecdecError(
            f"{name} has no tokenizer that can be read: copy the original model's tokenizer files into it"
        )
    return tokenizer


def num_parameters(skeleton: PreTrainedModel) -> int:
    """Parameters, tied ones counted once."""
    return sum(p.numel() for p in skeleton.parameters())


def _device_map(size: int, dtype: torch.dtype, device: torch.device, role: str, settings: ModelSettings) -> Any:
    """A device map for from_pretrained; checks that the weights fit before reading them.

    Raises:
        OutOfMemoryError: they do not, and may not be spread.
    """
    needed, available = size * HEADROOM, free_memory(device)
    if needed <= available:
        return {"": device}
    if device.type == "cuda" and role == "target":
        return "auto"
    raise OutOfMemoryError(
        f"--{role} {settings.source} needs about {needed / 1e9:.1f} GB in {_name(dtype)}, {device.type} has "
        f"{available / 1e9:.1f} GB free: choose a smaller model, another device or a 16-bit --dtype"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _where_layers_went(model: PreTrainedModel) -> str:
    placement = getattr(model, "hf_device_map", {})
    counts: dict[str, int] = {}
    for place in placement.values():
        counts[str(place)] = counts.get(str(place), 0) + 1
    return "accelerate spread it over " + ", ".join(f"{place} ({n} modules)" for place, n in counts.items())


def end_ids(generation_config: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that end a text: those that the generation config declares, and the tokenizer's own."""
    ids: set[int] = set()
    declared = getattr(generation_config, "eos_token_id", None)
    if declared is not None:
        ids.update(declared if isinstance(declared, list) else [declared])
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return frozenset(ids)
