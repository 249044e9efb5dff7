"""Text on its way to a person: as it is accepted, coloured by where it came from, never past a stop string."""

from __future__ import annotations

from collections import deque
from typing import TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

STYLES = {"accepted": "green", "recovered": "red", "bonus": "cyan", "plain": ""}
LEGEND = (
    ("accepted", "accepted from the draft"),
    ("recovered", "the target's own after a rejection"),
    ("bonus", "the target's own after a full accept"),
)


class TextPrinter:
    """Writes pieces of text as they become safe to show.

    Args:
        out: where to.
        show_draft: colour by provenance; without colours, accepted text stands between marks.

    Attributes:
        text: everything pushed so far.
    """

    def __init__(self, out: TextIO, show_draft: bool) -> None:
        self.text = ""
        self._out = out
        self._console = Console(file=out, soft_wrap=True, highlight=False) if show_draft else None
        self._waiting: deque[tuple[str, str]] = deque()
        self._shown = 0
        self._open = False
        self._marks = _marks(out)

    def push(self, text: str, provenance: str) -> None:
        """Take a token's text."""
        if text:
            self._waiting.append((text, provenance))
            self.text += text

    def show(self, held_back: int = 0) -> None:
        """Show all but so many characters, which may turn out to begin a stop string."""
        self._show(len(self.text) - held_back)

    def finish(self, length: int | None = None) -> str:
        """Show the rest, up to `length` characters of the whole text, which is returned."""
        text = self.text[:length]
        self._show(len(text))
        self._mark(False)
        if text and not text.endswith("\n"):
            self._out.write("\n")
        self._out.flush()
        return text

    def _show(self, length: int) -> None:
        while self._waiting and self._shown < length:
            text, provenance = self._waiting.popleft()
            now, later = text[: length - self._shown], text[length - self._shown :]
            if later:
                self._waiting.appendleft((later, provenance))
            self._write(now, provenance)
            self._shown += len(now)
        self._out.flush()

    def _write(self, text: str, provenance: str) -> None:
        if self._console is None:
            self._out.write(text)
        elif _has_colour(self._console):
            # Not Console.print, which turns tabs into spaces and drops control characters.
            style = Style.parse(STYLES[provenance])
            self._out.write(style.render(text, color_system=ColorSystem.STANDARD))
        else:
            self._mark(provenance == "accepted")
            self._out.write(text)

    def _mark(self, accepted: bool) -> None:
        if self._console is not None and accepted != self._open and not _has_colour(self._console):
            self._out.write(self._marks[not accepted])
            self._open = accepted


def _has_colour(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def _marks(out: TextIO) -> tuple[str, str]:
    """What stands before and behind accepted text, in the characters that the stream has."""
    marks = "‹›"
    try:
        marks.encode(getattr(out, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        marks = "<>"
    return marks[0], marks[1]


def legend(out: TextIO) -> Text:
    """What the colours on this stream, or the marks without colours, stand for."""
    if _has_colour(Console(file=out)):
        parts = [Text(label, style=STYLES[kind]) for kind, label in LEGEND]
        return Text(", ").join(parts)
    before, behind = _marks(out)
    return Text(f"{before}accepted from the draft{behind}, the target's own outside")
