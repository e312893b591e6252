"""The seams of this room: voice encoders, segmentation models, and diarizers.

Another voice encoder is one class with `embed`; another whole pipeline one class with `turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VoiceDistances:
    """Thresholds of cosine distance (one minus the cosine, 0 to 2), for each voice encoder its own, chosen on
    development voices (docs/speakers.md).

    same: clusters of a recording closer than this are one speaker. new_speaker: live, a voice further from
    all speakers so far is a new one. recluster: live, as `same`, when the voices of a session are clustered
    again.
    """

    same: float = 0.26
    new_speaker: float = 0.34
    recluster: float = 0.24


class VoiceEncoder(Protocol):
    """Embeds speech in a vector; vectors of one speaker have a higher cosine than those of two."""

    distances: VoiceDistances

    def embed(self, speech: Sequence[Tensor]) -> Floats:
        """Embed n stretches of one speaker each, (n_samples,) float32 at 16 kHz: unit vectors (n, size)
        float32.

        A stretch too short to embed has a vector of zeros.
        """
        ...


class LocalSpeakers(Protocol):
    """A segmentation model: who of a few speakers speaks when within a window of some seconds.

    window_samples: length of the window. first_samples: from its beginning to the centre of the first frame;
    frame_samples: between the centres of frames; n_frames: of a window.
    """

    window_samples: int
    first_samples: int
    frame_samples: int
    n_frames: int

    def activity(self, windows: Tensor) -> Tensor:
        """Compute the probabilities (n, n_frames, n_local) that each local speaker speaks, in windows (n,
        window_samples) float32.
        """
        ...
