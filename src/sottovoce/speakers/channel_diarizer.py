"""Diarization of recordings with one channel per speaker: the loudest channel speaks.

Source: whisper.cpp, `--diarize`, which compares two channels over a whole segment.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sottovoce.audio.io import Recording, Span
from sottovoce.errors import AudioError
from sottovoce.speakers.diarize import active_spans
from sottovoce.speakers.labels import letter
from sottovoce.speakers.voices import Floats
from sottovoce.types import SAMPLE_RATE, Samples, Turn

FRAME_SAMPLES = SAMPLE_RATE // 50
SMOOTH_FRAMES = 15
"""Bridges the gaps between syllables (0.3 s)."""
QUIET_DB = 35.0
"""Frames this far below the loud ones are silent."""
SILENCE_DB = -70.0
APART_DB = 6.0
"""Channels this far below the loudest are silent."""
SHORTEST_CHANNEL_TURN_S = 0.2
ALIKE_DB = 0.5
MARGIN_FRAMES = 5
"""Frames around a channel's own speech that are not crosstalk."""
LEAKS_DB = ((10.0, 10.0), (15.0, 6.0))
"""Crosstalk is this far below the loudest channel, and this far below the channel's own speaker."""


class ChannelDiarizer:
    def turns(self, recording: Recording) -> list[Turn]:
        """Find the turns.

        Raises: AudioError for one channel, or the same sound in all channels.
        """
        with recording.open_channels() as reader:
            levels = levels_db(reader.channels())
        n_channels = levels.shape[1]
        if n_channels < 2:
            raise AudioError(f"{recording.name}: expected a channel for each speaker, got 1 channel")
        loudest = levels.max(axis=1)
        is_loud = loud_frames(levels)
        if are_alike(levels):
            raise AudioError(
                f"{recording.name}: expected a channel for each speaker, got the same sound in all"
            )
        turns = [
            Turn(start * FRAME_SAMPLES / SAMPLE_RATE, end * FRAME_SAMPLES / SAMPLE_RATE, letter(channel))
            for channel in range(n_channels)
            for start, end in active_spans(is_loud & (levels[:, channel] > loudest - APART_DB))
            if (end - start) * FRAME_SAMPLES >= SHORTEST_CHANNEL_TURN_S * SAMPLE_RATE
        ]
        return sorted(turns, key=lambda turn: (turn.start, turn.end))


def has_channels_apart(recording: Recording) -> bool:
    with recording.open_channels() as reader:
        return reader.info.n_channels > 1 and not are_alike(levels_db(reader.channels()))


def leaks(recording: Recording) -> list[list[Span]]:
    """Find the crosstalk of each channel: spans [start, end) in samples.

    Raises: AudioError.
    """
    with recording.open_channels() as reader:
        levels = levels_db(reader.channels())
    return [
        [
            ((start + MARGIN_FRAMES) * FRAME_SAMPLES, (end - MARGIN_FRAMES) * FRAME_SAMPLES)
            for start, end in active_spans(is_other)
            if end - start > 2 * MARGIN_FRAMES
        ]
        for is_other in are_others(levels).T
    ]


def are_others(levels: Floats) -> npt.NDArray[np.bool_]:
    """Mark the crosstalk in levels (n_frames, n_channels)."""
    loudest = levels.max(axis=1, keepdims=True)
    is_own = loud_frames(levels)[:, None] & (levels > loudest - APART_DB)
    usual_levels = [
        np.median(level[is_there]) if is_there.any() else np.inf
        for level, is_there in zip(levels.T, is_own.T, strict=True)
    ]
    below, below_own = loudest - levels, np.array(usual_levels) - levels
    is_other = np.zeros(levels.shape, np.bool_)
    for least, least_own in LEAKS_DB:
        is_other |= (below > least) & (below_own > least_own)
    return is_other


def loud_frames(levels: Floats) -> npt.NDArray[np.bool_]:
    loudest = levels.max(axis=1)
    return np.asarray(loudest > max(SILENCE_DB, np.percentile(loudest, 98) - QUIET_DB))


def are_alike(levels: Floats) -> bool:
    is_loud = loud_frames(levels)
    return bool(is_loud.any() and np.ptp(levels[is_loud], axis=1).max() < ALIKE_DB)


def levels_db(blocks: Iterable[Samples]) -> Floats:
    """Measure smoothed levels (n_frames, n_channels) in dB of blocks (n_channels, n), in frames of 20 ms."""
    powers: list[npt.NDArray[np.float32]] = []
    rest: Samples | None = None
    for block in blocks:
        joined = block if rest is None else np.concatenate((rest, block), axis=1)
        n_frames = joined.shape[1] // FRAME_SAMPLES
        rest = joined[:, n_frames * FRAME_SAMPLES :]
        frames = joined[:, : n_frames * FRAME_SAMPLES].reshape(len(joined), n_frames, FRAME_SAMPLES)
        powers.append(np.mean(np.square(frames), axis=2).T)
    if rest is not None and rest.shape[1]:
        powers.append(np.mean(np.square(rest), axis=1)[None])
    power = np.concatenate(powers)
    sums = np.cumsum(np.concatenate((np.zeros((1, power.shape[1])), power.astype(np.float64))), axis=0)
    frames_at = np.arange(len(power))
    first = np.maximum(0, frames_at - SMOOTH_FRAMES // 2)
    last = np.minimum(len(power), frames_at + SMOOTH_FRAMES // 2 + 1)
    mean = (sums[last] - sums[first]) / (last - first)[:, None]
    return np.asarray(10 * np.log10(np.maximum(mean, 1e-10)), dtype=np.float32)
