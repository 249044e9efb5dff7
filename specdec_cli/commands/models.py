"""`specdec models`: which checkpoints are here, and which of them make pairs. No weight is read."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.reports.console import PipeConsole, output
from specdec_cli.reports.export import document, to_json
from specdec_cli.reports.models import models_text
from specdec_cli.runtime.checkpoints.inventory import Inventory, pairs_of, take_inventory, vocabularies


@dataclass(frozen=True)
class ModelsRequest:
    """Everything that the command line decides."""

    folders: Sequence[Path]
    output_format: str = "table"
    output: Path | None = None


def run(request: ModelsRequest) -> int:
    """List them; the exit code: 1 where one could not be read, after all those that could."""
    inventory = take_inventory(request.folders)
    made = _document(request, inventory)
    with output(request.output) as out:
        if request.output_format == "json":
            out.write(to_json(made, indent=2) + "\n")
        else:
            PipeConsole(file=out, highlight=False).print(models_text(made), soft_wrap=True)
        out.flush()
    for fault in inventory.faults:
        PipeConsole(stderr=True, highlight=False).print(f"specdec: {fault}", markup=False, soft_wrap=True)
    return 1 if inventory.faults else 0


def _document(request: ModelsRequest, inventory: Inventory) -> dict[str, Any]:
    """Its keys are listed in docs/scripting.md."""
    environment: dict[str, object] = {"python": platform.python_version(), "platform": platform.platform()}
    models = [
        {
            "name": model.name,
            "kind": model.kind,
            "bytes": model.bytes,
            "architecture": model.architecture,
            "stored": model.stored,
            "missing": model.missing,
            "tokens": len(model.tokens),
            "vocabulary": number,
        }
        for model, number in zip(inventory.models, vocabularies(inventory.models), strict=True)
    ]
    pairs = [
        {"target": target.name, "draft": draft.name, "size_ratio": draft.bytes / target.bytes}
        for target, draft in pairs_of(inventory.models)
    ]
    settings: dict[str, object] = {"folders": [str(folder) for folder in request.folders]}
    return document(environment, settings, models=models, pairs=pairs, faults=list(inventory.faults))
