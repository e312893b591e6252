"""What a caller can ask of the telling apart of speakers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from sottovoce.errors import OptionError
from sottovoce.types import Samples

Engine: TypeAlias = Literal["own", "pyannote"]
VoiceName: TypeAlias = Literal["ge2e", "campplus"]


@dataclass(frozen=True, slots=True)
class SpeakerOptions:
    """How speakers are told apart. Defaults were chosen on development voices (docs/speakers.md).

    n_speakers: how many there are, None where nobody knows. most: of them, where their number is not given.
    engine: "own" (weights of the package index), or "pyannote": its pipeline, with its own weights (extra
        `pyannote`), whose other settings stay as they come.
    voices: the network that compares voices (engine "own"): "ge2e", or the stronger "campplus", which takes
        five times as long (docs/speakers.md).
    distance: of two voices, 0 to 2 (cosine), up to which they are one speaker; where the number is not given.
        None: that of the network.
    least_speech_s: a speaker who says less in the whole recording is taken for one of the others, where the
        number is not given.
    known: names of people with some seconds of their speech (n,) at 16 kHz: a voice as near to it as
        `distance` has the name, others have letters (engine "own").

    Raises: OptionError for values out of range.
    """

    n_speakers: int | None = None
    most: int = 10
    engine: Engine = "own"
    voices: VoiceName = "ge2e"
    distance: float | None = None
    least_speech_s: float = 3.0
    known: Mapping[str, Samples] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        if self.n_speakers is not None and self.n_speakers < 1:
            raise OptionError(f"speakers: expected 'auto' or at least 1, got {self.n_speakers}")
        if self.most < 1:
            raise OptionError(f"most speakers: expected at least 1, got {self.most}")
        if self.engine not in get_args(Engine):
            raise OptionError(f"speakers: expected the engine 'own' or 'pyannote', got '{self.engine}'")
        if self.voices not in get_args(VoiceName):
            raise OptionError(f"voices: expected 'ge2e' or 'campplus', got '{self.voices}'")
        if self.voices != "ge2e" and self.engine != "own":
            raise OptionError(f"voices '{self.voices}': expected the engine 'own', got '{self.engine}'")
        if self.distance is not None and not 0 < self.distance < 2:
            raise OptionError(f"distance of voices: expected between 0 and 2, got {self.distance}")
        if not 0 <= self.least_speech_s < math.inf:
            raise OptionError(f"least_speech_s: expected 0 or more seconds, got {self.least_speech_s}")
        if self.known and self.engine != "own":
            raise OptionError(f"known speakers: expected the engine 'own', got '{self.engine}'")
