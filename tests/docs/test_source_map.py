"""docs/source.md lists every module and every script, once, in its own words."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from running import ROOT
from source_map import COMMAND, PAGE, first_line, parts, rooms, source_map


def test_the_list_of_files_is_what_the_docstrings_say() -> None:
    _, listed, _ = parts(PAGE.read_text(encoding="utf-8"))
    assert listed == source_map(), f"the list of files in docs/source.md is old: run {COMMAND}"


def test_every_module_and_script_is_listed_once_and_nothing_else() -> None:
    _, listed, _ = parts(PAGE.read_text(encoding="utf-8"))
    named: Counter[str] = Counter()
    folder = ""
    for line in listed.splitlines():
        if heading := re.fullmatch(r"### `(.+/)`", line):
            folder = heading[1]
            named[f"{folder}__init__.py"] += folder.startswith("specdec_cli/")
        elif entry := re.match(r"- `(.+?)`: ", line):
            named[folder + entry[1]] += 1
    files = [*(ROOT / "specdec_cli").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    there = Counter(path.relative_to(ROOT).as_posix() for path in files)
    assert +named == there, f"docs/source.md and the tree differ: run {COMMAND}"


@pytest.mark.parametrize("folder", [folder for folder, _, _ in rooms()])
def test_every_first_line_is_a_sentence_of_one_line(folder: str) -> None:
    for path in (ROOT / folder).glob("*.py"):
        line = first_line(path)
        assert re.fullmatch(r".{10,118}[.?)]", line), f"{path}: the docstring's first line does not say what it is"
