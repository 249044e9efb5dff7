"""The loop: propose, verify, accept, roll back. Everything else in specdec loads, measures or shows this.

Invariant between rounds: every committed token but the last is in the target's cache, and nothing else is. A round
feeds [last, draft...] to the target in one pass, judges all drafted tokens at once, commits 1 to K + 1 tokens and cuts
the cache back to the invariant. With a drafter that proposes nothing, this is plain decoding. A draft may be a tree
(see `specdec_cli.decoding.tree`): then the round keeps one path of it, K tokens at most.

What comes back from the device each round is one small tensor (see `_judge`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from specdec_cli.decoding.acceptance import verify
from specdec_cli.decoding.draft_length import DraftLength, Fixed, Outcome
from specdec_cli.decoding.model import CachedModel, repeater_of
from specdec_cli.decoding.sampling import logits_to_probs, prefix_matrix
from specdec_cli.decoding.seeds import draft_seed
from specdec_cli.decoding.stopping import FinishReason, Stopping
from specdec_cli.decoding.tree import Tree, ancestors, verify_tree
from specdec_cli.drafters.base import Context, Draft, Drafter, States, taps_of
from specdec_cli.errors import SpecdecError
from specdec_cli.settings import SamplingSettings

Provenance = Literal["accepted", "recovered", "bonus", "plain"]
_ACCEPTED: tuple[Provenance, ...] = ("accepted",)


@dataclass(frozen=True)
class Step:
    """One round, as it was.

    Attributes:
        token_ids: what the round added to the text, after end tokens, stop strings and limits.
        provenance: for each of these, whether it was drafted and accepted, or the target's own: recovered after a
            rejection, bonus after a full accept, plain where nothing had been drafted.
        draft_token_ids: what was proposed. Of a tree, the branch that was judged: the accepted path, continued by the
            first child on and on where it ended in a rejection; so alpha and all else counts positions, not tokens.
        num_accepted: how many of those the rule accepted, before any trimming; what got into the text says
            `provenance`.
        target_probs, draft_probs: of each drafted token.
        overlap: of each drafted position, sum min(target_probs, draft_probs) over the vocabulary; of a tree, the
            probability that one of the guesses for that position, behind the ones before it, is accepted.
        draft_s, verify_s, other_s: seconds proposing; in the target's pass (with the judgement where both are one
            launch); and in the rest of the round.
        finish_reason: set on the last round.
        withdrawn: tokens of earlier rounds that a stop string took back.
        num_draft_tokens: K of this round, as it was asked for.
        cut: the round was shortened by the end of the text or a limit, so its counts say nothing about acceptance.
        source: which of several sources drafted; empty where there is one, or none had a guess.
        tree: everything that was drafted, where that was a tree.
    """

    token_ids: tuple[int, ...]
    provenance: tuple[Provenance, ...]
    draft_token_ids: tuple[int, ...]
    num_accepted: int
    target_probs: tuple[float, ...]
    draft_probs: tuple[float, ...]
    overlap: tuple[float, ...]
    draft_s: float
    verify_s: float
    other_s: float
    finish_reason: FinishReason | None = None
    withdrawn: int = 0
    num_draft_tokens: int = 0
    cut: bool = False
    source: str = ""
    tree: Tree | None = None


class Generation:
    """One prompt's generation: prefilled when made, then iterated a round at a time.

    Args:
        target: its cache is emptied first.
        drafter: likewise reset.
        prompt_ids: at least one id, and fewer than the target has positions for.
        num_draft_tokens: K, drafted a round at most; or a rule that says it for each round, which goes on learning
            from one generation to the next.
        sampling: how the target's logits are warped; the drafter must have been made with the same.
        stopping: fresh for this generation.
        seed: of all random draws. Where more than one text is made, each needs its own: see `seeds.answer_seed`.
        simulated_acceptance: see `acceptance.verify`; None for the rule.
        clock: seconds, from anywhere; must wait for the device before it answers.

    Attributes:
        token_ids: emitted so far.
        prefill_s: seconds to read the prompt, target and drafter together.
        context_full: the generation ended (as "length") because the target has no more positions.
    """

    def __init__(
        self,
        target: CachedModel,
        drafter: Drafter,
        prompt_ids: Sequence[int],
        *,
        num_draft_tokens: int | DraftLength,
        sampling: SamplingSettings,
        stopping: Stopping,
        seed: int = 0,
        simulated_acceptance: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not prompt_ids:
            raise ValueError("the prompt has no tokens")
        if len(prompt_ids) >= target.max_length:
            raise ValueError(f"the prompt has {len(prompt_ids)} tokens, the target's context only {target.max_length}")
        self.token_ids: list[int] = []
        self.context_full = False
        self._target = target
        self._repeater = None if sampling.repetition_penalty != 1.0 else repeater_of(target)
        self._drafter = drafter
        taps = taps_of(drafter)
        self._states = States() if taps else None
        self._committed = list(prompt_ids)
        self._draft_length = Fixed(num_draft_tokens) if isinstance(num_draft_tokens, int) else num_draft_tokens
        self._draft_length.begin()
        self._sampling = sampling
        self._stopping = stopping
        self._simulated_acceptance = simulated_acceptance
        self._clock = clock
        # Two streams of random numbers: the draft may live on another device, and its guesses must not depend on the
        # coins that judge them.
        self._generator = torch.Generator(target.device).manual_seed(seed)
        self._draft_generator = torch.Generator(drafter.device).manual_seed(draft_seed(seed))

        started = clock()
        with torch.inference_mode():
            target.tap(taps)
            target.reset()
            if len(prompt_ids) > 1:
                target.forward(torch.tensor(prompt_ids[:-1], device=target.device), num_logits=1)
                if self._states is not None:
                    self._states.add(target.take_states())
            target.roll_back(0)
            drafter.reset(Context(self._committed, states=self._states))
        self.prefill_s = clock() - started

    def __iter__(self) -> Iterator[Step]:
        """Rounds until something ends the text."""
        reason = None
        while reason is None:
            with torch.inference_mode():
                step = self._round()
            reason = step.finish_reason
            yield step

    def _round(self) -> Step:
        target, clock = self._target, self._clock
        # Of K + 1 tokens no more than `remaining` can be used, nor more than the target has positions for, or reads in
        # one pass.
        positions = target.max_length - len(self._committed)
        room = min(self._stopping.remaining, positions + 1, target.block_limit) - 1
        wanted = self._draft_length.next()
        num_draft_tokens = min(wanted, room)

        started = clock()
        context = Context(self._committed, self._draft_length.limit, self._states)
        draft = self._drafter.propose(context, num_draft_tokens, self._draft_generator)
        proposed = clock()
        draft = draft.on(target.device)
        repeated = self._repeated(draft)
        if repeated is not None:
            verified = clock()
            packed, *states = repeated
        else:
            block = torch.cat([torch.tensor(self._committed[-1:], device=target.device), draft.token_ids])
            if draft.parents is None:
                logits = target.forward(block, num_logits=len(block))
            else:
                logits = target.forward_tree(block, draft.parents)
            verified = clock()
            prefix = self._prefix(draft)
            packed = _judge(logits, draft, self._sampling, prefix, self._generator, self._simulated_acceptance)
            states = self._taken(len(block))
        judged = _unpack(packed, draft, num_draft_tokens)
        drafted, num_accepted = judged.drafted, judged.num_accepted
        if judged.path is None:
            target.roll_back(len(drafted) - num_accepted)
            states = [rows[: num_accepted + 1].clone() for rows in states]  # a repeated pass overwrites its results
        else:
            kept = [0, *(place + 1 for place in judged.path)]
            target.keep_path(len(draft.token_ids) + 1, kept)
            states = [rows[kept] for rows in states]
        if self._states is not None:
            self._states.add(*states)
        self._drafter.observe(num_accepted, judged.predictions)

        emitted = [*drafted[:num_accepted], judged.next_token_id]
        last: Provenance = "plain" if not drafted else "bonus" if num_accepted == len(drafted) else "recovered"
        provenance = (*num_accepted * _ACCEPTED, last)
        self._committed += emitted
        num_kept, withdrawn, reason = self._stopping.admit(emitted)
        if withdrawn:
            del self.token_ids[-withdrawn:]
        self.token_ids += emitted[:num_kept]
        if reason is None and len(self._committed) > target.max_length:
            reason, self.context_full = "length", True
        draft_s, verify_s, other_s = proposed - started, verified - proposed, clock() - verified
        ended, limited = reason in ("eos", "stop"), num_draft_tokens < wanted
        shortened = limited and len(drafted) == num_draft_tokens
        self._draft_length.observe(
            Outcome(
                len(drafted), num_accepted, draft_s, verify_s, other_s,
                whole=not ended and not shortened, source=draft.source, learning=draft.wants_predictions,
            )
        )  # fmt: skip
        return Step(
            token_ids=tuple(emitted[:num_kept]),
            provenance=provenance[:num_kept],
            draft_token_ids=tuple(drafted),
            num_accepted=num_accepted,
            target_probs=judged.target_probs,
            draft_probs=judged.draft_probs,
            overlap=judged.overlap,
            draft_s=draft_s,
            verify_s=verify_s,
            other_s=other_s,
            finish_reason=reason,
            withdrawn=withdrawn,
            num_draft_tokens=wanted,
            cut=ended or limited,
            source=draft.source,
            tree=judged.tree,
        )

    def _taken(self, num_tokens: int) -> list[Tensor]:
        """The tapped states of the pass just made, over so many tokens, where a drafter reads them."""
        return [] if self._states is None else [self._target.take_states()[-num_tokens:]]

    def _repeated(self, draft: Draft) -> tuple[Tensor, ...] | None:
        """Pass and judgement as one launch, and states where they are read; None where that cannot be."""
        if self._repeater is None or draft.parents is not None:
            return None
        last = torch.tensor(self._committed[-1:])
        taps = taps_of(self._drafter)
        key = ("verify", self._sampling, self._simulated_acceptance, draft.wants_predictions, taps)

        def verify_all(last: Tensor, token_ids: Tensor, probs: Tensor | None = None) -> tuple[Tensor, ...]:
            block = torch.cat([last, token_ids])
            logits = self._target.forward(block, num_logits=len(block))
            given = replace(draft, token_ids=token_ids, probs=probs)
            packed = _judge(logits, given, self._sampling, None, self._generator, self._simulated_acceptance)
            return (packed, *self._taken(len(block)))

        inputs = (last, draft.token_ids) if draft.probs is None else (last, draft.token_ids, draft.probs)
        return self._repeater.repeat(key, verify_all, inputs, len(draft.token_ids) + 1, self._generator)

    def _prefix(self, draft: Draft) -> Tensor | None:
        if self._sampling.repetition_penalty == 1.0:
            return None
        seen = None if draft.parents is None else ancestors(draft.parents)
        return prefix_matrix(torch.tensor(self._committed, device=self._target.device), draft.token_ids, seen)


def _judge(
    logits: Tensor,
    draft: Draft,
    sampling: SamplingSettings,
    prefix: Tensor | None,
    generator: torch.Generator,
    simulated_acceptance: float | None = None,
) -> Tensor:
    """Warp and judge one block on the target's device; all that the host needs, in one float tensor.

    Ids survive float32 up to 2^24, far above any vocabulary.
    """
    target_probs = logits_to_probs(logits, sampling, prefix)
    draft_ids, parents = draft.token_ids, draft.parents
    parts: tuple[Tensor, ...]
    if parents is None:
        verdict = verify(target_probs, draft.probs, draft_ids, generator, simulated_acceptance)
        ends = torch.stack([verdict.num_accepted, verdict.next_token_id])
        parts = (ends, draft_ids, verdict.target_prob, verdict.draft_prob, verdict.overlap)
    else:
        one_hot = sampling.temperature == 0.0
        tree = verify_tree(target_probs, draft_ids, parents, generator, simulated_acceptance, one_hot)
        parts = (draft_ids, parents, *tree)
    if draft.wants_predictions:
        parts = (*parts, target_probs.argmax(-1))
    return torch.cat([part.float() for part in (logits.amax()[None], *parts)])


class _Judged(NamedTuple):
    """What became of one block, on the host; names as in `Step`."""

    drafted: list[int]
    num_accepted: int
    next_token_id: int
    target_probs: tuple[float, ...]
    draft_probs: tuple[float, ...]
    overlap: tuple[float, ...]
    predictions: list[int]  # as the draft wants them
    tree: Tree | None = None
    path: list[int] | None = None  # places of a tree's accepted tokens


def _unpack(packed: Tensor, draft: Draft, most: int) -> _Judged:
    """The round's one transfer.

    Args:
        packed: what `_judge` made.
        draft: of the block.
        most: tokens of a tree that may be accepted.

    Raises:
        SpecdecError: a logit of the target, or a probability of the draft, is not a number.
    """
    values: list[float] = packed.tolist()
    if not all(map(math.isfinite, values)):
        raise SpecdecError(
            "the models' logits are not numbers: in float16, which overflows in some models, use --dtype float32; else "
            "the weights are damaged: download them again"
        )
    num_drafted = len(draft.token_ids)
    rest = iter(values[1:])

    def ids(number: int) -> list[int]:
        return [int(value) for value in islice(rest, number)]

    def figures() -> tuple[float, ...]:
        return tuple(islice(rest, num_drafted))

    if draft.parents is None:
        num_accepted, next_token_id = ids(2)
        return _Judged(ids(num_drafted), num_accepted, next_token_id, figures(), figures(), figures(), ids(len(values)))
    tree = Tree(tuple(ids(num_drafted)), tuple(ids(num_drafted)))
    drawn, target_probs = ids(num_drafted + 1), figures()
    path = tree.walk(drawn, most)
    branch = tree.branch(path, most)
    return _Judged(
        drafted=[tree.token_ids[place] for place in branch],
        num_accepted=len(path),
        next_token_id=drawn[path[-1] + 1 if path else 0],
        target_probs=tuple(target_probs[place] for place in branch),
        draft_probs=(1.0,) * len(branch),
        overlap=tree.overlap(branch, target_probs),
        predictions=ids(len(values)),
        tree=tree,
        path=path,
    )
