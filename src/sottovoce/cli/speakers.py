"""The options about who speaks; nothing heavy is imported for their help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from sottovoce.errors import OptionError

if TYPE_CHECKING:
    from sottovoce.speakers.base import Diarizer
    from sottovoce.speakers.options import SpeakerOptions

VOICES = click.option(
    "--speaker-voices",
    type=click.Choice(["ge2e", "campplus"]),
    default="ge2e",
    show_default=True,
    help="The network that compares voices; campplus is the stronger one and takes five times as long.",
)
SPEAKERS = (
    click.option(
        "--speakers",
        metavar="auto|N",
        help="Tell speakers apart: how many there are, or auto where nobody knows. Words are timed then.",
    ),
    click.option(
        "--channels",
        type=click.Choice(["mixed", "apart", "energy"]),
        default="mixed",
        show_default=True,
        help="Speakers with a channel each. apart: transcribe every channel by itself (implies --vad); "
        "energy: together, and whoever is loudest speaks.",
    ),
    click.option(
        "--tinydiarize",
        is_flag=True,
        help="Cut where a checkpoint of tinydiarize writes that somebody else speaks; turns are counted.",
    ),
    click.option(
        "--speaker-engine",
        type=click.Choice(["own", "pyannote"]),
        default="own",
        show_default=True,
        help="pyannote: its pipeline, from the Hugging Face hub (extra `pyannote`).",
    ),
    VOICES,
)


def speakers_of(given: Mapping[str, Any]) -> SpeakerOptions | Diarizer | None:
    """How speakers are told apart.

    Raises: OptionError.
    """
    wish = given["speakers"]
    if wish is None:
        if given["speaker_engine"] != "own":
            raise OptionError("--speaker-engine: needs --speakers")
        require_speakers(given)
        return None
    return replace(parsed_speakers(wish), engine=given["speaker_engine"], voices=given["speaker_voices"])


def live_speakers_of(given: Mapping[str, Any]) -> SpeakerOptions | None:
    """How the speakers of a live session are told apart.

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


def parsed_speakers(wish: str) -> SpeakerOptions:
    """What `--speakers` says.

    Raises: OptionError.
    """
    from sottovoce.speakers.choose import parsed
    from sottovoce.speakers.options import SpeakerOptions

    options = parsed(wish.strip())
    assert isinstance(options, SpeakerOptions)
    return options
