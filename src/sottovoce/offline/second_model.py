"""Transcription with two models: the second one replaces the segments of which the first is uncertain.

Each stretch between certain segments is transcribed as a recording of its own, so the models need not
share tokens, windows or languages. `options.fallback` decides which segments are uncertain.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechModel
from sottovoce.offline.pipeline import transcribe_recording
from sottovoce.offline.regroup import segment_moved
from sottovoce.offline.resume import DraftState, ResumePoint
from sottovoce.offline.transcriber import SecondModel, Segments, Transcriber, TranscriptionState, numbered
from sottovoce.runtime.calls import ObservedRuntime
from sottovoce.types import Segment

LEAST_S = 0.1
"""Shorter stretches hold no word."""
LONGEST_S = 60.0
"""Uncertain text of this length is transcribed without waiting for a certain segment."""


def transcribe_with_both(
    first: Transcriber,
    second: SecondModel,
    recording: Recording,
    state: TranscriptionState,
    speech_model: SpeechModel | None = None,
    resume: ResumePoint | None = None,
) -> Segments:
    """Yield the segments of a first model, with uncertain ones replaced by a second model's.

    state: of both, updated here.
    """
    own = TranscriptionState(language=state.language)
    draft = _Draft(second, first, recording, own, state, speech_model)
    if resume is not None:
        draft.restore(resume)
    if second.deferral.min_word_prob > 0.0:
        first = replace(first, options=replace(first.options, word_timestamps=True))
    first = replace(first, runtime=ObservedRuntime(first.runtime, after=draft.note))
    with closing(transcribe_recording(first, recording, own, speech_model, resume)) as segments:
        for segment in segments:
            draft.note()
            yield from numbered(draft.take(segment), state)
        draft.note()
        yield from numbered(draft.read(own.duration or own.position), state)
        draft.note()
        state.unread = tuple(sorted([*state.unread, *own.unread]))


class _Draft:
    def __init__(
        self,
        second: SecondModel,
        first: Transcriber,
        recording: Recording,
        own: TranscriptionState,
        state: TranscriptionState,
        speech_model: SpeechModel | None,
    ) -> None:
        self._second, self._first, self._speech_model = second, first, speech_model
        self._recording = recording.to_read_beside()
        self._own, self._state = own, state
        self._until_s = 0.0
        self._held: list[Segment] = []
        self._drafted: ResumePoint | None = None

    def restore(self, point: ResumePoint) -> None:
        draft = point.draft
        assert draft is not None, "that there was a second model was checked"
        self._own.restore(replace(point, progress=draft.progress))
        self._drafted = self._own.resume_point
        self._until_s, self._held = draft.until_s, [*draft.held]

    def note(self) -> None:
        own, state = self._own, self._state
        state.detection, state.duration = own.detection, own.duration
        state.language, state.outside_languages = own.language, own.outside_languages
        state.position = min(own.position, self._until_s) if self._held else own.position
        point = own.resume_point
        if point is not None and point is not self._drafted:
            self._drafted = point
            draft = DraftState(point.progress, self._until_s, tuple(self._held))
            state.resume_point = replace(point, progress=state.snapshot(), draft=draft)

    def take(self, segment: Segment) -> list[Segment]:
        is_in_doubt = self._second.deferral.defers(segment)
        if not self._first.options.needs_words:
            segment = replace(segment, words=None)
        if is_in_doubt:
            self._held.append(segment)
            long = segment.end - self._until_s >= LONGEST_S
            return self.read(segment.end) if long else []
        found = self.read(segment.start)
        self._until_s = max(self._until_s, segment.end)
        return [*found, segment]

    def read(self, end_s: float) -> list[Segment]:
        start_s, held = self._until_s, self._held
        gaps = [gap for gap in self._own.unread if gap[0] < end_s and gap[1] > start_s]
        self._own.unread = tuple(gap for gap in self._own.unread if gap not in gaps)
        self._held, self._until_s = [], max(start_s, end_s)
        if not (held or gaps) or end_s - start_s < LEAST_S:
            return held
        self._state.second_s += end_s - start_s
        language = held[0].language if held else self._own.language
        return self._read_by_second(start_s, end_s, language)

    def _read_by_second(self, start_s: float, end_s: float, language: str | None) -> list[Segment]:
        own = TranscriptionState(language=language)
        part = self._recording.part(start_s, end_s - start_s)
        with closing(transcribe_recording(self._reader(language), part, own, self._speech_model)) as segments:
            found = list(segments)
        self._state.unread += tuple((start_s + start, start_s + end) for start, end in own.unread)
        return [self._in_first_tokens(segment_moved(one, start_s)) for one in found]

    def _reader(self, language: str | None) -> Transcriber:
        options = self._first.options
        decoding = replace(options.decoding, prefix=None)
        if language is not None:
            decoding = replace(decoding, language=language, allowed_languages=())
            options = replace(options, follow_languages=None)
        options = replace(options, decoding=decoding)
        return Transcriber(self._second.runtime, self._second.tokenizer, options, self._second.fusion)

    def _in_first_tokens(self, segment: Segment) -> Segment:
        tokenizer = self._first.tokenizer_of(segment.language)
        if tokenizer.timestamp_begin == self._second.tokenizer.timestamp_begin:
            return segment
        words = segment.words and tuple(replace(word, tokens=()) for word in segment.words)
        return replace(segment, tokens=tuple(tokenizer.encode(segment.text)), words=words)
