"""The seams of this room: what hears a voice, what hears several at once, and what names who speaks when.

Another voice model is one class with `embed`; another whole pipeline one class with `turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sottovoce.audio.recording import Recording
from sottovoce.types import Turn

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VoiceDistances:
    """How far apart (one minus the cosine, 0 to 2) vectors of one voice may be: of each network its own,
    chosen on development voices (docs/speakers.md).

    same: of groups of a recording, that are one speaker. known: live, of a voice from those that are known;
    beyond it is a new one. again: live, of groups that are one speaker when an utterance ends.
    """

    same: float = 0.26
    known: float = 0.34
    again: float = 0.24


class VoiceEncoder(Protocol):
    """Speech to a vector by which voices are compared: nearer by cosine for one speaker than for two."""

    distances: VoiceDistances

    def embed(self, speech: Sequence[Tensor]) -> Floats:
        """Vectors of unit length (n, size) of n stretches of one speaker each, (n_samples,) at 16 kHz.

        A stretch too short to say anything has a vector of zeros.
        """
        ...


class LocalSpeakers(Protocol):
    """Who of a few speaks when within a window of some seconds, whoever they are.

    window_samples: of audio that is looked at together. first_samples: from its beginning to the centre of
    the first frame; frame_samples: between the centres of frames; n_frames: of a window.
    """

    window_samples: int
    first_samples: int
    frame_samples: int
    n_frames: int

    def activity(self, windows: Tensor) -> Tensor:
        """Probabilities (n, n_frames, n_local) that a speaker of the window is heard in windows
        (n, window_samples)."""
        ...


class Diarizer(Protocol):
    """Tells who speaks when in a recording."""

    def turns(self, recording: Recording) -> list[Turn]:
        """Turns in the order of their beginnings; speakers are named A, B, … as they appear.

        Raises: AudioError.
        """
        ...
