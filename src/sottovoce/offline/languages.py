"""Languages of a recording: of its first windows, and of each piece of speech.

To follow changes, pieces of speech are the spans of `language.chain`, which asks for what it needs: pieces
are encoded separately and probed, or decoded in several languages. Without a list of languages a recording
counts as monolingual until a window shows several (docs/language.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from sottovoce.audio.mel import MELS_PER_FRAME, Fill, RecordingFeatures
from sottovoce.audio.vad import SpeechFinder
from sottovoce.decoding.decode import LanguageDetection
from sottovoce.language.chain import ONE_NATS, SHORTEST_S, TINY, Array, Emission, Spans, base_prior
from sottovoce.language.probe import LanguageProbe, ProbedLanguage, ProbeOptions, change_boundary, sides_of
from sottovoce.models.backend import EncoderOutput
from sottovoce.offline.resume import FollowerState, ProbedPiece, TranscriptionState
from sottovoce.offline.transcriber import Transcriber
from sottovoce.offline.windows import (
    SpeechSpan,
    Window,
    energy_minima,
    energy_minimum,
    mel_frames,
    speech_pieces,
)
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, is_silence
from sottovoce.runtime.calls import LanguageProbeCall, SpanProbeCall, Steps, decode_with_fallback, together

FARTHEST_WINDOWS = 12
"""Windows searched for speech at the beginning; they stay in memory."""
LEAST_WINDOWS = 2
SURE = 0.6
"""Mean probability over at least LEAST_WINDOWS at which no more windows are read."""
SURE_ALONE = 0.9
"""Probability at which the first window suffices if changes are followed."""


class FoundLanguage(NamedTuple):
    """encoded: of the first windows, as they are decoded."""

    detection: LanguageDetection
    encoded: dict[Window, EncoderOutput]


def find_language(
    transcriber: Transcriber, features: RecordingFeatures, windows: Iterable[Window], n_kept: int
) -> FoundLanguage | None:
    """Detect the language over the first windows with speech, weighted by length; None if all are blank.

    windows: taken as needed. n_kept: the most encoded windows to return.
    """
    options = transcriber.options
    threshold = options.fallback.no_speech_threshold
    spoken: list[tuple[LanguageDetection, float]] = []  # with their weights in frames of audio
    silent: list[tuple[LanguageDetection, float]] = []
    kept: dict[Window, EncoderOutput] = {}
    is_openai = transcriber.window_mode is None  # openai-whisper pads with silence to detect the language
    for window in islice(windows, FARTHEST_WINDOWS):
        fill: Fill = "silence" if is_openai else "zero"
        if all(features.is_blank(piece.start, piece.end) for piece in window.pieces):
            continue
        (encoded,) = transcriber.runtime.run(transcriber.encode(features, [window], fill=fill))
        if len(kept) < n_kept and (not is_openai or window.n_frames == transcriber.window_frames):
            kept[window] = encoded
        (detection,) = transcriber.runtime.run(transcriber.detect(encoded))
        is_silent = is_silence(detection.no_speech_prob, threshold)
        (silent if is_silent else spoken).append((detection, float(window.n_frames)))
        if len(spoken) >= options.language_windows:
            break
        may_stop = len(spoken) >= LEAST_WINDOWS
        if spoken and (may_stop or transcriber.may_follow):
            detected = transcriber.combine(*zip(*spoken, strict=True))
            if detected.probability >= (SURE if may_stop else SURE_ALONE):
                break
    if not (spoken or silent):
        return None
    return FoundLanguage(transcriber.combine(*zip(*(spoken or silent), strict=True)), kept)


ONCE = FallbackOptions(temperatures=(0.0,))
SILENCE = 30
"""Log-mel frames of silence to include on each side, as detection cuts faint beginnings."""


@dataclass(eq=False)
class TextLikelihood:
    transcriber: Transcriber
    features: RecordingFeatures

    def __post_init__(self) -> None:
        self._found: dict[SpeechSpan, dict[str, float]] = {}

    def log_likelihood_ratios(self, stretch: SpeechSpan, languages: Sequence[str]) -> Steps[dict[str, float]]:
        scores = self._found.setdefault(stretch, {})
        missing = [code for code in languages if code not in scores]
        if missing:
            window = Window((stretch,))
            (encoded,) = yield from self.transcriber.encode(self.features, [window], is_part=True)
            sample_len = self.transcriber.sample_len(encoded.n_frames)
            options = [
                DecodingOptions(language=code, without_timestamps=True, sample_len=sample_len)
                for code in missing
            ]
            rows, tokenizer = encoded.rows([0] * len(missing)), self.transcriber.tokenizer
            backend = self.transcriber.backend
            attempts = yield from decode_with_fallback(backend, tokenizer, rows, options, ONCE)
            for code, attempt in zip(missing, attempts, strict=True):
                scores[code] = attempt.result.avg_logprob * (len(attempt.result.tokens) + 1)
        return {code: scores[code] for code in languages}

    def forget_before(self, frame: int) -> None:
        self._found = {stretch: nats for stretch, nats in self._found.items() if stretch.end > frame}


def with_silence(stretch: Sequence[SpeechSpan], pieces: Sequence[SpeechSpan]) -> SpeechSpan:
    """Extend a stretch by half of the pauses around it, at most SILENCE frames."""
    start, end = stretch[0].start, stretch[-1].end
    ends = [piece.end for piece in pieces if piece.end <= start]
    starts = [piece.start for piece in pieces if piece.start >= end]
    first = max((max(ends) + start) // 2, start - SILENCE) if ends else start
    last = min((min(starts) + end) // 2, end + SILENCE) if starts else end + SILENCE
    return SpeechSpan(first, last)


SIDE_FRAMES = 200
"""Log-mel frames probed on each side of a possible change."""
OUTSIDE, OUTSIDE_S = 0.8, 2.0
"""A piece this long and certainly outside the listed languages is reported."""
SURPRISAL = 0.45
"""Mean surprisal (nats a token) above which the language of a text is verified, unless it is no more
improbable than the mean of those that were confirmed.
"""
SPOKEN_S = 2.0
"""Seconds of speech in a language from which improbable text is decoded in it."""


@dataclass(frozen=True, slots=True)
class LanguageRun:
    language: str
    pieces: tuple[SpeechSpan, ...]
    probability: float


class LanguageFollower:
    """Detects the languages of the pieces of speech in a recording, front to back.

    is_several: more than one language was found or listed.
    """

    def __init__(
        self, transcriber: Transcriber, features: RecordingFeatures, state: TranscriptionState
    ) -> None:
        tokenizer, listed = transcriber.tokenizer, transcriber.options.decoding.allowed_languages
        codes = tokenizer.language_codes
        self._probe = LanguageProbe(transcriber.backend, tokenizer, codes)
        known = (tokenizer.with_language(language).language or "" for language in listed or codes)
        self._codes = list(dict.fromkeys(known))
        self._places = [codes.index(code) for code in self._codes]
        self._emission = Emission(codes, self._codes)
        self._base = base_prior(codes, self._codes, transcriber.options.language_prior)
        self._features = features
        self._state = state
        self._detections: dict[SpeechSpan, ProbedPiece] = {}
        self._text = TextLikelihood(transcriber, features)
        self._is_beginning = self._was_beginning = True
        self._spoken_s: Array = np.zeros(len(self._codes))
        self._n_one = 0
        self._confirmed: tuple[float, int] = (0.0, 0)
        """Sum of the surprisals of improbable texts in the right language, and their number."""
        self.is_several = transcriber.options.follows_languages
        self._n_full = transcriber.backend.dims.n_audio_ctx
        self._stretch: SpeechSpan | None = None
        """The speech of a window whose language was detected in one pass."""
        self._probes_ahead = transcriber.backend.device.type != "cpu"
        """Whether the unsure pieces of a window are probed in one batch, which takes a few more probes."""
        self._ahead: dict[SpeechSpan, ProbedLanguage] = {}
        self._hears_windows = transcriber.window_mode is not None

    def runs(
        self,
        encoded: EncoderOutput,
        pieces: Sequence[SpeechSpan],
        spans: Sequence[tuple[int, int]],
        current: str | None,
    ) -> Steps[list[LanguageRun]]:
        """Return the runs of a window's pieces in order; neighbouring runs differ in language.

        spans: encoder frames of each piece. current: the language before.
        """
        is_beginning, self._is_beginning = self._is_beginning, False
        self._was_beginning = is_beginning
        self._spoken_s = self._spoken_before(pieces[0].start)
        self._detections = {
            piece: kept for piece, kept in self._detections.items() if piece.end > pieces[0].start
        }
        self._text.forget_before(pieces[0].start)
        is_alone = self._is_one_stretch(encoded, pieces)
        self._stretch = SpeechSpan(pieces[0].start, pieces[-1].end) if is_alone else None
        if is_alone:
            spans = [(0, encoded.n_frames)] * len(pieces)
        new = [index for index, piece in enumerate(pieces) if piece not in self._detections]
        if new:
            probes = yield from SpanProbeCall(self._probe, encoded, [spans[i] for i in new])
            for index, probed in zip(new, probes, strict=True):
                self._detections[pieces[index]] = ProbedPiece.of(pieces[index], probed, is_alone=is_alone)
                if is_alone:
                    self._note_outside(pieces[index], probed)
        before = None if is_beginning else self._place_of(current)
        model = self._spans(pieces, before, self._place_of(current or self._likeliest(pieces)))
        yield from self._ask(model, pieces)
        if not self.is_several:
            self.is_several = model.shows_several()
            self._n_one += not self.is_several
            if self.is_several:
                model.expect_several(before)
                yield from self._ask(model, pieces)
        for piece, posterior in zip(pieces, model.posterior, strict=True):
            detection = self._detections[piece]
            self._detections[piece] = replace(detection, posterior=tuple(posterior.tolist()))
        return [
            LanguageRun(self._codes[run.language], tuple(pieces[run.first : run.end]), run.probability)
            for run in model.runs()
        ]

    def _is_one_stretch(self, encoded: EncoderOutput, pieces: Sequence[SpeechSpan]) -> bool:
        """Return whether a window is heard as its pieces would be, encoded separately: a window of one piece,
        or, as in a live session, the first seconds of speech until there is a change.
        """
        is_short = self._hears_windows and encoded.n_frames < self._n_full
        is_opening = pieces[-1].end - pieces[0].start <= mel_frames(ProbeOptions().opening_s)
        return is_short and not self.is_several and (len(pieces) == 1 or is_opening)

    def language_of(self, piece: SpeechSpan, current: str, speech: Sequence[SpeechSpan]) -> Steps[str]:
        """Detect the language of one piece: `current` unless the recording, or its window, shows several."""
        yield from self._hear(piece)
        place = self._place_of(current)
        model = self._spans([piece], place, None)
        (run,) = model.runs()
        if not self.is_several and run.language != place:
            for stretch in speech:
                yield from self._hear(stretch)
            self.is_several = self._spans(speech, place, place).shows_several()
        return self._codes[run.language] if self.is_several else current

    @property
    def least_nats(self) -> float:
        """Log-likelihood ratio (nats) from which a text is decoded again in another language."""
        return 0.0 if self.is_several else self._emission.numbers.several

    def expect_several(self) -> None:
        self.is_several, self._is_beginning = True, self._was_beginning

    def is_low_confidence(self, mean: float) -> bool:
        total, n_texts = self._confirmed
        return -mean > max(SURPRISAL, total / max(n_texts, 1))

    def other_language(
        self, piece: SpeechSpan, speech: Sequence[SpeechSpan], language: str, mean: float
    ) -> Steps[tuple[str, float] | None]:
        """Return a likelier language of improbable text, and its log-likelihood ratio (nats), or None.

        mean: log-probability of the text, a token.
        """
        yield from self._hear(piece)
        expected = self._place_of(language)
        assert expected is not None, "the text is in an allowed language"
        model = self._spans([piece], expected, None)
        if self.is_several:
            spoken = np.flatnonzero(self._spoken_before(speech[-1].end) >= SPOKEN_S)
            likeliest = np.argsort(-model.sound[0])[:2]
            places = dict.fromkeys([expected, *likeliest.tolist(), *spoken.tolist()])
            model.read(0, (yield from self._text_nats(piece, speech, tuple(places))))
        nats = np.log(np.maximum(model.posterior[0], TINY))
        best = int(nats.argmax())
        if best == expected:
            total, n_texts = self._confirmed
            self._confirmed = total - mean, n_texts + 1
            return None
        return self._codes[best], float(nats[best] - nats[expected])

    def border(self, run: LanguageRun, after: LanguageRun) -> Steps[int]:
        """Return the frame of a change: in the pause, or at the quiet moment that separates best."""
        before, first = run.pieces[-1], after.pieces[0]
        if first.start - before.end >= 2:
            return energy_minimum(self._features, before, first)
        moments = energy_minima(self._features, before, first)
        if len(moments) == 1:
            return moments[0]
        places = [self._probe.languages.index(code) for code in (run.language, after.language)]
        sides = sides_of(moments, before.start, first.end, SIDE_FRAMES)
        log_mels = [self._features.log_mel(start, end) for start, end in sides]
        probed = yield from LanguageProbeCall(self._probe, log_mels)
        return change_boundary(moments, probed, places)

    def probed_pieces(self, start: int, end: int) -> list[SpeechSpan]:
        inside = [piece for piece in self._detections if start <= piece.start < end]
        return sorted(inside, key=lambda piece: piece.start)

    def may_change(self, piece: SpeechSpan, language: str, other: str) -> bool:
        if piece.duration_s < SHORTEST_S:
            return True
        likelihood = self._emission.likelihood(self._detections[piece].probed)
        return bool(likelihood[self._codes.index(other)] >= likelihood[self._codes.index(language)])

    def state(self, frame: int) -> FollowerState:
        pieces = tuple(piece for piece in self._detections.values() if piece.end > frame)
        seconds = zip(self._codes, self._spoken_before(frame).tolist(), strict=True)
        spoken = {code: spoken_s for code, spoken_s in seconds if spoken_s > 0.0}
        beginning, confirmed = self._is_beginning, self._confirmed
        return FollowerState(self.is_several, beginning, spoken, self._n_one, confirmed, pieces)

    def restore(self, state: FollowerState) -> None:
        self.is_several, self._is_beginning = state.is_several, state.is_beginning
        self._spoken_s = np.array([state.spoken_s.get(code, 0.0) for code in self._codes])
        self._n_one, self._confirmed = state.n_one, state.confirmed
        self._detections |= {SpeechSpan(piece.start, piece.end): piece for piece in state.pieces}

    def _spans(self, pieces: Sequence[SpeechSpan], before: int | None, expected: int | None) -> Spans:
        detections = [self._detections[piece] for piece in pieces]
        model = Spans(
            self._emission,
            [piece.duration_s for piece in pieces],
            [detection.probed for detection in detections],
            base=self._base,
            spoken_s=self._spoken_before(pieces[0].start),
            before=before,
            expected=None if self.is_several else expected,
            one_nats=ONE_NATS + math.log1p(self._n_one),
        )
        for index, detection in enumerate(detections):
            if detection.is_alone:
                model.hear(index, detection.probed)
        return model

    def _likeliest(self, pieces: Sequence[SpeechSpan]) -> str:
        model = self._spans(pieces, None, None)
        return self._codes[int((model.seconds @ model.posterior).argmax())]

    def _ask(self, model: Spans, pieces: Sequence[SpeechSpan]) -> Steps[None]:
        self._ahead = {}
        if self._probes_ahead:
            yield from self._probe_ahead([pieces[span] for span in model.unsure()])
        while (question := model.question()) is not None:
            piece = pieces[question.span]
            if question.languages:
                model.read(question.span, (yield from self._text_nats(piece, pieces, question.languages)))
            else:
                model.hear(question.span, (yield from self._hear(piece)))

    def _probe_ahead(self, pieces: Sequence[SpeechSpan]) -> Steps[None]:
        log_mels = [self._features.log_mel(piece.start, piece.end) for piece in pieces]
        probes = yield from together([LanguageProbeCall(self._probe, [log_mel]) for log_mel in log_mels])
        self._ahead |= {piece: probed for piece, (probed,) in zip(pieces, probes, strict=True)}

    def _hear(self, piece: SpeechSpan) -> Steps[ProbedLanguage]:
        detection, stretch = self._detections.get(piece), self._stretch
        if detection is None and stretch and stretch.start <= piece.start and piece.end <= stretch.end:
            of_window = next(each for each in self._detections.values() if each.start == stretch.start)
            detection = self._detections[piece] = replace(of_window, start=piece.start, end=piece.end)
        if detection is None or not (detection.is_alone or piece.duration_s < SHORTEST_S):
            if piece not in self._ahead:
                yield from self._probe_ahead([piece])
            probed = self._ahead.pop(piece)
            posterior = () if detection is None else detection.posterior
            detection = replace(ProbedPiece.of(piece, probed, is_alone=True), posterior=posterior)
            self._detections[piece] = detection
            self._note_outside(piece, probed)
        return detection.probed

    def _note_outside(self, piece: SpeechSpan, probed: ProbedLanguage) -> None:
        likeliest = int(probed.probabilities.argmax())
        is_sure = probed.probabilities[likeliest] * (1.0 - probed.no_speech) >= OUTSIDE
        if is_sure and likeliest not in self._places and piece.duration_s >= OUTSIDE_S:
            outside, code = self._state.outside_languages, self._probe.languages[likeliest]
            seconds = outside.get(code, 0.0) + piece.duration_s
            self._state.outside_languages = {**outside, code: seconds}

    def _text_nats(
        self, piece: SpeechSpan, pieces: Sequence[SpeechSpan], languages: Sequence[int]
    ) -> Steps[dict[int, float]]:
        codes = [self._codes[place] for place in languages]
        nats = yield from self._text.log_likelihood_ratios(with_silence([piece], pieces), codes)
        return {place: nats[code] for place, code in zip(languages, codes, strict=True)}

    def _place_of(self, language: str | None) -> int | None:
        return self._codes.index(language) if language in self._codes else None

    def _spoken_before(self, frame: int) -> Array:
        spoken_s = self._spoken_s
        for piece, detection in sorted(self._detections.items(), key=lambda item: item[0].end):
            if piece.end <= frame and detection.posterior:
                spoken_s = spoken_s + piece.duration_s * np.array(detection.posterior)
        return spoken_s


LOOK_AHEAD_FRAMES = 100
"""Log-mel frames behind a window that speech detection needs to finish its last segment."""


@dataclass(eq=False)
class WindowLanguages:
    """Detects the languages of windows, front to back, and divides windows where they change."""

    transcriber: Transcriber
    features: RecordingFeatures
    speech: SpeechFinder
    progress: TranscriptionState

    def __post_init__(self) -> None:
        self.follower: LanguageFollower | None = None
        if self.transcriber.may_follow:
            self.follower = LanguageFollower(self.transcriber, self.features, self.progress)

    @property
    def expects_several(self) -> bool:
        return self.follower is not None and self.follower.is_several

    def state(self, frame: int) -> FollowerState | None:
        return None if self.follower is None else self.follower.state(frame)

    def restore(self, state: FollowerState | None) -> None:
        if self.follower is not None and state is not None:
            self.follower.restore(state)

    def detect_first(self, windows: Iterable[Window], n_kept: int) -> dict[Window, EncoderOutput]:
        """Detect the language over the first windows, if it is neither given nor detected for each window.

        Return those of the first n_kept windows that are encoded as they are decoded.
        """
        if self.progress.language is not None or self.expects_several:
            return {}
        detected = find_language(self.transcriber, self.features, windows, n_kept)
        if detected is None:
            return {}
        self.progress.language, self.progress.detection = detected.detection.language, detected.detection
        return detected.encoded

    def divided(self, window: Window, encoded: EncoderOutput) -> Steps[list[Window]]:
        state, follower = self.progress, self.follower
        if follower is None:
            if state.language is None:  # all windows until here were blank
                (state.detection,) = yield from self.transcriber.detect(encoded)
                state.language = state.detection.language
            return [replace(window, language=state.language)]
        if state.detection is None:
            (state.detection,) = yield from self.transcriber.detect(encoded)
        pieces = self.speech_in(window)
        if not pieces:
            return [replace(window, language=state.language or state.detection.language)]
        spans = [_span(window, piece) for piece in pieces]
        runs = yield from follower.runs(encoded, pieces, spans, state.language)
        parts, rest = [], window
        for run, after in pairwise(runs):
            border = yield from follower.border(run, after)
            head, rest = rest.split(rest.window_frame(border))
            parts.append(replace(head, language=run.language, probability=run.probability, is_cut=True))
        language, probability = runs[-1].language, runs[-1].probability
        return [*parts, replace(rest, language=language, probability=probability, is_cut=bool(parts))]

    def speech_in(self, window: Window) -> list[SpeechSpan]:
        return [piece for part in window.pieces for piece in self.speech_between(part.start, part.end)]

    def speech_between(self, start: int, end: int) -> list[SpeechSpan]:
        self.features.has(end + LOOK_AHEAD_FRAMES)  # detected speech ends a little late
        return speech_pieces(self.features, self.speech, start, end)


def _span(window: Window, piece: SpeechSpan) -> tuple[int, int]:
    start = window.window_frame(piece.start) // MELS_PER_FRAME
    return start, max(start + 1, window.window_frame(piece.end) // MELS_PER_FRAME)
