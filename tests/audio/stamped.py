"""Recordings whose packets have time stamps of any kind, made for the tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction

import av
import numpy as np

from sottovoce.types import SAMPLE_RATE, Samples


def stamped_bytes(
    samples: Samples,
    stamp_s: Callable[[float], float],
    *,
    container: str,
    codec: str = "libopus",
    rate: int = 48_000,
    picture_s: float = 0.0,
) -> bytes:
    """Encode (n,) at 16 kHz; stamp_s: the time stamp of a packet, by the place of its sound.

    Where a stamp is not later than the one before, it is moved a millisecond behind that, as muxers do.
    picture_s: seconds of a grey picture in the same container.
    """
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        picture = out.add_stream("libvpx" if container == "webm" else "mpeg4", rate=10) if picture_s else None
        sound = out.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None], "flt", "mono")
        frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, 0, Fraction(1, SAMPLE_RATE)
        resampler = av.AudioResampler(sound.format, sound.layout, rate, frame_size=sound.frame_size or 1024)
        frames = [*resampler.resample(frame), *resampler.resample(None)]
        packets = [packet for part in frames if part is not None for packet in sound.encode(part)]
        packets += sound.encode(None)
        last = None
        for packet in packets:
            stamp = round(stamp_s(float(packet.pts * packet.time_base)) / packet.time_base)
            if last is not None and stamp <= last:
                stamp = last + round(Fraction(1, 1000) / packet.time_base)
            packet.pts = packet.dts = last = stamp
        if picture is not None:
            picture.width, picture.height, picture.pix_fmt = 64, 48, "yuv420p"
            for n in range(round(picture_s * 10)):
                grey = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 100, np.uint8), format="rgb24")
                grey.pts, grey.time_base = n, Fraction(1, 10)
                packets += picture.encode(grey)
            packets += picture.encode(None)
        for packet in sorted(packets, key=lambda packet: float(packet.dts * packet.time_base)):
            out.mux(packet)
    return file.getvalue()


def loud_spans(samples: Samples) -> list[tuple[float, float]]:
    """Find where (n,) samples at 16 kHz are not silent: seconds, to a tenth."""
    n_each = SAMPLE_RATE // 10
    blocks = samples[: len(samples) // n_each * n_each].reshape(-1, n_each)
    is_loud = [False, *(np.sqrt((blocks**2).mean(axis=1)) > 0.02), False]
    edges = [n for n in range(len(is_loud) - 1) if is_loud[n] != is_loud[n + 1]]
    return [(start / 10, end / 10) for start, end in zip(edges[::2], edges[1::2], strict=True)]
