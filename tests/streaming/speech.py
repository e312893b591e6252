"""Speech of tones that a scripted model understands: every word is a tone, every language has its own.

It goes the whole way of real audio (samples, log-mel, windows, encoder states), so that what is lost,
doubled or shifted on the way shows as a wrong word. A window may begin or end anywhere: a word counts
as heard when at least 5 frames (100 ms) of it are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.audio.mel import mel_to_hz
from sottovoce.audio.vad import SileroState
from sottovoce.options.decoding import WINDOW_SAMPLES
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Floats, Samples
from tests.runtime.fake import FakeBackend, Script, ScriptedToken, SpokenLanguage

TOKENIZER = Tokenizer.for_model(51865, language="en")
WORDS = {
    "en": ["time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child"],
    "de": ["und", "der", "die", "das", "nicht", "auch", "mit", "ein", "eine", "von"],
    "es": ["los", "del", "las", "por", "con", "para", "como", "pero", "sus", "este"],
}
WORD_S, GAP_S = 0.3, 0.1
_FIRST_BIN, _BIN_STEP = 16, 2
_LOUD = 0.9  # of a normalised log-mel value; silence is below 0, a tone above 1
_LEAST_FRAMES = 5

_BINS = {
    _FIRST_BIN + _BIN_STEP * i: (code, word)
    for i, (code, word) in enumerate((code, word) for code, words in WORDS.items() for word in words)
}
_BIN_OF = {word: at for at, (_, word) in _BINS.items()}
TOKEN_OF = {word: TOKENIZER.encode(" " + word)[0] for word in _BIN_OF}


def say(words: Sequence[str], *, gap_s: float = GAP_S, word_s: float = WORD_S) -> Samples:
    """Audio of words, each followed by a gap."""
    return np.concatenate([*(part for word in words for part in (_tone(word, word_s), silence(gap_s)))])


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


def _tone(word: str, seconds: float) -> Samples:
    edges = np.linspace(0.0, 45.245640471924965, 82)  # mels of 0 and 8 kHz, see `mel_filters`
    hz = float(mel_to_hz(edges[_BIN_OF[word] + 1 : _BIN_OF[word] + 2])[0])
    t = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (0.5 * np.sin(2 * np.pi * hz * t)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Run:
    word: str
    language: str
    start: int
    end: int


def hear(mel: Floats, row: int = 0) -> Script:
    """What is said in a normalised window (80, n_frames)."""
    n_frames = mel.shape[1] // 2
    pairs = mel[:, : 2 * n_frames].reshape(80, n_frames, 2).min(axis=2)
    runs: list[_Run] = []
    start = 0
    heard = np.where(pairs.max(axis=0) > _LOUD, pairs.argmax(axis=0), -1).tolist()
    for at in range(1, n_frames + 1):
        if at < n_frames and heard[at] == heard[start]:
            continue
        if heard[start] in _BINS and at - start >= _LEAST_FRAMES:
            language, word = _BINS[heard[start]]
            runs.append(_Run(word, language, start, at))
        start = at
    tokens = tuple(ScriptedToken(TOKEN_OF[run.word], (run.start + run.end) // 2) for run in runs)
    return Script(tokens, tuple(SpokenLanguage(run.language, run.start, run.end) for run in runs))


def backend() -> FakeBackend:
    return FakeBackend(hear)


class ToneDetector:
    """Speech is what is louder than nothing: a `SpeechModel` for `VadStream`."""

    def start(self) -> SileroState:
        return SileroState(*(np.zeros(1, np.float32) for _ in range(3)))

    def probabilities(self, samples: Samples, state: SileroState) -> tuple[Floats, SileroState]:
        loud = np.abs(samples.reshape(-1, WINDOW_SAMPLES)).max(axis=1) > 0.05
        return loud.astype(np.float32), state
