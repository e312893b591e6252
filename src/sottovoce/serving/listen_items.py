"""Events of a session as Deepgram's API tells them: results that may change, and results that stay.

Words are committed a few at a time. Those since the last result that stays make the next one: after some
seconds, or where the utterance ends. Knows no sockets.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone

from sottovoce.formats.document import Json, score, seconds
from sottovoce.serving.listen_wish import ListenWish
from sottovoce.serving.told import Told
from sottovoce.speakers.names import place_of
from sottovoce.types import Final, Partial, SpeechEnded, SpeechStarted, Unstable, Word

LONGEST_S = 4.0
"""Speech in a result that may change, until it stays."""
PUNCTUATION = '.,!?;:…。、，！？；："“”„«»()[]¿¡'


class Results:
    """The results of one session. model: as it is told."""

    def __init__(self, wish: ListenWish, request_id: str, model: str) -> None:
        self._wish = wish
        self._model = model
        self._request_id = request_id
        self._words: list[Word] = []
        self._unstable = ""
        self._is_due = False
        self._is_speech = False
        self._end_s = 0.0
        self._untold_end_s: float | None = None
        self._audio = hashlib.sha256()
        self._created = datetime.now(timezone.utc)

    def hear(self, data: bytes) -> None:
        """Note what came, for the metadata."""
        self._audio.update(data)

    def tell(self, told: Iterable[Told], received_s: float) -> Iterator[dict[str, Json]]:
        """What follows from the session's events."""
        changed = False
        for one in told:
            event = one.event
            if isinstance(event, SpeechStarted):
                self._is_speech = True
                if self._wish.vad_events:
                    yield {"type": "SpeechStarted", "channel": [0, 1], "timestamp": seconds(event.at)}
            elif isinstance(event, SpeechEnded):
                self._is_speech = False
                yield self._final(event.at, speech_final=self._wish.pause_ms is not None)
            else:
                changed = self._take(event) or changed
                yield from self._long_enough()
        if self._is_due:
            yield self._final(self._last_s)
        elif changed and self._wish.interim_results:
            yield self._interim(received_s)
        yield from self._utterance_end(received_s)

    def finalized(self, told: Iterable[Told], received_s: float) -> Iterator[dict[str, Json]]:
        """What follows where the client asks for what was heard; the last of it says so."""
        for one in told:
            self._take(one.event)
        self._is_speech = False
        yield self._final(
            max(received_s, self._last_s), speech_final=self._wish.pause_ms is not None, from_finalize=True
        )

    def ended(self, told: Iterable[Told], received_s: float) -> Iterator[dict[str, Json]]:
        """The rest, and what there is to say of the whole."""
        yield from self.tell(told, received_s)
        if self._words:
            yield self._final(received_s, speech_final=self._wish.pause_ms is not None)
        yield {
            "type": "Metadata",
            "transaction_key": "deprecated",
            "request_id": self._request_id,
            "sha256": self._audio.hexdigest(),
            "created": self._created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "duration": seconds(received_s),
            "channels": 1,
            "models": [self._model],
            "model_info": {self._model: model_info(self._model)},
        }

    @property
    def _last_s(self) -> float:
        return self._words[-1].end if self._words else self._end_s

    def _take(self, event: object) -> bool:
        """Whether it changes what may still change."""
        if isinstance(event, Partial):
            self._words += event.words
            self._unstable = ""
            self._untold_end_s = self._last_s
        elif isinstance(event, Unstable):
            self._unstable = event.text
        elif isinstance(event, Final):
            self._is_due, self._unstable = True, ""
            if self._words:  # their speakers may have been corrected
                self._words = list(event.words[-len(self._words) :])
        return isinstance(event, Partial | Unstable)

    def _long_enough(self) -> Iterator[dict[str, Json]]:
        if self._words and self._words[-1].end - self._words[0].start >= LONGEST_S:
            yield self._final(self._last_s)

    def _utterance_end(self, received_s: float) -> Iterator[dict[str, Json]]:
        limit_ms, end_s = self._wish.utterance_end_ms, self._untold_end_s
        if limit_ms is None or end_s is None or self._is_speech or received_s - end_s < limit_ms / 1000:
            return
        self._untold_end_s = None
        yield {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": seconds(end_s)}

    def _interim(self, received_s: float) -> dict[str, Json]:
        document = self._results(self._words, max(received_s, self._last_s), extra=self._unstable)
        return {**document, "is_final": False, "speech_final": False, "from_finalize": False}

    def _final(
        self, end_s: float, *, speech_final: bool = False, from_finalize: bool = False
    ) -> dict[str, Json]:
        end_s = max(end_s, self._last_s)
        document = self._results(self._words, end_s)
        self._words, self._unstable, self._is_due, self._end_s = [], "", False, end_s
        return {**document, "is_final": True, "speech_final": speech_final, "from_finalize": from_finalize}

    def _results(self, words: Sequence[Word], end_s: float, extra: str = "") -> dict[str, Json]:
        info = model_info(self._model)
        alternative = alternative_of(words, self._wish, extra)
        return {
            "type": "Results",
            "channel_index": [0, 1],
            "duration": seconds(max(0.0, end_s - self._end_s)),
            "start": seconds(self._end_s),
            "channel": {"alternatives": [alternative]},
            "metadata": {"request_id": self._request_id, "model_info": info, "model_uuid": self._model},
        }


def alternative_of(words: Sequence[Word], wish: ListenWish, extra: str = "") -> dict[str, Json]:
    """The one reading of some words. extra: text behind them that may still change."""
    if wish.is_punctuated:
        text = "".join(word.word for word in words) + extra
    else:
        text = "".join(plain(word.word) for word in words) + plain(extra)
    mean = sum(word.probability for word in words) / len(words) if words else 0.0
    document: dict[str, Json] = {
        "transcript": text.strip(),
        "confidence": score(mean),
        "words": [word_of(word, wish) for word in words],
    }
    if wish.is_multi:
        said = Counter(word.language for word in words if word.language)
        document["languages"] = [code for code, _ in said.most_common()]
    return document


def word_of(word: Word, wish: ListenWish) -> dict[str, Json]:
    """One of `words`."""
    document: dict[str, Json] = {
        "word": plain(word.word).strip(),
        "start": seconds(word.start),
        "end": seconds(word.end),
        "confidence": score(word.probability),
    }
    if wish.is_punctuated:
        document["punctuated_word"] = word.word.strip()
    if wish.is_multi:
        document["language"] = word.language
    if wish.has_speakers and word.speaker is not None:
        document["speaker"] = place_of(word.speaker)
    return document


def plain(text: str) -> str:
    """Text in lower case without punctuation; the space before it stays."""
    parts = (part.strip(PUNCTUATION).lower() for part in text.split(" "))
    return " ".join(parts)


def model_info(model: str) -> dict[str, Json]:
    """What is told of a model."""
    return {"name": model, "version": "1", "arch": "whisper"}
