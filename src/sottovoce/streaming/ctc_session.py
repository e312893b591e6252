"""A live session of a CTC network.

At each update the network reads the last seconds of speech. Frames that have their right context, which the
latency sets, go to the search and are not computed again. A copy of the search looks ahead at the others: the
words on which its best text is based are final, and the rest of that text may change.

Speech before a pause stays in the window, with at most 2 s of the pause, and the first words wait for
`FIRST_S`, because networks are less accurate on short sound (docs/research/ctc.md, live).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from sottovoce.audio.vad import VadStream
from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.network import AcousticModel, EmissionStream, new_words, spaced
from sottovoce.ctc.search import PrefixState
from sottovoce.runtime.calls import EmissionsCall, RunOnHost, Runtime, Steps
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.streaming.live_session import EventEmitter, LiveSession, UpdateSchedule
from sottovoce.streaming.options import Latency, LiveOptions
from sottovoce.streaming.second_pass import SecondPass
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Floats, Samples, SpeechEnded, Word

RIGHT_S: Mapping[Latency, float] = {"low": 0.5, "balanced": 1.0, "sure": 2.0}
"""Seconds of sound behind a word that is committed."""
FIRST_S = 3.0
"""Seconds of sound before the first words of a session are committed."""


class CtcSession(LiveSession):
    """Turns speech into events as it comes, by a CTC network and a search.

    vad: None: everything is speech until `close`. second_pass: transcribes finished utterances again.
    """

    def __init__(
        self,
        network: AcousticModel,
        decoder: CtcDecoder,
        options: LiveOptions,
        *,
        languages: tuple[str, ...],
        runtime: Runtime,
        vad: VadStream | None = None,
        speakers: LiveSpeakers | None = None,
        second_pass: SecondPass | None = None,
    ) -> None:
        stream = options.stream
        self._network, self._decoder = network, decoder
        self._languages = languages
        self._language = languages[0] if len(languages) == 1 else network.language
        self._shows_unstable = options.captions == "revisable"
        frames = stream.frame_threshold
        right_s = RIGHT_S[stream.latency] if frames is None else frames / FRAMES_PER_SECOND
        self._right_s = min(right_s, network.margin_s)
        first_s = stream.audio_min_len_s or min(FIRST_S, network.margin_s)
        self._least_samples = round(first_s * SAMPLE_RATE)
        self._window_s = min(2 * network.margin_s, stream.audio_max_len_s)
        super().__init__(
            runtime,
            UpdateSchedule(vad, stream.chunk_s, 0.0),
            EventEmitter(
                stream.sentence_s,
                stream.longest_final_s,
                filters=options.text_filters,
            ),
            speakers,
            second_pass,
        )
        self._search: PrefixState | None = None
        """Of the open utterance."""
        self._held: Samples = np.zeros(0, np.float32)
        """The last speech, also of utterances before, from the frame `_first` of the open utterance on."""
        self._stream: EmissionStream | None = None
        self._ahead = np.zeros((0, len(network.labels.names)), np.float32)
        """Of a network with a state: the emissions that were not searched."""
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
        self._begin(max(self._end, self._schedule.buffer.start))  # the network reads the silence before, too

    def _begin(self, sample: int) -> None:
        """Begin an utterance, before which the network sees the speech of those before."""
        frame = self._network.samples_of(1)
        self._search = self._decoder.start()
        if self._network.stream is not None:
            self._stream, self._ahead = self._network.stream(), self._ahead[:0]
        self._held = self._held[len(self._held) % frame :]
        self._first, self._n_done = -(len(self._held) // frame), 0
        self._start = self._end = sample
        self._committed_s = sample / SAMPLE_RATE

    def _pause_speech(self) -> Steps[None]:
        raise AssertionError("a fixed pause ends speech")

    def _end_speech(self, sample: int) -> Steps[None]:
        yield from self._flush(sample)
        self._search = None
        self._events.emit(SpeechEnded(sample / SAMPLE_RATE, self._schedule.now_s))

    def _update(self, sample: int, *, greedy: bool) -> Steps[None]:
        return self._read(sample, is_last=False)

    def _flush(self, sample: int) -> Steps[None]:
        with self._attempt:
            yield from self._read(min(sample, self._schedule.buffer.end), is_last=True)
        self._events.emit_final(self._language, self._schedule.now_s)
        self._begin(self._end)  # after `finalize`, the utterance goes on

    def _release(self) -> int | None:
        return self._end if self.is_in_speech else None

    def _read(self, until: int, *, is_last: bool) -> Steps[None]:
        """Search the frames up to a sample that have their right context, and look ahead at the others."""
        search, decoder = self._search, self._decoder
        assert search is not None
        rows = yield from self._emissions(until, is_last=is_last)
        n_ahead = 0 if is_last else round(self._right_s / self._network.frame_s)
        is_short = self._stream is None and len(self._held) < self._least_samples and not is_last
        n_settled = 0 if is_short else max(0, len(rows) - n_ahead)
        self._n_done += n_settled
        self._ahead = self._ahead[n_settled:]

        def searched() -> list[Word]:
            """Return the likely words after those that are committed."""
            decoder.decode_chunk(search, rows[:n_settled])
            ahead = decoder.look_ahead(search, rows[n_settled:])
            n_new = len(search.committed[0].words) - len(ahead.committed[0].words)
            return [word for best in decoder.partials(ahead)[0][:1] for word in best.words[n_new:]]

        likely = yield from RunOnHost(searched)
        offset_s = self._start / SAMPLE_RATE
        words = new_words(decoder, search, self._language, offset_s=offset_s, final=is_last)
        now_s = self._schedule.now_s
        if words:
            self._events.emit_words(words, self._language, now_s)
            self._committed_s = words[-1].end
        if self._shows_unstable:
            rest = spaced([] if is_last else likely, self._language, offset_s)
            self._events.emit_unstable(rest, self._language, now_s, committed_s=self._committed_s)

    def _emissions(self, until: int, *, is_last: bool) -> Steps[Floats]:
        """Return the emissions of the frames up to a sample that were not searched."""
        network = self._network
        new = self._schedule.buffer.view(self._end, max(self._end, until))
        self._end += len(new)
        if self._stream is not None:
            read = partial(network.streamed, self._stream, new, is_last=is_last)
            self._ahead = np.concatenate((self._ahead, (yield from RunOnHost(read))))
            return self._ahead
        self._held = np.concatenate((self._held, new))
        n_frames = int((self._end - self._start) / SAMPLE_RATE / network.frame_s)
        first = max(self._first, min(n_frames - int(self._window_s / network.frame_s), self._n_done))
        self._held = self._held[network.samples_of(first) - network.samples_of(self._first) :]
        self._first = first
        if n_frames <= self._n_done:
            return network.blanks(0)
        (rows,) = yield from EmissionsCall(network, [self._held])
        return rows[self._n_done - first :]
