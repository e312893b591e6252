"""Numbered events of committed words, speech and languages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.types import Event, Final, LanguageChanged, Partial, SpeechEnded, SpeechStarted, Unstable, Word

SENTENCE_ENDS = (".", "?", "!", "。", "？", "！", "؟", "।", "…")


@dataclass(frozen=True, slots=True)
class UnstableText:
    """Text that may change with the next update, with its span in seconds of the recording."""

    text: str = ""
    start_s: float = 0.0
    end_s: float = 0.0


class EventEmitter:
    """Makes events in order and numbers them; all times are seconds of the recording.

    sentence_s, longest_s: without a pause, a final is emitted at the end of a sentence after sentence_s,
    and after any word after longest_s. speakers: labels words, provisionally in a partial and again in a
    final; or None. allowed_mass: of a span in seconds, see `Final`.
    """

    def __init__(
        self,
        sentence_s: float,
        longest_s: float,
        speakers: LiveSpeakers | None = None,
        *,
        allowed_mass: Callable[[float, float], float | None] = lambda start_s, end_s: None,
    ) -> None:
        self._allowed_mass = allowed_mass
        self._speakers = speakers
        self._sentence_s = sentence_s
        self._longest_s = longest_s
        self._events: list[Event] = []
        self._n_emitted = 0
        self._utterance = 0
        self._words: list[Word] = []
        """Committed words since the last final."""
        self._unstable = ""

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def speech_started(self, at_s: float, now_s: float) -> None:
        self._utterance += 1
        self._emit(SpeechStarted(at_s, now_s, utterance=self._utterance))

    def speech_ended(self, at_s: float, now_s: float) -> None:
        self._emit(SpeechEnded(at_s, now_s, utterance=self._utterance))

    def emit_words(self, words: Sequence[Word], language: str, now_s: float) -> None:
        """Emit partials of committed words, and finals that are due."""
        for part in self._split_at_finals(words):
            self._emit_partial(part, language, now_s)
            if self._is_final_due(self._words[0].start, part[-1]):
                self.emit_final(language, now_s, goes_on=True)

    def _split_at_finals(self, words: Sequence[Word]) -> list[list[Word]]:
        parts: list[list[Word]] = [[]]
        start_s = self._words[0].start if self._words else None
        for word in words:
            start_s = word.start if start_s is None else start_s
            parts[-1].append(word)
            if self._is_final_due(start_s, word):
                parts.append([])
                start_s = None
        return [part for part in parts if part]

    def _emit_partial(self, words: Sequence[Word], language: str, now_s: float) -> None:
        if self._speakers is not None:
            words = self._speakers.label(words)
        self._words += words
        text = "".join(word.word for word in words)
        span = (words[0].start, words[-1].end)
        self._emit(Partial(*span, text, language, tuple(words), now_s, utterance=self._utterance))

    def emit_unstable(self, unstable: UnstableText, language: str, now_s: float) -> None:
        """Emit unstable text, if it differs from the last one."""
        if unstable.text == self._unstable:
            return
        self._unstable = unstable.text
        span = (unstable.start_s, unstable.end_s)
        self._emit(Unstable(*span, unstable.text, language, now_s, utterance=self._utterance))

    def language_changed(self, change: LanguageChanged) -> None:
        self._emit(change)

    def emit_final(self, language: str, now_s: float, *, goes_on: bool) -> None:
        """Emit the words since the last final as one; nothing without words.

        language: used if no word has one. goes_on: speech continues, and the next words get a new
        utterance id.
        """
        if not self._words:
            return
        words, self._words = tuple(self._words), []
        if self._speakers is not None:
            words = tuple(self._speakers.relabel(words))
        text = "".join(word.word for word in words).strip()
        most = Counter(word.language for word in words).most_common(1)[0][0] or language
        span = (words[0].start, words[-1].end)
        mass = self._allowed_mass(*span)
        self._emit(Final(*span, text, most, words, now_s, mass, utterance=self._utterance))
        self._utterance += goes_on

    def _is_final_due(self, start_s: float, last: Word) -> bool:
        span_s = last.end - start_s
        ends = last.word.rstrip().endswith(SENTENCE_ENDS)
        return span_s > self._longest_s or (ends and span_s > self._sentence_s)

    def _emit(self, event: Event) -> None:
        self._events.append(replace(event, seq=self._n_emitted))
        self._n_emitted += 1
