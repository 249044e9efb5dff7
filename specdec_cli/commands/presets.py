"""`specdec presets`: the pairs that have a name."""

from __future__ import annotations

import sys

from specdec_cli.errors import UsageError
from specdec_cli.presets import preset_files, read_preset, user_folder
from specdec_cli.reports.console import PipeConsole, table_console
from specdec_cli.reports.export import to_json
from specdec_cli.reports.tables import PresetsList


def run(output_format: str) -> int:
    """List every preset; the exit code: 1 where a file is not valid, after all those that are."""
    presets, faults = [], []
    for _, path in sorted(preset_files().items()):
        try:
            presets.append(read_preset(path))
        except UsageError as error:
            faults.append(str(error))
    err = PipeConsole(stderr=True, highlight=False)
    if output_format == "json":
        sys.stdout.write(to_json([{**vars(p), "memory_gb": p.memory_gb} for p in presets], indent=2) + "\n")
    else:
        table_console(sys.stdout).print(PresetsList(presets), crop=False)
        note = f"Memory: both models' weights, without caches. Your own presets: {user_folder()}"
        err.print(note, style="dim", markup=False, soft_wrap=True)
    for fault in faults:
        err.print(f"specdec: {fault}", markup=False, soft_wrap=True)
    return 1 if faults else 0
