"""A live session of a CTC network.

At each update the network reads a window of the utterance up to now. Frames that have their right context,
which the latency sets, go to the search and are not computed again; the words that it commits are final, and
the rest of its best text may change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sottovoce.audio.vad import VadStream
from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.network import AcousticModel, new_words, spaced
from sottovoce.ctc.search import PrefixState
from sottovoce.runtime.calls import RunOnHost, Runtime
from sottovoce.runtime.emissions import EmissionsCall
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.streaming.live_session import EventEmitter, LiveSession, UpdateSchedule
from sottovoce.streaming.options import SessionOptions
from sottovoce.text.replacements import Replacements
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Samples, SpeechEnded, Word


class CtcSession(LiveSession):
    """Turns speech into events as it comes, by a CTC network and a search.

    vad: None: everything is speech until `close`.
    """

    def __init__(
        self,
        network: AcousticModel,
        decoder: CtcDecoder,
        options: SessionOptions,
        *,
        languages: tuple[str, ...],
        runtime: Runtime,
        vad: VadStream | None = None,
        speakers: LiveSpeakers | None = None,
    ) -> None:
        stream = options.stream
        self._network, self._decoder = network, decoder
        self._languages = languages
        self._language = languages[0] if len(languages) == 1 else network.language
        self._shows_unstable = options.captions == "revisable"
        self._right_s = min(stream.near_frames / FRAMES_PER_SECOND, network.margin_s)
        self._least_samples = round(stream.audio_min_len_s * SAMPLE_RATE)
        self._longest_s = min(network.longest_s, stream.audio_max_len_s)
        super().__init__(
            runtime,
            UpdateSchedule(vad, stream.chunk_s, 0.0),
            EventEmitter(
                stream.sentence_s,
                stream.longest_final_s,
                replacements=Replacements.of(options.replacements),
            ),
            speakers,
        )
        self._search: PrefixState | None = None
        """Of the open utterance."""
        self._held: Samples = np.zeros(0, np.float32)
        """Sound of the utterance from the frame `_first` on."""
        self._start = self._end = 0
        self._first = self._n_done = 0
        self._committed_s = 0.0

    @property
    def languages(self) -> tuple[str, ...]:
        return self._languages

    @property
    def is_in_speech(self) -> bool:
        return self._search is not None

    def _start_speech(self, sample: int) -> None:
        self._begin(max(sample, self._end))

    def _begin(self, sample: int) -> None:
        self._search, self._held = self._decoder.start(), np.zeros(0, np.float32)
        self._start = self._end = sample
        self._first = self._n_done = 0
        self._committed_s = sample / SAMPLE_RATE

    def _pause_speech(self) -> None:
        raise AssertionError("a fixed pause ends speech")

    def _end_speech(self, sample: int) -> None:
        self._flush(sample)
        self._search = None
        self._events.emit(SpeechEnded(sample / SAMPLE_RATE, self._schedule.now_s))

    def _update(self, sample: int, *, greedy: bool) -> None:
        if sample - self._start < self._least_samples:
            return
        self._decode(sample, self._right_s)
        self._emit(self._new_words())

    def _flush(self, sample: int) -> None:
        with self._attempt():
            self._decode(min(sample, self._schedule.buffer.end), 0.0)
            self._emit(self._new_words(final=True), is_last=True)
        self._events.emit_final(self._language, self._schedule.now_s)
        self._begin(self._end)  # after `finalize`, the utterance goes on

    def _release(self) -> int | None:
        return self._end if self.is_in_speech else None

    def _decode(self, until: int, right_s: float) -> None:
        """Search the frames up to a sample that have so many seconds of sound behind them."""
        network, search = self._network, self._search
        assert search is not None
        if until > self._end:
            self._held = np.concatenate((self._held, self._schedule.buffer.view(self._end, until)))
            self._end = until
        n_frames = int((until - self._start) / SAMPLE_RATE / network.frame_s)
        last = n_frames - round(right_s / network.frame_s)
        if last <= self._n_done or len(self._held) < network.samples_of(1):
            return
        first = max(self._first, n_frames - int(self._longest_s / network.frame_s))
        first = min(first, self._n_done)
        self._held = self._held[network.samples_of(first) - network.samples_of(self._first) :]
        self._first = first
        (rows,) = self._runtime.run(EmissionsCall(network, [self._held]))
        rows = rows[self._n_done - first : None if right_s == 0 else last - first]
        self._n_done += len(rows)
        self._runtime.run(RunOnHost(lambda: self._decoder.decode_chunk(search, rows)))

    def _new_words(self, *, final: bool = False) -> list[Word]:
        assert self._search is not None
        offset_s = self._start / SAMPLE_RATE
        return new_words(self._decoder, self._search, self._language, offset_s=offset_s, final=final)

    def _emit(self, words: Sequence[Word], *, is_last: bool = False) -> None:
        now_s = self._schedule.now_s
        if words:
            self._events.emit_words(words, self._language, now_s)
            self._committed_s = words[-1].end
        if self._shows_unstable:
            assert self._search is not None
            best = [] if is_last else self._decoder.partials(self._search)[0][:1]
            rest = spaced(
                [word for each in best for word in each.words], self._language, self._start / SAMPLE_RATE
            )
            self._events.emit_unstable(rest, self._language, now_s, committed_s=self._committed_s)
