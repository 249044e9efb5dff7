"""What most often followed the last tokens before, in this text and in all earlier ones of the run.

Prompt lookup copies as many tokens as it is asked for from the last match of a few. Here the match is as long as it can
be, all its occurrences vote, and the draft is as long as the match is good: after SuffixDecoding (Oliaro et al.,
arXiv 2411.04975), whose rule this follows, a draft's length is limited by a multiple of the match's, and by how often
what it copies followed. The paper drafts a tree; this is its most frequent chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from specdec_cli.drafters.base import Context, Draft, DrafterParts
from specdec_cli.drafters.suffix_automaton import SuffixAutomaton

DEPTH = 24
MOST_PER_MATCHED_TOKEN = 2
LEAST_PROBABILITY = 0.1
# Some 150 MB of automaton; a run that has read more begins to learn anew.
MOST_REMEMBERED = 2**18
BREAK = -1  # stands between two texts; no token


class SuffixDrafter:
    """Proposes the most frequent continuation of the text's longest suffix that occurred before.

    Args:
        memory: keep earlier texts of the run; otherwise each text is read alone.
        device: where drafts are made.
    """

    def __init__(self, memory: bool, device: torch.device) -> None:
        self.device = device
        self._memory = memory
        self._automaton = SuffixAutomaton(DEPTH)
        self._read = 0  # tokens of the text that the automaton has

    def reset(self, context: Context) -> None:
        """Read the prompt, behind the earlier texts if they are kept."""
        self._read = 0
        if self._memory and self._automaton.length + len(context.token_ids) < MOST_REMEMBERED:
            self._automaton.append(BREAK)
        else:
            self._automaton = SuffixAutomaton(DEPTH)
        self._learn(context.token_ids)

    def propose(self, context: Context, num_draft_tokens: int, generator: torch.Generator) -> Draft:
        """Go on as the text went on before; nothing where it is new."""
        self._learn(context.token_ids)
        tokens = self._automaton.continuation(MOST_PER_MATCHED_TOKEN, num_draft_tokens, LEAST_PROBABILITY)
        if BREAK in tokens:  # an earlier text ended there
            tokens = tokens[: tokens.index(BREAK)]
        return Draft(torch.tensor(tokens, dtype=torch.long, device=self.device))

    def observe(self, num_accepted: int, predictions: Sequence[int] = ()) -> None:
        """Nothing to forget: only what is committed was read."""

    def _learn(self, ids: Sequence[int]) -> None:
        for place in range(self._read, len(ids)):
            self._automaton.append(ids[place])
        self._read = len(ids)


def make(options: Mapping[str, int], parts: DrafterParts) -> SuffixDrafter:
    """`--draft suffix`."""
    return SuffixDrafter(bool(options["memory"]), parts.device)
