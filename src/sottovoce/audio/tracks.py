"""The audio tracks of a container, and the choice of one.

Films have a track for each language, meetings one for each microphone. Tracks are counted from 1, as players
count them; languages are compared by their codes, in any of the standards: `de`, `ger` and `deu` are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.errors import AudioError, OptionError
from sottovoce.text.languages import language_code

UNKNOWN = ("", "und", "unk", "mis", "zxx", "mul")
"""Tags that name no language."""


@dataclass(frozen=True, slots=True)
class AudioTrack:
    """One audio track; number: from 1. language, title: its tags, None where it has none."""

    number: int
    language: str | None = None
    title: str | None = None

    def __str__(self) -> str:
        tags = [self.language] if self.language else []
        tags += [f"'{self.title}'"] if self.title else []
        return f"{self.number} ({', '.join(tags)})" if tags else str(self.number)


ONLY_TRACK = AudioTrack(1)


def track_named(tracks: Sequence[AudioTrack], request: int | str, name: str) -> AudioTrack:
    """Choose the track of a number, or the first one in a language.

    name: of the recording, in messages.
    Raises: AudioError that lists the tracks; OptionError for a request that is neither.
    """
    number = _number(request)
    if number is None:
        code = language_code(str(request))
        if code is None:
            raise OptionError(f"audio track: expected a number from 1 or a language, got '{request}'")
        found = [one for one in tracks if one.language and language_code(one.language) == code]
    else:
        found = [one for one in tracks if one.number == number]
    if not found:
        there = ", ".join(map(str, tracks))
        raise AudioError(f"{name}: expected an audio track among {there}; got '{request}'")
    return found[0]


def _number(request: int | str) -> int | None:
    text = str(request).strip()
    if not text.lstrip("-").isdecimal() or not text.isascii():
        return None
    if int(text) < 1:
        raise OptionError(f"audio track: expected a number from 1 or a language, got '{request}'")
    return int(text)
