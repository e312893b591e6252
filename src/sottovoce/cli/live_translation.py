"""What shows events together with their translation, numbered in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

import click

from sottovoce.api import Model
from sottovoce.cli.translation import Translation
from sottovoce.errors import TranslationError
from sottovoce.formats.document import json_text
from sottovoce.formats.event_lines import event_line
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator, mark_newest
from sottovoce.translation.whisper_translate import N_NEW_WORDS, WhisperTranslator
from sottovoce.types import Event, Final, Samples

Show = Callable[[Sequence[Event]], None]


def live_translator(
    wish: Translation | None, model: Model, pieces: Iterator[Samples]
) -> tuple[LiveTranslator | None, Iterator[Samples]]:
    """What translates a session, and the pieces of its audio, which the model may have to hear once more.

    Raises: OptionError for a model that cannot translate where no server is asked.
    """
    if wish is None:
        return None, pieces
    if wish.translator is not None:
        return LiveTranslator(wish.translator), pieces
    own = WhisperTranslator(model)
    return LiveTranslator(own, N_NEW_WORDS), own.tee(pieces)


def translation_line(told: LiveTranslation, seq: int) -> str:
    """One translation as a line of JSON, numbered as all events are."""
    return json_text({**told.document, "seq": seq}) + "\n"


@dataclass(slots=True)
class TranslatedView:
    """Shows events as soon as they come, and after them what they say in another language.

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
        self._flush()
        for event, is_newest in mark_newest(events):
            for told in self._translations(event, is_newest=is_newest):
                self._translation(told, event)
                self._flush()

    def _flush(self) -> None:
        if self.out is not None:
            self.out.flush()

    def _translations(self, event: Event, *, is_newest: bool) -> Iterator[LiveTranslation]:
        try:
            yield from self.translator.take(event, is_newest=is_newest)
        except TranslationError as error:
            click.echo(f"error: {error}", err=True)

    def _event(self, event: Event) -> None:
        if self.out is not None:
            self.out.write(event_line(replace(event, seq=self._next())))
        elif self.show is not None:
            self.show([event])

    def _translation(self, told: LiveTranslation, event: Event) -> None:
        if self.out is not None:
            self.out.write(translation_line(told, self._next()))
        elif (
            isinstance(event, Final) and told.text != event.text.strip()
        ):  # else it was said in that language
            click.echo(f"[{told.language} {told.start:7.2f}-{told.end:7.2f}] {told.text}")

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1
