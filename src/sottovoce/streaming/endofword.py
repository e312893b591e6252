"""Whether the audio that is in ends at a word's end: continuous integrate-and-fire over encoder states.

A linear layer gives each frame a part of a word; where the running sum passes a whole number, a word
ends. There are weights for Whisper base and small. Source: Simul-Whisper (Wang et al. 2024), section
3.3; weights of its repository (MIT). Not known here: tokens and words.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.pickles import first_line
from sottovoce.types import EncoderOutput

_EDGE_FRAMES = 2
"""A word must end in the last 40 ms to count as ending where the audio does."""
_WHOLE = 0.999


@dataclass(frozen=True, slots=True, eq=False)
class EndOfWord:
    """A trained detector: weight (1, d) and bias (1,) float32."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def load(cls, path: str | Path, n_audio_state: int) -> EndOfWord:
        """Read Simul-Whisper's `.pt` file for a model of this width.

        Raises: CheckpointError when it is unreadable or of another width.
        """
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            weight, bias = state["weight"], state["bias"]
        except (OSError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{path}: expected end-of-word weights ({first_line(error)})") from error
        if tuple(weight.shape) != (1, n_audio_state) or tuple(bias.shape) != (1,):
            raise CheckpointError(
                f"{path}: expected a weight of shape (1, {n_audio_state}), got {tuple(weight.shape)}"
            )
        return cls(weight.float(), bias.float())

    def fires(self, encoded: EncoderOutput) -> bool:
        """Whether a word ends in the last two content frames of a window (batch of 1)."""
        states = encoded.states[0, : encoded.n_content_frames[0]].float()
        if len(states) <= _EDGE_FRAMES:
            return False
        parts = torch.sigmoid(states @ self.weight.to(states.device)[0] + self.bias.to(states.device))
        return ends_word(parts.cpu())


def ends_word(parts: Tensor) -> bool:
    """Whether parts of words (T,) in [0, 1] complete one in the last frames.

    They are scaled to sum up to a whole number of words; the last frame's peak, an effect of the cut,
    is left out.
    """
    n_words = float(parts.sum().round())
    if n_words < 1:
        return False
    running = (parts * (n_words / parts.sum())).cumsum(0)[:-1]
    n_ended = int(running[-1] / _WHOLE)
    if n_ended < 1:
        return False
    last_end = int((running >= n_ended * _WHOLE - 1e-6).nonzero()[0])
    return last_end >= len(parts) - _EDGE_FRAMES
