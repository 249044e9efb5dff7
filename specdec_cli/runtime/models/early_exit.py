"""The first layers of a target as a model of its own, on the target's weights and, for these layers, its cache.

A module's copy whose list of layers is shorter, and a cache's copy whose list of layers is: both share everything else.
Between two passes of the target, the early layers may hold tokens that the later ones do not; whoever drafts with them
rolls them back before the target reads on.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from specdec_cli.errors import IncompatiblePairError, UsageError
from specdec_cli.runtime.caches.buffered import buffered_cache
from specdec_cli.runtime.models.hidden_states import name_of_layers
from specdec_cli.runtime.models.transformers_model import TransformersModel

REMEDY = "leave --draft early-exit out"


class EarlyExitModel:
    """A `specdec_cli.decoding.model.ChainModel`.

    Args:
        target: its weights and cache are used.
        num_layers: how many of its layers run; at least 1, and fewer than it has.

    Raises:
        UsageError: it has no more layers than that.
        IncompatiblePairError: its layers are not a plain list that can be cut, or do not run alone.
    """

    def __init__(self, target: TransformersModel, num_layers: int) -> None:
        config = target.model.config.get_text_config(decoder=True)
        if not 1 <= num_layers < config.num_hidden_layers:
            raise UsageError(
                f"--draft early-exit:{num_layers}: the target has {config.num_hidden_layers} layers: "
                f"give a number from 1 to {config.num_hidden_layers - 1}"
                if config.num_hidden_layers > 1
                else f"--draft early-exit:{num_layers}: the target has one layer, and none to leave out: {REMEDY}"
            )
        self._target = target
        self._num_layers = num_layers
        self._model = _first_layers(target.model, num_layers, config.num_hidden_layers)
        self._ahead = 0  # tokens that the early layers hold, and the others do not
        self._check()

    @property
    def device(self) -> torch.device:
        return self._target.device

    @property
    def vocab_size(self) -> int:
        return self._target.vocab_size

    @property
    def max_length(self) -> int:
        return self._target.max_length

    @property
    def length(self) -> int:
        """Tokens in the early layers' cache."""
        return self._target.length + self._ahead

    def reset(self) -> None:
        """Forget what these layers hold alone; the rest is the target's."""
        self.roll_back(self._ahead)

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """Append [n] ids to the early layers' cache; [num_logits, vocab_size] float32 logits after the last of them."""
        if not self._ahead:
            self._target.prepare_for(self._target.length + 1)
        logits = self._target.logits_of(self._model, self._part(self._target.cache), token_ids, num_logits)
        self._ahead += token_ids.shape[0]
        return logits

    def roll_back(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens."""
        if self.length:
            self._part(self._target.cache).crop(-num_tokens)
        self._ahead -= num_tokens

    def _part(self, cache: Any) -> Any:
        part = copy(cache)
        part.layers = cache.layers[: self._num_layers]
        return part

    @torch.inference_mode()
    def _check(self) -> None:
        """Run one token through a cache for all layers, and see which of them it reached.

        Raises:
            IncompatiblePairError: more layers ran, or fewer could not.
        """
        cache = buffered_cache(self._target.model.config)
        cache.activate_past_recording()
        try:
            self._target.logits_of(self._model, cache, torch.zeros(1, dtype=torch.long, device=self.device), 1)
        except (AttributeError, IndexError, KeyError, TypeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise _unfit(self._target.model, f"its first layers do not run alone ({reason})") from error
        ran = [getattr(layer, "is_initialized", None) for layer in cache.layers]
        if None in ran:
            raise _unfit(self._target.model, "not all of its layers are attention")
        if not ran[0] or any(ran[self._num_layers :]):
            raise _unfit(self._target.model, "its later layers ran too (is it spread over several devices?)")


def _first_layers(model: nn.Module, num_layers: int, out_of: int) -> nn.Module:
    """A copy of a causal language model, sharing all weights, without its later layers."""
    try:
        *parents, last = name_of_layers(model, out_of).split(".")
    except LookupError as error:
        raise _unfit(model, str(error)) from error
    made = at = _shallow(model)
    for name in parents:
        at._modules[name] = at = _shallow(at.get_submodule(name))
    layers = at.get_submodule(last)
    assert isinstance(layers, nn.ModuleList)
    at._modules[last] = layers[:num_layers]
    return made


def _shallow(module: nn.Module) -> nn.Module:
    """A copy whose submodules can be exchanged without touching the original's."""
    made = copy(module)
    made._modules = dict(module._modules)
    return made


def _unfit(model: object, why: str) -> IncompatiblePairError:
    return IncompatiblePairError(
        f"--draft early-exit: the target ({type(model).__name__}) is not built for it: {why}: {REMEDY}"
    )
