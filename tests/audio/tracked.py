"""Containers with several audio tracks, made for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

Sound = tuple[npt.NDArray[np.float32], str | None, str | None]
"""Samples (n,) at 16 kHz, the language tag and the title of a track."""


def write_tracks(path: Path, sounds: Sequence[Sound], codec: str = "aac") -> Path:
    """A file in the container of its extension, with a track for each sound."""
    with av.open(str(path), "w") as out:
        streams = []
        for _, language, title in sounds:
            stream = out.add_stream(codec, rate=16_000, layout="mono")
            tags = {"language": language, "title": title}
            stream.metadata.update({name: tag for name, tag in tags.items() if tag})
            streams.append(stream)
        for stream, (samples, _, _) in zip(streams, sounds, strict=True):
            frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
            frame.sample_rate = 16_000
            resampler = av.AudioResampler(stream.format, "mono", 16_000, frame_size=stream.frame_size or 1024)
            for part in [*resampler.resample(frame), *resampler.resample(None)]:
                if part is not None:
                    out.mux(stream.encode(part))
            out.mux(stream.encode(None))
    return path
