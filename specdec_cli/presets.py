"""Pairs with a name: YAML files that ship with specdec, and the user's own.

A preset is looked up as a file path first (anything with a slash or ending in .yaml), then in the user's folder, then
among those shipped. Unknown keys are refused.

Two keys are about number types. `stored_dtype` is a fact about the checkpoints, which only the memory column uses: on a
machine that does not compute that type fast, they are loaded in another. `dtype` is a wish: it takes the place of
`--dtype auto`, for both models, and gives way to any other --dtype. The presets shipped leave it out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from specdec_cli.errors import UsageError
from specdec_cli.settings import DTYPES

BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2, "float16": 2}
DEFAULT = "demo"


@dataclass(frozen=True)
class Preset:
    """A target and a draft that share a vocabulary.

    Attributes:
        name: the file's name without its ending.
        target, draft: a hub id, a folder (relative to the preset's file where it starts with a dot), a .gguf
            file, or demo:target and demo:draft, the pair inside the package.
        description: one line.
        target_parameters, draft_parameters: in billions; None where unknown.
        license: the target's, and the draft's where it is another.
        gated: the hub asks for consent before a download.
        dtype: what both are loaded in unless the command line says otherwise; "auto" lets the machine decide.
        stored_dtype: what the checkpoints are stored in; "auto" where unknown.
        k: tokens to draft a round.
        revision, draft_revision: hub branch, tag or commit.
        notes: one line on what to know.
    """

    name: str
    target: str
    draft: str
    description: str = ""
    target_parameters: float | None = None
    draft_parameters: float | None = None
    license: str = "unknown"
    gated: bool = False
    dtype: str = "auto"
    stored_dtype: str = "auto"
    k: int = 4
    revision: str | None = None
    draft_revision: str | None = None
    notes: str = ""

    @property
    def memory_gb(self) -> float | None:
        """Both models' weights, in 10^9 bytes, in the type asked for, else the stored one; caches come on top."""
        if self.target_parameters is None or self.draft_parameters is None:
            return None
        dtype = self.stored_dtype if self.dtype == "auto" else self.dtype
        return (self.target_parameters + self.draft_parameters) * BYTES_PER_PARAMETER.get(dtype, 2)


def load_preset(name: str) -> Preset:
    """The preset called `name`, or in the file `name`.

    Raises:
        UsageError: there is none, or it is not valid.
    """
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UsageError(f"--preset {name}: there is no such file")
        return read_preset(path)
    files = preset_files()
    if name not in files:
        raise UsageError(f"--preset {name} is unknown; there are: {', '.join(sorted(files))}")
    return read_preset(files[name])


def preset_files() -> dict[str, Path]:
    """Every preset's name and file; the user's own come before those shipped."""
    found: dict[str, Path] = {}
    for folder in (shipped_folder(), user_folder()):
        if folder.is_dir():
            found |= {path.stem: path for path in sorted(folder.glob("*.y*ml"))}
    return found


def shipped_folder() -> Path:
    """Inside the wheel next to this module; in a checkout at its top."""
    installed = Path(__file__).parent / "presets_data"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "presets"


def user_folder() -> Path:
    """SPECDEC_PRESETS, else specdec/presets in the user's configuration folder."""
    chosen = os.environ.get("SPECDEC_PRESETS")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "specdec" / "presets"


def read_preset(path: Path) -> Preset:
    """Read and check one file.

    Raises:
        UsageError: not YAML, an unknown or missing key, or a value of the wrong kind.
    """
    where = f"preset {path}"
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{where} is not valid YAML: {' '.join(str(error).split())[:160]}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{where} must be a mapping with at least 'target' and 'draft'")
    kinds = {
        "target": str, "draft": str, "description": str, "target_parameters": float, "draft_parameters": float,
        "license": str, "gated": bool, "dtype": str, "stored_dtype": str, "k": int, "revision": str,
        "draft_revision": str, "notes": str,
    }  # fmt: skip
    assert set(kinds) == {f.name for f in fields(Preset)} - {"name"}
    for key, value in data.items():
        if key not in kinds:
            raise UsageError(f"{where} has the unknown key '{key}'; known are: {', '.join(kinds)}")
        if kinds[key] is float and isinstance(value, int) and not isinstance(value, bool):
            data[key] = float(value)
        elif type(value) is not kinds[key]:
            wanted = {str: "text", float: "a number", bool: "true or false", int: "a whole number"}[kinds[key]]
            raise UsageError(f"{where}: '{key}' must be {wanted}, not {value!r}")
    for key in ("target", "draft"):
        if not data.get(key):
            raise UsageError(f"{where} lacks '{key}'")
        if data[key].startswith("."):
            data[key] = str((path.parent / data[key]).resolve())
    for key in ("dtype", "stored_dtype"):
        if data.get(key, "auto") not in DTYPES:
            raise UsageError(f"{where}: '{key}' must be one of {', '.join(DTYPES)}, not {data[key]!r}")
    if data.get("k", 1) < 1:
        raise UsageError(f"{where}: 'k' must be 1 or above, not {data['k']}")
    return Preset(name=path.stem, **data)
