"""Which tokens a cut head keeps (see `layers.cut_head`): frequent ones of the built-in prompts, or those of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from specdec_cli.errors import UsageError
from specdec_cli.prompts import builtin_names, builtin_prompts

OPTION = "--draft-vocab"


def kept_tokens(tokenizer: PreTrainedTokenizerBase, vocab: str, end_ids: Collection[int], num_rows: int) -> list[int]:
    """Ids that a head is cut to, ascending.

    For a number: those of the built-in prompts by frequency, then by id, since byte-pair encodings and their kin number
    tokens in the order in which training found them, the frequent ones first. For a file: all that its text and the
    built-in prompts hold. Special and added tokens come on top.

    Raises:
        UsageError: the file cannot be read.
    """
    texts = [text for name in builtin_names() for prompt in builtin_prompts(name) for text in prompt.turns]
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    counts = Counter(i for ids in encoded for i in ids if i < num_rows)
    if vocab.isdecimal():
        ranking = dict.fromkeys([*(i for i, _ in counts.most_common()), *range(num_rows)])
        wanted = set(list(ranking)[: int(vocab)])
    else:
        wanted = set(counts) | set(tokenizer(read_frequent(vocab), add_special_tokens=False)["input_ids"])
    wanted |= {*end_ids, *tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return sorted(i for i in wanted if i < num_rows)


def read_frequent(file: str) -> str:
    """The text of a file of frequent text.

    Raises:
        UsageError: it cannot be read, or is not UTF-8.
    """
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{OPTION} {file} cannot be read ({error.strerror}): give a number or a file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{OPTION} {file} is not UTF-8 (byte {error.start:,}): save it as UTF-8") from error
