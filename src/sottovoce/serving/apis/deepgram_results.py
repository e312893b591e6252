"""What Deepgram's API tells of a recording, and of a stream: results that may change, and that stay.

Words are committed a few at a time. Those since the last result that stays make the next one: after some
seconds, or where the utterance ends. Knows no web framework.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import pairwise

from sottovoce.formats.document import Json, score, seconds
from sottovoce.formats.subtitles import ends_with
from sottovoce.serving.apis.deepgram_params import DeepgramParams
from sottovoce.serving.parsing.ignored import named
from sottovoce.speakers.speaker_names import letter_index
from sottovoce.text.punctuation import SENTENCE_ENDS
from sottovoce.types import Event, Final, Partial, SpeechEnded, SpeechStarted, Transcript, Unstable, Word

MAX_INTERIM_S = 4.0
"""Speech in a result that may change, until it stays."""
PUNCTUATION = '.,!?;:…。、，！？；："“”„«»()[]¿¡'

PARAGRAPH_PAUSE_S = 1.0
"""Between sentences, from which another paragraph begins."""
MAX_SENTENCES = 5
"""Of a paragraph."""


class DeepgramResults:
    """The results of one stream; times are seconds of its audio."""

    def __init__(self, params: DeepgramParams, request_id: str) -> None:
        self._params = params
        self._model = params.model or ""
        self._request_id = request_id
        self._words: list[Word] = []
        self._unstable = ""
        self._is_due = False
        self._is_speech = False
        self._end_s = 0.0
        self.behind_s = 0.0
        """Of received audio that no event accounts for yet, beyond Deepgram's API."""
        self._untold_end_s: float | None = None
        self._audio = hashlib.sha256()
        self._created = datetime.now(timezone.utc)

    def add_bytes(self, data: bytes) -> None:
        """Note what came, for the metadata."""
        self._audio.update(data)

    def render(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        """Yield what follows from the session's events."""
        changed = False
        for event in events:
            if isinstance(event, SpeechStarted):
                self._is_speech = True
                if self._params.vad_events:
                    yield {"type": "SpeechStarted", "channel": [0, 1], "timestamp": seconds(event.at)}
            elif isinstance(event, SpeechEnded):
                self._is_speech = False
                yield self._final(event.at, speech_final=self._params.pause_ms is not None)
            else:
                changed = self._take(event) or changed
                yield from self._long_enough()
        if self._is_due:
            yield self._final(self._last_s)
        elif changed and self._params.interim_results:
            yield self._interim(received_s)
        yield from self._utterance_end(received_s)

    def finalized(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        """Yield what follows where the client asks for what was heard; the last of it says so."""
        for event in events:
            self._take(event)
        self._is_speech = False
        yield self._final(
            max(received_s, self._last_s), speech_final=self._params.pause_ms is not None, from_finalize=True
        )

    def ended(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        """Yield the rest, and what there is to say of the whole."""
        yield from self.render(events, received_s)
        if self._words:
            yield self._final(received_s, speech_final=self._params.pause_ms is not None)
        about = metadata(self._params, self._request_id, self._audio.hexdigest(), received_s, self._created)
        yield {"type": "Metadata", **about}

    @property
    def _last_s(self) -> float:
        return self._words[-1].end if self._words else self._end_s

    def _take(self, event: object) -> bool:
        """Take an event; returns whether it changes what may still change."""
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
        if self._words and self._words[-1].end - self._words[0].start >= MAX_INTERIM_S:
            yield self._final(self._last_s)

    def _utterance_end(self, received_s: float) -> Iterator[dict[str, Json]]:
        limit_ms, end_s = self._params.utterance_end_ms, self._untold_end_s
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
        alternative = alternative_of(words, self._params, extra)
        return {
            "type": "Results",
            "channel_index": [0, 1],
            "duration": seconds(max(0.0, end_s - self._end_s)),
            "start": seconds(self._end_s),
            "channel": {"alternatives": [alternative]},
            "metadata": {
                "request_id": self._request_id,
                "model_info": info,
                "model_uuid": self._model,
                "behind_s": self.behind_s,
            },
        }


def alternative_of(words: Sequence[Word], params: DeepgramParams, extra: str = "") -> dict[str, Json]:
    """Render words as the one alternative there is. extra: text behind them that may still change."""
    if params.is_punctuated:
        text = "".join(word.word for word in words) + extra
    else:
        text = "".join(plain(word.word) for word in words) + plain(extra)
    mean = sum(word.probability for word in words) / len(words) if words else 0.0
    document: dict[str, Json] = {
        "transcript": text.strip(),
        "confidence": score(mean),
        "words": [word_of(word, params) for word in words],
    }
    if params.is_multi:
        counts = Counter(word.language for word in words if word.language)
        document["languages"] = [code for code, _ in counts.most_common()]
    return document


def word_of(word: Word, params: DeepgramParams) -> dict[str, Json]:
    """Render one of `words`."""
    document: dict[str, Json] = {
        "word": plain(word.word).strip(),
        "start": seconds(word.start),
        "end": seconds(word.end),
        "confidence": score(word.probability),
    }
    if params.is_punctuated:
        document["punctuated_word"] = word.word.strip()
    if params.is_multi:
        document["language"] = word.language
    if params.has_speakers and word.speaker is not None:
        document["speaker"] = letter_index(word.speaker)
    return document


def plain(text: str) -> str:
    """Return a text in lower case without punctuation; the space before it stays."""
    parts = (part.strip(PUNCTUATION).lower() for part in text.split(" "))
    return " ".join(parts)


def model_info(model: str) -> dict[str, Json]:
    """Describe a model."""
    return {"name": model, "version": "1", "arch": "whisper"}


def recording_document(
    transcript: Transcript, params: DeepgramParams, request_id: str, sha256: str
) -> dict[str, Json]:
    """Render a recording; sha256: of its bytes."""
    words = [
        replace(word, speaker=word.speaker or segment.speaker)
        for segment in transcript.segments
        for word in segment.words or ()
    ]
    alternative = alternative_of(words, params)
    if params.paragraphs:
        alternative["paragraphs"] = paragraphs_of(words, params)
    channel: dict[str, Json] = {"alternatives": [alternative]}
    if len(params.languages) != 1 and transcript.language:
        channel["detected_language"] = transcript.language
        if transcript.language_probability is not None:
            channel["language_confidence"] = score(transcript.language_probability)
    results: dict[str, Json] = {"channels": [channel]}
    if params.utterances:
        parts = cut(words, lambda a, b: b.start - a.end >= params.utt_split_s or a.speaker != b.speaker)
        results["utterances"] = [utterance(part, i, params) for i, part in enumerate(parts)]
    about = metadata(params, request_id, sha256, transcript.duration, datetime.now(timezone.utc))
    return {"metadata": about, "results": results}


def metadata(
    params: DeepgramParams, request_id: str, sha256: str, duration_s: float, created: datetime
) -> dict[str, Json]:
    """Describe audio as a whole; sha256: of its bytes."""
    model = params.model or ""
    return {
        "transaction_key": "deprecated",
        "request_id": request_id,
        "sha256": sha256,
        "created": created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "duration": seconds(duration_s),
        "channels": 1,
        "models": [model],
        "model_info": {model: model_info(model)},
        **({"warnings": warnings_of(params.ignored)} if params.ignored else {}),
    }


def warnings_of(ignored: Sequence[str]) -> list[Json]:
    """Render parameters without effect as Deepgram renders warnings."""
    return [
        {"parameter": name, "type": "unsupported_parameter", "message": f"{name}: without effect here"}
        for name in named(ignored)
    ]


def utterance(words: Sequence[Word], number: int, params: DeepgramParams) -> dict[str, Json]:
    """Render one of `utterances`."""
    times = {"start": seconds(words[0].start), "end": seconds(words[-1].end), "channel": 0}
    document: dict[str, Json] = {**times, **alternative_of(words, params), "id": str(number)}
    return {**document, **speaker_of(words, params)}


def paragraphs_of(words: Sequence[Word], params: DeepgramParams) -> dict[str, Json]:
    """Render `paragraphs`: sentences of one speaker, up to a pause or `MAX_SENTENCES`."""
    found: list[Json] = []
    texts: list[str] = []
    for sentences in paragraphs(words):
        own = [word for sentence in sentences for word in sentence]
        speaker = speaker_of(own, params)
        documents: list[Json] = [
            {"text": text_of(part), "start": seconds(part[0].start), "end": seconds(part[-1].end)}
            for part in sentences
        ]
        times = {"start": seconds(own[0].start), "end": seconds(own[-1].end)}
        found.append({"sentences": documents, "num_words": len(own), **times, **speaker})
        before = f"Speaker {speaker['speaker']}: " if speaker else ""
        texts.append(before + " ".join(text_of(part) for part in sentences))
    return {"transcript": "\n" + "\n\n".join(texts) if texts else "", "paragraphs": found}


def paragraphs(words: Sequence[Word]) -> Iterator[list[Sequence[Word]]]:
    """Yield paragraphs as lists of sentences, which are words."""
    held: list[Sequence[Word]] = []
    for sentence in cut(words, lambda a, b: ends_with(a.word, SENTENCE_ENDS) or a.speaker != b.speaker):
        if held:
            last, first = held[-1][-1], sentence[0]
            is_apart = first.start - last.end >= PARAGRAPH_PAUSE_S or last.speaker != first.speaker
            if is_apart or len(held) == MAX_SENTENCES:
                yield held
                held = []
        held.append(sentence)
    if held:
        yield held


def cut(words: Sequence[Word], between: Callable[[Word, Word], bool]) -> Iterator[Sequence[Word]]:
    """Cut words into parts wherever `between` holds for two neighbours."""
    ends = [i for i, (a, b) in enumerate(pairwise(words), start=1) if between(a, b)]
    borders = [0, *ends, len(words)]
    return (words[start:end] for start, end in pairwise(borders) if end > start)


def text_of(words: Sequence[Word]) -> str:
    """Join words as they are written."""
    return "".join(word.word for word in words).strip()


def speaker_of(words: Sequence[Word], params: DeepgramParams) -> dict[str, Json]:
    """Render `speaker`, where it is asked for and known."""
    name = words[0].speaker
    return {"speaker": letter_index(name)} if params.has_speakers and name is not None else {}
