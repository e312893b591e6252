"""Several languages at once: one encoder pass, one decoder row for each active language, fused by time.

Every row has its own start-of-transcript sequence, its own prompt and committed text and its own cache,
and listens to the frames that the language timeline gives its language (see `hearing`). Where words of two
rows lie on the same audio, the better one stands (see `fusing`).

Not known here: when updates are due, voice activity, and how the timeline comes about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sottovoce.backends.base import Backend
from sottovoce.errors import OptionError
from sottovoce.language.smoothing import SmoothingOptions
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.streaming.context import TextContext
from sottovoce.streaming.fusing import Candidate, fuse, is_same_word
from sottovoce.streaming.gating import Gate, Shares, owners, settled, shares_over, snapped
from sottovoce.streaming.hearing import Alone, Heard, Hearing, Masked, Row
from sottovoce.streaming.held import HeldSpeech
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.reading import Ending, Prefix, Reading, ReadingRules, most_tokens
from sottovoce.streaming.rows import RowReader
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.streaming.window import Window
from sottovoce.streaming.words import ReadWord, WordMaker
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, Samples, Word


@dataclass(frozen=True, slots=True)
class ParallelOptions:
    """How rows are gated and fused.

    max_languages: rows at most. active_share: a language is active when the timeline gives it this much
        of some frame, and owns least_s of audio; the frames of others go to the active ones.
    alone: rows hear their own stretches encoded by themselves; else one encoding under a mask, for decoders
        that were trained with one. bias, most_bias, margin_s: see `Gate`; bias inf is a hard mask.
    weight: of the timeline in the fused score. stable_s: a word waits until the timeline is this far past
        it. least_share: a word whose language has less of its frames than this part of the largest share
        is dropped.
    stretch_s: the probe hears stretches of this length, shorter than in restart mode, so that a phrase
        shows. smoothing: of their shares, looking both ways. snap_s: a border between two languages is
        moved so far at most to where it is quietest; 0: it stays.
    """

    max_languages: int = 2
    active_share: float = 0.7
    least_s: float = 0.6
    bias: float = 1.0
    most_bias: float = 15.0
    margin_s: float = 0.06
    alone: bool = True
    weight: float = 0.5
    stable_s: float = 0.25
    least_share: float = 0.5
    stretch_s: float = 1.0
    smoothing: SmoothingOptions = field(default_factory=lambda: SmoothingOptions(stay=0.85, evidence=0.5))
    snap_s: float = 0.25

    def __post_init__(self) -> None:
        if self.max_languages < 1:
            raise OptionError(f"max_languages: expected at least 1, got {self.max_languages}")
        for name, value in (("active_share", self.active_share), ("least_share", self.least_share)):
            if not 0.0 <= value <= 1.0:
                raise OptionError(f"{name}: expected 0 to 1, got {value}")
        for name in ("least_s", "bias", "most_bias", "margin_s", "weight", "stable_s", "snap_s"):
            if not getattr(self, name) >= 0.0:
                raise OptionError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if not 0.1 <= self.stretch_s <= 30.0:
            raise OptionError(f"stretch_s: expected 0.1 to 30 seconds, got {self.stretch_s}")
        if math.isinf(self.most_bias):
            raise OptionError("most_bias: expected a finite number, got inf")

    @property
    def hearing(self) -> Hearing:
        gate = Gate(self.bias, self.most_bias, self.margin_s)
        return Alone(gate) if self.alone else Masked(gate)


JITTER_S = 0.2
"""Words of a row may be attended to so much out of order."""


class ParallelStream:
    """Words of several languages from audio that is still coming; used like `Stream`.

    timeline: followed, not changed. contexts: by language, text tokens said before, for the prompts.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: StreamOptions,
        parallel: ParallelOptions,
        timeline: LanguageTimeline,
        *,
        start_sample: int = 0,
        contexts: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._options = options
        self._parallel = parallel
        self._timeline = timeline
        tokenizers = [tokenizer.with_language(code).with_task(options.task) for code in timeline.languages]
        known = contexts or {}
        self._contexts = [
            TextContext(own, options, known.get(code, ()))
            for code, own in zip(timeline.languages, tokenizers, strict=True)
        ]
        self._makers = [WordMaker(own) for own in tokenizers]
        self._held = HeldSpeech(backend, options, start_sample)
        self._hearing = parallel.hearing
        self._waiting: list[Word] = []
        vocabulary = LiveVocabulary.of(tokenizer, backend.dims.n_vocab, backend.device)
        self._reader = RowReader(backend, tokenizer.eot, vocabulary)

    @property
    def language(self) -> str:
        """The timeline's; words carry their own."""
        return self._timeline.current or self._timeline.languages[0]

    @property
    def start_sample(self) -> int:
        return self._held.start_sample

    @property
    def end_sample(self) -> int:
        return self._held.end_sample

    @property
    def committed_until_s(self) -> float:
        return self._held.committed.until_s

    @property
    def waiting(self) -> tuple[Word, ...]:
        """Words that won their audio in the last update but are not committed."""
        return tuple(self._waiting)

    @property
    def contexts(self) -> dict[str, tuple[int, ...]]:
        """See `Stream.contexts`."""
        languages = zip(self._timeline.languages, self._contexts, strict=True)
        return {code: context.followed_by(self._held.committed.tokens(code)) for code, context in languages}

    @property
    def is_ready(self) -> bool:
        """See `Stream.is_ready`."""
        return self._held.unread_s * FRAMES_PER_SECOND > self._options.frame_threshold

    def append(self, samples: Samples) -> None:
        """See `Stream.append`."""
        self._held.append(samples)

    def encode(self, *, final: bool = False, until_sample: int | None = None) -> Window | None:
        """See `Stream.encode`."""
        self._move_out(self._held.trim())
        return self._held.encode(final=final, until_sample=until_sample)

    def commit(self, window: Window, *, settled_until_s: float = math.inf, final: bool = False) -> list[Word]:
        """Commit the words that won their audio and that the timeline and every row have passed."""
        threshold = self._options.final_frame_threshold if final else self._options.frame_threshold
        if threshold >= window.n_frames:
            return []
        shares, active = self._gated(window)
        rows = self._rows(window, shares, active)
        if not rows:
            return []
        heard = self._hearing.hear(self._held, window, shares, rows)
        readings = self._read(heard, rows, threshold)
        said = []
        for i, (reading, row) in enumerate(zip(readings, rows, strict=True)):
            words = self._words(reading, window, row.language, final=final)
            placed = [_within(heard, i, read, window) for read in words]
            weight = self._parallel.weight
            said.append([Candidate.of(read, window, shares, row.language, weight=weight) for read in placed])
        stable_s = min(settled_until_s, self._stable_s(readings, window)) if not final else math.inf
        return self._take(fuse(said, self._parallel.least_share), stable_s)

    def finish(self, until_sample: int | None = None, *, settled_until_s: float = math.inf) -> list[Word]:
        """See `Stream.finish`."""
        window = self.encode(final=True, until_sample=until_sample)
        return [] if window is None else self.commit(window, final=True)

    def _take(self, words: Sequence[ReadWord], stable_s: float) -> list[Word]:
        """Commit new words up to a moment; the others wait."""
        new = [read for read in words if self._is_new(read.word)]
        taken = []
        for read in new:
            if read.word.end > stable_s:
                break
            placed = read.after(self.committed_until_s)
            self._held.committed.add(placed)
            taken.append(placed.word)
        self._waiting = [read.word for read in new[len(taken) :]]
        return taken

    def _is_new(self, word: Word) -> bool:
        """Whether a word comes after the committed ones.

        What follows the last one in the same row comes after it, though it may be attended to a little before
        its end; of another row's, most lies after it. What was said is not said again, by another row or
        within that little.
        """
        committed, until_s = self._held.committed, self.committed_until_s
        early = word.start < until_s - 1e-6
        if early and committed.last is not None and committed.last.language == word.language:
            if word.start < until_s - JITTER_S:
                return False
        elif early and (word.start + word.end) / 2 <= until_s + 1e-6:
            return False
        said = (read.word for read in committed if early or read.word.language != word.language)
        return not any(is_same_word(one, word) for one in said)

    def _move_out(self, words: Sequence[ReadWord]) -> None:
        for read in words:
            self._contexts[self._timeline.languages.index(read.word.language or "")].add(read.tokens)

    def _gated(self, window: Window) -> tuple[Shares, list[int]]:
        """The timeline over a window, shared out among the active languages, which are those with a row."""
        belief = list(self._timeline.belief.values())
        shares = shares_over(self._timeline.frames, window, belief, self._parallel.smoothing)
        active = self._active(self._settled(shares, window))
        shares[:, [i for i in range(shares.shape[1]) if i not in active]] = 0.0
        reach = round(self._parallel.snap_s * FRAMES_PER_SECOND)
        if reach:
            shares = snapped(shares, self._held.loudness(window.n_frames), reach)
        return self._settled(shares, window), active

    def _settled(self, shares: Shares, window: Window) -> Shares:
        """Shares in which committed words have settled whose their audio is."""
        words = [read.word for read in self._held.committed]
        known = [(self._timeline.languages.index(w.language or ""), w.start, w.end) for w in words]
        return settled(shares, window, known)

    def _active(self, shares: Shares) -> list[int]:
        """Languages with a row, the largest first; each owns some of the window."""
        peak, mass = shares.max(axis=0), shares.sum(axis=0)
        n_owned = owners(shares).sum(axis=0)
        order = [int(i) for i in np.argsort(-mass, kind="stable") if n_owned[i]]
        least = self._parallel.least_s * FRAMES_PER_SECOND
        chosen = [i for i in order if n_owned[i] >= least and peak[i] >= self._parallel.active_share]
        return (chosen or order)[: self._parallel.max_languages]

    def _rows(self, window: Window, shares: Shares, active: Sequence[int]) -> list[Row]:
        """A row for each active language that has something to hear."""
        if not self._hearing.apart:
            return [Row(language) for language in active]
        rows, lengths = [], []
        for language in active:
            since_s = self._held.committed.run_of(self._timeline.languages[language])[0]
            first = 0 if since_s is None else window.frame(since_s)
            rows.append(Row(language, first))
            lengths.append(int(owners(shares[first:])[:, language].sum()))
        least = min(self._parallel.least_s * FRAMES_PER_SECOND, max(lengths))
        return [row for row, n_own in zip(rows, lengths, strict=True) if n_own and n_own >= least]

    def _prefix(self, language: int) -> Prefix:
        """What a row says first: its words since another language was said; those before are its prompt."""
        code = self._timeline.languages[language]
        if not self._hearing.apart:
            return self._contexts[language].prefix(self._held.committed.tokens(code))
        _, before, since = self._held.committed.run_of(code)
        return self._contexts[language].prefix(since, before)

    def _read(self, heard: Heard, rows: Sequence[Row], threshold: float) -> list[Reading]:
        """One reading for each row, in frames of the window."""
        prefixes = [self._prefix(row.language) for row in rows]
        rules = [
            ReadingRules(
                threshold if reaches_end else 0,
                self._options.rewind_threshold,
                self._options.max_repeats,
                most_tokens(len(places) / FRAMES_PER_SECOND),
            )
            for places, reaches_end in zip(heard.places, heard.reaches_end, strict=True)
        ]
        readings = self._reader.read(heard.encoded, prefixes, heard.biases, rules)
        return [
            replace(reading, frames=tuple(int(places[frame]) for frame in reading.frames))
            for reading, places in zip(readings, heard.places, strict=True)
        ]

    def _words(self, reading: Reading, window: Window, language: int, *, final: bool) -> list[ReadWord]:
        """What a row says. What it says of its own audio alone follows all that it said before."""
        silent = reading.no_speech_prob > self._options.no_speech_threshold
        if reading.ending is Ending.REWOUND or (
            silent and reading.avg_logprob < self._options.logprob_threshold
        ):
            return []
        code, apart = self._timeline.languages[language], self._hearing.apart
        own_s = [read.word.end for read in self._held.committed if apart and read.word.language == code]
        after_s = max(own_s, default=window.start_s)
        return self._makers[language].words(reading, window, after_s=after_s, final=final)

    def _stable_s(self, readings: Sequence[Reading], window: Window) -> float:
        """What the timeline and every row have passed."""
        frames = self._timeline.frames
        heard_s = frames[-1].centre_s - self._parallel.stable_s if frames else math.inf
        return min([heard_s, *(self._read_until(reading, window) for reading in readings)])

    def _read_until(self, reading: Reading, window: Window) -> float:
        """How far a row has read: to the end of the audio, or to its last token where it was held."""
        if reading.ending in (Ending.END_OF_TEXT, Ending.REPEATED, Ending.REWOUND):
            return math.inf
        if reading.ending is Ending.FRONTIER:
            last = window.n_frames - self._options.frame_threshold
        else:
            last = (reading.frames or (0,))[-1]
        return window.seconds(max(0, int(last)))


def _within(heard: Heard, row: int, read: ReadWord, window: Window) -> ReadWord:
    """A row's word, where the row heard it."""
    frames = [(second - window.start_s) * FRAMES_PER_SECOND for second in (read.word.start, read.word.end)]
    start, end = heard.within(row, (frames[0], frames[1]))
    return read.at(window.start_s + start / FRAMES_PER_SECOND, window.start_s + end / FRAMES_PER_SECOND)
