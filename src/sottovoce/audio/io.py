"""Reading of paths, standard input, file objects, bytes and arrays as 16 kHz mono float32.

Every unreadable source raises one AudioError of one line that names it.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import BinaryIO, TypeAlias, cast

import av
import numpy as np
from av.filter import Graph

from sottovoce.audio.container import AudioInfo
from sottovoce.audio.downmix import FloatResampler
from sottovoce.audio.input_format import HEAD_BYTES, RawFormat, is_container, no_sound, read_input_format
from sottovoce.audio.sources import (
    AudioSource,
    BlockSource,
    SourceRequest,
    open_container,
    open_source,
    source_name,
)
from sottovoce.audio.timeline import MOST_LIVE_GAP_S
from sottovoce.errors import AudioError, OptionError, cause_of
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples

__all__ = [
    "AudioInfo",
    "AudioReader",
    "AudioSource",
    "load_audio",
    "load_channels",
    "open_audio",
    "probe_audio",
    "read_live",
    "read_pcm",
    "source_name",
]

logger = logging.getLogger(__name__)

CHUNK_S = 5.0
QUIET = 4 / 32768
"""Digital silence as lossy codecs decode it."""
LEAST_PAUSE_S = 0.05
Span: TypeAlias = tuple[int, int]
TOLERANCE_S = 0.1
"""Most change of duration by a filter: its delay, and the end of an echo."""
_OUTPUT = f"sample_fmts=flt:sample_rates={SAMPLE_RATE}:channel_layouts=mono"
# PyAV's errors for bad filter options, and for filters that cannot be linked.
_REFUSALS = (av.FFmpegError, ValueError, RuntimeError, OSError)


class AudioFilter:
    """A chain of FFmpeg filters (`-af`, "highpass=f=100,afftdn") over 16 kHz mono samples.

    text: comma-separated filters without labels and branches. Filters that change the duration are refused,
    because they would change all times. A constant delay (25 ms for afftdn) goes unnoticed and shifts times.
    Raises: OptionError for unknown filters or bad options.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._n_in = self._n_out = 0
        self._graph = Graph()
        last = self._graph.add_abuffer(sample_rate=SAMPLE_RATE, format="flt", layout="mono")
        parts = [(part, *part.partition("=")[::2]) for part in _split(text)]
        for shown, name, options in [*parts, ("", "aformat", _OUTPUT), ("", "abuffersink", "")]:
            try:
                added = self._graph.add(name.strip(), options or None)
                last.link_to(added)
            except _REFUSALS as error:
                raise self._refusal(shown, error) from error
            last = added
        try:
            self._graph.configure()
        except _REFUSALS as error:
            raise self._refusal(text, error) from error

    def _refusal(self, part: str, error: BaseException) -> OptionError:
        return OptionError(
            "audio filter: expected filters of FFmpeg over one channel, as 'highpass=f=100,afftdn', "
            f"got '{part}' ({cause_of(error) or type(error).__name__})"
        )

    def push(self, samples: Samples) -> Samples:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None], format="flt", layout="mono")
        frame.sample_rate, frame.pts = SAMPLE_RATE, self._n_in
        frame.time_base = Fraction(1, SAMPLE_RATE)
        self._n_in += len(samples)
        self._graph.push(frame)
        return self._pulled()

    def flush(self) -> Samples:
        self._graph.push(None)
        rest = self._pulled()
        if abs(self._n_out - self._n_in) > TOLERANCE_S * SAMPLE_RATE:
            raise OptionError(
                f"audio filter '{self.text}': expected one that keeps times, it made "
                f"{self._n_out / SAMPLE_RATE:.2f} s of {self._n_in / SAMPLE_RATE:.2f} s"
            )
        return rest

    def _pulled(self) -> Samples:
        parts = [np.zeros(0, np.float32)]
        while True:
            try:
                frame = cast(av.AudioFrame, self._graph.pull())
            except (av.BlockingIOError, av.EOFError):
                break
            parts.append(frame.to_ndarray().reshape(-1).astype(np.float32, copy=False))
        samples: Samples = np.concatenate(parts)
        if not np.isfinite(samples).all():
            raise OptionError(f"audio filter '{self.text}': expected finite samples, it made NaN or infinity")
        self._n_out += len(samples)
        return samples.clip(-1.0, 1.0)


def _split(text: str) -> list[str]:
    parts, letters = [""], iter(text)
    for letter in letters:
        if letter == "\\":
            parts[-1] += next(letters, "")
        elif letter == "'":
            for quoted in letters:
                if quoted == "'":
                    break
                parts[-1] += quoted
        elif letter == ",":
            parts.append("")
        else:
            parts[-1] += letter
    return parts


class AudioReader:
    """A recording being read: iterate once over its AudioChunks, or over its channels. A context manager.

    start, end: the part in samples. audio_filter: applied to `channel`. `info.duration_s` is that of the
    part; `recording_s` is the declared duration of the whole.
    """

    def __init__(
        self,
        source: BlockSource,
        *,
        chunk_s: float = CHUNK_S,
        channel: int | None = None,
        start: int = 0,
        end: int | None = None,
        audio_filter: AudioFilter | None = None,
        warned: set[str],
    ) -> None:
        self._source = source
        self._blocks = _part(source, start, end) if start or end is not None else source.blocks()
        if audio_filter is not None:
            self._blocks, channel = _filtered(self._blocks, audio_filter, channel or 0), None
        self._chunk_samples = round(chunk_s * SAMPLE_RATE)
        self._channel = channel
        self._start_s = start / SAMPLE_RATE
        self.info = _part_info(source.info, start, end)
        self.recording_s = source.info.duration_s
        self.silent: Sequence[Span] = ()
        """Stretches [start, end) in samples, in order, that are replaced by silence."""
        self._warned = warned
        self._n_read = 0
        self._last_sound = -1
        self._pauses: list[tuple[float, float]] = []
        """Quiet stretches in seconds that contain missing sound."""

    def __enter__(self) -> AudioReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def silences(self) -> list[tuple[float, float]]:
        """Return the gaps filled with silence so far, each with the digital silence around it, in seconds."""
        pauses = [*self._pauses, ((self._last_sound + 1) / SAMPLE_RATE, self._n_read / SAMPLE_RATE)]
        found = []
        for filled in self._filled():
            at = bisect_right(pauses, _middle(filled), key=lambda pause: pause[0]) - 1
            start, end = pauses[at] if at >= 0 and _middle(filled) < pauses[at][1] else filled
            found.append((min(start, filled[0]), max(end, filled[1])))
        return found

    def _filled(self) -> list[tuple[float, float]]:
        return [(start - self._start_s, end - self._start_s) for start, end in self._source.silences()]

    def _note_pauses(self, block: Samples) -> None:
        sound = np.flatnonzero(np.abs(block).max(axis=0) > QUIET) + self._n_read
        edges = np.concatenate(([self._last_sound], sound))
        self._n_read += block.shape[1]
        self._last_sound = int(edges[-1])
        ends = np.flatnonzero(np.diff(edges) > LEAST_PAUSE_S * SAMPLE_RATE)
        filled = self._filled() if len(ends) else []
        for start_s, end_s in zip(
            (edges[ends] + 1) / SAMPLE_RATE, edges[ends + 1] / SAMPLE_RATE, strict=True
        ):
            at = bisect_left(filled, start_s, key=_middle)
            if at < len(filled) and _middle(filled[at]) < end_s:
                self._pauses.append((float(start_s), float(end_s)))

    def close(self) -> None:
        self._source.close()

    def __iter__(self) -> Iterator[AudioChunk]:
        """Yield mono chunks of equal length, the last one shorter; never an empty one.

        Raises: AudioError when the source is damaged beyond use, empty, or holds NaN or infinity.
        """
        start_sample = 0
        for block in self.channels():
            samples = block[0] if self._channel is None else block[self._channel]
            yield AudioChunk(np.ascontiguousarray(self._silenced(samples, start_sample)), start_sample)
            start_sample += len(samples)

    def _silenced(self, samples: Samples, first: int) -> Samples:
        within = [(start, end) for start, end in self.silent if start < first + len(samples) and end > first]
        if within:
            samples = samples.copy()
        for start, end in within:
            samples[max(0, start - first) : end - first] = 0.0
        return samples

    def channels(self) -> Iterator[Samples]:
        """Yield blocks (n_channels, n) float32: one row unless opened with all channels. Raises: as
        iteration.
        """
        pending: list[Samples] = []
        n_pending = 0
        for block in self._blocks:
            pending.append(block)
            n_pending += block.shape[1]
            if n_pending >= self._chunk_samples:
                joined = np.concatenate(pending, axis=1)
                whole = n_pending - n_pending % self._chunk_samples
                self._note_pauses(joined[:, :whole])
                for start in range(0, whole, self._chunk_samples):
                    yield joined[:, start : start + self._chunk_samples]
                pending, n_pending = [joined[:, whole:]], n_pending - whole
        if n_pending:
            rest = np.concatenate(pending, axis=1)
            self._note_pauses(rest)
            yield rest
        for warning in self._source.warnings():
            if warning not in self._warned:
                self._warned.add(warning)
                logger.warning("%s: %s", self.info.name, warning)


def _part(source: BlockSource, start: int, end: int | None) -> Iterator[Samples]:
    place = source.first_sample
    for block in source.blocks():
        inside = block[:, max(0, start - place) : None if end is None else end - place]
        place += block.shape[1]
        if inside.shape[1]:
            yield inside
        if end is not None and place >= end:
            break
    if place <= start:
        raise AudioError(
            f"{source.info.name}: expected a start before its end at {place / SAMPLE_RATE:.2f} s, "
            f"got {start / SAMPLE_RATE} s"
        )


def _part_info(info: AudioInfo, start: int, end: int | None) -> AudioInfo:
    whole = math.inf if info.duration_s is None else info.duration_s
    last = math.inf if end is None else end / SAMPLE_RATE
    seconds = max(0.0, min(whole, last) - start / SAMPLE_RATE)
    return replace(info, duration_s=seconds if seconds < math.inf else None)


def check_reading(audio_filter: str | None, input_format: str | None) -> None:
    """Check how recordings are to be read, before one is opened.

    Raises: OptionError for filters and an input format that FFmpeg does not have.
    """
    if audio_filter is not None:
        AudioFilter(audio_filter)
    if input_format is not None:
        read_input_format(input_format)


def _filtered(blocks: Iterator[Samples], audio_filter: AudioFilter, channel: int) -> Iterator[Samples]:
    for block in blocks:
        if block.shape[1]:
            yield audio_filter.push(block[channel])[None]
    yield audio_filter.flush()[None]


def open_audio(
    source: AudioSource,
    *,
    sample_rate: int = SAMPLE_RATE,
    channel: int | None = None,
    keep_channels: bool = False,
    chunk_s: float = CHUNK_S,
    audio_filter: str | None = None,
    audio_track: int | str | None = None,
    input_format: str | None = None,
    start_s: float | None = None,
    duration_s: float | None = None,
    warned: set[str] | None = None,
) -> AudioReader:
    """Open a recording, or a part of it, for reading as 16 kHz mono chunks of chunk_s seconds.

    start_s, duration_s: the part, exact to the sample. Containers with an index are sought in; others are
    decoded from their beginning. sample_rate: of an array. channel: the only channel to read, from 0; None
    mixes all, in files by libswresample's weights and in arrays by their mean. keep_channels: do not mix, for
    `AudioReader.channels`. audio_filter: see `AudioFilter`. audio_track: number from 1 or language ("de",
    "deu"); None takes ffmpeg's choice. input_format: of headerless samples, see `read_input_format`; None: by
    the file's extension. warned: names of recordings with a logged warning, shared by several readings.
    Samples of files are 16-bit values / 32768, as in openai-whisper; those of arrays at 16 kHz are unchanged.

    Raises: AudioError when it cannot be opened or has no such channel or track, and while reading when it
        ends before the part begins; OptionError for bad options.
    """
    start, end = _span(start_s, duration_s)
    if not chunk_s * SAMPLE_RATE >= 1:
        raise OptionError(f"chunk_s: expected at least one sample ({1 / SAMPLE_RATE} s), got {chunk_s}")
    chain = None if audio_filter is None else AudioFilter(audio_filter)
    warned = set() if warned is None else warned
    is_apart = keep_channels or channel is not None
    request = SourceRequest(is_apart, audio_track, start, _raw_format(input_format), warned)
    opened = open_source(source, request, sample_rate=sample_rate)
    if channel is not None and not 0 <= channel < opened.info.n_channels:
        opened.close()
        raise AudioError(
            f"{opened.info.name}: expected a channel from 0 to {opened.info.n_channels - 1}, got {channel}"
        )
    return AudioReader(
        opened, chunk_s=chunk_s, channel=channel, start=start, end=end, audio_filter=chain, warned=warned
    )


def load_audio(
    source: AudioSource,
    start_s: float | None = None,
    duration_s: float | None = None,
    *,
    sample_rate: int = SAMPLE_RATE,
    channel: int | None = None,
    audio_filter: str | None = None,
    audio_track: int | str | None = None,
    input_format: str | None = None,
) -> Samples:
    """Read a recording, or the part of it from start_s of at most duration_s: (n,) float32 at 16 kHz.

    The other arguments are those of `open_audio`.

    Raises: AudioError as in `open_audio`, and when the part has no sample; OptionError for a negative start
        or a duration that is not positive.
    """
    with open_audio(
        source,
        sample_rate=sample_rate,
        channel=channel,
        audio_filter=audio_filter,
        audio_track=audio_track,
        input_format=input_format,
        start_s=start_s,
        duration_s=duration_s,
    ) as reader:
        return np.concatenate([np.zeros(0, np.float32), *(chunk.samples for chunk in reader)])


def load_channels(source: AudioSource, *, sample_rate: int = SAMPLE_RATE) -> Samples:
    """Read a whole recording without mixing: (n_channels, n) float32 at 16 kHz.

    Raises: AudioError as in `open_audio`, and when the number of channels changes.
    """
    with open_audio(source, sample_rate=sample_rate, keep_channels=True) as reader:
        return np.concatenate(list(reader.channels()), axis=1)


def probe_audio(
    source: AudioSource,
    *,
    sample_rate: int = SAMPLE_RATE,
    audio_track: int | str | None = None,
    input_format: str | None = None,
) -> AudioInfo:
    with open_audio(
        source, sample_rate=sample_rate, audio_track=audio_track, input_format=input_format
    ) as reader:
        return reader.info


def read_live(
    stream: BinaryIO, *, input_format: str | None = None, chunk_s: float = 0.1, name: str = "standard input"
) -> Iterator[AudioChunk]:
    """Yield chunks of chunk_s seconds from an unbuffered pipe as they arrive: a container, 16-bit mono PCM at
    16 kHz, or samples of an input_format (`read_input_format`).

    Raises: AudioError for data that is no sound; OptionError for an unknown input format.
    """
    file = _Pipe(stream)
    if input_format is None and not file.is_container():
        if (found := no_sound(file.head)) is not None:
            raise AudioError(
                f"{name}: expected a sound file or 16-bit PCM at 16 kHz (other PCM needs an input format), "
                f"got {found}"
            )
        yield from read_pcm(cast(BinaryIO, file), chunk_s=chunk_s, name=name)
        return
    request = SourceRequest(raw=_raw_format(input_format), most_gap_s=MOST_LIVE_GAP_S)
    opened = open_container(cast(BinaryIO, file), name, request, owned=False)
    with AudioReader(opened, chunk_s=chunk_s, warned=request.warned) as reader:
        yield from reader


class _Pipe:
    """A pipe whose first bytes can be inspected before they are read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._is_at_end = False
        self.head = b""

    def is_container(self) -> bool:
        while not (found := is_container(self.head)) and len(self.head) < HEAD_BYTES and not self._is_at_end:
            piece = self._stream.read(HEAD_BYTES - len(self.head))
            self.head += piece
            self._is_at_end = not piece
        return found

    def read(self, n_bytes: int) -> bytes:
        if not self.head:
            return self._stream.read(n_bytes)
        given, self.head = self.head[:n_bytes], self.head[n_bytes:]
        return given

    def seekable(self) -> bool:
        return False


def _raw_format(input_format: str | None) -> RawFormat | None:
    return None if input_format is None else read_input_format(input_format)


def read_pcm(
    stream: BinaryIO, *, sample_rate: int = SAMPLE_RATE, chunk_s: float = 0.1, name: str = "standard input"
) -> Iterator[AudioChunk]:
    """Yield chunks of raw little-endian 16-bit mono PCM as it arrives.

    Chunks last chunk_s seconds, or about that after resampling. Half a sample at the end is dropped with a
    warning.
    Raises: AudioError when reading fails; OptionError for a rate or chunk that is not positive.
    """
    if sample_rate < 1 or not chunk_s * sample_rate >= 1:
        raise OptionError(f"expected a positive rate and chunk, got {sample_rate} Hz and {chunk_s} s")
    resampler = FloatResampler(sample_rate, 1, name)

    def resampled() -> Iterator[Samples]:
        for block in _pcm_blocks(stream, 2 * round(chunk_s * sample_rate), name):
            samples = np.frombuffer(block, "<i2").astype(np.float32) / np.float32(32768.0)
            yield resampler.push(samples[None])[0]
        yield resampler.flush()[0]

    start_sample = 0
    for samples in resampled():
        if len(samples):
            yield AudioChunk(samples, start_sample)
            start_sample += len(samples)


def _pcm_blocks(stream: BinaryIO, n_bytes: int, name: str) -> Iterator[bytes]:
    pending = b""
    while True:
        try:
            received = stream.read(n_bytes - len(pending))
        except OSError as error:
            raise AudioError(f"{name}: expected PCM, got '{cause_of(error)}'") from error
        if not received:
            break
        pending += received
        if len(pending) == n_bytes:
            yield pending
            pending = b""
    if len(pending) % 2:
        logger.warning("%s: dropped half a sample at the end of 16-bit PCM", name)
    if len(pending) >= 2:
        yield pending[: len(pending) // 2 * 2]


def _middle(stretch: tuple[float, float]) -> float:
    return (stretch[0] + stretch[1]) / 2


def _span(start_s: float | None, duration_s: float | None) -> tuple[int, int | None]:
    if start_s is not None and not 0 <= start_s < float("inf"):
        raise OptionError(f"start_s: expected 0 or more seconds, got {start_s}")
    if duration_s is not None and not duration_s > 0:
        raise OptionError(f"duration_s: expected more than 0 seconds, got {duration_s}")
    start = round((start_s or 0.0) * SAMPLE_RATE)
    if duration_s is None or duration_s == float("inf"):
        return start, None
    return start, start + max(1, round(duration_s * SAMPLE_RATE))
