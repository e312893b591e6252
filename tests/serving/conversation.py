"""A conversation of three for servers of tests, whose speakers are corrected where an utterance ends."""

from __future__ import annotations

from sottovoce.types import SAMPLE_RATE, Event, Partial, Samples, Word
from tests.serving.servers import SlowModel, SlowSession

TALK = (
    ("A", "en", "Good morning everybody, shall we begin with the budget?"),
    ("B", "en", "Yes, please. I have the figures here."),
    ("C", "de", "Ich möchte ganz kurz die Kontakte beschreiben."),
    ("A", "en", "Thank you. Then let us go on with the next point."),
)
WORD_S = 0.3


class TalkSession(SlowSession):
    """Says `TALK`, a word every 0.3 s; the second turn is given to somebody else until the utterance ends."""

    def push(self, pcm: Samples) -> list[Event]:
        self._n_samples += len(pcm)
        all_words = talk(late=True)
        n = min(int(self._n_samples / SAMPLE_RATE / WORD_S), len(all_words))
        new, before = all_words[len(self._words) : n], self._words
        self._words = [*before, *new]
        if not new:
            return []
        said = "".join(word.word for word in new)
        return [Partial(new[0].start, new[-1].end, said, "en", tuple(new), new[-1].end)]

    def close(self) -> list[Event]:
        n = len(self._words)
        self._words = talk(late=False)[:n]
        return super().close()


def talk(*, late: bool) -> list[Word]:
    spoken = [
        (f" {word}", language, "D" if late and speaker == "B" else speaker)
        for speaker, language, text in TALK
        for word in text.split()
    ]
    return [
        Word(word, i * WORD_S, (i + 1) * WORD_S, 1.0, language, speaker=speaker)
        for i, (word, language, speaker) in enumerate(spoken)
    ]


class TalkModel(SlowModel):
    def session(self, languages: object = None, **options: object) -> SlowSession:
        return TalkSession(self)
