"""How other tools are told of a trained head, by its kind.

Syntax: the tools' documentation and sources as of November 2026. A tool that has no form for a kind is said to have
none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of each kind, what vLLM's --speculative-config says beside the head's place and K.
VLLM: Mapping[str, Mapping[str, Any]] = {
    "eagle": {"method": "eagle"},
    "eagle3": {"method": "eagle3"},
    "medusa": {"method": "medusa"},
    "mtp": {"method": "mtp"},
    "peagle": {"method": "eagle3", "parallel_drafting": True},
    "dflash": {"method": "dflash"},
    "dspark": {"method": "dspark"},
}
# Of each kind, SGLang's --speculative-algorithm.
SGLANG: Mapping[str, str] = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "EAGLE",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
# The target's own layers: nothing but the target has to be named.
OWN = "mtp"


def vllm_config(kind: str, head: str, k: int) -> dict[str, Any]:
    """The value of --speculative-config.

    Args:
        kind: one of `VLLM`.
        head: folder or hub id.
        k: tokens drafted a round.
    """
    place = {} if kind == OWN else {"model": head}
    return {**VLLM[kind], **place, "num_speculative_tokens": k}


def sglang_words(kind: str, head: str, k: int) -> list[str]:
    """The options behind --model-path, as words.

    Args:
        kind: one of `SGLANG`.
        head, k: as for `vllm_config`. A block of SGLang's has one token more than is drafted: the last committed one.
    """
    words = ["--speculative-algorithm", SGLANG[kind]]
    if kind != OWN:
        words += ["--speculative-draft-model-path", head]
    if kind == "dspark":
        return [*words, "--speculative-dspark-block-size", str(k)]
    if kind != "dflash":
        words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(k + 1)]
