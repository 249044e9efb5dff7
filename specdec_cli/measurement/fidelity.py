"""How far a quantised target is from the one it was made of: their distributions on the same texts, compared.

Both models read the same texts, the answers of the rounded one; after every token of an answer their distributions at
temperature 1 are compared. An overlap of .97 means that of a hundred tokens sampled from one, three must be others to
have come from the other; at temperature 0, `greedy_agreement` counts how often both choose the same token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_cli.decoding.loop import Generation
from specdec_cli.decoding.model import CachedModel
from specdec_cli.decoding.stopping import Stopping
from specdec_cli.drafters.plain import NoDrafter
from specdec_cli.settings import SamplingSettings

Text = tuple[Sequence[int], Sequence[int]]
GREEDY = SamplingSettings(temperature=0.0)


@dataclass(frozen=True)
class Fidelity:
    """What a comparison came to.

    Attributes:
        overlap: mean of sum min(p, q) over the positions, at temperature 1.
        greedy_agreement: share of positions at which both have the same most likely token.
        positions: tokens of answers that were compared.
    """

    overlap: float
    greedy_agreement: float
    positions: int


def greedy_answers(model: CachedModel, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Text]:
    """(prompt, answer) of each prompt, for `compare`; answers are shorter where the context ends."""
    texts: list[Text] = []
    for prompt in prompts:
        steps = Generation(
            model, NoDrafter(model.device), prompt, num_draft_tokens=1, sampling=GREEDY, stopping=Stopping(new_tokens)
        )
        texts.append((prompt, [token_id for step in steps for token_id in step.token_ids]))
    return texts


def compare(model: CachedModel, reference: CachedModel, texts: Sequence[Text]) -> Fidelity:
    """Compare two models that speak the same ids; their caches are emptied.

    Args:
        texts: (prompt ids, answer ids), prompts of at least one id and answers of at least one.

    Raises:
        ValueError: there is nothing to compare.
    """
    overlaps, same = [], []
    for prompt, answer in texts:
        if not answer:
            continue
        # One text at a time, and a part of it: two distributions of a large vocabulary are megabytes a token.
        for ours, theirs in zip(_logits(model, prompt, answer), _logits(reference, prompt, answer), strict=True):
            theirs = theirs.to(ours.device)
            overlaps.append(torch.minimum(ours.softmax(-1), theirs.softmax(-1)).sum(-1))
            same.append(ours.argmax(-1) == theirs.argmax(-1))
    if not overlaps:
        raise ValueError("there are no answers to compare")
    overlap = torch.cat(overlaps).double()
    return Fidelity(float(overlap.mean()), float(torch.cat(same).double().mean()), len(overlap))


def _logits(model: CachedModel, prompt: Sequence[int], answer: Sequence[int], width: int = 16) -> Iterator[Tensor]:
    """[n, vocab_size] logits of every token of the answer, a few at a time."""
    with torch.inference_mode():
        model.reset()
        if len(prompt) > 1:
            model.forward(torch.tensor(prompt[:-1], device=model.device), num_logits=1)
        model.roll_back(0)
    read = torch.tensor([prompt[-1], *answer[:-1]], device=model.device)
    for block in torch.split(read, width):
        with torch.inference_mode():
            logits = model.forward(block, num_logits=len(block))
            model.roll_back(0)
        yield logits
