"""From a name to a loaded model: the five steps, one after the other.

    locate   where it is              `locate`      -> Place
    inspect  what it is               `inspection`  -> Inspection
    plan     how it is loaded here    `plan`        -> Plan
    build    its weights              `build`       -> a transformers model
    fit      its layers               `fit`         -> Checkpoint

What the first three hand on is frozen, and holds what went before; pair-check needs no more of them. There is one plan,
and one model, but for `--draft-quantize auto` on a GGUF file: both forms of it are fitted, and the quicker one stays.
"""

from __future__ import annotations

from specdec_cli.activity import doing
from specdec_cli.runtime.checkpoints.build import build
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint
from specdec_cli.runtime.checkpoints.fit import fit, quicker
from specdec_cli.runtime.checkpoints.inspection import inspect
from specdec_cli.runtime.checkpoints.locate import locate
from specdec_cli.runtime.checkpoints.plan import check_options, plan
from specdec_cli.runtime.checkpoints.reading import Report, report_errors_only
from specdec_cli.settings import ModelSettings


def load_checkpoint(settings: ModelSettings, role: str, report: Report) -> Checkpoint:
    """Load what was asked for.

    Args:
        settings: where it is and how it is wanted.
        role: "target" or "draft"; a target too large for one GPU is spread, a draft is refused.
        report: told in a line what takes long.

    Raises:
        SpecdecError: one line with the remedy; its subclass gives the exit code.
    """
    report_errors_only()
    device = check_options(settings, role)
    place = locate(settings, role)
    with doing(f"loading {role} {settings.source}"):
        found = inspect(place, report)
        fitted = []
        for planned in plan(found, device).forms:
            planned.require_loadable()
            model = build(planned, report)
            fitted.append(fit(planned, model))
        return quicker(fitted)
