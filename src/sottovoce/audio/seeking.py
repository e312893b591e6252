"""Seek to a part in the middle of a container, without decoding all before it.

Samples are counted as `container` counts them when it decodes from the beginning: those that packets hold,
end to end, from the first one that is decoded. So the first frames are decoded for their time stamp and size;
then the container is asked to seek to a little before the part, the decoder gets half a second to settle, and
frames are handed out from a sample on at which the grid of 16 kHz meets that of the source. Where the
position of a frame is not certain to the sample, the result is None, and the caller decodes from the
beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer

from sottovoce.types import SAMPLE_RATE

FORMATS = ("mov", "matroska", "mp3", "flac", "wav", "w64", "ogg", "aiff")
"""Containers with an index, or whose packets tell their places: others, like ADTS, guess them from the bit
rate."""
SHORTEST_S = 10.0
"""What lies before an earlier part is decoded."""
PREROLL_S = 1.0
WARM_UP_S = 0.5
"""Of sound that is decoded after a seek and thrown away: what a decoder remembers of earlier packets is not
there."""
STAMP_S = 0.0015
"""How far a time stamp in milliseconds may lie beside the place that the size of frames gives."""
UNEQUAL = ("vorbis",)
"""Codecs whose frames differ in size, though the first ones may not."""
MOST_PLANES = 7
_N_FIRST = 4
_REFUSALS = (av.FFmpegError, ValueError, RuntimeError, ArithmeticError, LookupError, OSError)


@dataclass(frozen=True, slots=True)
class FirstFrames:
    """How a stream begins.

    origin: time stamp of its first sample. n_first: samples of the first frame; n_each: of those after it,
    None where they differ.
    """

    origin: int
    rate: int
    n_first: int
    n_each: int | None


@dataclass(frozen=True, slots=True)
class SoughtFrames:
    """Frames from a position in a stream on; first_sample: at 16 kHz, where the first of them begins."""

    first_sample: int
    frames: Iterator[av.AudioFrame]


def seek_before(
    container: InputContainer,
    stream: AudioStream,
    start_sample: int,
    decoded: Callable[[], Iterator[av.AudioFrame]],
) -> SoughtFrames | None:
    """Seek a stream that was not decoded yet to just before the sample at 16 kHz; None where its position is
    uncertain.

    decoded: frames from where the container stands. After None the container is of no more use, unless its
    format is not sought in (see `can_seek`).
    """
    start_s = start_sample / SAMPLE_RATE
    try:
        return _sought(container, stream, start_s, decoded)
    except (*_REFUSALS, EOFError):
        return None


def can_seek(container: InputContainer, start_sample: int) -> bool:
    """Tell whether packets of the format have positions, and the part begins late enough to be worth
    seeking.
    """
    has_positions = container.format.name.split(",")[0] in FORMATS
    return has_positions and start_sample >= SHORTEST_S * SAMPLE_RATE


def _sought(
    container: InputContainer,
    stream: AudioStream,
    start_s: float,
    decoded: Callable[[], Iterator[av.AudioFrame]],
) -> SoughtFrames | None:
    first = first_frames(list(islice(decoded(), _N_FIRST)), stream.codec_context.name)
    if first is None or stream.time_base is None:
        return None
    target_s = start_s - PREROLL_S
    container.seek(first.origin + int(target_s / stream.time_base), stream=stream, backward=True)
    frames = decoded()
    landed = next((frame for frame in frames if frame.samples), None)
    place = None if landed is None else place_of(landed, first)
    if landed is None or place is None or place > target_s * first.rate:
        return None
    grid = first.rate // math.gcd(first.rate, SAMPLE_RATE)
    begin = math.ceil((place + WARM_UP_S * first.rate) / grid) * grid
    head = _frame_at(begin, landed, frames, first)
    if head is None or begin > start_s * first.rate:
        return None
    return SoughtFrames(begin * SAMPLE_RATE // first.rate, chain([head], frames))


def first_frames(frames: list[av.AudioFrame], codec: str) -> FirstFrames | None:
    """Describe how a stream begins, by its first frames; None where they do not tell."""
    if len(frames) < _N_FIRST or frames[0].pts is None:
        return None
    if len({frame.sample_rate for frame in frames}) > 1 or frames[0].layout.nb_channels > MOST_PLANES:
        return None
    sizes = {frame.samples for frame in frames[1:]}
    n_each = sizes.pop() if len(sizes) == 1 and codec not in UNEQUAL else None
    return FirstFrames(frames[0].pts, frames[0].sample_rate, frames[0].samples, n_each)


def place_of(frame: av.AudioFrame, first: FirstFrames) -> int | None:
    """Locate a frame: the sample of the source at which it begins; None where that is uncertain.

    Time stamps finer than a sample give it directly; others, as the milliseconds of Matroska, give it where
    all frames have one size.
    """
    step = frame.time_base
    if frame.pts is None or step is None or frame.sample_rate != first.rate:
        return None
    stamped = (frame.pts - first.origin) * step * first.rate
    if step * first.rate <= 1:
        return round(stamped)
    if first.n_each is None or frame.samples != first.n_each:
        return None
    place = first.n_first + round((stamped - first.n_first) / first.n_each) * first.n_each
    return place if abs(place - stamped) <= STAMP_S * first.rate else None


def _frame_at(
    begin: int, landed: av.AudioFrame, frames: Iterator[av.AudioFrame], first: FirstFrames
) -> av.AudioFrame | None:
    """Find the frame that holds a sample of the source, cut to begin there; None where none does."""
    for frame in chain([landed], frames):
        place = place_of(frame, first)
        if place is None or place > begin:  # it was in a packet that cannot be decoded
            return None
        if place + frame.samples > begin:
            return cut_frame(frame, begin - place)
    return None


def cut_frame(frame: av.AudioFrame, n_samples: int) -> av.AudioFrame:
    """Cut the first n_samples off a frame."""
    if n_samples == 0:
        return frame
    samples = frame.to_ndarray()
    step = 1 if frame.format.is_planar else frame.layout.nb_channels
    rest = np.ascontiguousarray(samples[:, n_samples * step :])
    cut = av.AudioFrame.from_ndarray(rest, format=frame.format.name, layout=frame.layout.name)
    cut.sample_rate = frame.sample_rate
    return cut
