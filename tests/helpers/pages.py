"""README.md and docs/*.md, taken apart: fenced blocks, the commands in them, code between backticks, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from running import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COMMANDS = ("sh", "console")  # what a block of commands is called; the second has their output too
DATA = ("json", "yaml")

_BLOCK = re.compile(r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page, line: where its first line of text stands; lines count from 1.
        language: what stands behind the fence.
        text: its lines.
        note: of the HTML comment in the line before; empty where there is none.
    """

    page: Path
    line: int
    language: str
    text: str
    note: str

    def noted(self, word: str) -> str:
        """What the note says behind `word:`; empty where it says something else."""
        found = re.fullmatch(rf"{word}: (.+)", self.note)
        return found[1] if found else ""


@dataclass(frozen=True)
class Command:
    """A command line of a page.

    Attributes:
        where: the page and the line.
        line: as it stands there, without a prompt.
        not_run: why it is not run but only read; empty where it is run.
    """

    where: str
    line: str
    not_run: str


def name(page: Path) -> str:
    """A page's path from the root."""
    return page.relative_to(ROOT).as_posix()


def blocks() -> Iterator[Block]:
    """All fenced blocks of all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in _BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("text")) + 1
            yield Block(page, line, found["language"], found["text"], found["note"] or "")


def commands() -> Iterator[Command]:
    """All commands of all blocks: each line of a `sh` block, and what stands behind `$ ` in a `console` block."""
    for block in blocks():
        for number, line in enumerate(block.text.splitlines(), start=block.line):
            if block.language == "sh" and line.strip():
                yield Command(f"{name(block.page)}:{number}", line, block.noted("not run"))
            elif block.language == "console" and line.startswith("$ "):
                yield Command(f"{name(block.page)}:{number}", line.removeprefix("$ "), block.noted("not run"))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    """What stands between backticks in a page's prose."""
    return re.findall(r"`([^`]+)`", prose(page))


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Where a page's relative links and pictures point: a path (empty for the page itself) and an anchor."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"\w+://", target):
            path, _, anchor = target.partition("#")
            yield path, anchor
