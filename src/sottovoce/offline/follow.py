"""Detect the language of each piece of speech in a window.

A masked probe of the window's encoder states costs nothing, but self-attention has mixed the languages, so
it only selects the pieces that are encoded separately. That costs a tenth of a window or more and is
nearly always right from two seconds on. `language.follow` smooths the detected languages and adds the
likelihood of the text where sound does not decide.

Without a list of languages a recording counts as monolingual until `language.follow.are_several` finds
clear evidence of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sottovoce.audio.features import RecordingFeatures
from sottovoce.decoding.decode import Attempt, select_windows
from sottovoce.language.follow import (
    AskingLimits,
    PieceEvidence,
    are_several,
    gain,
    hint_nats,
    is_likely,
    is_sure,
    language_runs,
    likelier_nats,
    neighbour_shares,
    sides_of,
    surest_border,
    text_evidence,
    uncertain_runs,
)
from sottovoce.language.probe import LanguageProbe, ProbedLanguage
from sottovoce.offline.pieces import Piece, pauses_s, quiet_moments, quietest_moment
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
SHORTEST_S = 0.5
"""The language of a shorter piece is not detected; it follows its neighbours."""
BESIDE = 4
"""Pieces on each side of a foreign piece that are encoded separately too."""
HINT_S, N_HINTS = 0.8, 3
"""In a monolingual recording, a piece of HINT_S that the masked probe assigns to another language is a
hint; the N_HINTS strongest of a window are encoded separately.
"""
OTHER_NATS, LIKELIER_NATS = 3.0, 1.0
"""Log-likelihood ratio (nats) that the sound of a stretch needs for a language other than its text's; in a
multilingual recording sound and text together need LIKELIER_NATS.
"""
JOINED_S, JOINED_SURE = 8.0, 0.9
"""Less certain pieces of a run of up to JOINED_S are detected together."""
OUTSIDE, OUTSIDE_S = 0.8, 2.0
"""A piece this long and this certainly outside the listed languages is reported."""


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
        self._prior = np.ones(len(self._codes))
        self._shares = None if transcriber.is_listed else neighbour_shares(self._codes)
        if not transcriber.is_listed:
            odds = transcriber.options.language_prior
            self._prior = np.exp([odds.get(code, 0.0) for code in self._codes])
        self._features = features
        self._state = state
        self._detections: dict[Piece, _Detection] = {}
        self._likelihood = TextLikelihood(transcriber, features)
        self._text: dict[Piece, npt.NDArray[np.float64]] = {}
        self._is_beginning = self._was_beginning = True
        self._spoken: set[int] = set()
        self._pieces: Sequence[Piece] = ()
        self._limits = AskingLimits()
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
        self._was_beginning, self._pieces = is_beginning, pieces
        self._text.clear()
        self._limits = self._limits.in_next_window()
        self._forget_before(pieces[0].start)
        new = [index for index, piece in enumerate(pieces) if piece not in self._detections]
        if new:
            found = self._runtime.probe_spans(self._probe, encoded, [spans[i] for i in new])
            for index, probed in zip(new, found, strict=True):
                self._detections[pieces[index]] = _Detection(probed, is_alone=False)
        if self.is_several:
            self._detect_uncertain(pieces)
        elif not self._finds_another(pieces, current):
            return [LanguageRun(current or self._dominant(pieces), tuple(pieces), 1.0)]
        runs = self._smoothed(pieces, None if is_beginning else current)
        return self._detected_together(runs) if len(runs) > 1 else runs

    def language_of(self, piece: Piece, current: str) -> str:
        """Detect the language of one piece, encoded separately.

        In a monolingual recording this is `current`, unless the window shows several languages.
        """
        self._detect_separately([piece])
        expected = self._codes.index(current)
        if not self.is_several and is_likely(self._evidence(piece), expected):
            is_within = bool(self._pieces) and self._pieces[0].start <= piece.start < self._pieces[-1].end
            self._detect_separately(pieces := self._pieces if is_within else [piece])
            self.is_several = self._are_several(pieces, expected)
        if not self.is_several:
            return current
        return (self._smoothed([piece], current))[0].language

    def expect_several(self) -> None:
        self.is_several, self._is_beginning = True, self._was_beginning

    def is_low_confidence(self, mean: float) -> bool:
        return mean < -self._limits.surprisal

    def other_language(
        self, piece: Piece, speech: Sequence[Piece], language: str
    ) -> tuple[str, float] | None:
        """Return a likelier language for a stretch of improbable text, and its log-likelihood ratio in
        nats, or None.

        speech: the pieces around the stretch.
        """
        self._detect_separately([piece])
        evidence, expected = self._evidence(piece), self._codes.index(language)
        likeliest = [int(place) for place in np.argsort(-evidence.posterior) if place != expected][:1]
        if self.is_several and (others := {*likeliest, *self._spoken} - {expected}):
            text = self._text_nats([piece], speech, [expected, *sorted(others)])
            nats, least = likelier_nats(evidence, text, expected), LIKELIER_NATS
        else:
            nats, least = {place: gain([evidence], place, expected) for place in likeliest}, OTHER_NATS
        best = max(nats, key=lambda place: nats[place], default=expected)
        if best == expected or nats[best] < least:
            self._limits = self._limits.after_text()
            return None
        return self._codes[best], nats[best]

    def border(self, run: LanguageRun, after: LanguageRun) -> int:
        """Return the frame of a change of language: in the pause, or at the quiet moment that separates
        the two best.
        """
        before, first = run.pieces[-1], after.pieces[0]
        if first.start - before.end >= 2:
            return quietest_moment(self._features, before, first)
        moments = quiet_moments(self._features, before, first)
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
        evidence = self._evidence(piece)
        here, there = self._codes.index(language), self._codes.index(other)
        return evidence.duration_s == 0.0 or evidence.posterior[there] >= evidence.posterior[here]

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
            )
            for piece, detection in self._detections.items()
            if piece.end > frame
        ]
        spoken = tuple(self._codes[place] for place in sorted(self._spoken))
        return FollowerState(self.is_several, self._is_beginning, self._limits, spoken, tuple(pieces))

    def restore(self, state: FollowerState) -> None:
        self.is_several, self._is_beginning = state.is_several, state.is_beginning
        self._limits, self._spoken = state.limits, {self._codes.index(code) for code in state.spoken}
        for one in state.pieces:
            probed = ProbedLanguage(np.array(one.probabilities), one.allowed_mass, one.no_speech)
            self._detections[Piece(one.start, one.end)] = _Detection(probed, one.is_alone)

    def _detected_together(self, runs: Sequence[LanguageRun]) -> list[LanguageRun]:
        found: list[LanguageRun] = []
        for run in runs:
            whole = Piece(run.pieces[0].start, run.pieces[-1].end)
            if len(run.pieces) > 1 and run.probability < JOINED_SURE and whole.duration_s <= JOINED_S:
                run = self._detected_whole(run, whole)
            if found and found[-1].language == run.language:
                run = replace(run, pieces=(*found.pop().pieces, *run.pieces))
            found.append(run)
        return found

    def _detected_whole(self, run: LanguageRun, whole: Piece) -> LanguageRun:
        (probed,) = self._runtime.probe_languages(
            self._probe, [self._features.log_mel(whole.start, whole.end)]
        )
        evidence = self._evidence_of(_Detection(probed, is_alone=True), whole.duration_s)
        if hint_nats(evidence, self._codes.index(run.language)) < OTHER_NATS:
            return run
        return LanguageRun(
            self._codes[int(evidence.posterior.argmax())], run.pieces, float(evidence.sureness)
        )

    def _finds_another(self, pieces: Sequence[Piece], current: str | None) -> bool:
        expected = self._codes.index(current or self._dominant(pieces))
        self._limits = self._limits.rested()
        hints = {piece: self._hint(piece, expected) for piece in pieces}
        strong = [piece for piece in pieces if hints[piece] >= self._limits.hint_nats]
        for piece in sorted(strong, key=lambda piece: -hints[piece])[:N_HINTS]:
            self._detect_separately([piece])
            if is_likely(self._evidence(piece), expected):
                self._detect_separately(pieces)
                self.is_several = self._are_several(pieces, expected)
                break
        if strong and not self.is_several:
            self._limits = self._limits.after_hints()
        return self.is_several

    def _are_several(self, pieces: Sequence[Piece], expected: int) -> bool:
        return are_several([self._evidence(one) for one in pieces], pauses_s(pieces), expected)

    def _hint(self, piece: Piece, expected: int) -> float:
        return hint_nats(self._evidence(piece), expected) if piece.duration_s >= HINT_S else 0.0

    def _detect_uncertain(self, pieces: Sequence[Piece]) -> None:
        """Encode separately the pieces that may be in another language, and their neighbours."""
        expected = self._dominant(pieces)
        place, among = self._probe.languages.index(expected), self._codes.index(expected)
        waiting = [
            index
            for index, piece in enumerate(pieces)
            if self._detections[piece].probed.probabilities[place] < self._limits.clear
        ]
        doubtful = set(waiting)
        finds_another = False
        while waiting:
            index = waiting.pop()
            self._detect_separately([pieces[index]])
            evidence = self._evidence(pieces[index])
            finds_another = finds_another or is_likely(evidence, among)
            if int(evidence.posterior.argmax()) != among:
                beside = range(max(0, index - BESIDE), min(len(pieces), index + BESIDE + 1))
                waiting += [one for one in beside if one not in doubtful]
                doubtful.update(beside)
        self._limits = self._limits.after_pieces(finds_another=finds_another)

    def _dominant(self, pieces: Sequence[Piece]) -> str:
        total = sum(piece.duration_s * self._evidence(piece).posterior for piece in pieces)
        return self._codes[int(np.argmax(total))]

    def _detect_separately(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            detection = self._detections.get(piece)
            if detection is None or not (detection.is_alone or piece.duration_s < SHORTEST_S):
                log_mel = self._features.log_mel(piece.start, piece.end)
                (probed,) = self._runtime.probe_languages(self._probe, [log_mel])
                self._detections[piece] = _Detection(probed, is_alone=True)
                self._note_outside(piece, probed)

    def _note_outside(self, piece: Piece, probed: ProbedLanguage) -> None:
        likeliest = int(probed.probabilities.argmax())
        is_sure = probed.probabilities[likeliest] * (1.0 - probed.no_speech) >= OUTSIDE
        if is_sure and likeliest not in self._places and piece.duration_s >= OUTSIDE_S:
            outside, code = self._state.outside_languages, self._probe.languages[likeliest]
            seconds = outside.get(code, 0.0) + piece.duration_s
            self._state.outside_languages = {**outside, code: seconds}

    def _evidence(self, piece: Piece) -> PieceEvidence:
        return self._evidence_of(self._detections[piece], piece.duration_s, self._text.get(piece))

    def _evidence_of(
        self, detection: _Detection, seconds: float, text: npt.NDArray[np.float64] | None = None
    ) -> PieceEvidence:
        chosen = detection.probed.probabilities[self._places] * self._prior
        total = chosen.sum()
        posterior = chosen / total if total > 0.0 else np.full(len(chosen), 1.0 / len(chosen))
        is_reliable = detection.is_alone or seconds >= SHORTEST_S
        no_speech, counted_s = detection.probed.no_speech, seconds if is_reliable else 0.0
        return PieceEvidence(counted_s, posterior, no_speech, self._shares, text)

    def _smoothed(self, pieces: Sequence[Piece], current: str | None) -> list[LanguageRun]:
        before = self._codes.index(current) if current in self._codes else None
        pauses = pauses_s(pieces)
        evidence = [self._evidence(piece) for piece in pieces]
        runs = language_runs(evidence, pauses, before=before)
        english = self._codes.index("en") if "en" in self._codes else None
        uncertain = uncertain_runs(evidence, runs, before=before, english=english)
        for run, languages in uncertain:
            own = pieces[run.first : run.end]
            nats = self._text_nats(own, pieces, languages)
            added = text_evidence(nats, evidence, runs, before)
            seconds = sum(piece.duration_s for piece in own)
            self._text.update({piece: piece.duration_s / seconds * added for piece in own})
        if uncertain:
            evidence = [self._evidence(piece) for piece in pieces]
            runs = language_runs(evidence, pauses, before=before)
        self._spoken |= {run.language for run in runs if is_sure(evidence[run.first : run.end], run)}
        return [
            LanguageRun(
                self._codes[run.language],
                tuple(pieces[run.first : run.end]),
                _mean(evidence[run.first : run.end], run.language),
            )
            for run in runs
        ]

    def _text_nats(
        self, stretch: Sequence[Piece], pieces: Sequence[Piece], languages: Sequence[int]
    ) -> dict[int, float]:
        codes = [self._codes[place] for place in languages]
        nats = self._likelihood.nats(with_silence(stretch, pieces), codes)
        return {place: nats[code] for place, code in zip(languages, codes, strict=True)}

    def _forget_before(self, frame: int) -> None:
        for piece in [piece for piece in self._detections if piece.end <= frame]:
            del self._detections[piece]
        self._likelihood.forget_before(frame)


def follower_of(
    transcriber: Transcriber, features: RecordingFeatures, state: TranscriptionState
) -> LanguageFollower | None:
    return LanguageFollower(transcriber, features, state) if transcriber.may_follow else None


def _mean(evidence: Sequence[PieceEvidence], language: int) -> float:
    weights = [max(one.duration_s, 1e-3) for one in evidence]
    return float(np.average([one.posterior[language] for one in evidence], weights=weights))
