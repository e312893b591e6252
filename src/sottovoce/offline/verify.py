"""Verify the text of a window: drop hallucinations, decode skipped speech and wrong languages again.

- Improbable words of implausible duration between silences, and text without a voice, are dropped.
- A window of several pieces with too little or repeated text is decoded in halves: Whisper writes a repeated
  sentence once, or in a loop.
- Text that is faster than people speak, or whose words pile up, is a loop. It is dropped, and its speech is
  decoded again in parts.
- Whisper skips sentences. Detected speech that no word covers is decoded separately, then in halves; what
  stays empty is reported: a reported gap is better than a hallucination.
- Whisper translates speech that is not in the given language. The low probability of its text reveals what
  the language probe misses. It is decoded in the detected language, and the more probable text is kept.

Source of `hallucination_silence_threshold`: openai-whisper 20250625, transcribe.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

import numpy as np

from sottovoce.audio.mel import MEL_FRAMES_PER_SECOND, RecordingFeatures
from sottovoce.audio.vad import SpeechFinder
from sottovoce.decoding.decode import DecodingResult
from sottovoce.models.backend import EncoderOutput
from sottovoce.offline.languages import LanguageFollower
from sottovoce.offline.resume import TranscriptionState
from sottovoce.offline.transcriber import Transcriber, WindowRequest
from sottovoce.offline.windows import SpeechSpan, Window, WindowCut, clipped, mel_frames, seconds_of
from sottovoce.options.decoding import FallbackOptions, VadOptions, is_silence
from sottovoce.options.transcribe import APPENDED, PREPENDED
from sottovoce.runtime.calls import Steps, together
from sottovoce.types import SAMPLE_RATE, Segment, Span, Word

logger = logging.getLogger(__name__)

IMPROBABLE = 0.15
SHORTEST_WORD_S, LONGEST_WORD_S = 0.133, 2.0
_N_WORDS = 8
"""Words at the beginning of a segment that are scored."""
_EDGE_S = 2.0
"""This close to the end of a window counts as silence."""


def anomaly_score(word: Word) -> float:
    """Return 0 for an ordinary word; more for improbable, very short or very long ones."""
    duration = word.end - word.start
    score = 1.0 if word.probability < IMPROBABLE else 0.0
    if duration < SHORTEST_WORD_S:
        score += (SHORTEST_WORD_S - duration) * 15
    if duration > LONGEST_WORD_S:
        score += duration - LONGEST_WORD_S
    return score


def is_anomaly(words: Sequence[Word]) -> bool:
    if not words:
        return False
    spoken = [word for word in words if word.word not in PREPENDED + APPENDED][:_N_WORDS]
    score = sum(map(anomaly_score, spoken))
    return score >= 3 or score + 0.01 >= len(spoken)


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """Audio of a window in seconds of the recording, and the end of speech before it.

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

    If the first one follows a long silence, the window begins again after it.

    end_by: returns the frame (10 ms) at which the recording ends, if it does by a time (s).
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
"""Least detector probability of a voice, however faint: in speech it exceeds 0.9 somewhere in a segment."""
SURE_VOICE_VAD = VadOptions(threshold=0.9, min_silence_ms=100.0, speech_pad_ms=0.0)
"""Improbable text needs a clear voice. Of 43 such segments of development speech (clean, soft, telephone,
noise at 10 and 0 dB) all but one reach 0.99 somewhere.
"""
LETTERS_A_SECOND = {"de": 36.0, "en": 36.6, "es": 33.8, "hi": 17.8, "pl": 35.8}
"""Most letters a second of voice. Source: `python -m benchmarks files speech_rate`."""
MOST_LETTERS_A_SECOND = max(LETTERS_A_SECOND.values())
"""Of other languages."""
MARGIN_S = 0.3
"""Tolerance of the times of segments and words."""


def n_letters(text: str) -> int:
    return sum(map(str.isalnum, text))


class SpeechPresence:
    def __init__(self, speech: SpeechFinder) -> None:
        self._voices, self._sure = speech.beside(VOICE_VAD), speech.beside(SURE_VOICE_VAD)

    def has_speech(self, segment: Segment, *, is_guess: bool = False) -> bool:
        """Return whether there is a voice in a segment; is_guess: a clear one, as the text is improbable."""
        return _seconds_in(self._sure if is_guess else self._voices, segment) > 0.0

    def exceeds_speech_rate(self, segment: Segment, *, tolerance_s: float = 0.0) -> bool:
        """Return whether a segment is faster than people speak, or a run of its words is.

        tolerance_s: seconds of voice that detection may have missed.
        """
        most = LETTERS_A_SECOND.get(segment.language, MOST_LETTERS_A_SECOND)
        excess = n_letters(segment.text) - most * _seconds_in(self._voices, segment)
        is_fast = max(excess, _excess_of_run(segment.words or (), most)) > most * tolerance_s
        if is_fast:
            logger.info("%.1f s: '%s' is too fast and left out", segment.start, segment.text.strip())
        return is_fast


def _excess_of_run(words: Sequence[Word], most: float) -> float:
    """Return by how many letters the fastest run of words exceeds `most` letters a second."""
    excess = highest = 0.0
    end = words[0].start if words else 0.0
    for word in words:
        excess = max(0.0, excess - most * max(0.0, word.start - end))
        excess += n_letters(word.word) - most * (word.end - word.start)
        highest, end = max(highest, excess), max(end, word.end)
    return highest


def _seconds_in(voices: SpeechFinder, segment: Segment) -> float:
    start = max(0, round((segment.start - MARGIN_S) * SAMPLE_RATE))
    speech = voices.segments(start, round((segment.end + MARGIN_S) * SAMPLE_RATE))
    return sum(stretch.end_sample - stretch.start_sample for stretch in speech) / SAMPLE_RATE


LONG_S, FEWEST_TOKENS_S = 6.0, 1.0
"""Speech of at least LONG_S has more tokens a second (people say three to five)."""
DOUBTFUL_LONG_S, DOUBTFUL_TOKENS_S = 2.0, 3.0


def may_be_halved(window: Window) -> bool:
    return len(window.pieces) > 1 and window.n_frames >= LONG_S * MEL_FRAMES_PER_SECOND


def split_retry(
    window: Window, result: DecodingResult, cut: WindowCut, fallback: FallbackOptions, eot: int
) -> tuple[Window, ...]:
    """Return the halves to decode instead of a window; none if its text is kept.

    cut: its segments, in window time.
    """
    if len(window.pieces) == 1:
        return ()
    if may_be_halved(window) and fallback.repeats(result):
        return window.halves(may_be_silent=fallback.is_silence(result))
    return window.halves() if _leaves_out(window, cut, eot) else ()


def _leaves_out(window: Window, cut: WindowCut, eot: int) -> bool:
    if not window.is_suspicious:
        return any(is_too_little(segment, eot, LONG_S, FEWEST_TOKENS_S) for segment in cut.segments)
    rest_s = seconds_of(window.n_frames) - (cut.segments[-1].end if cut.segments else math.inf)
    doubtful = (is_too_little(segment, eot, DOUBTFUL_LONG_S, DOUBTFUL_TOKENS_S) for segment in cut.segments)
    return rest_s >= DOUBTFUL_LONG_S or any(doubtful)


def is_too_little(segment: Segment, eot: int, long_s: float, fewest_s: float) -> bool:
    """Return whether a segment of at least long_s has some tokens, but fewer than fewest_s a second."""
    length_s = segment.end - segment.start
    n_tokens = sum(token < eot for token in segment.tokens)
    return length_s >= long_s and 0 < n_tokens < fewest_s * length_s


LEAST_VERIFIED_S = 0.8
"""Seconds of speech in a segment for language verification."""


@dataclass(frozen=True, slots=True)
class LanguageHypothesis:
    """The hypothesis that consecutive segments of a window are in another language than their text.

    mean: log-probability of the text, a token. log_likelihood_ratio: for `language` (nats).
    """

    segments: tuple[Segment, ...]
    speech: SpeechSpan
    mean: float
    language: str
    log_likelihood_ratio: float

    def is_accepted_by(self, mean: float, least: float) -> bool:
        return mean >= self.mean and self.log_likelihood_ratio >= least


def joined(hypotheses: Sequence[LanguageHypothesis], segments: Sequence[Segment]) -> list[LanguageHypothesis]:
    runs: list[LanguageHypothesis] = []
    for this in hypotheses:
        at, before = segments.index(this.segments[0]), runs[-1] if runs else None
        if before and before.language == this.language and at and segments[at - 1] is before.segments[-1]:
            weights = [before.speech.n_frames, this.speech.n_frames]
            mean = float(np.average([before.mean, this.mean], weights=weights))
            speech, nats = (
                SpeechSpan(before.speech.start, this.speech.end),
                before.log_likelihood_ratio + this.log_likelihood_ratio,
            )
            this = LanguageHypothesis((*before.segments, *this.segments), speech, mean, this.language, nats)
            runs.pop()
        runs.append(this)
    return runs


def speech_in(segment: Segment, speech: Sequence[SpeechSpan]) -> SpeechSpan | None:
    inside = clipped(speech, mel_frames(segment.start), mel_frames(segment.end))
    is_long = sum(piece.n_frames for piece in inside) >= LEAST_VERIFIED_S * MEL_FRAMES_PER_SECOND
    return SpeechSpan(inside[0].start, inside[-1].end) if is_long else None


def segment_means(result: DecodingResult, segments: Sequence[Segment], eot: int) -> list[float | None]:
    tokens, logprobs = result.tokens, result.token_logprobs
    means: list[float | None] = []
    at = 0
    for segment in segments:
        n = len(segment.tokens)
        while at + n <= len(tokens) and tokens[at : at + n] != segment.tokens:
            at += 1
        of_segment = [logprobs[i] for i in range(at, min(at + n, len(tokens))) if tokens[i] < eot]
        means.append(float(np.mean(of_segment)) if of_segment else None)
        at += n
    return means


def text_mean(result: DecodingResult, eot: int) -> float:
    pairs = zip(result.tokens, result.token_logprobs, strict=True)
    return float(np.mean([logprob for token, logprob in pairs if token < eot]))


LEAST_S = 1.0
"""Seconds of uncovered speech that are decoded again."""
NEIGHBOUR_S = 0.5
"""Speech across a pause this short is one stretch."""
COVERED_S, SECONDS_A_LETTER = 0.8, 0.1
"""The most speech that a word covers: the last word before skipped speech is stretched over it."""
SPARSE_S, SPARSE_TOKENS_S = 3.0, 1.5
"""Words are aligned if a segment with SPARSE_S of speech has fewer tokens a second."""
DEEPEST = 2
"""How often a stretch is halved."""
ALIKE = 0.6
"""Share of words in common with neighbouring text at which a text counts as its repetition."""
REPEATED_TOKENS_S = 2.5
"""With fewer tokens a second over both texts, people did say the words twice."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedWindow:
    """A decoded window.

    encoded: a batch of 1. cut: its text, in seconds from its origin. is_silent: the text was rejected as
    silence.
    """

    window: Window
    encoded: EncoderOutput
    cut: WindowCut
    result: DecodingResult
    last_temperature: float = 0.0
    is_silent: bool = False

    @property
    def segments(self) -> list[Segment]:
        return [self.window.in_recording(segment) for segment in self.cut.segments]


@dataclass(slots=True, eq=False)
class VerifiedWindow:
    """A decoded window while it is verified.

    speech: pieces of it. is_loop: its text was a loop, so that parts of it may repeat. recovered: segments of
    skipped speech. skipped: speech that stays without text (s).
    """

    decoded: DecodedWindow
    speech: Sequence[SpeechSpan]
    is_loop: bool = False
    segments: list[Segment] = field(default_factory=list)
    recovered: list[Segment] = field(default_factory=list)
    skipped: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class SkippedSpeechRecovery:
    transcriber: Transcriber
    features: RecordingFeatures
    voices: SpeechPresence
    follower: LanguageFollower | None
    progress: TranscriptionState

    def recovered(self, windows: Sequence[VerifiedWindow]) -> Steps[list[list[Segment]]]:
        """Decode the skipped speech of windows, and that of loops and of other languages.

        Return all segments of each in order.
        """
        yield from together([self._recover(window) for window in windows])
        if self.follower is not None:
            yield from self._correct_languages(windows, self.follower)
        for start_s, end_s in (span for window in windows for span in window.skipped):
            self._note_skipped(start_s, end_s)
        return [
            sorted([*window.segments, *window.recovered], key=lambda segment: segment.start)
            for window in windows
        ]

    def _recover(self, window: VerifiedWindow) -> Steps[None]:
        segments = window.segments = window.decoded.segments
        is_loop = any(map(self._is_loop, segments))
        if not is_loop and is_covered(segments, window.speech, self.transcriber.tokenizer.eot):
            return
        timed = yield from self._timed(window.decoded)
        loops = [segment for segment in timed if self._is_loop(segment)]
        pairs = [pair for pair in zip(segments, timed, strict=True) if pair[1] not in loops]
        words = _words_in([spoken for _, spoken in pairs])
        stretches = uncovered(window.speech, map(covered_by_word, words))
        window.is_loop, language = bool(loops), window.decoded.result.language
        for stretch in stretches:
            neighbours = [segment for segment, _ in pairs]
            window.recovered += yield from self._decode_again(window, stretch, language, neighbours)
        for segment in loops:
            if not any(overlaps(segment, stretch) for stretch in stretches):
                window.skipped.append((segment.start, segment.end))
        window.segments = [
            trimmed(segment, spoken.words or (), window.recovered) for segment, spoken in pairs
        ]

    def _correct_languages(
        self, windows: Sequence[VerifiedWindow], follower: LanguageFollower
    ) -> Steps[None]:
        hypotheses: list[tuple[VerifiedWindow, LanguageHypothesis]] = []
        for window in windows:
            of_window = yield from self._hypotheses(window, follower)
            hypotheses += [(window, each) for each in joined(of_window, window.segments)]
        again = yield from together(
            [self._decode_alone(each.speech, each.language) for _, each in hypotheses]
        )
        for (window, each), decoded in zip(hypotheses, again, strict=True):
            if decoded is None:
                continue
            mean = text_mean(decoded.result, self.transcriber.tokenizer.eot)
            if each.is_accepted_by(mean, follower.least_nats):
                follower.expect_several()
                at = window.segments.index(each.segments[0])
                window.segments[at : at + len(each.segments)] = decoded.cut.segments

    def _hypotheses(
        self, window: VerifiedWindow, follower: LanguageFollower
    ) -> Steps[list[LanguageHypothesis]]:
        result, hypotheses = window.decoded.result, list[LanguageHypothesis]()
        means = segment_means(result, window.segments, self.transcriber.tokenizer.eot)
        for segment, mean in zip(window.segments, means, strict=True):
            speech = speech_in(segment, window.speech)
            if mean is None or speech is None or not follower.is_low_confidence(mean):
                continue
            other = yield from follower.other_language(speech, window.speech, result.language, mean)
            if other is not None:
                hypotheses.append(LanguageHypothesis((segment,), speech, mean, *other))
        return hypotheses

    def _is_loop(self, segment: Segment) -> bool:
        return self.voices.exceeds_speech_rate(segment, tolerance_s=2 * MARGIN_S)

    def _timed(self, decoded: DecodedWindow) -> Steps[list[Segment]]:
        is_timed = any(segment.words for segment in decoded.cut.segments)
        if not is_timed and decoded.cut.text_tokens(self.transcriber.tokenizer.eot):
            decoded = yield from self._with_words(decoded)
        return decoded.segments

    def _decode_again(
        self,
        window: VerifiedWindow,
        stretch: Sequence[SpeechSpan],
        language: str,
        neighbours: Sequence[Segment],
        depth: int = 0,
    ) -> Steps[list[Segment]]:
        is_loop, segments = window.is_loop, list[Segment]()
        if is_loop and not depth and (halves := in_halves(stretch, evenly=True)):
            for half in halves:
                segments += yield from self._decode_again(window, half, language, neighbours, 1)
            return segments
        whole = SpeechSpan(stretch[0].start, stretch[-1].end)
        if self.follower is not None:
            language = yield from self.follower.language_of(whole, language, window.speech)
        decoded = yield from self._decode_alone(whole, language, is_loop=is_loop)
        rest, timed = [list(stretch)], list[Segment]()
        if decoded is not None:
            segments += decoded.cut.segments
            if not is_loop and repeats_neighbour(segments, neighbours, self.transcriber.tokenizer.eot):
                return []  # its words exist already, at other times
            timed = yield from self._timed(decoded)
            rest = uncovered(stretch, map(covered_by_word, _words_in(timed)))
        inner = list[Segment]()
        for left in rest:
            halves = in_halves(left, evenly=is_loop) if depth < DEEPEST else ()
            for half in halves:
                around = [*neighbours, *segments, *inner]
                inner += yield from self._decode_again(window, half, language, around, depth + 1)
            if not halves:
                window.skipped.append((seconds_of(left[0].start), seconds_of(left[-1].end)))
        pairs = zip(segments, timed, strict=True)
        return [trimmed(segment, spoken.words or (), inner) for segment, spoken in pairs] + inner

    def _note_skipped(self, start_s: float, end_s: float) -> None:
        skipped = self.progress.skipped
        if skipped and skipped[-1][0] < start_s <= skipped[-1][1] + NEIGHBOUR_S:
            start_s, skipped = skipped[-1][0], skipped[:-1]
        self.progress.skipped = (*skipped, (start_s, end_s))

    def _decode_alone(
        self, piece: SpeechSpan, language: str, *, is_loop: bool = False
    ) -> Steps[DecodedWindow | None]:
        """Decode a piece at the first temperature, as sampling hallucinates; loops at all, until one ends."""
        transcriber, fallback = self.transcriber, self.transcriber.options.fallback
        start = piece.start
        window = Window.of(start, self.features.end_before(piece.end))
        (encoded,) = yield from transcriber.encode(self.features, [window], is_part=True)
        for temperature in fallback.temperatures[: None if is_loop else 1]:
            request = WindowRequest(language, (), start, encoded.n_frames)
            (attempt,) = yield from transcriber.decode(encoded, [request], (temperature,))
            result = attempt.result
            if not _is_trusted(fallback, result, may_repeat=is_loop):
                continue
            cut = transcriber.cut(attempt, start, window.n_frames, keep_open=True)
            decoded = DecodedWindow(window, encoded, cut, result)
            if transcriber.options.needs_words:
                decoded = yield from self._with_words(decoded)
            segments = tuple(transcriber.segments(decoded.cut, result))
            if segments and not any(map(self._is_loop, segments)):
                return replace(decoded, cut=replace(decoded.cut, segments=segments))
        return None

    def _with_words(self, decoded: DecodedWindow) -> Steps[DecodedWindow]:
        window = decoded.window
        text, start_s = (decoded.cut, decoded.result, window.n_frames), window.origin_s
        (placed,) = yield from self.transcriber.with_words(decoded.encoded, [text], window_start=start_s)
        return replace(decoded, cut=placed)


def _words_in(segments: Sequence[Segment]) -> list[Word]:
    return [word for segment in segments for word in segment.words or ()]


def is_covered(segments: Sequence[Segment], pieces: Sequence[SpeechSpan], eot: int) -> bool:
    """Return whether segments cover all speech by their own times, with enough text."""
    spans = [(mel_frames(segment.start), mel_frames(segment.end)) for segment in segments]
    if uncovered(pieces, spans):
        return False
    for segment, (start, end) in zip(segments, spans, strict=True):
        inside = clipped(pieces, start, end)
        if segment.words:
            if uncovered(inside, map(covered_by_word, segment.words)):
                return False
            continue
        n_tokens = sum(token < eot for token in segment.tokens)
        spoken_s = sum(piece.n_frames for piece in inside) / MEL_FRAMES_PER_SECOND
        if spoken_s >= SPARSE_S and n_tokens < SPARSE_TOKENS_S * spoken_s:
            return False
    return True


def uncovered(pieces: Iterable[SpeechSpan], covered: Iterable[tuple[int, int]]) -> list[list[SpeechSpan]]:
    """Return stretches of at least LEAST_S of speech outside the frames covered, each a list of pieces."""
    spans = sorted(covered)
    free: list[SpeechSpan] = []
    for piece in pieces:
        at = piece.start
        for start, end in spans:
            if at < start < piece.end:
                free.append(SpeechSpan(at, start))
            if start < piece.end:
                at = max(at, end)
        if at < piece.end:
            free.append(SpeechSpan(at, piece.end))
    groups: list[list[SpeechSpan]] = []
    for span in free:
        if groups and span.start - groups[-1][-1].end <= NEIGHBOUR_S * MEL_FRAMES_PER_SECOND:
            groups[-1].append(span)
        else:
            groups.append([span])
    least = LEAST_S * MEL_FRAMES_PER_SECOND
    return [group for group in groups if sum(span.n_frames for span in group) >= least]


def overlaps(segment: Segment, stretch: Sequence[SpeechSpan]) -> bool:
    return mel_frames(segment.start) < stretch[-1].end and stretch[0].start < mel_frames(segment.end)


def covered_by_word(word: Word) -> tuple[int, int]:
    longest_s = COVERED_S + SECONDS_A_LETTER * len(word.word.strip())
    end_s = min(word.end, word.start + longest_s)
    return mel_frames(word.start - MARGIN_S), mel_frames(end_s + MARGIN_S)


def trimmed(segment: Segment, words: Sequence[Word], others: Sequence[Segment]) -> Segment:
    """Trim a segment to its words where other segments were found before or after them."""
    if not words:
        return segment
    first, last = words[0].start, words[-1].end
    if any(segment.start <= other.start < first for other in others):
        segment = replace(segment, start=min(first, segment.end))
    if any(last <= other.start < segment.end for other in others):
        segment = replace(segment, end=max(last, segment.start))
    return segment


def in_halves(stretch: Sequence[SpeechSpan], *, evenly: bool = False) -> tuple[list[SpeechSpan], ...]:
    """Split a stretch at its longest pause, or in its middle; empty if it is too short.

    evenly: at the pause that is nearest to the middle.
    """
    length = stretch[-1].end - stretch[0].start
    if length < 2 * LEAST_S * MEL_FRAMES_PER_SECOND:
        return ()
    if len(stretch) == 1:
        middle = stretch[0].start + length // 2
        return [SpeechSpan(stretch[0].start, middle)], [SpeechSpan(middle, stretch[0].end)]
    twice_middle = stretch[0].start + stretch[-1].end
    at = max(
        range(1, len(stretch)),
        key=lambda index: (
            -abs(2 * stretch[index].start - twice_middle)
            if evenly
            else stretch[index].start - stretch[index - 1].end
        ),
    )
    return list(stretch[:at]), list(stretch[at:])


def repeats_neighbour(segments: Sequence[Segment], neighbours: Sequence[Segment], eot: int) -> bool:
    """Return whether a second text repeats its neighbour, which was only timed wrongly."""
    before = [neighbour for neighbour in neighbours if neighbour.start <= segments[0].start]
    after = [neighbour for neighbour in neighbours if neighbour.start > segments[0].start]
    words = _words_of(segments)
    for other in (*before[-1:], *after[:1]):
        blocks = SequenceMatcher(None, words, _words_of([other]), autojunk=False).get_matching_blocks()
        share = sum(block.size for block in blocks) / max(1, len(words))
        length_s = max(other.end, segments[-1].end) - min(other.start, segments[0].start)
        n_tokens = sum(token < eot for token in other.tokens)
        if share >= ALIKE and n_tokens >= REPEATED_TOKENS_S * length_s:
            return True
    return False


def _words_of(segments: Sequence[Segment]) -> list[str]:
    text = " ".join(segment.text for segment in segments).casefold()
    return "".join(sign if sign.isalnum() else " " for sign in text).split()


def _is_trusted(fallback: FallbackOptions, result: DecodingResult, *, may_repeat: bool) -> bool:
    is_silent = is_silence(result.no_speech_prob, fallback.no_speech_threshold)
    has_words = any(sign.isalnum() for sign in result.text)
    is_repeated = fallback.repeats(result) and not may_repeat
    return has_words and not (is_silent or fallback.is_guess(result) or is_repeated)
