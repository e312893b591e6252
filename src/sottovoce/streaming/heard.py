"""What each language's row listens to: one encoding under a mask, or its own stretches encoded alone.

Not known here: tokens, words, and how the timeline comes about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.backends.base import EncoderMode, GrowingWindow
from sottovoce.streaming.gating import Gate, Shares, owners
from sottovoce.streaming.utterance import Utterance
from sottovoce.streaming.window import Window
from sottovoce.streaming.work import Encode, Steps
from sottovoce.types import EncoderOutput

FrameIndex = npt.NDArray[np.int64]
Spans: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """What rows listen to.

    encoded: the window that each row hears, one for all or one a row. biases: of each row (n_frames,) of
    its window, see `Backend.step`; None: nothing is held back. places: for each row, the frame of the
    utterance's window behind each frame that it hears. reaches_end: whether a row hears the end of that; a
    row that does not has nothing to wait for. stretches: for each row, the spans of frames [start, end) that
    its words lie in; empty where they may lie anywhere.
    """

    encoded: tuple[EncoderOutput, ...]
    biases: tuple[Tensor | None, ...]
    places: tuple[FrameIndex, ...]
    reaches_end: tuple[bool, ...]
    stretches: tuple[Spans, ...]

    def within(self, row: int, span: tuple[float, float]) -> tuple[float, float]:
        """A span of a row's word, cut to the stretch that holds most of it, or lies nearest to it.

        It begins at the stretch's last frame at the latest: the frame after it is another row's.
        """
        if not self.stretches[row]:
            return span
        start, end = max(self.stretches[row], key=lambda stretch: _overlap(stretch, span))
        return max(start, min(span[0], end - 1)), max(start, min(span[1], end))


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Common length of two spans; of those that have none, minus the gap between them."""
    return min(one[1], other[1]) - max(one[0], other[0])


@dataclass(frozen=True, slots=True)
class Row:
    """A decoder row: its language, and the frame of the window that its audio begins at."""

    language: int
    first_frame: int = 0


class Hearing(Protocol):
    """A way to give rows their audio."""

    @property
    def apart(self) -> bool:
        """Whether a row is given its audio since another language was committed, and no other."""
        ...

    def hear(self, utterance: Utterance, window: Window, shares: Shares, rows: Sequence[Row]) -> Steps[Heard]:
        """The audio of each row; `window` was encoded last of the utterance."""
        ...


@dataclass(frozen=True, slots=True)
class Masked:
    """All rows share the window's states, each under its own mask."""

    gate: Gate

    @property
    def apart(self) -> bool:
        return False

    def hear(self, utterance: Utterance, window: Window, shares: Shares, rows: Sequence[Row]) -> Steps[Heard]:
        yield from ()
        biases = []
        for row in rows:
            bias = torch.zeros(window.encoded.n_frames)
            bias[: window.n_frames] = torch.from_numpy(self.gate.bias(shares, row.language)).to(bias)
            biases.append(bias.to(window.encoded.states.device))
        n_rows, places = len(rows), np.arange(window.n_frames)
        return Heard(
            (window.encoded,) * n_rows, tuple(biases), (places,) * n_rows, (True,) * n_rows, ((),) * n_rows
        )


@dataclass(frozen=True, slots=True)
class Alone:
    """Each row has its language's stretches joined and encoded by themselves.

    For decoders that were not trained on audio with hidden parts: a row hears ordinary speech of one
    language. Costs a second encoder pass, of about as many frames in all as the first.
    """

    gate: Gate
    mode: EncoderMode

    @property
    def apart(self) -> bool:
        return True

    def hear(self, utterance: Utterance, window: Window, shares: Shares, rows: Sequence[Row]) -> Steps[Heard]:
        places = tuple(_since(row, self.gate.open_to(shares, row.language)).nonzero()[0] for row in rows)
        work = Encode([GrowingWindow(window.part(own), self.mode.whole()) for own in places])
        yield work
        ends = tuple(bool(len(own)) and int(own[-1]) == window.n_frames - 1 for own in places)
        stretches = tuple(_runs(_since(row, owners(shares)[:, row.language])) for row in rows)
        encoded = tuple(grown.encoded for grown in work.grown)
        return Heard(encoded, (None,) * len(rows), places, ends, stretches)


def _since(row: Row, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """A mask (n_frames,) from a row's first frame on."""
    since: npt.NDArray[np.bool_] = mask & (np.arange(len(mask)) >= row.first_frame)
    return since


def _runs(mask: npt.NDArray[np.bool_]) -> Spans:
    """Spans [start, end) of a mask (n,) in which it is True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8))).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))
