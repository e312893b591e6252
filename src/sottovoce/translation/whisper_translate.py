"""Translation into English by Whisper, of files and live utterances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sottovoce.audio.samples import AudioBuffer, PushedAudio
from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.recogniser import Recogniser
from sottovoce.runtime.calls import Runtime
from sottovoce.translation.live_translator import SourceText
from sottovoce.types import SAMPLE_RATE, Samples

if TYPE_CHECKING:
    from torch import Tensor

TARGET = "en"
N_NEW_WORDS = 4
"""New words before an utterance is decoded again, which costs a window."""
HELD_S = 60.0
"""Audio that is kept; a final covers about 30 s."""
AROUND_S = 0.5
"""Audio around the words, whose ends are estimated too early."""
LEAST_TOKENS, TOKENS_A_SECOND = 16, 10
"""Longer output of an utterance is a loop."""


def require_multilingual(model: Recogniser) -> None:
    """Check that a model can translate.

    Raises: OptionError for an English-only model, or a CTC network.
    """
    if not model.can_translate:
        raise OptionError(f"translation into 'en': {model.name} is an English-only model or a CTC network")


@dataclass(slots=True)
class WhisperTranslator:
    """Translates live speech into English by decoding each utterance again.

    Call `push` with all samples before the session gets them; `translate` may run in another thread. runtime:
    None uses the model's own backend.
    Raises: OptionError for a model that cannot translate.
    """

    model: Recogniser
    runtime: Runtime | None = None
    _pushed: PushedAudio = field(default_factory=PushedAudio, init=False)
    _audio: AudioBuffer = field(default_factory=AudioBuffer, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        require_multilingual(self.model)

    @property
    def target(self) -> str:
        return TARGET

    def push(
        self,
        pcm: npt.NDArray[np.generic] | Tensor,
        *,
        sample_rate: int = SAMPLE_RATE,
        worked_s: float | None = None,
    ) -> None:
        """Append samples as `Session.push` takes them.

        worked_s: seconds that the session has processed (None: all); audio more than a minute older is
        dropped.
        Raises: AudioError.
        """
        with self._lock:
            worked = self._audio.end if worked_s is None else round(worked_s * SAMPLE_RATE)
            self._audio.drop_before(worked - round(HELD_S * SAMPLE_RATE))
            self._audio.append(self._pushed.push(pcm, sample_rate))

    def tee(self, pieces: Iterator[Samples]) -> Iterator[Samples]:
        for piece in pieces:
            self.push(piece)
            yield piece

    def translate(self, source: SourceText) -> str:
        """Translate the audio of an utterance, and drop it when finished.

        Raises: the errors of the model.
        """
        if not source.text.strip() or source.language == TARGET:
            text = " ".join(source.text.split())
        else:
            text = self._decode(source)
        if source.is_whole:
            with self._lock:
                self._audio.drop_before(round(source.end * SAMPLE_RATE))
        return text

    def _decode(self, source: SourceText) -> str:
        pcm = self._between(source.start - AROUND_S, source.end + AROUND_S)
        if not len(pcm):
            return ""
        transcription = self.model.transcribe(
            pcm,
            language=source.language,
            task="translate",
            options=live_options(len(pcm) / SAMPLE_RATE, is_whole=source.is_whole),
            runtime=self.runtime,
        )
        return transcription.text

    def _between(self, start_s: float, end_s: float) -> Samples:
        with self._lock:
            start, end = (
                min(max(round(at_s * SAMPLE_RATE), self._audio.start), self._audio.end)
                for at_s in (start_s, end_s)
            )
            return self._audio.view(start, end)


def live_options(duration_s: float, *, is_whole: bool) -> TranscribeOptions:
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
