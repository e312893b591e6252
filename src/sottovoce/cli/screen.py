"""How a transcript looks on a terminal: times, a colour for each language, text."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from sottovoce.cli.progress import clock
from sottovoce.formats.base import TranscriptInfo
from sottovoce.types import Segment

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class ScreenWriter:
    """A writer for people: one segment a line. Pipes get the txt format instead."""

    extension = "txt"

    def __init__(self, console: Console) -> None:
        self._console = console
        self._languages: list[str] = []

    def begin(self, info: TranscriptInfo) -> str:
        return ""

    def segment(self, segment: Segment) -> str:
        if segment.language not in self._languages:
            self._languages.append(segment.language)
        colour = COLOURS[self._languages.index(segment.language) % len(COLOURS)]
        times = f"[dim]{clock(segment.start):>7}-{clock(segment.end):<7}[/dim]"
        text = escape(segment.text.strip())
        with self._console.capture() as capture:
            self._console.print(f"{times} [{colour}]{segment.language}[/{colour}]  {text}", soft_wrap=True)
        return capture.get()

    def end(self, info: TranscriptInfo) -> str:
        return ""
