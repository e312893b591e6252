"""English by Whisper's own task beside live speech: each utterance is heard once more.

Keeps the audio that may still be asked for. Knows no sessions: it is given the samples that they are given,
by one thread, and may be asked by another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock

from sottovoce.api import Model
from sottovoce.audio.buffer import AudioBuffer
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.offline.options import TranscribeOptions
from sottovoce.translation.own import TARGET, check_own
from sottovoce.translation.said import Said
from sottovoce.types import SAMPLE_RATE, Samples

N_NEW_WORDS = 4
"""Words that must come before an utterance is heard again: each time costs a window of 30 s."""
KEPT_S = 60.0
"""A final spans some 30 s, and comes a little after its last word."""
AROUND_S = 0.5
"""Heard before and after the words: their ends are found too soon."""
LEAST_TOKENS, TOKENS_A_SECOND = 16, 10
"""Of a reading: more is a loop."""


@dataclass(slots=True)
class OwnTranslator:
    """Whisper's own English of live speech; `hear` is given all that a session is given, before it.

    What is English already stays as it is. Greedy, in the window of 30 s that the model was trained on; what
    repeats itself at the end of an utterance is read once more, at a temperature of 0.4.
    Raises: OptionError for a model that cannot translate.
    """

    model: Model
    _heard: AudioBuffer = field(default_factory=AudioBuffer, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        check_own(self.model)

    @property
    def target(self) -> str:
        return TARGET

    def hear(self, pcm: Samples, *, worked_s: float | None = None) -> None:
        """Take samples (n,) float32, mono, 16 kHz.

        worked_s: of what was heard, that the session has worked on; None: all. A minute before it is kept.
        Raises: AudioError as `Session.push`.
        """
        with self._lock:
            worked = self._heard.end if worked_s is None else round(worked_s * SAMPLE_RATE)
            self._heard.drop_before(worked - round(KEPT_S * SAMPLE_RATE))
            self._heard.append(pcm)

    def through(self, pieces: Iterator[Samples]) -> Iterator[Samples]:
        """The pieces, heard as they are taken."""
        for piece in pieces:
            self.hear(piece)
            yield piece

    def spoken(self, said: Said) -> str:
        """English of what was said; audio before an utterance that has ended is let go.

        Raises: what the model raises.
        """
        if not said.text.strip() or said.language == TARGET:
            text = " ".join(said.text.split())
        else:
            text = self._read(said)
        if said.is_whole:
            with self._lock:
                self._heard.drop_before(round(said.end * SAMPLE_RATE))
        return text

    def _read(self, said: Said) -> str:
        pcm = self._between(said.start - AROUND_S, said.end + AROUND_S)
        if not len(pcm):
            return ""
        return self.model.transcribe(
            pcm,
            language=said.language,
            task="translate",
            options=options(len(pcm) / SAMPLE_RATE, is_whole=said.is_whole),
        ).text

    def _between(self, start_s: float, end_s: float) -> Samples:
        """What is kept of these seconds."""
        with self._lock:
            start, end = (
                min(max(round(at_s * SAMPLE_RATE), self._heard.start), self._heard.end)
                for at_s in (start_s, end_s)
            )
            return self._heard.view(start, end)


def options(duration_s: float, *, is_whole: bool) -> TranscribeOptions:
    """How so much of an utterance is read: all of it at once, and no longer than people can speak."""
    return TranscribeOptions(
        decoding=DecodingOptions(
            without_timestamps=True,
            sample_len=LEAST_TOKENS + round(TOKENS_A_SECOND * min(duration_s, 20.0)),
        ),
        fallback=FallbackOptions(
            temperatures=(0.0, 0.4) if is_whole else (0.0,), logprob_threshold=None, no_speech_threshold=None
        ),
        condition_on_previous_text=False,
    )
