"""The list of files in docs/source.md, made of the first line of each module's docstring.

python tests/helpers/source_map.py writes it; `make fix` does too. A test compares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "source.md"
COMMAND = "python tests/helpers/source_map.py"
BEGIN = f"<!-- begin: written by {COMMAND} -->"
END = "<!-- end -->"


def first_line(module: Path) -> str:
    """The first line of a module's docstring; empty where there is none."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    return docstring.splitlines()[0] if docstring else ""


def rooms() -> Iterator[tuple[str, str, list[Path]]]:
    """Each folder with modules: its path from the root, what it is for, its modules."""
    for init in sorted((ROOT / "specdec_cli").rglob("__init__.py")):
        modules = sorted(path for path in init.parent.glob("*.py") if path != init)
        yield f"{init.parent.relative_to(ROOT).as_posix()}/", first_line(init), modules
    yield (
        "benchmarks/",
        "Scripts that measure, and the one that trains the demo pair.",
        sorted((ROOT / "benchmarks").glob("*.py")),
    )


def source_map() -> str:
    """The list, as Markdown: a heading for each folder, a line for each file."""
    lines = []
    for folder, purpose, modules in rooms():
        lines += [f"### `{folder}`", "", purpose, ""]
        lines += [f"- `{module.name}`: {first_line(module)}" for module in modules]
        lines += [""] if modules else []
    return "\n".join(lines)


def parts(page: str) -> tuple[str, str, str]:
    """What stands before the list, the list, and what stands behind it."""
    before, rest = page.split(f"{BEGIN}\n\n")
    listed, after = rest.split(f"\n{END}\n")
    return before, listed, after


if __name__ == "__main__":
    before, _, after = parts(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(f"{before}{BEGIN}\n\n{source_map()}\n{END}\n{after}", encoding="utf-8")
