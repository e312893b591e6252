"""Somebody speaks: an utterance, how it is read, and what becomes of a reading.

Reads on while audio comes, and out where none follows; lets go of what leads nowhere. Not known here: when an
update is due, voice activity, which language it is, and what is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sottovoce.backends.base import EXACT, EncoderMode, GrowingWindow
from sottovoce.models.encoder_mode import FULL_WINDOW_S
from sottovoce.streaming.draft import DraftText
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.plan import Plan
from sottovoce.streaming.utterance import Utterance
from sottovoce.streaming.window import MELS_PER_FRAME, Window
from sottovoce.streaming.words import ReadWord
from sottovoce.streaming.work import Encode, Steps
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Word

LOST_S = 0.8
"""So much unread audio behind the last word, where a detector says that it is speech, is read once more."""
NEWEST_S = 2.0
"""Audio that is kept where nothing in it gives words."""

LEAST_PART = 0.5
"""Unread audio of up to this part of the frame threshold holds no word that could be told."""

REST_OF_WORD_S = 0.3
"""Within so much behind its last attended frame a word ends."""


class Speech:
    """An utterance while it is spoken, and while it rests in a pause.

    mode: how growing audio is encoded. say: told of committed words at once, with their language.
    lost_s: see `LOST_S`; inf where silence may be among the audio.
    """

    def __init__(
        self,
        utterance: Utterance,
        plan: Plan,
        mode: EncoderMode,
        say: Callable[[Sequence[Word], str], None],
        *,
        options: StreamOptions,
        lost_s: float = LOST_S,
    ) -> None:
        self.utterance = utterance
        self.plan = plan
        self.is_open = True
        """Whether somebody speaks, or it rests."""
        self._mode = mode
        self._say = say
        self._options = options
        self._lost_s = lost_s
        self._from_s = utterance.start_sample / SAMPLE_RATE
        self._was_stuck = False
        self._settled = (utterance.start_sample, 0.0)
        """First sample held, and the moment that everything was last computed up to, at once."""

    def go_on(self, from_s: float) -> None:
        """Somebody speaks again, after a pause."""
        self.is_open, self._from_s = True, from_s

    def unread_s(self, end_s: float) -> float:
        """Seconds of speech behind the last word."""
        return end_s - max(self.utterance.committed.until_s, self._from_s)

    @property
    def is_long_enough(self) -> bool:
        """Whether so much audio is held that it may be read."""
        held = self.utterance.end_sample - self.utterance.start_sample
        return held / SAMPLE_RATE >= self._options.audio_min_len_s

    def may_find(self, settled_until_s: float) -> bool:
        """Whether a reading can find a word that is not held back."""
        committed_s = self.utterance.committed.until_s
        unread_s = self.utterance.end_sample / SAMPLE_RATE - committed_s
        least_frames = max(self._options.sure_frames, LEAST_PART * self._options.frame_threshold)
        return unread_s * FRAMES_PER_SECOND > least_frames and settled_until_s > committed_s

    def read_on(self, settled_until_s: float) -> Steps[Window | None]:
        """Commit what is safe and ends by a moment; the window that was read, None without audio."""
        window = yield from self._encode()
        if window is not None and settled_until_s > self.utterance.committed.until_s:
            yield from self._read(window, settled_until_s=settled_until_s)
            self._let_go(window)
        return window

    def read_out(self, until_sample: int, *, is_last: bool = False) -> Steps[None]:
        """Commit what is left of the audio up to a sample, which no more audio follows.

        Where a good part of it gave no word, it is read once more: behind the last word, without a prompt, in
        the window that the model was trained with. Where that loses the thread too, what earlier readings
        agreed on is committed. is_last: nor does any follow in the session.
        """
        for is_again, mode in ((False, self._closing(until_sample)), (True, EXACT)):
            window = yield from self._encode(mode, until_sample=until_sample, is_last=is_last)
            if window is None:
                return
            yield from self._read(window, final=True)
            if is_again:
                self._give_up(window.end_s)
            if not self.plan.is_stuck and self.unread_s(window.end_s) < self._lost_s:
                return
            self._begin_anew(window)

    def _closing(self, until_sample: int) -> EncoderMode:
        """How audio up to a sample is encoded where no more follows.

        What came since everything was computed is computed at once, with as much before it as every update
        computes.
        """
        start_sample, settled_s = self._settled
        if self._mode.recompute_s is None or start_sample != self.utterance.start_sample:
            return self._mode.whole()
        since_s = max(0.0, until_sample / SAMPLE_RATE - settled_s)
        newest_s = min(FULL_WINDOW_S, since_s + self._mode.recompute_s)
        return replace(self._mode, recompute_s=newest_s, refresh_s=0.0)

    @property
    def waiting(self) -> DraftText:
        """Words that were read but not committed."""
        words = self.plan.waiting
        if not words:
            committed_s = self.utterance.committed.until_s
            return DraftText("", committed_s, committed_s)
        return DraftText("".join(word.word for word in words), words[0].start, words[-1].end)

    def _read(
        self, window: Window, *, settled_until_s: float = float("inf"), final: bool = False
    ) -> Steps[None]:
        words = yield from self.plan.read(
            self.utterance, window, settled_until_s=settled_until_s, final=final
        )
        self._commit(words)

    def _give_up(self, until_s: float) -> None:
        """Commit what is agreed of audio that is not read again."""
        self._commit(self.plan.give_up(self.utterance.committed.until_s, until_s))

    def _commit(self, words: Sequence[ReadWord]) -> None:
        self.utterance.commit(words)
        self._say([read.word for read in words], self.plan.language)

    def _encode(
        self, mode: EncoderMode | None = None, *, until_sample: int | None = None, is_last: bool = False
    ) -> Steps[Window | None]:
        """The audio held, encoded; None without a frame of it.

        mode: in this way; None: as audio grows.
        """
        utterance = self.utterance
        log_mel = utterance.log_mel(final=is_last, until_sample=until_sample)
        if log_mel.shape[1] < MELS_PER_FRAME:
            return None
        work = Encode([GrowingWindow(log_mel, mode or self._mode, utterance.encoder_state)])
        yield work
        grown = work.grown[0]
        is_settled = mode is not None or utterance.encoder_state is None
        utterance.encoder_state = grown.state
        encoded = replace(grown.encoded, n_content_frames=(log_mel.shape[1] // MELS_PER_FRAME,))
        window = Window(encoded, log_mel, utterance.start_sample)
        if is_settled:
            self._settled = window.start_sample, window.end_s
        return window

    def _let_go(self, window: Window) -> None:
        """Let go what leads nowhere: first what lies before the unread audio, then most of that too."""
        is_again, self._was_stuck = self._was_stuck and self.plan.is_stuck, self.plan.is_stuck
        is_overdue = self.unread_s(window.end_s) > self._options.wordless_s
        is_wordless = is_overdue and not self.plan.waiting
        if not (is_wordless or self.plan.is_stuck):
            return
        has_words = self.utterance.committed.last is not None
        if has_words:
            self._begin_anew(window)
        if is_overdue and (is_again or not has_words):
            self._give_up(window.end_s - NEWEST_S)
            self._from_s = max(self._from_s, window.end_s - NEWEST_S)
            self.utterance.drop_before(window.end_s - NEWEST_S)

    def _begin_anew(self, window: Window) -> None:
        """Go on behind the last committed word, without what was said before.

        Attention leaves a word before it ends: what is left of it would be heard as another.
        """
        committed_s = self.utterance.committed.until_s
        self.utterance.drop_before(window.quietest_s(committed_s, committed_s + REST_OF_WORD_S))
        self.utterance.forget_text()
