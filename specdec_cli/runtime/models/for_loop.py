"""A transformers model as the loop is to have it: plain, compiled, or with its rounds recorded, as was asked."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from transformers import PreTrainedModel

from specdec_cli.errors import UsageError
from specdec_cli.runtime.models.cuda_graphs import CudaRecorder
from specdec_cli.runtime.models.graphs import Graphs
from specdec_cli.runtime.models.rereading import RereadingModel, text_frequencies
from specdec_cli.runtime.models.static_model import NotStatic, StaticModel
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.settings import AUTO, ModelSettings

RECORDED_ON = "cuda"


def model_for_loop(
    model: PreTrainedModel,
    vocab_size: int,
    blocked_ids: Tensor,
    role: str,
    settings: ModelSettings,
    report: Callable[[str], None],
) -> tuple[TransformersModel, tuple[str, ...]]:
    """A model for the loop, compiled and with its rounds recorded as far as asked for and possible, and notes on that.

    Raises:
        IncompatiblePairError: its cache cannot be rolled back, or its positions are of an unknown kind.
        UsageError, SpecdecError: it cannot be compiled, and --compile is given.
    """
    plain, notes = _plain(model, vocab_size, blocked_ids, role)
    record = settings.graphs == AUTO and model.device.type == RECORDED_ON
    if not record and not settings.compile:
        return plain, notes
    try:
        made = StaticModel(model, vocab_size, blocked_ids, role)
    except NotStatic as error:
        if settings.compile:
            raise UsageError(f"--compile: the {role} cannot be compiled: {error}; leave it out") from error
        return plain, (
            *notes,
            f"no CUDA graphs for the {role}: {error}",
        )
    if settings.compile:
        report(f"compiling the {role}: seconds to minutes now, and again for each number of tokens and length of cache")
        made.compile()
    if record:
        made.repeater = Graphs(made, CudaRecorder(made.device), report, role)
    return made, ()


def _plain(
    model: PreTrainedModel, vocab_size: int, blocked_ids: Tensor, role: str
) -> tuple[TransformersModel, tuple[str, ...]]:
    frequencies = text_frequencies(model, role)
    if frequencies is None:
        return TransformersModel(model, vocab_size, blocked_ids, role), ()
    rereading = RereadingModel(model, vocab_size, blocked_ids, role, frequencies=frequencies)
    return rereading, (f"{role}'s {frequencies.note(role)}",)
