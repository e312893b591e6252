"""Translation of what is said live: shown as far as two readings agree, and whole at the end of an utterance.

While an utterance grows, what was said of it is translated again and again; the words with which two
translations in a row begin are shown, and never taken back. The end of the utterance brings its whole
translation, which may differ from what was shown. Knows events, neither sessions nor who translates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sottovoce.formats.document import Json, seconds
from sottovoce.translation.said import Interpreter, Said
from sottovoce.types import Event, Final, Partial

N_NEW_WORDS = 3
"""Words that must come before an utterance is translated again."""


@dataclass(frozen=True, slots=True)
class Translated:
    """What an utterance says in another language.

    text: the words that two readings agree on and that were not shown yet; where is_final, all of it. start,
    end: of what was said, in seconds.
    """

    start: float
    end: float
    text: str
    language: str
    emission_time: float
    utterance: int | None
    is_final: bool

    @property
    def document(self) -> dict[str, Json]:
        """As plain values for JSON: type `translation`, with the fields that events have, and `final`."""
        return {
            "type": "translation",
            "start": seconds(self.start),
            "end": seconds(self.end),
            "text": self.text,
            "language": self.language,
            "words": [],
            "emission_time": seconds(self.emission_time),
            "utterance": self.utterance,
            "final": self.is_final,
        }


@dataclass(slots=True)
class LiveTranslator:
    """Translates one session; `take` is given all its events in order.

    n_new_words: that must come before an utterance is translated again.
    """

    translator: Interpreter
    n_new_words: int = N_NEW_WORDS
    _said: str = field(default="", init=False)
    _asked: int = field(default=0, init=False)
    _last: tuple[str, ...] = field(default=(), init=False)
    _shown: tuple[str, ...] = field(default=(), init=False)
    _start: float = field(default=0.0, init=False)

    def take(self, event: Event, *, is_newest: bool = True) -> Iterator[Translated]:
        """What is to be shown after an event.

        is_newest: see `newest`; what more has been said of already is not translated.
        Raises: TranslationError; the session goes on with the next event.
        """
        if isinstance(event, Partial):
            yield from self._grow(event, is_newest=is_newest)
        elif isinstance(event, Final):
            self._begin()
            if event.text.strip():
                said = Said(event.start, event.end, event.text, event.language, is_whole=True)
                yield self._told(event, event.start, self.translator.spoken(said), is_final=True)

    def _begin(self) -> None:
        self._said, self._asked, self._last, self._shown = "", 0, (), ()

    def _grow(self, event: Partial, *, is_newest: bool) -> Iterator[Translated]:
        if not self._said:
            self._start = event.start
        self._said += event.text
        n_words = len(self._said.split())
        if not is_newest or n_words - self._asked < self.n_new_words:
            return
        self._asked = n_words
        said = Said(self._start, event.end, self._said, event.language, is_whole=False)
        now = tuple(self.translator.spoken(said).split())
        agreed = common_beginning(self._last, now)
        self._last = now
        if len(agreed) > len(self._shown) and agreed[: len(self._shown)] == self._shown:
            new = agreed[len(self._shown) :]
            self._shown = agreed
            yield self._told(event, self._start, " ".join(new), is_final=False)

    def _told(self, event: Partial | Final, start: float, text: str, *, is_final: bool) -> Translated:
        target = self.translator.target
        return Translated(start, event.end, text, target, event.emission_time, event.utterance, is_final)


def newest(events: Sequence[Event]) -> Iterator[tuple[Event, bool]]:
    """Events that came at once, each with whether none after it says more of its utterance."""
    last = max((i for i, event in enumerate(events) if isinstance(event, Partial | Final)), default=0)
    for i, event in enumerate(events):
        yield event, isinstance(event, Final) or i >= last


def common_beginning(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """The words with which both begin."""
    n_equal = next(
        (i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other),
        min(len(first), len(second)),
    )
    return tuple(first[:n_equal])
