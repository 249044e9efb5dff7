"""Where else this pair would be taken or refused: facts about other engines, with the versions they were read from.

They are no checks, since they say nothing about specdec: an engine that compares sizes refuses good pairs whose
embeddings are padded differently, and takes bad ones whose sizes happen to agree.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from specdec_cli.runtime.checkpoints.inspection import Inspection

NOVEMBER_2026 = "releases of November 2026"
TRANSFORMERS = "transformers 5.24"
# llama.cpp: how far vocabulary sizes may differ, and the first id whose token text must be equal.
SIZE_DIFFERENCE, FIRST_COMPARED = 128, 5


def elsewhere(target: Inspection, draft: Inspection) -> list[dict[str, Any]]:
    """One record an engine: `engine`, `accepts` (None where it cannot be told), `detail`, `read_from`."""
    if target.architecture_problem or draft.architecture_problem:
        return []
    sizes = [int(getattr(i.text_config, "vocab_size", i.num_rows)) for i in (target, draft)]
    equal = sizes[0] == sizes[1]
    shown = f"config vocabulary sizes {sizes[0]:,} and {sizes[1]:,}"
    llama_cpp, why = _llama_cpp(target.tokenizer, draft.tokenizer, sizes)
    return [
        {"engine": "vLLM", "accepts": equal, "detail": f"{shown}: must be equal", "read_from": NOVEMBER_2026},
        {"engine": "llama.cpp", "accepts": llama_cpp, "detail": why, "read_from": NOVEMBER_2026},
        {
            "engine": "transformers", "accepts": equal, "read_from": TRANSFORMERS,
            "detail": f"{shown}: must be equal, or both tokenizers given to generate()",
        },
    ]  # fmt: skip


def _llama_cpp(
    target: PreTrainedTokenizerBase | None, draft: PreTrainedTokenizerBase | None, sizes: list[int]
) -> tuple[bool | None, str]:
    if target is None or draft is None:
        return None, "could not be told without both tokenizers"
    apart = abs(sizes[0] - sizes[1])
    if apart > SIZE_DIFFERENCE:
        return False, f"vocabulary sizes differ by {apart:,}: at most {SIZE_DIFFERENCE}"
    for name in ("bos", "eos"):
        ours, theirs = (getattr(t, f"{name}_token_id", None) for t in (target, draft))
        if ours != theirs:
            return False, f"{name} is {ours} and {theirs}: must be equal"
    maps = [{i: token for token, i in t.get_vocab().items()} for t in (target, draft)]
    both = maps[0].keys() & maps[1].keys()
    other = next((i for i in sorted(both) if i >= FIRST_COMPARED and maps[0][i] != maps[1][i]), None)
    if other is not None:
        return False, f"id {other} is {maps[0][other]!r} and {maps[1][other]!r}: must be equal from id {FIRST_COMPARED}"
    return True, f"sizes within {SIZE_DIFFERENCE}, equal bos and eos, equal tokens from id {FIRST_COMPARED}"
