"""From the seed of a run to the random numbers of each of its texts, which no two texts share.

A run carries state from one answer to the next: the memory of `suffix`, the rule for K, the conversation itself. Each
round stays exact because its coins are independent of everything that was known before it. Coins that an earlier answer
has shown are not: a draft copied from that answer is a draft that knows how it will be judged. So every answer has a
seed of its own, and of this seed two streams, one that proposes and one that judges.

Inside a stream no bit is used twice either, though float32 coins and float64 uniforms take turns: on a CPU torch takes
the next word of 32 bits for a float32, the next two for a float64; on CUDA each call moves the generator's offset past
all that it may have used.
"""

from __future__ import annotations

import hashlib

# How seeds of answers are derived, for records: texts that were made by another rule are not to be mixed with these.
DERIVATION = "sha256(seed/prompt/turn)"


def answer_seed(seed: int, prompt: int = 1, turn: int = 1) -> int:
    """The seed of one answer: the run's own for the first answer of the first prompt, else one drawn by a hash.

    Args:
        seed: of the run, below 2^63.
        prompt, turn: which of the run's prompts, and which of its turns, from 1.

    Returns:
        below 2^63. torch's generator of a CPU reads the lower 32 bits, so that two given answers have one stream in
        common with a probability of 2^-32.
    """
    if prompt < 1 or turn < 1:
        raise ValueError(f"prompts and turns count from 1: {prompt, turn}")
    return seed if prompt == turn == 1 else _hashed(seed, prompt, turn)


def trial_seed(purpose: str, number: int = 1) -> int:
    """The seed of a text that is nobody's answer: a warm-up, a sample of a check. As `answer_seed`, whatever the run's.

    Args:
        purpose: what the text is for, in a word.
        number: which text for that purpose.
    """
    return _hashed(purpose, number)


def draft_seed(seed: int) -> int:
    """Of an answer's seed, which is that of the stream that judges, the seed of the stream that proposes."""
    return seed ^ 0x5EED_D4AF


def _hashed(*parts: int | str) -> int:
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
