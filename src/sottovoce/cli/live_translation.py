"""What shows events together with their translation, numbered in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

import click

from sottovoce.errors import TranslationError
from sottovoce.formats.document import json_text, seconds
from sottovoce.formats.events import event_line
from sottovoce.translation.live import LiveTranslator, Translated
from sottovoce.types import Event

Show = Callable[[Sequence[Event]], None]


def translation_line(told: Translated, seq: int) -> str:
    """One translation as a line of JSON: type `translation`, with the fields that all events have."""
    return (
        json_text(
            {
                "type": "translation",
                "start": seconds(told.start),
                "end": seconds(told.end),
                "text": told.text,
                "language": told.language,
                "words": [],
                "emission_time": seconds(told.emission_time),
                "seq": seq,
                "utterance": told.utterance,
                "final": told.is_final,
            }
        )
        + "\n"
    )


@dataclass(slots=True)
class TranslatedView:
    """Shows events, and after them what they say in another language.

    show: what shows the events, for a person. out: where JSON lines go instead. A translation that fails is
    one line on standard error, and the session goes on.
    """

    translator: LiveTranslator
    show: Show | None = None
    out: TextIO | None = None
    _seq: int = field(default=0, init=False)

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            self._event(event)
            for told in self._translations(event):
                self._translation(told)
        if self.out is not None:
            self.out.flush()

    def _translations(self, event: Event) -> Iterator[Translated]:
        try:
            yield from self.translator.take(event)
        except TranslationError as error:
            click.echo(f"error: {error}", err=True)

    def _event(self, event: Event) -> None:
        if self.out is not None:
            self.out.write(event_line(replace(event, seq=self._next())))
        elif self.show is not None:
            self.show([event])

    def _translation(self, told: Translated) -> None:
        if self.out is not None:
            self.out.write(translation_line(told, self._next()))
        elif told.is_final:
            click.echo(f"[{told.language} {told.start:7.2f}-{told.end:7.2f}] {told.text}")

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1
