"""Recognition of a source: a container (by its first bytes), samples without a header (by extension), or
no audio.
"""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass

import av

from sottovoce.audio.samples import MAX_CHANNELS, MAX_RATE, MIN_RATE
from sottovoce.errors import OptionError
from sottovoce.types import SAMPLE_RATE

HEAD_BYTES = 4096
"""Bytes needed to recognise a container."""
TELEPHONE_RATE = 8_000
RAW_FORMATS = {
    **dict.fromkeys(("s16le", "s16be", "s24le", "s24be", "s32le", "s32be", "s8", "u8"), SAMPLE_RATE),
    **dict.fromkeys(("f32le", "f32be", "f64le", "f64be", "g722"), SAMPLE_RATE),
    **dict.fromkeys(("mulaw", "alaw", "gsm"), TELEPHONE_RATE),
}
"""FFmpeg's names of headerless formats, with the default sample rate of each."""
_FIXED = ("g722", "gsm")
_ENDINGS = {
    ".g722": "g722",
    ".722": "g722",
    ".ul": "mulaw",
    ".ulaw": "mulaw",
    ".mulaw": "mulaw",
    ".al": "alaw",
    ".alaw": "alaw",
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
"""Codecs whose frames need no container: parser; mask and value of the known bits in the first four bytes of
a frame; mask of the bits that all frames share (version, layer, rate).
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
_PACKET_BYTES = 188


@dataclass(frozen=True, slots=True)
class RawFormat:
    name: str
    sample_rate: int
    n_channels: int = 1

    @property
    def options(self) -> dict[str, str]:
        if self.name in _FIXED:
            return {}
        layout = "mono" if self.n_channels == 1 else f"{self.n_channels}c"
        return {"sample_rate": str(self.sample_rate), "ch_layout": layout}


def read_input_format(text: str) -> RawFormat:
    """Parse `NAME`, `NAME:RATE` or `NAME:RATE:CHANNELS`, such as "mulaw" or "s16le:44100:2".

    Raises: OptionError.
    """
    name, *numbers = text.split(":")
    expected = f"input format: expected NAME[:RATE[:CHANNELS]] with a name of {', '.join(RAW_FORMATS)}"
    if name not in RAW_FORMATS or len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise OptionError(f"{expected}, got '{text}'")
    rate, n_channels = (int(number) for number in (*numbers, *("0", "1")[len(numbers) :]))
    rate = rate if numbers else RAW_FORMATS[name]
    if not (MIN_RATE <= rate <= MAX_RATE and 1 <= n_channels <= MAX_CHANNELS):
        raise OptionError(
            f"input format: expected {MIN_RATE} to {MAX_RATE} Hz and 1 to {MAX_CHANNELS} channels, "
            f"got '{text}'"
        )
    if name in _FIXED and (rate, n_channels) != (RAW_FORMATS[name], 1):
        raise OptionError(
            f"input format: expected {name} of {RAW_FORMATS[name]} Hz in one channel, got '{text}'"
        )
    return RawFormat(name, rate, n_channels)


def format_of_ending(name: str) -> RawFormat | None:
    found = _ENDINGS.get(os.path.splitext(name)[1].lower())
    return None if found is None else RawFormat(found, RAW_FORMATS[found])


def is_container(head: bytes) -> bool:
    """Return whether the first `HEAD_BYTES` of a source are a container, or frames of mp3, AAC or AC-3."""
    if any(head.startswith(marks, offset) for offset, marks in _CONTAINERS):
        return True
    packets = head[::_PACKET_BYTES]
    return (len(packets) >= 8 and set(packets) == {0x47}) or any(
        _are_frames(head, *codec) for codec in _FRAMES
    )


def _are_frames(head: bytes, codec: str, known: int, sync: int, shared: int) -> bool:
    """Whether a codec's parser finds contiguous frames: three from the first byte on, or four later, as in
    a broadcast.
    """
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
