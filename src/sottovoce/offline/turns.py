"""Where a window's first language ends: recordings in several languages are decoded turn by turn.

The encoder states of the window are probed in stretches (`language.probe`), the stretches smoothed by
a hidden Markov model, and a change is moved to the quietest moment near it. That only proposes: the probe
hears a second or two at a time, and errs. A change stands where the pieces before and after it, each
encoded alone and going on in silence as the model was trained, are in different languages. It knows no text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sottovoce.audio.features import RecordingFeatures
from sottovoce.decoding.detect import LanguageDetection
from sottovoce.language.probe import LanguageProbe, ProbedLanguage
from sottovoce.language.smoothing import SmoothingOptions, viterbi
from sottovoce.offline.engine import Engine
from sottovoce.offline.work import Encode, perform_alone
from sottovoce.types import FRAMES_PER_SECOND, EncoderOutput, Features

WIDTH_S = 2.0
HOP_S = 0.25
SMOOTHING = SmoothingOptions(stay=0.98, evidence=0.7)
SHORTEST_S = 1.0
"""Shorter pieces cannot be told: they are left to what is said around them."""
MARGIN = 0.2
"""By so much of their common probability the new language must lead the one before."""
SEARCH_S = 0.6
"""How far from the change its quietest moment is looked for."""


class Probe(Protocol):
    """What hears the language of stretches of a window; `LanguageProbe`, for one."""

    @property
    def languages(self) -> tuple[str, ...]: ...

    def probe(self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> Sequence[ProbedLanguage]: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """Encoder frames [0, n_frames) of a window in one language; n_frames None: all of the window.

    detection: what was heard in it.
    """

    language: str
    detection: LanguageDetection
    n_frames: int | None

    @property
    def probability(self) -> float:
        """Of its language, among those allowed."""
        mass = self.detection.allowed_mass
        return self.detection.probabilities[self.language] / mass if mass > 0.0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class TurnWindow:
    """One window to be looked at.

    encoded: all of it, a batch of 1. mel: its log-mel (n_mels, 2 * n_frames), for the quietest moment.
    piece: encoder frames [start, end) of it as a window by itself that goes on in silence.
    """

    encoded: EncoderOutput
    mel: Tensor
    piece: Callable[[int, int], Features]

    @property
    def n_frames(self) -> int:
        """Encoder frames of audio."""
        return self.encoded.n_content_frames[0]


@dataclass(frozen=True, slots=True)
class TurnFinder:
    """Finds turns in windows; probe: proposes changes; detect: names the language of an encoded piece."""

    probe: Probe
    detect: Callable[[EncoderOutput], LanguageDetection]

    def first_turn(self, window: TurnWindow, current: str | None = None) -> Generator[Encode, None, Turn]:
        """The language that a window begins with, and where another one begins, if one does.

        current: being spoken before the window; it stays where the window is too short or too doubtful.
        """
        runs = proposed_runs(self.probe, window)
        for index, (start, language) in enumerate(runs[1:], start=1):
            end = runs[index + 1][0] if index + 1 < len(runs) else window.n_frames
            after = yield from self._heard(window, start, end)
            if after.language != language:
                continue
            before = yield from self._heard(window, 0, start)
            said = language_after(current, before)
            if language_after(said, after) != said:
                return Turn(said, before, start)
        whole = yield from self._heard(window, 0, window.n_frames)
        too_short = window.n_frames < SHORTEST_S * FRAMES_PER_SECOND
        said = current if current is not None and too_short else language_after(current, whole)
        return Turn(said, whole, None)

    def _heard(self, window: TurnWindow, start: int, end: int) -> Generator[Encode, None, LanguageDetection]:
        if (start, end) == (0, window.encoded.n_frames):
            return self.detect(window.encoded)  # full: nothing is filled up
        work = Encode(window.piece(start, end))
        yield work
        return self.detect(work.encoded)


def turn_finder(engine: Engine) -> TurnFinder | None:
    """What tells the languages of a recording apart; None where it has one."""
    if engine.known_language is not None or not engine.options.follows_languages:
        return None
    allowed = engine.options.decoding.allowed_languages or engine.tokenizer.language_codes
    codes = [engine.tokenizer.with_language(language).language or "" for language in allowed]
    probe = LanguageProbe(engine.backend, engine.tokenizer, codes)
    return TurnFinder(probe, lambda encoded: engine.detect(encoded)[0])


def language_after(current: str | None, heard: LanguageDetection) -> str:
    """The language of a piece that follows one in the language `current`: another one has to lead it."""
    if current is None or heard.language == current:
        return heard.language
    new, old = heard.probabilities[heard.language], heard.probabilities.get(current, 0.0)
    return heard.language if new - old > MARGIN * (new + old) else current


def proposed_runs(probe: Probe, window: TurnWindow) -> list[tuple[int, str]]:
    """Where the probe hears a language begin, and which: encoder frames, ascending from 0.

    Neighbours differ, and all last SHORTEST_S unless the window does not.
    """
    spans = stretches(window.n_frames)
    probed = probe.probe(window.encoded, spans)
    heard = np.array([one.probabilities ** (1.0 - one.no_speech) for one in probed])
    heard /= heard.sum(axis=1, keepdims=True)
    path = [probe.languages[index] for index in viterbi(heard, SMOOTHING)]
    shortest = SHORTEST_S * FRAMES_PER_SECOND
    runs = [(0, path[0])]
    for index in range(1, len(path)):
        if path[index] == path[index - 1]:
            continue
        start = quietest(window.mel, _centre(spans, index))
        if window.n_frames - start < shortest:
            break
        if start - runs[-1][0] < shortest:
            start = runs.pop()[0]
        if not runs or runs[-1][1] != path[index]:
            runs.append((start, path[index]))
    return runs


@dataclass(frozen=True, slots=True)
class LanguageSpan:
    """A stretch of a recording in one language; seconds, and the mean probability of the language."""

    start: float
    end: float
    language: str
    probability: float


def language_spans(engine: Engine, features: RecordingFeatures) -> Iterator[LanguageSpan]:
    """The languages of a recording in order, without gaps; neighbours differ.

    engine: asked to follow languages. features: of the whole recording, at its beginning.
    """
    finder = turn_finder(engine)
    assert finder is not None, "languages are followed"
    seek, last = 0, None
    while features.has(seek):
        features.drop_before(seek)
        work = Encode(features.window(seek, n_frames=engine.window_frames))
        current = last and last.language
        turn = perform_alone(engine, _turn_at(finder, features, seek, work, current))
        n_frames = work.features.n_content_frames[0] if turn.n_frames is None else 2 * turn.n_frames
        span = LanguageSpan(_seconds(seek), _seconds(seek + n_frames), turn.language, turn.probability)
        if last is not None and last.language != span.language:
            yield last
            last = None
        last = span if last is None else _joined(last, span)
        seek += n_frames
    if last is not None:
        yield last


def _turn_at(
    finder: TurnFinder, features: RecordingFeatures, seek: int, work: Encode, current: str | None
) -> Generator[Encode, None, Turn]:
    yield work
    window = recording_window(features, seek, work)
    return (yield from finder.first_turn(window, current))


def recording_window(features: RecordingFeatures, seek: int, work: Encode) -> TurnWindow:
    """A window of a recording that begins at frame `seek` (10 ms) and is encoded."""
    n_frames = work.features.mel.shape[-1]
    reach = seek + work.features.n_content_frames[0]
    mel = work.features.mel[0, :, : 2 * work.encoded.n_content_frames[0]]

    def piece(start: int, end: int) -> Features:
        return features.window(
            seek + 2 * start, min(seek + 2 * end, reach), n_frames=n_frames, fill="silence"
        )

    return TurnWindow(work.encoded, mel, piece)


def stretches(n_frames: int) -> list[tuple[int, int]]:
    """Spans of WIDTH_S, one every HOP_S; one shorter span where the window is no longer than that."""
    width, hop = round(WIDTH_S * FRAMES_PER_SECOND), round(HOP_S * FRAMES_PER_SECOND)
    starts = range(0, max(1, n_frames - width + 1), hop)
    return [(start, min(start + width, n_frames)) for start in starts]


def quietest(mel: Tensor, frame: int) -> int:
    """The encoder frame with the least energy around it, near `frame`; of equal ones the nearest."""
    loudness: npt.NDArray[np.float64] = mel.float().mean(dim=0).cpu().numpy().astype(np.float64)
    smooth = np.convolve(loudness, np.ones(9) / 9, mode="same")[::2]
    reach = round(SEARCH_S * FRAMES_PER_SECOND)
    low, high = max(1, frame - reach), min(len(smooth), frame + reach)
    near = smooth[low:high] + 1e-6 * np.abs(np.arange(low, high) - frame)
    return low + int(near.argmin())


def _joined(first: LanguageSpan, second: LanguageSpan) -> LanguageSpan:
    weights = first.end - first.start, second.end - second.start
    mean = np.average([first.probability, second.probability], weights=weights)
    return LanguageSpan(first.start, second.end, first.language, float(mean))


def _seconds(mel_frame: int) -> float:
    return mel_frame / (2 * FRAMES_PER_SECOND)


def _centre(spans: list[tuple[int, int]], index: int) -> int:
    """The frame where stretch `index` is half in the old language and half in the new one."""
    start, end = spans[index]
    return (start + end) // 2
