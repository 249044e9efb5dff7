"""How a checkpoint is read: quietly, and with one line for every way in which that fails."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

from huggingface_hub import errors as hub
from huggingface_hub import is_offline_mode
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # whichever it was built on
from safetensors import SafetensorError
from transformers import __version__ as transformers_version

from specdec_cli.errors import SpecdecError
from specdec_cli.runtime.checkpoints.locate import Place, option_of
from specdec_cli.runtime.devices import out_of_memory

# Told in a line what takes long.
Report = Callable[[str], None]
# What transformers, huggingface_hub, safetensors and pickle raise at files that are missing or wrong.
READING_FAILS = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ImportError),
    *(SafetensorError, httpx.HTTPError, hub.StrictDataclassError, struct.error, EOFError, pickle.UnpicklingError),
)

DAMAGE = (OSError, json.JSONDecodeError, UnicodeDecodeError, EOFError, struct.error, pickle.UnpicklingError)


def report_errors_only() -> None:
    """No bars and no warnings of transformers', nor the hub's line for each retry: an error says it all once."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()


def fails_reading(error: Exception) -> bool:
    """Whether this is what reading files raises; the tokenizers package raises nothing but Exception itself."""
    return isinstance(error, READING_FAILS) or type(error) is Exception


@contextmanager
def one_line_errors(place: Place) -> Iterator[None]:
    """Every way in which reading a checkpoint fails for a user, with the remedy.

    Raises:
        SpecdecError: for whatever the block raises of `READING_FAILS`, or of no class at all.
        OutOfMemoryError: it did not fit.
    """
    try:
        with out_of_memory(f"to load {place.name}", "choose a smaller model or a 16-bit --dtype"):
            yield
    except SpecdecError:
        raise
    except Exception as error:
        if not fails_reading(error):
            raise
        raise SpecdecError(_line(error, place)) from error


def _line(error: BaseException, place: Place) -> str:
    """What a failed read was, and the remedy; of several causes the one that says most."""
    settings, name = place.settings, place.name
    revision = f" at revision '{settings.revision}'" if settings.revision else ""
    causes = _chain(error)
    text = " ".join(str(error).split())
    refusals = [c for c in causes if isinstance(c, hub.HfHubHTTPError)]
    unreachable = any(
        isinstance(c, (hub.LocalEntryNotFoundError, ConnectionError, httpx.TransportError)) for c in causes
    )
    if any(isinstance(c, hub.GatedRepoError) for c in causes):
        return f"{name} is gated: accept its terms on the hub, then log in with 'hf auth login'"
    if any(isinstance(c, hub.RevisionNotFoundError) for c in causes):
        flag = option_of(place.role, "revision")
        return f"{name} has no revision '{settings.revision}': check {flag}"
    if any(isinstance(c, hub.RepositoryNotFoundError) for c in causes):
        return f"{name} is neither a folder here nor a model on the hub; if it is private, run 'hf auth login'"
    if any(isinstance(c, hub.DisabledRepoError) for c in causes):
        return f"{name} is disabled by the hub: choose another model"
    if refusals and refusals[-1].response.status_code in (401, 403):
        return f"the hub refuses your token for {name}: log in again with 'hf auth login'"
    if refusals and refusals[-1].response.status_code != 404:
        return f"the hub answers {refusals[-1].response.status_code} for {name}{revision}: try again later"
    if unreachable and (settings.offline or is_offline_mode()):
        without = "--offline" if settings.offline else "HF_HUB_OFFLINE"
        return f"{name}{revision} is not in the hub's local cache: download it first, without {without}"
    if unreachable:
        return f"no network to fetch {name}{revision}: connect, or give a folder that is already here"
    if any(isinstance(c, SafetensorError) for c in causes):
        return f"{name}: its safetensors file is damaged ({text[:120]}); download it again"
    if "trust_remote_code" in text:
        return f"{name} brings its own Python code: read it, then allow it with --trust-remote-code"
    if any(_lacks_a_name(c) for c in causes) or _in_own_code(error):
        return (
            f"{name}: its own Python code does not run with transformers {transformers_version} ({text[:160]}): "
            "choose a checkpoint without code of its own, or one whose code is newer"
        )
    if any(isinstance(c, ImportError) for c in causes):
        return f"{name} needs a package that is not installed: {text[:200]}"
    if "model type" in text and "does not recognize" in text:
        return f"{name} is of an architecture that this transformers does not know: upgrade transformers"
    # What another download cures: files that are missing, cut off or no JSON. What does not fit stays as it is.
    broken = "model_type" in text or any(isinstance(c, DAMAGE) for c in causes)
    other = "choose another, or mend its config.json" if place.gguf is None else "use the model's safetensors"
    remedy = "download it again, or choose another" if broken else other
    return f"{name}{revision} cannot be loaded ({text[:300]}): {remedy}"


def _lacks_a_name(error: BaseException) -> bool:
    """Whether code asks transformers for what it does not have (any more)."""
    return isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "transformers"


def _in_own_code(error: BaseException) -> bool:
    """Whether this was raised in a checkpoint's own code, or below it, and is not about a package."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    own = any(str(frame.f_globals.get("__name__", "")).startswith("transformers_modules.") for frame in frames)
    return own and not isinstance(error, (ImportError, OSError))


def _chain(error: BaseException) -> Sequence[BaseException]:
    causes: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in causes:
        causes.append(current)
        current = current.__cause__ or current.__context__
    return causes


def gguf_damage(error: BaseException, option: str, path: Path) -> SpecdecError:
    """The same for a GGUF file whose header makes no sense."""
    if isinstance(error, ImportError):
        return _gguf_package(path)
    reason = " ".join(str(error).split())[:200]
    return SpecdecError(
        f"{option} {path.name} cannot be read ({reason}): download it again, or use the model's safetensors"
    )


def gguf_failure(error: BaseException, option: str, path: Path, folder: Path) -> SpecdecError:
    """The same for a GGUF file that is whole, and that transformers and the gguf package make no folder of.

    Args:
        folder: where the conversion is written.
    """
    if isinstance(error, ImportError):
        return _gguf_package(path)
    reason = " ".join(str(error).split())[:200]
    if "No space left" in reason:
        return SpecdecError(
            f"{option} {path.name} cannot be converted (no space left in {folder}): free some, or set SPECDEC_CACHE to "
            "another disk"
        )
    return SpecdecError(f"{option} {path.name} cannot be converted ({reason}): use the model's safetensors")


def _gguf_package(path: Path) -> SpecdecError:
    return SpecdecError(f"reading {path.name} needs the gguf package: pip install 'specdec-cli[gguf]'")
