"""Time stamps of decoded audio: samples are positioned as a player shows them, from the start time of the
container.

Frames within 0.1 s of the expected position follow on untouched. Otherwise gaps are filled with silence and
overlaps trimmed, as by FFmpeg's `aresample=async=1`. Deviations of less than half a second are ignored as
damaged stamps. Implausible steps (back by more than ten seconds or to the beginning, or more than an hour
ahead) start a new timeline where the sound so far ends; so does every step back in formats whose stamps may
begin anew (MPEG-TS, Ogg), as in FFmpeg. Formats without time stamps (MP3, ADTS, FLAC, WAV) are joined end to
end.

`seek_before` finds a part with the same sample positions. It decodes the first frames for their stamp and
size, seeks to a little before the part, lets the decoder settle for half a second, and starts at a sample at
which the grids of 16 kHz and of the source meet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer

from sottovoce.types import SAMPLE_RATE

JITTER_S = 0.1
STEADY_S = 0.5
"""Duration for which stamps must deviate before they count."""
MOST_GAP_S = 3600.0
MOST_LIVE_GAP_S = 30.0
"""Limit for live audio: a pause of the sender, such as a sleeping computer, is not replayed."""
MOST_FILLED_S = 12 * 3600.0
"""Limit of silence in one recording, so that a few damaged bytes cannot make days of it."""
MOST_OVERLAP_S = 10.0
SWALLOWED_S = 0.3
"""Sound that a decoder may consume before its first frame."""
STAMPED_FORMATS = ("mov", "matroska", "mpegts", "mpeg", "ogg", "asf", "flv", "nut", "mxf", "wtv")
"""Containers that store time stamps; libav derives those of others from frame sizes."""
RESTARTING_FORMATS = ("mpegts", "mpeg", "ogg")
"""Containers whose time stamps may begin anew, as in files that were concatenated (AVFMT_TS_DISCONT)."""
MOST_PLANES = 7
"""Limit of planes that PyAV counts correctly."""


class Timeline:
    """Places the frames of one recording, which may be several containers one after another.

    most_gap_s: the longest gap that is filled. end_s: position of the next sample.
    """

    def __init__(self, *, most_gap_s: float = MOST_GAP_S) -> None:
        self._most_gap_s = most_gap_s
        self._origin_s: float | None = None
        self._next_s = 0.0
        self._to_trim_s = 0.0
        self._last_stamp_s = 0.0
        self._late_s = 0.0
        self._filled_s = 0.0
        self._trimmed_s = 0.0
        self._first_change_s = 0.0
        self._n_restarts = 0
        self._is_damaged = False
        self.silences: list[tuple[float, float]] = []

    @property
    def end_s(self) -> float:
        return self._next_s + self._to_trim_s

    @property
    def is_joined(self) -> bool:
        return self._is_damaged or self._n_restarts > 0

    def begin(self, frame: av.AudioFrame, container: InputContainer, stream: AudioStream) -> float:
        stamp = frame.time
        if stamp is None:
            return 0.0
        late_s = 0.0
        if _name(container) in STAMPED_FORMATS and container.start_time is not None:
            late_s = stamp - container.start_time / av.time_base
            swallowed_s = 0.0
            if stream.start_time is not None and stream.time_base is not None:
                swallowed_s = stamp - float(stream.start_time * stream.time_base)
            if late_s - (swallowed_s if 0.0 < swallowed_s < SWALLOWED_S else 0.0) <= JITTER_S:
                late_s = 0.0
        if late_s > self._most_gap_s:
            late_s = 0.0
            self._n_restarts += 1
        self._origin_s = stamp - late_s - self.end_s
        return late_s

    def begin_at(self, frame: av.AudioFrame, place_s: float) -> None:
        self._next_s, self._origin_s = place_s, (frame.time or 0.0) - place_s

    def stamp_of(self, place_s: float) -> float:
        return place_s + (self._origin_s or 0.0)

    def placed(
        self, frames: Iterator[av.AudioFrame], container: InputContainer, stream: AudioStream
    ) -> Iterator[av.AudioFrame]:
        if _name(container) not in STAMPED_FORMATS:
            yield from frames
            return
        restarts = _name(container) in RESTARTING_FORMATS
        held: deque[av.AudioFrame] = deque()
        for frame in frames:
            if self._origin_s is None:
                late_s = self.begin(frame, container, stream)
                if late_s:
                    self._late_s += late_s
                    yield from self._silence(late_s, frame)
            if held or abs(self._deviation_s(frame, self._next_s)) > JITTER_S:
                held.append(frame)
                yield from self._settled(held, restarts=restarts, is_end=False)
            else:
                yield from self._following(frame)
        yield from self._settled(held, restarts=restarts, is_end=True)
        self._origin_s = None

    def changes(self) -> str | None:
        found = []
        if self._late_s:
            found.append(f"the audio begins at {self._late_s:.2f} s")
        if self._filled_s or self._trimmed_s:
            done = [
                f"{seconds:.2f} s {what}"
                for seconds, what in (
                    (self._filled_s, "of missing sound are silence"),
                    (self._trimmed_s, "of overlapping sound are trimmed"),
                )
                if seconds
            ]
            found.append(f"by its time stamps {' and '.join(done)}, first at {self._first_change_s:.2f} s")
        if self._n_restarts:
            times = "once" if self._n_restarts == 1 else f"{self._n_restarts} times"
            found.append(f"the time stamps start anew {times}, the sound is joined there")
        if self._is_damaged:
            found.append("damaged time stamps are not used")
        return "; ".join(found) or None

    def _deviation_s(self, frame: av.AudioFrame, place_s: float) -> float:
        stamp = frame.time
        return 0.0 if stamp is None or self._origin_s is None else stamp - self._origin_s - place_s

    def _settled(
        self, held: deque[av.AudioFrame], *, restarts: bool, is_end: bool
    ) -> Iterator[av.AudioFrame]:
        while held:
            jump_s = self._deviation_s(held[0], self._next_s)
            if abs(jump_s) <= JITTER_S:
                yield from self._following(held.popleft())
                continue
            n_astray, length_s = self._astray(held)
            if n_astray < len(held) or (is_end and len(held) == 1):
                self._is_damaged = True
                for _ in range(n_astray):
                    yield from self._following(held.popleft())
            elif length_s >= STEADY_S or is_end:
                # Behind a damaged stamp ahead, muxers repeat it until time catches up: no sound is missing.
                before_last_s = length_s - held[-1].samples / held[-1].sample_rate
                steady_s = self._deviation_s(held[-1], self._next_s + before_last_s)
                if jump_s < 0 or abs(steady_s - jump_s) <= min(JITTER_S, before_last_s / 2):
                    yield from self._jump(jump_s, held[0], restarts=restarts)
                else:
                    self._is_damaged = True
                yield from self._following(held.popleft())
            else:
                return

    def _astray(self, held: deque[av.AudioFrame]) -> tuple[int, float]:
        length_s = 0.0
        for n, frame in enumerate(held):
            is_back = n > 0 and frame.time is not None
            if is_back and abs(self._deviation_s(frame, self._next_s + length_s)) <= JITTER_S:
                return n, length_s
            length_s += frame.samples / frame.sample_rate
        return len(held), length_s

    def _jump(self, jump_s: float, frame: av.AudioFrame, *, restarts: bool) -> Iterator[av.AudioFrame]:
        stamp = frame.time or 0.0
        if jump_s > 0:
            is_new = jump_s > self._most_gap_s or self._filled_s + jump_s > MOST_FILLED_S
        else:
            is_back = self._next_s + jump_s <= JITTER_S or -jump_s > MOST_OVERLAP_S
            is_new = is_back or (restarts and stamp < self._last_stamp_s - JITTER_S)
        if is_new:
            self._origin_s = stamp - self._next_s
            self._n_restarts += 1
            return
        if not self._filled_s and not self._trimmed_s:
            self._first_change_s = self.end_s
        if jump_s < 0:
            self._to_trim_s -= jump_s
            self._next_s += jump_s
            return
        gap_s = jump_s - self._to_trim_s  # silence replaces the overlap still to be trimmed
        self._next_s += jump_s - max(gap_s, 0.0)
        self._to_trim_s = max(-gap_s, 0.0)
        if gap_s > 0:
            before_s = self._next_s
            yield from self._silence(gap_s, frame)
            self._filled_s += self._next_s - before_s

    def _silence(self, seconds: float, like: av.AudioFrame) -> Iterator[av.AudioFrame]:
        rate = like.sample_rate
        n_left = round(seconds * rate)
        self.silences.append((self.end_s, self.end_s + n_left / rate))
        self._next_s += n_left / rate
        while n_left > 0:
            n_samples = min(n_left, rate)
            n_left -= n_samples
            yield _silent_frame(n_samples, like)

    def _following(self, frame: av.AudioFrame) -> Iterator[av.AudioFrame]:
        stamp, length_s = frame.time, frame.samples / frame.sample_rate
        if stamp is not None:
            self._last_stamp_s = stamp
        self._next_s += length_s
        if self._to_trim_s:
            n_cut = min(frame.samples, round(self._to_trim_s * frame.sample_rate))
            self._trimmed_s += n_cut / frame.sample_rate
            self._to_trim_s -= n_cut / frame.sample_rate
            if n_cut == frame.samples:
                return
            self._to_trim_s = 0.0
            frame = cut_frame(frame, n_cut)
        yield frame


def _name(container: InputContainer) -> str:
    return container.format.name.split(",")[0]


def _silent_frame(n_samples: int, like: av.AudioFrame) -> av.AudioFrame:
    """Return silence in the format of a frame; another format would restart the resampler, which rounds
    lengths.
    """
    is_readable = not like.format.is_planar or like.layout.nb_channels <= MOST_PLANES
    frame = av.AudioFrame(like.format.name if is_readable else "s16", like.layout.name, n_samples)
    frame.sample_rate = like.sample_rate
    zero = b"\x80" if frame.format.packed.name == "u8" else b"\0"
    for plane in frame.planes:
        plane.update(zero * plane.buffer_size)
    return frame


def cut_frame(frame: av.AudioFrame, n_samples: int) -> av.AudioFrame:
    if n_samples == 0:
        return frame
    if frame.format.is_planar and frame.layout.nb_channels > MOST_PLANES:
        packed = av.AudioResampler(format="s16", layout=frame.layout.name, rate=frame.sample_rate)
        frame = packed.resample(frame)[0]
    samples = frame.to_ndarray()
    step = 1 if frame.format.is_planar else frame.layout.nb_channels
    rest = np.ascontiguousarray(samples[:, n_samples * step :])
    cut = av.AudioFrame.from_ndarray(rest, format=frame.format.name, layout=frame.layout.name)
    cut.sample_rate = frame.sample_rate
    return cut


SEEKABLE_FORMATS = ("mov", "matroska", "mp3", "flac", "wav", "w64", "ogg", "aiff")
"""Containers with an index or positions in their packets; others (ADTS) guess them from the bit rate."""
SHORTEST_S = 10.0
PREROLL_S = 1.0
WARM_UP_S = 0.5
"""Sound decoded and discarded after a seek, while the decoder lacks earlier packets."""
STAMP_S = 0.0015
UNEQUAL = ("vorbis",)
_N_FIRST = 4


@dataclass(frozen=True, slots=True)
class _FirstFrames:
    """Time stamp of the first sample, samples of the first frame, and of each later one (None if they
    differ).
    """

    origin: int
    rate: int
    n_first: int
    n_each: int | None


def seek_before(
    container: InputContainer,
    stream: AudioStream,
    start_s: float,
    decoded: Callable[[], Iterator[av.AudioFrame]],
    timeline: Timeline,
) -> tuple[int, Iterator[av.AudioFrame]] | None:
    """Seek an undecoded stream to just before start_s; return the first sample (16 kHz) and the frames.

    None if the position is uncertain; the container is then spent. decoded: yields frames from the
    container's position on.
    Raises: errors of libav.
    """
    heads = list(islice(decoded(), _N_FIRST))
    first = _first_frames(heads, stream.codec_context.name)
    if first is None or stream.time_base is None:
        return None
    n_late = round(timeline.begin(heads[0], container, stream) * first.rate)
    target_s = start_s - PREROLL_S
    container.seek(int(timeline.stamp_of(target_s) / stream.time_base), stream=stream, backward=True)
    frames = decoded()
    landed = next((frame for frame in frames if frame.samples), None)
    place = None if landed is None else _place_of(landed, first)
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
    return begin * SAMPLE_RATE // first.rate, chain([head], placed)


def _first_frames(frames: list[av.AudioFrame], codec: str) -> _FirstFrames | None:
    if len(frames) < _N_FIRST or frames[0].pts is None:
        return None
    if len({frame.sample_rate for frame in frames}) > 1 or frames[0].layout.nb_channels > MOST_PLANES:
        return None
    sizes = {frame.samples for frame in frames[1:]}
    n_each = sizes.pop() if len(sizes) == 1 and codec not in UNEQUAL else None
    return _FirstFrames(frames[0].pts, frames[0].sample_rate, frames[0].samples, n_each)


def _place_of(frame: av.AudioFrame, first: _FirstFrames) -> int | None:
    """Return the first sample of a frame in the source; None if uncertain.

    Stamps in milliseconds (Matroska) are exact only if all frames have one size.
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
    for frame in frames:
        if frame.sample_rate != rate:
            return None
        if frame.samples > n_before:
            return cut_frame(frame, n_before)
        n_before -= frame.samples
    return None
