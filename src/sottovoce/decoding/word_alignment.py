"""When each word of a text is said: the decoder reads the text again, and its attention is aligned with the
audio.

All segments of a window are aligned in one pass, and several windows together. Source: openai-whisper
20250625, timing.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.decoding.alignment import alignment_matrix, dtw
from sottovoce.decoding.decode import select_windows
from sottovoce.decoding.stepwise import Stepwise, finish
from sottovoce.errors import OptionError
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, EncoderOutput, Token

_CHUNK_TOKENS = 64
"""Positions whose logits are held at once: rows * 64 * n_vocab floats."""


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word of a window: seconds from the window's start, its tokens, their mean probability.

    pieces: the tokens as they were aligned, whatever the word's own times become.
    """

    word: str
    tokens: tuple[int, ...]
    start: float
    end: float
    probability: float
    pieces: tuple[Token, ...] = ()

    @property
    def duration(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class WindowText:
    """What is said in a window: text tokens without timestamps, and log-mel frames of audio in it.

    tokenizer: with the language and task that the text was decoded with.
    """

    tokenizer: Tokenizer
    tokens: tuple[int, ...]
    n_frames: int


def align_windows(
    backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]
) -> list[list[TimedWord]]:
    """Time the words of every window; windows without text get none.

    texts: one for each window of `encoded`.
    Raises: OptionError when the backend cannot show its attention.
    """
    return finish(align_stepwise(backend, encoded, texts))


@torch.inference_mode()
def align_stepwise(
    backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]
) -> Stepwise[list[list[TimedWord]]]:
    """`align_windows`, with a pause before each pass of the decoder.

    Raises: OptionError as `align_windows`, at the first step.
    """
    if not backend.capabilities.attention:
        raise OptionError(f"{backend.name}: this runtime gives no attention, which word times need")
    spoken = [window for window, text in enumerate(texts) if text.tokens and text.n_frames >= 2]
    words: list[list[TimedWord]] = [[] for _ in texts]
    if not spoken:
        return words
    chosen = [texts[window] for window in spoken]
    reading = yield from _read(backend, select_windows(encoded, spoken), chosen)
    onsets = _onsets(reading, chosen)
    for row, window in enumerate(spoken):
        words[window] = _timed_words(texts[window], onsets[row], reading.probabilities[row])
    return words


@torch.inference_mode()
def attention_of(backend: Backend, encoded: EncoderOutput, text: WindowText) -> Tensor:
    """Return what the words of one window are timed by: (n_text_tokens + 1, n_frames), higher where they fit.

    Row i tells when token i begins; the last one, when the text ends.
    """
    reading = finish(_read(backend, encoded, [text]))
    matrix = alignment_matrix(reading.attention[0].float(), text.n_frames // 2)
    return matrix[len(text.tokenizer.sot_sequence) : -1]


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """attention: (R, n_heads, n_tokens, n_frames). probabilities: of each text token of each row."""

    attention: Tensor
    probabilities: list[list[float]]


def _read(backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]) -> Stepwise[_Reading]:
    """Feed every text after its start of transcript, without timestamps."""
    starts = [text.tokenizer.sot_sequence_including_notimestamps for text in texts]
    eot = texts[0].tokenizer.eot
    rows = [[*start, *text.tokens, eot] for start, text in zip(starts, texts, strict=True)]
    longest = max(map(len, rows))
    # Padding after the end is seen by nothing before it.
    tokens = torch.tensor([row + [eot] * (longest - len(row)) for row in rows], device=backend.device)
    decoder = backend.start(encoded)
    attention, logprobs = [], []
    for first in range(0, longest, _CHUNK_TOKENS):
        chunk = tokens[:, first : first + _CHUNK_TOKENS]
        yield
        step = backend.step(chunk, decoder, positions=None, capture=backend.alignment_heads)
        assert step.attention is not None
        attention.append(step.attention)
        following = tokens[:, first + 1 : first + 1 + chunk.shape[1]]
        logits = step.logits[:, : following.shape[1], :eot].float()
        chosen = logits.gather(2, following.clamp(max=eot - 1)[..., None])[..., 0]
        logprobs.append(chosen - logits.logsumexp(dim=2))
    probabilities = torch.cat(logprobs, dim=1).exp().cpu()
    first_text = len(starts[0]) - 1
    return _Reading(
        attention=torch.cat(attention, dim=2),
        probabilities=[
            probabilities[row, first_text : first_text + len(text.tokens)].tolist()
            for row, text in enumerate(texts)
        ],
    )


def _onsets(reading: _Reading, texts: Sequence[WindowText]) -> list[list[float]]:
    """Seconds at which each text token of each row begins, and after them the end of the last."""
    n_start = len(texts[0].tokenizer.sot_sequence)
    matrices = []
    for attention, text in zip(reading.attention, texts, strict=True):
        n_tokens = n_start + 1 + len(text.tokens) + 1
        matrix = alignment_matrix(attention[:, :n_tokens].float(), text.n_frames // 2)
        matrices.append(matrix[n_start:-1].cpu())
    token_counts = torch.tensor([matrix.shape[0] for matrix in matrices])
    frame_counts = torch.tensor([matrix.shape[1] for matrix in matrices])
    cost = torch.zeros(len(matrices), int(token_counts.max()), int(frame_counts.max()))
    for row, matrix in enumerate(matrices):
        cost[row, : matrix.shape[0], : matrix.shape[1]] = -matrix
    first = dtw(cost, token_counts, frame_counts).first
    return [
        [frame / FRAMES_PER_SECOND for frame in first[row, :n].tolist()]
        for row, n in enumerate(token_counts.tolist())
    ]


def _timed_words(
    text: WindowText, onsets: Sequence[float], probabilities: Sequence[float]
) -> list[TimedWord]:
    words, pieces = text.tokenizer.split_to_word_tokens([*text.tokens, text.tokenizer.eot])
    bounds = [0, *accumulate(len(piece) for piece in pieces[:-1])]
    tokens = _timed_tokens(text, onsets, probabilities)
    return [
        TimedWord(
            word=word,
            tokens=tuple(piece),
            start=onsets[first],
            end=onsets[last],
            probability=statistics.fmean(probabilities[first:last]),
            pieces=tuple(tokens[first:last]),
        )
        for word, piece, first, last in zip(words, pieces, bounds, bounds[1:], strict=False)
    ]


def _timed_tokens(text: WindowText, onsets: Sequence[float], probabilities: Sequence[float]) -> list[Token]:
    return [
        Token(token, text.tokenizer.token_bytes(token).decode(errors="replace"), start, end, probability)
        for token, start, end, probability in zip(
            text.tokens, onsets, onsets[1:], probabilities, strict=False
        )
    ]
