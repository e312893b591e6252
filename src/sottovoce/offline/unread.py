"""Decode skipped speech, and text in a wrong language, a second time.

Whisper skips sentences: it ends a window with one timestamp, or writes one of two sentences. After each
window its words are compared with the detected speech. Uncovered speech is encoded and decoded separately,
then in halves; what stays empty is reported. Improbable or repeated text is rejected: a reported gap is
better than a hallucination.

Whisper also translates or respells speech that is not in the given language. The language probe (`follow`)
misses one sentence in minutes of another language; the low probability of its text reveals it. Such a
segment is encoded separately, decoded in the detected language, and the more probable text is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import numpy as np

from sottovoce.audio.features import RecordingFeatures
from sottovoce.decoding.decode import DecodingResult
from sottovoce.offline.follow import LanguageFollower
from sottovoce.offline.pieces import Piece, clipped
from sottovoce.offline.segments import (
    MEL_FRAMES_PER_SECOND,
    WindowCut,
    cut_window,
    mel_frames,
    seconds_of,
)
from sottovoce.offline.transcriber import Request, Transcriber, TranscriptionState
from sottovoce.types import EncoderOutput, Segment, Word

LEAST_MISREAD_S = 0.8
"""Seconds of speech in a segment for language verification."""
GAIN, FAR_GAIN, LEAST = 0.1, 0.3, -0.7
"""In a multilingual recording, the gain in mean log-probability that text in another language needs, and
its least value.
"""
FIRST_NATS, FIRST_LEAST = 5.0, -0.4
"""The stricter limits (with FAR_GAIN) in a monolingual recording; no development recording in one language
became multilingual with them, including languages that the model hardly knows.
"""


@dataclass(frozen=True, slots=True)
class LanguageHypothesis:
    """The hypothesis that consecutive segments of one window are in another language than their text.

    speech: frames from the first word to the last. mean: log-probability of the tokens of the text. nats:
    log-likelihood ratio for `language`.
    """

    segments: tuple[Segment, ...]
    speech: Piece
    mean: float
    language: str
    nats: float

    def is_accepted_by(self, mean: float, *, is_first: bool) -> bool:
        """Return whether text with this mean log-probability in the other language replaces the first.

        is_first: the recording counted as monolingual.
        """
        if is_first:
            return self.nats >= FIRST_NATS and mean >= max(FIRST_LEAST, self.mean + FAR_GAIN)
        return mean >= max(LEAST, self.mean + GAIN)


def joined(hypotheses: Sequence[LanguageHypothesis], segments: Sequence[Segment]) -> list[LanguageHypothesis]:
    """Join hypotheses of consecutive segments with the same language.

    hypotheses: of one segment each. segments: all of the window, in order.
    """
    found: list[LanguageHypothesis] = []
    for one in hypotheses:
        at = segments.index(one.segments[0])
        before = found[-1] if found else None
        if before and before.language == one.language and at and segments[at - 1] is before.segments[-1]:
            mean = float(
                np.average([before.mean, one.mean], weights=[before.speech.n_frames, one.speech.n_frames])
            )
            speech, nats = Piece(before.speech.start, one.speech.end), before.nats + one.nats
            one = LanguageHypothesis((*before.segments, *one.segments), speech, mean, one.language, nats)
            found.pop()
        found.append(one)
    return found


def speech_in(segment: Segment, speech: Sequence[Piece]) -> Piece | None:
    """Return the speech of a segment, from the first piece to the last; None if it is too short."""
    inside = clipped(speech, mel_frames(segment.start), mel_frames(segment.end))
    is_long = sum(one.n_frames for one in inside) >= LEAST_MISREAD_S * MEL_FRAMES_PER_SECOND
    return Piece(inside[0].start, inside[-1].end) if is_long else None


def segment_means(result: DecodingResult, segments: Sequence[Segment], eot: int) -> list[float | None]:
    """Return the mean log-probability of the text of each segment, or None.

    segments: cut from `result`, in order; some may be missing.
    """
    tokens, logprobs = result.tokens, result.token_logprobs
    means: list[float | None] = []
    at = 0
    for segment in segments:
        n = len(segment.tokens)
        while at + n <= len(tokens) and tokens[at : at + n] != segment.tokens:
            at += 1
        own = [logprobs[i] for i in range(at, min(at + n, len(tokens))) if tokens[i] < eot]
        means.append(float(np.mean(own)) if own else None)
        at += n
    return means


def text_mean(result: DecodingResult, eot: int) -> float:
    pairs = zip(result.tokens, result.token_logprobs, strict=True)
    return float(np.mean([logprob for token, logprob in pairs if token < eot]))


LEAST_S = 1.0
"""Seconds of uncovered speech that are decoded again."""
NEIGHBOUR_S = 0.5
"""Speech across a pause this short is one stretch."""
MARGIN_S = 0.3
"""Tolerance of word times, which attention places no more exactly."""
LONGEST_WORD_S, SECONDS_A_LETTER = 0.8, 0.1
"""The most speech that a word covers, as the last word before skipped speech is stretched over it."""
SPARSE_S, SPARSE_TOKENS_S = 3.0, 1.5
"""Words are aligned if a segment with SPARSE_S of speech has fewer tokens a second (people say three to
five).
"""
DEEPEST = 2
"""How often a stretch is halved."""
ALIKE = 0.6
"""Share of words in common with neighbouring text at which a second text counts as a repetition."""
REPEATED_TOKENS_S = 2.5
"""With fewer tokens a second over both texts, people did say the words twice."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedWindow:
    """A decoded window.

    encoded: encoder states, a batch of 1. n_frames: log-mel frames of audio. speech: pieces of the
    recording. start_s: where the window begins, in segment time. in_recording: converts a segment to
    recording time.
    """

    encoded: EncoderOutput
    cut: WindowCut
    result: DecodingResult
    n_frames: int
    speech: Sequence[Piece]
    start_s: float
    in_recording: Callable[[Segment], Segment] = lambda segment: segment

    @property
    def segments(self) -> list[Segment]:
        return [self.in_recording(segment) for segment in self.cut.segments]


class UncoveredSpeechReader:
    def __init__(
        self,
        transcriber: Transcriber,
        features: RecordingFeatures,
        follower: LanguageFollower | None,
        state: TranscriptionState,
    ) -> None:
        self._transcriber = transcriber
        self._features = features
        self._follower = follower
        self._state = state

    def completed(self, window: DecodedWindow) -> list[Segment]:
        """Decode the skipped speech of a window; return all of its segments in order."""
        own, found = self._with_uncovered(window)
        if self._follower is not None:
            own = self._in_right_languages(window, own, self._follower)
        return sorted([*own, *found], key=lambda segment: segment.start)

    def _with_uncovered(self, window: DecodedWindow) -> tuple[list[Segment], list[Segment]]:
        segments = window.segments
        if is_covered(segments, window.speech, self._transcriber.tokenizer.eot):
            return segments, []
        timed = self._timed(window)
        words = [word for segment in timed for word in segment.words or ()]
        found: list[Segment] = []
        for stretch in uncovered(window.speech, map(covered_by_word, words)):
            found += self._read(stretch, window.result.language, segments, 0)
        own = [trimmed(segment, one.words or (), found) for segment, one in zip(segments, timed, strict=True)]
        return own, found

    def _in_right_languages(
        self, window: DecodedWindow, segments: Sequence[Segment], follower: LanguageFollower
    ) -> list[Segment]:
        result, eot = window.result, self._transcriber.tokenizer.eot
        hypotheses: list[LanguageHypothesis] = []
        for segment, mean in zip(segments, segment_means(result, segments, eot), strict=True):
            speech = speech_in(segment, window.speech)
            if mean is None or speech is None or not follower.is_low_confidence(mean):
                continue
            if (other := (follower.other_language(speech, window.speech, result.language))) is not None:
                hypotheses.append(LanguageHypothesis((segment,), speech, mean, *other))
        found = list(segments)
        for one in joined(hypotheses, segments):
            if instead := (self._read_in_another(one, follower)):
                at = found.index(one.segments[0])
                found[at : at + len(one.segments)] = instead
        return found

    def _read_in_another(
        self, hypothesis: LanguageHypothesis, follower: LanguageFollower
    ) -> Sequence[Segment]:
        window = self._read_alone(hypothesis.speech, hypothesis.language)
        if window is None:
            return ()
        mean = text_mean(window.result, self._transcriber.tokenizer.eot)
        if not hypothesis.is_accepted_by(mean, is_first=not follower.is_several):
            return ()
        follower.expect_several()
        return window.cut.segments

    def _timed(self, window: DecodedWindow) -> list[Segment]:
        is_timed = any(segment.words for segment in window.cut.segments)
        if not is_timed and window.cut.text_tokens(self._transcriber.tokenizer.eot):
            window = self._with_words(window)
        return window.segments

    def _words(self, window: DecodedWindow) -> list[Word]:
        timed = self._timed(window)
        return [word for segment in timed for word in segment.words or ()]

    def _read(
        self, stretch: Sequence[Piece], language: str, beside: Sequence[Segment], depth: int
    ) -> list[Segment]:
        whole = Piece(stretch[0].start, stretch[-1].end)
        if self._follower is not None:
            language = self._follower.language_of(whole, language)
        window = self._read_alone(whole, language)
        found: list[Segment] = []
        rest = [list(stretch)]
        if window is not None:
            found = list(window.cut.segments)
            if repeats_neighbour(found, beside, self._transcriber.tokenizer.eot):
                return []  # its words exist already, at other times
            rest = uncovered(stretch, map(covered_by_word, (self._words(window))))
        for left in rest:
            halves = in_halves(left) if depth < DEEPEST else ()
            for half in halves:
                found += self._read(half, language, [*beside, *found], depth + 1)
            if not halves:
                self._note_unread(seconds_of(left[0].start), seconds_of(left[-1].end))
        return found

    def _note_unread(self, start_s: float, end_s: float) -> None:
        unread = self._state.unread
        if unread and unread[-1][0] < start_s <= unread[-1][1] + NEIGHBOUR_S:
            start_s, unread = unread[-1][0], unread[:-1]
        self._state.unread = (*unread, (start_s, end_s))

    def _read_alone(self, piece: Piece, language: str) -> DecodedWindow | None:
        transcriber = self._transcriber
        start, end = piece.start, piece.end
        features = self._features.window(start, end, n_frames=transcriber.frames_to_encode(end - start))
        encoded = transcriber.runtime.encode(features)
        (attempt,) = transcriber.decode(encoded, [Request(language, (), start, is_second=True)])
        result, n_frames = attempt.result, features.n_content_frames[0]
        if not _is_trusted(transcriber, result):
            return None
        tokenizer = transcriber.tokenizer_of(result.language)
        cut = cut_window(result.tokens, tokenizer, seek=start, n_frames=n_frames, keep_open=True)
        window = DecodedWindow(encoded, cut, result, n_frames, [piece], seconds_of(start))
        if transcriber.options.needs_words:
            window = self._with_words(window)
        segments = tuple(transcriber.segments(window.cut, result))
        return replace(window, cut=replace(window.cut, segments=segments)) if segments else None

    def _with_words(self, window: DecodedWindow) -> DecodedWindow:
        text = (window.cut, window.result, window.n_frames)
        (placed,) = self._transcriber.with_words(window.encoded, [text], window_start=window.start_s)
        return replace(window, cut=placed)


def is_covered(segments: Sequence[Segment], pieces: Sequence[Piece], eot: int) -> bool:
    """Return whether segments cover all speech by their own times, with enough text; otherwise words are
    aligned.

    pieces: speech, in log-mel frames. eot: id of the first token that is not text.
    """
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
        spoken_s = sum(one.n_frames for one in inside) / MEL_FRAMES_PER_SECOND
        if spoken_s >= SPARSE_S and n_tokens < SPARSE_TOKENS_S * spoken_s:
            return False
    return True


def uncovered(pieces: Iterable[Piece], covered: Iterable[tuple[int, int]]) -> list[list[Piece]]:
    """Return stretches of at least LEAST_S of uncovered speech, each a list of pieces.

    pieces: speech. covered: [start, end), both in log-mel frames.
    """
    spans = sorted(covered)
    free: list[Piece] = []
    for piece in pieces:
        at = piece.start
        for start, end in spans:
            if at < start < piece.end:
                free.append(Piece(at, start))
            if start < piece.end:
                at = max(at, end)
        if at < piece.end:
            free.append(Piece(at, piece.end))
    groups: list[list[Piece]] = []
    for one in free:
        if groups and one.start - groups[-1][-1].end <= NEIGHBOUR_S * MEL_FRAMES_PER_SECOND:
            groups[-1].append(one)
        else:
            groups.append([one])
    least = LEAST_S * MEL_FRAMES_PER_SECOND
    return [group for group in groups if sum(one.n_frames for one in group) >= least]


def covered_by_word(word: Word) -> tuple[int, int]:
    longest_s = LONGEST_WORD_S + SECONDS_A_LETTER * len(word.word.strip())
    end_s = min(word.end, word.start + longest_s)
    return mel_frames(word.start - MARGIN_S), mel_frames(end_s + MARGIN_S)


def trimmed(segment: Segment, words: Sequence[Word], found: Sequence[Segment]) -> Segment:
    """Trim a segment to its words where other segments were found before or after them.

    words: of the segment, with times; empty: unchanged.
    """
    if not words:
        return segment
    first, last = words[0].start, words[-1].end
    if any(segment.start <= other.start < first for other in found):
        segment = replace(segment, start=min(first, segment.end))
    if any(last <= other.start < segment.end for other in found):
        segment = replace(segment, end=max(last, segment.start))
    return segment


def in_halves(stretch: Sequence[Piece]) -> tuple[list[Piece], ...]:
    """Split a stretch at its longest pause or in its middle; empty if that is too short."""
    length = stretch[-1].end - stretch[0].start
    if length < 2 * LEAST_S * MEL_FRAMES_PER_SECOND:
        return ()
    if len(stretch) == 1:
        middle = stretch[0].start + length // 2
        return [Piece(stretch[0].start, middle)], [Piece(middle, stretch[0].end)]
    at = max(range(1, len(stretch)), key=lambda index: stretch[index].start - stretch[index - 1].end)
    return list(stretch[:at]), list(stretch[at:])


def repeats_neighbour(found: Sequence[Segment], beside: Sequence[Segment], eot: int) -> bool:
    """Return whether a second text repeats its neighbour, which was only timed wrongly.

    If their time is too long for one text, it was said twice. eot: id of the first token that is not text.
    """
    before = [one for one in beside if one.start <= found[0].start]
    after = [one for one in beside if one.start > found[0].start]
    return any(
        _share(_words_of(found), _words_of([other])) >= ALIKE and _fits_both(other, found, eot)
        for other in (*before[-1:], *after[:1])
    )


def _fits_both(segment: Segment, found: Sequence[Segment], eot: int) -> bool:
    length_s = max(segment.end, found[-1].end) - min(segment.start, found[0].start)
    return sum(token < eot for token in segment.tokens) >= REPEATED_TOKENS_S * length_s


def _words_of(segments: Sequence[Segment]) -> list[str]:
    text = " ".join(segment.text for segment in segments).casefold()
    return "".join(sign if sign.isalnum() else " " for sign in text).split()


def _share(words: Sequence[str], other: Sequence[str]) -> float:
    blocks = SequenceMatcher(None, words, other, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / max(1, len(words))


def _is_trusted(transcriber: Transcriber, result: DecodingResult) -> bool:
    fallback = transcriber.options.fallback
    limit = fallback.no_speech_threshold
    is_silent = limit is not None and result.no_speech_prob > limit
    has_words = any(sign.isalnum() for sign in result.text)
    return has_words and not (is_silent or fallback.is_guess(result) or fallback.repeats(result))
