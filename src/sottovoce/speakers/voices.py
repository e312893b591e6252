"""The interfaces of the networks that tell speakers apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sottovoce.types import Floats as Floats


@dataclass(frozen=True, slots=True)
class VoiceDistances:
    """Cosine distances (0 to 2) of a voice encoder, chosen on development voices.

    same: up to which clusters of a recording are one speaker. new_speaker: from which a voice is new, live.
    recluster: `same` for the voices of a session.
    """

    same: float = 0.26
    new_speaker: float = 0.34
    recluster: float = 0.24


class VoiceEncoder(Protocol):
    distances: VoiceDistances

    def embed(self, speech: Sequence[Floats]) -> Floats:
        """Embed n stretches (n_samples,) at 16 kHz in unit vectors (n, size), zeros for too short ones."""
        ...


class LocalSpeakers(Protocol):
    """Finds the activity of a few local speakers in a window.

    first_samples: centre of the first frame. frame_samples: between centres.
    """

    window_samples: int
    first_samples: int
    frame_samples: int
    n_frames: int

    def activity(self, windows: Floats) -> Floats:
        """Compute probabilities (n, n_frames, n_local) of windows (n, window_samples) float32."""
        ...
