"""Decoding of containers and codecs with PyAV, packet by packet, to 16 kHz 16-bit samples.

Packets that cannot be decoded are skipped and counted, as in ffmpeg. Every link of chained Ogg (Internet
radio) is opened as a container of its own, since libav refuses a change of channels or rate.

Samples are positioned by their time stamps: gaps are filled with silence and overlaps trimmed, as by FFmpeg's
`aresample=async=1`. Deviations of less than 0.1 s, or for less than half a second, are ignored. An
implausible step (back by more than ten seconds or to the beginning, or more than an hour ahead; in MPEG-TS
and Ogg any step back) starts a new timeline at the end of the sound so far.

A part has the sample positions of the whole: the decoder seeks to a little before, settles for half a second,
and starts where the grids of 16 kHz and of the source meet.
"""

from __future__ import annotations

import codecs
import logging
import math
import os
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Any, BinaryIO, TypeAlias, cast

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer

from sottovoce.audio.samples import MAX_CHANNELS, MAX_RATE, MIN_RATE, Pcm16Resampler
from sottovoce.errors import AudioError, OptionError, cause_of
from sottovoce.text.languages import language_code
from sottovoce.types import SAMPLE_RATE, Samples

logger = logging.getLogger(__name__)


HEAD_BYTES = 4096
RAW_FORMATS = {
    **dict.fromkeys(("s16le", "s16be", "s24le", "s24be", "s32le", "s32be", "s8", "u8"), SAMPLE_RATE),
    **dict.fromkeys(("f32le", "f32be", "f64le", "f64be", "g722"), SAMPLE_RATE),
    **dict.fromkeys(("mulaw", "alaw", "gsm"), 8_000),  # telephone
}
_FIXED = ("g722", "gsm")
_ENDINGS = {
    **dict.fromkeys((".g722", ".722"), "g722"),
    **dict.fromkeys((".ul", ".ulaw", ".mulaw"), "mulaw"),
    **dict.fromkeys((".al", ".alaw"), "alaw"),
    ".gsm": "gsm",
}
# Source: the probes of libavformat's demuxers, of which these are the ones with four bytes and more.
_CONTAINERS = (
    (0, (b"RIFF", b"RIFX", b"RF64", b"BW64", b"riff", b"OggS", b"fLaC", b"\x1aE\xdf\xa3", b"FORM", b"caff")),
    (0, (b"ID3\x02", b"ID3\x03", b"ID3\x04", b"#!AMR", b".snd", b"0&\xb2u", b"FLV\x01", b"wvpk", b"MAC ")),
    (0, (b"TTA1", b"MPCK", b"MP+\x07", b"DSD ", b"tBaK", b"NIST_1A", b"Creative Voice File", b"\0\0\1\xba")),
    (4, (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),
)
_FRAMES = (
    ("mp3", 0xFFE00000, 0xFFE00000, 0xFFFE0C00),
    ("aac", 0xFFF60000, 0xFFF00000, 0xFFFEFC00),
    ("ac3", 0xFFFF0000, 0x0B770000, 0xFFFF0000),
)
"""Codecs whose frames need no container: parser; mask and value of the known bits in a frame's first four
bytes; mask of the bits that all frames share.
"""
_NO_SOUND = {
    b"\xff\xd8\xff": "a JPEG picture",
    b"\x89PNG": "a PNG picture",
    b"GIF8": "a GIF picture",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b\x08": "a gzip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"\x7fELF": "a program",
    b"\x93NUMPY": "a NumPy array",
}


@dataclass(frozen=True, slots=True)
class RawFormat:
    name: str
    sample_rate: int
    n_channels: int = 1


def read_input_format(text: str) -> RawFormat:
    """Parse `NAME`, `NAME:RATE` or `NAME:RATE:CHANNELS`, such as "s16le:44100:2". Raises: OptionError."""
    name, *numbers = text.split(":")
    if name in RAW_FORMATS and len(numbers) <= 2 and all(number.isdecimal() for number in numbers):
        rate = int(numbers[0]) if numbers else RAW_FORMATS[name]
        n_channels = int(numbers[1]) if len(numbers) == 2 else 1
        is_fixed = name not in _FIXED or (rate, n_channels) == (RAW_FORMATS[name], 1)
        if is_fixed and MIN_RATE <= rate <= MAX_RATE and 1 <= n_channels <= MAX_CHANNELS:
            return RawFormat(name, rate, n_channels)
    raise OptionError(
        f"input_format: expected NAME[:RATE[:CHANNELS]] with a name of {', '.join(RAW_FORMATS)}, "
        f"{MIN_RATE} to {MAX_RATE} Hz and 1 to {MAX_CHANNELS} channels (g722, gsm: their rate, one channel), "
        f"got '{text}'"
    )


def format_of_ending(name: str) -> RawFormat | None:
    codec = _ENDINGS.get(os.path.splitext(name)[1].lower())
    return None if codec is None else RawFormat(codec, RAW_FORMATS[codec])


def is_container(head: bytes) -> bool:
    """Return whether the first `HEAD_BYTES` of a source are a container, or frames of mp3, AAC or AC-3."""
    if any(head.startswith(marks, offset) for offset, marks in _CONTAINERS):
        return True
    packets = head[::188]  # an MPEG transport stream is packets of 188 bytes
    return (len(packets) >= 8 and set(packets) == {0x47}) or any(
        _are_frames(head, *codec) for codec in _FRAMES
    )


def _are_frames(head: bytes, codec: str, known: int, sync: int, shared: int) -> bool:
    n_alike, before = 0, 0
    for n, packet in enumerate(av.CodecContext.create(codec, "r").parse(head), start=1):
        header = int.from_bytes(bytes(packet)[:4].ljust(4, b"\0"), "big")
        n_alike = n_alike + 1 if (header ^ before) & shared == 0 else 1
        n_alike, before = n_alike if header & known == sync else 0, header
        if n_alike >= 4 or n_alike == n == 3:
            return True
    return False


def no_sound(head: bytes) -> str | None:
    if not head:
        return "0 bytes"
    for mark, name in _NO_SOUND.items():
        if head.startswith(mark):
            return name
    return "text" if _is_text(head) else None


def _is_text(head: bytes) -> bool:
    encoding = "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter.isspace() or letter == "\x1b" for letter in text)


_PAGE = re.compile(rb"OggS\0([\0-\7])", re.DOTALL)
_HEADER_BYTES = 6
_SCANNED_BYTES = 2**20


class MediaFile:
    """The bytes of a source for libav, which end where the next link of chained Ogg begins.

    Positions count from the source's initial one; several may read one seekable source by turns. owned:
    `close` closes the source.
    """

    def __init__(self, file: BinaryIO, name: str, *, owned: bool = False) -> None:
        self.label = name  # not `name`, by which libav would guess the format
        self._file = file
        self._owned = owned
        self._is_seekable = is_seekable(file)
        self._begin = file.tell() if self._is_seekable else 0
        self.n_read = 0
        self.restart()

    def restart(self) -> None:
        """Go back to the beginning of a seekable source."""
        self._place = 0
        self._ahead = b""
        """Bytes of the source from the place on."""
        self._magic = b""
        self._scanned = 0
        """End of the bytes searched for the next link."""
        self._tail = b""
        self._is_within = False
        """A page that begins no stream was seen: the next that begins one starts a link."""
        self._next_link: int | None = None
        self._is_first = True

    def close(self) -> None:
        if self._owned:
            self._file.close()

    def seekable(self) -> bool:
        return self._is_seekable and self._is_first

    @property
    def head(self) -> bytes:
        return self._ahead

    def read_ahead(self, n_bytes: int) -> bool:
        """Extend `head` to at most n_bytes, without consuming them. False: nothing came."""
        piece = self._fetch(n_bytes - len(self._ahead))
        self._ahead += piece
        return bool(piece)

    def read(self, n_bytes: int) -> bytes:
        if self._next_link is not None and self._place < self._next_link + _HEADER_BYTES:
            n_bytes = min(n_bytes, self._next_link - self._place)
            if n_bytes <= 0:
                return b""
        self._ahead = self._ahead or self._fetch(n_bytes)
        data, self._ahead = self._ahead[:n_bytes], self._ahead[n_bytes:]
        self._magic += data[: 4 - len(self._magic)]
        n_scanned = self._scanned - self._place
        # libav also reads the end of a file, which may hold other links than the next.
        if self._magic == b"OggS" and self._next_link is None and 0 <= n_scanned < len(data):
            self._scan(data[n_scanned:])
            if self._next_link is not None:
                data = data[: max(0, self._next_link - self._place)]
        self._place += len(data)
        return data

    def _fetch(self, n_bytes: int) -> bytes:
        try:
            if self._is_seekable:
                self._file.seek(self._begin + self._place + len(self._ahead))
            received = self._file.read(n_bytes)
        except (OSError, ValueError) as error:
            raise AudioError(f"{self.label}: expected a readable file, got {refusal(error)}") from error
        if not isinstance(received, bytes | bytearray | memoryview):
            got = "nothing yet (non-blocking)" if received is None else type(received).__name__
            raise AudioError(f"{self.label}: expected bytes from read(), got {got}")
        self.n_read += len(received)
        return bytes(received)  # libav trusts the length, so more than n_bytes wait in `_ahead`

    def _scan(self, data: bytes) -> None:
        joined = self._tail + data
        for page in _PAGE.finditer(joined):
            # The flag of pages that begin a stream; within a link, they precede all others.
            begins_stream = page[1][0] & 2
            if begins_stream and self._is_within:
                self._next_link = self._scanned - len(self._tail) + page.start()
                self._ahead = joined[page.start() :] + self._ahead
                return
            self._is_within = self._is_within or not begins_stream
        self._tail = joined[1 - _HEADER_BYTES :]
        self._scanned += len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._ahead = b""
        if whence == os.SEEK_END:
            self._place = self._file.seek(offset, whence) - self._begin
        else:
            self._place = offset + (self._place if whence == os.SEEK_CUR else 0)
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

    def next_link(self) -> bool:
        """Go on to the next link of chained Ogg, if there is one."""
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


def is_seekable(file: BinaryIO) -> bool:
    try:
        return file.seekable()
    except (AttributeError, OSError, ValueError):
        return False


def refusal(error: OSError | ValueError) -> str:
    if isinstance(error, IsADirectoryError):
        return "a directory"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return f"'{cause_of(error)}'"


JITTER_S = 0.1
STEADY_S = 0.5
MOST_GAP_S = 3600.0
MOST_LIVE_GAP_S = 30.0
"""For live audio: a pause of the sender, such as a sleeping computer, is not replayed."""
MOST_FILLED_S = 12 * 3600.0
"""Most silence in one recording, so that damaged bytes cannot make days of it."""
MOST_OVERLAP_S = 10.0
SWALLOWED_S = 0.3
"""Sound that a decoder may consume before its first frame."""
STAMPED_FORMATS = ("mov", "matroska", "mpegts", "mpeg", "ogg", "asf", "flv", "nut", "mxf", "wtv")
RESTARTING_FORMATS = ("mpegts", "mpeg", "ogg")
"""Containers whose time stamps may begin anew (AVFMT_TS_DISCONT)."""
MOST_PLANES = 7


class Timeline:
    """Places the frames of a recording of one or more containers. most_gap_s: longest gap that is filled."""

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
        self._restarts = False
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
        late_s = swallowed_s = 0.0
        if _format(container) in STAMPED_FORMATS and container.start_time is not None:
            late_s = stamp - container.start_time / av.time_base
            if stream.start_time is not None and stream.time_base is not None:
                swallowed_s = stamp - float(stream.start_time * stream.time_base)
        self._n_restarts += late_s > self._most_gap_s
        if late_s - swallowed_s * (0.0 < swallowed_s < SWALLOWED_S) <= JITTER_S or late_s > self._most_gap_s:
            late_s = 0.0
        self._origin_s = stamp - late_s - self.end_s
        return late_s

    def begin_at(self, frame: av.AudioFrame, place_s: float) -> None:
        self._next_s, self._origin_s = place_s, (frame.time or 0.0) - place_s

    def stamp_of(self, place_s: float) -> float:
        return place_s + (self._origin_s or 0.0)

    def placed(
        self, frames: Iterator[av.AudioFrame], container: InputContainer, stream: AudioStream
    ) -> Iterator[av.AudioFrame]:
        if _format(container) not in STAMPED_FORMATS:
            yield from frames
            return
        self._restarts = _format(container) in RESTARTING_FORMATS
        held: deque[av.AudioFrame] = deque()
        for frame in frames:
            if self._origin_s is None:
                late_s = self.begin(frame, container, stream)
                if late_s:
                    self._late_s += late_s
                    yield from self._silence(late_s, frame)
            if held or abs(self._deviation_s(frame, self._next_s)) > JITTER_S:
                held.append(frame)
                yield from self._settled(held, is_end=False)
            else:
                yield from self._following(frame)
        yield from self._settled(held, is_end=True)
        self._origin_s = None

    def changes(self) -> str | None:
        notes = []
        if self._late_s:
            notes.append(f"the audio begins at {self._late_s:.2f} s")
        filled = f"{self._filled_s:.2f} s of missing sound are silence" if self._filled_s else ""
        trimmed = f"{self._trimmed_s:.2f} s of overlapping sound are trimmed" if self._trimmed_s else ""
        if done := list(filter(None, (filled, trimmed))):
            notes.append(f"by its time stamps {' and '.join(done)}, first at {self._first_change_s:.2f} s")
        if self._n_restarts:
            times = "once" if self._n_restarts == 1 else f"{self._n_restarts} times"
            notes.append(f"the time stamps start anew {times}, the sound is joined there")
        if self._is_damaged:
            notes.append("damaged time stamps are not used")
        return "; ".join(notes) or None

    def _deviation_s(self, frame: av.AudioFrame, place_s: float) -> float:
        stamp = frame.time
        return 0.0 if stamp is None or self._origin_s is None else stamp - self._origin_s - place_s

    def _settled(self, held: deque[av.AudioFrame], *, is_end: bool) -> Iterator[av.AudioFrame]:
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
                    yield from self._jump(jump_s, held[0])
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

    def _jump(self, jump_s: float, frame: av.AudioFrame) -> Iterator[av.AudioFrame]:
        stamp = frame.time or 0.0
        if jump_s > 0:
            is_new = jump_s > self._most_gap_s or self._filled_s + jump_s > MOST_FILLED_S
        else:
            is_back = self._next_s + jump_s <= JITTER_S or -jump_s > MOST_OVERLAP_S
            is_new = is_back or (self._restarts and stamp < self._last_stamp_s - JITTER_S)
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


def _format(container: InputContainer) -> str:
    return container.format.name.split(",")[0]


def _silent_frame(n_samples: int, like: av.AudioFrame) -> av.AudioFrame:
    """Another format would restart the resampler."""
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
"""Containers with an index or positions in their packets."""
SHORTEST_SEEK_S = 10.0
PREROLL_S = 1.0
WARM_UP_S = 0.5
STAMP_S = 0.0015
UNEQUAL = ("vorbis",)
_N_FIRST = 4


def seek_before(
    container: InputContainer,
    stream: AudioStream,
    start_s: float,
    decoded: Callable[[], Iterator[av.AudioFrame]],
    timeline: Timeline,
) -> tuple[int, Iterator[av.AudioFrame]] | None:
    """Seek an undecoded stream to just before start_s; return the first sample (16 kHz) and the frames.

    None if the position is uncertain. decoded: yields frames from the container's position on. Raises: errors
    of libav.
    """
    heads = list(islice(decoded(), _N_FIRST))
    if len(heads) < _N_FIRST or heads[0].layout.nb_channels > MOST_PLANES or stream.time_base is None:
        return None
    rate = heads[0].sample_rate
    n_late = round(timeline.begin(heads[0], container, stream) * rate)
    target_s = start_s - PREROLL_S
    container.seek(int(timeline.stamp_of(target_s) / stream.time_base), stream=stream, backward=True)
    frames = decoded()
    landed = next((frame for frame in frames if frame.samples), None)
    place = None if landed is None else _place_of(landed, heads, stream.codec_context.name)
    if landed is None or place is None or place + n_late > target_s * rate:
        return None
    place += n_late
    timeline.begin_at(landed, place / rate)
    placed = timeline.placed(chain([landed], frames), container, stream)
    grid = rate // math.gcd(rate, SAMPLE_RATE)
    begin = math.ceil((place + WARM_UP_S * rate) / grid) * grid
    head = _frame_at(begin - place, placed, rate)
    if head is None or begin > start_s * rate:
        return None
    return begin * SAMPLE_RATE // rate, chain([head], placed)


def _place_of(frame: av.AudioFrame, heads: Sequence[av.AudioFrame], codec: str) -> int | None:
    """Return the position of a frame, in samples from the first of `heads`; None if it is uncertain."""
    first, rate, step = heads[0], heads[0].sample_rate, frame.time_base
    if {head.sample_rate for head in (*heads, frame)} != {rate}:
        return None
    if first.pts is None or frame.pts is None or step is None:
        return None
    stamped = (frame.pts - first.pts) * step * rate
    if step * rate <= 1:
        return round(stamped)
    if codec in UNEQUAL or {head.samples for head in heads[1:]} != {frame.samples}:
        return None
    place = first.samples + round((stamped - first.samples) / frame.samples) * frame.samples
    return place if abs(place - stamped) <= STAMP_S * rate else None


def _frame_at(n_before: int, frames: Iterator[av.AudioFrame], rate: int) -> av.AudioFrame | None:
    for frame in frames:
        if frame.sample_rate != rate:
            return None
        if frame.samples > n_before:
            return cut_frame(frame, n_before)
        n_before -= frame.samples
    return None


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
    text = str(request).strip()
    number = int(text) if text.isascii() and text.lstrip("-").isdecimal() else None
    code = language_code(text) if number is None else None
    if (number is None and code is None) or (number is not None and number < 1):
        raise OptionError(f"audio track: expected a number from 1 or a language, got '{request}'")
    for track in tracks:
        if track.number == number or (code and track.language and language_code(track.language) == code):
            return track
    there = ", ".join(map(str, tracks))
    raise AudioError(f"{name}: expected an audio track among {there}; got '{request}'")


# Errors of libav's decoders and PyAV's wrappers on damaged input (FFmpegError itself has several bases).
_DAMAGE = (av.FFmpegError, ValueError, RuntimeError, ArithmeticError, LookupError)
# Playlists and reference movies could name other files and URLs: no protocol is allowed to open them.
_NO_PROTOCOLS = {"protocol_whitelist": "none"}
_LARGE_PACKETS = {"max_size": str(2**16), "max_probe_packets": "2"}
"""Of a WAV file, whose first 128 KiB are searched for DTS; packets of 2 KiB cost ten times as much."""
# Titles may be in any encoding. From version 19 on PyAV accepts them all, and has no option.
_TITLES: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """The declared properties of a source. duration_s: or None. Samples without a container are one track.

    subtitles: languages of subtitle tracks, as the container names them. began_s: when it began, in seconds
    of a clock that its devices share, by time stamps of the container; or None.
    """

    name: str
    codec: str
    sample_rate: int
    n_channels: int
    duration_s: float | None
    track: AudioTrack = ONLY_TRACK
    tracks: tuple[AudioTrack, ...] = (ONLY_TRACK,)
    subtitles: tuple[str, ...] = ()
    began_s: float | None = None


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """How to read a source; see `open_audio`.

    start_sample: at 16 kHz. raw: format of headerless samples. joined_s: see `Pcm16Resampler`.
    """

    keep_channels: bool = False
    audio_track: int | str | None = None
    start_sample: int = 0
    raw: RawFormat | None = None
    warned: set[str] = field(default_factory=set)
    most_gap_s: float = MOST_GAP_S
    joined_s: float = 0.5


class BlockSource:
    """A recording that yields blocks (n_channels, n) float32 at 16 kHz once, from first_sample on.

    fills_gaps: whether silence may replace missing sound.
    """

    info: AudioInfo
    first_sample = 0
    fills_gaps = False

    def blocks(self) -> Iterator[Samples]:
        raise NotImplementedError

    def warnings(self) -> list[str]:
        return []

    def silences(self) -> list[tuple[float, float]]:
        return []

    def close(self) -> None:
        pass


class ContainerDecoder(BlockSource):
    """Decodes an audio track, from shortly before the start of the request if the format has positions.

    Raises: AudioError for an unknown format or missing track; OptionError for an invalid track.
    """

    def __init__(self, file: MediaFile, request: SourceRequest | None = None) -> None:
        self._file = file
        self._name = file.label
        self._request = request or SourceRequest()
        self._open()
        if not self._seek(self._request.start_sample):  # the position is uncertain
            self._container.close()
            self._file.restart()
            self._open()

    def _open(self) -> None:
        self._open_container(self._request.audio_track, self._request.raw)
        try:
            self.info = _info(self._container, self._stream, self._name)
        except BaseException:
            self._container.close()
            raise
        is_own = self._stream.duration is not None and _format(self._container) not in ("matroska", "flv")
        self._owns_duration = is_own or len(self._container.streams) == 1
        if len(self.info.tracks) > 1:
            logger.info("%s: audio track %s of %d", self._name, self.info.track, len(self.info.tracks))
        request = self._request
        self._resampler = Pcm16Resampler(
            self._name, keep_channels=request.keep_channels, warned=request.warned, joined_s=request.joined_s
        )
        self._timeline = Timeline(most_gap_s=request.most_gap_s)
        self._n_damaged = 0
        self._n_unread_links = 0
        self._n_input_samples = 0
        self._truncation: str | None = None
        self._sought: Iterator[av.AudioFrame] | None = None

    def _open_container(self, track: int | str | None, raw: RawFormat | None) -> None:
        self._container = _open_container(self._file, raw, is_live=not self._request.joined_s)
        try:
            self._stream = _audio_stream(self._container, self._name, track)
            self.fills_gaps = _format(self._container) in STAMPED_FORMATS
        except BaseException:
            self._container.close()
            raise

    def _seek(self, start_sample: int) -> bool:
        has_positions = self._file.seekable() and _format(self._container) in SEEKABLE_FORMATS
        if not has_positions or start_sample < SHORTEST_SEEK_S * SAMPLE_RATE:
            return True
        start_s = start_sample / SAMPLE_RATE
        try:
            if self._file.is_chained():
                return False
            landing = seek_before(
                self._container, self._stream, start_s, self._decoded_frames, self._timeline
            )
        except (*_DAMAGE, OSError, EOFError):
            return False
        self._n_damaged = 0
        if landing is not None:
            self.first_sample, self._sought = landing
            self._resampler.next_sample = self.first_sample
        return landing is not None

    def close(self) -> None:
        self._container.close()
        self._file.close()

    def blocks(self) -> Iterator[Samples]:
        """Yield the samples: 16-bit values / 32768. Raises: AudioError for no samples, NaN or infinity."""
        n_samples = 0
        for block in self._resampler.resampled(self._frames()):
            n_samples += len(block)
            yield np.multiply(block.T, np.float32(1 / 32768), dtype=np.float32)
        self._check_length(n_samples)

    def warnings(self) -> list[str]:
        damaged, unread = self._n_damaged, self._n_unread_links
        warnings = [
            self._truncation,
            f"damaged packets left out: {damaged}" if damaged else None,
            f"streams of a chained file that cannot be read, left out: {unread}" if unread else None,
            self._timeline.changes(),
        ]
        return [warning for warning in warnings if warning]

    def silences(self) -> list[tuple[float, float]]:
        return list(self._timeline.silences)

    def _frames(self) -> Iterator[av.AudioFrame]:
        for frame in self._placed_frames() if self._sought is None else self._sought:
            self._check_finite(frame)
            self._n_input_samples += frame.samples
            yield frame

    def _placed_frames(self) -> Iterator[av.AudioFrame]:
        yield from self._timeline.placed(self._decoded_frames(), self._container, self._stream)
        while self._file.next_link():
            self._container.close()
            try:
                self._open_container(
                    None if self._request.audio_track is None else self.info.track.number, None
                )
            except AudioError:
                self._n_unread_links += 1
            else:
                yield from self._timeline.placed(self._decoded_frames(), self._container, self._stream)

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
        if self._sought is not None:
            return
        if n_samples == 0:
            damaged = f", damaged packets: {self._n_damaged}" if self._n_damaged else ""
            got = f"no samples ({self.info.codec}{damaged}){_of_pipe(self._file)}"
            raise AudioError(f"{self._name}: expected audio, got {got}")
        decoded_s, declared_s = n_samples / SAMPLE_RATE, self.info.duration_s or 0.0
        is_known = self._owns_duration and not self._timeline.is_joined
        if is_known and decoded_s < min(declared_s - 1.0, 0.9 * declared_s):
            self._truncation = f"truncated? It declares {declared_s:.1f} s and holds {decoded_s:.1f} s"


def _open_container(file: MediaFile, raw: RawFormat | None, *, is_live: bool) -> InputContainer:
    options, name = dict(_NO_PROTOCOLS), None
    if not is_live and file.read_ahead(HEAD_BYTES) and file.head[8:12] == b"WAVE":
        options |= _LARGE_PACKETS
    head = file.head
    if raw is not None:
        name = raw.name
        if name not in _FIXED:
            layout = "mono" if raw.n_channels == 1 else f"{raw.n_channels}c"
            options |= {"sample_rate": str(raw.sample_rate), "ch_layout": layout}
    try:
        return cast(InputContainer, av.open(file, "r", format=name, options=options, **_TITLES))
    except AudioError:
        raise
    except (*_DAMAGE, OSError, EOFError) as error:
        got = f"{_cause(error, head)}{_of_pipe(file)}" if file.n_read else "0 bytes"
        raise AudioError(f"{file.label}: expected an audio or video file, got {got}") from error


def _of_pipe(file: MediaFile) -> str:
    return "" if file.seekable() else " (from a pipe: some formats, like MP4, must be given as a file)"


def _cause(error: BaseException, head: bytes = b"") -> str:
    if isinstance(error, av.InvalidDataError):
        if head[4:8] == b"ftyp":
            return "MP4 without its index, as where the end is cut off"
        return "data that matches no known format (samples without a header need input_format)"
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
        tracks = _tracks(container)
        track = tracks[list(container.streams.audio).index(stream)]
        rate, n_channels = int(codec.sample_rate or 0), int(codec.channels or 0)
        duration_s = _declared_duration_s(container, stream)
        subtitles = tuple(each.metadata.get("language", "") for each in container.streams.subtitles)
        began_s = _began_s({**container.metadata, **stream.metadata}, rate)
        return AudioInfo(name, codec.name, rate, n_channels, duration_s, track, tracks, subtitles, began_s)
    except _DAMAGE as error:
        raise AudioError(f"{name}: expected a readable header, got {_cause(error)}") from error


def _began_s(tags: Mapping[str, str], rate: int) -> float | None:
    """Read samples since midnight (broadcast WAV, EBU Tech 3285), or a date and time (FFmpeg's tag)."""
    if tags.get("time_reference", "").isdecimal() and rate:
        return int(tags["time_reference"]) / rate
    try:
        return datetime.fromisoformat(tags["creation_time"]).timestamp()
    except (KeyError, ValueError):
        return None


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


MOST_AT_ONCE_S = 5.0
"""A few bytes may hold hours of silence."""
THREAD_NAME = "sottovoce-container"
LIVE_NAME = "live audio"
_Decoded: TypeAlias = "Samples | Exception | bool"
"""True: more input is needed; False: the container has ended."""


class LiveContainer:
    """Decodes a container that arrives in pieces to 16 kHz mono: `feed` one, then `take` until it is used up.

    FFmpeg's reads block, so each container has a thread.
    """

    def __init__(self) -> None:
        self._fed: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._decoded: queue.Queue[_Decoded] = queue.Queue(32)  # blocks of live sound
        self._thread: threading.Thread | None = None
        self._rest = b""
        self._is_read = False
        self._is_pending = False
        self._is_over = False
        self._is_dropped = False

    def feed(self, piece: bytes) -> None:
        if self._is_over or not piece:
            return
        self._is_pending = True
        if self._thread is None:
            self._rest = piece
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            self._thread.start()
        else:
            self._fed.put(piece)

    def take(self) -> tuple[Samples, bool]:
        """Return samples (n,) float32, and whether the fed bytes hold more.

        Raises: AudioError for data that is no container, or has no audio; any other error of the decoder.
        """
        parts: list[Samples] = [np.zeros(0, np.float32)]
        while self._is_pending and sum(map(len, parts)) < MOST_AT_ONCE_S * SAMPLE_RATE:
            decoded = self._decoded.get()
            if isinstance(decoded, Exception):
                raise decoded
            if isinstance(decoded, bool):
                self._is_pending, self._is_over = False, not decoded
            else:
                parts.append(decoded)
        return np.concatenate(parts), self._is_pending

    def end(self) -> None:
        if self._thread is not None and not self._is_over:
            self._is_pending = True
            self._fed.put(b"")

    def close(self) -> None:
        """Tell the thread to end, and a waiting `take` to return; waits for neither."""
        self._is_dropped = True
        self._fed.put(b"")
        with suppress(queue.Empty):  # the thread may wait for a free slot
            while True:
                self._decoded.get_nowait()
        self._decoded.put(False)

    def read(self, n_bytes: int) -> bytes:
        if not self._rest and not self._is_read and not self._is_dropped:
            self._hand(True)
            self._rest = self._fed.get()
            self._is_read = not self._rest
        given, self._rest = self._rest[:n_bytes], self._rest[n_bytes:]
        return given

    def _run(self) -> None:
        try:
            file = MediaFile(cast(BinaryIO, self), LIVE_NAME)
            decoder = ContainerDecoder(file, SourceRequest(most_gap_s=MOST_LIVE_GAP_S, joined_s=0.0))
            try:
                for block in decoder.blocks():
                    if self._is_dropped:
                        break
                    self._hand(block[0])
                for warning in decoder.warnings():
                    logger.warning("%s: %s", LIVE_NAME, warning)
            finally:
                decoder.close()
        except Exception as error:
            self._hand(error)
        finally:
            self._hand(False)

    def _hand(self, decoded: _Decoded) -> None:
        if not self._is_dropped:
            self._decoded.put(decoded)
