"""What one update made of the beginning of its prefix, for the next update to go on from.

Between two updates audio is added and the newest frames change; what the decoder makes of words before them
hardly does. Not known here: when that holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.backends.base import RowState
from sottovoce.decoding.alignment import RunningStatistics


@dataclass(frozen=True, slots=True, eq=False)
class KnownPrefix:
    """The first tokens of a prefix, read.

    state: the decoder's, of these tokens. attention: theirs, (1, n_heads, n_frames). no_speech_prob: at
    <|startoftranscript|>, if that is one of them.
    """

    tokens: tuple[int, ...]
    state: RowState
    attention: RunningStatistics
    no_speech_prob: float

    def begins(self, tokens: tuple[int, ...], n_frames: int) -> bool:
        """Whether a prefix goes on from these tokens, in a window of no fewer frames."""
        n_known = len(self.tokens)
        grown = self.attention.mean.shape[-1] <= n_frames
        return grown and n_known < len(tokens) and tokens[:n_known] == self.tokens
