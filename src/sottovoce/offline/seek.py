"""Transcription of consecutive windows, each beginning at the last timestamp of the one before.

Improbable words of implausible duration between silences, and text without a voice, are dropped as
hallucinations.

Source of the seek rules and of `hallucination_silence_threshold`: openai-whisper 20250625, transcribe.py
(also in faster-whisper 1.2.1). A rest of less than 100 ms is not transcribed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechFinder, SpeechModel
from sottovoce.decoding.decode import DecodingResult
from sottovoce.errors import AudioError
from sottovoce.offline.languages import LOOK_AHEAD_FRAMES, WindowLocator
from sottovoce.offline.pieces import PIECE_VAD
from sottovoce.offline.resume import ResumePoint, SeekPlace
from sottovoce.offline.segments import MEL_FRAMES_PER_SECOND, WindowCut, cut_window, mel_frames
from sottovoce.offline.transcriber import (
    Context,
    Request,
    Segments,
    Transcriber,
    TranscriptionState,
    numbered,
)
from sottovoce.offline.unread import DecodedWindow, UncoveredSpeechReader
from sottovoce.options.transcribe import APPENDED, PREPENDED, TranscribeOptions
from sottovoce.options.vad import VadOptions
from sottovoce.types import SAMPLE_RATE, EncoderOutput, Segment, Word

logger = logging.getLogger(__name__)

IMPROBABLE = 0.15
SHORTEST_S, LONGEST_S = 0.133, 2.0
_N_WORDS = 8
"""Words at the beginning of a segment that are scored."""
_EDGE_S = 2.0
"""Distance in seconds to the end of a window that counts as silence."""


def anomaly_score(word: Word) -> float:
    """Return 0 for an ordinary word; more for improbable, very short or very long ones."""
    duration = word.end - word.start
    score = 1.0 if word.probability < IMPROBABLE else 0.0
    if duration < SHORTEST_S:
        score += (SHORTEST_S - duration) * 15
    if duration > LONGEST_S:
        score += duration - LONGEST_S
    return score


def is_anomaly(words: Sequence[Word]) -> bool:
    """Return whether a segment of these words is probably a hallucination; False without words."""
    if not words:
        return False
    spoken = [word for word in words if word.word not in PREPENDED + APPENDED][:_N_WORDS]
    score = sum(map(anomaly_score, spoken))
    return score >= 3 or score + 0.01 >= len(spoken)


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """A window in seconds of the recording: its audio [start, end), and the end of speech before it.

    full_end: start plus the model's 30 s.
    """

    start: float
    end: float
    full_end: float
    last_speech: float


def skip_hallucinations(
    cut: WindowCut, span: WindowSpan, threshold: float, *, end_by: Callable[[float], int | None]
) -> WindowCut:
    """Drop improbable segments with more than `threshold` seconds of silence around them.

    If the first one follows a long silence, nothing is kept and the window begins again after it.

    cut: with words. end_by: returns the frame (10 ms) at which the recording ends, if it does by a time in
    seconds.
    """
    spoken = [segment for segment in cut.segments if segment.words]
    if spoken and is_anomaly(spoken[0].words or ()):
        gap = spoken[0].start - span.start
        if gap > threshold:
            start = round(span.start * MEL_FRAMES_PER_SECOND)
            return WindowCut((), start + round(gap * MEL_FRAMES_PER_SECOND), restarts=True)
    last_end = span.last_speech
    for index, segment in enumerate(cut.segments):
        if not segment.words:
            continue
        following = next((later for later in cut.segments[index + 1 :] if later.words), None)
        if is_anomaly(segment.words) and _is_isolated(segment, following, last_end, span, threshold):
            seek = round(max(span.start + 1, segment.start) * MEL_FRAMES_PER_SECOND)
            last_frame = end_by(segment.end + threshold)  # only silence is left
            return WindowCut(cut.segments[:index], seek if last_frame is None else last_frame)
        last_end = segment.end
    return cut


def _is_isolated(
    segment: Segment, following: Segment | None, last_end: float, span: WindowSpan, threshold: float
) -> bool:
    silence_before = (
        segment.start - last_end > threshold
        or segment.start < threshold
        or segment.start - span.start < _EDGE_S
    )
    next_start = following.words[0].start if following and following.words else span.end
    silence_after = (
        next_start - segment.end > threshold
        or (following is not None and is_anomaly(following.words or ()))
        or span.full_end - segment.end < _EDGE_S
    )
    return silence_before and silence_after


VOICE_VAD = VadOptions(threshold=0.3, min_silence_ms=100.0, speech_pad_ms=0.0)
"""A voice, however faint: people's speech has a detector probability of 0.9 somewhere in a segment."""
SURE_VOICE_VAD = VadOptions(threshold=0.9, min_silence_ms=100.0, speech_pad_ms=0.0)
"""Improbable text needs a clear voice. Of 43 such segments of development speech (clean, soft, telephone,
noise at 10 and 0 dB) all but one, in noise as loud as the speech, reach 0.99 somewhere.
"""
MOST_SIGNS_S = 30.0
MARGIN_S = 0.3
"""Uncertainty of the times of a segment."""


class VoiceFinder:
    def __init__(self, speech: SpeechFinder) -> None:
        self._voices, self._sure = speech.beside(VOICE_VAD), speech.beside(SURE_VOICE_VAD)

    def is_in(self, segment: Segment, *, is_guess: bool = False) -> bool:
        """Return whether there is a voice in a segment, and log segments without.

        is_guess: the text is improbable, so the voice must be clear.
        """
        is_spoken = _seconds_in(self._sure if is_guess else self._voices, segment) > 0.0
        if not is_spoken:
            span = f"{segment.start:.1f} to {segment.end:.1f} s"
            logger.info("nobody speaks from %s: '%s' is left out", span, segment.text.strip())
        return is_spoken

    def is_too_short_for(self, segment: Segment) -> bool:
        n_signs = sum(sign.isalnum() for sign in segment.text)
        is_short = n_signs > MOST_SIGNS_S * _seconds_in(self._voices, segment)
        if is_short:
            logger.info("%.1f s: '%s' once more is left out", segment.start, segment.text.strip())
        return is_short


def _seconds_in(voices: SpeechFinder, segment: Segment) -> float:
    start = max(0, round((segment.start - MARGIN_S) * SAMPLE_RATE))
    found = voices.segments(start, round((segment.end + MARGIN_S) * SAMPLE_RATE))
    return sum(one.end_sample - one.start_sample for one in found) / SAMPLE_RATE


SHORTEST_FRAMES = 10
"""A shorter rest of a clip holds no word, and would cost a window."""
SHORTEST_PROMPTED_FRAMES = 200
"""In multilingual recordings, a shorter window is decoded without a prompt."""
DIVIDED_FRAMES = 10
"""Log-mel frames kept before skipped speech that the end of a window divides."""
CUT_WORD_S = 1.0
"""The last word may continue in the next window if it ends this close to the end."""


def transcribe_seeking(
    transcriber: Transcriber,
    recording: Recording,
    state: TranscriptionState,
    speech_model: SpeechModel | None = None,
    *,
    resume: ResumePoint | None = None,
) -> Segments:
    """Transcribe the clips of a recording, window by window, from `resume` on if given."""
    speech = SpeechFinder(PIECE_VAD, model=speech_model)
    voices = VoiceFinder(speech)
    observer = speech if transcriber.options.read_again or transcriber.may_follow else None
    with transcriber.features(recording, observer) as features:
        state.duration = features.declared_duration_s
        loop = _SeekLoop(transcriber, features, speech, voices, state)
        if not loop.begin():
            raise past_the_end(recording, transcriber.options, features.duration_s)
        yield from loop.run(None if resume is None else loop.restore(resume))
        state.duration = features.duration_s or state.duration


class _Window(NamedTuple):
    seek: int
    n_frames: int
    encoded: EncoderOutput

    @property
    def end(self) -> int:
        return self.seek + self.n_frames

    @property
    def start_s(self) -> float:
        return self.seek / MEL_FRAMES_PER_SECOND


class _SeekLoop:
    def __init__(
        self,
        transcriber: Transcriber,
        features: RecordingFeatures,
        speech: SpeechFinder,
        voices: VoiceFinder,
        state: TranscriptionState,
    ) -> None:
        self._voices = voices
        self._transcriber = transcriber
        self._options = transcriber.options
        self._features = features
        self._state = state
        self._context = Context(
            transcriber.tokenizer, transcriber.options, transcriber.backend.dims.n_text_ctx
        )
        self._locator = WindowLocator(transcriber, features, speech, state)
        self._again = UncoveredSpeechReader(transcriber, features, self._locator.follower, state)
        self._last_speech = 0.0
        self._skipped = 0
        self._is_first = True

    def begin(self) -> bool:
        """Read up to the first clip; return whether the recording reaches it."""
        start = mel_frames(self._options.clips[0][0])
        self._skip_to(start)
        return start == 0 or self._features.has(start)

    def restore(self, point: ResumePoint) -> SeekPlace:
        place = point.place
        assert isinstance(place, SeekPlace), "the mode was checked"
        self._context.restore(point.context)
        self._is_first = point.is_first
        self._last_speech = place.last_speech
        self._features.skip_to(place.seek, n_frames_read=place.n_frames_read)
        self._locator.restore(point.follower, place.runs)
        return place

    def run(self, place: SeekPlace | None = None) -> Segments:
        clips = [
            (mel_frames(start), None if end is None else mel_frames(end))
            for start, end in self._options.clips
        ]
        if place is None and self._state.language is None and not self._locator.expects_several:
            self._locator.find_language(*clips[0])
        for clip, (start, end) in enumerate(clips):
            if place is not None and clip < place.clip:
                continue
            self._skip_to(start)
            seek = place.seek if place is not None and clip == place.clip else start
            while self._goes_on(start, seek, end):
                self._features.drop_before(seek)
                reach = seek + self._transcriber.content_frames
                if self._features.is_blank(seek, reach if end is None else min(end, reach)):
                    seek = reach
                    self._end_window(clip, seek)
                    continue
                window = self._load(seek, end)
                after = yield from self._transcribe(window)
                if after is None:
                    continue
                seek = max(seek + 1, after)
                self._end_window(clip, seek)

    def _skip_to(self, seek: int) -> None:
        for frame in range(0, seek, self._transcriber.window_frames):
            if frame > self._skipped and self._features.has(frame):
                self._features.drop_before(frame)
                self._skipped = frame

    def _goes_on(self, start: int, seek: int, end: int | None) -> bool:
        last = seek if seek == start else seek + SHORTEST_FRAMES - 1
        return (end is None or last < end) and self._features.has(last)

    def _load(self, seek: int, end: int | None) -> _Window:
        """Return the window that begins at a frame, in one language, and set `state.language`."""
        located = self._locator.locate(seek, end)
        if self._state.language not in (None, located.language):
            self._context.reset()  # text in another language is no context
        self._state.language = located.language
        seek, end = located.seek, located.end
        if located.encoded is not None:
            return _Window(seek, end - seek, located.encoded)
        features = self._features.window(seek, end, n_frames=self._transcriber.frames_to_encode(end - seek))
        encoded = self._transcriber.runtime.encode(features)
        return _Window(seek, features.n_content_frames[0], encoded)

    def _transcribe(self, window: _Window) -> Generator[Segment, None, int | None]:
        """Decode one window, yield its segments and return the frame to go on from.

        None: its text shows that the recording is multilingual, so the window is located again.
        """
        transcriber = self._transcriber
        language = self._state.language
        assert language is not None
        counted_as_one = not self._locator.expects_several
        unread, last_speech = self._state.unread, self._last_speech
        request = Request(language, self._prompt(window), window.seek, self._is_first)
        (attempt,) = transcriber.decode(window.encoded, [request])
        result = attempt.result
        if self._options.fallback.is_silence(result):
            seek = self._before_divided(window, window.end, window.seek)
            silence = WindowCut((), self._locator.hand_over(seek, window.seek))
            yield from numbered((self._completed(window, silence, result)), self._state)
            return silence.seek
        tokenizer = transcriber.tokenizer_of(result.language)
        cut = cut_window(result.tokens, tokenizer, seek=window.seek, n_frames=window.n_frames)
        if self._options.needs_words:
            cut = self._with_words(window, cut, result)
        if cut.restarts:
            return cut.seek
        text_end = window.start_s if cut.end_of_speech is None else cut.end_of_speech
        seek = self._before_divided(window, cut.seek, mel_frames(text_end))
        cut = replace(cut, seek=self._locator.hand_over(seek, mel_frames(text_end)))
        segments = list(transcriber.segments(cut, result))
        if self._options.read_again:
            segments = self._spoken(segments)
        segments = self._completed(window, replace(cut, segments=tuple(segments)), result)
        if counted_as_one and self._locator.expects_several:
            self._state.unread, self._last_speech = unread, last_speech
            return None
        self._is_first = False
        for segment in numbered(segments, self._state):
            self._context.remember(segment.tokens)
            yield segment
        self._context.end_window(attempt.last_temperature)
        return cut.seek

    def _before_divided(self, window: _Window, seek: int, text_end: int) -> int:
        """Return where to go on, before skipped speech that the end of a full window divides.

        Half a second of it is too short to be transcribed separately.

        seek: frame from which to go on otherwise. text_end: frame where the text of the window ends.
        """
        if not self._options.read_again or window.n_frames < self._transcriber.content_frames:
            return seek
        pieces = self._locator.pieces(text_end, window.end + 1)
        if not pieces or pieces[-1].end <= window.end:
            return seek
        first = pieces[-1].start
        for before, piece in reversed(list(pairwise(pieces))):
            if before.end < piece.start:
                break
            first = before.start
        is_divided = window.seek + DIVIDED_FRAMES < first and text_end + DIVIDED_FRAMES < first < seek
        return first if is_divided else seek

    def _prompt(self, window: _Window) -> tuple[int, ...]:
        """Return the prompt; empty for a short rest before another language, which would repeat it."""
        is_rest = self._locator.expects_several and window.n_frames < SHORTEST_PROMPTED_FRAMES
        return () if is_rest else self._context.prompt()

    def _spoken(self, segments: list[Segment]) -> list[Segment]:
        if segments:
            self._features.has(mel_frames(segments[-1].end) + LOOK_AHEAD_FRAMES)
        return [
            segment
            for segment in segments
            if self._voices.is_in(segment, is_guess=self._options.fallback.is_guess(segment))
            and not (self._context.holds(segment.text) and self._voices.is_too_short_for(segment))
        ]

    def _completed(self, window: _Window, cut: WindowCut, result: DecodingResult) -> list[Segment]:
        if not self._options.read_again:
            return list(cut.segments)
        speech = self._locator.pieces(window.seek, cut.seek)
        decoded = DecodedWindow(window.encoded, cut, result, window.n_frames, speech, window.start_s)
        return self._again.completed(decoded)

    def _with_words(self, window: _Window, cut: WindowCut, result: DecodingResult) -> WindowCut:
        """Align the words of a window, drop hallucinations, and find where the next window begins."""
        (placed,) = self._transcriber.with_words(
            window.encoded,
            [(cut, result, window.n_frames)],
            window_start=window.start_s,
            last_speech=self._last_speech,
        )
        spoken_until = placed.end_of_speech
        if not cut.ends_closed and spoken_until is not None and spoken_until > window.start_s:
            placed = replace(placed, seek=self._after_speech(window, spoken_until))
        threshold = self._options.hallucination_silence_threshold
        if threshold is not None:
            placed = skip_hallucinations(placed, self._span(window), threshold, end_by=self._end_by)
        if not placed.restarts:
            self._last_speech = placed.end_of_speech or self._last_speech
        return placed

    def _after_speech(self, window: _Window, spoken_until: float) -> int:
        """Return the frame after the last word, or after the window if little of it is left.

        Text without timestamps covers the window except for a word that its end cuts.
        """
        if self._options.decoding.without_timestamps:
            is_cut = window.n_frames == self._transcriber.content_frames
            rest_s = window.end / MEL_FRAMES_PER_SECOND - spoken_until
            return mel_frames(spoken_until) if is_cut and rest_s < CUT_WORD_S else window.end
        threshold = self._options.hallucination_silence_threshold
        if threshold is not None and self._span(window).full_end - spoken_until <= threshold:
            return window.end
        return mel_frames(spoken_until)

    def _span(self, window: _Window) -> WindowSpan:
        return WindowSpan(
            start=window.start_s,
            end=window.end / MEL_FRAMES_PER_SECOND,
            full_end=(window.seek + self._transcriber.content_frames) / MEL_FRAMES_PER_SECOND,
            last_speech=self._last_speech,
        )

    def _end_by(self, time_s: float) -> int | None:
        reach = int(time_s * MEL_FRAMES_PER_SECOND)
        return None if self._features.has(reach) else self._features.n_frames

    def _end_window(self, clip: int, seek: int) -> None:
        state = self._state
        state.duration = self._features.duration_s or state.duration
        position = seek / MEL_FRAMES_PER_SECOND
        state.position = position if state.duration is None else min(position, state.duration)
        follower, n_read = self._locator.follower, self._features.n_frames_read
        state.resume_point = ResumePoint(
            state.snapshot(),
            self._context.tokens,
            self._is_first,
            None if follower is None else follower.state(seek),
            SeekPlace(clip, seek, self._last_speech, n_read, self._locator.waiting),
        )


def past_the_end(recording: Recording, options: TranscribeOptions, duration_s: float | None) -> AudioError:
    length = "less" if duration_s is None else f"a recording of {duration_s:.1f} s"
    start_s = options.clips[0][0]
    return AudioError(f"{recording.name}: expected sound at {start_s:g} s, where to begin, got {length}")
