"""Parse JSON documents into a transcript: ours, with all that they hold, openai-whisper's and
whisper.cpp's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from sottovoce.types import Segment, Span, Token, Transcript, Turn, Word

Row = Mapping[str, object]
NAN = math.nan
"""What a score was that JSON has no number for."""


def transcript_of_json(document: object) -> Transcript:
    """Build the transcript of a parsed document.

    Raises: ValueError saying what is missing, or of another type.
    """
    whole = _row(document, "the document")
    if "segments" not in whole and "transcription" in whole:
        return _of_whisper_cpp(whole)
    code = _text(whole.get("language") or "", "language")
    rows = _rows(whole, "segments")
    has_words = any(row.get("words") for row in rows)
    segments = tuple(_segment(number, row, code, has_words) for number, row in enumerate(rows))
    probability = whole.get("language_probability")
    return Transcript(
        segments=segments,
        language=code,
        duration=_end(segments) if whole.get("duration") is None else _seconds(whole, "duration"),
        model=_text(whole.get("model") or "", "model"),
        language_probability=None if probability is None else _number(probability, "language_probability"),
        language_probabilities=_probabilities(whole.get("language_probabilities")),
        turns=tuple(map(_turn, _some_rows(whole, "turns"))),
        unread=_unread(whole),
        token_texts=dict(_token_texts(rows)),
    )


def _unread(whole: Row) -> tuple[Span, ...] | None:
    if whole.get("unread") is None:
        return None
    return tuple((_seconds(row, "start"), _seconds(row, "end")) for row in _some_rows(whole, "unread_spans"))


def _segment(number: int, row: Row, language: str, has_words: bool) -> Segment:
    """has_words: whether words were timed at all; then a segment without text has them too, but none."""
    text = _text(_needed(row, "text"), "text")
    own = language if row.get("language") is None else _text(row["language"], "language")
    words = tuple(_words(row, own))
    translation = row.get("translation")
    return Segment(
        id=_whole(row["id"], "id") if isinstance(row.get("id"), int) else number,
        start=_seconds(row, "start"),
        end=_seconds(row, "end"),
        text=text,
        language=own,
        tokens=tuple(_whole(token, "token") for token in _list(row.get("tokens") or [], "tokens")),
        temperature=_score(row, "temperature"),
        avg_logprob=_score(row, "avg_logprob"),
        compression_ratio=_score(row, "compression_ratio"),
        no_speech_prob=_score(row, "no_speech_prob"),
        words=words if words or (has_words and not text.strip()) else None,
        speaker=_name(row.get("speaker")),
        translation=None if translation is None else _text(translation, "translation"),
    )


def _words(row: Row, language: str) -> Iterator[Word]:
    details = (_token(one) for one in _some_rows(row, "token_details") if one.get("start") is not None)
    for one in _some_rows(row, "words"):
        n_tokens = len(_list(one.get("tokens") or [], "tokens"))
        spoken = one.get("language", language)
        yield Word(
            _text(_needed(one, "word"), "word"),
            _seconds(one, "start"),
            _seconds(one, "end"),
            NAN if one.get("probability") is None else _number(one["probability"], "probability"),
            language=None if spoken is None else _text(spoken, "language"),
            speaker=_name(one.get("speaker")),
            tokens=tuple(islice(details, n_tokens)),
        )


def _token(row: Row) -> Token:
    probability = row.get("probability")
    return Token(
        _whole(_needed(row, "id"), "id"),
        _text(row.get("text") or "", "text"),
        _seconds(row, "start"),
        _seconds(row, "end"),
        NAN if probability is None else _number(probability, "probability"),
    )


def _token_texts(rows: Sequence[Row]) -> Iterator[tuple[int, str]]:
    for row in rows:
        for one in _some_rows(row, "token_details"):
            if isinstance(one.get("text"), str):
                yield _whole(_needed(one, "id"), "id"), str(one["text"])


def _turn(row: Row) -> Turn:
    return Turn(_seconds(row, "start"), _seconds(row, "end"), _text(_needed(row, "speaker"), "speaker"))


def _probabilities(value: object) -> dict[str, float]:
    found = {} if value is None else _row(value, "language_probabilities")
    return {code: _number(one, "language_probabilities") for code, one in found.items()}


def _of_whisper_cpp(document: Row) -> Transcript:
    """whisper.cpp writes `transcription`, with offsets in milliseconds."""
    found = document.get("result")
    code = _text(found.get("language") or "", "language") if isinstance(found, Mapping) else ""
    segments = []
    for number, row in enumerate(_rows(document, "transcription")):
        offsets = _row(_needed(row, "offsets"), "offsets")
        start, end = _seconds(offsets, "from") / 1000, _seconds(offsets, "to") / 1000
        text = _text(_needed(row, "text"), "text")
        segments.append(Segment(number, start, end, text, code, speaker=_name(row.get("speaker"))))
    return Transcript(tuple(segments), code, _end(segments), "")


def _needed(row: Row, name: str) -> object:
    if name not in row:
        raise ValueError(f"'{name}' is missing")
    return row[name]


def _row(value: object, name: str) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object, got {_kind(value)}")
    return value


def _rows(row: Row, name: str) -> list[Row]:
    return [_row(value, f"an entry of '{name}'") for value in _list(_needed(row, name), name)]


def _some_rows(row: Row, name: str) -> list[Row]:
    """Of a list that need not be there."""
    return _rows(row, name) if row.get(name) else []


def _list(value: object, name: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise ValueError(f"'{name}': expected a list, got {_kind(value)}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"'{name}': expected a text, got {_kind(value)}")
    return value


def _name(value: object) -> str | None:
    """A speaker; some programs count them."""
    return str(value) if isinstance(value, str | int) and value != "" else None


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"'{name}': expected a whole number from 0 on, got {_kind(value)}")
    return value


def _number(value: object, name: str) -> float:
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"'{name}': expected a number, got {_kind(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"'{name}': expected a number of less than 300 digits") from None


def _score(row: Row, name: str) -> float:
    return _number(row[name], name) if name in row else 0.0


def _seconds(row: Row, name: str) -> float:
    value = _needed(row, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        shown = repr(value) if isinstance(value, str | int | float) else _kind(value)
        raise ValueError(f"'{name}': {shown[:60]} is no time in seconds")
    return float(value)


def _kind(value: object) -> str:
    """What JSON calls a value."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _end(segments: Sequence[Segment]) -> float:
    return max((segment.end for segment in segments), default=0.0)
