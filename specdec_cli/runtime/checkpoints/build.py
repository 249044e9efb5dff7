"""Step 4: weights on the device, as planned; nothing is changed about the layers yet."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.dummy import dummy_model
from specdec_cli.runtime.checkpoints.families import auto_class
from specdec_cli.runtime.checkpoints.gguf.converted import gguf_as_folder
from specdec_cli.runtime.checkpoints.gguf.own_bits import load_gguf
from specdec_cli.runtime.checkpoints.locate import Place
from specdec_cli.runtime.checkpoints.plan import Plan
from specdec_cli.runtime.checkpoints.reading import Report, one_line_errors
from specdec_cli.settings import AUTO


def build(plan: Plan, report: Report) -> PreTrainedModel:
    """Read the weights, or make them up.

    Args:
        plan: from `plan`.
        report: told in a line what takes long.

    Raises:
        SpecdecError: the files are damaged or incomplete; one line with the remedy.
        OutOfMemoryError: they do not fit after all.
    """
    found, settings = plan.inspection, plan.settings
    model: PreTrainedModel
    if settings.dummy_weights:
        with one_line_errors(plan.place):
            return dummy_model(found.config, plan.dtype, plan.device, settings.trust_remote_code)
    if plan.keeps_bits and plan.own_bits is not None:
        with one_line_errors(plan.place):
            model, filled = load_gguf(plan.own_bits, found.config, plan.dtype)
        model.generation_config = found.generation
    else:
        folder = plan.place.path
        if plan.place.gguf is not None:
            exact = settings.dtype not in (AUTO, "bfloat16")
            folder = str(gguf_as_folder(plan.place.gguf, plan.place.option, report, exact=exact))
        with one_line_errors(plan.place):
            model, filled = auto_class(found.config).from_pretrained(
                folder, config=found.config, dtype=plan.dtype, device_map="auto" if plan.spread else {"": plan.device},
                ignore_mismatched_sizes=True, output_loading_info=True, **plan.place.hub_options,
            )  # fmt: skip
    _require_all_weights(filled, plan.place)
    return model.eval()


def _require_all_weights(filled: dict[str, Any], place: Place) -> None:
    """transformers fills what it does not find with random numbers.

    Args:
        filled: `missing_keys` and `mismatched_keys`, as transformers reports what it loaded.
    """
    for what, names in (("lacks", filled["missing_keys"]), ("has other sizes for", filled["mismatched_keys"])):
        if names:
            first = sorted(name if isinstance(name, str) else name[0] for name in names)[0]
            raise SpecdecError(
                f"{place.name} {what} {len(names):,} of the weights that its config.json describes "
                f"(first: {first}): download it again"
            )
