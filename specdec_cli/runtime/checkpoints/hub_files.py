"""GGUF files on the hub: `org/repo:file.gguf` is fetched once into the hub's cache, and found there offline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, is_offline_mode, snapshot_download
from huggingface_hub import errors as hub
from huggingface_hub.utils.tqdm import tqdm

from specdec_cli.activity import doing
from specdec_cli.errors import SpecdecError, UsageError
from specdec_cli.runtime.checkpoints.locate import Place
from specdec_cli.runtime.checkpoints.reading import READING_FAILS, Report, one_line_errors
from specdec_cli.runtime.checkpoints.split_sets import one_of_each_set, parts_of

SHOWN = 8


def fetched(place: Place, report: Report) -> Place:
    """The place itself, or of a GGUF file on the hub its copy in the hub's cache; of a split set all files.

    Raises:
        SpecdecError: it cannot be had; one line with the remedy.
    """
    if place.hub_file is None:
        return place
    options = {"revision": place.hub_options["revision"], "local_files_only": _is_offline(place)}
    if not options["local_files_only"]:
        report(f"fetching {place.hub_file} of {place.path}, unless it is here")
    try:
        with one_line_errors(place), doing(f"fetching {place.hub_file}"):
            found = [
                hf_hub_download(place.path, str(name), tqdm_class=_Announced, **options)
                for name in parts_of(PurePosixPath(place.hub_file))
            ]
    except SpecdecError as error:
        names = gguf_files(place)
        if not names or place.hub_file in names:
            raise
        what = "in its copy here" if _is_offline(place) else "there"
        raise UsageError(
            f"{place.option} {place.path} has no {place.hub_file} {what}: name one of {_shown(names)}"
        ) from error
    return replace(place, path=found[0], gguf=Path(found[0]))


class _Announced(tqdm):
    """The hub's progress of one download, announced as ours is; its own bar stays away."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "disable": True})
        self._shown = doing(f"fetching {options.get('desc') or 'a file'}", options.get("total"))
        self._count = self._shown.__enter__()
        self._is_open = True
        self._count(options.get("initial") or 0)

    def update(self, n: float | None = 1) -> bool | None:
        """Called by the hub with the bytes that have come."""
        self._count(n or 0)
        return None

    def close(self) -> None:
        """Called by the hub, once or more often."""
        if getattr(self, "_is_open", False):
            self._is_open = False
            self._shown.__exit__(None, None, None)
        super().close()


def only_gguf(place: Place, error: SpecdecError) -> SpecdecError:
    """What to say of a hub id whose configuration cannot be read: that it holds GGUF files, where it does."""
    if place.gguf is not None or Path(place.path).is_dir() or not (_is_offline(place) or _not_there(error)):
        return error
    names = gguf_files(place)
    if not names:
        return error
    return UsageError(
        f"{place.name} holds GGUF files and no config.json ({_shown(names)}): name one, as {place.path}:{names[0]}"
    )


def gguf_files(place: Place) -> list[str]:
    """The GGUF files of a hub id, or of its copy in the hub's cache; one name for each split set."""
    revision = place.hub_options["revision"]
    try:
        if _is_offline(place):
            folder = Path(snapshot_download(place.path, revision=revision, local_files_only=True))
            return _models(path.relative_to(folder) for path in folder.rglob("*.gguf"))
        return _models(PurePosixPath(n) for n in HfApi().list_repo_files(place.path, revision=revision))
    except READING_FAILS:
        return []  # then there is no more to say than what went wrong before


def _models(names: Iterable[Path | PurePosixPath]) -> list[str]:
    found = one_of_each_set(Path(name) for name in names if name.suffix.lower() == ".gguf")
    return [name.as_posix() for name in found]


def _is_offline(place: Place) -> bool:
    return place.settings.offline or is_offline_mode()


def _not_there(error: BaseException) -> bool:
    """Whether the hub was reached, and has no such file."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, hub.EntryNotFoundError):
            return True
        current = current.__cause__ or current.__context__
    return False


def _shown(names: list[str]) -> str:
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
