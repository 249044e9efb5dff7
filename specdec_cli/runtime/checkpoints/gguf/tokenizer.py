"""A GGUF file's tokenizer as its model's own: splits by name, tokens that stay whole, and the ids that end a text.

The vocabulary, the merges and the tokenizers of sentencepiece are read by transformers. Of byte-level ones it knows
the splits of some names only, and spells tokens with signs beyond the byte alphabet (DeepSeek's) out in bytes, so that
a chat template's markers would fall to pieces.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.gguf import words
from specdec_cli.runtime.checkpoints.gguf.header import GgufFile
from specdec_cli.runtime.checkpoints.gguf.pre_tokenizers import BOS_FIRST, COMPOSED, SPLITS, WHOLE_PIECES, pre_tokenizer

PRE, MODEL, TOKENS = "tokenizer.ggml.pre", "tokenizer.ggml.model", "tokenizer.ggml.tokens"
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
CONTROL, USER_DEFINED = 3, 4  # of a token's type: never made of text, and always found whole in it
# Ids that end a text by a key of their own, and tokens that do so by their names where no key tells of them.
END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
END_NAMES = words(
    "<|eot_id|> <|eom_id|> <|im_end|> <|end|> <|return|> <|call|> <end_of_turn> <turn|> <|endoftext|>",
    "<|end_of_text|> <end_of_utterance> <EOT> _<EOT> [EOT] [e~[ <｜end▁of▁sentence｜>",
)
# Of a vocabulary with channels: the end of a message, after which the answer goes on.
ENDS_A_MESSAGE, ENDS_AN_ANSWER = "<|end|>", "<|return|>"
SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unk": 0}


def tokenizer_note(file: GgufFile) -> str | None:
    """What the user must know about how text is split; None where there is nothing."""
    if file.metadata.get(MODEL) != BYTE_LEVEL:
        return None
    name = file.metadata.get(PRE)
    if not name:
        return f"{file.name} does not say how its tokenizer splits text; it is split as llama.cpp does then"
    if name not in SPLITS:
        return f"{file.name} splits text by '{name}', which is not known here: as GPT-2 does; ids may be other ones"
    return None


def tokenizer_of(file: GgufFile) -> PreTrainedTokenizerBase:
    """The tokenizer, with its special tokens and its chat template.

    Raises:
        SpecdecError: metadata are missing, or name tokens that are not there.
        ValueError: transformers knows no tokenizer of this kind.
    """
    _require_tokens(file)
    architecture, read, options = get_gguf_tokenizer(str(file.paths[0]))
    if read.get("tokenizer_type") == BYTE_LEVEL:
        backend = _byte_level(read)
        if file.metadata.get(PRE) in BOS_FIRST:
            options.setdefault("add_bos_token", True)
    else:
        backend, _ = convert_gguf_tokenizer(architecture, read)
        if read.get("tokenizer_type") == SENTENCEPIECE:
            _sentencepiece(backend, read, options)
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **options)


def _require_tokens(file: GgufFile) -> None:
    for key in (MODEL, TOKENS):
        if key not in file.metadata:
            raise SpecdecError(f"{file.name} lacks the metadata {key}: use the model's safetensors")
    count = file.metadata[TOKENS]
    for key, value in file.metadata.items():
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and value >= count:
            raise SpecdecError(f"{file.name} has {key} = {value}, and {count} tokens: use the model's safetensors")


def _byte_level(read: dict[str, Any]) -> Tokenizer:
    tokens, name = read["tokens"], read.get("pre_tokenizer_type") or "default"
    types = read.get("token_type") or [0] * len(tokens)
    added = [
        AddedToken(token, normalized=False, special=kind == CONTROL)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (CONTROL, USER_DEFINED)
    ]
    merges = [tuple(merge.split(" ")) for merge in read.get("merges", ())]
    vocab = {token: index for index, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=name in WHOLE_PIECES))
    made.pre_tokenizer = pre_tokenizer(name)
    made.decoder = decoders.ByteLevel()
    if name in COMPOSED:
        made.normalizer = normalizers.NFC()
    made.add_tokens(added)
    return made


def _sentencepiece(backend: Tokenizer, read: dict[str, Any], options: dict[str, Any]) -> None:
    """What older files leave out, and the space that may not be put in front."""
    for name, index in SENTENCEPIECE_IDS.items():
        if options.get(f"{name}_token") is None:
            options[f"{name}_token"] = read["tokens"][index]
    if read.get("add_prefix_space") is False and isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace):
        backend.pre_tokenizer.prepend_scheme = "never"
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def end_ids_of(file: GgufFile, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that end a text: the tokenizer's, those that keys name, and those of well-known names.

    A name counts where the file marks the token as one that is not made of text.
    """
    ids = {file.metadata[key] for key in END_KEYS if key in file.metadata}
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    named = {t.content: i for i, t in tokenizer.added_tokens_decoder.items() if t.content in END_NAMES}
    if ENDS_AN_ANSWER in named:
        named.pop(ENDS_A_MESSAGE, None)
    return sorted(ids | set(named.values()))
