"""The self-test that finds the encoder mode of a checkpoint, on a recording of speech.

The full window of 30 s gives each piece of the recording its text, and the decoder's probabilities along it.
A mode encodes the same piece as it grows, and the decoder reads the same text. The cheapest mode is kept
whose probabilities are about as near as with 5 s of dense padding, which has the errors of the full window
(docs/research/live-encoder.md). No time is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import numpy as np

from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel
from sottovoce.decoding.decode import decode
from sottovoce.decoding.filters import log_softmax
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, EncoderState, IncrementalResult, IncrementalWindow
from sottovoce.models.dims import DENSE, EXACT, NEAR_FRAMES, EncoderMode
from sottovoce.options.decoding import DecodingOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Floats, Samples

PIECES_S = (2.0, 4.0, 7.0, 11.0)
"""Lengths of the pieces, in turn."""
LEAST_S = sum(PIECES_S)
ANCHOR_NORM = 0.6
"""Frames of padding below this share of the median norm attract attention: they have 0.2 in `base` and 0.5 in
`tiny.en`, almost all others more than 0.85.
"""
ANCHOR_SHARE = 0.2
"""Least share of the pieces that show an anchor."""
SPARSE = ((30, 3.5), (20, 3.5), (30, 5.0), (20, 5.0), (10, 3.5))
"""(stride, recompute_s) of the sparse modes, by rising cost. Cheaper ones lost words of `base` on some clips.
"""
TOLERANCE = 1.25
"""Limit of the divergence over that of `DENSE.whole()`; 3.5 s gives 1.03 (`tiny.en`) to 1.10 (`base`)."""
LOOP = 1.0
"""Nats a token: modes of `base` with loops have at least 1.3, all others at most 0.5."""


BUNDLED = Path(__file__).parent / "assets" / "speech.opus"
BUNDLED_PIECES = (("en", 0.0, 11.0), ("de", 11.0, 16.4), ("pt", 16.4, 21.56), ("ja", 21.56, 28.06))
"""Language, start and end (s)."""
ENGLISH_PIECES = (("en", 0.0, 5.3), ("en", 5.3, 11.0))
"""Of English-only models, whose text of other languages is chance."""
NEAR, NEAR_WORST = 0.05, 0.2
"""Mean and worst divergence, in nats a token, up to which modes of `base` have the errors of the full window.
Source: docs/research/live-encoder.md, the table of 40 clips.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ReferencePiece:
    """A piece of speech in the full window.

    log_mel: (n_mels, n). norms: (n_audio_ctx,) of the encoder's states. tokens: prompt and text. log_probs:
    (n_text + 1, n_vocab) after the prompt and each token.
    """

    log_mel: Floats
    norms: Floats
    tokens: tuple[int, ...]
    n_prompt: int
    log_probs: Floats

    @property
    def n_frames(self) -> int:
        return self.log_mel.shape[1] // 2


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a mode.

    mean, worst: Kullback-Leibler divergence from the full window over the pieces, in nats a token. work:
    encoder frames computed for a frame of audio.
    """

    mode: EncoderMode
    mean: float
    worst: float
    work: float


def find_encoder_mode(backend: Backend, tokenizer: Tokenizer, samples: Samples) -> Trial:
    """Return the cheapest valid mode of incremental encoding.

    tokenizer: with the spoken language. samples: (n,) at 16 kHz, at least 24 s of speech.
    Raises: OptionError for less audio, or audio without text.
    """
    pieces = list(speech_pieces(backend, tokenizer, samples))
    if len(pieces) < len(PIECES_S):
        raise OptionError(
            f"self-test of the encoder: expected at least {LEAST_S:g} s of speech, "
            f"got {len(samples) / SAMPLE_RATE:.1f} s of audio with {len(pieces)} pieces of speech"
        )
    anchors = find_anchors(pieces)
    whole = measure(backend, pieces, DENSE.whole())
    sparse = (EncoderMode(stride=s, anchors=anchors, recompute_s=r, refresh_s=0.0) for s, r in SPARSE)
    for trial in (measure(backend, pieces, mode) for mode in (*sparse, DENSE)):
        is_near = trial.mean <= TOLERANCE * whole.mean and trial.worst <= TOLERANCE * whole.worst
        if is_near and trial.worst < LOOP:
            return trial
    return whole if whole.worst < LOOP else measure(backend, pieces, EXACT)


def quick_encoder_mode(backend: Backend, tokenizer: Tokenizer) -> EncoderMode:
    """Return the sparse mode that reads the bundled speech as the full window does, else `DENSE`.

    Encodes ten windows at most. Only the padding is tested; an update recomputes as much as in `DENSE`.
    """
    samples, pieces = load_audio(BUNDLED), list[ReferencePiece]()
    bundled = BUNDLED_PIECES if tokenizer.is_multilingual else ENGLISH_PIECES
    for code, start_s, end_s in bundled:
        known = tokenizer.with_language(code) if tokenizer.is_multilingual else tokenizer
        part = samples[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)]
        pieces += _reference(backend, known, part)
    if len(pieces) < len(bundled):
        return DENSE
    anchors = find_anchors(pieces)
    for stride in (30, 10):
        mode = replace(DENSE, tail_s=None, stride=stride, anchors=anchors)
        each = divergences(backend, pieces, mode.whole())
        if sum(each) <= NEAR * len(each) and max(each) <= NEAR_WORST:
            return mode
        # Those with the worst divergence decide about the next stride, so that ten encodings suffice.
        worst = sorted(range(len(each)), key=each.__getitem__)[-2:]
        pieces = [pieces[index] for index in worst]
    return DENSE


def divergences(backend: Backend, pieces: Sequence[ReferencePiece], mode: EncoderMode) -> list[float]:
    """Return the divergence of each piece, encoded at once."""
    results = backend.encode_incremental([IncrementalWindow(piece.log_mel, mode) for piece in pieces])
    return [_divergence(backend, piece, result) for piece, result in zip(pieces, results, strict=True)]


def speech_pieces(backend: Backend, tokenizer: Tokenizer, samples: Samples) -> Iterator[ReferencePiece]:
    """Cut a recording into pieces with text, and read each in the full window."""
    start = 0
    for seconds in cycle(PIECES_S):
        part = samples[start : start + int(seconds * SAMPLE_RATE)]
        start += len(part)
        if len(part) < seconds * SAMPLE_RATE:
            return
        yield from _reference(backend, tokenizer, part)


def _reference(backend: Backend, tokenizer: Tokenizer, part: Samples) -> Iterator[ReferencePiece]:
    """Read a piece in the full window; nothing without text."""
    n_columns = 2 * (len(part) * FRAMES_PER_SECOND // SAMPLE_RATE)
    mel = log_mel(part, backend.dims.n_mels, padding_samples=SAMPLE_RATE)[:, :n_columns]
    (full,) = backend.encode_incremental([IncrementalWindow(mel, EXACT)])
    options = DecodingOptions(language=tokenizer.language, without_timestamps=True, sample_len=120)
    (result,) = decode(backend, tokenizer, full.encoded, [options])
    if result.tokens:
        prompt = tokenizer.sot_sequence_including_notimestamps
        tokens = (*prompt, *result.tokens)
        norms = np.linalg.norm(full.encoded.states_on_host()[0], axis=-1)
        yield ReferencePiece(mel, norms, tokens, len(prompt), _read(backend, full, tokens, len(prompt)))


def find_anchors(pieces: Sequence[ReferencePiece]) -> tuple[int, ...]:
    """Return the positions of padding that attract attention, ascending."""
    positions = np.arange(len(pieces[0].norms))
    n_low, n_padding = np.zeros((2, len(positions)), np.int64)
    for piece in pieces:
        is_padding = positions >= piece.n_frames + NEAR_FRAMES
        median = np.quantile(piece.norms, 0.5, method="lower")
        n_low += is_padding & (piece.norms < ANCHOR_NORM * median)
        n_padding += is_padding
    # With three pieces, a minute of speech misses anchors.
    is_anchor = (n_low >= ANCHOR_SHARE * n_padding) & (n_low >= 2)
    return tuple(np.flatnonzero(is_anchor).tolist())


def measure(backend: Backend, pieces: Sequence[ReferencePiece], mode: EncoderMode) -> Trial:
    """Compare a mode's probabilities on growing pieces with the full window's."""
    each, n_computed = list[float](), 0
    for piece in pieces:
        result, n_frames = _grown(backend, piece, mode)
        each.append(_divergence(backend, piece, result))
        n_computed += n_frames
    work = n_computed / sum(piece.n_frames for piece in pieces)
    return Trial(mode, sum(each) / len(pieces), max(each), work)


def _divergence(backend: Backend, piece: ReferencePiece, result: IncrementalResult) -> float:
    log_probs = _read(backend, result, piece.tokens, piece.n_prompt)
    return float((np.exp(piece.log_probs) * (piece.log_probs - log_probs)).sum(axis=-1).mean())


def _grown(backend: Backend, piece: ReferencePiece, mode: EncoderMode) -> tuple[IncrementalResult, int]:
    # Twice the interval of sessions, for half the cost.
    every = round(0.5 * FRAMES_PER_SECOND)
    lengths = [*range(every, piece.n_frames, every), piece.n_frames]
    if mode.recompute_s is None:
        (result,) = backend.encode_incremental([IncrementalWindow(piece.log_mel, mode)])
        return result, sum(n + mode.padding(n, backend.dims.n_audio_ctx).n_frames for n in lengths)
    state: EncoderState | None = None
    n_computed = 0
    for length in lengths:
        window = IncrementalWindow(piece.log_mel[:, : 2 * length], mode, state)
        (result,) = backend.encode_incremental([window])
        state = result.state
        n_computed += result.n_computed
    return result, n_computed


def _read(backend: Backend, audio: IncrementalResult, tokens: Sequence[int], n_prompt: int) -> Floats:
    rows = backend.rows()
    rows.admit(audio.encoded)
    logits = rows.step([tokens], [range(n_prompt - 1, len(tokens))]).logits
    return log_softmax(logits)
