"""The audio of each language's row: its own stretches, encoded by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.backends.base import EncoderMode, IncrementalResult, IncrementalWindow
from sottovoce.engine.calls import CallGenerator, IncrementalEncodeCall
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.multilingual.masks import Shares, open_frames, owning_languages
from sottovoce.types import EncoderOutput

FrameIndex = npt.NDArray[np.int64]
Spans: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LanguageRow:
    """A decoder row: index of its language, and the frame of the window that its audio begins at."""

    language: int
    first_frame: int


@dataclass(frozen=True, slots=True, eq=False)
class RowInputs:
    """The audio of each row.

    encoded: one window (batch of 1) a row. frames: for each row, the frame of the utterance's window behind
    each frame of its own. reaches_end: whether a row has the end of the utterance's window; one that does not
    has nothing to wait for. stretches: for each row, the spans [start, end) of frames that its words lie in.
    """

    encoded: tuple[EncoderOutput, ...]
    frames: tuple[FrameIndex, ...]
    reaches_end: tuple[bool, ...]
    stretches: tuple[Spans, ...]

    def clip(self, row: int, span: tuple[float, float]) -> tuple[float, float]:
        """Clip the span of a row's word (frames) to the stretch that it overlaps most, or lies nearest to.

        It begins at the stretch's last frame at the latest: the frame after it is another row's.
        """
        start, end = max(self.stretches[row], key=lambda stretch: _overlap(stretch, span))
        return max(start, min(span[0], end - 1)), max(start, min(span[1], end))


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the common length of two spans; if they have none, minus the gap between them."""
    return min(one[1], other[1]) - max(one[0], other[0])


def encode_rows(
    window: AudioWindow,
    shares: Shares,
    rows: Sequence[LanguageRow],
    *,
    margin_s: float,
    mode: EncoderMode,
) -> CallGenerator[RowInputs]:
    """Return the audio of each row: its language's stretches, joined and encoded in this mode.

    A row gets ordinary speech of one language. Costs a second encoder pass, of about as many frames in all as
    the first. window: the utterance's, encoded last. shares: (n_frames, L). margin_s: see `ParallelOptions`.
    """
    frames = tuple(_since(row, open_frames(shares, row.language, margin_s)).nonzero()[0] for row in rows)
    results: list[IncrementalResult] = yield IncrementalEncodeCall(
        [IncrementalWindow(window.part(own), mode.whole()) for own in frames]
    )
    ends = tuple(bool(len(own)) and int(own[-1]) == window.n_frames - 1 for own in frames)
    owned = owning_languages(shares)
    stretches = tuple(_runs(_since(row, owned[:, row.language])) for row in rows)
    return RowInputs(tuple(one.encoded for one in results), frames, ends, stretches)


def _since(row: LanguageRow, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return a mask (n_frames,) from a row's first frame on."""
    since: npt.NDArray[np.bool_] = mask & (np.arange(len(mask)) >= row.first_frame)
    return since


def _runs(mask: npt.NDArray[np.bool_]) -> Spans:
    """Return the spans [start, end) of a mask (n,) in which it is True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8))).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))
