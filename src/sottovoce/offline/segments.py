"""From the tokens of a window to segments with words, cut at the timestamps that the model wrote.

Punctuation joins its words, and implausibly long words are shortened. Text after the end of the audio is
dropped; openai-whisper keeps it.

Source of the rules: openai-whisper 20250625, transcribe.py and timing.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from sottovoce.decoding.alignment import TimedWord
from sottovoce.text.tokenizer import SECONDS_PER_TIMESTAMP, Tokenizer
from sottovoce.types import Segment, Word

FRAMES_PER_TIMESTAMP = 2
"""Log-mel frames (10 ms) in a timestamp's step (20 ms)."""
MEL_FRAMES_PER_SECOND = 100


def mel_frames(seconds: float) -> int:
    return round(seconds * MEL_FRAMES_PER_SECOND)


def seconds_of(mel_frame: int) -> float:
    return mel_frame / MEL_FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class WindowCut:
    """The segments of a window, and where the next one begins.

    seek: log-mel frame of the recording. ends_closed: the last timestamp is single, so that no speech
    follows in this window. restarts: nothing was kept, because the window begins too early.
    """

    segments: tuple[Segment, ...]
    seek: int
    ends_closed: bool = False
    restarts: bool = False

    @property
    def end_of_speech(self) -> float | None:
        """End of the last word, or of the last segment without words; None without segments."""
        for segment in reversed(self.segments):
            if segment.words:
                return segment.words[-1].end
        return self.segments[-1].end if self.segments else None

    def text_tokens(self, eot: int) -> tuple[int, ...]:
        return tuple(token for segment in self.segments for token in segment.tokens if token < eot)


def cut_window(
    tokens: Sequence[int], tokenizer: Tokenizer, *, seek: int, n_frames: int, keep_open: bool = False
) -> WindowCut:
    """Cut at pairs of timestamps; without a pair the window is one segment.

    tokenizer: in the language of the text. seek: log-mel frame of the recording where the window begins.
    n_frames: of audio in the window; segments are clipped to it. keep_open: also keep text after the last
    pair; otherwise the next window begins there.
    """
    cutter = _Cutter(tokenizer, seek / MEL_FRAMES_PER_SECOND, n_frames / MEL_FRAMES_PER_SECOND)
    is_time = [tokenizer.is_timestamp(token) for token in tokens]
    ends_closed = is_time[-2:] == [False, True]
    cuts = [at for at in range(1, len(tokens)) if is_time[at - 1] and is_time[at]]
    if not cuts:
        return WindowCut((cutter.whole_window(tokens),), seek + n_frames, ends_closed)
    bounds = [0, *cuts, len(tokens)] if ends_closed else [0, *cuts]
    closed = [
        cutter.segment(tokens[first:last], cutter.time(tokens[first]), cutter.time(tokens[last - 1]))
        for first, last in pairwise(bounds)
    ]
    rest = tokens[bounds[-1] :]
    done = n_frames
    if keep_open and not all(is_time[bounds[-1] :]):
        closed.append(cutter.segment(rest, cutter.time(rest[0]), cutter.length_s))
    elif not ends_closed:
        done = min(n_frames, (tokens[bounds[-1] - 1] - tokenizer.timestamp_begin) * FRAMES_PER_TIMESTAMP)
    inside = tuple(segment for segment in closed if segment is not None)
    return WindowCut(inside, seek + done, ends_closed)


@dataclass(frozen=True, slots=True)
class _Cutter:
    tokenizer: Tokenizer
    start_s: float
    length_s: float

    def time(self, token: int) -> float:
        """Return the seconds of a timestamp; a window that begins with text (a prefix) begins at 0."""
        return max(0, token - self.tokenizer.timestamp_begin) * SECONDS_PER_TIMESTAMP

    def segment(self, tokens: Sequence[int], start: float, end: float) -> Segment | None:
        if start >= self.length_s:
            return None
        return Segment(
            id=0,
            start=round(self.start_s + start, 3),
            end=round(self.start_s + min(max(start, end), self.length_s), 3),
            text=self.tokenizer.decode(tokens),
            language=self.tokenizer.language or "en",
            tokens=tuple(tokens),
        )

    def whole_window(self, tokens: Sequence[int]) -> Segment:
        times = [token for token in tokens if self.tokenizer.is_timestamp(token)]
        timed = bool(times) and times[-1] != self.tokenizer.timestamp_begin
        whole = self.segment(tokens, 0.0, self.time(times[-1]) if timed else self.length_s)
        assert whole is not None, "a window holds audio"
        return whole


SENTENCE_ENDS = ".。!！?？"
LONGEST_MEDIAN_S = 0.7
"""Upper limit of the median, so that in slow speech pauses do not become part of words."""


def usual_duration(words: Sequence[TimedWord]) -> float:
    """Return the median duration of the words in seconds, at most 0.7; 0 for none."""
    durations = [word.duration for word in words if word.duration != 0.0]
    return min(LONGEST_MEDIAN_S, statistics.median(durations)) if durations else 0.0


def cut_at_sentence_ends(words: Sequence[TimedWord], longest: float) -> list[TimedWord]:
    """Shorten words before and after sentence ends that are longer than `longest` seconds.

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
    """Interpolate the starts of words less probable than `threshold` between their neighbours, by letters.

    words: of one segment, without gaps. The first start and the last end stay, and so do punctuation
    marks, which mark pauses.

    Source: the rule of whisper.cpp's `thold_pt`, which tests the probability of a timestamp.
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


def _joined(anchor: TimedWord, first: TimedWord, second: TimedWord) -> TimedWord:
    return replace(
        anchor,
        word=first.word + second.word,
        tokens=first.tokens + second.tokens,
        pieces=first.pieces + second.pieces,
    )


@dataclass(frozen=True, slots=True)
class WordRules:
    """prepended, appended: punctuation that joins the next or the previous word. threshold: probability
    below which the times of a word are interpolated; 0: none.
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
    """Return the segments of a window with their words and corrected times.

    words: of all segments, in order. eot: id of the first token that is not text. window_start,
    last_speech: in seconds of the recording.
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
