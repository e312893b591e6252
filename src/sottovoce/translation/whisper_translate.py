"""Translation into English by Whisper of live speech, from the encoder states of the transcription."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock

from sottovoce.errors import OptionError
from sottovoce.models.backend import EncoderOutput
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.recogniser import Recogniser
from sottovoce.runtime.calls import Runtime, decode_with_fallback
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.translation.live_translator import SourceText

TARGET = "en"
N_NEW_WORDS = 4
"""New words before an utterance is decoded again."""
HELD_S = 60.0
"""Encoder states that are kept, as finals of a second pass come later; a final covers about 30 s."""
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
    """Translates live speech into English by decoding the windows of its session a second time.

    Give `add` to `on_window` of the session; `translate` may run in another thread. runtime: None uses the
    model's own.
    Raises: OptionError for a model that cannot translate.
    """

    model: Recogniser
    runtime: Runtime | None = None
    _windows: dict[str | None, list[AudioWindow]] = field(default_factory=dict, init=False)
    """By source, in the order of their starts."""
    _until_s: dict[str | None, float] = field(default_factory=dict, init=False)
    """By source, the end of the last utterance that was translated."""
    _lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        require_multilingual(self.model)

    @property
    def target(self) -> str:
        return TARGET

    def add(self, window: AudioWindow, source: str | None = None) -> None:
        """Keep a window of a session, or of one of its sources, in place of an earlier one that has grown."""
        with self._lock:
            windows = self._windows.setdefault(source, [])
            if windows and windows[-1].start_sample == window.start_sample:
                windows.pop()
            windows.append(window)
            while windows[0].end_s < window.end_s - HELD_S:
                windows.pop(0)

    def translate(self, source: SourceText) -> str:
        """Translate the audio of an utterance, and forget windows that end with it when it is whole.

        Raises: the errors of the model.
        """
        if not source.text.strip() or source.language == TARGET:
            return " ".join(source.text.split())
        texts = [self._decoded(encoded, source) for encoded in self._spoken(source)]
        if source.is_whole:
            self._until_s[source.source] = source.end
            with self._lock:
                windows = self._windows.get(source.source, [])
                windows[:] = [each for each in windows if each.end_s > source.end + AROUND_S]
        return " ".join(text for text in texts if text)

    def _spoken(self, source: SourceText) -> Iterator[EncoderOutput]:
        """Yield the encoder states of an utterance: of a window that has all of it, or of several."""
        start_s = max(source.start - AROUND_S, self._until_s.get(source.source, 0.0))
        end_s = source.end + AROUND_S
        with self._lock:
            windows = [*self._windows.get(source.source, ())]
        whole = [each for each in windows if each.start_s <= source.start and source.end <= each.end_s]
        for window in whole[-1:] or windows:
            start, end = window.frame(start_s), window.frame(end_s)
            if start < end:
                yield window.encoded.limited(start, end)
                start_s = window.seconds(end)

    def _decoded(self, encoded: EncoderOutput, source: SourceText) -> str:
        runtime, tokenizer = self.runtime or self.model.runtime, self.model.tokenizer
        assert tokenizer is not None
        decoding, fallback = live_options(source)
        (attempt,) = runtime.run(
            decode_with_fallback(runtime.backend, tokenizer, encoded, [decoding], fallback)
        )
        return "" if fallback.repeats(attempt.result) else attempt.result.text


def live_options(source: SourceText) -> tuple[DecodingOptions, FallbackOptions]:
    return (
        DecodingOptions(
            task="translate",
            language=source.language,
            without_timestamps=True,
            sample_len=LEAST_TOKENS + round(TOKENS_A_SECOND * min(source.end - source.start, 20.0)),
        ),
        FallbackOptions(
            temperatures=(0.0, 0.4) if source.is_whole else (0.0,),
            logprob_threshold=None,
            no_speech_threshold=None,
        ),
    )
