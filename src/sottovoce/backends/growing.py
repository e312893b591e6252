"""What an update of a growing window computes, and what it keeps: the same rules for every backend.

Not known here: networks, audio, and what is read from the frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sottovoce.backends.base import GrowingWindow, ModelDims
from sottovoce.errors import OptionError
from sottovoce.models.encoder_mode import EncoderMode, Padding, frames_of

MELS_PER_FRAME = 2


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a window's last update, in encoder frames (20 ms).

    n_content: frames of audio. padding: behind it, as it was when there were `padded_at` frames of audio in
    `mode`. level: the loudest log-mel value when everything was last computed.
    """

    n_content: int
    padding: Padding
    padded_at: int
    mode: EncoderMode
    level: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What an update computes: frames of audio from `start` on, and the padding behind them if `pads`.

    kept: what will be known of this update at the next one.
    """

    start: int
    pads: bool
    kept: Kept

    @property
    def end(self) -> int:
        """The frame that the run of computed frames ends before; single frames of padding may follow."""
        return self.kept.n_content + (self.kept.padding.n_near if self.pads else 0)

    @property
    def n_computed(self) -> int:
        """Frames, padding included."""
        n_padding = self.kept.padding.n_frames if self.pads else 0
        return self.kept.n_content - self.start + n_padding

    @property
    def kind(self) -> tuple[bool, bool]:
        """Updates of the same kind are of about the same shape."""
        return self.start == 0, self.pads


def check_windows(windows: Sequence[GrowingWindow], dims: ModelDims, name: str) -> None:
    """Raises: OptionError for no window, other mel bands, and less than one frame or more than all."""
    if not windows:
        raise OptionError("encode_growing: expected at least one window, got none")
    for window in windows:
        n_mels, n_columns = window.log_mel.shape
        if n_mels != dims.n_mels:
            raise OptionError(f"encode_growing: {n_mels} mel bands given, {name} expects {dims.n_mels}")
        if not MELS_PER_FRAME <= n_columns <= MELS_PER_FRAME * dims.n_audio_ctx:
            raise OptionError(
                f"encode_growing: {n_columns} log-mel frames given, "
                f"expected {MELS_PER_FRAME} to {MELS_PER_FRAME * dims.n_audio_ctx}"
            )


def plan_update(window: GrowingWindow, kept: Kept | None, n_full: int) -> Plan:
    """What an update computes, given what is kept of the one before; n_full: frames of the full window."""
    n_content = window.log_mel.shape[1] // MELS_PER_FRAME
    level = float(window.log_mel.max())
    start = 0 if kept is None else _first_new_frame(window.mode, kept, n_content, level)
    if kept is not None and start and _padding_holds(window.mode, kept, n_content):
        return Plan(start, False, replace(kept, n_content=n_content))
    padding = window.mode.padding(n_content, n_full)
    if kept is not None and start:
        level = kept.level
    return Plan(start, True, Kept(n_content, padding, n_content, window.mode, level))


def _first_new_frame(mode: EncoderMode, kept: Kept, n_content: int, level: float) -> int:
    """0 where everything is computed: as asked, or where what is kept is of no use."""
    moved = abs(level - kept.level) > mode.level_drift
    if mode.recompute_s is None or moved:
        return 0
    # The last frame kept has seen the padding through the convolutions.
    return max(0, min(kept.n_content - 1, n_content - frames_of(mode.recompute_s)))


def _padding_holds(mode: EncoderMode, kept: Kept, n_content: int) -> bool:
    """Whether the padding that is kept will do."""
    grown = n_content - kept.padded_at
    return mode.whole() == kept.mode.whole() and 0 <= grown < max(1, frames_of(mode.refresh_s))


def groups(plans: Sequence[Plan]) -> list[list[int]]:
    """Places of updates of the same kind, which are computed together."""
    by_kind: dict[tuple[bool, bool], list[int]] = {}
    for place, plan in enumerate(plans):
        by_kind.setdefault(plan.kind, []).append(place)
    return list(by_kind.values())
