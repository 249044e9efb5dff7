"""Step 1: where a checkpoint is. A folder, a hub id, or a GGUF file; nothing is opened yet but a folder's list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.settings import ModelSettings

# The pair that ships inside the package.
EMBEDDED = {f"demo:{role}": Path(__file__).parents[2] / "demo" / role for role in ("target", "draft")}


@dataclass(frozen=True)
class Place:
    """Where a checkpoint is, and who wants it.

    Attributes:
        settings: what the user asked for.
        role: "target" or "draft".
        path: a folder or a hub id, as `from_pretrained` takes them; of a GGUF file the file itself.
        gguf: that file; None for a folder and a hub id.
    """

    settings: ModelSettings
    role: str
    path: str
    gguf: Path | None = None

    @property
    def option(self) -> str:
        """The option that names it, for messages."""
        return f"--{self.role}"

    @property
    def name(self) -> str:
        """The option and what the user gave it, for messages."""
        return f"{self.option} {self.settings.source}"

    @property
    def hub_options(self) -> dict[str, Any]:
        """Keywords that every `from_pretrained` takes."""
        return {
            "revision": self.settings.revision or "main",
            "local_files_only": self.settings.offline,
            "trust_remote_code": self.settings.trust_remote_code,
        }


def option_of(role: str, name: str) -> str:
    """An option of one of the two models: --device or --draft-device, say."""
    return f"--{name}" if role == "target" else f"--draft-{name}"


def locate(settings: ModelSettings, role: str) -> Place:
    """Find a checkpoint by what the user gave.

    Raises:
        UsageError: there is no such folder or file, or it holds no checkpoint.
    """
    source = settings.source
    if source in EMBEDDED:
        return Place(settings, role, str(EMBEDDED[source]))
    file = gguf_file(source)
    if file is not None:
        return Place(settings, role, str(file), file)
    path, option = Path(source).expanduser(), f"--{role}"
    if path.is_file():
        raise UsageError(f"{option} {source} is a file but no .gguf: give the checkpoint's folder")
    if path.is_dir():
        if (path / "config.json").is_file():
            return Place(settings, role, str(path))
        number = len(list(path.glob("*.gguf")))
        what = f"{number} .gguf files: name one of them" if number else "no config.json"
        if (path / "adapter_config.json").is_file():
            what = "an adapter alone: merge it into its model (peft's merge_and_unload), and give that model's folder"
        raise UsageError(f"{option} {source} is a folder with {what}")
    looks_like_a_path = source.startswith((".", "/", "~")) or source.endswith(".gguf") or source.count("/") > 1
    if looks_like_a_path or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise UsageError(f"{option} {source} does not exist: give a folder, a .gguf file or a hub id")
    return Place(settings, role, source)


def gguf_file(source: str) -> Path | None:
    """The .gguf file that a source names, itself or by a folder that holds this one and no config.json; else None."""
    path = Path(source).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        return files[0] if len(files) == 1 else None
    return path if path.is_file() and path.suffix.lower() == ".gguf" else None
