"""Step 1: where a checkpoint is. A folder, a hub id, or a GGUF file; nothing is opened yet but a folder's list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import UsageError
from specdec_cli.runtime.checkpoints.split_sets import one_of_each_set
from specdec_cli.settings import ModelSettings

# The pair that ships inside the package.
EMBEDDED = {f"demo:{role}": Path(__file__).parents[2] / "demo" / role for role in ("target", "draft", "head")}

# A GGUF file on the hub: org/repo:file.gguf, or in a folder there.
HUB_FILE = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w.-]+):(?P<file>[^:]+\.gguf)", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """Where a checkpoint is, and who wants it.

    Attributes:
        settings: what the user asked for.
        role: "target" or "draft".
        path: a folder or a hub id, as `from_pretrained` takes them; of a GGUF file the file itself.
        gguf: that file, or one of a split set; None for a folder and a hub id.
        hub_file: of a hub id the GGUF file that is meant; None for the checkpoint itself.
    """

    settings: ModelSettings
    role: str
    path: str
    gguf: Path | None = None
    hub_file: str | None = None

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
    """Find a checkpoint by what the user gave: a folder, a .gguf file, a hub id, or org/repo:file.gguf on the hub.

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
        models, others = _models_in(path), list(path.glob("*.gguf"))
        what = "no config.json"
        if models:
            what = f"{len(models)} .gguf files: name one of them"
        elif others:
            what = f"{others[0].name} alone, which turns images into tokens: name the model it belongs to"
        elif (path / "adapter_config.json").is_file():
            what = "an adapter alone: merge it into its model (peft's merge_and_unload), and give that model's folder"
        raise UsageError(f"{option} {source} is a folder with {what}")
    on_hub = HUB_FILE.fullmatch(source)
    if on_hub is not None:
        return Place(settings, role, on_hub["repo"], hub_file=on_hub["file"])
    looks_like_a_path = source.startswith((".", "/", "~")) or source.endswith(".gguf") or source.count("/") > 1
    if looks_like_a_path or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise UsageError(f"{option} {source} does not exist: give a folder, a .gguf file or a hub id")
    return Place(settings, role, source)


def gguf_file(source: str) -> Path | None:
    """The .gguf file that a source names, itself or by a folder that holds this one and no config.json; else None.

    Of a split set this is one of its files, which stands for all.
    """
    path = Path(source).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        files = _models_in(path)
        return files[0] if len(files) == 1 else None
    return path if path.is_file() and path.suffix.lower() == ".gguf" else None


def _models_in(folder: Path) -> list[Path]:
    """Its .gguf files; of a split set the first."""
    return one_of_each_set(folder.glob("*.gguf"))
