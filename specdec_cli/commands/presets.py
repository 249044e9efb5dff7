"""`specdec presets`: the pairs that have a name."""

from __future__ import annotations

import sys

from specdec_cli.presets import preset_files, read_preset, user_folder
from specdec_cli.reports.console import PipeConsole
from specdec_cli.reports.export import to_json
from specdec_cli.reports.tables import presets_table


def run(output_format: str) -> int:
    """List every preset; the exit code."""
    presets = [read_preset(path) for _, path in sorted(preset_files().items())]
    if output_format == "json":
        sys.stdout.write(to_json([{**vars(p), "memory_gb": p.memory_gb} for p in presets], indent=2) + "\n")
        return 0
    console = PipeConsole(highlight=False)
    console.print(presets_table(presets))
    note = f"Memory: both models' weights in the type they are stored in. Your own presets: {user_folder()}"
    PipeConsole(stderr=True, highlight=False).print(note, style="dim", markup=False)
    return 0
