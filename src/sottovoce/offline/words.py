"""When each word is said: the decoder reads the text again, and its attention is aligned with the audio.

All segments of a window are aligned in one pass, and several windows together. Then punctuation joins its
words and implausibly long words are cut. Source of the rules: openai-whisper 20250625, timing.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.decoding.alignment import alignment_matrix, dtw
from sottovoce.decoding.decode import select_windows
from sottovoce.errors import OptionError
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, EncoderOutput, Segment, Token, Word

SENTENCE_ENDS = ".。!！?？"
LONGEST_MEDIAN_S = 0.7
"""Of the usual word: slower speech does not make longer pauses part of words."""
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


@torch.inference_mode()
def align_windows(
    backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]
) -> list[list[TimedWord]]:
    """Time the words of every window; windows without text get none.

    texts: one for each window of `encoded`.
    Raises: OptionError when the backend cannot show its attention.
    """
    if not backend.capabilities.attention:
        raise OptionError(f"{backend.name}: this runtime gives no attention, which word times need")
    spoken = [window for window, text in enumerate(texts) if text.tokens and text.n_frames >= 2]
    words: list[list[TimedWord]] = [[] for _ in texts]
    if not spoken:
        return words
    chosen = [texts[window] for window in spoken]
    reading = _read(backend, select_windows(encoded, spoken), chosen)
    onsets = _onsets(reading, chosen)
    for row, window in enumerate(spoken):
        words[window] = _timed_words(texts[window], onsets[row], reading.probabilities[row])
    return words


@torch.inference_mode()
def attention_of(backend: Backend, encoded: EncoderOutput, text: WindowText) -> Tensor:
    """What the words of one window are timed by: (n_text_tokens + 1, n_frames), higher where they fit.

    Row i tells when token i begins; the last one, when the text ends.
    """
    reading = _read(backend, encoded, [text])
    matrix = alignment_matrix(reading.attention[0].float(), text.n_frames // 2)
    return matrix[len(text.tokenizer.sot_sequence) : -1]


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """attention: (R, n_heads, n_tokens, n_frames). probabilities: of each text token of each row."""

    attention: Tensor
    probabilities: list[list[float]]


def _read(backend: Backend, encoded: EncoderOutput, texts: Sequence[WindowText]) -> _Reading:
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


def usual_duration(words: Sequence[TimedWord]) -> float:
    """Median duration in seconds of the words that have one, at most 0.7; 0 for none."""
    durations = [word.duration for word in words if word.duration != 0.0]
    return min(LONGEST_MEDIAN_S, statistics.median(durations)) if durations else 0.0


def cut_at_sentence_ends(words: Sequence[TimedWord], longest: float) -> list[TimedWord]:
    """Shorten sentence ends longer than `longest` seconds, and the words that follow sentence ends.

    The pause between two sentences belongs to neither.
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
    """Let words less probable than `threshold` begin where the words around them say, by letters.

    words: of one segment, each beginning where the last one ends. The first keeps its start and the last its
    end; signs keep theirs, which tell of pauses.
    Source: the rule of whisper.cpp's `thold_pt`, which asks the probability of a timestamp.
    """
    anchors = [i for i, word in enumerate(words) if i == 0 or _is_anchor(word, threshold)] + [len(words)]
    starts = [word.start for word in words] + [word.end for word in words[-1:]]
    for left, right in pairwise(anchors):
        letters = list(accumulate(len(word.word.strip()) for word in words[left:right]))
        span = starts[right] - starts[left]
        for i, before in enumerate(letters[:-1], start=left + 1):
            starts[i] = starts[left] + span * before / letters[-1]
    return [replace(word, start=starts[i], end=starts[i + 1]) for i, word in enumerate(words)]


def _is_anchor(word: TimedWord, threshold: float) -> bool:
    return word.probability >= threshold or not any(map(str.isalnum, word.word))


def merge_punctuation(words: Sequence[TimedWord], prepended: str, appended: str) -> list[TimedWord]:
    """Join opening signs with the word after them and closing signs with the word before.

    A joined word keeps its own times and probability.
    """
    return _append_signs(_prepend_signs(words, prepended), appended)


def _prepend_signs(words: Sequence[TimedWord], signs: str) -> list[TimedWord]:
    joined: list[TimedWord] = []  # last word first
    for word in reversed(words):
        if joined and word.word.startswith(" ") and word.word.strip() in signs:
            joined[-1] = _joined(joined[-1], word, joined[-1])
        else:
            joined.append(word)
    return joined[::-1]


def _append_signs(words: Sequence[TimedWord], signs: str) -> list[TimedWord]:
    joined: list[TimedWord] = []
    for word in words:
        if joined and not joined[-1].word.endswith(" ") and word.word in signs:
            joined[-1] = _joined(joined[-1], joined[-1], word)
        else:
            joined.append(word)
    return joined


def _joined(kept: TimedWord, first: TimedWord, second: TimedWord) -> TimedWord:
    return replace(
        kept,
        word=first.word + second.word,
        tokens=first.tokens + second.tokens,
        pieces=first.pieces + second.pieces,
    )


@dataclass(frozen=True, slots=True)
class WordRules:
    """What joins words. prepended, appended: signs that belong to the next or the last word.

    threshold: probability below which words take their times from those around them; 0: none does.
    """

    prepended: str
    appended: str
    threshold: float = 0.0


def place_words(
    segments: Sequence[Segment],
    words: Sequence[TimedWord],
    rules: WordRules,
    *,
    eot: int,
    window_start: float = 0.0,
    last_speech: float = 0.0,
) -> tuple[Segment, ...]:
    """The segments of a window with their words, and the times that follow from these.

    words: of all segments, in order. eot: first id that is no text. window_start, last_speech:
    seconds of the recording where the window begins, and where speech ended before it.
    """
    if rules.threshold:
        of_segments = _by_segment(segments, words, eot)
        words = [word for own in of_segments for word in interpolate_improbable(own, rules.threshold)]
    usual = usual_duration(words)
    merged = merge_punctuation(cut_at_sentence_ends(words, 2 * usual), rules.prepended, rules.appended)
    placed = []
    for segment, of_segment in zip(segments, _by_segment(segments, merged, eot), strict=True):
        own = [_placed(word, window_start) for word in of_segment]
        if own:
            _cut_after_pause(own, usual, last_speech)
            segment = _agree(segment, own, usual)
            last_speech = segment.end
        placed.append(replace(segment, words=tuple(own)))
    return tuple(placed)


def _by_segment(segments: Sequence[Segment], words: Sequence[TimedWord], eot: int) -> list[list[TimedWord]]:
    """The words of each segment: as many as have its text tokens."""
    waiting = iter(words)
    found: list[list[TimedWord]] = []
    for segment in segments:
        n_missing = sum(token < eot for token in segment.tokens)
        own: list[TimedWord] = []
        while n_missing > 0 and (word := next(waiting, None)) is not None:
            n_missing -= len(word.tokens)
            own.append(word)
        found.append(own)
    return found


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
    """Shorten the first two words after a pause of four usual words when they are too long."""
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
    """Take the segment's times from its words, unless the outer words reach far beyond the segment."""
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
