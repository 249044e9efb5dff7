"""Step 2: what a checkpoint is, without its weights: configuration, tokenizer, sizes, what its cache holds.

Nothing here depends on the machine, and nothing is refused: what speaks against the checkpoint is kept as a problem,
for `plan` to refuse and for pair-check to show.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from specdec_cli.errors import IncompatiblePairError, SpecdecError
from specdec_cli.runtime.checkpoints.families import BIDIRECTIONAL, auto_class
from specdec_cli.runtime.checkpoints.gguf.converted import gguf_as_folder, open_gguf
from specdec_cli.runtime.checkpoints.gguf.tokenizer import tokenizer_note
from specdec_cli.runtime.checkpoints.hub_files import fetched, only_gguf
from specdec_cli.runtime.checkpoints.locate import Place
from specdec_cli.runtime.checkpoints.reading import Report, one_line_errors
from specdec_cli.runtime.checkpoints.sizes import Sizes, Stored, num_parameters, sizes_of, stored_at
from specdec_cli.runtime.models import positions
from specdec_cli.runtime.models.rereading import text_frequencies
from specdec_cli.runtime.models.transformers_model import (
    TransformersModel,
    require_cache_keyword,
    unfit_for_cache,
)

# What a forward pass without data may raise: code that reads values, and layers that the meta device does not know.
NO_DATA = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError, ImportError, NameError)
GENERATES = r"(CausalLM|LMHeadModel|ConditionalGeneration)$"


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
class Inspection:
    """A checkpoint, without its weights.

    Attributes:
        place: where it is, and what the user asked for.
        config: of the model, text part included.
        generation: what it says of generation.
        tokenizer: None where it cannot be read; `tokenizer_problem` then says why.
        architecture_problem: why this is no model that generates from left to right; None where it is one.
        skeleton: the model without data; None where there is none to build.
        num_rows: rows of the head, padding included.
        end_ids: ids that end a text; empty without a tokenizer.
        notes: what the user must know about it, a line each.
    """

    place: Place
    config: PreTrainedConfig
    generation: GenerationConfig
    tokenizer: PreTrainedTokenizerBase | None
    tokenizer_problem: str
    architecture_problem: str | None
    skeleton: PreTrainedModel | None
    num_rows: int
    end_ids: frozenset[int]
    notes: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        """ "target" or "draft"."""
        return self.place.role

    @property
    def text_config(self) -> PreTrainedConfig:
        """The part of the configuration that describes the language model."""
        text: PreTrainedConfig = self.config.get_text_config(decoder=True)
        return text

    @property
    def max_length(self) -> int | None:
        """Tokens that it has positions for; None without a limit."""
        return positions.max_length(self.text_config, self.role)

    @property
    def cache_implementation(self) -> str | None:
        """What its generation config asks `generate` to use, if anything."""
        return getattr(self.generation, "cache_implementation", None)

    @property
    def is_quantised(self) -> bool:
        """Whether it is stored in blocks of another library's, which stay as they are."""
        return self.quantiser is not None

    @property
    def quantiser(self) -> str | None:
        """The library whose blocks they are, by transformers' name for it; None where there are none."""
        found = getattr(self.config, "quantization_config", None)
        found = getattr(self.text_config, "quantization_config", None) if found is None else found
        if found is None:
            return None
        return str(found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None))

    @cached_property
    def sizes(self) -> Sizes:
        """Numbers of weights; not to be asked for where there is no causal model."""
        assert self.skeleton is not None
        return sizes_of(self.skeleton, self.config)

    @cached_property
    def stored(self) -> Stored:
        """Its weights' files, looked into when this is first asked for."""
        return stored_at(self.place, getattr(self.config, "transformers_weights", None))

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...] | None:
        """What a token leaves in each layer; None where only a run with weights can tell."""
        return self._cache[0]

    @property
    def cache_problem(self) -> str | None:
        """Why its state cannot be rolled back; None where it can, or where that is not known."""
        return self._cache[1]

    @cached_property
    def _cache(self) -> tuple[tuple[CacheLayer, ...] | None, str | None]:
        return (None, None) if self.skeleton is None else _inspect_cache(self.skeleton, self.role)


def inspect(place: Place, report: Report) -> Inspection:
    """Read everything but the weights.

    Args:
        place: from `locate`.
        report: told in a line what takes long.

    Raises:
        SpecdecError: its configuration cannot be read; one line with the remedy.
    """
    place = fetched(place, report)
    folder, options = _folder(place, report), place.hub_options
    try:
        with one_line_errors(place):
            config = AutoConfig.from_pretrained(folder, **options)
            generation = _generation_config(folder, options, config)
            _require_ids(generation)
    except SpecdecError as error:
        raise only_gguf(place, error) from error
    problem = why_not_causal(config, place)
    skeleton = None
    if problem is None:
        with one_line_errors(place):
            skeleton = _skeleton(config, place.settings.trust_remote_code)
            if not num_parameters(skeleton):
                raise ValueError("its config.json describes a model without a single weight")
    tokenizer, tokenizer_problem = None, ""
    try:
        tokenizer = load_tokenizer(folder, place)
    except SpecdecError as error:
        tokenizer_problem = str(error)
    head = None if skeleton is None else skeleton.get_output_embeddings()
    return Inspection(
        place=place,
        config=config,
        generation=generation,
        tokenizer=tokenizer,
        tokenizer_problem=tokenizer_problem,
        architecture_problem=problem,
        skeleton=skeleton,
        num_rows=int(
            getattr(config.get_text_config(decoder=True), "vocab_size", 0) if head is None else head.weight.shape[0]
        ),
        end_ids=frozenset() if tokenizer is None else end_ids(generation, tokenizer),
        notes=_notes(place),
    )


def _folder(place: Place, report: Report) -> str:
    """Where configuration and tokenizer are; of a GGUF file they are taken out once."""
    if place.gguf is None:
        return place.path
    return str(gguf_as_folder(place.gguf, place.option, report, weights=False))


def _notes(place: Place) -> tuple[str, ...]:
    """What a GGUF file's header has to be told of."""
    note = None if place.gguf is None else tokenizer_note(open_gguf(place.gguf, place.option))
    return () if note is None else (f"{place.role} {note}",)


def _generation_config(folder: str, options: dict[str, Any], config: PreTrainedConfig) -> GenerationConfig:
    """As from_pretrained of a model finds it: the file, or else what the model's configuration says."""
    try:
        return GenerationConfig.from_pretrained(folder, **options)
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
        made: PreTrainedModel = auto_class(config).from_config(
            config, dtype=torch.bfloat16, trust_remote_code=trust_remote_code
        )
    return made.eval()


def why_not_causal(config: PreTrainedConfig, place: Place) -> str | None:
    """Why this does not generate text from left to right: an encoder-decoder, an encoder, no language model at all."""
    if config.is_encoder_decoder:
        return f"{place.name} is an encoder-decoder ({config.model_type}): choose a decoder-only model"
    if config.model_type in BIDIRECTIONAL:
        return f"{place.name} reads its prompt in both directions ({config.model_type}): choose another model"
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    # Encoders stand in the mapping too (BertLMHeadModel), so what the checkpoint was made as counts as well.
    declared = config.architectures or []
    made_to_generate = not declared or any(re.search(GENERATES, name) for name in declared)
    if not remote and (auto_class(config) is None or not made_to_generate):
        return f"{place.name} is not a causal language model ({config.model_type}): choose one that generates text"
    return None


def load_tokenizer(folder: str, place: Place) -> PreTrainedTokenizerBase:
    """A checkpoint's tokenizer, or one line that says why not."""
    try:
        with one_line_errors(place):
            # Of a GGUF file it is complete as it is saved; some model types' classes would make splits of their own.
            auto: Any = AutoTokenizer if place.gguf is None else PreTrainedTokenizerFast
            tokenizer: PreTrainedTokenizerBase = auto.from_pretrained(folder, **place.hub_options)
    except SpecdecError as error:
        if os.path.isdir(folder) and "cannot be loaded" in str(error):
            raise SpecdecError(
                f"{place.name} has no tokenizer that can be read: copy the original model's tokenizer files into it"
            ) from error
        raise
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_ids):
        raise SpecdecError(
            f"{place.name} has no tokenizer that can be read: copy the original model's tokenizer files into it"
        )
    return tokenizer


def end_ids(generation_config: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that end a text: those that the generation config declares, and the tokenizer's own."""
    ids: set[int] = set()
    declared = getattr(generation_config, "eos_token_id", None)
    if declared is not None:
        ids.update(declared if isinstance(declared, list) else [declared])
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return frozenset(ids)


@torch.inference_mode()
def _inspect_cache(skeleton: PreTrainedModel, role: str) -> tuple[tuple[CacheLayer, ...] | None, str | None]:
    """What a token leaves in each layer, or why that cannot be rolled back; neither where only weights can tell."""
    cache = DynamicCache(config=skeleton.config)
    try:
        require_cache_keyword(skeleton, role)
        # Growing frequencies are chosen by the positions' values, which there are none of here.
        frequencies = text_frequencies(skeleton, role)
        still = nullcontext() if frequencies is None else frequencies.held(frequencies.like(1))
        with still:
            skeleton(input_ids=torch.zeros(1, 1, dtype=torch.long, device="meta"), cache=cache, use_cache=True)
        if all(layer.is_croppable for layer in cache.layers):
            return tuple(_cache_layer(layer) for layer in cache.layers), None
        # In the words of the rule that would refuse it.
        TransformersModel(skeleton, skeleton.config.get_text_config(decoder=True).vocab_size, None, role)
    except IncompatiblePairError as error:
        return None, str(error)
    except NO_DATA as error:
        if isinstance(error, (AttributeError, TypeError)) and type(cache).__name__ in str(error):
            return None, str(unfit_for_cache(skeleton, role, error))
    return None, None


def _cache_layer(layer: Any) -> CacheLayer:
    kept = [getattr(layer, name, None) for name in ("keys", "values")]
    numbers = sum(tensor.numel() for tensor in kept if tensor is not None)
    return CacheLayer(numbers, getattr(layer, "sliding_window", None))


def effective_context(inspections: Sequence[Inspection]) -> int:
    """Tokens that all of them have positions for."""
    return min((i.max_length for i in inspections if i.max_length), default=positions.UNLIMITED)
