"""What shows events together with their translation, numbered in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

import click

from sottovoce.api import Model
from sottovoce.cli.translation import Translation
from sottovoce.errors import TranslationError
from sottovoce.formats.document import event_line, json_text
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator, mark_newest
from sottovoce.translation.whisper_translate import N_NEW_WORDS, WhisperTranslator
from sottovoce.types import Event, Final, Samples

Show = Callable[[Sequence[Event]], None]


def live_translator(
    translation: Translation | None, model: Model, pieces: Iterator[Samples]
) -> tuple[LiveTranslator | None, Iterator[Samples]]:
    """Make what translates a session, and give its audio in pieces, which the model may need again.

    Raises: OptionError for a model that cannot translate where no server is asked.
    """
    if translation is None:
        return None, pieces
    if translation.translator is not None:
        return LiveTranslator(translation.translator), pieces
    own = WhisperTranslator(model)
    return LiveTranslator(own, N_NEW_WORDS), own.tee(pieces)


def translation_line(translation: LiveTranslation, seq: int) -> str:
    """Write one translation as a line of JSON, numbered as all events are."""
    return json_text({**translation.document, "seq": seq}) + "\n"


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
            for translation in self._translations(event, is_newest=is_newest):
                self._translation(translation, event)
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

    def _translation(self, translation: LiveTranslation, event: Event) -> None:
        if self.out is not None:
            self.out.write(translation_line(translation, self._next()))
        elif (
            isinstance(event, Final) and translation.text != event.text.strip()
        ):  # else it was said in that language
            click.echo(
                f"[{translation.language} {translation.start:7.2f}-{translation.end:7.2f}] {translation.text}"
            )

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1
