"""From a name to a loaded model: the five steps, one after the other.

    locate   where it is              `locate`      -> Place
    inspect  what it is               `inspection`  -> Inspection
    plan     how it is loaded here    `plan`        -> Plan
    build    its weights              `build`       -> a transformers model
    fit      its layers               `fit`         -> Checkpoint

What one step hands to the next is frozen, and holds what went before. pair-check takes the first three.
"""

from __future__ import annotations

from specdec_cli.runtime.checkpoints.build import build
from specdec_cli.runtime.checkpoints.checkpoint import Checkpoint
from specdec_cli.runtime.checkpoints.fit import fit
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
    check_options(settings, role)
    place = locate(settings, role)
    found = inspect(place, report)
    planned = plan(found)
    planned.require_loadable()
    model = build(planned, report)
    return fit(planned, model)
