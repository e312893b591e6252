"""The events of a session, numbered and in order, until they are fetched.

Not known here: audio, models, and when something happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from sottovoce.speakers.live import LiveSpeakers
from sottovoce.streaming.draft import DraftText
from sottovoce.types import (
    Event,
    Final,
    LanguageChanged,
    Partial,
    SpeechEnded,
    SpeechStarted,
    Unstable,
    Word,
)

SENTENCE_ENDS = (".", "?", "!", "。", "？", "！", "؟", "।", "…")


class Teller:
    """Collects what happens; times in seconds.

    sentence_s, longest_s: where nobody pauses, words make a final at the end of a sentence once they span the
    one, and at any word once they span the other. speakers: say who says the words, and once more in a final.
    allowed_mass: of a span of time, see `Final`.
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
        self._n_told = 0
        self._utterance = 0
        self._words: list[Word] = []
        self._unstable = ""

    def take(self) -> list[Event]:
        """What was told since the last time."""
        events, self._events = self._events, []
        return events

    def started(self, at_s: float, now_s: float) -> None:
        self._utterance += 1
        self._tell(SpeechStarted(at_s, now_s, utterance=self._utterance))

    def ended(self, at_s: float, now_s: float) -> None:
        self._tell(SpeechEnded(at_s, now_s, utterance=self._utterance))

    def say(self, words: Sequence[Word], language: str, now_s: float) -> None:
        """Words were committed; where nobody pauses, a final comes among or behind them."""
        for piece in self._pieces(words):
            self._said(piece, language, now_s)
            if self._is_enough(self._words[0].start, piece[-1]):
                self.final(language, now_s, goes_on=True)

    def _pieces(self, words: Sequence[Word]) -> list[list[Word]]:
        """Words that are about to be told, parted where a final is due."""
        pieces: list[list[Word]] = [[]]
        start_s = self._words[0].start if self._words else None
        for word in words:
            start_s = word.start if start_s is None else start_s
            pieces[-1].append(word)
            if self._is_enough(start_s, word):
                pieces.append([])
                start_s = None
        return [piece for piece in pieces if piece]

    def _said(self, words: Sequence[Word], language: str, now_s: float) -> None:
        if self._speakers is not None:
            words = self._speakers.first(words)
        self._words += words
        text = "".join(word.word for word in words)
        span = (words[0].start, words[-1].end)
        self._tell(Partial(*span, text, language, tuple(words), now_s, utterance=self._utterance))

    def may_say(self, draft: DraftText, language: str, now_s: float) -> None:
        """Text that may change; told if it is new."""
        if draft.text == self._unstable:
            return
        self._unstable = draft.text
        span = (draft.start_s, draft.end_s)
        self._tell(Unstable(*span, draft.text, language, now_s, utterance=self._utterance))

    def changed(self, change: LanguageChanged) -> None:
        self._tell(change)

    def final(self, language: str, now_s: float, *, goes_on: bool) -> None:
        """Sum up the words since the last final, if any. goes_on: speech does, under a new id."""
        if not self._words:
            return
        words, self._words = tuple(self._words), []
        if self._speakers is not None:
            words = tuple(self._speakers.again(words))
        text = "".join(word.word for word in words).strip()
        most = Counter(word.language for word in words).most_common(1)[0][0] or language
        span = (words[0].start, words[-1].end)
        mass = self._allowed_mass(*span)
        self._tell(Final(*span, text, most, words, now_s, mass, utterance=self._utterance))
        self._utterance += goes_on

    def _is_enough(self, start_s: float, last: Word) -> bool:
        span_s = last.end - start_s
        ends = last.word.rstrip().endswith(SENTENCE_ENDS)
        return span_s > self._longest_s or (ends and span_s > self._sentence_s)

    def _tell(self, event: Event) -> None:
        self._events.append(replace(event, seq=self._n_told))
        self._n_told += 1
