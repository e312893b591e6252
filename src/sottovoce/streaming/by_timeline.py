"""Several languages at once: one decoder row for each active language, fused by the language timeline.

Every row has its own start-of-transcript sequence, its own prompt and committed text and its own cache,
and listens to the frames that the timeline gives its language (see `heard`). Where words of two rows lie on
the same audio, the better one stands (see `fusing`).

Not known here: when updates are due, voice activity, and how the timeline comes about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sottovoce.backends.base import EncoderMode
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.streaming.agreed import Agreed
from sottovoce.streaming.agreement import Agreement
from sottovoce.streaming.alignatt import Reader, ReadRequest
from sottovoce.streaming.fusing import Candidate, fuse, is_same_word
from sottovoce.streaming.gating import LEAST_SHARE, Shares, owners, settled, shares_over, snapped
from sottovoce.streaming.heard import FrameIndex, Heard, Row
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.parallel_options import ParallelOptions
from sottovoce.streaming.plan import is_no_speech, is_stuck, rules_for
from sottovoce.streaming.reading import Ending, Prefix, Reading
from sottovoce.streaming.utterance import Utterance
from sottovoce.streaming.window import Window
from sottovoce.streaming.words import LEAD_S, ReadWord, WordMaker
from sottovoce.streaming.work import Read, Steps
from sottovoce.types import FRAMES_PER_SECOND, Word

JITTER_S = 0.2
"""Words of a row may be attended to so much out of order."""


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    """One update: the utterance, its window, and the timeline over it."""

    utterance: Utterance
    window: Window
    shares: Shares
    rows: list[Row]


class ByTimeline:
    """Words of several languages; a `Plan`.

    timeline: followed, not changed. maker_of: of a language code. mode: how rows' own audio is encoded.
    """

    def __init__(
        self,
        reader: Reader,
        maker_of: Callable[[str], WordMaker],
        options: StreamOptions,
        parallel: ParallelOptions,
        timeline: LanguageTimeline,
        mode: EncoderMode,
    ) -> None:
        self._reader = reader
        self._maker_of = maker_of
        self._options = options
        self._parallel = parallel
        self._timeline = timeline
        self._hearing = parallel.hearing(mode)
        self._agreement = Agreement(options.agreement, options.frame_threshold, options.sure_frames)
        self._agreed = Agreed()
        self._waiting: tuple[Word, ...] = ()
        self._is_stuck = False

    @property
    def language(self) -> str:
        """The timeline's; words carry their own."""
        return self._timeline.current or self._timeline.languages[0]

    @property
    def waiting(self) -> tuple[Word, ...]:
        return self._waiting

    @property
    def is_stuck(self) -> bool:
        return self._is_stuck

    def read(
        self, utterance: Utterance, window: Window, *, settled_until_s: float = math.inf, final: bool = False
    ) -> Steps[list[ReadWord]]:
        """The words that won their audio and that the timeline and every row have passed."""
        unread_s = window.end_s - utterance.committed.until_s
        threshold = rules_for(self._options, unread_s, final=final).frame_threshold
        shares, active = self._gated(utterance, window)
        rows = self._rows(utterance, window, shares, active)
        if threshold >= window.n_frames or not rows:
            return []
        update = _Update(utterance, window, shares, rows)
        heard = yield from self._hearing.hear(utterance, window, shares, rows)
        work = Read(self._reader, heard.encoded, self._requests(update, heard, final=final))
        yield work
        readings = _in_window(work.readings, heard)
        self._is_stuck = all(is_stuck(reading) for reading in readings)
        said = [self._said(update, heard, i, reading, final=final) for i, reading in enumerate(readings)]
        stable_s = math.inf if final else min(settled_until_s, self._stable_s(readings, window))
        new = [read for read in fuse(said, self._parallel.least_share) if self._is_new(utterance, read.word)]
        n_safe = len(new) if final else self._agreement.n_safe(new, window)
        return self._taken(utterance, new, n_safe, stable_s)

    def give_up(self, after_s: float, until_s: float) -> list[ReadWord]:
        return self._agreed.take(after_s, until_s)

    def _requests(self, update: _Update, heard: Heard, *, final: bool) -> list[ReadRequest]:
        requests = []
        for row, places, bias, ends in zip(
            update.rows, heard.places, heard.biases, heard.reaches_end, strict=True
        ):
            rules = rules_for(self._options, len(places) / FRAMES_PER_SECOND, final=final)
            if not ends:
                rules = replace(rules, frame_threshold=0)
            rules = replace(rules, said_until=self._said_until(update, row.language, places))
            requests.append(ReadRequest(self._prefix(update.utterance, row.language), rules, bias))
        return requests

    def _prefix(self, utterance: Utterance, language: int) -> Prefix:
        """What a row says first: its words since another language was said; those before are its prompt."""
        code = self._timeline.languages[language]
        return utterance.prefix_since(code) if self._hearing.apart else utterance.prefix(code)

    def _said_until(self, update: _Update, language: int, places: FrameIndex) -> int | None:
        """The frame, of those that a row hears, at which what it says first ends; None: that is nothing."""
        code, committed = self._timeline.languages[language], update.utterance.committed
        since_s = committed.run_of(code)[0] if self._hearing.apart else None
        ends_s = [
            read.word.end
            for read in committed
            if read.word.language == code and (since_s is None or read.word.end > since_s)
        ]
        if not ends_s:
            return None
        return int(np.searchsorted(places, update.window.frame(max(ends_s))))

    def _said(
        self, update: _Update, heard: Heard, place: int, reading: Reading, *, final: bool
    ) -> list[Candidate]:
        """What a row says. What it says of its own audio alone follows all that it said before."""
        if reading.ending is Ending.REWOUND or is_no_speech(reading, self._options):
            return []
        language, window = update.rows[place].language, update.window
        code, apart = self._timeline.languages[language], self._hearing.apart
        committed = update.utterance.committed
        own_s = [read.word.end for read in committed if apart and read.word.language == code]
        after_s = max(own_s, default=window.start_s)
        words = self._maker_of(code).words(reading, window, after_s=after_s, final=final)
        weight = self._parallel.weight
        return [
            Candidate.of(_within(heard, place, read, window), window, update.shares, language, weight=weight)
            for read in words
        ]

    def _taken(
        self, utterance: Utterance, new: Sequence[ReadWord], n_safe: int, stable_s: float
    ) -> list[ReadWord]:
        """Safe words up to a moment; the others wait."""
        committed_s = utterance.committed.until_s
        taken: list[ReadWord] = []
        for read in new[:n_safe]:
            if read.word.end > stable_s:
                break
            taken.append(read.after(committed_s))
            committed_s = max(committed_s, taken[-1].word.end)
        self._agreement.committed(len(taken))
        self._agreed.follow(taken, new[len(taken) :], self._agreement.n_agreed, is_lost=self._is_stuck)
        self._waiting = tuple(read.word for read in new[len(taken) :])
        return taken

    def _is_new(self, utterance: Utterance, word: Word) -> bool:
        """Whether a word comes after the committed ones.

        What follows the last one in the same row comes after it, though it may be attended to a little before
        its end; of another row's, most lies after it. What was said is not said again, by another row or
        within that little.
        """
        committed, until_s = utterance.committed, utterance.committed.until_s
        early = word.start < until_s - 1e-6
        if early and committed.last is not None and committed.last.language == word.language:
            if word.start < until_s - JITTER_S:
                return False
        elif early and (word.start + word.end) / 2 <= until_s + 1e-6:
            return False
        said = (read.word for read in committed if early or read.word.language != word.language)
        return not any(is_same_word(one, word) for one in said)

    def _gated(self, utterance: Utterance, window: Window) -> tuple[Shares, list[int]]:
        """The timeline over a window, shared out among the active languages, which are those with a row."""
        belief = list(self._timeline.belief.values())
        shares = shares_over(self._timeline.frames, window, belief, self._parallel.smoothing)
        if self._parallel.confirmed:
            shares = self._of_confirmed(shares, window)
        unread = window.frame(utterance.committed.until_s) if len(utterance.committed) else 0
        active = self._active(self._settled(utterance, shares, window)[min(unread, len(shares) - 1) :])
        shares[:, [i for i in range(shares.shape[1]) if i not in active]] = 0.0
        reach = round(self._parallel.snap_s * FRAMES_PER_SECOND)
        if reach:
            shares = snapped(shares, window.loudness, reach)
        return self._settled(utterance, shares, window), active

    def _of_confirmed(self, shares: Shares, window: Window) -> Shares:
        """Each frame shared out among the languages that were switched to."""
        in_use = self._timeline.in_use(window.start_s)
        kept = np.array([code in in_use for code in self._timeline.languages])
        if not kept.any():
            return shares
        left = np.where(kept, np.maximum(shares, LEAST_SHARE), 0.0)
        shared: Shares = left / left.sum(axis=1, keepdims=True)
        return shared

    def _settled(self, utterance: Utterance, shares: Shares, window: Window) -> Shares:
        """Shares in which committed words have settled whose their audio is."""
        words = [read.word for read in utterance.committed]
        known = [(self._timeline.languages.index(w.language or ""), _attended(w), w.end) for w in words]
        return settled(shares, window, known)

    def _active(self, shares: Shares) -> list[int]:
        """Languages with a row, the largest first; each owns some of the audio that is not said yet."""
        peak, mass = shares.max(axis=0), shares.sum(axis=0)
        n_owned = owners(shares).sum(axis=0)
        order = [int(i) for i in np.argsort(-mass, kind="stable") if n_owned[i]]
        least = self._parallel.least_s * FRAMES_PER_SECOND
        chosen = [i for i in order if n_owned[i] >= least and peak[i] >= self._parallel.active_share]
        return (chosen or order)[: self._parallel.max_languages]

    def _rows(self, utterance: Utterance, window: Window, shares: Shares, active: Sequence[int]) -> list[Row]:
        """A row for each active language that has something to hear."""
        if not self._hearing.apart:
            return [Row(language) for language in active]
        rows, lengths = [], []
        for language in active:
            since_s = utterance.committed.run_of(self._timeline.languages[language])[0]
            first = 0 if since_s is None else window.frame(since_s)
            rows.append(Row(language, first))
            lengths.append(int(owners(shares[first:])[:, language].sum()))
        least = min(self._parallel.least_s * FRAMES_PER_SECOND, max(lengths))
        return [row for row, n_own in zip(rows, lengths, strict=True) if n_own and n_own >= least]

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
            last = window.n_frames - self._options.sure_frames
        else:
            last = (reading.frames or (0,))[-1]
        return window.seconds(max(0, int(last)))


def _attended(word: Word) -> float:
    """Where the attention to a word began; its end is no more than where it ended."""
    return min(word.start + LEAD_S, word.end)


def _in_window(readings: Sequence[Reading], heard: Heard) -> list[Reading]:
    """Readings in frames of the window."""
    return [
        replace(reading, frames=tuple(int(places[frame]) for frame in reading.frames))
        for reading, places in zip(readings, heard.places, strict=True)
    ]


def _within(heard: Heard, row: int, read: ReadWord, window: Window) -> ReadWord:
    """A row's word, where the row heard it."""
    frames = [(second - window.start_s) * FRAMES_PER_SECOND for second in (read.word.start, read.word.end)]
    start, end = heard.within(row, (frames[0], frames[1]))
    return read.at(window.start_s + start / FRAMES_PER_SECOND, window.start_s + end / FRAMES_PER_SECOND)
