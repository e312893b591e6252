"""Decoding of containers and codecs with PyAV, packet by packet, to 16 kHz 16-bit samples.

The conversion is the one that openai-whisper asks ffmpeg for (`-ac 1 -ar 16000 -f s16le`): libswresample
with its standard downmix, rounded to 16 bits, so that the same file gives the same samples (to 3 units of
16 bits, for 16-bit PCM at another rate, where ffmpeg is older than the libraries in PyAV). Its downmix
weighs the channels by their place (front centre 1, sides and back less, LFE none) and scales the sum so
that it cannot clip. Channel layouts that libswresample has no rule for are averaged. Channels that cancel the
others are left out (`downmix`).

Packets that cannot be decoded are left out, as ffmpeg does, and counted. The place of a sample is its time
stamp (`timeline`). The links of a chained Ogg file are decoded as containers of their own, one behind
another.

This module knows no paths and no float samples; `io` opens sources and cuts chunks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.container import InputContainer

from sottovoce.audio.downmix import Downmix
from sottovoce.audio.input_format import RawFormat
from sottovoce.audio.ogg_links import ByteFile, OggLinks
from sottovoce.audio.samples import MAX_CHANNELS, MAX_RATE, MIN_RATE
from sottovoce.audio.seeking import SoughtFrames, can_seek, seek_before
from sottovoce.audio.timeline import JITTER_S, MOST_GAP_S, Timeline
from sottovoce.audio.tracks import ONLY_TRACK, UNKNOWN, AudioTrack, track_named
from sottovoce.errors import AudioError, cause_of
from sottovoce.types import SAMPLE_RATE

logger = logging.getLogger(__name__)

Pcm16 = npt.NDArray[np.int16]

# What libav's decoders and PyAV's wrappers raise on damaged input (FFmpegError itself has several bases).
_DAMAGE = (av.FFmpegError, ValueError, RuntimeError, ArithmeticError, LookupError)
# Playlists and reference movies could name other files and URLs: no protocol is allowed to open them.
_NO_PROTOCOLS = {"protocol_whitelist": "none"}
# Titles may be in any encoding; nobody reads them. From 19 on PyAV takes them as they are, and has no option.
_TITLES: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What a source declares before it is decoded. duration_s: None when it declares none.

    tracks: its audio tracks; track: the one that is decoded. Samples without a container count as one track.
    """

    name: str
    codec: str
    sample_rate: int
    n_channels: int
    duration_s: float | None
    track: AudioTrack = ONLY_TRACK
    tracks: tuple[AudioTrack, ...] = (ONLY_TRACK,)


class ContainerDecoder:
    """Decodes an audio track of a container: 16 kHz int16 blocks (n, n_channels), mixed to mono or all
    channels.

    audio_track: number from 1, or a language; None takes the one that ffmpeg would. raw: the format of
    samples without a header. most_gap_s: the longest gap in time stamps that becomes silence; behind a longer
    one the sound follows on. warned: see `Downmix`.
    Raises: AudioError, from the constructor when the data is of no known format or has no such audio track,
        from `blocks` when nothing could be decoded or samples are NaN or infinite; OptionError for a track
        that is neither a number nor a language.
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
        self._resampler = _Resampler(name, keep_channels=keep_channels, warned=warned)
        self._timeline = Timeline(most_gap_s=most_gap_s)
        self._n_damaged = 0
        self._n_unread_links = 0
        self._n_input_samples = 0
        self._warnings: list[str] = []
        self._sought: SoughtFrames | None = None

    def can_seek(self, start_sample: int) -> bool:
        """Tell whether `seek` can reach a part that begins there faster than decoding does."""
        return can_seek(self._container, start_sample)

    def seek(self, start_sample: int) -> int | None:
        """Seek near a sample, before anything is decoded; return the sample at 16 kHz, at or before it, at
        which `blocks` begins.

        None where the position cannot be determined to the sample: this decoder is then spent.
        """
        if not self._file.is_chained():
            self._sought = seek_before(
                self._container, self._stream, start_sample, self._decoded_frames, self._timeline
            )
        self._n_damaged = 0
        if self._sought is None:
            return None
        self._resampler.next_sample = self._sought.first_sample
        return self._sought.first_sample

    def close(self) -> None:
        """Release the decoder; the file stays with its owner."""
        self._container.close()

    def blocks(self) -> Iterator[Pcm16]:
        """Decode to the end: blocks (n, n_channels) int16, some thousand samples each.

        Raises: AudioError when nothing could be decoded, or samples are NaN or infinite.
        """
        n_samples = 0
        for frame in self._frames():
            for block in self._resampler.push(frame):
                n_samples += len(block)
                yield block
        for block in self._resampler.flush():
            n_samples += len(block)
            yield block
        self._check_length(n_samples)

    def warnings(self) -> list[str]:
        """Return what is wrong with the recording as far as it was decoded: a line each."""
        found = list(self._warnings)
        if self._n_damaged:
            found.append(f"left out {self._n_damaged} damaged packets")
        if self._n_unread_links:
            found.append(f"left out {self._n_unread_links} streams of a chained file that cannot be read")
        changes = self._timeline.changes()
        return [*found, changes] if changes else found

    def silences(self) -> list[tuple[float, float]]:
        """Return the stretches in seconds that were filled with silence, as far as it was decoded."""
        return list(self._timeline.silences)

    def _frames(self) -> Iterator[av.AudioFrame]:
        for frame in self._placed_frames():
            self._check_finite(frame)
            self._n_input_samples += frame.samples
            yield frame

    def _placed_frames(self) -> Iterator[av.AudioFrame]:
        if self._sought is not None:
            yield from self._sought.frames
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
            yield None  # what the decoder still holds

    def _decoded(self, packet: av.Packet[AudioStream] | None) -> list[av.AudioFrame]:
        try:
            return list(self._stream.decode(packet))
        except EOFError:
            return []
        except _DAMAGE:
            self._n_damaged += 1
            return []

    def _check_finite(self, frame: av.AudioFrame) -> None:
        """Refuse NaN and infinity in PCM; only its packed formats can carry them from outside."""
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

        The sound of a film may end before its picture: only the duration of the track itself counts. Matroska
        and FLV have none; FFmpeg gives that of the container to tracks whose first packet it has not seen.
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
            self._warnings.append(f"truncated? It declares {declared_s:.1f} s and holds {decoded_s:.1f} s")


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
        pipe = "" if file.is_seekable else " (from a pipe: some formats, like MP4, must be given as a file)"
        raise AudioError(f"{name}: expected an audio or video file, got {_cause(error)}{pipe}") from error


def _cause(error: BaseException) -> str:
    if isinstance(error, av.InvalidDataError):
        return "data that matches no known format (samples without a header need an input format)"
    if isinstance(error, OSError | av.FFmpegError) and error.strerror:
        return f"'{cause_of(error)}'"
    return f"{type(error).__name__} '{error}'".replace("\n", " ")


def _audio_stream(container: InputContainer, name: str, audio_track: int | str | None) -> AudioStream:
    """Return the track that is asked for; else the one that ffmpeg would choose."""
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
    return tuple(_track(number, stream) for number, stream in enumerate(container.streams.audio, start=1))


def _track(number: int, stream: AudioStream) -> AudioTrack:
    language, title = stream.metadata.get("language", ""), stream.metadata.get("title", "")
    return AudioTrack(number, None if language.lower() in UNKNOWN else language, title or None)


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


class _Resampler:
    """Resamples to 16 kHz 16 bits with libswresample; restarts when rate, format or layout change.

    next_sample: of the recording, at 16 kHz, at which the next frame begins.
    """

    def __init__(self, name: str, *, keep_channels: bool, warned: set[str] | None) -> None:
        self.next_sample = 0
        self._warned: set[str] = set() if warned is None else warned
        self._name = name
        self._keep_channels = keep_channels
        self._source: tuple[str, str, int] | None = None
        self._n_channels = 1
        self._channels: av.AudioResampler | None = None
        self._mono: av.AudioResampler | None = None
        self._downmix: Downmix[np.int16] | None = None

    def push(self, frame: av.AudioFrame) -> list[Pcm16]:
        source = (frame.format.name, frame.layout.name, frame.sample_rate)
        if source == self._source:
            return self._resampled(frame)
        rest = self.flush()
        self._start(frame)
        self._source = source
        return rest + self._resampled(frame)

    def flush(self) -> list[Pcm16]:
        """Return the samples that the filter still holds."""
        return [] if self._source is None else self._resampled(None)

    def _start(self, frame: av.AudioFrame) -> None:
        n_channels = frame.layout.nb_channels
        if not (MIN_RATE <= frame.sample_rate <= MAX_RATE and 1 <= n_channels <= MAX_CHANNELS):
            raise AudioError(
                f"{self._name}: expected {MIN_RATE} to {MAX_RATE} Hz and 1 to {MAX_CHANNELS} channels, "
                f"got {frame.sample_rate} Hz and {n_channels} channels"
            )
        if self._keep_channels and self._source is not None and n_channels != self._n_channels:
            raise AudioError(
                f"{self._name}: expected {self._n_channels} channels to the end, got {n_channels} on the way"
            )
        self._n_channels = n_channels
        self._channels = self._mono = self._downmix = None
        if n_channels == 1:
            self._mono = _resampler_to("mono")
            return
        self._channels = _resampler_to(frame.layout.name)
        if self._keep_channels:
            return
        weights = downmix_weights(frame.layout.name)
        if weights is None:  # averaged
            weights = (1 / n_channels,) * n_channels
        else:
            self._mono = _resampler_to("mono")
        self._downmix = Downmix(weights, self._name, first_sample=self.next_sample, warned=self._warned)

    def _resampled(self, frame: av.AudioFrame | None) -> list[Pcm16]:
        """Resample a frame; None: what the filter still holds."""
        channels = _resampled(self._channels, frame, self._n_channels)
        mono = _resampled(self._mono, frame, 1)
        block = mono if self._channels is None else channels
        if self._downmix is not None:
            if self._mono is None:
                mono = np.rint(channels.mean(axis=1, keepdims=True)).astype(np.int16)
            block = self._downmix.push(mono[:, 0], channels.T, is_last=frame is None)[:, None]
        self.next_sample += len(block)
        return [block] if len(block) else []


def _resampler_to(layout: str) -> av.AudioResampler:
    return av.AudioResampler(format="s16", layout=layout, rate=SAMPLE_RATE)


def _resampled(resampler: av.AudioResampler | None, frame: av.AudioFrame | None, n_channels: int) -> Pcm16:
    """Resample a frame, None: what the filter still holds, to (n, n_channels)."""
    frames = [] if resampler is None else resampler.resample(frame)
    # Packed samples only: PyAV miscounts the planes of planar frames with 8 channels and more.
    blocks = [one.to_ndarray().reshape(-1, n_channels) for one in frames if one is not None]
    return np.concatenate([np.zeros((0, n_channels), np.int16), *blocks])


def downmix_weights(layout: str) -> tuple[float, ...] | None:
    """Return the weights of channels (n_channels,) in libswresample's mono, found by mixing one sample of
    each; None where it has no rule for the layout.
    """
    n_channels = av.AudioLayout(layout).nb_channels
    pulses = np.eye(n_channels, dtype=np.int16) * 2**14
    frame = av.AudioFrame.from_ndarray(pulses.reshape(1, -1), format="s16", layout=layout)
    frame.sample_rate = SAMPLE_RATE
    try:
        mixed = _resampled(_resampler_to("mono"), frame, 1)
    except av.FFmpegError:
        return None
    return tuple(mixed[:, 0] / 2**14)
