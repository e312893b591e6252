"""The interface of writers: begin a document, add segments one by one, end it.

A new format is a class of this interface, and one line of `files.WRITERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from sottovoce.errors import OptionError
from sottovoce.types import Segment, Span, Transcript, Turn

Piece: TypeAlias = "str | bytes"


@dataclass(frozen=True, slots=True)
class TranscriptInfo:
    """A `Transcript` without its segments, whose fields may be unknown at the beginning.

    audio, spectrogram: addresses for a page, relative or `data:`. translation: language code of translations.
    token_text: the text of a token id, or None.
    """

    model: str
    language: str | None = None
    duration: float | None = None
    source: str | None = None
    audio: str | None = None
    spectrogram: str | None = None
    translation: str | None = None
    turns: tuple[Turn, ...] = ()
    unread: tuple[Span, ...] | None = None
    language_probability: float | None = None
    language_probabilities: Mapping[str, float] = field(default_factory=dict)
    token_text: Callable[[int], str | None] | None = None


class Writer(Protocol):
    """Writes a document: each method returns its next piece, by default an empty one.

    Segments come in the order of their starts.
    """

    extension: str

    def begin(self, info: TranscriptInfo) -> Piece:
        return ""

    def segment(self, segment: Segment) -> Piece:
        return ""

    def end(self, info: TranscriptInfo) -> Piece:
        return ""


def info_of(transcript: Transcript, source: str | None = None) -> TranscriptInfo:
    """Return the information of a transcript; translations have the language "und" (undetermined, BCP 47)."""
    is_translated = any(segment.translation is not None for segment in transcript.segments)
    return TranscriptInfo(
        model=transcript.model,
        language=transcript.language,
        duration=transcript.duration,
        source=source,
        translation="und" if is_translated else None,
        turns=transcript.turns,
        unread=transcript.unread,
        language_probability=transcript.language_probability,
        language_probabilities=transcript.language_probabilities,
        token_text=transcript.token_texts.get,
    )


def write_transcript(writer: Writer, transcript: Transcript, *, source: str | None = None) -> str:
    """Write a document of text. source: the recording's name. Raises: OptionError for a binary format."""
    pieces = list(pieces_of(writer, transcript, info_of(transcript, source)))
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) < len(pieces):
        raise OptionError(f"output format '{writer.extension}': is no text; write_document gives its bytes")
    return "".join(texts)


def write_document(writer: Writer, transcript: Transcript, *, source: str | None = None) -> bytes:
    return b"".join(map(as_bytes, pieces_of(writer, transcript, info_of(transcript, source))))


def pieces_of(writer: Writer, transcript: Transcript, info: TranscriptInfo) -> Iterator[Piece]:
    yield writer.begin(info)
    yield from map(writer.segment, sorted(transcript.segments, key=lambda segment: segment.start))
    yield writer.end(info)


def as_bytes(piece: Piece) -> bytes:
    return piece.encode("utf-8") if isinstance(piece, str) else piece
