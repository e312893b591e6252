"""Alignment of tokens and words to audio frames by cross-attention, and words of segments.

The attention of a few heads is normalised over tokens, median-filtered over frames, averaged over heads, and
aligned by dynamic time warping. Punctuation joins its words, and implausibly long words are shortened.
Streaming uses the same steps with running statistics.

Source: openai-whisper 20250625, timing.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, islice, pairwise
from types import ModuleType

import numpy as np

from sottovoce.decoding.filters import log_sum_exp
from sottovoce.kernels import load_kernels
from sottovoce.models.backend import Backend, EncoderOutput
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.threads import n_threads
from sottovoce.types import (
    FRAMES_PER_SECOND,
    Floats,
    Ints,
    Segment,
    Stepwise,
    Token,
    Word,
    finish,
)

FILTER_WIDTH = 7
"""Frames of the median filter (140 ms); openai-whisper 20250625, `medfilt_width`."""
MEDIAN_NETWORK = (
    *((0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6)),
    *((2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4)),
)
"""Comparisons that move the median of seven to the middle (Devillard 1998, opt_med7)."""
LEAST_DEVIATION = 1e-12
"""Least standard deviation, so that constant attention has a z-score of 0."""


def cut_frames(attention: Floats, n_frames: int) -> Floats:
    """Cut attention (..., n) to the first n_frames and renormalise it."""
    cut = attention[..., :n_frames]
    total = np.maximum(cut.sum(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    renormalised: Floats = cut / total
    return renormalised


def normalize_over_tokens(attention: Floats) -> Floats:
    """Compute the z-score (..., n_tokens, n_frames) of each frame over all tokens."""
    deviation = attention - attention.mean(axis=-2, keepdims=True, dtype=np.float64).astype(np.float32)
    std = np.sqrt(np.square(deviation).mean(axis=-2, keepdims=True))
    score: Floats = deviation / np.maximum(std, np.float32(LEAST_DEVIATION))
    return score


def median_filter(values: Floats) -> Floats:
    """Compute the running median over the last dimension (..., n), mirrored at both ends.

    A network of minima and maxima is ten times as fast as sorting.
    """
    half = FILTER_WIDTH // 2
    n_values = values.shape[-1]
    if n_values <= half:
        return values
    rows = np.concatenate((values[..., half:0:-1], values, values[..., -2 : -half - 2 : -1]), axis=-1)
    shifted = [rows[..., offset : offset + n_values] for offset in range(FILTER_WIDTH)]
    for low, high in MEDIAN_NETWORK:
        shifted[low], shifted[high] = (
            np.minimum(shifted[low], shifted[high]),
            np.maximum(shifted[low], shifted[high]),
        )
    median: Floats = shifted[half]
    return median


@cache
def _kernels() -> ModuleType | None:
    try:
        return load_kernels("alignatt")
    except ImportError:
        return None


def mean_of_medians(scores: Floats) -> Floats:
    """Median-filter scores (n_heads, n_tokens, n_frames) over frames, and average them over heads."""
    if (kernels := _kernels()) is None:
        mean: Floats = median_filter(scores).mean(axis=0)
        return mean
    scores, mean = np.ascontiguousarray(scores, np.float32), np.empty(scores.shape[1:], np.float32)
    kernels.alignatt.mean_of_medians(scores.ctypes.data, scores.shape, mean.ctypes.data, n_threads())
    return mean


def alignment_matrix(attention: Floats, n_frames: int) -> Floats:
    """Compute alignment scores (n_tokens, n_frames) of attention (n_heads, n_tokens, n); higher is better."""
    weights = normalize_over_tokens(cut_frames(attention, n_frames))
    return mean_of_medians(weights)


@dataclass(frozen=True, slots=True, eq=False)
class RunningStatistics:
    """Running mean and variance over tokens, for the z-score of `normalize_over_tokens`.

    n_tokens: (..., 1). mean, squares: (..., n_frames), mean and sum of squared deviations.

    Source: Chan, Golub, LeVeque 1979 (pairwise update).
    """

    n_tokens: Floats
    mean: Floats
    squares: Floats

    @classmethod
    def of(cls, attention: Floats, counted: Floats | None = None) -> RunningStatistics:
        """Compute the statistics of tokens (..., n_tokens, n_frames).

        counted: (..., n_tokens), 1 for tokens and 0 for padding; None: all 1.
        """
        if counted is None:
            counted = np.ones(attention.shape[-2:-1], np.float32)
        weight = counted[..., None]
        n_tokens = weight.sum(axis=-2)
        if attention.shape[-2] == 1 and counted.all():
            return cls(n_tokens, attention[..., 0, :], np.zeros_like(attention[..., 0, :]))
        mean = (attention * weight).sum(axis=-2) / np.maximum(n_tokens, 1)
        return cls(n_tokens, mean, (np.square(attention - mean[..., None, :]) * weight).sum(axis=-2))

    def updated(self, attention: Floats, counted: Floats | None = None) -> RunningStatistics:
        new = RunningStatistics.of(attention, counted)
        total = self.n_tokens + new.n_tokens
        some = np.maximum(total, 1)
        delta = new.mean - self.mean
        return RunningStatistics(
            total,
            self.mean + delta * (new.n_tokens / some),
            self.squares + new.squares + np.square(delta) * (self.n_tokens * new.n_tokens / some),
        )

    def normalize(self, attention: Floats, *, floor: Floats | float = 0.0) -> Floats:
        """Compute the z-score of tokens (..., n, n_frames) against all tokens so far.

        floor: added to the standard deviation.
        """
        std = np.maximum(np.sqrt(self.squares / self.n_tokens) + floor, np.float32(LEAST_DEVIATION))
        score: Floats = (attention - self.mean[..., None, :]) / std[..., None, :]
        return score


def dtw(cost: Floats, n_tokens: Ints | None = None, n_frames: Ints | None = None) -> tuple[Ints, Ints]:
    """Dynamic time warping of cost matrices (B, n_tokens, n_frames), in float64.

    Returns the first and last frames (B, n_tokens) int64 of each token on the cheapest monotonic path.
    n_tokens, n_frames: (B,) int64 sizes of each matrix; None: all. Ties go to the next frame.

    With the running sum S of a row x, the recurrence c[j] = x[j] + min(above[j], c[j - 1]) is S[j] plus the
    running minimum of above[j] - S[j - 1]: one cumulative sum and minimum per token.
    """
    n_windows, most_tokens, most_frames = cost.shape
    sums = cost.cumsum(axis=2, dtype=np.float64)
    sums_before = np.pad(sums[..., :-1], ((0, 0), (0, 0), (1, 0)))
    infinite, windows = np.full((n_windows, 1), np.inf), np.arange(n_windows)
    frames = np.broadcast_to(np.arange(most_frames), (n_windows, most_frames))
    entries = [np.zeros_like(frames)]  # the frame where the best path to each cell entered its row,
    diagonals = [np.zeros(frames.shape, bool)]  # and whether it left the frame before
    row = sums[:, 0]
    for token in range(1, most_tokens):
        shifted = np.concatenate((infinite, row[:, :-1]), axis=1)
        diagonals.append(shifted <= row)
        above = np.minimum(shifted, row)
        row = sums[:, token] + np.minimum.accumulate(above - sums_before[:, token], axis=1)
        entered = above < np.concatenate((infinite, row[:, :-1]), axis=1)
        entries.append(np.maximum.accumulate(np.where(entered, frames, 0), axis=1))
    first, last = np.zeros((2, n_windows, most_tokens), np.int64)
    frame = np.full(n_windows, most_frames) - 1 if n_frames is None else n_frames - 1
    token_counts = np.full(n_windows, most_tokens) if n_tokens is None else n_tokens
    for token in reversed(range(most_tokens)):
        entry = entries[token][windows, frame]
        first[:, token], last[:, token] = entry, frame
        frame = np.where(token < token_counts, entry - diagonals[token][windows, entry], frame)
    return first, last


_CHUNK_TOKENS = 64
"""Tokens of each row in one pass: logits take rows * 64 * n_vocab floats."""


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word, its times in seconds from the window's start, and the mean probability of its tokens.

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
    """The text tokens of a window without timestamps, its log-mel frames of audio, and the tokenizer in its
    language.
    """

    tokenizer: Tokenizer
    tokens: tuple[int, ...]
    n_frames: int


def align_windows(
    backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]
) -> list[list[TimedWord]]:
    return finish(align_stepwise(backend, encoded, texts))


def align_stepwise(
    backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]
) -> Stepwise[list[list[TimedWord]]]:
    spoken = [window for window, text in enumerate(texts) if text.tokens and text.n_frames >= 2]
    words: list[list[TimedWord]] = [[] for _ in texts]
    if not spoken:
        return words
    chosen = [texts[window] for window in spoken]
    attention, probabilities = yield from _read(backend, encoded.rows(spoken), chosen)
    onsets = _onsets(attention, chosen)
    for row, window in enumerate(spoken):
        words[window] = _timed_words(texts[window], onsets[row], probabilities[row])
    return words


def attention_of(backend: Backend, encoded: EncoderOutput, text: WindowText) -> Floats:
    """Return the alignment matrix (n_text_tokens + 1, n_frames) of one window; higher is better.

    Row i shows where token i begins; the last row, where the text ends.
    """
    (attention,), _ = finish(_read(backend, encoded, [text]))
    matrix = alignment_matrix(attention, text.n_frames // 2)
    return matrix[len(text.tokenizer.sot_sequence) : -1]


def _read(
    backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]
) -> Stepwise[tuple[list[Floats], list[list[float]]]]:
    """Return attention (n_heads, n_tokens, n_frames) and probabilities of the text tokens of each row."""
    starts = [text.tokenizer.sot_sequence_including_notimestamps for text in texts]
    eot = texts[0].tokenizer.eot
    sequences = [[*start, *text.tokens, eot] for start, text in zip(starts, texts, strict=True)]
    rows = backend.rows()
    rows.admit(encoded)
    attention: list[list[Floats]] = [[] for _ in texts]
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
        wanted = [[place - first for place in wanted_of_row] for wanted_of_row in places]
        output = rows.step(new, wanted, capture=backend.alignment_heads)
        following = [
            min(sequence[place + 1], eot - 1)
            for sequence, places_of_row in zip(sequences, places, strict=True)
            for place in places_of_row
        ]
        logits = output.logits[:, :eot]
        chosen = logits[np.arange(len(logits)), following]
        probable = iter(np.exp(chosen - log_sum_exp(logits)[:, 0]).tolist() if following else ())
        for row, of_row in enumerate(output.attention):
            attention[row].append(of_row)
            probabilities[row] += islice(probable, len(places[row]))
    return [np.concatenate(parts, axis=1) for parts in attention], probabilities


def _onsets(attentions: Sequence[Floats], texts: Sequence[WindowText]) -> list[list[float]]:
    n_start = len(texts[0].tokenizer.sot_sequence)
    matrices = []
    for attention, text in zip(attentions, texts, strict=True):
        n_tokens = n_start + 1 + len(text.tokens) + 1
        matrix = alignment_matrix(attention[:, :n_tokens], text.n_frames // 2)
        matrices.append(matrix[n_start:-1])
    token_counts, frame_counts = np.array([matrix.shape for matrix in matrices]).T
    cost = np.zeros((len(matrices), token_counts.max(), frame_counts.max()), np.float32)
    for row, matrix in enumerate(matrices):
        cost[row, : matrix.shape[0], : matrix.shape[1]] = -matrix
    first, _ = dtw(cost, token_counts, frame_counts)
    return [
        [frame / FRAMES_PER_SECOND for frame in first[row, :n].tolist()]
        for row, n in enumerate(token_counts.tolist())
    ]


def _timed_words(
    text: WindowText, onsets: Sequence[float], probabilities: Sequence[float]
) -> list[TimedWord]:
    words, pieces = text.tokenizer.split_to_word_tokens([*text.tokens, text.tokenizer.eot])
    bounds = [0, *accumulate(len(piece) for piece in pieces[:-1])]
    texts = [text.tokenizer.token_bytes(token).decode(errors="replace") for token in text.tokens]
    tokens = [
        Token(*each) for each in zip(text.tokens, texts, onsets, onsets[1:], probabilities, strict=False)
    ]
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


SENTENCE_ENDS = ".。!！?？"


def usual_duration(words: Sequence[TimedWord]) -> float:
    """Return the median duration (s) of the words, at most 0.7; 0 for none."""
    durations = [word.duration for word in words if word.duration != 0.0]
    # In slow speech pauses must not join words; openai-whisper 20250625, `add_word_timestamps`.
    return min(0.7, statistics.median(durations)) if durations else 0.0


def cut_at_sentence_ends(words: Sequence[TimedWord], longest: float) -> list[TimedWord]:
    """Shorten words around sentence ends that are longer than `longest` seconds: the pause belongs to
    neither.
    """
    cut = list(words)
    if longest == 0.0:
        return cut
    for index in range(1, len(cut)):
        word, before = cut[index], cut[index - 1]
        if word.duration <= longest:
            continue
        if word.word in SENTENCE_ENDS:
            cut[index] = replace(word, end=word.start + longest)
        elif before.word in SENTENCE_ENDS:
            cut[index] = replace(word, start=word.end - longest)
    return cut


def interpolate_improbable(words: Sequence[TimedWord], threshold: float) -> list[TimedWord]:
    """Interpolate the starts of words less probable than `threshold` between their neighbours, by letters.

    The first start, the last end and punctuation stay. Source: whisper.cpp's `thold_pt`.
    """
    anchors = [
        i
        for i, word in enumerate(words)
        if i == 0 or word.probability >= threshold or not any(map(str.isalnum, word.word))
    ]
    starts = [word.start for word in words] + [word.end for word in words[-1:]]
    for left, right in pairwise([*anchors, len(words)]):
        letters = list(accumulate(len(word.word.strip()) for word in words[left:right]))
        span = starts[right] - starts[left]
        for i, before in enumerate(letters[:-1], start=left + 1):
            starts[i] = starts[left] + span * before / letters[-1]
    return [replace(word, start=starts[i], end=starts[i + 1]) for i, word in enumerate(words)]


def merge_punctuation(words: Sequence[TimedWord], prepended: str, appended: str) -> list[TimedWord]:
    """Join signs with the next word (prepended) or the previous one (appended), whose times stay."""
    before: list[TimedWord] = []  # last word first
    for word in reversed(words):
        if before and word.word.startswith(" ") and word.word.strip() in prepended:
            before[-1] = _joined(before[-1], word, before[-1])
        else:
            before.append(word)
    joined: list[TimedWord] = []
    for word in reversed(before):
        if joined and not joined[-1].word.endswith(" ") and word.word in appended:
            joined[-1] = _joined(joined[-1], joined[-1], word)
        else:
            joined.append(word)
    return joined


def _joined(anchor: TimedWord, first: TimedWord, second: TimedWord) -> TimedWord:
    return replace(
        anchor,
        word=first.word + second.word,
        tokens=first.tokens + second.tokens,
        pieces=first.pieces + second.pieces,
    )


def place_words(
    segments: Sequence[Segment],
    words: Sequence[TimedWord],
    options: TranscribeOptions,
    *,
    eot: int,
    window_start: float = 0.0,
    last_speech: float = 0.0,
) -> tuple[Segment, ...]:
    """Return the segments of a window with their words, in order, and corrected times.

    window_start, last_speech: in seconds of the recording.
    """
    if options.word_threshold:
        of_segments = _by_segment(segments, words, eot)
        words = [
            word
            for of_segment in of_segments
            for word in interpolate_improbable(of_segment, options.word_threshold)
        ]
    usual = usual_duration(words)
    words = cut_at_sentence_ends(words, 2 * usual)
    words = merge_punctuation(words, options.prepend_punctuations, options.append_punctuations)
    placed = []
    for segment, of_segment in zip(segments, _by_segment(segments, words, eot), strict=True):
        timed = [_placed(word, window_start) for word in of_segment]
        if timed:
            _cut_after_pause(timed, usual, last_speech)
            segment = _agree(segment, timed, usual)
            last_speech = segment.end
        placed.append(replace(segment, words=tuple(timed)))
    return tuple(placed)


def _by_segment(segments: Sequence[Segment], words: Sequence[TimedWord], eot: int) -> list[list[TimedWord]]:
    waiting = iter(words)
    of_segments: list[list[TimedWord]] = []
    for segment in segments:
        n_missing = sum(token < eot for token in segment.tokens)
        of_segment: list[TimedWord] = []
        while n_missing > 0 and (word := next(waiting, None)) is not None:
            n_missing -= len(word.tokens)
            of_segment.append(word)
        of_segments.append(of_segment)
    return of_segments


def _placed(word: TimedWord, window_start: float) -> Word:
    return Word(
        word=word.word,
        start=round(window_start + word.start, 2),
        end=round(window_start + word.end, 2),
        probability=word.probability,
        tokens=tuple(
            replace(piece, start=window_start + piece.start, end=window_start + piece.end)
            for piece in word.pieces
        ),
    )


def _cut_after_pause(words: list[Word], usual: float, last_speech: float) -> None:
    longest = 2 * usual
    first, second = words[0], words[1] if len(words) > 1 else None
    if first.end - last_speech <= 4 * usual:
        return
    long_pair = second is not None and second.end - first.start > 2 * longest
    if first.end - first.start <= longest and not long_pair:
        return
    if second is not None and second.end - second.start > longest:
        boundary = max(second.end / 2, second.end - longest)
        first = replace(first, end=boundary)
        words[1] = replace(second, start=boundary)
    words[0] = replace(first, start=max(0.0, first.end - longest))


def _agree(segment: Segment, words: list[Word], usual: float) -> Segment:
    start, end = segment.start, segment.end
    first = words[0]
    if start < first.end and start - 0.5 > first.start:
        words[0] = replace(first, start=max(0.0, min(first.end - usual, start)))
    else:
        start = first.start
    last = words[-1]
    if end > last.start and end + 0.5 < last.end:
        words[-1] = replace(last, end=max(last.start + usual, end))
    else:
        end = last.end
    return replace(segment, start=start, end=end)
