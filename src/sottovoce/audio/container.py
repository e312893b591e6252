"""Decoding of containers and codecs with PyAV, packet by packet, to 16 kHz 16-bit samples.

Packets that cannot be decoded are skipped and counted, as in ffmpeg.

Chained Ogg (Internet radio) is a sequence of files. libav refuses a change of channels or rate within one
container, and some versions lose the first page of a later link, so every link is opened as a container of
its own.

Audio tracks are counted from 1. Languages match by code in any standard: `de`, `ger` and `deu` are equal.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer

from sottovoce.audio.downmix import Pcm16, Pcm16Resampler
from sottovoce.audio.input_format import RawFormat
from sottovoce.audio.timeline import JITTER_S, MOST_GAP_S, SEEKABLE_FORMATS, SHORTEST_S, Timeline, seek_before
from sottovoce.errors import AudioError, OptionError, cause_of
from sottovoce.text.languages import language_code
from sottovoce.types import SAMPLE_RATE, Samples

logger = logging.getLogger(__name__)

_PAGE = re.compile(rb"OggS\0([\0-\7])", re.DOTALL)
_HEADER_BYTES = 6
_BEGINS_STREAM = 2
"""Page flag; within a link, pages that begin a stream precede all others."""
_SCANNED_BYTES = 2**20


class ByteFile(Protocol):
    """A file for libav; `read` returns at most n_bytes, and no bytes only at the end."""

    @property
    def n_read(self) -> int: ...

    def read(self, n_bytes: int) -> bytes: ...

    def seek(self, offset: int, whence: int = 0) -> int: ...

    def tell(self) -> int: ...

    def seekable(self) -> bool: ...


class OggLinks:
    """A file for libav that ends where the next link of chained Ogg begins."""

    def __init__(self, file: ByteFile) -> None:
        self._file = file
        self._place = 0
        self._magic = b""
        self._scanned = 0
        """End of the bytes that were searched for the next link, without a gap from the start of this one."""
        self._tail = b""
        self._rest = b""
        self._is_within = False
        """Set after a page that begins no stream: the next page that begins one starts a new link."""
        self._next_link: int | None = None
        self._is_first = True

    @property
    def n_read(self) -> int:
        return self._file.n_read

    def seekable(self) -> bool:
        return self._file.seekable() and self._is_first

    def read(self, n_bytes: int) -> bytes:
        if self._next_link is not None and self._place < self._next_link + _HEADER_BYTES:
            n_bytes = min(n_bytes, self._next_link - self._place)
            if n_bytes <= 0:
                return b""
        data = self._rest[:n_bytes] or self._file.read(n_bytes)
        self._rest = self._rest[n_bytes:]
        self._magic += data[: 4 - len(self._magic)]
        n_scanned = self._scanned - self._place
        # libav also reads the end of a file, which may hold other links than the next.
        if self._magic == b"OggS" and self._next_link is None and 0 <= n_scanned < len(data):
            self._scan(data[n_scanned:])
            if self._next_link is not None:
                data = data[: max(0, self._next_link - self._place)]
        self._place += len(data)
        return data

    def _scan(self, data: bytes) -> None:
        joined = self._tail + data
        for page in _PAGE.finditer(joined):
            begins_stream = page[1][0] & _BEGINS_STREAM
            if begins_stream and self._is_within:
                self._next_link = self._scanned - len(self._tail) + page.start()
                self._rest = joined[page.start() :] + self._rest
                return
            self._is_within = self._is_within or not begins_stream
        self._tail = joined[1 - _HEADER_BYTES :]
        self._scanned += len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._rest = b""
        self._place = self._file.seek(offset, whence)
        return self._place

    def tell(self) -> int:
        return self._place

    def is_chained(self) -> bool:
        """Return whether another link follows; reads up to it and needs a seekable file."""
        place = self._place
        self.seek(0)
        while self._magic == b"OggS" and self.read(_SCANNED_BYTES):
            pass
        self.seek(place)
        return self._next_link is not None

    def next(self) -> bool:
        """Go on to the next link of an unseekable file; False if there is none."""
        if self._magic != b"OggS":
            return False
        if self._next_link is None and self.seekable():
            self.seek(self._scanned)
        while self.read(_SCANNED_BYTES):
            pass
        if self._next_link is None:
            return False
        if self.seekable():
            self.seek(self._next_link)
        self._place = self._scanned = self._next_link
        self._next_link, self._is_within, self._is_first, self._tail = None, False, False, b""
        return True


UNKNOWN_LANGUAGES = ("", "und", "unk", "mis", "zxx", "mul")


@dataclass(frozen=True, slots=True)
class AudioTrack:
    number: int
    language: str | None = None
    title: str | None = None

    def __str__(self) -> str:
        tags = [self.language] if self.language else []
        tags += [f"'{self.title}'"] if self.title else []
        return f"{self.number} ({', '.join(tags)})" if tags else str(self.number)


ONLY_TRACK = AudioTrack(1)


def track_named(tracks: Sequence[AudioTrack], request: int | str, name: str) -> AudioTrack:
    number = _track_number(request)
    if number is None:
        code = language_code(str(request))
        if code is None:
            raise OptionError(f"audio track: expected a number from 1 or a language, got '{request}'")
        found = [one for one in tracks if one.language and language_code(one.language) == code]
    else:
        found = [one for one in tracks if one.number == number]
    if not found:
        there = ", ".join(map(str, tracks))
        raise AudioError(f"{name}: expected an audio track among {there}; got '{request}'")
    return found[0]


def _track_number(request: int | str) -> int | None:
    text = str(request).strip()
    if not text.lstrip("-").isdecimal() or not text.isascii():
        return None
    if int(text) < 1:
        raise OptionError(f"audio track: expected a number from 1 or a language, got '{request}'")
    return int(text)


# Errors of libav's decoders and PyAV's wrappers on damaged input (FFmpegError itself has several bases).
_DAMAGE = (av.FFmpegError, ValueError, RuntimeError, ArithmeticError, LookupError)
# Playlists and reference movies could name other files and URLs: no protocol is allowed to open them.
_NO_PROTOCOLS = {"protocol_whitelist": "none"}
# Titles may be in any encoding. From version 19 on PyAV accepts them all, and has no option.
_TITLES: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """The declared properties of a source; duration_s is None if unknown. Samples without a container
    count as one track.
    """

    name: str
    codec: str
    sample_rate: int
    n_channels: int
    duration_s: float | None
    track: AudioTrack = ONLY_TRACK
    tracks: tuple[AudioTrack, ...] = (ONLY_TRACK,)


class ContainerDecoder:
    """Decodes an audio track of a container to 16 kHz, mixed to mono or all channels.

    raw: the format of headerless samples. most_gap_s: the longest gap in time stamps that is filled with
    silence. Other arguments: `open_audio`.
    Raises: AudioError for an unknown format or missing track, and from `blocks` when nothing can be decoded
        or samples are not finite; OptionError for an invalid track.
    """

    def __init__(
        self,
        file: ByteFile,
        name: str,
        *,
        keep_channels: bool = False,
        audio_track: int | str | None = None,
        raw: RawFormat | None = None,
        most_gap_s: float = MOST_GAP_S,
        warned: set[str] | None = None,
    ) -> None:
        self._name = name
        self._audio_track = audio_track
        self._file = OggLinks(file)
        self._container = _open_container(self._file, name, raw)
        try:
            self._stream = _audio_stream(self._container, name, audio_track)
            self.info = _info(self._container, self._stream, name)
            self._is_alone = len(self._container.streams) == 1
            self._has_one_duration = self._container.format.name.startswith(("matroska", "flv"))
            if len(self.info.tracks) > 1:
                logger.info("%s: audio track %s of %d", name, self.info.track, len(self.info.tracks))
        except BaseException:
            self._container.close()
            raise
        self._resampler = Pcm16Resampler(name, keep_channels=keep_channels, warned=warned)
        self._timeline = Timeline(most_gap_s=most_gap_s)
        self._n_damaged = 0
        self._n_unread_links = 0
        self._n_input_samples = 0
        self._truncation: str | None = None
        self._sought: Iterator[av.AudioFrame] | None = None
        self.first_sample = 0
        self.owned_file: BinaryIO | None = None

    def seek(self, start_sample: int) -> bool:
        """Seek to `first_sample`, at or shortly before `start_sample` (16 kHz), before anything is decoded.

        first_sample stays 0 in formats without positions, and near the beginning. After False (the position
        is not exact) the decoder is spent.
        """
        has_positions = self._container.format.name.split(",")[0] in SEEKABLE_FORMATS
        if not has_positions or start_sample < SHORTEST_S * SAMPLE_RATE:
            return True
        found = None if self._file.is_chained() else self._frames_before(start_sample)
        self._n_damaged = 0
        if found is not None:
            self.first_sample, self._sought = found
            self._resampler.next_sample = self.first_sample
        return found is not None

    def _frames_before(self, start_sample: int) -> tuple[int, Iterator[av.AudioFrame]] | None:
        start_s = start_sample / SAMPLE_RATE
        try:
            return seek_before(self._container, self._stream, start_s, self._decoded_frames, self._timeline)
        except (*_DAMAGE, OSError, EOFError):
            return None

    def close(self) -> None:
        self._container.close()
        if self.owned_file is not None:
            self.owned_file.close()

    def blocks(self) -> Iterator[Samples]:
        """Decode to the end: blocks (n_channels, n) float32, 16-bit values / 32768.

        Raises: AudioError when nothing could be decoded, or samples are NaN or infinite.
        """
        n_samples = 0
        for block in self._resampled():
            n_samples += len(block)
            yield block.T.astype(np.float32) / np.float32(32768.0)
        self._check_length(n_samples)

    def _resampled(self) -> Iterator[Pcm16]:
        for frame in self._frames():
            yield from self._resampler.push(frame)
        yield from self._resampler.flush()

    def warnings(self) -> list[str]:
        damaged = f"left out {self._n_damaged} damaged packets" if self._n_damaged else None
        unread = f"left out {self._n_unread_links} streams of a chained file that cannot be read"
        found = [
            self._truncation,
            damaged,
            unread if self._n_unread_links else None,
            self._timeline.changes(),
        ]
        return [warning for warning in found if warning]

    def silences(self) -> list[tuple[float, float]]:
        return list(self._timeline.silences)

    def _frames(self) -> Iterator[av.AudioFrame]:
        for frame in self._placed_frames():
            self._check_finite(frame)
            self._n_input_samples += frame.samples
            yield frame

    def _placed_frames(self) -> Iterator[av.AudioFrame]:
        if self._sought is not None:
            yield from self._sought
            return
        yield from self._timeline.placed(self._decoded_frames(), self._container, self._stream)
        while self._file.next():
            if self._open_link():
                yield from self._timeline.placed(self._decoded_frames(), self._container, self._stream)

    def _open_link(self) -> bool:
        self._container.close()
        try:
            self._container = _open_container(self._file, self._name, None)
            track = None if self._audio_track is None else self.info.track.number
            self._stream = _audio_stream(self._container, self._name, track)
        except AudioError:
            self._n_unread_links += 1
            return False
        return True

    def _decoded_frames(self) -> Iterator[av.AudioFrame]:
        for packet in self._packets():
            for frame in self._decoded(packet):
                if frame.samples:
                    yield frame

    def _packets(self) -> Iterator[av.Packet[AudioStream] | None]:
        try:
            yield from self._container.demux(self._stream)
        except _DAMAGE as error:
            if isinstance(error, AudioError):
                raise
            self._n_damaged += 1
            yield None  # flush the decoder

    def _decoded(self, packet: av.Packet[AudioStream] | None) -> list[av.AudioFrame]:
        try:
            return list(self._stream.decode(packet))
        except EOFError:
            return []
        except _DAMAGE:
            self._n_damaged += 1
            return []

    def _check_finite(self, frame: av.AudioFrame) -> None:
        if frame.format.name not in ("flt", "dbl"):
            return
        samples = frame.to_ndarray().reshape(-1, frame.layout.nb_channels)
        finite = np.isfinite(samples).all(axis=1)
        if not finite.all():
            first = self._n_input_samples + int(np.argmin(finite))
            raise AudioError(
                f"{self._name}: expected finite samples, got NaN or infinity "
                f"at {first / frame.sample_rate:.3f} s (sample {first} at {frame.sample_rate} Hz)"
            )

    def _check_length(self, n_samples: int) -> None:
        """Refuse a source without samples; note one that is shorter than it declares.

        Only the track's own duration counts, because the sound of a film may end before its picture. Matroska
        and FLV have none, and FFmpeg then gives the container's.
        """
        if n_samples == 0 and self._sought is None:
            damaged = f", {self._n_damaged} damaged packets" if self._n_damaged else ""
            raise AudioError(f"{self._name}: expected audio, got no samples ({self.info.codec}{damaged})")
        decoded_s, declared_s = n_samples / SAMPLE_RATE, self.info.duration_s
        is_own = self._is_alone or (self._stream.duration is not None and not self._has_one_duration)
        if (
            self._sought is None
            and is_own
            and not self._timeline.is_joined
            and declared_s is not None
            and decoded_s < min(declared_s - 1.0, 0.9 * declared_s)
        ):
            self._truncation = f"truncated? It declares {declared_s:.1f} s and holds {decoded_s:.1f} s"


def _open_container(file: ByteFile, name: str, raw: RawFormat | None) -> InputContainer:
    options = {**_NO_PROTOCOLS, **({} if raw is None else raw.options)}
    raw_name = None if raw is None else raw.name
    try:
        return cast(InputContainer, av.open(file, "r", format=raw_name, options=options, **_TITLES))
    except AudioError:
        raise
    except (*_DAMAGE, OSError, EOFError) as error:
        if file.n_read == 0:
            raise AudioError(f"{name}: expected an audio or video file, got 0 bytes") from error
        pipe = "" if file.seekable() else " (from a pipe: some formats, like MP4, must be given as a file)"
        raise AudioError(f"{name}: expected an audio or video file, got {_cause(error)}{pipe}") from error


def _cause(error: BaseException) -> str:
    if isinstance(error, av.InvalidDataError):
        return "data that matches no known format (samples without a header need an input format)"
    if isinstance(error, OSError | av.FFmpegError) and error.strerror:
        return f"'{cause_of(error)}'"
    return f"{type(error).__name__} '{error}'".replace("\n", " ")


def _audio_stream(container: InputContainer, name: str, audio_track: int | str | None) -> AudioStream:
    kinds = sorted({stream.type for stream in container.streams})
    if "audio" not in kinds:
        raise AudioError(f"{name}: expected an audio track, got {' and '.join(kinds) or 'no track at all'}")
    if audio_track is None:
        best = container.streams.best("audio")
        stream = best if isinstance(best, AudioStream) else container.streams.audio[0]
    else:
        stream = container.streams.audio[track_named(_tracks(container), audio_track, name).number - 1]
    if stream.codec_context is None:
        raise AudioError(f"{name}: expected a known audio codec, got one that this build of PyAV lacks")
    return stream


def _tracks(container: InputContainer) -> tuple[AudioTrack, ...]:
    tracks = []
    for number, stream in enumerate(container.streams.audio, start=1):
        language, title = stream.metadata.get("language", ""), stream.metadata.get("title", "")
        known = None if language.lower() in UNKNOWN_LANGUAGES else language
        tracks.append(AudioTrack(number, known, title or None))
    return tuple(tracks)


def _info(container: InputContainer, stream: AudioStream, name: str) -> AudioInfo:
    codec = stream.codec_context
    try:
        duration_s = _declared_duration_s(container, stream)
        tracks = _tracks(container)
        return AudioInfo(
            name,
            codec.name,
            int(codec.sample_rate or 0),
            int(codec.channels or 0),
            duration_s,
            tracks[list(container.streams.audio).index(stream)],
            tracks,
        )
    except _DAMAGE as error:
        raise AudioError(f"{name}: expected a readable header, got {_cause(error)}") from error


def _declared_duration_s(container: InputContainer, stream: AudioStream) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        duration_s = float(stream.duration * stream.time_base)
        is_ogg = container.format.name == "ogg"
        # In Ogg it may count from the start of the container or of the stream.
        if stream.start_time is not None and container.start_time is not None and not is_ogg:
            late_s = float(stream.start_time * stream.time_base) - container.start_time / av.time_base
            duration_s += late_s if late_s > JITTER_S else 0.0
    elif container.duration is not None:
        duration_s = container.duration / av.time_base
        start_s = (container.start_time or 0) / av.time_base
        if container.format.name.startswith("matroska") and duration_s > start_s > 0:
            duration_s -= start_s  # it counts from stamp 0, also in the middle of a live stream
    else:
        return None
    return duration_s if duration_s > 0 else None
