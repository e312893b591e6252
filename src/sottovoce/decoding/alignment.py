"""Alignment of tokens and words to audio frames by cross-attention.

The attention of a few heads is cut to the frames of the audio, softmaxed, normalised over tokens,
median-filtered over frames, averaged over heads, and aligned by dynamic time warping. The decoder runs
again over the text of all segments of a window, several windows in a batch. Streaming uses the same steps
with running statistics.

Source: openai-whisper 20250625, timing.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.decoding.decode import Stepwise, finish, select_windows
from sottovoce.models.backend import Backend
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, EncoderOutput, Token

FILTER_WIDTH = 7
"""Frames of the median filter (140 ms)."""
_MEDIAN_NETWORK = (
    *((0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6)),
    *((2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4)),
)
"""Comparisons that move the median of seven to the middle. Source: Devillard 1998, opt_med7."""
_TINY = 1e-12
"""Least standard deviation: constant attention has a z-score of 0 instead of NaN."""


def cut_frames(attention: Tensor, n_frames: int) -> Tensor:
    """Cut attention (..., n) to the first n_frames and renormalise by softmax."""
    cut = attention[..., :n_frames]
    return cut / cut.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(cut.dtype).tiny)


def normalize_over_tokens(attention: Tensor) -> Tensor:
    """Compute the z-score (..., n_tokens, n_frames) of each frame over all tokens."""
    std, mean = torch.std_mean(attention, dim=-2, keepdim=True, correction=0)
    return (attention - mean) / std.clamp_min(_TINY)


def median_filter(values: Tensor) -> Tensor:
    """Compute the running median of `FILTER_WIDTH` values over the last dimension (..., n), mirrored at
    both ends.

    Rows of at most `FILTER_WIDTH` // 2 values are returned unchanged. A network of minima and maxima is ten
    times as fast as sorting.
    """
    half = FILTER_WIDTH // 2
    n_values = values.shape[-1]
    if n_values <= half:
        return values
    rows = F.pad(values.reshape(1, -1, n_values), (half, half), mode="reflect")
    shifted = [rows[..., offset : offset + n_values] for offset in range(FILTER_WIDTH)]
    for low, high in _MEDIAN_NETWORK:
        shifted[low], shifted[high] = (
            torch.minimum(shifted[low], shifted[high]),
            torch.maximum(shifted[low], shifted[high]),
        )
    return shifted[half].reshape(values.shape)


def mean_over_heads(attention: Tensor) -> Tensor:
    """Average (..., n_heads, n_tokens, n_frames) to (..., n_tokens, n_frames)."""
    return attention.mean(dim=-3)


def alignment_matrix(attention: Tensor, n_frames: int) -> Tensor:
    """Compute the alignment scores (n_tokens, n_frames) of a sequence; higher is better.

    attention: (n_heads, n_tokens, n_all_frames), softmax over all frames.
    """
    weights = normalize_over_tokens(cut_frames(attention, n_frames))
    return mean_over_heads(median_filter(weights))


@dataclass(frozen=True, slots=True, eq=False)
class RunningStatistics:
    """Running mean and variance over tokens, for the z-score of `normalize_over_tokens`.

    n_tokens: (..., 1). mean, squares: (..., n_frames), mean and sum of squared deviations.

    Source: Chan, Golub, LeVeque 1979 (pairwise update).
    """

    n_tokens: Tensor
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, attention: Tensor, counted: Tensor | None = None) -> RunningStatistics:
        """Compute the statistics of tokens (..., n_tokens, n_frames).

        counted: (..., n_tokens), 1 for tokens and 0 for padding, at least one 1; None: all 1.
        """
        if counted is None:
            counted = attention.new_ones(attention.shape[-2:-1])
        weight = counted.unsqueeze(-1)
        n_tokens = weight.sum(dim=-2)
        mean = (attention * weight).sum(dim=-2) / n_tokens
        return cls(n_tokens, mean, ((attention - mean.unsqueeze(-2)).square() * weight).sum(dim=-2))

    def updated(self, attention: Tensor, counted: Tensor | None = None) -> RunningStatistics:
        """Return the statistics with more tokens (..., n_new, n_frames); counted: as in `of`."""
        new = RunningStatistics.of(attention, counted)
        total = self.n_tokens + new.n_tokens
        delta = new.mean - self.mean
        return RunningStatistics(
            total,
            self.mean + delta * (new.n_tokens / total),
            self.squares + new.squares + delta.square() * (self.n_tokens * new.n_tokens / total),
        )

    def select(self, rows: Tensor) -> RunningStatistics:
        """Select `rows` (R',) of the first dimension."""
        n_tokens = self.n_tokens[rows] if self.n_tokens.ndim == self.mean.ndim else self.n_tokens
        return RunningStatistics(n_tokens, self.mean[rows], self.squares[rows])

    def normalize(self, attention: Tensor, *, floor: Tensor | float = 0.0) -> Tensor:
        """Compute the z-score of tokens (..., n, n_frames) against all tokens so far.

        floor: added to the standard deviation; broadcastable to (..., n_frames).
        """
        std = ((self.squares / self.n_tokens).sqrt() + floor).clamp_min(_TINY)
        return (attention - self.mean.unsqueeze(-2)) / std.unsqueeze(-2)


@dataclass(frozen=True, slots=True, eq=False)
class WarpPath:
    """The cheapest monotonic path through each matrix of a batch.

    first, last: (B, n_tokens) int64, the frames of each token; undefined for padding.
    """

    first: Tensor
    last: Tensor


def dtw(cost: Tensor, n_tokens: Tensor | None = None, n_frames: Tensor | None = None) -> WarpPath:
    """Dynamic time warping of cost matrices (B, n_tokens, n_frames), on the CPU in float64.

    n_tokens, n_frames: (B,) int64 sizes of each matrix; None: all. A step goes to the next frame, the next
    token or both; ties go to the next frame.

    With the running sum S of a row x, the recurrence c[j] = x[j] + min(above[j], c[j - 1]) is S[j] plus
    the running minimum of above[j] - S[j - 1]: one cumulative sum and one cumulative minimum per token.
    """
    cost = cost.detach().cpu().double()  # in this order: MPS has no float64
    everything = torch.tensor(cost.shape[1:])
    token_counts = everything[0].expand(len(cost)) if n_tokens is None else n_tokens.cpu()
    frame_counts = everything[1].expand(len(cost)) if n_frames is None else n_frames.cpu()
    steps = _best_steps(cost)
    first = torch.zeros(cost.shape[:2], dtype=torch.int64)
    last = torch.zeros_like(first)
    frame = frame_counts - 1
    for token in range(cost.shape[1] - 1, -1, -1):
        entry = steps.entry[:, token].gather(1, frame[:, None])[:, 0]
        diagonal = steps.diagonal[:, token].gather(1, entry[:, None])[:, 0]
        first[:, token], last[:, token] = entry, frame
        frame = torch.where(token < token_counts, entry - diagonal.long(), frame)
    return WarpPath(first, last)


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """How the best path to each cell (B, n_tokens, n_frames) entered the token's row.

    entry: the frame. diagonal: whether a path that enters here left the frame before.
    """

    entry: Tensor
    diagonal: Tensor


def _best_steps(cost: Tensor) -> _Steps:
    infinite = cost.new_full((len(cost), 1), float("inf"))
    sums = cost.cumsum(dim=2)
    sums_before = F.pad(sums[..., :-1], (1, 0))
    frames = torch.arange(cost.shape[2]).expand_as(cost[:, 0])
    entries = [torch.zeros_like(frames)]
    diagonals = [torch.zeros_like(frames, dtype=torch.bool)]
    row = sums[:, 0]
    for token in range(1, cost.shape[1]):
        shifted = torch.cat((infinite, row[:, :-1]), dim=1)
        diagonals.append(shifted <= row)
        above = torch.minimum(shifted, row)
        row = sums[:, token] + (above - sums_before[:, token]).cummin(dim=1).values
        entered = above < torch.cat((infinite, row[:, :-1]), dim=1)
        entries.append(torch.where(entered, frames, 0).cummax(dim=1).values)
    return _Steps(torch.stack(entries, dim=1), torch.stack(diagonals, dim=1))


_CHUNK_TOKENS = 64
"""Tokens of each row in one pass: logits take rows * 64 * n_vocab floats."""


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word of a window: seconds from the window's start, tokens, and their mean probability.

    pieces: the tokens as aligned, whatever the word's own times become.
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
    """The text tokens of a window without timestamps, and its log-mel frames of audio.

    tokenizer: with the language and task of the text.
    """

    tokenizer: Tokenizer
    tokens: tuple[int, ...]
    n_frames: int


def align_windows(
    backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]
) -> list[list[TimedWord]]:
    """Return the timed words of each window.

    texts: one for each window of `encoded`.
    """
    return finish(align_stepwise(backend, encoded, texts))


@torch.inference_mode()
def align_stepwise(
    backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]
) -> Stepwise[list[list[TimedWord]]]:
    """`align_windows` as a generator that yields before each decoder pass."""
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
    """Return the alignment matrix of one window: (n_text_tokens + 1, n_frames); higher is better.

    Row i shows where token i begins; the last row, where the text ends.
    """
    reading = finish(_read(backend, encoded, [text]))
    matrix = alignment_matrix(reading.attention[0].float(), text.n_frames // 2)
    return matrix[len(text.tokenizer.sot_sequence) : -1]


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """Of each row: attention (n_heads, n_tokens, n_frames), and the probabilities of its text tokens."""

    attention: list[Tensor]
    probabilities: list[list[float]]


def _read(backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]) -> Stepwise[_Reading]:
    starts = [text.tokenizer.sot_sequence_including_notimestamps for text in texts]
    eot = texts[0].tokenizer.eot
    sequences = [[*start, *text.tokens, eot] for start, text in zip(starts, texts, strict=True)]
    rows = backend.rows()
    rows.admit(encoded)
    attention: list[list[Tensor]] = [[] for _ in texts]
    probabilities: list[list[float]] = [[] for _ in texts]
    for first in range(0, max(map(len, sequences)), _CHUNK_TOKENS):
        last = first + _CHUNK_TOKENS
        new = [sequence[first:last] for sequence in sequences]
        # The places before text tokens, which lie between the start and the end.
        places = [
            range(max(first, len(start) - 1), min(last, len(start) - 1 + len(text.tokens)))
            for start, text in zip(starts, texts, strict=True)
        ]
        yield
        wanted = [[place - first for place in own] for own in places]
        output = rows.step(new, wanted, capture=backend.alignment_heads)
        following = [
            min(sequence[place + 1], eot - 1)
            for sequence, own in zip(sequences, places, strict=True)
            for place in own
        ]
        logits = output.logits[:, :eot]
        index = torch.tensor(following, dtype=torch.int64, device=logits.device)[:, None]
        found = (logits.gather(1, index)[:, 0] - logits.logsumexp(dim=1)).exp().cpu()
        for row, own in enumerate(torch.split(found, list(map(len, places)))):
            attention[row].append(output.attention[row])
            probabilities[row] += own.tolist()
    return _Reading([torch.cat(parts, dim=1) for parts in attention], probabilities)


def _onsets(reading: _Reading, texts: Sequence[WindowText]) -> list[list[float]]:
    """Return the seconds at which each text token of each row begins, and the end of the last one."""
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
