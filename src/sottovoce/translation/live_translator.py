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

    is_whole: the utterance has ended. source: of the live sources that spoke; None: there is one.
    """

    start: float
    end: float
    text: str
    language: str
    is_whole: bool
    source: str | None = None


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
    source: str | None = None

    @property
    def document(self) -> dict[str, Json]:
        """The event `translation`, as values for JSON."""
        source: dict[str, Json] = {} if self.source is None else {"source": self.source}
        return {
            "type": "translation",
            **span_document(self.start, self.end),
            "text": self.text,
            "language": self.language,
            "words": [],
            "emission_time": seconds(self.emission_time),
            "utterance": self.utterance,
            "final": self.is_final,
            **source,
        }


@dataclass(slots=True)
class _Utterance:
    """A growing utterance, and what was translated of it."""

    number: int | None
    start: float
    text: str = ""
    n_translated: int = 0
    last: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


@dataclass(slots=True)
class LiveTranslator:
    """Translates the events of one session, of several sources too.

    n_new_words: new words before an utterance is translated again. filters: of translations.
    """

    translator: LiveTranslatorBackend
    n_new_words: int = N_NEW_WORDS
    filters: Sequence[TextFilter] = ()
    _open: dict[str | None, _Utterance] = field(default_factory=dict, init=False)
    """By source."""

    def take(self, event: Event, *, is_newest: bool = True) -> Iterator[LiveTranslation]:
        """Process an event; yield the translations to show.

        is_newest: False skips a partial.
        Raises: TranslationError; the session may continue.
        """
        if isinstance(event, Partial):
            utterance = self._open.get(event.source)
            if utterance is None or utterance.number != event.utterance:
                utterance = self._open[event.source] = _Utterance(event.utterance, event.start)
            yield from self._translate_partial(event, utterance, is_newest=is_newest)
        elif isinstance(event, Final):
            utterance = self._open.get(event.source)
            if utterance is not None and utterance.number == event.utterance:
                del self._open[event.source]  # that of a second pass may come in the next utterance
            if event.text.strip():
                text = self._translated(event, event.start, event.text, is_whole=True)
                yield self._translation(event, event.start, text, is_final=True)

    def _translated(self, event: Partial | Final, start: float, text: str, *, is_whole: bool) -> str:
        source = SourceText(start, event.end, text, event.language, is_whole, event.source)
        return filtered(self.translator.translate(source), self.filters, self.translator.target)

    def _translate_partial(
        self, event: Partial, utterance: _Utterance, *, is_newest: bool
    ) -> Iterator[LiveTranslation]:
        utterance.text += event.text
        n_words = len(utterance.text.split())
        if not is_newest or n_words - utterance.n_translated < self.n_new_words:
            return
        utterance.n_translated = n_words
        text = self._translated(event, utterance.start, utterance.text, is_whole=False)
        now, shown = tuple(text.split()), utterance.shown
        agreed = common_beginning(utterance.last, now)
        utterance.last = now
        if len(agreed) > len(shown) and agreed[: len(shown)] == shown:
            utterance.shown = agreed
            yield self._translation(event, utterance.start, " ".join(agreed[len(shown) :]), is_final=False)

    def _translation(
        self, event: Partial | Final, start: float, text: str, *, is_final: bool
    ) -> LiveTranslation:
        target, at_s = self.translator.target, event.emission_time
        return LiveTranslation(start, event.end, text, target, at_s, event.utterance, is_final, event.source)


def mark_newest(events: Sequence[Event]) -> Iterator[tuple[Event, bool]]:
    """Pair simultaneous events with whether they are the newest of their utterance."""
    last = {event.source: i for i, event in enumerate(events) if isinstance(event, Partial | Final)}
    for i, event in enumerate(events):
        yield event, isinstance(event, Final) or i >= last.get(event.source, 0)


def common_beginning(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    pairs = zip(first, second, strict=False)
    return tuple(first_word for first_word, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
