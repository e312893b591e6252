"""What is drawn of a recording: spectrogram, speech, languages, words, and the attention that times these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sottovoce.api import Model
from sottovoce.audio.mel import log_mel, normalize, window_features
from sottovoce.audio.silero import WINDOW_SAMPLES, load_silero
from sottovoce.audio.speech_windows import SpeechWindows
from sottovoce.errors import OptionError
from sottovoce.language.probe import LanguageProbe
from sottovoce.offline.words import WindowText, attention_of
from sottovoce.types import SAMPLE_RATE, Samples, Transcript, Word

LONGEST_S = 30.0
"""Of one picture: the window of the model."""
STRETCH_S, HOP_S = 2.0, 0.5
"""What is heard for its language, and how often."""
MEL_FRAMES_A_SECOND = 100
LEAST_SPEECH = 0.5
MOST_TOKENS = 440

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Languages:
    """Probabilities (n, n_languages) of `codes` around `centres_s` (n,), where somebody speaks."""

    codes: tuple[str, ...]
    centres_s: Array
    probabilities: Array


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """How well tokens and frames of 20 ms fit: matrix (n_tokens, n_frames); the text of each token."""

    matrix: Array
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """A part of a recording as it is drawn; all times are seconds of the recording.

    mel: (n_mels, n) as the encoder sees it. speech: (n,) in windows of 32 ms. languages, attention:
    None where the model cannot tell, or nobody speaks.
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


def heard(
    model: Model, samples: Samples, transcript: Transcript, *, name: str = "", start_s: float = 0.0
) -> Heard:
    """All that is drawn of a part of a recording, of which the transcript has the words with their times.

    samples: (n,) at 16 kHz, at most 30 s. transcript: of these samples alone. start_s: where they begin.
    Raises: OptionError for a longer part, or one too short to see anything.
    """
    duration_s = len(samples) / SAMPLE_RATE
    if not 0.1 <= duration_s <= LONGEST_S + 0.01:
        raise OptionError(f"picture: expected 0.1 to {LONGEST_S:g} s, got {duration_s:.2f} s")
    mel = log_mel(samples, model.backend.dims.n_mels)
    windows = SpeechWindows(load_silero())
    speech = np.array([*windows.push(samples), *windows.finish()], np.float32)
    return Heard(
        name=name,
        model=model.name,
        start_s=start_s,
        duration_s=duration_s,
        mel=normalize(mel).numpy(),
        speech=speech,
        words=tuple(_later(word, start_s) for s in transcript.segments for word in s.words or ()),
        languages=_languages(model, samples, speech, start_s),
        attention=_attention(model, samples, transcript),
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


def _languages(model: Model, samples: Samples, speech: Array, start_s: float) -> Languages | None:
    """The languages that are likeliest anywhere, in stretches with speech."""
    if not model.tokenizer.is_multilingual:
        return None
    mel = log_mel(samples, model.backend.dims.n_mels, model.backend.device)
    n_stretch = round(STRETCH_S * MEL_FRAMES_A_SECOND)
    starts = range(0, max(1, mel.shape[1] - n_stretch // 2), round(HOP_S * MEL_FRAMES_A_SECOND))
    spans = [(start, min(start + n_stretch, mel.shape[1])) for start in starts]
    spans = [span for span in spans if span[1] - span[0] >= 20 and _is_spoken(speech, span)]
    if not spans:
        return None
    probe = LanguageProbe(model.backend, model.tokenizer, model.languages)
    found = [probe.hear([mel[:, first:end]])[0].probabilities for first, end in spans]
    centres = np.array(
        [(first + end) / 2 / MEL_FRAMES_A_SECOND + start_s for first, end in spans], np.float32
    )
    return Languages(model.languages, centres, np.array(found, np.float32))


def _is_spoken(speech: Array, span: tuple[int, int]) -> bool:
    per_frame = SAMPLE_RATE / MEL_FRAMES_A_SECOND / WINDOW_SAMPLES
    inside = speech[int(span[0] * per_frame) : int(span[1] * per_frame) + 1]
    return bool(len(inside)) and float(np.mean(inside >= LEAST_SPEECH)) >= 0.25


def _attention(model: Model, samples: Samples, transcript: Transcript) -> Attention | None:
    tokenizer = model.tokenizer
    code = transcript.language or "en"
    if tokenizer.is_multilingual:
        tokenizer = tokenizer.with_language(code)
    tokens = _text_tokens(transcript, tokenizer.eot)
    if not tokens or not model.backend.capabilities.attention:
        return None
    mel = log_mel(samples, model.backend.dims.n_mels, model.backend.device)
    features = window_features([mel], 2 * model.backend.dims.n_audio_ctx)
    encoded = model.backend.encode(features)
    matrix = attention_of(model.backend, encoded, WindowText(tokenizer, tokens, mel.shape[1]))
    texts = tuple(tokenizer.token_bytes(token).decode(errors="replace") for token in tokens)
    return Attention(matrix[:-1].float().cpu().numpy(), texts)


def _text_tokens(transcript: Transcript, eot: int) -> tuple[int, ...]:
    found = [token for segment in transcript.segments for token in segment.tokens if token < eot]
    return tuple(found[:MOST_TOKENS])


def likeliest(languages: Languages, n_languages: int = 5, least: float = 0.15) -> Sequence[int]:
    """Indices of the languages to draw: likely somewhere, the likeliest on the whole first."""
    mean, peak = languages.probabilities.mean(axis=0), languages.probabilities.max(axis=0)
    order = np.argsort(-mean)
    return [int(i) for i in order if peak[i] >= least][:n_languages] or [int(order[0])]
