"""The seams of this room: what hears a voice, what hears several at once, and what names who speaks when.

Another voice model is one class with `embed`; another whole pipeline one class with `turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sottovoce.audio.recording import Recording
from sottovoce.types import Turn

Floats = npt.NDArray[np.float32]


class VoiceEncoder(Protocol):
    """Speech to a vector by which voices are compared: nearer by cosine for one speaker than for two."""

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
