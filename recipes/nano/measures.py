"""Measurements of a model on short clips: text, spelling, word times, timestamps, language, no speech.

Everything goes through the library's own decoder; a window is 30 s, padded with 0.0 as openai-whisper
does, unless a measurement says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recipes.nano.alignment import UNKNOWN, align
from recipes.nano.texts import UNSPACED, plain, spelled
from sottovoce.api import Model
from sottovoce.audio.mel import WINDOW_FRAMES, log_mel, window_features
from sottovoce.decoding.alignment import WindowText, align_windows, cut_frames
from sottovoce.decoding.decode import DecodingResult, decode
from sottovoce.decoding.detect import detect_language
from sottovoce.models.dims import AlignmentHeads
from sottovoce.options.decoding import DecodingOptions
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, EncoderOutput, Features, Samples

Padding = Literal["zero", "silence", "none"]
BATCH = 8


@dataclass(frozen=True, slots=True)
class Recording:
    """A clip to measure on."""

    samples: Samples
    language: str
    text: str


def features_of(recordings: Sequence[Samples], padding: Padding = "zero") -> Features:
    """A batch of windows: 30 s filled with 0.0 or with silence, or as long as the longest clip."""
    if padding == "silence":
        mels = [log_mel(samples, padding_samples=30 * SAMPLE_RATE) for samples in recordings]
        return window_features(mels)
    mels = [log_mel(samples) for samples in recordings]
    longest = max(mel.shape[1] for mel in mels)
    return window_features(mels, longest + longest % 2 if padding == "none" else WINDOW_FRAMES)


def transcribe(
    model: Model, recordings: Sequence[Recording], padding: Padding = "zero", *, timestamps: bool = False
) -> list[DecodingResult]:
    """Greedy transcripts, the language given."""
    results: list[DecodingResult] = []
    for batch in _batches(recordings):
        encoded = model.backend.encode(features_of([item.samples for item in batch], padding))
        options = [
            DecodingOptions(language=item.language, without_timestamps=not timestamps) for item in batch
        ]
        results += decode(model.backend, model.tokenizer, encoded, options)
    return results


def spellings(model: Model, recordings: Sequence[Recording]) -> list[str]:
    """What the CTC head says, greedily; each clip alone in its window."""
    return ["".join(_collapsed(model, item)) for item in recordings]


@dataclass(frozen=True, slots=True)
class WordTimes:
    """deviations: seconds between DTW's and CTC's start of each word.

    monotonic: share of steps from token to token on which the alignment heads' peak does not go back.
    """

    deviations: npt.NDArray[np.float64]
    monotonic: float


def word_times(model: Model, recordings: Sequence[Recording]) -> WordTimes:
    """Compare the decoder's attention with CTC forced alignment, over the true text."""
    deviations: list[float] = []
    steps: list[bool] = []
    for item in recordings:
        if item.language in UNSPACED:
            continue
        encoded = model.backend.encode(features_of([item.samples]))
        tokenizer = model.tokenizer.with_language(item.language)
        tokens = tuple(tokenizer.encode(f" {item.text}"))
        text = WindowText(tokenizer, tokens, len(item.samples) // 160)
        starts = [word.start for word in align_windows(model.backend, encoded, [text])[0] if plain(word.word)]
        spoken = _spoken_starts(model, encoded, item)
        if len(starts) == len(spoken):
            deviations += [abs(a - b) for a, b in zip(starts, spoken, strict=True)]
        peaks = attention_peaks(model, encoded, text)
        steps += (np.diff(peaks) >= -1).tolist()
    return WordTimes(np.array(deviations), float(np.mean(steps)) if steps else 0.0)


def attention_peaks(
    model: Model, encoded: EncoderOutput, text: WindowText, heads: AlignmentHeads = ()
) -> npt.NDArray[np.int64]:
    """For each text token the frame that the heads attend to most when it comes next.

    heads: the model's alignment heads when empty.
    """
    start = text.tokenizer.sot_sequence_including_notimestamps
    tokens = torch.tensor([[*start, *text.tokens]])
    heads = heads or model.backend.alignment_heads
    step = model.backend.step(tokens, model.backend.start(encoded), capture=heads)
    assert step.attention is not None
    rows = cut_frames(step.attention, text.n_frames).mean(dim=1)[0]  # (n_tokens, n_frames)
    peaks: npt.NDArray[np.int64] = rows[len(start) - 1 : -1].argmax(dim=1).numpy()
    return peaks


def language_rows(model: Model, windows: Sequence[Samples]) -> list[str]:
    """The likeliest of the model's languages for each window, alone in its frames."""
    found = []
    for samples in windows:
        encoded = model.backend.encode(features_of([samples], "none"))
        found.append(detect_language(model.backend, model.tokenizer, encoded, allowed=model.languages)[0])
    return [detection.language for detection in found]


def no_speech(model: Model, windows: Sequence[Samples]) -> list[float]:
    """Probability of nospeech where SOT is read, in padded windows."""
    recordings = [Recording(samples, model.languages[0], "") for samples in windows]
    return [result.no_speech_prob for result in transcribe(model, recordings)]


def with_noise(samples: Samples, snr_db: float, generator: np.random.Generator) -> Samples:
    """Samples with pink noise at a ratio of powers."""
    spectrum = np.fft.rfft(generator.standard_normal(len(samples)))
    frequencies = np.maximum(np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE), 20)
    noise = np.fft.irfft(spectrum / np.sqrt(frequencies), len(samples))
    power = float(np.mean(samples.astype(np.float64) ** 2)) / float(np.mean(noise**2))
    scaled = noise * np.sqrt(power) * 10 ** (-snr_db / 20)
    mixed: Samples = (samples + scaled).astype(np.float32)
    return mixed


def middle(samples: Samples, seconds: float) -> Samples:
    """The middle of a clip, or all of it where it is shorter."""
    n = int(seconds * SAMPLE_RATE)
    start = max(0, (len(samples) - n) // 2)
    return samples[start : start + n]


def joined(
    recordings: Sequence[Recording], pause_s: float = 0.6
) -> tuple[Recording, list[tuple[float, float]]]:
    """One window of several clips of a language, and where each is, in seconds."""
    pause = np.zeros(int(pause_s * SAMPLE_RATE), np.float32)
    parts, spans, at = [pause], [], len(pause)
    for item in recordings:
        spans.append((at / SAMPLE_RATE, (at + len(item.samples)) / SAMPLE_RATE))
        parts += [item.samples, pause]
        at += len(item.samples) + len(pause)
    glue = "" if recordings[0].language in UNSPACED else " "
    text = glue.join(item.text for item in recordings)
    return Recording(np.concatenate(parts), recordings[0].language, text), spans


def timestamps_of(model: Model, result: DecodingResult) -> list[float]:
    """Seconds of the timestamp tokens of a transcript, in order."""
    return [model.tokenizer.seconds(t) for t in result.tokens if model.tokenizer.is_timestamp(t)]


def head_scores(model: Model, recordings: Sequence[Recording]) -> dict[tuple[int, int], tuple[float, float]]:
    """For every decoder head, over the true text: how far its peaks are from CTC's words, and how monotonic.

    Returns the median distance in seconds from each word's first token to CTC's start of the word, and the
    share of steps on which the peak does not go back; the alignment heads are chosen by these.
    """
    dims = model.backend.dims
    heads = [(layer, head) for layer in range(dims.n_text_layer) for head in range(dims.n_text_head)]
    distances: dict[tuple[int, int], list[float]] = {head: [] for head in heads}
    steps: dict[tuple[int, int], list[bool]] = {head: [] for head in heads}
    for item in recordings:
        encoded = model.backend.encode(features_of([item.samples]))
        tokenizer = model.tokenizer.with_language(item.language)
        text = WindowText(tokenizer, tuple(tokenizer.encode(f" {item.text}")), len(item.samples) // 160)
        spoken = _spoken_starts(model, encoded, item)
        firsts = [i for i, token in enumerate(text.tokens) if tokenizer.decode([token]).startswith(" ")]
        for head in heads:
            peaks = attention_peaks(model, encoded, text, (head,))
            steps[head] += (np.diff(peaks) >= -1).tolist()
            if len(firsts) == len(spoken):
                found = peaks[firsts] / FRAMES_PER_SECOND
                distances[head] += np.abs(found - np.array(spoken)).tolist()
    return {head: (float(np.median(distances[head])), float(np.mean(steps[head]))) for head in heads}


def _collapsed(model: Model, item: Recording) -> Iterator[str]:
    assert model.ctc_head is not None
    best = model.ctc_head.emissions(features_of([item.samples], "none")).log_probs[0].argmax(dim=1)
    labels, blank = model.ctc_head.labels, model.ctc_head.blank
    yield from (labels[index] for index, _ in groupby(best.tolist()) if index != blank)


def _spoken_starts(model: Model, encoded: EncoderOutput, item: Recording) -> list[float]:
    """Seconds at which CTC places the first letter of each word."""
    assert model.ctc_head is not None
    spelling = spelled(item.language, item.text)
    labels = {label: index for index, label in enumerate(model.ctc_head.labels)}
    kept = [(place, labels[letter]) for place, letter in enumerate(spelling) if letter in labels]
    emissions = model.ctc_head.emissions_of(encoded).log_probs[0]
    frames = align(_inside(emissions, item)[None], [[label for _, label in kept]])[0]
    before = " " + spelling
    if not kept or frames[0] == UNKNOWN:
        return []
    firsts = [i for i, (place, _) in enumerate(kept) if spelling[place] != " " and before[place] == " "]
    return [float(frames[i]) / FRAMES_PER_SECOND for i in firsts]


def _inside(emissions: Tensor, item: Recording) -> Tensor:
    return emissions[: max(1, len(item.samples) // 320)]


def _batches(recordings: Sequence[Recording]) -> Iterator[Sequence[Recording]]:
    for start in range(0, len(recordings), BATCH):
        yield recordings[start : start + BATCH]
