"""Collect what is drawn of a recording: spectrogram, speech, languages, words, and token attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sottovoce.api import Model
from sottovoce.audio.mel import MEL_FRAMES_PER_SECOND, log_mel, normalize, window_features
from sottovoce.audio.vad import SpeechFinder, SpeechWindows, load_silero
from sottovoce.decoding.word_alignment import WindowText, attention_of
from sottovoce.errors import OptionError
from sottovoce.language.probe import LanguageProbe
from sottovoce.offline.pieces import PIECE_VAD, pieces_between
from sottovoce.types import SAMPLE_RATE, Samples, Transcript, Word

LONGEST_S = 30.0
"""Of one picture: the window of the model."""
LEAST_FRAMES, HOP_FRAMES = 20, 50
"""Log-mel frames: pieces of speech that are not too short to be told, and how often a piece is drawn."""
MOST_TOKENS = 440

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Languages:
    """Language probabilities (n, n_languages) of `codes` at times `centres_s` (n,), within speech."""

    codes: tuple[str, ...]
    centres_s: Array
    probabilities: Array


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Alignment scores (n_tokens, n_frames) of tokens and 20 ms encoder frames; the text of each token."""

    matrix: Array
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FigureData:
    """A part of a recording as it is drawn; all times are seconds of the recording.

    mel: (n_mels, n) float32, normalised as the encoder sees it. speech: (n,) probabilities of windows of 32
    ms. languages, attention: None where the model does not give them, or nobody speaks.
    """

    name: str
    model: str
    start_s: float
    duration_s: float
    mel: Array
    speech: Array
    words: tuple[Word, ...]
    languages: Languages | None
    attention: Attention | None


def collect(
    model: Model, samples: Samples, transcript: Transcript, *, name: str = "", start_s: float = 0.0
) -> FigureData:
    """Run the model and the speech detector over a part of a recording, whose transcript has word times.

    samples: (n,) float32 at 16 kHz, at most 30 s. transcript: of these samples alone. start_s: of the samples
    in the recording.
    Raises: OptionError for a part that is longer, or too short to show anything.
    """
    duration_s = len(samples) / SAMPLE_RATE
    if not 0.1 <= duration_s <= LONGEST_S + 0.01:
        raise OptionError(f"picture: expected 0.1 to {LONGEST_S:g} s, got {duration_s:.2f} s")
    mel = log_mel(samples, model.backend.dims.n_mels, model.backend.device)
    windows = SpeechWindows(load_silero())
    speech = np.array([*windows.push(samples), *windows.finish()], np.float32)
    return FigureData(
        name=name,
        model=model.name,
        start_s=start_s,
        duration_s=duration_s,
        mel=normalize(mel).cpu().numpy(),
        speech=speech,
        words=tuple(_later(word, start_s) for s in transcript.segments for word in s.words or ()),
        languages=_languages(model, samples, mel, start_s),
        attention=_attention(model, mel, transcript),
    )


def _later(word: Word, seconds: float) -> Word:
    return Word(
        word.word,
        word.start + seconds,
        word.end + seconds,
        word.probability,
        word.language,
        word.speaker,
    )


def _languages(model: Model, samples: Samples, mel: Tensor, start_s: float) -> Languages | None:
    """Detect the languages of the pieces of speech, each encoded by itself, as in files that switch."""
    if not model.tokenizer.is_multilingual:
        return None
    finder = SpeechFinder(PIECE_VAD)
    finder.push(samples)
    finder.finish()
    pieces = [piece for piece in pieces_between(finder, 0, mel.shape[1]) if piece.n_frames >= LEAST_FRAMES]
    if not pieces:
        return None
    probe = LanguageProbe(model.backend, model.tokenizer, model.languages)
    centres, found = [], []
    for piece in pieces:
        (probed,) = probe.detect([mel[:, piece.start : piece.end]])
        for frame in range(piece.start, piece.end, HOP_FRAMES):
            centres.append(frame / MEL_FRAMES_PER_SECOND + start_s)
            found.append(probed.probabilities)
        centres.append(piece.end / MEL_FRAMES_PER_SECOND + start_s)
        found.append(probed.probabilities)
    return Languages(model.languages, np.array(centres, np.float32), np.array(found, np.float32))


def _attention(model: Model, mel: Tensor, transcript: Transcript) -> Attention | None:
    tokenizer = model.tokenizer
    code = transcript.language or "en"
    if tokenizer.is_multilingual:
        tokenizer = tokenizer.with_language(code)
    tokens = _text_tokens(transcript, tokenizer.eot)
    if not tokens or not model.backend.capabilities.attention:
        return None
    features = window_features([mel], 2 * model.backend.dims.n_audio_ctx)
    encoded = model.backend.encode(features)
    matrix = attention_of(model.backend, encoded, WindowText(tokenizer, tokens, mel.shape[1]))
    texts = tuple(tokenizer.token_bytes(token).decode(errors="replace") for token in tokens)
    return Attention(matrix[:-1].float().cpu().numpy(), texts)


def _text_tokens(transcript: Transcript, eot: int) -> tuple[int, ...]:
    found = [token for segment in transcript.segments for token in segment.tokens if token < eot]
    return tuple(found[:MOST_TOKENS])


def likeliest(languages: Languages, n_languages: int = 5, least: float = 0.15) -> Sequence[int]:
    """Choose the languages to draw, by index: probable somewhere, the most probable on the whole first."""
    mean, peak = languages.probabilities.mean(axis=0), languages.probabilities.max(axis=0)
    order = np.argsort(-mean)
    return [int(i) for i in order if peak[i] >= least][:n_languages] or [int(order[0])]
