"""Construction of the diarizer that options name: the built-in one, or a pipeline of pyannote.audio.

pyannote.audio is a separate program with its own weights (extra `pyannote`). The adapter follows the
documented interface of versions 3 and 4 and is tested with a stand-in, because the weights need a Hugging
Face account (HF_TOKEN, with the pipeline's conditions accepted).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor

from sottovoce.audio.recording import Recording
from sottovoce.errors import MissingExtraError, ModelNotFoundError, OptionError
from sottovoce.options.speakers import Diarizer, SpeakerOptions
from sottovoce.speakers.diarize import ClusteringDiarizer
from sottovoce.speakers.labels import name_turns
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.speakers.networks import VoiceEncoder, load_campplus, load_ge2e, load_segmentation
from sottovoce.types import SAMPLE_RATE, Turn

PIPELINE = "pyannote/speaker-diarization-community-1"
VARIABLE = "SOTTOVOCE_PYANNOTE"
"""Environment variable with the name or folder of another pipeline."""


Pipeline = Callable[..., object]


class _Annotation(Protocol):
    """pyannote.core's: labelled spans of time, each with the name of its track."""

    def itertracks(self, *, yield_label: bool) -> Iterable[tuple[_Span, object, str]]: ...


class _Span(Protocol):
    start: float
    end: float


class PyannoteDiarizer:
    """Runs a pipeline of pyannote.audio.

    pipeline: a loaded one; None loads the one of VARIABLE or PIPELINE.
    Raises: MissingExtraError, ModelNotFoundError.
    """

    def __init__(self, options: SpeakerOptions, pipeline: Pipeline | None = None) -> None:
        self._options = options
        self._pipeline = pipeline or load_pipeline(os.environ.get(VARIABLE, PIPELINE))

    def turns(self, recording: Recording) -> list[Turn]:
        with recording.open() as reader:
            samples = torch.cat([torch.from_numpy(chunk.samples) for chunk in reader])
        audio: Mapping[str, Tensor | int] = {"waveform": samples[None], "sample_rate": SAMPLE_RATE}
        n_speakers = self._options.n_speakers
        limits = {"max_speakers": self._options.most} if n_speakers is None else {"num_speakers": n_speakers}
        if self._options.least > 1 and n_speakers is None:
            limits["min_speakers"] = self._options.least
        output = self._pipeline(audio, **limits)
        # Version 4 returns an object with the annotation, earlier ones the annotation itself.
        found = cast(_Annotation, getattr(output, "speaker_diarization", output))
        return name_turns((one.start, one.end, label) for one, _, label in found.itertracks(yield_label=True))


def load_pipeline(name: str) -> Pipeline:
    try:
        audio = importlib.import_module("pyannote.audio")
    except ImportError as error:
        raise MissingExtraError(
            "pyannote.audio", "pyannote", "telling speakers apart with pyannote"
        ) from error
    try:
        loaded = audio.Pipeline.from_pretrained(name)
    except Exception as error:  # of the hub, the file or the network
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelNotFoundError(f"pyannote pipeline {name}: cannot be loaded ({reason})") from error
    if loaded is None:
        raise ModelNotFoundError(
            f"pyannote pipeline {name}: cannot be loaded; accept its conditions on the hub and set HF_TOKEN"
        )
    return cast(Pipeline, loaded)


Speakers: TypeAlias = "SpeakerOptions | Diarizer | int | str"


def parse_speakers(request: Speakers) -> SpeakerOptions | Diarizer:
    if isinstance(request, str):
        if request != "auto" and not (request.isascii() and request.isdecimal()):
            raise OptionError(f"speakers: expected 'auto' or how many there are, got '{request}'")
        return SpeakerOptions() if request == "auto" else SpeakerOptions(n_speakers=int(request))
    return SpeakerOptions(n_speakers=request) if isinstance(request, int) else request


def make_diarizer(options: SpeakerOptions | Diarizer) -> Diarizer:
    if not isinstance(options, SpeakerOptions):
        return options
    if options.engine == "pyannote":
        return PyannoteDiarizer(options)
    return ClusteringDiarizer(load_segmentation(), load_voice_encoder(options), options)


def load_voice_encoder(options: SpeakerOptions) -> VoiceEncoder:
    return load_campplus() if options.voices == "campplus" else load_ge2e()


def make_live_speakers(request: Speakers | LiveSpeakers) -> LiveSpeakers:
    """Create the live diarizer of a new session; an existing one is restarted and keeps its voices.

    Raises: OptionError for a diarizer other than the built-in one, which alone works live;
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
