"""Detect the language of each piece of speech in a window.

The pieces are the spans of the language model (`language.spans`), which asks for what it needs to know:
pieces are encoded separately and probed, or decoded in several languages.

Without a list of languages a recording counts as monolingual until a window shows several languages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.audio.features import RecordingFeatures
from sottovoce.decoding.decode import Attempt, select_windows
from sottovoce.language.border import sides_of, surest_border
from sottovoce.language.chain import TINY, Array, Emission, base_prior
from sottovoce.language.probe import LanguageProbe, ProbedLanguage
from sottovoce.language.spans import ONE_NATS, SHORTEST_S, Hear, Read, Spans
from sottovoce.offline.pieces import Piece, energy_minima, energy_minimum
from sottovoce.offline.resume import FollowerState, ProbedPiece
from sottovoce.offline.transcriber import Transcriber, TranscriptionState
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.types import EncoderOutput

ONCE = FallbackOptions(temperatures=(0.0,))
SILENCE = 30
"""Log-mel frames of silence to include on each side, because detection cuts faint beginnings of words."""


class TextLikelihood:
    """Greedy transcripts of stretches that are encoded separately, cached."""

    def __init__(self, transcriber: Transcriber, features: RecordingFeatures) -> None:
        self._transcriber = transcriber
        self._features = features
        self._found: dict[Piece, dict[str, float]] = {}

    def nats(self, stretch: Piece, languages: Sequence[str]) -> dict[str, float]:
        """Return the log-probability of the text of a stretch, including its end, in each language."""
        found = self._found.setdefault(stretch, {})
        missing = [code for code in languages if code not in found]
        if missing:
            n_frames = self._transcriber.frames_to_encode(stretch.n_frames)
            features = self._features.window(stretch.start, stretch.end, n_frames=n_frames)
            encoded = self._transcriber.runtime.encode(features)
            for code, attempt in zip(missing, self._decode(encoded, missing), strict=True):
                result = attempt.result
                found[code] = result.avg_logprob * (len(result.tokens) + 1)
        return {code: found[code] for code in languages}

    def forget_before(self, frame: int) -> None:
        for stretch in [stretch for stretch in self._found if stretch.end <= frame]:
            del self._found[stretch]

    def _decode(self, encoded: EncoderOutput, languages: Sequence[str]) -> list[Attempt]:
        transcriber = self._transcriber
        sample_len = transcriber.sample_len(encoded.n_frames)
        options = [
            DecodingOptions(language=code, without_timestamps=True, sample_len=sample_len)
            for code in languages
        ]
        rows = select_windows(encoded, [0] * len(languages))
        return transcriber.runtime.decode(transcriber.tokenizer, rows, options, ONCE)


def with_silence(stretch: Sequence[Piece], pieces: Sequence[Piece]) -> Piece:
    """Extend a stretch by half of the pauses around it, by at most SILENCE frames."""
    start, end = stretch[0].start, stretch[-1].end
    ends = [piece.end for piece in pieces if piece.end <= start]
    starts = [piece.start for piece in pieces if piece.start >= end]
    first = max((max(ends) + start) // 2, start - SILENCE) if ends else start
    last = min((min(starts) + end) // 2, end + SILENCE) if starts else end + SILENCE
    return Piece(first, last)


SIDE_FRAMES = 200
"""Log-mel frames probed on each side of a possible change of language."""
OUTSIDE, OUTSIDE_S = 0.8, 2.0
"""A piece this long and this certainly outside the listed languages is reported."""
SURPRISAL = 0.45
"""Mean surprisal of a text (nats a token) above which its language is verified. A text no more improbable
than the mean of those whose language was confirmed is not verified.
"""
SPOKEN_S = 2.0
"""Seconds of speech in a language from which improbable text is decoded in it."""


@dataclass(frozen=True, slots=True)
class LanguageRun:
    language: str
    pieces: tuple[Piece, ...]
    probability: float


@dataclass(frozen=True, slots=True, eq=False)
class _Detection:
    """Language posterior of a piece over all languages of the model.

    is_alone: encoded separately.
    """

    probed: ProbedLanguage
    is_alone: bool


class LanguageFollower:
    """Detects the languages of the pieces of speech in a recording, front to back.

    is_several: more than one language was found or listed. state: receives the languages outside the list.
    """

    def __init__(
        self, transcriber: Transcriber, features: RecordingFeatures, state: TranscriptionState
    ) -> None:
        tokenizer, listed = transcriber.tokenizer, transcriber.options.decoding.allowed_languages
        codes = tokenizer.language_codes
        self._runtime = transcriber.runtime
        self._probe = LanguageProbe(transcriber.backend, tokenizer, codes)
        known = (tokenizer.with_language(language).language or "" for language in listed or codes)
        self._codes = list(dict.fromkeys(known))
        self._places = [codes.index(code) for code in self._codes]
        self._emission = Emission(codes, self._codes)
        self._base = base_prior(codes, self._codes, transcriber.options.language_prior)
        self._features = features
        self._state = state
        self._detections: dict[Piece, _Detection] = {}
        self._posteriors: dict[Piece, Array] = {}
        self._text = TextLikelihood(transcriber, features)
        self._is_beginning = self._was_beginning = True
        self._spoken_s: Array = np.zeros(len(self._codes))
        self._n_one = 0
        self._confirmed: tuple[float, int] = (0.0, 0)
        """Sum of the surprisals of improbable texts in the right language, and their number."""
        self.is_several = transcriber.options.follows_languages

    def runs(
        self,
        encoded: EncoderOutput,
        pieces: Sequence[Piece],
        spans: Sequence[tuple[int, int]],
        current: str | None,
    ) -> list[LanguageRun]:
        """Return the runs of a window's pieces in order; neighbouring runs differ in language.

        encoded: the window, a batch of 1. spans: encoder frames of each piece. current: the language
        before the window, or None.
        """
        is_beginning, self._is_beginning = self._is_beginning, False
        self._was_beginning = is_beginning
        self._forget_before(pieces[0].start)
        new = [index for index, piece in enumerate(pieces) if piece not in self._detections]
        if new:
            found = self._runtime.probe_spans(self._probe, encoded, [spans[i] for i in new])
            for index, probed in zip(new, found, strict=True):
                self._detections[pieces[index]] = _Detection(probed, is_alone=False)
        before = None if is_beginning else self._place_of(current)
        model = self._spans(pieces, before, self._place_of(current or self._likeliest(pieces)))
        self._ask(model, pieces)
        if not self.is_several:
            self.is_several = model.shows_several()
            self._n_one += not self.is_several
            if self.is_several:
                model.expect_several(before)
                self._ask(model, pieces)
        self._posteriors.update(zip(pieces, model.posterior, strict=True))
        return [
            LanguageRun(self._codes[run.language], tuple(pieces[run.first : run.end]), run.probability)
            for run in model.runs()
        ]

    def language_of(self, piece: Piece, current: str, speech: Sequence[Piece]) -> str:
        """Detect the language of one piece, encoded separately.

        In a monolingual recording this is `current`, unless the speech around it shows several languages.

        speech: the pieces of the window.
        """
        self._hear(piece)
        place = self._place_of(current)
        model = self._spans([piece], place, None)
        (run,) = model.runs()
        if not self.is_several and run.language != place:
            for one in speech:
                self._hear(one)
            self.is_several = self._spans(speech, place, place).shows_several()
        return self._codes[run.language] if self.is_several else current

    @property
    def least_nats(self) -> float:
        """Log-likelihood ratio (nats) from which text is in another language than it was decoded in."""
        return 0.0 if self.is_several else self._emission.numbers.several

    def expect_several(self) -> None:
        self.is_several, self._is_beginning = True, self._was_beginning

    def is_low_confidence(self, mean: float) -> bool:
        total, n_texts = self._confirmed
        return -mean > max(SURPRISAL, total / max(n_texts, 1))

    def other_language(
        self, piece: Piece, speech: Sequence[Piece], language: str, mean: float
    ) -> tuple[str, float] | None:
        """Return a likelier language for a stretch of improbable text, and its log-likelihood ratio in
        nats, or None.

        speech: the pieces around the stretch. mean: log-probability of its text, a token.
        """
        self._hear(piece)
        expected = self._place_of(language)
        assert expected is not None, "the text is in an allowed language"
        model = self._spans([piece], expected, None)
        if self.is_several:
            spoken = np.flatnonzero(self._spoken_before(speech[-1].end) >= SPOKEN_S)
            likeliest = np.argsort(-model.sound[0])[:2]
            places = dict.fromkeys([expected, *likeliest.tolist(), *spoken.tolist()])
            model.read(0, self._text_nats(piece, speech, tuple(places)))
        nats = np.log(np.maximum(model.posterior[0], TINY))
        best = int(nats.argmax())
        if best == expected:
            total, n_texts = self._confirmed
            self._confirmed = total - mean, n_texts + 1
            return None
        return self._codes[best], float(nats[best] - nats[expected])

    def border(self, run: LanguageRun, after: LanguageRun) -> int:
        """Return the frame of a change of language: in the pause, or at the quiet moment that separates
        the two best.
        """
        before, first = run.pieces[-1], after.pieces[0]
        if first.start - before.end >= 2:
            return energy_minimum(self._features, before, first)
        moments = energy_minima(self._features, before, first)
        if len(moments) == 1:
            return moments[0]
        sides = sides_of(moments, before.start, first.end, SIDE_FRAMES)
        log_mels = [self._features.log_mel(start, end) for start, end in sides]
        probed = self._runtime.probe_languages(self._probe, log_mels)
        here, there = (self._probe.languages.index(code) for code in (run.language, after.language))
        return surest_border(moments, probed, here, there)

    def probed_pieces(self, start: int, end: int) -> list[Piece]:
        return sorted(
            (one for one in self._detections if start <= one.start < end), key=lambda one: one.start
        )

    def may_change(self, piece: Piece, language: str, other: str) -> bool:
        if piece.duration_s < SHORTEST_S:
            return True
        likelihood = self._emission.likelihood(self._detections[piece].probed)
        return bool(likelihood[self._codes.index(other)] >= likelihood[self._codes.index(language)])

    def state(self, frame: int) -> FollowerState:
        """Return the probed pieces that reach beyond a frame, for a resume point."""
        pieces = [
            ProbedPiece(
                piece.start,
                piece.end,
                tuple(detection.probed.probabilities.tolist()),
                detection.probed.allowed_mass,
                detection.probed.no_speech,
                detection.is_alone,
                tuple(self._posteriors[piece].tolist()) if piece in self._posteriors else (),
            )
            for piece, detection in self._detections.items()
            if piece.end > frame
        ]
        spoken = self._spoken_before(frame)
        return FollowerState(
            self.is_several,
            self._is_beginning,
            {code: float(s) for code, s in zip(self._codes, spoken, strict=True) if s > 0.0},
            self._n_one,
            self._confirmed,
            tuple(pieces),
        )

    def restore(self, state: FollowerState) -> None:
        self.is_several, self._is_beginning = state.is_several, state.is_beginning
        self._spoken_s = np.array([state.spoken_s.get(code, 0.0) for code in self._codes])
        self._n_one, self._confirmed = state.n_one, state.confirmed
        for one in state.pieces:
            piece = Piece(one.start, one.end)
            probed = ProbedLanguage(np.array(one.probabilities), one.allowed_mass, one.no_speech)
            self._detections[piece] = _Detection(probed, one.is_alone)
            if one.posterior:
                self._posteriors[piece] = np.array(one.posterior)

    def _spans(self, pieces: Sequence[Piece], before: int | None, expected: int | None) -> Spans:
        found = [self._detections[piece] for piece in pieces]
        model = Spans(
            self._emission,
            [piece.duration_s for piece in pieces],
            [one.probed for one in found],
            base=self._base,
            spoken_s=self._spoken_before(pieces[0].start),
            before=before,
            expected=None if self.is_several else expected,
            one_nats=ONE_NATS + math.log1p(self._n_one),
        )
        for index, one in enumerate(found):
            if one.is_alone:
                model.hear(index, one.probed)
        return model

    def _likeliest(self, pieces: Sequence[Piece]) -> str:
        model = self._spans(pieces, None, None)
        return self._codes[int((model.seconds @ model.posterior).argmax())]

    def _ask(self, model: Spans, pieces: Sequence[Piece]) -> None:
        while (question := model.question()) is not None:
            piece = pieces[question.span]
            match question:
                case Hear():
                    model.hear(question.span, self._hear(piece))
                case Read():
                    model.read(question.span, self._text_nats(piece, pieces, question.languages))

    def _hear(self, piece: Piece) -> ProbedLanguage:
        detection = self._detections.get(piece)
        if detection is None or not (detection.is_alone or piece.duration_s < SHORTEST_S):
            log_mel = self._features.log_mel(piece.start, piece.end)
            (probed,) = self._runtime.probe_languages(self._probe, [log_mel])
            detection = self._detections[piece] = _Detection(probed, is_alone=True)
            self._note_outside(piece, probed)
        return detection.probed

    def _note_outside(self, piece: Piece, probed: ProbedLanguage) -> None:
        likeliest = int(probed.probabilities.argmax())
        is_sure = probed.probabilities[likeliest] * (1.0 - probed.no_speech) >= OUTSIDE
        if is_sure and likeliest not in self._places and piece.duration_s >= OUTSIDE_S:
            outside, code = self._state.outside_languages, self._probe.languages[likeliest]
            seconds = outside.get(code, 0.0) + piece.duration_s
            self._state.outside_languages = {**outside, code: seconds}

    def _text_nats(self, piece: Piece, pieces: Sequence[Piece], languages: Sequence[int]) -> dict[int, float]:
        codes = [self._codes[place] for place in languages]
        nats = self._text.nats(with_silence([piece], pieces), codes)
        return {place: nats[code] for place, code in zip(languages, codes, strict=True)}

    def _place_of(self, language: str | None) -> int | None:
        return self._codes.index(language) if language in self._codes else None

    def _spoken_before(self, frame: int) -> Array:
        spoken_s = self._spoken_s
        for piece in sorted(self._posteriors, key=lambda piece: piece.end):
            if piece.end <= frame:
                spoken_s = spoken_s + piece.duration_s * self._posteriors[piece]
        return spoken_s

    def _forget_before(self, frame: int) -> None:
        self._spoken_s = self._spoken_before(frame)
        for piece in [piece for piece in self._detections if piece.end <= frame]:
            del self._detections[piece]
            self._posteriors.pop(piece, None)
        self._text.forget_before(frame)
