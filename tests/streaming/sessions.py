"""Sessions over spoken tones, and single updates by hand: what the tests of live speech share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sottovoce.audio.vad import VadStream
from sottovoce.language.probe import ProbeOptions
from sottovoce.models.backend import Backend, IncrementalWindow
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.options import CommitOptions, LiveOptions, StreamOptions
from sottovoce.streaming.session import Session, encoder_mode
from sottovoce.streaming.utterance import LiveUtterance
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import (
    SAMPLE_RATE,
    Event,
    Final,
    LanguageChanged,
    Partial,
    Samples,
    Word,
)
from tests.runtime.fake import FakeEncoderOutput
from tests.runtime.noting import Noting
from tests.streaming.speech import WORDS, ToneDetector, backend

TOKENIZER = Tokenizer.for_model(51865)
AT_ONCE = CommitOptions(commit_prob=0.0)
"""What AlignAtt alone lets through is safe."""
ALIGNATT = StreamOptions(frame_threshold=25, commit=AT_ONCE)


def session(
    languages: Sequence[str] = ("en", "de", "es"),
    *,
    vad: bool = True,
    model: Backend | None = None,
    **options: object,
) -> Session:
    """A session over tones; vad: tones are speech and the rest is not, else everything is.

    Tones name their language at once: stretches are as short as their parts ask for.
    """
    options.setdefault("probe", ProbeOptions(1.0, 0.25, 0.25))
    detector = VadStream(model=ToneDetector()) if vad else None
    chosen = LiveOptions(languages=tuple(languages), **options)  # type: ignore[arg-type]
    return Session(model or backend(), TOKENIZER, chosen, vad=detector)


def listen(live: Session, audio: Samples, chunk: int = 8000) -> list[Event]:
    """Every event of a recording that is pushed in pieces of so many samples."""
    events: list[Event] = []
    for start in range(0, len(audio), chunk):
        events += live.push(audio[start : start + chunk])
    return events + live.close()


def run(
    audio: Samples, options: StreamOptions = ALIGNATT, *, chunk_s: float | None = None
) -> tuple[Session, list[Word]]:
    """A session of one language in which everything is speech, and every word of it."""
    if chunk_s is not None:
        options = replace(options, chunk_s=chunk_s)
    live = session(["en"], vad=False, switching="off", stream=options)
    return live, said_words(listen(live, audio))


def said_words(events: Sequence[Event]) -> list[Word]:
    return [word for event in events if isinstance(event, Partial) for word in event.words]


def text(words: Sequence[Word]) -> list[str]:
    return "".join(word.word for word in words).split()


def words_of(events: Sequence[Event]) -> list[str]:
    return text(said_words(events))


def changes_of(events: Sequence[Event]) -> list[LanguageChanged]:
    return [event for event in events if isinstance(event, LanguageChanged)]


def finals_of(events: Sequence[Event]) -> list[Final]:
    return [event for event in events if isinstance(event, Final)]


def spoken(language: str, n: int, seed: int = 0) -> list[str]:
    """Words without immediate repeats, of which two tones would be one."""
    rng = random.Random(f"{language} {seed}")
    words: list[str] = []
    while len(words) < n:
        words.append(rng.choice([word for word in WORDS[language] if not words or word != words[-1]]))
    return words


def utterance_of(live: Session) -> LiveUtterance:
    assert live._decoder is not None
    return live._decoder.utterance


def held_s(live: Session) -> float:
    """Seconds of audio that the utterance of a session holds."""
    utterance = utterance_of(live)
    return (utterance.end_sample - utterance.start_sample) / SAMPLE_RATE


def blank_window(n_frames: int, start_sample: int = 0) -> AudioWindow:
    states = FakeEncoderOutput(np.zeros((1, n_frames, 1), np.float32), (n_frames,))
    return AudioWindow(states, np.zeros((80, 2 * n_frames), np.float32), start_sample)


class Reading:
    """One utterance in one language, encoded and read by hand; what was read is committed."""

    def __init__(
        self,
        options: StreamOptions = ALIGNATT,
        *,
        model: Backend | None = None,
        tokenizer: Tokenizer = TOKENIZER,
        language: str = "en",
    ) -> None:
        self.backend = model or backend()
        self.runtime = Noting(self.backend)
        chosen = LiveOptions((language,), switching="off", stream=options)
        self.session = Session(self.backend, tokenizer, chosen, runtime=self.runtime)
        self.decoder = self.session._new_decoder(0, None)
        self.utterance = self.decoder.utterance
        self.mode = encoder_mode(options, self.backend)

    def append(self, audio: Samples) -> None:
        self.utterance.append(audio)

    def encode(self, *, until_sample: int | None = None) -> AudioWindow:
        log_mel = self.utterance._mels.frames(until_sample=until_sample)
        (grown,) = self.backend.encode_incremental([IncrementalWindow(log_mel, self.mode)])
        return AudioWindow(grown.encoded, log_mel, self.utterance.start_sample)

    def read(
        self, window: AudioWindow, *, certain_until_s: float = float("inf"), final: bool = False
    ) -> list[Word]:
        n_before = len(self.utterance.committed)
        self.runtime.run(self.decoder.decode(window, certain_until_s=certain_until_s, final=final))
        return [read.word for read in self.utterance.committed._words][n_before:]
