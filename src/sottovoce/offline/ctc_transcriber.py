"""The path of a recording through a CTC network: windows → emissions → one search → words → segments.

With mode "vad", only speech passes through the network, and blanks stand for the rest. A resume point lies
in a pause: the network goes on there, and the search begins anew, without the words before it as context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from sottovoce.audio.io import AudioReader, Recording
from sottovoce.audio.vad import SpeechFinder, SpeechModel
from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.network import AcousticModel, new_words
from sottovoce.errors import AudioError
from sottovoce.offline.resume import (
    ChannelsPlace,
    Place,
    ResumePoint,
    SeekPlace,
    SpeechPlace,
    TranscriptionState,
)
from sottovoce.offline.transcriber import RecordingTranscriber, SecondModel, Segments
from sottovoce.offline.windows import mel_frames, seconds_of
from sottovoce.options.decoding import LONGEST_UTTERANCE_S, WINDOW_VAD, VadStreamOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.calls import EmissionsCall, RunOnHost, Runtime
from sottovoce.text.languages import CLOSING_MARKS, SENTENCE_ENDS
from sottovoce.types import Floats, Segment, Word

PAUSE_S = VadStreamOptions().hangover_ms / 1000


@dataclass(slots=True)
class SegmentBuilder:
    """Joins words to segments, which end at pauses, at ends of sentences, and after `LONGEST_UTTERANCE_S`."""

    language: str
    words: list[Word] = field(default_factory=list)

    def add(self, words: Sequence[Word]) -> Iterator[Segment]:
        """Yield the segments that words end."""
        for word in words:
            if self.words and self._ends_before(word):
                yield self._segment()
            self.words.append(word)

    def finish(self) -> Iterator[Segment]:
        if self.words:
            yield self._segment()

    def _ends_before(self, word: Word) -> bool:
        first, last = self.words[0], self.words[-1]
        is_sentence = last.word.rstrip(CLOSING_MARKS).endswith(SENTENCE_ENDS)
        return is_sentence or word.start - last.end >= PAUSE_S or word.end - first.start > LONGEST_UTTERANCE_S

    def _segment(self) -> Segment:
        words, self.words = tuple(self.words), []
        logprob = float(np.mean(np.log([max(word.probability, 1e-10) for word in words])))
        text = "".join(word.word for word in words)
        return Segment(
            0, words[0].start, words[-1].end, text, self.language, avg_logprob=logprob, words=words
        )


@dataclass(frozen=True, slots=True)
class CtcTranscriber(RecordingTranscriber):
    runtime: Runtime
    network: AcousticModel
    decoder: CtcDecoder
    options: TranscribeOptions
    second: SecondModel | None = None
    speech_model: SpeechModel | None = None
    tokenizer: None = None

    @property
    def fixed_language(self) -> str:
        return self.options.decoding.language or self.network.language

    def with_runtime(self, runtime: Runtime) -> CtcTranscriber:
        return replace(self, runtime=runtime)

    def with_options(self, options: TranscribeOptions, second: SecondModel | None) -> CtcTranscriber:
        return replace(self, options=options, second=second)

    def transcribe(
        self, recording: Recording, state: TranscriptionState, resume: ResumePoint | None = None
    ) -> Segments:
        place = None if resume is None else resume.place
        assert not isinstance(place, ChannelsPlace), "channels resume one by one"
        first = place.clip if isinstance(place, SeekPlace) else 0
        with recording.open() as reader:
            state.duration = reader.info.duration_s
        for clip, (start_s, end_s) in enumerate(self.options.clips):
            if place is not None and clip == first:
                start_s = seconds_of(place.next_frame)
            if clip >= first:
                duration_s = None if end_s is None else end_s - start_s
                yield from self._part(recording.part(start_s, duration_s), start_s, clip, state)

    def _part(self, recording: Recording, start_s: float, clip: int, state: TranscriptionState) -> Segments:
        decoder, search = self.decoder, self.decoder.start()
        language = self.fixed_language
        builder = SegmentBuilder(language)
        ended_s: float | None = None

        def noted(segments: Iterator[Segment]) -> Segments:
            """Set the resume point before each segment that a pause precedes."""
            nonlocal ended_s
            for segment in segments:
                if ended_s is not None and segment.start - ended_s >= PAUSE_S:
                    place = self._place(clip, (ended_s + segment.start) / 2)
                    state.resume_point = ResumePoint(state.to_resume(), (), False, None, place)
                ended_s = segment.end
                yield segment

        for rows in self._rows(recording, start_s, state):
            decoder.decode_chunk(search, rows)
            state.position = max(state.position, start_s + int(search.n_frames[0]) * self.network.frame_s)
            yield from noted(builder.add(new_words(decoder, search, language, offset_s=start_s)))
        yield from noted(builder.add(new_words(decoder, search, language, offset_s=start_s, final=True)))
        yield from noted(builder.finish())

    def _place(self, clip: int, seconds: float) -> Place:
        frame_s = self.network.frame_s
        frame = mel_frames(round(seconds / frame_s) * frame_s)
        return SpeechPlace(0, frame, 0) if self.options.mode == "vad" else SeekPlace(clip, frame, seconds, 0)

    def _rows(self, recording: Recording, start_s: float, state: TranscriptionState) -> Iterator[Floats]:
        """Yield the emissions of a recording in pieces, which follow one another."""
        n_done, frame_s = 0, self.network.frame_s
        for first, last in self._spoken(recording) if self.options.mode == "vad" else [(0, None)]:
            if first > n_done:
                yield self.network.blanks(first - n_done)
            n_done = first
            duration_s = None if last is None else (last - first) * frame_s
            part = recording if last is None else recording.part(first * frame_s, duration_s)
            with part.open() as reader:
                for rows in self._emitted(reader):
                    n_done += len(rows)
                    yield rows
        state.duration = state.duration or start_s + n_done * frame_s
        if not n_done and start_s > 0:
            raise AudioError(f"{recording.name}: expected sound at {start_s:g} s, where to begin, got less")

    def _emitted(self, reader: AudioReader) -> Iterator[Floats]:
        network = self.network
        if network.stream is not None:
            for step in network.steps(network.stream(), reader):
                yield self.runtime.run(RunOnHost(step))
            return
        windows = network.windows(reader)
        while batch := list(islice(windows, self.options.batch_size)):
            call = EmissionsCall(network, [window.samples for window in batch])
            yield from network.rows(batch, self.runtime.run(call))

    def _spoken(self, recording: Recording) -> list[tuple[int, int]]:
        """Return the frames [first, last) of speech; pauses within the context of windows are part of it."""
        finder = SpeechFinder(self.options.vad or WINDOW_VAD, model=self.speech_model)
        with recording.open() as reader:
            for chunk in reader:
                self.runtime.run(RunOnHost(partial(finder.push, chunk.samples)))
        spans: list[tuple[int, int]] = []
        for speech in finder.finish():
            first, last = (round(one / self.network.frame_s) for one in (speech.start_s, speech.end_s))
            if spans and first - spans[-1][1] < self.network.margin_s / self.network.frame_s:
                spans[-1] = spans[-1][0], last
            else:
                spans.append((first, last))
        return spans
