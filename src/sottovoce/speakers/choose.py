"""Make the diarizer that options ask for."""

from __future__ import annotations

from typing import TypeAlias

from sottovoce.errors import OptionError
from sottovoce.options.speakers import Diarizer, SpeakerOptions
from sottovoce.speakers.base import VoiceEncoder
from sottovoce.speakers.campplus import load_campplus
from sottovoce.speakers.diarize import ClusteringDiarizer
from sottovoce.speakers.ge2e import load_ge2e
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.speakers.segmentation import load_segmentation

Speakers: TypeAlias = "SpeakerOptions | Diarizer | int | str"


def parse_speakers(request: Speakers) -> SpeakerOptions | Diarizer:
    """Parse "auto" (any number of speakers) or a number of speakers.

    Raises: OptionError.
    """
    if isinstance(request, str):
        if request != "auto" and not (request.isascii() and request.isdecimal()):
            raise OptionError(f"speakers: expected 'auto' or how many there are, got '{request}'")
        return SpeakerOptions() if request == "auto" else SpeakerOptions(n_speakers=int(request))
    return SpeakerOptions(n_speakers=request) if isinstance(request, int) else request


def make_diarizer(options: SpeakerOptions | Diarizer) -> Diarizer:
    """Make the diarizer of some options; weights are fetched if need be.

    Raises: ModelNotFoundError, CheckpointError, MissingExtraError.
    """
    if not isinstance(options, SpeakerOptions):
        return options
    if options.engine == "pyannote":
        from sottovoce.speakers.pyannote import PyannoteDiarizer

        return PyannoteDiarizer(options)
    return ClusteringDiarizer(load_segmentation(), load_voice_encoder(options), options)


def load_voice_encoder(options: SpeakerOptions) -> VoiceEncoder:
    """Load the voice encoder of some options; weights are fetched if need be.

    Raises: ModelNotFoundError, CheckpointError.
    """
    return load_campplus() if options.voices == "campplus" else load_ge2e()


def make_live_speakers(request: Speakers | LiveSpeakers) -> LiveSpeakers:
    """Make the live diarizer of a new session; weights are fetched if need be. One of an earlier session is
    started again, with its voices.

    Raises: OptionError for another diarizer than the own one, the only one that works live;
        ModelNotFoundError, CheckpointError.
    """
    if isinstance(request, LiveSpeakers):
        request.start_session()
        return request
    options = parse_speakers(request)
    if not isinstance(options, SpeakerOptions) or options.engine != "own":
        raise OptionError("speakers of a live session: expected the engine 'own', got another")
    if options.least > 1:
        raise OptionError(f"speakers of a live session: expected no least number, got {options.least}")
    return LiveSpeakers(load_segmentation(), load_voice_encoder(options), options)
