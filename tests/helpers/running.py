"""The command line in this process, and the scripts of benchmarks/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

SHORT = {"--max-new-tokens": "-n", "--k": "-k"}
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def benchmark_script(name: str) -> Iterator[ModuleType]:
    """benchmarks/NAME.py as a module, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(ROOT / "benchmarks"))  # as for a script that is run: some take from others
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
        del sys.modules[name]


def instead(words: Sequence[Any], change: Sequence[Any]) -> list[Any]:
    """A command with some options and their values in place of its own: given twice they would be refused."""
    kept = list(words)
    for name in change[::2]:
        for spelling in {name, SHORT.get(name)} & set(kept):
            del kept[kept.index(spelling) : kept.index(spelling) + 2]
    return [*kept, *change]


Specdec = Callable[..., tuple[int, str, str]]
