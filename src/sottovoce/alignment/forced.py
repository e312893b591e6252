"""Forced alignment: the words of a text are given, their times in a recording are found.

A recording of up to 29 s is one window. In a longer one the text is first placed roughly: by the times of the
transcript that is refined, or by transcribing the recording once and pairing its words with those of the
text. Then the words of each window are timed, and moved to the speech.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sottovoce.alignment.aligners import AttentionAligner, CtcAligner, in_order, move_to_speech
from sottovoce.alignment.given_text import Line, Unit, letters_of, units_of
from sottovoce.alignment.loudness import NO_LEVELS, LevelMeter, Levels, at_loud_bounds, at_quiet_bounds
from sottovoce.alignment.windows import LONGEST_S, MOST_TOKENS, AlignWindow, Span, plan_windows
from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.mel import MEL_FRAMES_PER_SECOND
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechSegment, speech_segments
from sottovoce.backends.base import Backend
from sottovoce.decoding.word_alignment import TimedWord
from sottovoce.errors import OptionError
from sottovoce.offline.longform import transcriber_for, transcription_of
from sottovoce.offline.words import cut_at_sentence_ends, merge_punctuation, usual_duration
from sottovoce.options.align import AlignOptions
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.recording_defaults import APPENDED, PREPENDED
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import VadOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.text.word_edits import equal_words
from sottovoce.types import Segment, Word

logger = logging.getLogger(__name__)

SPEECH = VadOptions(min_silence_ms=100.0, speech_pad_ms=30.0)
"""Fine enough for the pauses between words."""
SPEECH_MARGIN_S = 0.2
ROUGH = TranscribeOptions(
    decoding=DecodingOptions(),
    fallback=FallbackOptions(temperatures=(0.0,)),
    mode="vad",
    word_timestamps=True,
)
"""How a recording is read to see where its text is: once, greedily."""
LIKELY = 0.2
"""Mean probability of words below which a text is hardly the recording's (docs/alignment.md)."""
Progress = Callable[[float, float | None], None]


@dataclass(frozen=True, slots=True)
class TextAligner:
    """Aligns texts with recordings.

    tokenizer: with the language of the text. ctc: aligns by a CTC head instead of the decoder's attention.
    on_progress: called with the seconds that are aligned and those of the recording.
    """

    backend: Backend
    tokenizer: Tokenizer
    options: AlignOptions
    ctc: CtcAligner | None = None
    on_progress: Progress | None = None

    def segments(self, lines: Sequence[Line], recording: Recording) -> tuple[list[Segment], float]:
        """Return the lines as segments with the times of their words, and the seconds of the recording.

        Raises: AudioError; OptionError for a text that is not said there, or that the model cannot align.
        """
        units = units_of(lines, self.tokenizer)
        if self.ctc is not None:
            self.ctc.check(units)
        with RecordingFeatures(recording, self.backend.dims.n_mels, self.backend.device) as features:
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
        """Find the words of the text in one rough transcript of the recording: their times, None where not
        found.
        """
        words = [(word, key) for word in self._rough(recording) if (key := letters_of(word.word))]
        given = [i for i, unit in enumerate(units) if unit.letters]
        pairs = equal_words([units[i].letters for i in given], [key for _, key in words])
        n_found = sum(pair is not None for pair in pairs)
        if n_found < max(1.0, self.options.least_found * len(given)):
            raise OptionError(
                f"text: expected what is said in {recording.name}, but {n_found} of its {len(given)} words "
                "were heard there"
            )
        found: list[Span | None] = [None] * len(units)
        for unit, pair in zip(given, pairs, strict=True):
            if pair is not None:
                found[unit] = (words[pair][0].start, words[pair][0].end)
        return found

    def _rough(self, recording: Recording) -> Iterator[Word]:
        decoding = replace(ROUGH.decoding, language=self.tokenizer.language)
        transcriber = transcriber_for(self.backend, self.tokenizer, replace(ROUGH, decoding=decoding), None)
        for segment in transcription_of(transcriber, recording, keeps_open=True):
            yield from segment.words or ()

    def _window(
        self, window: AlignWindow, units: Sequence[Unit], features: RecordingFeatures, duration_s: float
    ) -> list[TimedWord]:
        first_frame = int(window.start_s * MEL_FRAMES_PER_SECOND)
        end_frame = max(first_frame + 2, int(window.end_s * MEL_FRAMES_PER_SECOND))
        features.drop_before(first_frame)
        mel = features.window(first_frame, end_frame, n_frames=2 * self.backend.dims.n_audio_ctx)
        encoded = self.backend.encode(mel)
        aligner = self.ctc or AttentionAligner(self.backend)
        words = aligner.timed(encoded, units[window.first : window.end], self.tokenizer)
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
        for number, line in enumerate(lines):
            own = [word for word, unit in zip(words, units, strict=True) if unit.line == number]
            merged = merge_punctuation(cut_at_sentence_ends(own, 2 * usual), PREPENDED, APPENDED)
            yield self._segment(number, line, merged)

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
    """Warn when the words of a text are improbable in the recording: alignment gives times to any text."""
    probability = sum(word.probability for word in words) / max(1, len(words))
    if words and probability < LIKELY:
        logger.warning(
            "text: expected what is said in %s, but its words are improbable there (%.2f in the mean)",
            recording,
            probability,
        )


def trimmed(window: AlignWindow, speech: Sequence[SpeechSegment]) -> AlignWindow:
    """Cut the silence at both ends of a window, but for a margin: attention is unreliable there."""
    inside = [one for one in speech if one.start_s < window.end_s and one.end_s > window.start_s]
    if not inside:
        return window
    return replace(
        window,
        start_s=max(window.start_s, inside[0].start_s - SPEECH_MARGIN_S),
        end_s=min(window.end_s, inside[-1].end_s + SPEECH_MARGIN_S),
    )


def shifted(word: TimedWord, seconds: float) -> TimedWord:
    """Return the word and its tokens, some seconds later."""
    pieces = tuple(
        replace(piece, start=piece.start + seconds, end=piece.end + seconds) for piece in word.pieces
    )
    return replace(word, start=word.start + seconds, end=word.end + seconds, pieces=pieces)
