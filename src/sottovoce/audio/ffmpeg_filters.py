"""FFmpeg's audio filters over samples, by the library inside PyAV.

A filter that changes the duration of the recording would change every time, and is refused. One that delays
the sound and keeps its length, as afftdn does by 25 ms, is not noticed: times are later by as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import cast

import av
import numpy as np
from av.filter import Graph

from sottovoce.audio.container import AudioInfo
from sottovoce.audio.sources import BlockSource
from sottovoce.errors import OptionError, cause_of
from sottovoce.types import SAMPLE_RATE, Samples

TOLERANCE_S = 0.1
"""How much longer or shorter a filter may leave a recording: what it holds back, and the end of an echo."""
_OUTPUT = f"sample_fmts=flt:sample_rates={SAMPLE_RATE}:channel_layouts=mono"
# What PyAV raises for options that a filter does not take, and for what cannot be linked.
_REFUSALS = (av.FFmpegError, ValueError, RuntimeError, OSError)


class AudioFilter:
    """A chain of filters, as FFmpeg's `-af` takes it ("highpass=f=100,afftdn"), over 16 kHz mono samples.

    text: filters with a comma between them; quotes and backslashes as FFmpeg's. No labels and branches.
    Raises: OptionError for unknown filters, or options that they do not take.
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
        """Filter samples (n,) float32; return those that come out so far (m,), clipped to full scale.

        Raises: OptionError when they are not finite.
        """
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None], format="flt", layout="mono")
        frame.sample_rate, frame.pts = SAMPLE_RATE, self._n_in
        frame.time_base = Fraction(1, SAMPLE_RATE)
        self._n_in += len(samples)
        self._graph.push(frame)
        return self._pulled()

    def flush(self) -> Samples:
        """Return the samples (m,) that the filters still hold; nothing may be pushed after.

        Raises: OptionError when the recording is longer or shorter now.
        """
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


class FilteredSource:
    """One channel of a source through a filter: a `BlockSource` of one channel."""

    def __init__(self, source: BlockSource, audio_filter: AudioFilter, channel: int) -> None:
        self._source, self._filter, self._channel = source, audio_filter, channel
        self.first_sample = source.first_sample

    @property
    def info(self) -> AudioInfo:
        return self._source.info

    def blocks(self) -> Iterator[Samples]:
        for block in self._source.blocks():
            if block.shape[1]:
                yield self._filter.push(block[self._channel])[None]
        yield self._filter.flush()[None]

    def warnings(self) -> list[str]:
        return self._source.warnings()

    def silences(self) -> list[tuple[float, float]]:
        return self._source.silences()

    def close(self) -> None:
        self._source.close()


def _split(text: str) -> list[str]:
    """Split a chain at its commas; quotes and backslashes protect commas, and are removed."""
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
