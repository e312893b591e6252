"""Where speech starts and ends in a stream, as it comes.

This module knows no features, no text and no clock: time is samples received.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from sottovoce.audio.samples import as_samples
from sottovoce.audio.silero import SpeechModel, SpeechWindows, load_silero
from sottovoce.errors import OptionError, SessionClosedError
from sottovoce.options.vad import WINDOW_SAMPLES, VadStreamOptions, ms_to_samples
from sottovoce.types import Samples


@dataclass(frozen=True, slots=True)
class SpeechEdge:
    """Speech starts or ends at the absolute index `sample`; known once `detected_sample` had come."""

    kind: Literal["start", "end"]
    sample: int
    detected_sample: int


class VadStream:
    """Edges of speech in a stream; the same ones however the audio is cut.

    Starts and ends alternate, and their samples never go back. The probabilities behind them are the same to
    the last bit in however many pieces the audio comes.
    """

    def __init__(self, options: VadStreamOptions | None = None, *, model: SpeechModel | None = None) -> None:
        self._options = options or VadStreamOptions()
        self._model = model or load_silero()
        self.reset()

    @classmethod
    def from_option(cls, option: bool | VadStreamOptions) -> VadStream | None:
        """Make a stream with the usual options (True), with these, or none (False: None).

        Raises: OptionError for anything else.
        """
        if not isinstance(option, bool | VadStreamOptions):
            names = ", ".join(field.name for field in fields(VadStreamOptions))
            raise OptionError(
                f"vad: expected True, False or VadStreamOptions, whose fields are {names}, got {option!r}"
            )
        return None if option is False else cls(None if option is True else option)

    def reset(self, start_sample: int = 0) -> None:
        """Forget all audio; the next sample has the index start_sample."""
        self._windows = SpeechWindows(self._model)
        self._base = start_sample
        self._position = start_sample
        self._candidate: int | None = None
        self._silence: int | None = None
        self._last_end = start_sample
        self._closed = False
        self.is_speech = False
        self.probability = 0.0
        """Of the latest whole window."""

    @property
    def n_samples(self) -> int:
        """Absolute index after the last sample received."""
        return self._base + self._windows.n_samples

    def push(self, samples: Samples) -> list[SpeechEdge]:
        """Take samples (n,) float32 of any number and return the edges they reveal.

        Raises: SessionClosedError after `close`; AudioError for samples not finite or of another shape.
        """
        if self._closed:
            raise SessionClosedError("VadStream.push: expected no audio after close(); call reset() first")
        edges = []
        for probability in self._windows.push(as_samples(samples, "pushed audio")):
            edges += self._advance(probability)
        return edges

    def close(self) -> list[SpeechEdge]:
        """End the stream: classify the last part of a window, and end speech that is still going on."""
        if self._closed:
            return []
        self._closed = True
        edges = []
        for probability in self._windows.finish():
            edges += self._advance(probability)
        if self.is_speech:
            edges.append(self._end(self.n_samples))
        return edges

    def _advance(self, probability: float) -> list[SpeechEdge]:
        first, self._position = self._position, self._position + WINDOW_SAMPLES
        self.probability = probability
        return self._in_speech(probability, first) if self.is_speech else self._in_silence(probability, first)

    def _in_silence(self, probability: float, first: int) -> list[SpeechEdge]:
        if probability >= self._options.threshold and self._candidate is None:
            self._candidate = first
        elif probability < self._options.exit_threshold:
            self._candidate = None
        if self._candidate is None or self._position - self._candidate < ms_to_samples(
            self._options.onset_ms
        ):
            return []
        start = max(self._last_end, self._candidate - int(ms_to_samples(self._options.pre_roll_ms)))
        self._candidate, self._silence, self.is_speech = None, None, True
        return [SpeechEdge("start", start, min(self._position, self.n_samples))]

    def _in_speech(self, probability: float, first: int) -> list[SpeechEdge]:
        if probability >= self._options.threshold:
            self._silence = None
        elif probability < self._options.exit_threshold and self._silence is None:
            self._silence = first
        if self._silence is None or self._position - self._silence < ms_to_samples(self._options.hangover_ms):
            return []
        return [self._end(self._silence + int(ms_to_samples(self._options.post_roll_ms)))]

    def _end(self, sample: int) -> SpeechEdge:
        self._last_end = min(sample, self._position, self.n_samples)
        self._silence, self.is_speech = None, False
        return SpeechEdge("end", self._last_end, min(self._position, self.n_samples))
