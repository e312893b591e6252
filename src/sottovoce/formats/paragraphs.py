"""Join segments into paragraphs, as people read a transcript; for any format of documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.layout import ends_with
from sottovoce.text.languages import SENTENCE_ENDS, UNSPACED, language_name
from sottovoce.types import Segment

PAUSE_S = 2.0
"""A pause that ends a paragraph."""
LONG = 600
"""Characters from which on a paragraph ends with its sentence, where nobody pauses."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A stretch of one speaker in one language without a long pause: seconds, and text on one line."""

    start: float
    end: float
    text: str
    language: str
    speaker: str | None = None
    translation: str | None = None


def paragraphs(segments: Iterable[Segment]) -> Iterator[Paragraph]:
    """Join segments, in order, into paragraphs; segments without text are left out."""
    open_one: Paragraph | None = None
    for segment in segments:
        own = paragraph_of(segment)
        if not own.text:
            continue
        if open_one is not None and not ends_before(open_one, own):
            open_one = joined(open_one, own, has_space=segment.text[:1].isspace())
            continue
        if open_one is not None:
            yield open_one
        open_one = own
    if open_one is not None:
        yield open_one


def paragraph_of(segment: Segment) -> Paragraph:
    """Make a paragraph of one segment."""
    translation = flat(segment.translation or "") or None
    speaker = flat(segment.speaker or "") or None
    return Paragraph(segment.start, segment.end, flat(segment.text), segment.language, speaker, translation)


def ends_before(paragraph: Paragraph, following: Paragraph) -> bool:
    """Tell whether a paragraph ends before the next: another speaker or language, a pause, or enough text."""
    if (paragraph.speaker, paragraph.language) != (following.speaker, following.language):
        return True
    is_long = len(paragraph.text) >= LONG and ends_with(paragraph.text.split(" ")[-1], SENTENCE_ENDS)
    return is_long or following.start - paragraph.end >= PAUSE_S


def joined(first: Paragraph, second: Paragraph, *, has_space: bool) -> Paragraph:
    """Join two paragraphs. has_space: there is a space between them; else there is one where the language has
    any.
    """
    space = "" if first.language in UNSPACED and not has_space else " "
    translations = [text for text in (first.translation, second.translation) if text]
    return replace(
        first,
        end=max(first.end, second.end),
        text=first.text + space + second.text,
        translation=" ".join(translations) or None,
    )


def languages_of(paragraphs: Iterable[Paragraph]) -> list[str]:
    """List the languages in the order in which they are spoken first."""
    return list(dict.fromkeys(paragraph.language for paragraph in paragraphs if paragraph.language))


def name_of(language: str) -> str:
    """Name a language: German; an unknown code stays."""
    try:
        return language_name(language).title()
    except (KeyError, ValueError):
        return language


def title_of(info: TranscriptInfo) -> str:
    """Return the name of a recording without its extension."""
    name = flat(info.source or "")
    return PurePath(name.removesuffix(".full.json")).stem if name else "Transcript"


def facts_of(info: TranscriptInfo, languages: Iterable[str]) -> list[str]:
    """List duration, languages and model of a recording, as far as they are there."""
    length = "" if info.duration is None else clock(info.duration)
    return [fact for fact in (length, ", ".join(map(name_of, languages)), flat(info.model)) if fact]


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def flat(text: str) -> str:
    """Put text on one line, with single spaces and without characters that XML cannot hold."""
    return " ".join("".join(c if is_shown(c) else " " for c in text).split())


def is_shown(character: str) -> bool:
    """Tell whether XML allows the character: no control, no half of a surrogate pair, no noncharacter."""
    return not (
        character < " "
        or "\x7f" <= character <= "\x9f"
        or "\ud800" <= character <= "\udfff"
        or character in "\ufffe\uffff"
    )
