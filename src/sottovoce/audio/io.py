"""Recordings from anywhere as 16 kHz mono float32: paths, standard input, file objects, bytes, arrays.

Files are decoded by PyAV (`container`), a chunk at a time, in memory that does not grow with their length.
Everything that cannot be read ends in one AudioError of one line that names the source.

This module knows no features and no models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import BinaryIO, TypeAlias

import numpy as np

from sottovoce.audio.container import AudioInfo
from sottovoce.audio.filters import AudioFilter, FilteredSource
from sottovoce.audio.sources import (
    AudioSource,
    BlockSource,
    FloatResampler,
    open_source,
    pcm_blocks,
    source_name,
)
from sottovoce.errors import AudioError, OptionError
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples

__all__ = [
    "AudioInfo",
    "AudioReader",
    "AudioSource",
    "load_audio",
    "load_channels",
    "open_audio",
    "open_channels",
    "probe_audio",
    "read_pcm",
    "source_name",
]

CHUNK_S = 5.0
Span: TypeAlias = tuple[int, int]
"""Samples [start, end)."""


class AudioReader:
    """A recording being read: iterate once over its AudioChunks, or over its channels.

    `info` is there from the start. A context manager; leaving it closes what it opened.
    """

    def __init__(self, source: BlockSource, *, chunk_samples: int, channel: int | None) -> None:
        self._source = source
        self._chunk_samples = chunk_samples
        self._channel = channel
        self.info = source.info
        self.silent: Sequence[Span] = ()
        """Stretches [start, end) in samples, in order, that are read as silence."""

    def __enter__(self) -> AudioReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading and release the file."""
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
        """Yield blocks (n_channels, n) float32: one row unless opened with all channels."""
        pending: list[Samples] = []
        n_pending = 0
        for block in self._source.blocks():
            pending.append(block)
            n_pending += block.shape[1]
            if n_pending >= self._chunk_samples:
                joined = np.concatenate(pending, axis=1)
                whole = n_pending - n_pending % self._chunk_samples
                for start in range(0, whole, self._chunk_samples):
                    yield joined[:, start : start + self._chunk_samples]
                pending, n_pending = [joined[:, whole:]], n_pending - whole
        if n_pending:
            yield np.concatenate(pending, axis=1)


def open_audio(
    source: AudioSource,
    *,
    sample_rate: int = SAMPLE_RATE,
    channel: int | None = None,
    chunk_s: float = CHUNK_S,
    audio_filter: str | None = None,
) -> AudioReader:
    """Open a recording for reading as 16 kHz mono chunks of chunk_s seconds.

    sample_rate: of an array; files say theirs. channel: the only channel to take, from 0; without it all
    are mixed, in files by the weights of their places and in arrays by their mean. audio_filter: what that
    channel goes through, see `AudioFilter`.
    Samples of files are 16-bit values / 32768, as openai-whisper sees them; those of arrays at 16 kHz are
    left as they are.

    Raises: AudioError when it cannot be opened or has no such channel; OptionError for bad options.
    """
    if not chunk_s * SAMPLE_RATE >= 1:
        raise OptionError(f"chunk_s: expected at least one sample ({1 / SAMPLE_RATE} s), got {chunk_s}")
    wanted = None if audio_filter is None else AudioFilter(audio_filter)
    opened = open_source(source, sample_rate=sample_rate, keep_channels=channel is not None)
    if channel is not None and not 0 <= channel < opened.info.n_channels:
        opened.close()
        raise AudioError(
            f"{opened.info.name}: expected a channel from 0 to {opened.info.n_channels - 1}, got {channel}"
        )
    if wanted is not None:
        opened, channel = FilteredSource(opened, wanted, channel or 0), None
    return AudioReader(opened, chunk_samples=round(chunk_s * SAMPLE_RATE), channel=channel)


def load_audio(
    source: AudioSource,
    start_s: float | None = None,
    duration_s: float | None = None,
    *,
    sample_rate: int = SAMPLE_RATE,
    channel: int | None = None,
    audio_filter: str | None = None,
) -> Samples:
    """Read a recording, or the part of it from start_s of at most duration_s: (n,) float32 at 16 kHz.

    The part is cut to the sample: decoding begins at the start of the file. Other arguments: `open_audio`.

    Raises: AudioError as in `open_audio`, and when the part holds no sample; OptionError for a negative
        start or a duration that is not positive.
    """
    start, end = _span(start_s, duration_s)
    parts: list[Samples] = []
    with open_audio(source, sample_rate=sample_rate, channel=channel, audio_filter=audio_filter) as reader:
        length = 0
        for chunk in reader:
            first = chunk.start_sample
            length = first + len(chunk.samples)
            if length > start:
                parts.append(chunk.samples[max(0, start - first) : None if end is None else end - first])
            if end is not None and length >= end:
                break
    if not parts:
        raise AudioError(
            f"{reader.info.name}: expected a start before its end at {length / SAMPLE_RATE:.2f} s, "
            f"got {start_s} s"
        )
    return np.concatenate(parts)


def load_channels(source: AudioSource, *, sample_rate: int = SAMPLE_RATE) -> Samples:
    """Read a whole recording with its channels apart: (n_channels, n) float32 at 16 kHz.

    Raises: AudioError as in `open_audio`, and when the number of channels changes on the way.
    """
    with open_channels(source, sample_rate=sample_rate) as reader:
        return np.concatenate(list(reader.channels()), axis=1)


def open_channels(source: AudioSource, *, sample_rate: int = SAMPLE_RATE) -> AudioReader:
    """Open a recording whose channels stay apart: to be read with `AudioReader.channels`.

    Raises: AudioError as in `open_audio`.
    """
    opened = open_source(source, sample_rate=sample_rate, keep_channels=True)
    return AudioReader(opened, chunk_samples=round(CHUNK_S * SAMPLE_RATE), channel=None)


def probe_audio(source: AudioSource, *, sample_rate: int = SAMPLE_RATE) -> AudioInfo:
    """What a recording says about itself, without decoding it.

    Raises: AudioError when it cannot be opened.
    """
    with open_audio(source, sample_rate=sample_rate) as reader:
        return reader.info


def read_pcm(
    stream: BinaryIO, *, sample_rate: int = SAMPLE_RATE, chunk_s: float = 0.1, name: str = "standard input"
) -> Iterator[AudioChunk]:
    """Yield chunks of raw little-endian 16-bit mono PCM as it arrives.

    Chunks have chunk_s seconds, the last one what is left; at another sample_rate than 16 kHz they are
    resampled and their length varies a little. A half sample at the end is dropped with a warning.

    Raises: AudioError when reading fails; OptionError for a rate or chunk that is not positive.
    """
    if sample_rate < 1 or not chunk_s * sample_rate >= 1:
        raise OptionError(f"expected a positive rate and chunk, got {sample_rate} Hz and {chunk_s} s")
    resampler = FloatResampler(sample_rate, 1, name)
    start_sample = 0
    for samples in _resampled(resampler, pcm_blocks(stream, 2 * round(chunk_s * sample_rate), name)):
        if len(samples):
            yield AudioChunk(samples, start_sample)
            start_sample += len(samples)


def _resampled(resampler: FloatResampler, blocks: Iterator[bytes]) -> Iterator[Samples]:
    for block in blocks:
        samples = np.frombuffer(block, "<i2").astype(np.float32) / np.float32(32768.0)
        yield resampler.push(samples[None])[0]
    yield resampler.flush()[0]


def _span(start_s: float | None, duration_s: float | None) -> tuple[int, int | None]:
    if start_s is not None and not 0 <= start_s < float("inf"):
        raise OptionError(f"start_s: expected 0 or more seconds, got {start_s}")
    if duration_s is not None and not duration_s > 0:
        raise OptionError(f"duration_s: expected more than 0 seconds, got {duration_s}")
    start = round((start_s or 0.0) * SAMPLE_RATE)
    if duration_s is None or duration_s == float("inf"):
        return start, None
    return start, start + max(1, round(duration_s * SAMPLE_RATE))
