"""From what a caller wishes to what tells speakers apart."""

from __future__ import annotations

from typing import TypeAlias

from sottovoce.errors import OptionError
from sottovoce.speakers.base import Diarizer, VoiceEncoder
from sottovoce.speakers.campplus import load_campplus
from sottovoce.speakers.diarize import OwnDiarizer
from sottovoce.speakers.live import LiveSpeakers
from sottovoce.speakers.options import SpeakerOptions
from sottovoce.speakers.segmentation import load_segmentation
from sottovoce.speakers.voices import load_voices

Speakers: TypeAlias = "SpeakerOptions | Diarizer | int | str"


def parsed(wish: Speakers) -> SpeakerOptions | Diarizer:
    """What people say: "auto" where nobody knows how many there are, or their number.

    Raises: OptionError.
    """
    if isinstance(wish, str):
        if wish != "auto" and not (wish.isascii() and wish.isdecimal()):
            raise OptionError(f"speakers: expected 'auto' or how many there are, got '{wish}'")
        return SpeakerOptions() if wish == "auto" else SpeakerOptions(n_speakers=int(wish))
    return SpeakerOptions(n_speakers=wish) if isinstance(wish, int) else wish


def diarizer_of(wish: SpeakerOptions | Diarizer) -> Diarizer:
    """What tells speakers apart; weights are fetched where they are not here.

    Raises: ModelNotFoundError, CheckpointError, MissingExtraError.
    """
    if not isinstance(wish, SpeakerOptions):
        return wish
    if wish.engine == "pyannote":
        from sottovoce.speakers.pyannote import PyannoteDiarizer

        return PyannoteDiarizer(wish)
    return OwnDiarizer(load_segmentation(), voices_of(wish), wish)


def voices_of(wish: SpeakerOptions) -> VoiceEncoder:
    """The network that compares voices; its weights are fetched where they are not here.

    Raises: ModelNotFoundError, CheckpointError.
    """
    return load_campplus() if wish.voices == "campplus" else load_voices()


def live_speakers(wish: Speakers | LiveSpeakers) -> LiveSpeakers:
    """What says who speaks in a new session; weights are fetched where they are not here. Those of an earlier
    session begin anew, and know its voices.

    Raises: OptionError for what is not ours, which alone can be heard as it comes; ModelNotFoundError,
        CheckpointError.
    """
    if isinstance(wish, LiveSpeakers):
        wish.begin()
        return wish
    options = parsed(wish)
    if not isinstance(options, SpeakerOptions) or options.engine != "own":
        raise OptionError("speakers of a live session: expected the engine 'own', got another")
    return LiveSpeakers(load_segmentation(), voices_of(options), options)
