"""How a transcript looks on a terminal: times, a colour for each language, text."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from sottovoce.cli.progress_bar import clock
from sottovoce.formats.base import TranscriptInfo
from sottovoce.types import Segment, Word

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


CONFIDENCE = ((0.5, "red"), (0.7, "dark_orange"), (0.85, "yellow"), (0.95, "green_yellow"))
"""Probabilities below which a word has the colour; from the last one up it is green."""


def coloured(word: Word) -> str:
    """Markup of a word in the colour of its probability."""
    colour = next((name for limit, name in CONFIDENCE if word.probability < limit), "green")
    return f"[{colour}]{escape(word.word)}[/{colour}]"


class ScreenWriter:
    """A writer for people: one segment a line. Pipes get the txt format instead.

    by_confidence: words have the colour of their probability, where the words are known.
    """

    extension = "txt"

    def __init__(self, console: Console, *, by_confidence: bool = False) -> None:
        self._console = console
        self._by_confidence = by_confidence
        self._languages: list[str] = []

    def begin(self, info: TranscriptInfo) -> str:
        return ""

    def segment(self, segment: Segment) -> str:
        if segment.language not in self._languages:
            self._languages.append(segment.language)
        colour = COLOURS[self._languages.index(segment.language) % len(COLOURS)]
        times = f"[dim]{clock(segment.start):>7}-{clock(segment.end):<7}[/dim]"
        text = escape(segment.text.strip())
        if self._by_confidence and segment.words:
            text = "".join(map(coloured, segment.words)).strip()
        if segment.speaker:
            text = f"[bold]{escape(segment.speaker)}:[/bold] {text}"
        with self._console.capture() as capture:
            self._console.print(f"{times} [{colour}]{segment.language}[/{colour}]  {text}", soft_wrap=True)
        return capture.get()

    def end(self, info: TranscriptInfo) -> str:
        return ""
