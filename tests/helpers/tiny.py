"""Tiny random checkpoints, made in milliseconds, that go through the real loading code, and how tests load them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    GptOssConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MambaConfig,
    MistralConfig,
    ModernBertDecoderConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
)

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint
from specdec_cli.runtime.checkpoints.frequent_tokens import kept_tokens
from specdec_cli.runtime.checkpoints.load import load_checkpoint
from specdec_cli.runtime.layers.cut_head import cut_head
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.pairs.pair import Pair, load_pair
from specdec_cli.settings import ModelSettings

END = "<|end|>"
BYTES = 256
VOCAB_SIZE = BYTES + 1  # the bytes, and the end token
WINDOW = 12  # of the sliding-window families

BORDER = 32  # tokens, beyond which the rotary frequencies of these are others
HALF_DIM = 8  # frequencies of a head
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": BORDER,
    "factor": 4.0, "short_factor": [1.0] * HALF_DIM, "long_factor": [8.0] * HALF_DIM,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}

# Families whose cache can be rolled back, and those that must be refused.
ROLLABLE = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2", "gpt_neox")
RECURRENT = ("mamba", "qwen3_next")
# More of them with local masks, each of its own making.
LOCAL = ("gpt_neo", "phi3", "cohere2", "gpt_oss", "llama4", "modernbert_decoder")

ALPHABET = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))  # how a byte-level tokenizer writes the bytes
CHAT_TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"


def byte_tokenizer(
    extra: tuple[str, ...] = (), chat_template: str | None = None, special: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    """One token a byte (ids 0 to 255), the end token (256), then added tokens; see `tokenizer_of`."""
    return tokenizer_of({c: i for i, c in enumerate(ALPHABET)}, extra, chat_template, special)


def tokenizer_of(
    token_to_id: dict[str, int],
    extra: tuple[str, ...] = (),
    chat_template: str | None = None,
    special: tuple[str, ...] = (),
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: the ids given, the end token where it has none, `special`, then `extra`.

    `special` are added as special tokens that none of the tokenizer's lists names, as Llama 3 has them.
    """
    tokenizer = Tokenizer(models.BPE(vocab=token_to_id, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False) for t in extra])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END)
    fast.chat_template = chat_template
    return fast


def config(family: str, vocab_size: int = VOCAB_SIZE, **overrides: Any) -> PreTrainedConfig:
    """A configuration of two small layers. Weights are drawn wide, so that logits differ by whole units."""
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "bos_token_id": BYTES,
        "eos_token_id": BYTES,
        "pad_token_id": None,
        "tie_word_embeddings": False,  # a tied random model repeats its last token
    }
    sliding: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
    old = {k: v for k, v in common.items() if k not in ("num_key_value_heads", "head_dim", "intermediate_size")}
    makers: dict[str, Any] = {
        "llama": lambda o: LlamaConfig(**common | o),
        "qwen2": lambda o: Qwen2Config(**{k: v for k, v in common.items() if k != "head_dim"} | o),
        "qwen3": lambda o: Qwen3Config(**common | o),
        "mistral": lambda o: MistralConfig(**common | {"sliding_window": WINDOW} | o),
        "gemma2": lambda o: Gemma2Config(**common | sliding | {"query_pre_attn_scalar": 16} | o),
        "gemma3": lambda o: Gemma3TextConfig(**common | sliding | {"query_pre_attn_scalar": 16} | o),
        "gpt2": lambda o: GPT2Config(**old | o),
        "gpt_neox": lambda o: GPTNeoXConfig(**old | {"intermediate_size": 64} | o),
        "mamba": lambda o: MambaConfig(vocab_size=vocab_size, hidden_size=32, num_hidden_layers=2, state_size=8, **o),
        "qwen3_next": lambda o: Qwen3NextConfig(
            **common
            | {"layer_types": ["linear_attention", "full_attention"], "num_experts": 2, "num_experts_per_tok": 1}
            | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
            | {"linear_num_value_heads": 2, "linear_num_key_heads": 2}
            | {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
            | o
        ),
        "gpt_neo": lambda o: GPTNeoConfig(
            **{k: v for k, v in old.items() if k not in ("num_hidden_layers", "num_attention_heads")}
            | {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": WINDOW}
            | o
        ),
        "phi3": lambda o: Phi3Config(
            **{k: v for k, v in common.items() if k != "head_dim"} | {"sliding_window": WINDOW} | o
        ),
        "cohere2": lambda o: Cohere2Config(**common | sliding | o),
        "gpt_oss": lambda o: GptOssConfig(**common | sliding | {"num_local_experts": 4, "num_experts_per_tok": 2} | o),
        "llama4": lambda o: Llama4TextConfig(
            **common
            | {"attention_chunk_size": WINDOW, "layer_types": ["chunked_attention", "full_attention"]}
            | {"no_rope_layers": [1, 0], "intermediate_size_mlp": 64, "num_local_experts": 2, "num_experts_per_tok": 1}
            | o
        ),
        "modernbert_decoder": lambda o: ModernBertDecoderConfig(
            **old
            | {"intermediate_size": 64, "local_attention": WINDOW, "layer_types": sliding["layer_types"]}
            | {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 1}
            | o
        ),
        "lfm2": lambda o: Lfm2Config(**common | {"full_attn_idxs": [1]} | o),
    }
    made: PreTrainedConfig = makers[family](deepcopy(overrides))  # some write into what they are given
    return made


def model(family: str = "llama", vocab_size: int = VOCAB_SIZE, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random float32 model in evaluation mode; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: PreTrainedModel = AutoModelForCausalLM.from_config(config(family, vocab_size, **overrides))
    return made.eval()


def successions(following: Mapping[int, int], otherwise: int, vocab_size: int = VOCAB_SIZE) -> PreTrainedModel:
    """A model whose next token the last one decides alone: what `following` says, or `otherwise`."""
    made = model(vocab_size=vocab_size)
    directions = torch.eye(made.config.hidden_size)
    with torch.no_grad():
        for name, weights in made.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):  # no layer adds anything
                weights.zero_()
        embedding, head = made.get_input_embeddings().weight, made.get_output_embeddings().weight
        embedding.copy_(directions[0].repeat(vocab_size, 1))
        head.zero_()
        head[otherwise] += directions[0]
        for direction, (last, following_id) in zip(directions[1:], following.items(), strict=False):
            embedding[last] = direction
            head[following_id] += direction
    return made


def seeing_model(kind: str) -> Any:
    """A random model that sees pictures too."""
    text = config("llama").to_dict()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "llava":
            sight = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
            sight |= {"image_size": 28, "patch_size": 14, "projection_dim": 16, "model_type": "clip_vision_model"}
            llava = LlavaConfig(text_config=text, vision_config=sight, image_token_index=VOCAB_SIZE - 2)
            return LlavaForConditionalGeneration(llava).eval()
        drop = ("head_dim", "model_type", "architectures", "pad_token_id", "rope_parameters")
        text = {k: v for k, v in text.items() if k not in drop}
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
        sight = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
        qwen = Qwen2_5_VLConfig(text_config=text, vision_config=sight | {"fullatt_block_indexes": [0]})
        return Qwen2_5_VLForConditionalGeneration(qwen).eval()


def save(
    folder: Path,
    made: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    end_ids: int | list[int] = BYTES,
) -> Path:
    """A checkpoint folder as the hub has them."""
    made = model() if made is None else made
    made.generation_config = GenerationConfig(eos_token_id=end_ids, pad_token_id=BYTES)
    made.save_pretrained(folder)
    (byte_tokenizer() if tokenizer is None else tokenizer).save_pretrained(folder)
    return folder


def settings(source: str | Path, **more: Any) -> ModelSettings:
    """How tests load a model: in float32 on the CPU, unless `more` says otherwise."""
    return ModelSettings(str(source), **{"device": "cpu", "dtype": "float32", **more})


def load(source: str | Path, role: str = "target", **more: Any) -> Checkpoint:
    """Load one checkpoint silently."""
    return load_checkpoint(settings(source, **more), role, lambda _: None)


def pair(target: str | Path, draft: str | Path | None, **more: Any) -> Pair:
    """Load two checkpoints silently and compare them."""
    return load_pair(settings(target, **more), None if draft is None else settings(draft, **more), lambda _: None)


def one_line(error: SpecdecError, exit_code: int) -> str:
    """The message of an error, which must be one line and have that exit code."""
    message = str(error)
    assert error.exit_code == exit_code, message
    assert "\n" not in message
    return message


class Checked(TransformersModel):
    """Compares the logits of every pass with a full recompute of all that the cache should hold (symptom 5)."""

    def reset(self) -> None:
        super().reset()
        self.history: list[int] = []
        self.worst = 0.0

    def forward(self, token_ids: torch.Tensor, num_logits: int) -> torch.Tensor:
        logits = super().forward(token_ids, num_logits)
        self.history += token_ids.tolist()
        full = self.model(input_ids=torch.tensor([self.history]), use_cache=False).logits[0, -num_logits:]
        self.worst = max(self.worst, (full.float() - logits).abs().max().item())
        return logits

    def roll_back(self, num_tokens: int) -> None:
        super().roll_back(num_tokens)
        del self.history[len(self.history) - num_tokens :]
        assert len(self.history) == self.length


def cut(model: Any, tokenizer: PreTrainedTokenizerBase, vocab: str, end_ids: set[int] | frozenset[int]) -> list[int]:
    """Cut a model's head as --draft-vocab would; the tokens that are left."""
    kept = kept_tokens(tokenizer, vocab, end_ids, model.get_output_embeddings().out_features)
    cut_head(model, kept)
    return kept
