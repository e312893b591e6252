"""A session on the terminal: committed words in the colour of their language, unstable ones dim."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sottovoce.types import Event, Final, LanguageChanged, Partial, Unstable

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


class LiveView:
    """Shows events as they come; a context manager. In a pipe, finished utterances are lines of text."""

    def __init__(self, console: Console | None = None) -> None:
        # FORCE_COLOR makes rich take a pipe for a terminal, and draw over lines there
        self._console = console or Console(force_terminal=sys.stdout.isatty())
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._line = Text()
        self._unstable = Text()
        self._colours: dict[str, str] = {}

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, events: Sequence[Event]) -> None:
        for event in events:
            self._take(event)
        if self._console.is_terminal:
            self._live.update(self._line + self._unstable, refresh=True)

    def _take(self, event: Event) -> None:
        if isinstance(event, Partial):
            self._line.append(event.text, style=self._colour(event.language))
            self._unstable = Text()
        elif isinstance(event, Unstable):
            self._unstable = Text(event.text, style=f"dim {self._colour(event.language)}")
        elif isinstance(event, Final):
            tag = f"[{event.language} {event.start:7.2f}-{event.end:7.2f}] "
            self._line, self._unstable = Text(), Text()
            if self._console.is_terminal:
                self._live.update(self._line)
            self._console.print(Text.assemble((tag, "dim"), self._spoken(event)), soft_wrap=True)
        elif isinstance(event, LanguageChanged) and event.source is not None:
            self._unstable = Text()

    def _spoken(self, event: Final) -> Text:
        """The text, with the name of a speaker before what is theirs, where they are known."""
        style = self._colour(event.language)
        if not any(word.speaker for word in event.words):
            return Text(event.text, style)
        parts = [
            f"{speaker or '?'}: {''.join(word.word for word in words).strip()}"
            for speaker, words in groupby(event.words, key=lambda word: word.speaker)
        ]
        return Text("  ".join(parts), style)

    def _colour(self, language: str) -> str:
        if language not in self._colours:
            self._colours[language] = COLOURS[len(self._colours) % len(COLOURS)]
        return self._colours[language]
