"""One of a pair before its weights are read: what it is, and how it would be loaded here."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_cli.activity import doing
from specdec_cli.runtime.checkpoints.inspection import Inspection, inspect
from specdec_cli.runtime.checkpoints.locate import locate
from specdec_cli.runtime.checkpoints.plan import Plan, check_options, plan
from specdec_cli.runtime.checkpoints.reading import Report, report_errors_only
from specdec_cli.settings import ModelSettings


@dataclass(frozen=True)
class Side:
    """A target or a draft.

    Attributes:
        inspection: what it is.
        plan: how it would be loaded here; None where it is no model that generates text.
    """

    inspection: Inspection
    plan: Plan | None

    @property
    def role(self) -> str:
        """ "target" or "draft"."""
        return self.inspection.role


def look_at(settings: ModelSettings, role: str, report: Report) -> Side:
    """The first three steps of `checkpoints.load`: locate, inspect, plan.

    Raises:
        SpecdecError: its configuration cannot be read, or an option does not fit it; one line with the remedy.
    """
    report_errors_only()
    device = check_options(settings, role)
    with doing(f"reading {role} {settings.source}"):
        found = inspect(locate(settings, role), report)
        return Side(found, None if found.architecture_problem is not None else plan(found, device))
