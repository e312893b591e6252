"""Units of translation: segments joined to sentences, and growing live utterances.

The common prefix of two successive translations is shown, and never changed. The end of an utterance gives
its whole translation, which may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Protocol

from sottovoce.formats.document import Json, seconds, span_document
from sottovoce.offline.regroup import merged
from sottovoce.text.filters import TextFilter, filtered
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.types import Event, Final, Partial, Segment

CLOSING = "\"'”’»)]}」』"
LONGEST_S, LONGEST_PAUSE_S, MOST_LETTERS = 12.0, 1.0, 300


def sentences(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Join segments that end within a sentence, and renumber them.

    A sentence ends at a pause, a change of speaker or language, and after 12 s.
    """
    for number, sentence in enumerate(merged(segments, _goes_on)):
        yield replace(sentence, id=number)


def with_translation(segment: Segment, translation: str | None) -> Segment:
    """Add a translation, unless it is empty or equal to the text."""
    text = (translation or "").strip()
    is_same = text.split() == segment.text.split()
    return replace(segment, translation=None if is_same or not text else text)


def _goes_on(first: Segment, second: Segment) -> bool:
    text = first.text.rstrip().rstrip(CLOSING)
    return (
        not text.endswith(SENTENCE_ENDS)
        and first.language == second.language
        and first.speaker == second.speaker
        and second.start - first.end <= LONGEST_PAUSE_S
        and second.end - first.start <= LONGEST_S
        and len(first.text) + len(second.text) <= MOST_LETTERS
    )


N_NEW_WORDS = 3


@dataclass(frozen=True, slots=True)
class SourceText:
    """Text of an utterance, with its seconds of the stream.

    is_whole: the utterance has ended.
    """

    start: float
    end: float
    text: str
    language: str
    is_whole: bool


class LiveTranslatorBackend(Protocol):
    @property
    def target(self) -> str: ...

    def translate(self, source: SourceText) -> str:
        """Translate the text.

        Raises: TranslationError.
        """
        ...


@dataclass(frozen=True, slots=True)
class LiveTranslation:
    """A translation to show.

    text: newly agreed words, or with is_final the whole utterance. start, end: of the source, in seconds.
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
        """The event `translation`, as values for JSON."""
        return {
            "type": "translation",
            **span_document(self.start, self.end),
            "text": self.text,
            "language": self.language,
            "words": [],
            "emission_time": seconds(self.emission_time),
            "utterance": self.utterance,
            "final": self.is_final,
        }


@dataclass(slots=True)
class LiveTranslator:
    """Translates the events of one session.

    n_new_words: new words before an utterance is translated again. filters: of translations.
    """

    translator: LiveTranslatorBackend
    n_new_words: int = N_NEW_WORDS
    filters: Sequence[TextFilter] = ()
    _utterance: int | None = field(default=None, init=False)
    _text: str = field(default="", init=False)
    _n_translated: int = field(default=0, init=False)
    _last: tuple[str, ...] = field(default=(), init=False)
    _shown: tuple[str, ...] = field(default=(), init=False)
    _start: float = field(default=0.0, init=False)

    def take(self, event: Event, *, is_newest: bool = True) -> Iterator[LiveTranslation]:
        """Process an event; yield the translations to show.

        is_newest: False skips a partial.
        Raises: TranslationError; the session may continue.
        """
        if isinstance(event, Partial):
            if event.utterance != self._utterance:
                self._begin()
                self._utterance = event.utterance
            yield from self._translate_partial(event, is_newest=is_newest)
        elif isinstance(event, Final):
            if event.utterance == self._utterance:  # that of a second pass may come in the next utterance
                self._begin()
            if event.text.strip():
                source = SourceText(event.start, event.end, event.text, event.language, is_whole=True)
                yield self._translation(event, event.start, self._translated(source), is_final=True)

    def _translated(self, source: SourceText) -> str:
        return filtered(self.translator.translate(source), self.filters, self.translator.target)

    def _begin(self) -> None:
        self._text, self._n_translated, self._last, self._shown = "", 0, (), ()

    def _translate_partial(self, event: Partial, *, is_newest: bool) -> Iterator[LiveTranslation]:
        if not self._text:
            self._start = event.start
        self._text += event.text
        n_words = len(self._text.split())
        if not is_newest or n_words - self._n_translated < self.n_new_words:
            return
        self._n_translated = n_words
        source = SourceText(self._start, event.end, self._text, event.language, is_whole=False)
        now = tuple(self._translated(source).split())
        agreed = common_beginning(self._last, now)
        self._last = now
        if len(agreed) > len(self._shown) and agreed[: len(self._shown)] == self._shown:
            new = agreed[len(self._shown) :]
            self._shown = agreed
            yield self._translation(event, self._start, " ".join(new), is_final=False)

    def _translation(
        self, event: Partial | Final, start: float, text: str, *, is_final: bool
    ) -> LiveTranslation:
        target = self.translator.target
        return LiveTranslation(start, event.end, text, target, event.emission_time, event.utterance, is_final)


def mark_newest(events: Sequence[Event]) -> Iterator[tuple[Event, bool]]:
    """Pair simultaneous events with whether they are the newest of their utterance."""
    last = max((i for i, event in enumerate(events) if isinstance(event, Partial | Final)), default=0)
    for i, event in enumerate(events):
        yield event, isinstance(event, Final) or i >= last


def common_beginning(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    pairs = zip(first, second, strict=False)
    return tuple(first_word for first_word, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
