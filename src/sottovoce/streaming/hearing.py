"""What each language's row listens to: one encoding under a mask, or its own stretches encoded alone.

Not known here: tokens, words, and how the timeline comes about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.streaming.gating import Gate, Shares
from sottovoce.streaming.held import HeldSpeech
from sottovoce.streaming.window import Window
from sottovoce.types import EncoderOutput

FrameIndex = npt.NDArray[np.int64]
_HIDDEN = -15.0


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """What rows listen to.

    encoded: one audio for all rows, or one a row. biases: (R, n_frames), see `Backend.step`. places: for
    each row, the frame of the window behind each frame that it hears. reaches_end: whether a row hears the
    end of the window; a row that does not has nothing to wait for.
    """

    encoded: EncoderOutput
    biases: Tensor
    places: tuple[FrameIndex, ...]
    reaches_end: tuple[bool, ...]


class Hearing(Protocol):
    """A way to give rows their audio."""

    def hear(self, held: HeldSpeech, window: Window, shares: Shares, languages: Sequence[int]) -> Heard:
        """The audio of a row for each language; `window` was encoded last of what is held."""
        ...


@dataclass(frozen=True, slots=True)
class Masked:
    """All rows share the window's states, each under its own mask."""

    gate: Gate

    def hear(self, held: HeldSpeech, window: Window, shares: Shares, languages: Sequence[int]) -> Heard:
        biases = torch.zeros(len(languages), window.encoded.n_frames)
        for row, language in enumerate(languages):
            bias = self.gate.bias(shares, language)
            biases[row, : window.n_frames] = torch.from_numpy(bias).to(biases)
        places = np.arange(window.n_frames)
        device = window.encoded.states.device
        n_rows = len(languages)
        return Heard(window.encoded, biases.to(device), (places,) * n_rows, (True,) * n_rows)


@dataclass(frozen=True, slots=True)
class Alone:
    """Each row has its language's stretches joined and encoded by themselves.

    For decoders that were not trained on audio with hidden parts: a row hears ordinary speech of one
    language. Costs a second encoder pass, of about as many frames in all as the first.
    """

    gate: Gate

    def hear(self, held: HeldSpeech, window: Window, shares: Shares, languages: Sequence[int]) -> Heard:
        places = tuple(np.flatnonzero(self.gate.open_to(shares, language)) for language in languages)
        encoded, n_context = held.encode_parts(places)
        device = encoded.states.device
        column = torch.arange(encoded.n_frames, device=device)
        beyond = column >= torch.tensor(n_context, device=device)[:, None]
        ends = tuple(bool(len(own)) and int(own[-1]) == window.n_frames - 1 for own in places)
        return Heard(encoded, _HIDDEN * beyond.float(), places, ends)
