"""Reading of paths, standard input, file objects, bytes, arrays and microphones as 16 kHz mono float32.

A `Recording` can be read several times.
"""

from __future__ import annotations

import errno
import io
import logging
import math
import os
import queue
import re
import shutil
import stat
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import av
import numpy as np
import numpy.typing as npt
from av.filter import Graph

from sottovoce.audio.container import (
    HEAD_BYTES,
    MOST_LIVE_GAP_S,
    ONLY_TRACK,
    AudioInfo,
    BlockSource,
    ContainerDecoder,
    MediaFile,
    RawFormat,
    SourceRequest,
    format_of_ending,
    is_container,
    is_seekable,
    no_sound,
    read_input_format,
    refusal,
    track_named,
)
from sottovoce.audio.samples import (
    FloatMixer,
    as_channels,
    chunk_samples,
    is_tensor,
    tensor_array,
    whole_rate,
)
from sottovoce.errors import AudioError, MissingExtraError, OptionError, cause_of
from sottovoce.options.schema import present
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples

if TYPE_CHECKING:
    from torch import Tensor

    from sottovoce.options.transcribe import TranscribeOptions


logger = logging.getLogger(__name__)

__all__ = [
    "AudioInfo",
    "AudioReader",
    "AudioSource",
    "Microphone",
    "Source",
    "load_audio",
    "open_audio",
    "probe_audio",
    "read_live",
    "read_pcm",
]

PlainSource: TypeAlias = str | os.PathLike[str] | BinaryIO | bytes | npt.NDArray[np.generic]
Place: TypeAlias = "PlainSource | bytearray | memoryview | Tensor"
AudioSource: TypeAlias = "Place | Source"
"""A path ("-": standard input), an open binary file, the bytes of a file, samples, or a `Source` with any of
them.

Arrays and CPU tensors are (n,), (channels, n) or (n, channels): floats in [-1, 1], int16 or int32.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A recording and how it is opened, for every reading of it.

    audio_filter: see `AudioFilter`. audio_track: number from 1 or language ("de"); None: FFmpeg's choice.
    input_format: of headerless samples (`read_input_format`); None: by extension. sample_rate: of an array.
    label: name for messages, with the extension; None: that of the place.

    Raises: OptionError for filters and an input format that FFmpeg does not have.
    """

    place: Place
    audio_filter: str | None = None
    audio_track: int | str | None = None
    input_format: str | None = None
    sample_rate: int = SAMPLE_RATE
    label: str | None = None

    def __post_init__(self) -> None:
        check_reading(self.audio_filter, self.input_format)

    @classmethod
    def of(
        cls, source: AudioSource, options: TranscribeOptions | None = None, *, sample_rate: int = SAMPLE_RATE
    ) -> Source:
        """Return a source that is opened as these options say, and where they say nothing as before."""
        names = ("audio_filter", "audio_track", "input_format")
        given: dict[str, object] = {name: getattr(options, name, None) for name in names}
        given["sample_rate"] = None if sample_rate == SAMPLE_RATE else sample_rate
        return replace(source if isinstance(source, Source) else cls(source), **present(given))

    @property
    def is_standard_input(self) -> bool:
        return isinstance(self.place, str | os.PathLike) and os.fspath(self.place) == "-"

    @property
    def name(self) -> str:
        if self.label is not None or self.is_standard_input:
            return self.label or "standard input"
        place = self.plain()
        if isinstance(place, str | os.PathLike):
            return _shown(os.fspath(place))
        if isinstance(place, bytes):
            return f"{len(place)} bytes of audio"
        if isinstance(place, np.ndarray):
            return f"array {place.dtype} {place.shape}"
        name = getattr(place, "name", None)
        return _shown(name) if isinstance(name, str) else "audio stream"

    def plain(self) -> PlainSource:
        """Return the place; "-" as a file, buffers as bytes, or an array if their items are longer.

        Raises: AudioError for another type.
        """
        place = sys.stdin.buffer if self.is_standard_input else self.place
        if is_tensor(place):
            return tensor_array(place, "audio")
        if isinstance(place, bytearray | memoryview):
            view = memoryview(place)
            return view.tobytes() if view.itemsize == 1 else np.asarray(view)
        is_file = callable(getattr(place, "read", None))
        if is_file or isinstance(place, str | os.PathLike | bytes | np.ndarray):
            return cast(PlainSource, place)
        kind = type(place).__name__
        raise AudioError(f"expected a path, a binary file, bytes, an array or a tensor as audio, got {kind}")

    def blocks(self, request: SourceRequest) -> BlockSource:
        """Raises: AudioError, OptionError."""
        place, name = self.plain(), self.name
        if isinstance(place, np.ndarray):
            track_named((ONLY_TRACK,), request.audio_track or 1, name)
            return ArraySource(place, name, request, sample_rate=self.sample_rate)
        if isinstance(place, bytes):
            return open_container(MediaFile(io.BytesIO(place), name), request)
        if isinstance(place, str | os.PathLike):
            return open_container(MediaFile(open_path(place), name, owned=True), request)
        return open_container(MediaFile(place, name), request)


def _shown(path: str) -> str:
    return path if path.isprintable() else repr(path)


def open_container(file: MediaFile, request: SourceRequest) -> ContainerDecoder:
    """Open a container, or headerless samples by their extension. The decoder closes the file."""
    try:
        ending = format_of_ending(file.label) if request.raw is None and file.seekable() else None
        if ending is not None:
            file.read_ahead(HEAD_BYTES)
            request = request if is_container(file.head) else replace(request, raw=ending)
        return ContainerDecoder(file, request)
    except BaseException:
        file.close()
        raise


class ArraySource(BlockSource):
    def __init__(
        self, array: npt.NDArray[np.generic], name: str, request: SourceRequest, *, sample_rate: int
    ) -> None:
        if not array.size:
            raise AudioError(f"{name}: expected audio, got no samples")
        sample_rate = whole_rate(name, sample_rate)
        self._samples = as_channels(array, name)
        n_channels, n_samples = self._samples.shape
        # Whole seconds: there the grid of 16 kHz meets that of every other rate.
        self._first_s = min(max(0, request.start_sample // SAMPLE_RATE - 1), n_samples // sample_rate)
        self.first_sample = self._first_s * SAMPLE_RATE
        self._resampler = FloatMixer(
            sample_rate,
            n_channels,
            name,
            keep_channels=request.keep_channels,
            first_sample=self.first_sample,
            warned=request.warned,
        )
        self.info = AudioInfo(name, array.dtype.name, sample_rate, n_channels, n_samples / sample_rate)

    def blocks(self) -> Iterator[Samples]:
        step, first = 10 * self.info.sample_rate, self._first_s * self.info.sample_rate
        for start in range(first, self._samples.shape[1], step):
            yield self._resampler.push(self._samples[:, start : start + step])
        yield self._resampler.flush()


def open_path(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file. Raises: AudioError if it is missing, unreadable or empty."""
    name = Source(path).name
    if not os.fspath(path):
        raise AudioError("recording: expected the name of a file, got ''")
    try:
        file = open(path, "rb")  # noqa: SIM115 - the source owns it
        size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        hint = "; download it first, or pipe it into `-`" if "://" in os.fspath(path) else ""
        raise AudioError(f"{name}: no such file{hint}") from error
    except IsADirectoryError as error:
        raise AudioError(
            f"{name}: is a folder; expected a file, or in `sottovoce transcribe` a folder with recordings"
        ) from error
    except (OSError, ValueError) as error:
        raise AudioError(f"{name}: expected an audio or video file, got {refusal(error)}") from error
    if size == 0 and os.path.isfile(path):
        file.close()
        raise AudioError(f"{name}: expected an audio or video file, got an empty one (0 bytes)")
    return file


def check_is_there(source: AudioSource) -> None:
    """Raises: AudioError for a path of nothing, or of a folder, and for an empty file."""
    opened = source if isinstance(source, Source) else Source(source)
    place = opened.plain()
    if opened.is_standard_input or not isinstance(place, str | os.PathLike):
        return
    if os.path.isfile(place) or os.path.isdir(place) or not os.path.exists(place):  # no pipe, which may block
        open_path(place).close()


CHUNK_S = 5.0
QUIET = 4 / 32768
Span: TypeAlias = tuple[int, int]
TOLERANCE_S = 0.1
_OUTPUT = f"sample_fmts=flt:sample_rates={SAMPLE_RATE}:channel_layouts=mono"
# PyAV's errors for bad filter options, and for filters that cannot be linked.
_REFUSALS = (av.FFmpegError, ValueError, RuntimeError, OSError)


class AudioFilter:
    """A chain of FFmpeg filters (`-af`, "highpass=f=100,afftdn") over 16 kHz mono samples.

    text: without labels and branches. Raises: OptionError for unknown filters, bad options, and filters that
    change the duration.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._n_in = self._n_out = 0
        self._graph = Graph()
        last = self._graph.add_abuffer(sample_rate=SAMPLE_RATE, format="flt", layout="mono")
        parts = [(part, *part.partition("=")[::2]) for part in _split(text)]
        shown = text
        try:
            for part in [*parts, ("", "aformat", _OUTPUT), ("", "abuffersink", "")]:
                shown, name, options = part
                added = self._graph.add(name.strip(), options or None)
                last.link_to(added)
                last = added
            shown = text
            self._graph.configure()
        except _REFUSALS as error:
            raise OptionError(
                "audio filter: expected filters of FFmpeg over one channel, as 'highpass=f=100,afftdn', "
                f"got '{shown}' ({cause_of(error) or type(error).__name__})"
            ) from error

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
    parts = [""]
    for token in re.finditer(r"\\(.?)|'([^']*)'?|([^\\',]+)|,", text, re.DOTALL):
        if token[0] == ",":
            parts.append("")
        else:
            parts[-1] += token[1] or token[2] or token[3] or ""
    return parts


class AudioReader:
    """A recording being read: iterate once over its AudioChunks, or over its channels. A context manager.

    start, end: the part in samples; info.duration_s: its length; recording_s: that of the whole.
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
        """Ordered spans [start, end) in samples that are replaced by silence."""
        self._warned = warned
        self._n_read = 0
        self._quiet_from = 0
        self._pauses: list[tuple[float, float]] = []

    def __enter__(self) -> AudioReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def silences(self) -> list[tuple[float, float]]:
        """Return the gaps filled so far, each with the digital silence around it, in seconds."""
        pauses = [*self._pauses, (self._quiet_from / SAMPLE_RATE, self._n_read / SAMPLE_RATE)]
        gaps = []
        for filled in self._source.silences():
            first, last = filled[0] - self._start_s, filled[1] - self._start_s
            middle = (first + last) / 2
            at = bisect_right(pauses, middle, key=lambda pause: pause[0]) - 1
            start, end = pauses[at] if at >= 0 and middle < pauses[at][1] else (first, last)
            gaps.append((min(start, first), max(end, last)))
        return gaps

    def _note_pauses(self, block: Samples) -> None:
        if not self._source.fills_gaps:
            return
        is_sound = (np.abs(block) > QUIET).any(axis=0) if len(block) > 1 else np.abs(block[0]) > QUIET
        was_sound = self._quiet_from == self._n_read
        edges = self._n_read + np.flatnonzero(np.diff(is_sound, prepend=was_sound))
        if not was_sound:
            edges = np.concatenate(([self._quiet_from], edges))
        self._n_read += len(is_sound)
        self._quiet_from = int(edges[-1]) if len(edges) % 2 else self._n_read
        ends = edges[1::2]
        starts = edges[::2][: len(ends)]
        # Shorter stretches of quiet are parts of sounds.
        is_pause = ends - starts >= 0.05 * SAMPLE_RATE
        pauses = (starts[is_pause] / SAMPLE_RATE).tolist(), (ends[is_pause] / SAMPLE_RATE).tolist()
        self._pauses += zip(*pauses, strict=True)

    def close(self) -> None:
        self._source.close()

    def __iter__(self) -> Iterator[AudioChunk]:
        """Yield mono chunks of equal length, the last one shorter. Raises: AudioError for damage."""
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
        """Yield blocks (n_channels, n) float32; one row unless all channels are kept."""
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
    """Raises: OptionError for filters and an input format that FFmpeg does not have."""
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
    channel: int | None = None,
    keep_channels: bool = False,
    chunk_s: float = CHUNK_S,
    start_s: float | None = None,
    duration_s: float | None = None,
    warned: set[str] | None = None,
) -> AudioReader:
    """Open a recording, or a part of it, for reading as 16 kHz mono chunks of chunk_s seconds.

    start_s, duration_s: the part, exact to the sample. channel: the only one to read, from 0; None mixes all
    (`audio.samples`). keep_channels: do not mix nor filter, for `AudioReader.channels`. warned: warnings
    already in the log. Samples of files are 16-bit values / 32768.

    Raises: AudioError if it cannot be opened, has no such channel or track, or ends before the part;
    OptionError for bad options.
    """
    start, end = _span(start_s, duration_s)
    chunk_samples(chunk_s)
    source = Source.of(source)
    chain = None if source.audio_filter is None or keep_channels else AudioFilter(source.audio_filter)
    warned = set() if warned is None else warned
    is_apart = keep_channels or channel is not None
    request = SourceRequest(is_apart, source.audio_track, start, _raw_format(source.input_format), warned)
    opened = source.blocks(request)
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
    channel: int | None = None,
) -> Samples:
    """Read a recording, or the part from start_s of at most duration_s: (n,) float32 at 16 kHz.

    channel and errors: `open_audio`.
    """
    with open_audio(source, channel=channel, start_s=start_s, duration_s=duration_s) as reader:
        return np.concatenate([np.zeros(0, np.float32), *(chunk.samples for chunk in reader)])


def probe_audio(source: AudioSource) -> AudioInfo:
    with open_audio(source) as reader:
        return reader.info


def read_live(
    stream: BinaryIO, *, input_format: str | None = None, chunk_s: float = 0.1, name: str = "standard input"
) -> Iterator[AudioChunk]:
    """Yield chunks of chunk_s seconds from an unbuffered pipe as they arrive.

    The pipe holds a container, 16-bit mono PCM at 16 kHz, or samples of an input_format
    (`read_input_format`). Raises: AudioError, OptionError.
    """
    file, raw = MediaFile(stream, name), _raw_format(input_format)
    while raw is None and not is_container(file.head):
        if len(file.head) < HEAD_BYTES and file.read_ahead(HEAD_BYTES):
            continue
        if (kind := no_sound(file.head)) is not None:
            raise AudioError(
                f"{name}: expected a sound file or 16-bit PCM at 16 kHz (other PCM needs input_format), "
                f"got {kind}"
            )
        yield from read_pcm(cast(BinaryIO, file), chunk_s=chunk_s, name=name)
        return
    request = SourceRequest(raw=raw, most_gap_s=MOST_LIVE_GAP_S, joined_s=0.0)
    with AudioReader(open_container(file, request), chunk_s=chunk_s, warned=request.warned) as reader:
        yield from reader


def _raw_format(input_format: str | None) -> RawFormat | None:
    return None if input_format is None else read_input_format(input_format)


def read_pcm(stream: BinaryIO, *, chunk_s: float = 0.1, name: str = "standard input") -> Iterator[AudioChunk]:
    """Yield chunks of chunk_s seconds of raw little-endian 16-bit mono PCM at 16 kHz as it arrives.

    Raises: AudioError, OptionError.
    """
    start_sample = 0
    for block in _pcm_blocks(stream, 2 * chunk_samples(chunk_s), name):
        samples = np.frombuffer(block, "<i2").astype(np.float32) / np.float32(32768.0)
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


def _span(start_s: float | None, duration_s: float | None) -> tuple[int, int | None]:
    if start_s is not None and not 0 <= start_s < float("inf"):
        raise OptionError(f"start_s: expected 0 or more seconds, got {start_s}")
    if duration_s is not None and not duration_s > 0:
        raise OptionError(f"duration_s: expected more than 0 seconds, got {duration_s}")
    start = round((start_s or 0.0) * SAMPLE_RATE)
    if duration_s is None or duration_s == float("inf"):
        return start, None
    return start, start + max(1, round(duration_s * SAMPLE_RATE))


_MAX_BACKLOG_S = 60.0


class Microphone:
    """Chunks of chunk_s seconds from an input device until `close` or an interrupt; a context manager.

    device: number or name; None: the system's default. Raises: OptionError, MissingExtraError; AudioError for
    a device that cannot record 16 kHz mono, or is read a minute late.
    """

    def __init__(self, device: int | str | None = None, *, chunk_s: float = 0.1) -> None:
        n_chunk = chunk_samples(chunk_s)
        self._backlog: queue.Queue[Samples | None] = queue.Queue(max(2, round(_MAX_BACKLOG_S / chunk_s)))
        self._is_behind = False
        self._n_losses = 0
        self._stream = _open_stream(n_chunk, device, self._deliver)
        self.name = _device_name(device)
        self._stream.start()

    def __iter__(self) -> Iterator[AudioChunk]:
        start_sample = 0
        while (samples := self._next()) is not None:
            yield AudioChunk(samples, start_sample)
            start_sample += len(samples)

    def close(self) -> None:
        self._stream.close()
        if self._n_losses:
            logger.warning("microphone: the device lost samples %d times", self._n_losses)
            self._n_losses = 0
        if not self._backlog.full():
            self._backlog.put_nowait(None)

    def __enter__(self) -> Microphone:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> Samples | None:
        while True:
            if self._is_behind:
                raise AudioError(
                    f"microphone: expected reading to keep up, got {_MAX_BACKLOG_S:.0f} s behind"
                )
            try:
                # A time limit lets Ctrl-C through on every platform.
                return self._backlog.get(timeout=0.5)
            except queue.Empty:
                continue

    def _deliver(self, block: Samples, n_samples: int, times: object, status: object) -> None:
        self._n_losses += bool(status)
        try:
            self._backlog.put_nowait(np.array(block[:, 0]))
        except queue.Full:
            self._is_behind = True


def _device_name(device: int | str | None) -> str:
    import sounddevice

    return str(sounddevice.query_devices(device, "input")["name"])


def _open_stream(chunk_samples: int, device: int | str | None, callback: Callable[..., None]) -> Any:
    try:
        import sounddevice
    except ModuleNotFoundError as error:
        raise MissingExtraError("sounddevice", "mic", "Recording from a microphone") from error
    except OSError as error:
        raise AudioError(
            "microphone: expected the PortAudio library (apt install libportaudio2, brew install portaudio), "
            f"got '{cause_of(error)}'"
        ) from error
    try:
        return sounddevice.InputStream(
            samplerate=SAMPLE_RATE,
            channels=1,
            dtype="float32",
            blocksize=chunk_samples,
            device=device,
            callback=callback,
        )
    except (sounddevice.PortAudioError, ValueError) as error:
        name = "the default one" if device is None else repr(device)
        devices = enumerate(sounddevice.query_devices())
        inputs = ", ".join(f"{i} {about['name']}" for i, about in devices if about["max_input_channels"])
        raise AudioError(
            f"microphone: expected an input device for 16 kHz mono ({inputs or 'none here'}), "
            f"got {name}: {error}"
        ) from error


_SPOOL_BYTES = 16 * 2**20


class Recording:
    """A source that can be opened repeatedly, one reading at a time. A context manager.

    Arguments: `Source.of`. Errors: `open_audio`.
    """

    def __init__(
        self, source: AudioSource, options: TranscribeOptions | None = None, *, sample_rate: int = SAMPLE_RATE
    ) -> None:
        self._source = Source.of(source, options, sample_rate=sample_rate)
        self.name = self._source.name
        self.declared_s: float | None = None
        """Declared duration of the whole recording, once opened, or None."""
        self._warned: set[str] = set()
        self._start_s: float | None = None
        self._duration_s: float | None = None
        self._channel: int | None = None
        self._silent: Sequence[Span] = ()
        self._reader: AudioReader | None = None
        self._spool: BinaryIO | None = None
        place = self._source.plain()
        if is_pipe(place):
            place = self._spool = _spooled(place, self.name)
        self._source = replace(self._source, place=place, label=self.name)
        # A file object is reread from its initial position.
        self._position: int | None = None
        if not isinstance(place, str | os.PathLike | bytes | np.ndarray) and is_seekable(place):
            self._position = place.tell()

    def open(self) -> AudioReader:
        """Start a reading. Raises: AudioError as `open_audio`."""
        self._reader = reader = self._opened(channel=self._channel)
        reader.silent = self._silent
        return reader

    def open_channels(self) -> AudioReader:
        return self._opened(keep_channels=True)

    def _opened(self, *, channel: int | None = None, keep_channels: bool = False) -> AudioReader:
        if self._position is not None:
            cast(BinaryIO, self._source.place).seek(self._position)
        reader = open_audio(
            self._source,
            channel=channel,
            keep_channels=keep_channels,
            start_s=self._start_s,
            duration_s=self._duration_s,
            warned=self._warned,
        )
        self.declared_s = reader.recording_s
        return reader

    def silences(self) -> list[tuple[float, float]]:
        return [] if self._reader is None else self._reader.silences()

    def part(self, start_s: float, duration_s: float | None = None) -> Recording:
        """Return the part from start_s of at most duration_s. Read one of the two at a time."""
        part = copy(self)
        part._spool = None
        if self._duration_s is not None:
            left_s = max(0.0, self._duration_s - start_s)
            duration_s = left_s if duration_s is None else min(left_s, duration_s)
        part._start_s, part._duration_s = (self._start_s or 0.0) + start_s, duration_s
        n_before = round(start_s * SAMPLE_RATE)
        part._silent = [(max(0, first - n_before), last - n_before) for first, last in self._silent]
        return part

    def to_read_beside(self) -> Recording:
        """Return the same recording for a concurrent reader; close it before this one."""
        other = copy(self)
        other._spool = None
        return other

    def channels(self, silent: Sequence[Sequence[Span]] | None = None) -> list[Recording]:
        """Return a recording of each channel, for concurrent reading; close them before this one.

        silent: for each channel, spans [start, end) in samples that become silence.
        """
        with self.open_channels() as reader:
            n_channels = reader.info.n_channels
        recordings = [self.to_read_beside() for _ in range(n_channels)]
        for channel, (recording, spans) in enumerate(
            zip(recordings, silent or [()] * n_channels, strict=True)
        ):
            recording._channel, recording._silent, recording._reader = channel, spans, None
        return recordings

    def beginning(self, seconds: float) -> Samples:
        """Read the first samples (n,) float32. Raises: AudioError as `open`."""
        n_left, pieces = int(seconds * SAMPLE_RATE), [np.zeros(0, np.float32)]
        with self.open() as reader:
            for chunk in reader:
                pieces.append(chunk.samples[:n_left])
                n_left -= len(pieces[-1])
                if not n_left:
                    break
        return np.concatenate(pieces)

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_pipe(source: PlainSource) -> bool:
    """Return whether a source can be read only once: standard input, a pipe or a device."""
    if isinstance(source, bytes | np.ndarray):
        return False
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        return path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))
    return not is_seekable(source)


def _spooled(source: PlainSource, name: str) -> BinaryIO:
    if isinstance(source, str | os.PathLike) and stat.S_ISCHR(os.stat(source).st_mode):
        raise AudioError(f"{name}: expected a file or a pipe, got a device, which may have no end")
    spool = cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES))  # noqa: SIM115 - kept open
    try:
        if isinstance(source, str | os.PathLike):
            with open_path(source) as file:
                shutil.copyfileobj(file, spool)
        else:
            shutil.copyfileobj(cast(BinaryIO, source), spool)
    except (OSError, TypeError) as error:
        spool.close()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            folder = f"temporary folder {tempfile.gettempdir()} is full (TMPDIR names another)"
            raise AudioError(f"{name}: cannot be copied: {folder}") from error
        raise AudioError(f"{name}: expected a readable pipe, got '{cause_of(error)}'") from error
    spool.seek(0)
    return spool
