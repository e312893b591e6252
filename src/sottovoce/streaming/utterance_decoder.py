"""One utterance from its audio to committed words: encode, decode, commit; and how to go on where decoding is
lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from sottovoce.backends.base import EXACT, EncoderMode, IncrementalWindow
from sottovoce.engine.calls import CallGenerator, IncrementalEncodeCall
from sottovoce.models.dims import FULL_WINDOW_S
from sottovoce.streaming.audio_window import MELS_PER_FRAME, AudioWindow
from sottovoce.streaming.commit_policy import may_hold_words
from sottovoce.streaming.events import UnstableText
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.strategy import DecodingStrategy
from sottovoce.streaming.utterance import LiveUtterance
from sottovoce.streaming.words import HypothesisWord
from sottovoce.types import SAMPLE_RATE, Word

LOST_S = 0.8
"""Seconds of audio without words behind the last word that are decoded again, where voice activity finds
speech.
"""
NEWEST_S = 2.0
"""Seconds of audio kept where nothing in it gives words."""
REST_OF_WORD_S = 0.3
"""A word ends within this many seconds after its last attended frame."""


class UtteranceDecoder:
    """Decode an utterance while somebody speaks, and keep it through a pause.

    mode: how growing audio is encoded. on_words: called at once with committed words and the language.
    lost_s: see `LOST_S`; inf where the audio may hold silence.
    """

    def __init__(
        self,
        utterance: LiveUtterance,
        strategy: DecodingStrategy,
        mode: EncoderMode,
        on_words: Callable[[Sequence[Word], str], None],
        *,
        options: StreamOptions,
        lost_s: float = LOST_S,
    ) -> None:
        self.utterance = utterance
        self.strategy = strategy
        self.is_open = True
        """Whether somebody speaks; False in a pause."""
        self._mode = mode
        self._on_words = on_words
        self._options = options
        self._lost_s = lost_s
        self._from_s = utterance.start_sample / SAMPLE_RATE
        """Where speech began, after the last pause or after audio that was given up."""
        self._was_stuck = False
        self._full_encode = (utterance.start_sample, 0.0)
        """First sample of the buffer and end (s) of the last window that was encoded as a whole."""

    def resume(self, from_s: float) -> None:
        """Go on with the utterance after a pause; from_s: where speech begins again."""
        self.is_open, self._from_s = True, from_s

    def undecoded_s(self, end_s: float) -> float:
        """Return the seconds of speech from the last word to end_s."""
        return end_s - max(self.utterance.committed.until_s, self._from_s)

    @property
    def is_long_enough(self) -> bool:
        """Whether the buffer has the audio that a first update needs."""
        n_samples = self.utterance.end_sample - self.utterance.start_sample
        return n_samples / SAMPLE_RATE >= self._options.audio_min_len_s

    def may_commit(self, certain_until_s: float) -> bool:
        """Return whether an update can commit a word; certain_until_s: see `CommitPolicy.decide`."""
        committed_s = self.utterance.committed.until_s
        undecoded_s = self.utterance.end_sample / SAMPLE_RATE - committed_s
        return may_hold_words(self._options, undecoded_s) and certain_until_s > committed_s

    def update(self, certain_until_s: float) -> CallGenerator[AudioWindow | None]:
        """Encode and decode what is new, and commit words; return the window, None without audio.

        certain_until_s: see `CommitPolicy.decide`.
        """
        window = yield from self._encode()
        if window is not None and certain_until_s > self.utterance.committed.until_s:
            yield from self._decode(window, certain_until_s=certain_until_s)
            self._trim_stalled(window)
        return window

    def flush(self, until_sample: int, *, is_last: bool = False) -> CallGenerator[None]:
        """Commit all words of the audio up to a sample, behind which no more is decoded.

        Where a good part of it gave no word, it is decoded once more: behind the last word, without a prompt,
        in the window that the model was trained with. Where that is lost too, agreed words are committed.
        is_last: the session has no more audio.
        """
        for is_retry, mode in ((False, self._flush_mode(until_sample)), (True, EXACT)):
            window = yield from self._encode(mode, until_sample=until_sample, is_last=is_last)
            if window is None:
                return
            yield from self._decode(window, final=True)
            if is_retry:
                self._commit_agreed(window.end_s)
            if not self.strategy.policy.is_stuck and self.undecoded_s(window.end_s) < self._lost_s:
                return
            self._restart_after_last_word(window)

    def _flush_mode(self, until_sample: int) -> EncoderMode:
        """Return how audio up to a sample is encoded by a flush.

        What came since the last full encode is computed at once, with as much before it as every update
        computes.
        """
        start_sample, encoded_s = self._full_encode
        if self._mode.recompute_s is None or start_sample != self.utterance.start_sample:
            return self._mode.whole()
        since_s = max(0.0, until_sample / SAMPLE_RATE - encoded_s)
        newest_s = min(FULL_WINDOW_S, since_s + self._mode.recompute_s)
        return replace(self._mode, recompute_s=newest_s, refresh_s=0.0)

    @property
    def unstable_text(self) -> UnstableText:
        """The decoded words that are not committed."""
        words = self.strategy.policy.unstable
        if not words:
            committed_s = self.utterance.committed.until_s
            return UnstableText("", committed_s, committed_s)
        return UnstableText("".join(word.word for word in words), words[0].start, words[-1].end)

    def _encode(
        self, mode: EncoderMode | None = None, *, until_sample: int | None = None, is_last: bool = False
    ) -> CallGenerator[AudioWindow | None]:
        """Encode the buffer, unless a language probe just did; None without a frame of audio.

        mode: None: as audio grows.
        """
        utterance = self.utterance
        log_mel = utterance.log_mel(final=is_last, until_sample=until_sample)
        if log_mel.shape[1] < MELS_PER_FRAME:
            return None
        result = utterance.probed_in(mode or self._mode, log_mel.shape[1])
        is_full = mode is not None or result is not None or utterance.encoder_state is None
        if result is None:
            utterance.probed = None
            windows = [IncrementalWindow(log_mel, mode or self._mode, utterance.encoder_state)]
            (result,) = yield IncrementalEncodeCall(windows)
        utterance.encoder_state = result.state
        encoded = replace(result.encoded, n_content_frames=(log_mel.shape[1] // MELS_PER_FRAME,))
        window = AudioWindow(encoded, log_mel, utterance.start_sample)
        if is_full:
            self._full_encode = window.start_sample, window.end_s
        return window

    def _decode(
        self, window: AudioWindow, *, certain_until_s: float = math.inf, final: bool = False
    ) -> CallGenerator[None]:
        words = yield from self.strategy.decode(
            self.utterance, window, certain_until_s=certain_until_s, final=final
        )
        self._commit(words)

    def _commit(self, words: Sequence[HypothesisWord]) -> None:
        self.utterance.commit(words)
        self._on_words([one.word for one in words], self.strategy.language)

    def _commit_agreed(self, until_s: float) -> None:
        """Commit what hypotheses agreed on of audio up to until_s, which is not decoded again."""
        committed_s = self.utterance.committed.until_s
        self._commit(self.strategy.policy.take_agreed(committed_s, until_s))

    def _trim_stalled(self, window: AudioWindow) -> None:
        """Drop audio where decoding leads nowhere: first what lies before the undecoded part, then most of
        that.
        """
        policy = self.strategy.policy
        is_again, self._was_stuck = self._was_stuck and policy.is_stuck, policy.is_stuck
        is_overdue = self.undecoded_s(window.end_s) > self._options.wordless_s
        is_wordless = is_overdue and not policy.unstable
        if not (is_wordless or policy.is_stuck):
            return
        has_words = self.utterance.committed.last is not None
        if has_words:
            self._restart_after_last_word(window)
        if is_overdue and (is_again or not has_words):
            self._commit_agreed(window.end_s - NEWEST_S)
            self._from_s = max(self._from_s, window.end_s - NEWEST_S)
            self.utterance.drop_before(window.end_s - NEWEST_S)

    def _restart_after_last_word(self, window: AudioWindow) -> None:
        """Drop the audio up to the end of the last committed word, and the prompt.

        Attention leaves a word before it ends: the rest of it would be decoded as another.
        """
        committed_s = self.utterance.committed.until_s
        self.utterance.drop_before(window.quietest_s(committed_s, committed_s + REST_OF_WORD_S))
        self.utterance.clear_prompt()
