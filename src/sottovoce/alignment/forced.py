"""Forced alignment: finds the times of a given text's words in a recording.

A long text is first located by the transcript to refine or a rough transcription, and cut into windows in the
longest pauses. The words of each window are timed by the decoder's attention or the path of a CTC head, and
moved to the speech by loudness.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from sottovoce.audio.io import Recording
from sottovoce.audio.mel import MEL_FRAMES_PER_SECOND, RecordingFeatures
from sottovoce.audio.vad import SpeechSegment, speech_segments
from sottovoce.ctc.align import align, token_times
from sottovoce.ctc.labels import SEPARATORS
from sottovoce.decoding.alignment import (
    TimedWord,
    WindowText,
    align_windows,
    cut_at_sentence_ends,
    merge_punctuation,
    usual_duration,
)
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, EncoderOutput
from sottovoce.models.ctc_head import CtcHead
from sottovoce.offline.pipeline import transcriber_for
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, VadOptions
from sottovoce.options.transcribe import APPENDED, PREPENDED, AlignOptions, TranscribeOptions
from sottovoce.runtime.calls import DirectRuntime
from sottovoce.text.normalize import plain
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.text.word_edits import equal_words
from sottovoce.types import (
    FRAMES_PER_SECOND,
    SAMPLE_RATE,
    AudioChunk,
    Samples,
    Segment,
    Transcript,
    Word,
)

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
    else:
        lines = [Line(" ".join(row.split())) for row in text if plain(row)]
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


def units_of(lines: Sequence[Line], tokenizer: Tokenizer) -> list[Unit]:
    """Split lines into words and punctuation marks; characters in scripts without spaces."""
    units: list[Unit] = []
    lead = " " if tokenizer.splits_on_spaces else ""
    for number, line in enumerate(lines):
        words, tokens = tokenizer.split_to_word_tokens(tokenizer.encode(lead + line.text))
        times = _times(line, words)
        for word, ids, span in zip(words, tokens, times, strict=True):
            units.append(Unit(number, word, tuple(ids), letters_of(word), span))
    return units


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


def timed_by_attention(
    backend: Backend, encoded: EncoderOutput, units: Sequence[Unit], tokenizer: Tokenizer
) -> list[TimedWord]:
    """Time every unit by cross-attention, in seconds of the window."""
    tokens = tuple(token for unit in units for token in unit.tokens)
    text = WindowText(tokenizer, tokens, 2 * encoded.n_content_frames[0])
    words = align_windows(backend, encoded, [text])[0]
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


class CtcAligner:
    """Times words by the most probable path of a CTC head through the text; unknown letters are skipped."""

    def __init__(self, head: CtcHead) -> None:
        self._head = head
        self._ids = {name: i for i, name in enumerate(head.labels) if name and i != head.blank}
        self._gap = next((self._ids[name] for name in SEPARATORS if name in self._ids), None)

    def timed(self, encoded: EncoderOutput, units: Sequence[Unit]) -> list[TimedWord]:
        """Time every unit, in seconds of the window.

        Raises: OptionError for more text than fits.
        """
        emissions = self._head.emissions_of(encoded)
        n_frames = encoded.n_content_frames[0]
        labels, owners = self._spelled(units)
        if not labels:
            return [TimedWord(unit.text, unit.tokens, 0.0, 0.0, 0.0) for unit in units]
        spans = align(
            emissions.log_probs[:1, :n_frames],
            np.array([n_frames]),
            np.array([labels]),
            np.array([len(labels)]),
            rows=np.array([0]),
            blank=self._head.blank,
        )
        if not spans.score[0] > -1e9:
            raise OptionError(
                f"text: expected what can be said in {n_frames / FRAMES_PER_SECOND:.1f} s, "
                f"got {len(labels)} letters"
            )
        times = token_times(spans, [len(labels)])[0]
        return _by_owner(units, owners, times.first, times.last, times.peak)

    def check(self, units: Sequence[Unit]) -> None:
        """Check that the head has a letter of the text.

        Raises: OptionError.
        """
        if not self._spelled(units)[0]:
            letters = "".join(sorted(name for name in self._ids if name.isalpha() and len(name) == 1))
            raise OptionError(
                f"method 'ctc': expected a text in the letters of the model's head ({letters}), got none of "
                "them; 'attention' aligns any text"
            )

    def _spelled(self, units: Sequence[Unit]) -> tuple[list[int], list[int | None]]:
        labels: list[int] = []
        owners: list[int | None] = []
        for number, unit in enumerate(units):
            ids = [self._ids[name] for letter in unit.letters if (name := self._name(letter)) is not None]
            if ids and labels and self._gap is not None and unit.text[:1].isspace():
                labels.append(self._gap)
                owners.append(None)
            labels += ids
            owners += [number] * len(ids)
        return labels, owners

    def _name(self, letter: str) -> str | None:
        return next((name for name in (letter, letter.upper()) if name in self._ids), None)


def _by_owner(
    units: Sequence[Unit],
    owners: Sequence[int | None],
    first: Sequence[int],
    last: Sequence[int],
    peak: Sequence[float],
) -> list[TimedWord]:
    words: list[TimedWord] = []
    at = 0.0
    for number, unit in enumerate(units):
        frames = [i for i, owner in enumerate(owners) if owner == number]
        if frames:
            start, end = first[frames[0]] / FRAMES_PER_SECOND, (last[frames[-1]] + 1) / FRAMES_PER_SECOND
            probability = math.exp(sum(peak[i] for i in frames) / len(frames))
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
    def __init__(self) -> None:
        self._found: list[Levels] = []
        self._rest: Samples = np.zeros(0, np.float32)

    def through(self, chunks: Iterable[AudioChunk]) -> Iterator[AudioChunk]:
        for chunk in chunks:
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
ROUGH = TranscribeOptions(
    decoding=DecodingOptions(),
    fallback=FallbackOptions(temperatures=(0.0,)),
    mode="vad",
    word_timestamps=True,
)
"""The rough transcript: one greedy pass."""
Progress = Callable[[float, float | None], None]


@dataclass(frozen=True, slots=True)
class TextAligner:
    """Aligns texts with recordings, by a CTC head (`ctc`) or the decoder's attention.

    on_progress: called with the aligned and total seconds.
    """

    backend: Backend
    tokenizer: Tokenizer
    options: AlignOptions
    ctc: CtcAligner | None = None
    on_progress: Progress | None = None

    def segments(self, lines: Sequence[Line], recording: Recording) -> tuple[list[Segment], float]:
        """Return the lines as segments with word times, and the seconds of the recording.

        Raises: AudioError; OptionError for a text that does not occur, or that the model cannot align.
        """
        units = units_of(lines, self.tokenizer)
        if self.ctc is not None:
            self.ctc.check(units)
        with RecordingFeatures(recording, self.backend.dims.n_mels) as features:
            duration_s = features.duration_s or 0.0
            if (features.n_frames or 0) < 2:
                raise OptionError(f"{recording.name}: expected a recording to align the text with, got none")
            speech, levels = self._speech(recording) if self.options.keep_to_speech else ([], NO_LEVELS)
            windows = [trimmed(window, speech) for window in self._windows(units, recording, duration_s)]
            words = [word for window in windows for word in self._window(window, units, features, duration_s)]
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
        words = [(word, key) for word in self._rough(recording) if (key := letters_of(word.word))]
        given = [i for i, unit in enumerate(units) if unit.letters]
        pairs = equal_words([units[i].letters for i in given], [key for _, key in words])
        n_found = sum(pair is not None for pair in pairs)
        if n_found < max(1.0, self.options.least_found * len(given)):
            raise OptionError(
                f"text: expected what is said in {recording.name}, but {n_found} of its {len(given)} words "
                "were heard there"
            )
        known: list[Span | None] = [None] * len(units)
        for unit, pair in zip(given, pairs, strict=True):
            if pair is not None:
                known[unit] = (words[pair][0].start, words[pair][0].end)
        return known

    def _rough(self, recording: Recording) -> Iterator[Word]:
        decoding = replace(ROUGH.decoding, language=self.tokenizer.language)
        transcriber = transcriber_for(
            DirectRuntime(self.backend), self.tokenizer, replace(ROUGH, decoding=decoding), None
        )
        for segment in FileTranscription(transcriber, recording, keeps_open=True):
            yield from segment.words or ()

    def _window(
        self, window: AlignWindow, units: Sequence[Unit], features: RecordingFeatures, duration_s: float
    ) -> list[TimedWord]:
        first_frame = int(window.start_s * MEL_FRAMES_PER_SECOND)
        end_frame = max(first_frame + 2, int(window.end_s * MEL_FRAMES_PER_SECOND))
        features.drop_before(first_frame)
        mel = features.window(first_frame, end_frame, n_frames=2 * self.backend.dims.n_audio_ctx)
        encoded = self.backend.encode(mel)
        of_window = units[window.first : window.end]
        if self.ctc is not None:
            words = self.ctc.timed(encoded, of_window)
        else:
            words = timed_by_attention(self.backend, encoded, of_window, self.tokenizer)
        if self.on_progress is not None:
            self.on_progress(window.end_s, duration_s)
        return [shifted(word, first_frame / MEL_FRAMES_PER_SECOND) for word in words]

    def _speech(self, recording: Recording) -> tuple[list[SpeechSegment], Levels]:
        meter = LevelMeter()
        with recording.open() as reader:
            speech = speech_segments(meter.through(reader), SPEECH)
        return at_loud_bounds(speech, meter.levels), meter.levels

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
        language = self.tokenizer.language or "en"
        old = line.segment or Segment(number, 0.0, 0.0, line.text, language)
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


def shifted(word: TimedWord, seconds: float) -> TimedWord:
    pieces = tuple(
        replace(piece, start=piece.start + seconds, end=piece.end + seconds) for piece in word.pieces
    )
    return replace(word, start=word.start + seconds, end=word.end + seconds, pieces=pieces)
