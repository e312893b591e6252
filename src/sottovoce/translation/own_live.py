"""English by Whisper's own task beside live speech: each utterance is heard once more.

Keeps the audio that may still be asked for. Knows no sessions: it is given the samples that they are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

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

    def __post_init__(self) -> None:
        check_own(self.model)

    @property
    def target(self) -> str:
        return TARGET

    def hear(self, pcm: Samples) -> None:
        """Take samples (n,) float32, mono, 16 kHz.

        Raises: AudioError as `Session.push`.
        """
        self._heard.drop_before(self._heard.end - round(KEPT_S * SAMPLE_RATE))
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
            self._heard.drop_before(round(said.end * SAMPLE_RATE))
        return text

    def _read(self, said: Said) -> str:
        start, end = (
            min(max(round(at_s * SAMPLE_RATE), self._heard.start), self._heard.end)
            for at_s in (said.start - AROUND_S, said.end + AROUND_S)
        )
        if start == end:
            return ""
        return self.model.transcribe(
            self._heard.view(start, end),
            language=said.language,
            task="translate",
            options=options((end - start) / SAMPLE_RATE, is_whole=said.is_whole),
        ).text


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
