"""Alignment of given texts: forced alignment, and phrase search.

Forced alignment finds the times of a text's words in a recording. A long text is first located by the
transcript to refine or a rough transcription, and cut into windows in the longest pauses. The words of each
window are timed by the attention of Whisper's decoder or the path of a CTC network, and moved to the speech
by loudness.

Phrase search finds the most similar stretches of a transcript, compared by letters.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.audio.io import Recording
from sottovoce.audio.mel import MELS_PER_FRAME, log_mel, window_features
from sottovoce.audio.vad import SpeechSegment, speech_segments
from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.emissions import TokenTimes, align, token_times
from sottovoce.ctc.labels import Labels, with_space
from sottovoce.ctc.models import PhraseSpeller
from sottovoce.ctc.network import AcousticModel
from sottovoce.decoding.alignment import (
    TimedWord,
    WindowText,
    align_windows,
    cut_at_sentence_ends,
    merge_punctuation,
    usual_duration,
)
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend
from sottovoce.offline.transcriber import RecordingTranscriber
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.decoding import FallbackOptions, VadOptions
from sottovoce.options.transcribe import APPENDED, PREPENDED, AlignOptions, TranscribeOptions
from sottovoce.text.languages import UNSPACED, UNSPACED_LETTERS
from sottovoce.text.normalize import BREAKABLE, plain
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.text.word_edits import equal_words
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples, Segment, Transcript, Word

SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])(?=\S)")


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    segment: Segment | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """A word or punctuation mark of a line.

    times: seconds in the transcript to refine, if any.
    """

    line: int
    text: str
    tokens: tuple[int, ...]
    letters: str
    times: tuple[float, float] | None = None


def letters_of(text: str) -> str:
    return plain(text).replace(" ", "")


def lines_of(text: str | Sequence[str] | Transcript) -> list[Line]:
    """Split a text into lines at sentence ends; list items and segments stay whole.

    Raises: OptionError for a text without words.
    """
    if isinstance(text, Transcript):
        lines = [Line(segment.text.strip(), segment) for segment in text.segments if plain(segment.text)]
    elif isinstance(text, str):
        rows = [row.strip() for row in text.lstrip("\ufeff").splitlines()]
        lines = [Line(part) for row in rows for part in _sentences(row) if plain(part)]
    elif isinstance(text, Sequence) and all(isinstance(row, str) for row in text):
        lines = [Line(" ".join(row.split())) for row in text if plain(row)]
    else:
        raise OptionError(f"text: expected a text, a list of texts or a transcript, got {text!r:.60}")
    if not lines:
        raise OptionError("text: expected words to align, got none")
    return lines


def _sentences(row: str) -> Iterator[str]:
    start = 0
    for match in SENTENCE_END.finditer(row):
        if plain(row[start : match.end()]):
            yield row[start : match.end()].strip()
            start = match.end()
    if row[start:].strip():
        yield row[start:].strip()


Splitter: TypeAlias = Callable[[str], tuple[Sequence[str], Sequence[Sequence[int]]]]
"""Splits a text into words and the tokens of each."""


def units_of(lines: Sequence[Line], split: Splitter) -> list[Unit]:
    """Split lines into words and punctuation marks; characters in scripts without spaces."""
    units: list[Unit] = []
    for number, line in enumerate(lines):
        words, tokens = split(line.text)
        times = _times(line, words)
        for word, ids, span in zip(words, tokens, times, strict=True):
            units.append(Unit(number, word, tuple(ids), letters_of(word), span))
    return units


def in_tokens(tokenizer: Tokenizer) -> Splitter:
    lead = " " if tokenizer.splits_on_spaces else ""
    return lambda text: tokenizer.split_to_word_tokens(tokenizer.encode(lead + text))


def at_spaces(text: str) -> tuple[list[str], list[tuple[int, ...]]]:
    words = BREAKABLE.findall(with_space(text))
    return words, [()] * len(words)


def _times(line: Line, words: Sequence[str]) -> Sequence[tuple[float, float] | None]:
    """Interpolate the times of a line's words by letters."""
    if line.segment is None:
        return [None] * len(words)
    spans = _letter_spans(line.segment)
    lengths = [len(letters_of(word)) for word in words]
    total = max(1, sum(lengths))
    times, done = [], 0
    for length in lengths:
        times.append((_time_at(spans, done / total), _time_at(spans, (done + length) / total)))
        done += length
    return times


def _letter_spans(segment: Segment) -> list[tuple[float, float, int]]:
    words = [(word.start, word.end, len(letters_of(word.word))) for word in segment.words or ()]
    return [word for word in words if word[2]] or [(segment.start, segment.end, 1)]


def _time_at(spans: Sequence[tuple[float, float, int]], share: float) -> float:
    left = share * sum(n for _, _, n in spans)
    for start, end, n_letters in spans:
        if left <= n_letters:
            return start + (end - start) * left / n_letters
        left -= n_letters
    return spans[-1][1]


logger = logging.getLogger(__name__)


class WordTimer(Protocol):
    """Times the words of a window."""

    def check(self, units: Sequence[Unit]) -> None:
        """Raises: OptionError for a text of which no word can be timed."""

    def timed(self, samples: Samples, units: Sequence[Unit]) -> list[TimedWord]:
        """Time every unit, in seconds of the window. Raises: OptionError for more text than fits."""


@dataclass(frozen=True, slots=True)
class AttentionTimer:
    """Times words by the cross-attention of Whisper's decoder."""

    backend: Backend
    tokenizer: Tokenizer

    def check(self, units: Sequence[Unit]) -> None:
        """Any text has tokens."""

    def timed(self, samples: Samples, units: Sequence[Unit]) -> list[TimedWord]:
        dims = self.backend.dims
        mel = log_mel(samples, dims.n_mels)
        encoded = self.backend.encode(window_features([mel], MELS_PER_FRAME * dims.n_audio_ctx))
        tokens = tuple(token for unit in units for token in unit.tokens)
        text = WindowText(self.tokenizer, tokens, 2 * encoded.n_content_frames[0])
        words = align_windows(self.backend, encoded, [text])[0]
        if [word.tokens for word in words] == [unit.tokens for unit in units]:
            return words
        return _regrouped(words, units)


def _regrouped(timed: Sequence[TimedWord], units: Sequence[Unit]) -> list[TimedWord]:
    pieces = [piece for word in timed for piece in word.pieces]
    words, done = [], 0
    for unit in units:
        part = tuple(pieces[done : done + len(unit.tokens)])
        done += len(unit.tokens)
        probability = sum(piece.probability for piece in part) / len(part)
        words.append(TimedWord(unit.text, unit.tokens, part[0].start, part[-1].end, probability, part))
    return words


class CtcTimer:
    """Times words by the most probable path of a CTC network through the text.

    Words of the decoder's lexicon have its first spelling, others their letters; letters without a label are
    skipped.
    """

    def __init__(self, network: AcousticModel, decoder: CtcDecoder | None = None) -> None:
        self._network, self._lexicon = network, None if decoder is None else decoder.lexicon
        self._labels = Labels.of(network.labels.names, network.blank)
        self._speller = PhraseSpeller(self._labels)

    def timed(self, samples: Samples, units: Sequence[Unit]) -> list[TimedWord]:
        rows = self._network.whole_emissions([AudioChunk(samples)])
        labels, owners = self._spelled(units)
        if not labels:
            return [TimedWord(unit.text, unit.tokens, 0.0, 0.0, 0.0) for unit in units]
        spans = align(
            rows[None],
            np.array([len(rows)]),
            np.array([labels]),
            np.array([len(labels)]),
            rows=np.array([0]),
            blank=self._labels.blank,
        )
        if not spans.score[0] > -1e9:
            raise OptionError(
                f"text: expected what can be said in {len(samples) / SAMPLE_RATE:.1f} s, "
                f"got {len(labels)} labels"
            )
        return _by_owner(units, owners, token_times(spans, [len(labels)])[0], self._network.frame_s)

    def check(self, units: Sequence[Unit]) -> None:
        if not self._spelled(units)[0]:
            letters = sorted(name for name in self._labels.names if len(name) == 1 and name.isalpha())
            raise OptionError(
                f"text: expected letters of {self._network.name} ({''.join(letters)}), got none of them"
            )

    def _spelled(self, units: Sequence[Unit]) -> tuple[list[int], list[int | None]]:
        words = {unit.letters for unit in units}
        listed = {} if self._lexicon is None else self._lexicon.spellings_of(words)
        labels: list[int] = []
        owners: list[int | None] = []
        for number, unit in enumerate(units):
            ids = listed[unit.letters][0] if unit.letters in listed else self._speller.letters(unit.letters)
            if ids and labels and self._labels.separator is not None and unit.text[:1].isspace():
                labels.append(self._labels.separator)
                owners.append(None)
            labels += ids
            owners += [number] * len(ids)
        return labels, owners


def _by_owner(
    units: Sequence[Unit], owners: Sequence[int | None], times: TokenTimes, frame_s: float
) -> list[TimedWord]:
    words: list[TimedWord] = []
    at = 0.0
    for number, unit in enumerate(units):
        labels = [i for i, owner in enumerate(owners) if owner == number]
        if labels:
            start, end = times.first[labels[0]] * frame_s, (times.last[labels[-1]] + 1) * frame_s
            probability = math.exp(sum(times.peak[i] for i in labels) / len(labels))
        else:
            start, end, probability = at, at, 0.0
        words.append(TimedWord(unit.text, unit.tokens, start, end, probability))
        at = end
    return words


SPEECH_REACH_S = 0.4
"""Largest extension of a word at a pause."""
SHORTEST_S = 0.06


def move_to_speech(words: Sequence[TimedWord], speech: Sequence[SpeechSegment]) -> list[TimedWord]:
    """Move word bounds in silence or at a pause to the speech that the words overlap most.

    Words that overlap none by `SHORTEST_S` stay.
    """
    homes = [_home(word, speech) for word in words]
    spoken = [i for i, home in enumerate(homes) if home is not None and words[i].word.strip(SIGNS)]
    moved = list(words)
    for place, i in enumerate(spoken):
        home = homes[i]
        assert home is not None
        before = homes[spoken[place - 1]] if place else None
        after = homes[spoken[place + 1]] if place + 1 < len(spoken) else None
        start, end = max(words[i].start, home.start_s), min(words[i].end, home.end_s)
        if before != home and start - home.start_s <= SPEECH_REACH_S:
            start = home.start_s
        if after != home and home.end_s - end <= SPEECH_REACH_S:
            end = home.end_s
        moved[i] = replace(words[i], start=start, end=end)
    return _signs_after(moved, set(spoken))


def _signs_after(words: list[TimedWord], spoken: set[int]) -> list[TimedWord]:
    for i in range(1, len(words)):
        if i not in spoken:
            least = words[i - 1].end
            words[i] = replace(words[i], start=max(words[i].start, least), end=max(words[i].end, least))
    return words


SIGNS = " .,;:!?…\"'()[]{}«»“”‘’„¿¡-–—。，！？、：；「」『』"


def _home(word: TimedWord, speech: Sequence[SpeechSegment]) -> SpeechSegment | None:
    best, most = None, SHORTEST_S
    for segment in speech[bisect_left(speech, word.start, key=lambda stretch: stretch.end_s) :]:
        if segment.start_s >= word.end:
            break
        shared = min(word.end, segment.end_s) - max(word.start, segment.start_s)
        if shared > most:
            best, most = segment, shared
    return best


def in_order(words: Sequence[TimedWord]) -> list[TimedWord]:
    """Clip times so that no word ends after the next one begins."""
    if not words:
        return []
    ordered = [words[0]]
    for word in words[1:]:
        start = max(word.start, ordered[-1].start)
        ordered[-1] = replace(ordered[-1], end=max(ordered[-1].start, min(ordered[-1].end, start)))
        ordered.append(replace(word, start=start, end=max(start, word.end)))
    return ordered


STEP_SAMPLES = SAMPLE_RATE // 100
STEP_S = 0.01
LEVEL_DB, REACH_S = 35.0, 0.2
"""Speech begins where its level comes this near to its loudest 10 ms, within this reach."""
REACH = round(REACH_S / STEP_S)
Levels = npt.NDArray[np.float32]
NO_LEVELS: Levels = np.zeros(0, np.float32)


class LevelMeter:
    """Measures the levels of a recording that is read; n_samples: so far."""

    def __init__(self) -> None:
        self.n_samples = 0
        self._found: list[Levels] = []
        self._rest: Samples = np.zeros(0, np.float32)

    def through(self, chunks: Iterable[AudioChunk]) -> Iterator[AudioChunk]:
        for chunk in chunks:
            self.n_samples += len(chunk.samples)
            samples = np.concatenate([self._rest, chunk.samples])
            n_whole = len(samples) // STEP_SAMPLES * STEP_SAMPLES
            self._rest = samples[n_whole:]
            steps = samples[:n_whole].reshape(-1, STEP_SAMPLES)
            self._found.append(np.sqrt(np.mean(steps**2, axis=1)))
            yield chunk

    @property
    def levels(self) -> Levels:
        return np.concatenate(self._found) if self._found else NO_LEVELS


def at_loud_bounds(speech: Sequence[SpeechSegment], levels: Levels) -> list[SpeechSegment]:
    """Move the edges of speech to where it is loud.

    levels: (n,) of every 10 ms.
    """
    reach = round(REACH_S * SAMPLE_RATE)
    loud = []
    for i, stretch in enumerate(speech):
        first = _pause_middle(speech[i - 1], stretch) if i else 0
        last = _pause_middle(stretch, speech[i + 1]) if i + 1 < len(speech) else len(levels) * STEP_SAMPLES
        first, last = max(first, stretch.start_sample - reach), min(last, stretch.end_sample + reach)
        loud.append(_loud_part(stretch, first // STEP_SAMPLES, last // STEP_SAMPLES, levels))
    return loud


def at_quiet_bounds(words: Sequence[TimedWord], levels: Levels) -> list[TimedWord]:
    """Extend words to the edges of their sound, as "f" and "s" are soft.

    A bound stays if no quiet lies within `REACH_S` and before the next word. levels: (n,) of every 10 ms.
    """
    extended: list[TimedWord] = []
    for i, word in enumerate(words):
        first, last = _step(word.start), _step(word.end)
        inside = levels[first : max(last, first + 1)]
        if not len(inside) or not inside.max():
            extended.append(word)
            continue
        is_quiet = levels <= inside.max() * 10 ** (-LEVEL_DB / 20)
        floor = _step(extended[-1].end) if i else 0
        ceiling = _step(words[i + 1].start) if i + 1 < len(words) else len(levels)
        before = np.flatnonzero(is_quiet[max(floor, first - REACH) : first])
        after = np.flatnonzero(is_quiet[last : min(ceiling, last + REACH)])
        start, end = word.start, word.end
        if len(before) and not is_quiet[first]:
            start = min(start, (max(floor, first - REACH) + int(before[-1]) + 1) * STEP_S)
        if len(after) and last > first and not is_quiet[last - 1]:
            end = max(end, (last + int(after[0])) * STEP_S)
        extended.append(replace(word, start=start, end=end))
    return extended


def _step(seconds: float) -> int:
    return round(seconds / STEP_S)


def _pause_middle(before: SpeechSegment, after: SpeechSegment) -> int:
    return (before.end_sample + after.start_sample) // 2


def _loud_part(stretch: SpeechSegment, first: int, last: int, levels: Levels) -> SpeechSegment:
    inside = levels[first:last]
    if not len(inside) or not inside.max():
        return stretch
    loud = np.flatnonzero(inside > inside.max() * 10 ** (-LEVEL_DB / 20))
    return SpeechSegment((first + int(loud[0])) * STEP_SAMPLES, (first + int(loud[-1]) + 1) * STEP_SAMPLES)


LONGEST_S = 29.0
MOST_TOKENS = 400
PAUSE_S = 1.5
"""A window ends at such a pause between roughly timed words."""
SURE_MARGIN_S, UNSURE_MARGIN_S = 1.0, 3.0
"""Audio beyond the outer words of a window, with and without rough times."""

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class AlignWindow:
    first: int
    end: int
    start_s: float
    end_s: float


def guess_times(units: Sequence[Unit], known: Sequence[Span | None], duration_s: float) -> list[Span]:
    """Interpolate the times of units between found ones by their letters."""
    sure = [i for i, span in enumerate(known) if span is not None]
    spans = [span or (0.0, 0.0) for span in known]
    for before, after in pairwise([-1, *sure, len(units)]):
        missing = range(before + 1, after)
        if not missing:
            continue
        letters = [len(units[i].letters) for i in missing]
        wanted = sum(letters) * 0.07  # seconds a letter
        start = spans[before][1] if before >= 0 else 0.0
        end = spans[after][0] if after < len(units) else duration_s
        if before < 0 and after < len(units):
            start = max(start, end - wanted)
        elif after == len(units) and before >= 0:
            end = min(end, start + wanted)
        scale = max(0.0, end - start) / max(1, sum(letters))
        at = start
        for i, n_letters in zip(missing, letters, strict=True):
            spans[i] = (at, at + n_letters * scale)
            at = spans[i][1]
    return spans


def plan_windows(units: Sequence[Unit], known: Sequence[Span | None], duration_s: float) -> list[AlignWindow]:
    """Plan windows that hold all units in order, at most `LONGEST_S` and `MOST_TOKENS` long."""
    spans = guess_times(units, known, duration_s)
    windows: list[AlignWindow] = []
    first, floor = 0, 0.0
    while first < len(units):
        end = _end(units, spans, first)
        end = next((i for i in range(first + 1, end) if _is_pause(spans, known, i)), end)
        start_s = max(floor, spans[first][0] - _margin(known, first))
        if end == len(units):
            end_s = min(duration_s, spans[-1][1] + _margin(known, end - 1))
        else:
            middle_s = (spans[end - 1][1] + spans[end][0]) / 2
            end_s = min(spans[end - 1][1] + _margin(known, end - 1), middle_s)
        end_s = min(duration_s, max(end_s, start_s + 0.1), start_s + LONGEST_S + 1.0)
        windows.append(AlignWindow(first, end, start_s, end_s))
        first, floor = end, end_s if end < len(units) else floor
    return windows


def _margin(known: Sequence[Span | None], unit: int) -> float:
    return UNSURE_MARGIN_S if known[unit] is None else SURE_MARGIN_S


def _is_pause(spans: Sequence[Span], known: Sequence[Span | None], unit: int) -> bool:
    both_found = known[unit - 1] is not None and known[unit] is not None
    return both_found and spans[unit][0] - spans[unit - 1][1] >= PAUSE_S


def _end(units: Sequence[Unit], spans: Sequence[Span], first: int) -> int:
    start = spans[first][0]
    n_tokens, last = 0, first
    limit = LONGEST_S - SURE_MARGIN_S
    while last < len(units) and (last == first or spans[last][1] <= start + limit):
        n_tokens += len(units[last].tokens)
        if n_tokens > MOST_TOKENS and last > first:
            break
        last += 1
    if last == len(units):
        return last
    begins_word = [i for i in range(first + 1, last + 1) if units[i].text.startswith(" ") or units[i].letters]
    # A window ends in the longest pause after its first 12 s.
    late = [i for i in begins_word if spans[i][0] >= start + 12.0] or begins_word or [last]
    return max(late, key=lambda i: (round(spans[i][0] - spans[i - 1][1], 2), i))


SPEECH = VadOptions(min_silence_ms=100.0, speech_pad_ms=30.0)
"""Fine enough for the pauses between words."""
SPEECH_MARGIN_S = 0.2
TWO_FRAMES_S = 0.02
"""The shortest window, in log-mel frames."""
ROUGH = TranscribeOptions(fallback=FallbackOptions(temperatures=(0.0,)), mode="vad", word_timestamps=True)
"""The rough transcript: one greedy pass."""
Progress = Callable[[float, float | None], None]


@dataclass(frozen=True, slots=True)
class TextAligner:
    """Aligns texts with recordings.

    rough: transcribes a long recording, in which the text is located. language: a code, or "".
    """

    timer: WordTimer
    split: Splitter
    rough: RecordingTranscriber
    language: str
    options: AlignOptions

    def segments(
        self, lines: Sequence[Line], recording: Recording, on_progress: Progress | None = None
    ) -> tuple[list[Segment], float]:
        """Return the lines as segments with word times, and the seconds of the recording.

        on_progress: called with the aligned and total seconds.

        Raises: AudioError; OptionError for a text that does not occur, or that the model cannot align.
        """
        units = units_of(lines, self.split)
        self.timer.check(units)
        meter = LevelMeter()
        with recording.open() as reader:
            speech = speech_segments(meter.through(reader), SPEECH)
        levels, duration_s = meter.levels, meter.n_samples / SAMPLE_RATE
        if duration_s < TWO_FRAMES_S:
            raise OptionError(f"{recording.name}: expected a recording to align the text with, got none")
        if not self.options.keep_to_speech:
            speech, levels = [], NO_LEVELS
        speech = at_loud_bounds(speech, levels)
        words: list[TimedWord] = []
        windows = [trimmed(window, speech) for window in self._windows(units, recording, duration_s)]
        spans = [span_of(window, duration_s) for window in windows]
        with recording.open() as reader:
            for window, span, samples in zip(windows, spans, samples_of(spans, reader), strict=True):
                timed = self.timer.timed(samples, units[window.first : window.end])
                words += [shifted(word, span[0]) for word in timed]
                if on_progress is not None:
                    on_progress(window.end_s, duration_s)
        words = at_quiet_bounds(move_to_speech(words, speech), levels)
        warn_if_unlikely(words, recording.name)
        return list(self._lines(lines, units, in_order(words))), duration_s

    def _windows(self, units: Sequence[Unit], recording: Recording, duration_s: float) -> list[AlignWindow]:
        n_tokens = sum(len(unit.tokens) for unit in units)
        if duration_s <= LONGEST_S and n_tokens <= MOST_TOKENS:
            return [AlignWindow(0, len(units), 0.0, duration_s)]
        if all(unit.times is not None for unit in units):
            return plan_windows(units, [unit.times for unit in units], duration_s)
        return plan_windows(units, self._rough_times(units, recording), duration_s)

    def _rough_times(self, units: Sequence[Unit], recording: Recording) -> list[Span | None]:
        segments = FileTranscription(self.rough, recording, keeps_open=True)
        words = [word for segment in segments for word in segment.words or ()]
        keyed = [(word, key) for word in words if (key := letters_of(word.word))]
        given = [i for i, unit in enumerate(units) if unit.letters]
        pairs = equal_words([units[i].letters for i in given], [key for _, key in keyed])
        n_found = sum(pair is not None for pair in pairs)
        if n_found < max(1.0, self.options.least_found * len(given)):
            raise OptionError(
                f"text: expected what is said in {recording.name}, but {n_found} of its {len(given)} words "
                "were heard there"
            )
        known: list[Span | None] = [None] * len(units)
        for unit, pair in zip(given, pairs, strict=True):
            if pair is not None:
                known[unit] = (keyed[pair][0].start, keyed[pair][0].end)
        return known

    def _lines(
        self, lines: Sequence[Line], units: Sequence[Unit], words: Sequence[TimedWord]
    ) -> Iterator[Segment]:
        usual = usual_duration(words)
        by_line = groupby(zip(units, words, strict=True), key=lambda pair: pair[0].line)
        for number, pairs in by_line:
            ended = cut_at_sentence_ends([word for _, word in pairs], 2 * usual)
            merged = merge_punctuation(ended, PREPENDED, APPENDED)
            yield self._segment(number, lines[number], merged)

    def _segment(self, number: int, line: Line, words: Sequence[TimedWord]) -> Segment:
        old = line.segment or Segment(number, 0.0, 0.0, line.text, self.language)
        placed = tuple(
            Word(
                word.word,
                round(word.start, 3),
                round(word.end, 3),
                word.probability,
                language=old.language,
                speaker=old.speaker,
                tokens=word.pieces,
            )
            for word in words
        )
        tokens = tuple(token for word in words for token in word.tokens)
        text = "".join(word.word for word in words)
        return replace(old, start=placed[0].start, end=placed[-1].end, text=text, tokens=tokens, words=placed)


def warn_if_unlikely(words: Sequence[TimedWord], recording: str) -> None:
    probability = sum(word.probability for word in words) / max(1, len(words))
    if words and probability < 0.2:  # mean of the words
        logger.warning(
            "text: expected what is said in %s, but its words are improbable there (%.2f in the mean)",
            recording,
            probability,
        )


def trimmed(window: AlignWindow, speech: Sequence[SpeechSegment]) -> AlignWindow:
    inside = [part for part in speech if part.start_s < window.end_s and part.end_s > window.start_s]
    if not inside:
        return window
    return replace(
        window,
        start_s=max(window.start_s, inside[0].start_s - SPEECH_MARGIN_S),
        end_s=min(window.end_s, inside[-1].end_s + SPEECH_MARGIN_S),
    )


def span_of(window: AlignWindow, duration_s: float) -> Span:
    start_s = min(window.start_s, duration_s - TWO_FRAMES_S) // STEP_S * STEP_S
    return start_s, max(window.end_s, start_s + TWO_FRAMES_S)


def samples_of(spans: Iterable[Span], chunks: Iterable[AudioChunk]) -> Iterator[Samples]:
    """Yield the samples of spans in seconds, which may overlap, from the chunks of a whole recording.

    A recording that is opened at a span has other samples where its filter depends on the time.
    """
    left, kept, first = iter(chunks), np.zeros(0, np.float32), 0
    for start_s, end_s in spans:
        start, end = round(start_s * SAMPLE_RATE), round(end_s * SAMPLE_RATE)
        while first + len(kept) < end and (chunk := next(left, None)) is not None:
            kept = np.concatenate([kept, chunk.samples])
            n_before = min(max(0, start - first), len(kept))
            kept, first = kept[n_before:], first + n_before
        yield kept[max(0, start - first) : end - first]


def shifted(word: TimedWord, seconds: float) -> TimedWord:
    pieces = tuple(
        replace(piece, start=piece.start + seconds, end=piece.end + seconds) for piece in word.pieces
    )
    return replace(word, start=word.start + seconds, end=word.end + seconds, pieces=pieces)


JOINING = 0.25
"""Cost of one word written as two, or two as one."""
_UNIT = re.compile(rf"[{UNSPACED_LETTERS}]|[^\s{UNSPACED_LETTERS}]+")
"""A letter of a script without spaces, else a word."""


@dataclass(frozen=True, slots=True)
class Match:
    """An occurrence of a phrase, in seconds, with a similarity of up to 1."""

    start: float
    end: float
    text: str
    score: float
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class _PlacedUnit:
    letters: str
    word: Word


def find_phrase(transcript: Transcript, phrase: str, *, least_score: float = 0.7) -> list[Match]:
    """Find the occurrences of a phrase, in order, without overlaps.

    least_score: 1 requires the same letters, 0.7 lets three of ten differ.
    Raises: OptionError for a phrase without letters, or a score out of range.
    """
    if not 0.0 < least_score <= 1.0:
        raise OptionError(f"least_score: expected above 0 up to 1, got {least_score}")
    apart = transcript.language in UNSPACED
    wanted = _units(phrase, apart)
    if not wanted:
        raise OptionError(f"phrase: expected letters or digits to look for, got {phrase!r}")
    placed = [unit for segment in transcript.segments for unit in _placed_units(segment, apart)]
    hits = [hit for hit in _ends(wanted, [unit.letters for unit in placed]) if hit[0] >= least_score]
    return [_match(placed[first:end], score) for score, first, end in _apart(hits)]


def _units(text: str, apart: bool) -> list[str]:
    return list(letters_of(text)) if apart else _UNIT.findall(plain(text))


def _placed_units(segment: Segment, apart: bool) -> Iterator[_PlacedUnit]:
    for word in segment.words or _shares(segment):
        units = _units(word.word, apart)
        if len(units) == 1:
            yield _PlacedUnit(units[0], word)
            continue
        start, a_letter = word.start, (word.end - word.start) / max(1, sum(map(len, units)))
        for unit in units:
            end = start + a_letter * len(unit)
            yield _PlacedUnit(unit, Word(unit, start, end, word.probability, word.language, word.speaker))
            start = end


def _shares(segment: Segment) -> Iterator[Word]:
    words = segment.text.split()
    total = max(1, sum(len(word) + 1 for word in words))
    done = 0
    for word in words:
        start = segment.start + (segment.end - segment.start) * done / total
        done += len(word) + 1
        end = segment.start + (segment.end - segment.start) * done / total
        yield Word(" " + word, start, end, float("nan"), segment.language, segment.speaker)


def _ends(wanted: Sequence[str], placed: Sequence[str]) -> Iterator[tuple[float, int, int]]:
    """Yield the best stretch that ends with each word: score, first word, end.

    Edit distance with a free start; words weigh by their letters.
    """
    weights = [len(word) for word in wanted]
    total = sum(weights)
    start: list[tuple[float, int]] = [(0.0, 0)]
    for weight in weights:
        start.append((start[-1][0] + weight, 0))
    columns = [start]
    for j, word in enumerate(placed, 1):
        column: list[tuple[float, int]] = [(0.0, j)]
        for i, sought in enumerate(wanted, 1):
            weight = weights[i - 1]
            steps = [
                _add(columns[j - 1][i - 1], weight * unlikeness(sought, word)),
                _add(columns[j - 1][i], len(word)),
                _add(column[i - 1], weight),
            ]
            if j > 1:
                two = unlikeness(sought, placed[j - 2] + word)
                steps.append(_add(columns[j - 2][i - 1], weight * two + JOINING))
            if i > 1:
                two = unlikeness(wanted[i - 2] + sought, word)
                steps.append(_add(columns[j - 1][i - 2], (weight + weights[i - 2]) * two + JOINING))
            column.append(min(steps))
        columns.append(column)
        cost, first = column[-1]
        if first < j:
            yield max(0.0, 1 - cost / total), first, j
        if j > 2:
            columns[j - 2] = []  # no longer needed


def _add(cell: tuple[float, int], cost: float) -> tuple[float, int]:
    return cell[0] + cost, cell[1]


def _apart(hits: Sequence[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    chosen: list[tuple[float, int, int]] = []
    for hit in sorted(hits, key=lambda hit: (-hit[0], hit[2] - hit[1], hit[1])):
        if all(hit[2] <= other[1] or hit[1] >= other[2] for other in chosen):
            chosen.append(hit)
    return sorted(chosen, key=lambda hit: hit[1])


def _match(placed: Sequence[_PlacedUnit], score: float) -> Match:
    words = tuple(unit.word for unit in placed)
    text = "".join(word.word for word in words).strip()
    return Match(words[0].start, words[-1].end, text, round(score, 3), words)


@lru_cache(maxsize=100_000)
def unlikeness(first: str, second: str) -> float:
    """Return the edit distance over the length of the longer word: 0 to 1."""
    if first == second:
        return 0.0
    if not first or not second:
        return 1.0
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1] / max(len(first), len(second))
