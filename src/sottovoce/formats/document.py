"""JSON: the document of a recording, events of a stream as JSON lines, and transcripts of other programs.

Written times are rounded to milliseconds and scores to six digits; scores that are not finite are null.

Documents are read in the shapes of sottovoce, openai-whisper and compatible programs, whisper.cpp and
transformers (docs/formats.md). Words get the space and punctuation of their segment's text; consecutive words
without times share the gap in proportion to their letters.
"""

from __future__ import annotations

import json
import logging
import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise
from statistics import fmean
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from sottovoce.errors import OptionError
from sottovoce.formats.output import TranscriptInfo, Writer, info_of
from sottovoce.offline.regroup import Split, regrouped
from sottovoce.text.languages import SENTENCE_ENDS, UNSPACED, UNSPACED_LETTERS, find_language
from sottovoce.types import (
    Event,
    Final,
    LanguageChanged,
    Partial,
    Segment,
    Span,
    SpeechEnded,
    SpeechStarted,
    Token,
    Transcript,
    Turn,
    TurnEnded,
    Unstable,
    Word,
)

logger = logging.getLogger(__name__)

VERY_LOW_CONFIDENCE, LOW_CONFIDENCE = 0.5, 0.8
"""Probabilities below which a word is as likely wrong as right, and below which it may be wrong."""


def has_low_confidence(probability: float) -> bool:
    """Return whether a word of this probability is likely wrong; never for NaN."""
    return probability < LOW_CONFIDENCE


Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


class JsonWriter(Writer):
    """One JSON object and a line break. Segments come first, because the text is known at the end."""

    extension = "json"
    _texts: list[str]

    def begin(self, info: TranscriptInfo) -> str:
        self._texts = []
        return f'{{"model": {json_text(info.model)}, "segments": ['

    def segment(self, segment: Segment) -> str:
        separator = ", " if self._texts else ""
        self._texts.append(segment.text)
        return separator + json_text(self._entry(segment))

    def end(self, info: TranscriptInfo) -> str:
        return "], " + json_text(_recording("".join(self._texts).strip(), info))[1:] + "\n"

    def _entry(self, segment: Segment) -> Mapping[str, Json]:
        return segment_document(segment)


class JsonFullWriter(JsonWriter):
    extension = "full.json"
    _text: Callable[[int], str | None] | None

    def begin(self, info: TranscriptInfo) -> str:
        self._text = info.token_text
        return super().begin(info)

    def _entry(self, segment: Segment) -> Mapping[str, Json]:
        words = [
            {**word_document(word), "tokens": [token.id for token in word.tokens]}
            for word in segment.words or ()
        ]
        details = list(_token_details(segment, self._text))
        return {**segment_document(segment), "words": words, "token_details": details}


def document(transcript: Transcript) -> dict[str, Json]:
    segments = [segment_document(segment) for segment in transcript.segments]
    whole = _recording(transcript.text, info_of(transcript))
    return {**whole, "model": transcript.model, "segments": segments}


def _recording(text: str, info: TranscriptInfo) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "text": text,
        "language": info.language,
        **_detection(info.language_probability, info.language_probabilities),
        "duration": None if info.duration is None else seconds(info.duration),
    }
    if info.turns:
        turns = info.turns
        fields["turns"] = [{**span_document(turn.start, turn.end), "speaker": turn.speaker} for turn in turns]
    if info.unread is not None:
        fields["unread"] = seconds(sum(end - start for start, end in info.unread))
    if info.unread:
        fields["unread_spans"] = [span_document(start, end) for start, end in info.unread]
    return fields


def _detection(
    probability: float | None, probabilities: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Json]:
    fields: dict[str, Json] = {} if probability is None else {"language_probability": score(probability)}
    if probabilities:
        fields["language_probabilities"] = {code: score(value) for code, value in probabilities.items()}
    return fields


def span_document(start: float, end: float) -> dict[str, Json]:
    return {"start": seconds(start), "end": seconds(end)}


def segment_document(segment: Segment) -> dict[str, Json]:
    other = {"translation": segment.translation, "committed": segment.committed}
    return {
        "id": segment.id,
        **span_document(segment.start, segment.end),
        "text": segment.text,
        "language": segment.language,
        **_detection(segment.language_probability),
        "speaker": segment.speaker,
        "tokens": list(segment.tokens),
        "temperature": score(segment.temperature),
        "avg_logprob": score(segment.avg_logprob),
        "compression_ratio": score(segment.compression_ratio),
        "no_speech_prob": score(segment.no_speech_prob),
        "words": [word_document(word) for word in segment.words or ()],
        **{name: text for name, text in other.items() if text is not None},
    }


def word_document(word: Word) -> dict[str, Json]:
    mark: dict[str, Json] = {"doubtful": True} if has_low_confidence(word.probability) else {}
    return {
        "word": word.word,
        **span_document(word.start, word.end),
        "probability": score(word.probability),
        "language": word.language,
        "speaker": word.speaker,
        **mark,
    }


def _token_details(
    segment: Segment, text_of: Callable[[int], str | None] | None
) -> Iterator[dict[str, Json]]:
    """Build `token_details`: an entry per token, without times for timestamps and unaligned tokens."""
    aligned = deque(token for word in segment.words or () for token in word.tokens)
    for token in segment.tokens:
        if aligned and aligned[0].id == token:
            yield _token_document(aligned.popleft())
        else:
            text = text_of(token) if text_of else None
            yield {"id": token, "text": text, "start": None, "end": None, "probability": None}
    yield from map(_token_document, aligned)


def _token_document(token: Token) -> dict[str, Json]:
    return {
        "id": token.id,
        "text": token.text,
        **span_document(token.start, token.end),
        "probability": score(token.probability),
    }


def json_text(value: Json) -> str:
    """Encode as JSON on one line. Raises: ValueError for a number that is not finite."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def seconds(value: float) -> float:
    return round(float(value), 3)


def score(value: float) -> float | None:
    """Round a score to six digits; None if it is not finite."""
    return round(float(value), 6) if math.isfinite(value) else None


def event_line(event: Event) -> str:
    return json_text(event_document(event)) + "\n"


def event_document(event: Event) -> dict[str, Json]:
    document = _document(event)
    document["seq"] = event.seq
    if event.utterance is not None:
        document["utterance"] = event.utterance
    if event.source is not None:
        document["source"] = event.source
    return document


def _document(event: Event) -> dict[str, Json]:
    if isinstance(event, LanguageChanged):
        return {
            **_line("language", event.at, event.at, event.confirmed_at, language=event.target),
            "from": event.previous,
            "to": event.target,
            "at": seconds(event.at),
            "confirmed_at": seconds(event.confirmed_at),
            "posteriors": {language: score(p) for language, p in event.posteriors.items()},
        }
    if isinstance(event, SpeechStarted | SpeechEnded | TurnEnded):
        line = _line(_KINDS[type(event)], event.at, event.at, event.emission_time)
        return line | ({"probability": score(event.probability)} if isinstance(event, TurnEnded) else {})
    words = () if isinstance(event, Unstable) else event.words
    times = (event.start, event.end, event.emission_time)
    line = _line(_KINDS[type(event)], *times, text=event.text, language=event.language, words=words)
    if isinstance(event, Final) and event.allowed_mass is not None:
        line["allowed_mass"] = score(event.allowed_mass)
    if isinstance(event, Final) and event.committed is not None:
        committed: list[Json] = [word_document(word) for word in event.committed]
        line |= {"read": event.is_read, "revised": event.is_revised, "committed": committed}
    return line


_KINDS: Mapping[type, str] = MappingProxyType(
    {
        SpeechStarted: "speech_started",
        SpeechEnded: "speech_ended",
        TurnEnded: "turn_ended",
        Partial: "partial",
        Final: "final",
        Unstable: "unstable",
    }
)


def _line(
    kind: str,
    start: float,
    end: float,
    emission_time: float,
    *,
    text: str = "",
    language: str | None = None,
    words: tuple[Word, ...] = (),
) -> dict[str, Json]:
    return {
        "type": kind,
        **span_document(start, end),
        "text": text,
        "language": language,
        "words": [word_document(word) for word in words],
        "emission_time": seconds(emission_time),
    }


T = TypeVar("T")
Row = Mapping[str, object]
OpenSpan: TypeAlias = "tuple[float | None, float | None]"
NAN = math.nan
PROBABILITIES = ("probability", "score", "confidence")
"""Of a word: by openai-whisper and sottovoce, WhisperX, whisper-timestamped."""
EXPECTED = "expected 'segments' with start, end and text"

_SPECIAL = re.compile(r"\[_[A-Z]+_(?:\d+)?\]")
"""Tokens of whisper.cpp that are not text: [_BEG_], [_TT_150]."""
_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def transcript_of_json(document: object) -> Transcript:
    """Build the transcript of a parsed document. Raises: ValueError for a missing value or wrong type."""
    whole = _row({"segments": document} if isinstance(document, list) else document, "the document")
    if "segments" not in whole and "transcription" in whole:
        result = whole.get("result")
        language = result.get("language") if isinstance(result, Mapping) else None
        rows = _rows(whole, "transcription")
        whole = {"language": language, "segments": _each(rows, lambda _, row: _segment_of_whisper_cpp(row))}
    elif "segments" not in whole and "chunks" in whole:
        whole = {**whole, "segments": _each(_rows(whole, "chunks"), lambda _, row: _segment_of_chunk(row))}
    code = _language(whole.get("language"))
    duration = _time(whole, "duration")
    rows = _segment_rows(whole)
    spans = _segment_spans(rows, duration)
    has_words = any(row.get("words") for row in rows)
    segments = _each(rows, lambda number, row: _segment(number, row, spans[number], code, has_words))
    if not whole.get("segments"):
        segments = list(regrouped(segments, [Split(after="".join(SENTENCE_ENDS))]))
    return Transcript(
        segments=tuple(segments),
        language=code,
        duration=max((segment.end for segment in segments), default=0.0) if duration is None else duration,
        model=_text(whole.get("model") or "", "model"),
        language_probability=_some_number(whole, "language_probability"),
        language_probabilities=_probabilities(whole.get("language_probabilities")),
        turns=tuple(
            Turn(*_times(row), _text(_needed(row, "speaker"), "speaker"))
            for row in _some_rows(whole, "turns")
        ),
        unread=None if whole.get("unread") is None else tuple(map(_times, _some_rows(whole, "unread_spans"))),
        token_texts=dict(_token_texts(rows)),
    )


def _segment_rows(whole: Row) -> list[Row]:
    """Return the segments with their words; OpenAI's API may list words for the whole recording."""
    rows, words, text = _some_rows(whole, "segments"), _some_rows(whole, "words"), whole.get("text")
    if rows:
        return _with_words(rows, words) if words and not any(row.get("words") for row in rows) else rows
    if words and text:
        return [{"start": None, "end": None, "text": text, "words": words}]
    if text:
        raise ValueError(f"{EXPECTED}, got 'text' alone; from OpenAI's API, ask for verbose_json")
    if not isinstance(whole.get("segments"), list):
        raise ValueError(f"{EXPECTED}, got {', '.join(map(repr, islice(whole, 9))) or 'nothing'}")
    return []


def _with_words(rows: Sequence[Row], words: Sequence[Row]) -> list[Row]:
    """Assign each word to the segment whose text contains it, else to the last one that has begun."""
    texts = _each(rows, lambda _, row: _text(_needed(row, "text"), "text"))
    places: Sequence[float] | None = _places([_word_text(word) for word in words], "".join(texts))
    begins: list[float] = [0, *accumulate(map(len, texts[:-1]))]
    if places is None:
        begins = [_time(row, "start") or 0.0 for row in rows]
        places = list(accumulate((_time(word, "start") or 0.0 for word in words), max))
    groups: list[list[Row]] = [[] for _ in rows]
    for word, place in zip(words, places, strict=True):
        groups[max(0, bisect_right(begins, place) - 1)].append(word)
    return [{**row, "words": some} for row, some in zip(rows, groups, strict=True)]


def _segment_spans(rows: Sequence[Row], duration: float | None) -> list[Span]:
    spans = _each(rows, lambda _, row: _bounds(row))
    known = [time for span in spans for time in span if time is not None]
    if rows and not known:
        raise ValueError("expected segments with times, got null in all of them")
    if rows and spans[-1][1] is None and duration is None:
        logger.warning("segment %d: its end is null, and neither words nor 'duration' tell it", len(rows) - 1)
    last = known[-1] if known and duration is None else duration
    return [(start or 0.0, end or 0.0) for start, end in _filled(spans, [1] * len(rows), (0.0, last))]


def _bounds(row: Row) -> OpenSpan:
    start, end = (_time({name: _needed(row, name)}, name) for name in ("start", "end"))
    times = [_time(word, name) for word in _some_rows(row, "words") for name in ("start", "end")]
    known = [time for time in times if time is not None]
    if known:
        start, end = known[0] if start is None else start, known[-1] if end is None else end
    return start, end


def _filled(spans: Sequence[OpenSpan], lengths: Sequence[int], around: OpenSpan) -> list[OpenSpan]:
    borders = [0, *accumulate(lengths)]
    places = [0, *(place for pair in pairwise(borders) for place in pair), borders[-1]]
    times = [around[0], *(time for span in spans for time in span), around[1]]
    known = [(number, time) for number, time in enumerate(times) if time is not None]
    for (before, start), (behind, end) in pairwise(known):
        for number in range(before + 1, behind):
            share = (places[number] - places[before]) / (places[behind] - places[before])
            times[number] = start + share * max(0.0, end - start)
    return list(zip(times[1:-1:2], times[2:-1:2], strict=True))


def _segment(number: int, row: Row, span: Span, language: str, has_words: bool) -> Segment:
    text = _text(_needed(row, "text"), "text")
    code = language if row.get("language") is None else _text(row["language"], "language")
    is_ours = "language" in row
    if not is_ours and code not in UNSPACED and text[:1].strip() and not _UNSPACED.match(text):
        text = " " + text
    words = tuple(_words(row, text, span, code))
    others = {name: row[name] for name in ("translation", "committed") if row.get(name) is not None}
    return Segment(
        id=_whole(row["id"], "id") if isinstance(row.get("id"), int) else number,
        start=span[0],
        end=span[1],
        text=text,
        language=code,
        tokens=tuple(_whole(token, "token") for token in _list(row.get("tokens") or [], "tokens")),
        temperature=_score(row, "temperature"),
        avg_logprob=_score(row, "avg_logprob"),
        compression_ratio=_score(row, "compression_ratio"),
        no_speech_prob=_score(row, "no_speech_prob"),
        words=words if words or (has_words and not text.strip()) else None,
        speaker=_name(row.get("speaker")),
        language_probability=_some_number(row, "language_probability"),
        **{name: _text(text, name) for name, text in others.items()},
    )


def _words(row: Row, text: str, span: Span, language: str) -> Iterator[Word]:
    details = (_token(row) for row in _some_rows(row, "token_details") if row.get("start") is not None)
    rows = _some_rows(row, "words")
    texts = [_word_text(row) for row in rows]
    lengths = [max(1, len(word.strip())) for word in texts]
    spans = _filled([(_time(row, "start"), _time(row, "end")) for row in rows], lengths, span)
    if "language" not in row:
        texts = _as_in_text(texts, text)
    for row, word, (start, end) in zip(rows, texts, spans, strict=True):
        n_tokens = len(_list(row.get("tokens") or [], "tokens"))
        spoken = row.get("language", language)
        yield Word(
            word,
            span[0] if start is None else start,
            span[1] if end is None else end,
            next((_number(row[name], name) for name in PROBABILITIES if name in row), NAN),
            language=None if spoken is None else _text(spoken, "language"),
            speaker=_name(row.get("speaker")),
            tokens=tuple(islice(details, n_tokens)),
        )


def _word_text(row: Row) -> str:
    return _text(row["text"] if "word" not in row and "text" in row else _needed(row, "word"), "word")


def _as_in_text(words: Sequence[str], text: str) -> list[str]:
    """Give words the spaces and punctuation of their text, or only spaces if it lacks a word."""
    if not words or "".join(words) == text or any(word[:1].isspace() for word in words[1:]):
        return list(words)
    places = _places(words, text)
    if places is None:
        return [" " + word.strip() if " " in text else word for word in words]
    cuts = [0]
    for word, place, following in zip(words, places, places[1:], strict=False):
        end = place + len(word.strip())
        cuts.append(end + len(re.split(r"\s", text[end:following], maxsplit=1)[0]))
    return [text[start:end] for start, end in pairwise([*cuts, len(text)])]


def _places(words: Sequence[str], text: str) -> list[int] | None:
    places, at = [], 0
    for word in words:
        place = text.find(word.strip(), at)
        if place < 0:
            return None
        places.append(place)
        at = place + len(word.strip())
    return places


def _token(row: Row) -> Token:
    return Token(
        _whole(_needed(row, "id"), "id"),
        _text(row.get("text") or "", "text"),
        *_times(row),
        _number(row.get("probability"), "probability"),
    )


def _token_texts(rows: Sequence[Row]) -> Iterator[tuple[int, str]]:
    for row in rows:
        for token in _some_rows(row, "token_details"):
            if isinstance(token.get("text"), str):
                yield _whole(_needed(token, "id"), "id"), str(token["text"])


def _probabilities(value: object) -> dict[str, float]:
    values = {} if value is None else _row(value, "language_probabilities")
    return {code: _number(value, "language_probabilities") for code, value in values.items()}


def _segment_of_chunk(row: Row) -> Row:
    times = _list(_needed(row, "timestamp"), "timestamp")
    if len(times) != 2:
        raise ValueError(f"'timestamp': expected a start and an end, got {len(times)} values")
    return {"text": row.get("text"), "start": times[0], "end": times[1]}


def _segment_of_whisper_cpp(row: Row) -> Row:
    text = _text(_needed(row, "text"), "text")
    words = list(_words_of_tokens(_some_rows(row, "tokens")))
    is_spelled = "".join(str(word["word"]) for word in words) == text
    segment = {"text": text, "speaker": row.get("speaker"), "words": words if is_spelled else []}
    return {**segment, **_offsets(_row(_needed(row, "offsets"), "offsets"))}


def _words_of_tokens(tokens: Sequence[Row]) -> Iterator[Row]:
    words: list[tuple[str, list[Row]]] = []
    open_bytes, open_tokens = b"", []
    for token in tokens:
        text = _typed(_needed(token, "text"), str, "'text'", "a text")
        if _SPECIAL.fullmatch(text):
            continue
        open_bytes += text.encode("utf-8", "surrogateescape")
        open_tokens.append(token)
        try:
            text = open_bytes.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if words and text[:1].strip() and not _UNSPACED.match(text):
            before, its_tokens = words.pop()
            text, open_tokens = before + text, its_tokens + open_tokens
        words.append((text, open_tokens))
        open_bytes, open_tokens = b"", []
    for text, members in words:
        spans = [_offsets(_row(token.get("offsets") or {}, "offsets")) for token in members]
        probability = fmean([_number(token.get("p"), "p") for token in members])
        times = {"start": spans[0]["start"], "end": spans[-1]["end"]}
        yield {"word": text, **times, "probability": probability}


def _offsets(row: Row) -> Row:
    times = {"start": _time(row, "from"), "end": _time(row, "to")}
    return {name: None if time is None else time / 1000 for name, time in times.items()}


def _each(rows: Sequence[Row], read: Callable[[int, Row], T]) -> list[T]:
    results = []
    for number, row in enumerate(rows):
        try:
            results.append(read(number, row))
        except ValueError as error:
            raise ValueError(f"segment {number}: {error}") from error
    return results


def _needed(row: Row, name: str) -> object:
    if name not in row:
        raise ValueError(f"'{name}' is missing")
    return row[name]


def _typed(value: object, kind: type[T], name: str, expected: str) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected {expected}, got {_kind(value)}")
    return value


def _row(value: object, name: str) -> Row:
    return _typed(value, dict, name, "an object")


def _rows(row: Row, name: str) -> list[Row]:
    return [_row(value, f"an entry of '{name}'") for value in _list(_needed(row, name), name)]


def _some_rows(row: Row, name: str) -> list[Row]:
    return _rows(row, name) if row.get(name) else []


def _list(value: object, name: str) -> Sequence[object]:
    return _typed(value, list, f"'{name}'", "a list")


def _text(value: object, name: str) -> str:
    return _SURROGATE.sub("\ufffd", _typed(value, str, f"'{name}'", "a text"))


def _language(value: object) -> str:
    name = _text(value or "", "language")
    try:
        return find_language(name) if name else ""
    except OptionError:
        return name


def _name(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) and value != "" else None


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"'{name}': expected a whole number from 0 on, got {_kind(value)}")
    return value


def _number(value: object, name: str) -> float:
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"'{name}': expected a number, got {_kind(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"'{name}': expected a number of less than 300 digits") from None
    except ValueError:
        raise ValueError(f"'{name}': expected a number, got {value!r:.60}") from None


def _score(row: Row, name: str) -> float:
    return _number(row[name], name) if name in row else 0.0


def _some_number(row: Row, name: str) -> float | None:
    return None if row.get(name) is None else _number(row[name], name)


def _times(row: Row) -> Span:
    start, end = _time(row, "start"), _time(row, "end")
    if start is None or end is None:
        raise ValueError(f"'{'start' if start is None else 'end'}' is missing")
    return start, end


def _time(row: Row, name: str) -> float | None:
    value = row.get(name)
    try:
        time = _number(value, name)
    except ValueError:
        time = -1.0
    if time < 0 or time >= 1e9:
        shown = repr(value) if isinstance(value, str | int | float) else _kind(value)
        raise ValueError(f"'{name}': {shown[:60]} is no time in seconds")
    return None if math.isnan(time) else time


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
