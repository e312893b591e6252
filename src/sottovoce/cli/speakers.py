"""The options about who speaks; nothing heavy is imported for their help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sottovoce.cli.flags import LIBRARY, grouped
from sottovoce.errors import OptionError
from sottovoce.options.schema import Option
from sottovoce.options.speakers import NEEDS_SPEAKERS, SpeakerOptions

if TYPE_CHECKING:
    from sottovoce.options.speakers import Diarizer, SpeakerOptions
    from sottovoce.types import Samples

SHORTEST_VOICE_S, LONGEST_VOICE_S = 1.0, 120.0
"""Of a known voice; a minute says all there is to know of it."""
VOICES = grouped("Speakers", of=[one for one in LIBRARY if one.key == "speaker_voices"])
ENROLLED_VOICES = Option(
    "A recording of somebody alone, a few seconds, who has this name then. May be repeated.",
    key="known_voices",
    flag="--known-voice",
    many=True,
    metavar="NAME=FILE",
    needs=(NEEDS_SPEAKERS,),
)


def speakers_of(given: Mapping[str, Any]) -> SpeakerOptions | Diarizer | None:
    """Read how speakers are told apart.

    Raises: OptionError.
    """
    if given["speakers"] is None:
        return None
    check_bounds(given)
    options = parsed_speakers(given["speakers"])
    return replace(
        options,
        least=given["min_speakers"] or options.least,
        most=given["max_speakers"] or max(options.most, given["min_speakers"] or 0),
        engine=given["speaker_engine"],
        voices=given["speaker_voices"],
        known=enrolled_voices(given["known_voices"]),
    )


def check_bounds(given: Mapping[str, Any]) -> None:
    """Raises: OptionError for a least number of speakers that is above the most."""
    least, most = given["min_speakers"], given["max_speakers"]
    if least is not None and most is not None and least > most:
        raise OptionError(f"--min-speakers: expected at most --max-speakers {most}, got {least}")


def enrolled_voices(pairs: Sequence[str]) -> dict[str, Samples]:
    """Read the speech of `--known-voice` by name, (n,) at 16 kHz. pairs: "NAME=FILE" each.

    Raises: OptionError; AudioError for a file that cannot be read.
    """
    voices: dict[str, Samples] = {}
    for pair in pairs:
        name, _, path = (part.strip() for part in pair.partition("="))
        if not name or not path:
            raise OptionError(f"--known-voice: expected NAME=FILE, got '{pair}'")
        if name in voices:
            raise OptionError(f"--known-voice: expected one file for each name, got two of '{name}'")
        voices[name] = voice_of(path)
    return voices


def voice_of(path: str) -> Samples:
    """Read the speech of somebody, (n,) at 16 kHz.

    Raises: OptionError where it is too short or too long; AudioError.
    """
    from sottovoce.audio.io import load_audio
    from sottovoce.types import SAMPLE_RATE

    samples = load_audio(path, duration_s=2 * LONGEST_VOICE_S)
    seconds = len(samples) / SAMPLE_RATE
    if not SHORTEST_VOICE_S <= seconds <= LONGEST_VOICE_S:
        wanted = f"{SHORTEST_VOICE_S:.0f} to {LONGEST_VOICE_S:.0f} seconds of speech"
        got = "more" if seconds > LONGEST_VOICE_S else f"{seconds:.1f}"
        raise OptionError(f"--known-voice: expected {wanted} in {path}, got {got}")
    return samples


def live_speakers_of(given: Mapping[str, Any]) -> SpeakerOptions | None:
    """Read how the speakers of a live session are told apart.

    Raises: OptionError.
    """
    if given["speakers"] is None:
        require_speakers(given)
        return None
    return replace(parsed_speakers(given["speakers"]), voices=given["speaker_voices"])


def require_speakers(given: Mapping[str, Any]) -> None:
    """Raises: OptionError for a network of voices where nobody is told apart."""
    if given["speaker_voices"] != "ge2e":
        raise OptionError("--speaker-voices: needs --speakers")


def parsed_speakers(value: str) -> SpeakerOptions:
    """Parse the value of `--speakers`.

    Raises: OptionError.
    """
    from sottovoce.speakers.choose import parse_speakers

    options = parse_speakers(value.strip())
    assert isinstance(options, SpeakerOptions)
    return options
