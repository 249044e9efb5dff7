"""How a vocabulary's merges were learned: the splits of a text that `tokenizer.ggml.pre` names.

A byte-level vocabulary is made on pieces of text, and merges never reach over their borders. A GGUF file holds the
merges and only a name for the splits; the table says what each name means. One split after the other cuts what the
last one left, and what a pattern finds and what lies between are pieces alike.

Names and patterns: llama.cpp, src/llama-vocab.cpp and convert_hf_to_gguf_update.py; where the tokenizer.json of a model
is quoted there, its own pattern stands here.
"""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers

from specdec_cli.runtime.checkpoints.gguf import words

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LINE_BY_LINE = r"\s*[\r\n]|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA3 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{SIGNS}|{SPACES}"
QWEN2 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}|{SIGNS}|{SPACES}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
)
# Words of capitals before small letters, as in CamelCase.
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
FRONT = r"[^\r\n\p{L}\p{N}]?"
SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN = rf"{FRONT}{UPPER}*{LOWER}+|{FRONT}{UPPER}+{LOWER}*|\p{{N}}|{SIGNS_AND_SLASHES}|{SPACES}"
CASED = rf"{FRONT}{UPPER}*{LOWER}+{CONTRACTIONS}?|{FRONT}{UPPER}+{LOWER}*{CONTRACTIONS}?"
GPT4O = rf"{CASED}|\p{{N}}{{1,3}}|{SIGNS_AND_SLASHES}|{SPACES}"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
DEEPSEEK_3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    rf"{SPACES}"
)
# Written out, since it is an older Unicode than the regex engine's. Characters that an editor may compose are escaped.
LETTERS_WITH_CASE = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    r"\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ"
    r"-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
DEEPSEEK_LLM = (
    *(r"[\r\n]", LETTERS_WITH_CASE, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+"),
    r"\p{N}+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", DIGIT)
JAIS2_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))

_NAMES: dict[tuple[str, ...], str] = {
    (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"): "default",
    (GPT2,): (
        "gpt-2 phi-2 gigachat a.x-4.0 mellum modern-bert jina-es jina-de jina-v2-es jina-v2-de jina-v1-en "
        "jina-v2-code roberta-bpe exaone4 mpt olmo jais trillion granite-docling"
    ),
    (DIGIT, GPT2): "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    (LLAMA3,): (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe glm4 chatglm-bpe"
    ),
    (QWEN2,): "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    (QWEN35,): "qwen35",
    (TEKKEN,): "tekken",
    (GPT4O,): "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m",
    (r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O): "tiny_aya cohere2moe",
    DEEPSEEK_LLM: "deepseek-llm",
    DEEPSEEK_CODER: "deepseek-coder",
    (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_3): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"): "falcon",
    (BLOOM,): "bloom poro-chat gpt3-finnish",
    (BLOOM, DIGIT): "viking",
    (rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{SIGNS}|\s*[\r\n]+|{JAIS2_SPACES}|\s{{1}}",): "jais-2",
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|" + LINE_BY_LINE,
    ): "bailingmoe bailingmoe2 llada-moe",
    (rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}",): "seed-coder",
    (
        rf"{CONTRACTIONS}|{FRONT}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|"
        + LINE_BY_LINE,
    ): "exaone-moe",
    (r"\p{N}{1,3}", rf"{CONTRACTIONS}|{WORD}|\p{{N}}+|{SIGNS}|{SPACES}"): "minicpm5",
}
SPLITS = {name: patterns for patterns, names in _NAMES.items() for name in names.split()}
# A piece that is a token as it stands is taken as one, whatever the merges would make of it.
WHOLE_PIECES = words(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken minicpm5",
    "granite-embed-multi-97m",
)
# Texts begin with the bos token where the file does not say.
BOS_FIRST = words("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken")
# Letters and their marks are composed first (Unicode's NFC), as the tokenizer.json of these models says.
COMPOSED = words("qwen2 qwen35 deepseek-r1-qwen olmo mpt")


def pre_tokenizer(name: str | None) -> pre_tokenizers.PreTokenizer:
    """The splits of that name before a byte-level vocabulary; GPT-2's where it is not known."""
    splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in SPLITS.get(name or "", (GPT2,))]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
