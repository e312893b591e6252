"""The second pass of a live session: each utterance that has ended is transcribed again, as a recording is.

The first pass commits words with half a second of audio behind them. The second one has the audio and the
languages of the whole utterance. It runs in a thread; in a shared runtime, live calls come before its calls.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeAlias

import numpy as np

from sottovoce.audio.mel import quietest_frame, smoothed
from sottovoce.audio.samples import AudioBuffer
from sottovoce.streaming.audio_window import QUIET_FRAMES, SAMPLES_PER_FRAME
from sottovoce.streaming.utterance import REST_OF_WORD_S
from sottovoce.types import SAMPLE_RATE, Event, Final, Samples, SpeechEnded, SpeechStarted, Word

log = logging.getLogger(__name__)

ReadUtterance: TypeAlias = Callable[
    [Samples, float, Sequence[Word], threading.Event], tuple[Word, ...] | None
]
"""Transcribes samples (n,) that begin at a time (s) of the session, until the event is set; given their
committed words, which stay if it returns None.
"""
MOST_HELD_S = 60.0
"""Audio since the last final that is kept; with words, finals come sooner."""


@dataclass(eq=False)
class _Reading:
    """An utterance in the second pass. final: with its committed words. words: None: these stay."""

    final: Final
    stopped: threading.Event
    words: Future[tuple[Word, ...] | None]

    @property
    def is_done(self) -> bool:
        return self.stopped.is_set() or self.words.done()

    def result(self, now_s: float) -> Final:
        final = replace(self.final, emission_time=now_s, committed=self.final.words)
        if self.stopped.is_set():
            return final
        if (error := self.words.exception()) is not None:
            log.warning("the second pass failed: %s", type(error).__name__)
            return final
        if (words_read := self.words.result()) is None:
            return final
        words = tuple(_with_speaker(word, final.words) for word in words_read)
        languages = Counter(word.language for word in words).most_common(1)
        return replace(
            final,
            start=words[0].start if words else final.start,
            end=words[-1].end if words else final.end,
            text="".join(word.word for word in words).strip(),
            language=(languages[0][0] if languages else None) or final.language,
            words=words,
            is_read=True,
        )


class SecondPass:
    """Transcribes the utterances of one session again, in order, and returns their finals.

    wait_s: most seconds that `close` waits. max_pause_s: longest pause that is read with the utterance after
    it. on_close: called at the end of `close`.
    """

    def __init__(
        self,
        read: ReadUtterance,
        wait_s: float,
        max_pause_s: float,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._read_utterance = read
        self._wait_s = wait_s
        self._max_pause = max_pause_s * SAMPLE_RATE
        self._on_close = on_close
        self._thread = ThreadPoolExecutor(1, "sottovoce-second-pass")
        self.notify: Callable[[], None] = lambda: None
        """Called in the thread when an utterance was read."""
        self.has_time: Callable[[], bool] = lambda: True
        """Whether an utterance that ends now is read."""
        self._readings: deque[_Reading] = deque()
        self._is_closed = False
        self._buffer = AudioBuffer()
        self._start = self._end = 0
        """First sample of the next utterance, and the end of the last one."""

    def append(self, pcm: Samples) -> None:
        self._buffer.append(pcm)

    def take(self, events: Sequence[Event], *, realtime: bool) -> list[Event]:
        """Begin to read the utterances of the finals among events, and return the other events.

        realtime: when two utterances are not read yet, stop reading the first, instead of waiting for it.
        """
        for event, after in zip_longest(events, events[1:]):
            if isinstance(event, SpeechStarted):
                start = max(self._end, round(event.at * SAMPLE_RATE))
                self._start = start if start - self._end > self._max_pause else self._end
            elif isinstance(event, Final):
                self._begin(event, self._end_of(event, after), realtime=realtime)
        self._buffer.drop_before(max(self._end, self._buffer.end - round(MOST_HELD_S * SAMPLE_RATE)))
        return [event for event in events if not isinstance(event, Final)]

    def finals(self, now_s: float) -> list[Event]:
        """Return the finals that are ready, up to the first that is not."""
        ready: list[Event] = []
        while self._readings and self._readings[0].is_done:
            ready.append(self._readings.popleft().result(now_s))
        return ready

    def wait(self, wait_s: float) -> None:
        """Wait for the utterances so far, and stop those that are not read within so many seconds."""
        unread = [each for each in self._readings if not each.is_done]
        wait([each.words for each in unread], wait_s if math.isfinite(wait_s) else None)
        for each in unread:
            if not each.is_done:
                each.stopped.set()

    def close(self, wait_s: float | None = None) -> None:
        """Wait, by default for the time of the pass, and end the thread."""
        if self._is_closed:
            return
        self._is_closed = True
        self.wait(self._wait_s if wait_s is None else wait_s)
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._on_close is not None:
            self._on_close()

    def _end_of(self, final: Final, after: Event | None) -> int:
        """Return the last sample: of the speech and its pause, or of a quiet moment after the last word."""
        now = round(final.emission_time * SAMPLE_RATE)
        first = max(self._start, round(final.words[-1].end * SAMPLE_RATE) - QUIET_FRAMES * SAMPLES_PER_FRAME)
        n_frames = (min(now, first + round(REST_OF_WORD_S * SAMPLE_RATE)) - first) // SAMPLES_PER_FRAME
        if isinstance(after, SpeechEnded) or n_frames <= 0:
            return now
        frames = self._buffer.view(first, first + n_frames * SAMPLES_PER_FRAME).reshape(n_frames, -1)
        loudness = smoothed(np.log(np.square(frames, dtype=np.float64).mean(axis=1) + 1e-10), QUIET_FRAMES)
        return first + SAMPLES_PER_FRAME * quietest_frame(loudness, QUIET_FRAMES)

    def _begin(self, final: Final, end: int, *, realtime: bool) -> None:
        unread = [each for each in self._readings if not each.is_done]
        if len(unread) > 1 and realtime:
            unread[0].stopped.set()
        elif len(unread) > 1:
            wait([unread[0].words])
        stopped, words = threading.Event(), Future[tuple[Word, ...] | None]()
        if self._is_closed or not self.has_time():
            words.set_result(None)
        else:
            start = min(max(self._start, self._buffer.start), end)
            pcm = self._buffer.view(start, end).copy()
            words = self._thread.submit(self._read_utterance, pcm, start / SAMPLE_RATE, final.words, stopped)
            words.add_done_callback(lambda _: self.notify())
        self._readings.append(_Reading(final, stopped, words))
        self._start = self._end = end


def _with_speaker(word: Word, committed: Sequence[Word]) -> Word:
    """Give a word the speaker of the nearest committed word."""
    nearest = min(committed, key=lambda each: abs(each.start + each.end - word.start - word.end))
    return replace(word, speaker=nearest.speaker)
