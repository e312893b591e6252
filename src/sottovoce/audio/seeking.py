"""Seek to a part in the middle of a container, without decoding all before it.

Samples have the places that they have when all is decoded from the beginning: those of the `timeline`. So the
first frames are decoded for their time stamp and size; then the container is asked to seek to a little before
the part, the decoder gets half a second to settle, and frames are handed out from a sample on at which the
grid of 16 kHz meets that of the source. Where the position of a frame is not certain to the sample, the
result is None, and the caller decodes from the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import av
from av.audio.stream import AudioStream
from av.container import InputContainer

from sottovoce.audio.timeline import MOST_PLANES, Timeline, cut_frame
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
    timeline: Timeline,
) -> SoughtFrames | None:
    """Seek a stream that was not decoded yet to just before the sample at 16 kHz; None where its position is
    uncertain.

    decoded: frames from where the container stands. timeline: places them, from the first one on.
    After None the container is of no more use, unless its format is not sought in (see `can_seek`).
    """
    start_s = start_sample / SAMPLE_RATE
    try:
        return _sought(container, stream, start_s, decoded, timeline)
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
    timeline: Timeline,
) -> SoughtFrames | None:
    heads = list(islice(decoded(), _N_FIRST))
    first = first_frames(heads, stream.codec_context.name)
    if first is None or stream.time_base is None:
        return None
    n_late = round(timeline.begin(heads[0], container, stream) * first.rate)
    target_s = start_s - PREROLL_S
    container.seek(int(timeline.stamp_of(target_s) / stream.time_base), stream=stream, backward=True)
    frames = decoded()
    landed = next((frame for frame in frames if frame.samples), None)
    place = None if landed is None else place_of(landed, first)
    if landed is None or place is None or place + n_late > target_s * first.rate:
        return None
    place += n_late
    timeline.begin_at(landed, place / first.rate)
    placed = timeline.placed(chain([landed], frames), container, stream)
    grid = first.rate // math.gcd(first.rate, SAMPLE_RATE)
    begin = math.ceil((place + WARM_UP_S * first.rate) / grid) * grid
    head = _frame_at(begin - place, placed, first.rate)
    if head is None or begin > start_s * first.rate:
        return None
    return SoughtFrames(begin * SAMPLE_RATE // first.rate, chain([head], placed))


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


def _frame_at(n_before: int, frames: Iterator[av.AudioFrame], rate: int) -> av.AudioFrame | None:
    """Skip n_before samples; return the frame that holds the next one, cut to begin there, or None."""
    for frame in frames:
        if frame.sample_rate != rate:
            return None
        if frame.samples > n_before:
            return cut_frame(frame, n_before)
        n_before -= frame.samples
    return None
