"""A transformers model with its cache: append a block, roll back what was rejected.

The one place that knows cache classes, their keyword and how they are cut. Facts about transformers 5.24 that it rests
on: `Cache.crop(-n)` removes n tokens; sliding-window layers trim themselves inside `crop`, so it is called every round,
also with 0, and only after `activate_past_recording`; whether a cache can be cut back is known after a first forward.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from specdec_cli.decoding.model import Tap
from specdec_cli.errors import IncompatiblePairError
from specdec_cli.runtime.caches.buffered import buffered_cache
from specdec_cli.runtime.caches.trees import tree_inputs
from specdec_cli.runtime.layers.cut_head import CutHead
from specdec_cli.runtime.models.hidden_states import HiddenStates
from specdec_cli.runtime.models.positions import UNLIMITED, max_length
from specdec_cli.runtime.models.tree_trial import why_no_trees

# What code that was written for another cache raises at its first token.
CODE_FAILS = (AttributeError, TypeError, AssertionError, LookupError, ValueError, NameError, ImportError)


class TransformersModel:
    """A causal language model as `specdec_cli.decoding.model.CachedModel`.

    Args:
        model: any causal language model of transformers, in evaluation mode.
        vocab_size: width of the logits that the loop sees.
        blocked_ids: ids below it that must never be emitted: padding rows, and tokens that the draft has alone.
        role: "target" or "draft", for messages.
    """

    def __init__(
        self, model: PreTrainedModel, vocab_size: int, blocked_ids: Tensor | None = None, role: str = "target"
    ) -> None:
        self._model: Any = model
        self.device: torch.device = model.device
        self.vocab_size = vocab_size
        self._num_rows = int(model.get_input_embeddings().weight.shape[0])
        config = model.config.get_text_config(decoder=True)
        self.max_length = max_length(config, role) or UNLIMITED
        self._states: HiddenStates | None = None
        self._blocked: Tensor | None = None
        if blocked_ids is not None and len(blocked_ids):
            self._blocked = blocked_ids.to(self.device)
        head = model.get_output_embeddings()
        self._cut_head = head if isinstance(head, CutHead) else None
        self.length = 0
        self._cache: Any = None
        if self.device.type == "cpu":
            # Grouped queries attend as they are; otherwise a pass over several tokens copies all cached keys and
            # values once for every query head of a group (read at each call; measured at 1,024 tokens: 3 to 4 times).
            os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")
        self._masks_again = self._cut_head is not None
        self._check_roll_back(role)
        self._masks_again = self._cut_head is not None and self._bends_logits(self._cut_head)

    @property
    def block_limit(self) -> int:
        """Tokens that the next block may hold and be read in one pass: any number."""
        return UNLIMITED

    @property
    def model(self) -> Any:
        """As transformers made it."""
        return self._model

    @property
    def cache(self) -> Any:
        """transformers' cache; another one after every `reset`."""
        return self._cache

    def reset(self) -> None:
        """Start with an empty cache."""
        self._start_cache()
        if self._cut_head is not None:
            self._cut_head.forget_prompt()
        if self._states is not None:
            self._states.forget()
        self.length = 0

    def prepare_for(self, length: int) -> None:
        """Make what is cached fit for a text of so many tokens, before a part of the model reads on; it always is."""

    def _start_cache(self) -> None:
        self._cache = self._empty_cache()
        self._cache.activate_past_recording()

    def _empty_cache(self) -> Any:
        return buffered_cache(self._model.config)

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """Append [n] ids to the cache; [num_logits, vocab_size] float32 logits after the last of them."""
        if self._cut_head is not None and self.length == 0:
            self._cut_head.read_prompt(token_ids)
        with self._watch(len(token_ids)):
            logits = self.logits_of(self._model, self._cache, token_ids, num_logits)
        self.length += token_ids.shape[0]
        return logits

    def forward_tree(self, token_ids: Tensor, parents: Tensor) -> Tensor:
        """Append a token and a tree behind it; [num_tree_tokens + 1, vocab_size] float32 logits after each of them."""
        inputs = tree_inputs(self._model, parents, self.length)
        with self._watch(len(token_ids)):
            logits = self.logits_of(self._model, self._cache, token_ids, len(token_ids), **inputs)
        self.length += token_ids.shape[0]
        return logits

    def tap(self, taps: Sequence[Tap]) -> None:
        """From now on keep these hidden states of every pass of `forward` and `forward_tree`, and no others."""
        if tuple(taps) == self.taps:
            return
        if self._states is not None:
            self._states.remove()
        self._states = HiddenStates(self._model, taps) if taps else None

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Which hidden states are kept; none mostly."""
        return () if self._states is None else self._states.taps

    def take_states(self) -> Tensor:
        """[n, width], the tapped states of all tokens that were read since this was last asked, side by side."""
        if self._states is None:
            raise ValueError("nothing was tapped")
        return self._states.take()

    def _watch(self, num_tokens: int) -> AbstractContextManager[None]:
        return nullcontext() if self._states is None else self._states.watch(num_tokens)

    def logits_of(self, model: Any, cache: Any, token_ids: Tensor, num_logits: int, **inputs: Tensor) -> Tensor:
        """One pass of this model, or of a part of it, over some cache, as `forward` returns it."""
        if self._num_rows < self.vocab_size:
            # A token that only the target has: the draft reads another in its place, which costs a guess at most.
            token_ids = token_ids.clamp(max=self._num_rows - 1)
        output = model(input_ids=token_ids[None], cache=cache, use_cache=True, logits_to_keep=num_logits, **inputs)
        logits = output.logits[0, :, : self.vocab_size].float()
        if self._masks_again and self._cut_head is not None:
            logits = logits.masked_fill(self._cut_head.outside[: logits.shape[-1]], -torch.inf)
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            logits = pad(logits, (0, missing), value=-torch.inf)
        if self._blocked is not None:
            logits = logits.index_fill_(-1, self._blocked, -torch.inf)
        return logits

    def roll_back(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens; also lets sliding-window layers drop what they no longer need."""
        if self.length:  # an empty sliding layer cannot be cut, not even by 0
            self._cache.crop(-num_tokens)
        self.length -= num_tokens

    def keep_path(self, num_tokens: int, path: Sequence[int]) -> None:
        """Of the last `num_tokens` tokens keep those at the places `path`, from 0 and ascending; forget the others."""
        if list(path) == list(range(len(path))):  # they stand where they belong
            self.roll_back(num_tokens - len(path))
            return
        places = torch.tensor(path, device=self.device)
        for layer in self._cache.layers:
            layer.keep(num_tokens, places)
        self.length += len(path) - num_tokens

    def require_trees(self, asked_by: str) -> None:
        """Refuse a model that cannot read trees, before anything is generated.

        Raises:
            IncompatiblePairError: naming `asked_by`, the option that wants them.
        """
        reason = why_no_trees(self)
        if reason is not None:
            raise IncompatiblePairError(
                f"{asked_by}: the target cannot read drafts that branch: {reason}; choose another source of drafts"
            )

    @torch.inference_mode()
    def _bends_logits(self, head: CutHead) -> bool:
        """Whether the model makes numbers of its head's -inf, as soft capping does (a mask costs a pass over them)."""
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        logits = self._model(input_ids=token, use_cache=False, logits_to_keep=1).logits[0, -1]
        return not bool(torch.isneginf(logits[head.outside]).all())

    @torch.inference_mode()
    def _check_roll_back(self, role: str) -> None:
        """Refuse a model whose state cannot be cut back, before anything is generated.

        Raises:
            IncompatiblePairError: naming the kind of layer.
        """
        require_cache_keyword(self._model, role)
        self.reset()
        try:
            self.forward(torch.zeros(1, dtype=torch.long, device=self.device), num_logits=1)
        except CODE_FAILS as error:
            raise unfit_for_cache(self._model, role, error) from error
        stuck = sorted({type(layer).__name__ for layer in self._cache.layers if not layer.is_croppable})
        if stuck:
            name = type(self._model).__name__
            types = getattr(self._model.config.get_text_config(decoder=True), "layer_types", None) or ()
            kinds = [t for t in sorted(set(types)) if t not in ("full_attention", "sliding_attention")]
            kind = " and ".join(kinds) or "recurrent"
            raise IncompatiblePairError(
                f"the {role} ({name}) has {kind} layers ({', '.join(stuck)}), whose state cannot be rolled back "
                f"after a rejection: {_remedy(role)}"
            )
        self.reset()


def require_cache_keyword(model: Any, role: str) -> None:
    """Refuse a model that takes no cache under transformers' name for it.

    Raises:
        IncompatiblePairError: it keeps its state in another way, as code for earlier versions of transformers does.
    """
    if "cache" not in inspect.signature(model.forward).parameters:
        name = type(model).__name__
        raise IncompatiblePairError(
            f"the {role} ({name}) keeps its state outside transformers' caches: {_remedy(role)}"
        )


def unfit_for_cache(model: Any, role: str, error: Exception) -> IncompatiblePairError:
    """What to raise where a model's first pass over a cache fails."""
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    return IncompatiblePairError(
        f"the {role} ({type(model).__name__}) does not take transformers' caches ({reason}): {_remedy(role)}"
    )


def _remedy(role: str) -> str:
    return f"choose another {role}; speculation needs a cache of keys and values that can be shortened"
