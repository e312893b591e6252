"""Parallel decoding of several languages: one decoder row per active language, merged by the language
timeline.

Every row has its own prompt and committed text, and the separately encoded frames that the timeline gives
its language. Of overlapping words of two rows, the better one wins (`merge_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.backends.base import EncoderMode, IncrementalWindow
from sottovoce.engine.runtime import Runtime
from sottovoce.language.switching import SmoothingOptions, smoothed
from sottovoce.language.timeline import LanguageTimeline, TimelineFrame
from sottovoce.streaming.alignatt import AlignAttDecoder, AlignAttRequest
from sottovoce.streaming.audio_window import SNAP_S, AudioWindow, quietest_border
from sottovoce.streaming.commit_policy import CommitPolicy
from sottovoce.streaming.hypothesis import AlignAttHypothesis, StopReason
from sottovoce.streaming.options import ParallelOptions
from sottovoce.streaming.utterance import LiveUtterance
from sottovoce.streaming.words import LEAD_S, HypothesisWord, WordBuilder, letters_of
from sottovoce.types import FRAMES_PER_SECOND, EncoderOutput, Word

SHARE_FLOOR = 1e-3
"""Least share of a language, in logs and ratios."""
Shares = npt.NDArray[np.float64]
"""(n_frames, L): each language's share of each frame of a window."""
FrameIndex = npt.NDArray[np.int64]
Spans: TypeAlias = tuple[tuple[int, int], ...]
SAME_WORD_S = 0.5
"""The same word of two rows with middles this close was spoken once."""
LEAST_OWNERSHIP = 0.5
"""A word is dropped if its language has less of its frames than this fraction of the largest share: at
half, the other language is twice as likely.
"""
_TIE = 0.01
JITTER_S = 0.2
"""Tolerance of the order of attention to a row's words."""
SNAP_FRAMES = round(SNAP_S * FRAMES_PER_SECOND)


def open_frames(shares: Shares, language: int, margin_s: float) -> npt.NDArray[np.bool_]:
    """Return the frames (n_frames,) that a language owns, with a margin."""
    ratio: npt.NDArray[np.float64] = ownership(shares)[:, language]
    reach = round(margin_s * FRAMES_PER_SECOND)
    if reach and len(ratio):
        padded = np.pad(ratio, reach, mode="edge")
        ratio = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(axis=1)
    owned: npt.NDArray[np.bool_] = ratio >= 1.0
    return owned


def ownership(shares: Shares) -> Shares:
    """Return each share over the largest share of its frame (n_frames, L): 1 for the owner."""
    floored = np.maximum(shares, SHARE_FLOOR)
    owned: Shares = floored / floored.max(axis=1, keepdims=True)
    return owned


def owning_languages(shares: Shares) -> npt.NDArray[np.bool_]:
    owning: npt.NDArray[np.bool_] = ownership(shares) >= 1.0
    return owning


def snap_borders(shares: Shares, loud: npt.NDArray[np.float64], reach: int) -> Shares:
    """Move borders between owners to quiet frames, at most `reach` frames away, keeping their order.

    The probe finds a border to some tenths of a second, and words mostly end at quiet moments. loud:
    (n_frames,), see `audio_window.loudness`.
    """
    owner = shares.argmax(axis=1)
    borders = (np.flatnonzero(owner[1:] != owner[:-1]) + 1).tolist()
    moved, first = shares.copy(), 1
    for border, after in pairwise([*borders, len(shares)]):
        best = quietest_border(loud[:after], border, reach, least=first)
        moved[best:border] = shares[border]
        moved[border:best] = shares[border - 1]
        first = best + 1
    return moved


def pin_committed(shares: Shares, window: AudioWindow, words: Sequence[tuple[int, float, float]]) -> Shares:
    """Give the audio up to the end of the last committed word to the languages of the words.

    Attention is shorter than a word, so the pause between two is split in half.

    words: (language, start_s, end_s) each.
    """
    pinned = shares.copy()
    first = 0
    for i, (language, _, end_s) in enumerate(words):
        until_s = (end_s + max(end_s, words[i + 1][1])) / 2 if i + 1 < len(words) else end_s
        last = max(first, window.frame(until_s))
        pinned[first:last] = 0.0
        pinned[first:last, language] = 1.0
        first = last
    return pinned


def interpolated_shares(
    frames: Sequence[TimelineFrame],
    window: AudioWindow,
    belief: Sequence[float],
    smoothing: SmoothingOptions,
) -> Shares:
    """Return the timeline at every frame of a window, interpolated between the middles of probed
    stretches.

    belief: (L,), used without probed stretches. smoothing: of the stretches, in both directions.
    """
    within = [frame for frame in frames if frame.end_s > window.start_s]
    if not within:
        return np.tile(np.asarray(belief, dtype=np.float64), (window.n_frames, 1))
    centres = np.array([frame.centre_s for frame in within])
    table = smoothed(np.stack([frame.posterior for frame in within]), smoothing)
    at = window.start_s + (np.arange(window.n_frames) + 0.5) / FRAMES_PER_SECOND
    return np.stack([np.interp(at, centres, table[:, i]) for i in range(len(belief))], axis=1)


@dataclass(frozen=True, slots=True)
class LanguageRow:
    """A decoder row: index of its language, and the first window frame of its audio."""

    language: int
    first_frame: int


@dataclass(frozen=True, slots=True, eq=False)
class RowInputs:
    """The audio of each row.

    encoded: one window (batch of 1) a row. frames: per row, the frame of the utterance's window of each of
    its frames. reaches_end: whether a row has the end of the window; otherwise it has nothing to wait for.
    stretches: per row, the spans [start, end) of frames for its words.
    """

    encoded: tuple[EncoderOutput, ...]
    frames: tuple[FrameIndex, ...]
    reaches_end: tuple[bool, ...]
    stretches: tuple[Spans, ...]

    def clip(self, row: int, span: tuple[float, float]) -> tuple[float, float]:
        """Clip the span of a row's word (frames) to the stretch with the largest overlap, or the nearest.

        It begins at the stretch's last frame at the latest: the next frame is another row's.
        """
        start, end = max(self.stretches[row], key=lambda stretch: _overlap(stretch, span))
        return max(start, min(span[0], end - 1)), max(start, min(span[1], end))


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the common length of two spans, or minus the gap between them."""
    return min(one[1], other[1]) - max(one[0], other[0])


def encode_rows(
    runtime: Runtime,
    window: AudioWindow,
    shares: Shares,
    rows: Sequence[LanguageRow],
    *,
    margin_s: float,
    mode: EncoderMode,
) -> RowInputs:
    """Return the audio of each row: its language's stretches, joined and encoded in this mode.

    This costs a second encoder pass over about as many frames as the first.

    window: the utterance's, encoded last. shares: (n_frames, L). margin_s: see `ParallelOptions`.
    """
    frames = tuple(_since(row, open_frames(shares, row.language, margin_s)).nonzero()[0] for row in rows)
    results = runtime.encode_incremental(
        [IncrementalWindow(window.part(own), mode.whole()) for own in frames]
    )
    ends = tuple(bool(len(own)) and int(own[-1]) == window.n_frames - 1 for own in frames)
    owned = owning_languages(shares)
    stretches = tuple(_runs(_since(row, owned[:, row.language])) for row in rows)
    return RowInputs(tuple(one.encoded for one in results), frames, ends, stretches)


def _since(row: LanguageRow, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    since: npt.NDArray[np.bool_] = mask & (np.arange(len(mask)) >= row.first_frame)
    return since


def _runs(mask: npt.NDArray[np.bool_]) -> Spans:
    """Return the spans [start, end) of a mask (n,) in which it is True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8))).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class RowWord:
    """A word of one row, with the scores by which words compete.

    score: log p + weight * log q (p: of the decoder, q: of the timeline). ownership: its language's
    fraction of the largest share on its frames. margin_s: from its end to the end of the audio.
    """

    word: HypothesisWord
    score: float
    ownership: float
    margin_s: float

    @classmethod
    def of(
        cls, word: HypothesisWord, window: AudioWindow, shares: Shares, language: int, *, weight: float
    ) -> RowWord:
        first = min(window.frame(word.word.start), len(shares) - 1)
        last = max(first + 1, window.frame(word.word.end))
        share = shares[first:last]
        q = float(np.log(np.maximum(share[:, language], SHARE_FLOOR)).mean())
        score = math.log(max(word.word.probability, 1e-9)) + weight * q
        owned = float(ownership(share)[:, language].mean())
        return cls(word, score, owned, window.end_s - word.word.end)

    def beats(self, other: RowWord) -> bool:
        """Return whether it has the higher score; within 0.01 the lower entropy, then the larger margin."""
        if abs(self.score - other.score) > _TIE:
            return self.score > other.score
        if abs(self.word.entropy - other.word.entropy) > _TIE:
            return self.word.entropy < other.word.entropy
        return self.margin_s >= other.margin_s

    def overlaps(self, other: RowWord) -> bool:
        ours, theirs = self.word.word, other.word.word
        common = ours.start < theirs.end - 1e-6 and theirs.start < ours.end - 1e-6
        return common or is_same_word(ours, theirs)


def is_same_word(a: Word, b: Word) -> bool:
    """Return whether words of two rows are one: near a change, each row decodes part of a word with other
    frames.
    """
    near = abs((a.start + a.end) - (b.start + b.end)) / 2 < SAME_WORD_S
    return near and letters_of(a) == letters_of(b) != ""


def merge_rows(rows: Sequence[Sequence[RowWord]]) -> list[HypothesisWord]:
    """Return the words that win their audio, in order of time.

    A word wins if its language owns enough of its frames, and no such word of another row that overlaps
    it, or is the same, beats it.
    """
    able = [[word for word in row if word.ownership >= LEAST_OWNERSHIP] for row in rows]
    winners = [
        word
        for i, row in enumerate(able)
        for word in row
        if all(
            not word.overlaps(other) or word.beats(other)
            for j, others in enumerate(able)
            if j != i
            for other in others
        )
    ]
    return sorted((one.word for one in winners), key=lambda word: (word.word.start, word.word.end))


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    """The utterance, its window, the timeline over it (n_frames, L), and the rows."""

    utterance: LiveUtterance
    window: AudioWindow
    shares: Shares
    rows: list[LanguageRow]


class MultiLanguage:
    """Decode all of the audio in several languages, with the interface of `SingleLanguage`.

    builder_of: of a language code. timeline: read only. mode: how a row's audio is encoded.
    """

    def __init__(
        self,
        runtime: Runtime,
        decoder: AlignAttDecoder,
        builder_of: Callable[[str], WordBuilder],
        policy: CommitPolicy,
        options: ParallelOptions,
        timeline: LanguageTimeline,
        mode: EncoderMode,
    ) -> None:
        self._runtime = runtime
        self._decoder = decoder
        self._builder_of = builder_of
        self.policy = policy
        self._options = options
        self._timeline = timeline
        self._mode = mode

    @property
    def language(self) -> str:
        """The timeline's; words carry their own."""
        return self._timeline.current or self._timeline.languages[0]

    def decode(
        self,
        utterance: LiveUtterance,
        window: AudioWindow,
        *,
        certain_until_s: float = math.inf,
        final: bool = False,
    ) -> list[HypothesisWord]:
        undecoded_s = window.end_s - utterance.committed.until_s
        threshold = self.policy.stop_rules(undecoded_s, final=final).frame_threshold
        shares, active = self._shares(utterance, window)
        rows = self._rows(utterance, window, shares, active)
        if threshold >= window.n_frames or not rows:
            return []
        update = _Update(utterance, window, shares, rows)
        inputs = encode_rows(
            self._runtime, window, shares, rows, margin_s=self._options.margin_s, mode=self._mode
        )
        requests = self._requests(update, inputs, final=final)
        found = self._runtime.decode_continuously(self._decoder, inputs.encoded, requests)
        hypotheses = _in_window(found, inputs)
        until_s = math.inf if final else min(certain_until_s, self._passed_s(hypotheses, window))
        row_words = [
            self._row_words(update, inputs, row, one, final=final) for row, one in enumerate(hypotheses)
        ]
        words = [one for one in merge_rows(row_words) if self._is_new(utterance, one.word)]
        is_stuck = all(one.is_stuck for one in hypotheses)
        n = self.policy.decide(words, window, is_stuck=is_stuck, certain_until_s=until_s, final=final)
        return in_sequence(words[:n], utterance.committed.until_s)

    def _requests(self, update: _Update, inputs: RowInputs, *, final: bool) -> list[AlignAttRequest]:
        requests = []
        for row, frames, ends in zip(update.rows, inputs.frames, inputs.reaches_end, strict=True):
            rules = self.policy.stop_rules(
                len(frames) / FRAMES_PER_SECOND,
                final=final,
                committed_until=self._committed_until(update, row.language, frames),
            )
            if not ends:
                rules = replace(rules, frame_threshold=0)
            code = self._timeline.languages[row.language]
            requests.append(AlignAttRequest(update.utterance.prefix_since_change(code), rules))
        return requests

    def _committed_until(self, update: _Update, language: int, frames: FrameIndex) -> int | None:
        """Return the index in a row's frames where its committed prefix ends, or None."""
        code, committed = self._timeline.languages[language], update.utterance.committed
        since_s = committed.run_of(code)[0]
        ends_s = [
            one.word.end
            for one in committed
            if one.word.language == code and (since_s is None or one.word.end > since_s)
        ]
        if not ends_s:
            return None
        return int(np.searchsorted(frames, update.window.frame(max(ends_s))))

    def _row_words(
        self, update: _Update, inputs: RowInputs, row: int, hypothesis: AlignAttHypothesis, *, final: bool
    ) -> list[RowWord]:
        """Return the usable words of a row, after all that it committed."""
        language, window = update.rows[row].language, update.window
        code = self._timeline.languages[language]
        own_s = [one.word.end for one in update.utterance.committed if one.word.language == code]
        after_s = max(own_s, default=window.start_s)
        words = self.policy.usable_words(
            hypothesis, window, self._builder_of(code), after_s=after_s, final=final
        )
        clipped = [_clipped(inputs, row, word, window) for word in words]
        weight = self._options.weight
        return [RowWord.of(word, window, update.shares, language, weight=weight) for word in clipped]

    def _is_new(self, utterance: LiveUtterance, word: Word) -> bool:
        """Return whether a word comes after the committed ones.

        Attention to a row's next word may begin slightly before the end of its last one, while most of
        another row's word lies after it. A committed word does not come again, from another row or within
        that tolerance.
        """
        committed, until_s = utterance.committed, utterance.committed.until_s
        early = word.start < until_s - 1e-6
        if early and committed.last is not None and committed.last.language == word.language:
            if word.start < until_s - JITTER_S:
                return False
        elif early and (word.start + word.end) / 2 <= until_s + 1e-6:
            return False
        others = (one.word for one in committed if early or one.word.language != word.language)
        return not any(is_same_word(other, word) for other in others)

    def _shares(self, utterance: LiveUtterance, window: AudioWindow) -> tuple[Shares, list[int]]:
        """Return the timeline (n_frames, L) distributed over the active languages, and these."""
        belief = list(self._timeline.belief.values())
        shares = interpolated_shares(self._timeline.frames, window, belief, self._options.smoothing)
        if self._options.confirmed:
            shares = self._shares_of_confirmed(shares, window)
        undecoded = window.frame(utterance.committed.until_s) if len(utterance.committed) else 0
        active = self._active(self._pinned(utterance, shares, window)[min(undecoded, len(shares) - 1) :])
        shares[:, [i for i in range(shares.shape[1]) if i not in active]] = 0.0
        shares = snap_borders(shares, window.loudness, SNAP_FRAMES)
        return self._pinned(utterance, shares, window), active

    def _shares_of_confirmed(self, shares: Shares, window: AudioWindow) -> Shares:
        """Distribute each frame over the languages that were switched to."""
        confirmed = self._timeline.confirmed_languages(window.start_s)
        is_confirmed = np.array([code in confirmed for code in self._timeline.languages])
        if not is_confirmed.any():
            return shares
        left = np.where(is_confirmed, np.maximum(shares, SHARE_FLOOR), 0.0)
        shared: Shares = left / left.sum(axis=1, keepdims=True)
        return shared

    def _pinned(self, utterance: LiveUtterance, shares: Shares, window: AudioWindow) -> Shares:
        words = [one.word for one in utterance.committed]
        index = self._timeline.languages.index
        return pin_committed(
            shares, window, [(index(word.language or ""), _attended_s(word), word.end) for word in words]
        )

    def _active(self, shares: Shares) -> list[int]:
        """Return the languages with a row, by share; each owns some undecoded audio."""
        peak, mass = shares.max(axis=0), shares.sum(axis=0)
        n_owned = owning_languages(shares).sum(axis=0)
        order = [int(i) for i in np.argsort(-mass, kind="stable") if n_owned[i]]
        least = self._options.least_s * FRAMES_PER_SECOND
        chosen = [i for i in order if n_owned[i] >= least and peak[i] >= self._options.active_share]
        return (chosen or order)[: self._options.max_languages]

    def _rows(
        self, utterance: LiveUtterance, window: AudioWindow, shares: Shares, active: Sequence[int]
    ) -> list[LanguageRow]:
        """Return a row for each active language that owns audio after the last word of another one."""
        rows, lengths = [], []
        for language in active:
            since_s = utterance.committed.run_of(self._timeline.languages[language])[0]
            first = 0 if since_s is None else window.frame(since_s)
            rows.append(LanguageRow(language, first))
            lengths.append(int(owning_languages(shares[first:])[:, language].sum()))
        least = min(self._options.least_s * FRAMES_PER_SECOND, max(lengths))
        return [row for row, n_own in zip(rows, lengths, strict=True) if n_own and n_own >= least]

    def _passed_s(self, hypotheses: Sequence[AlignAttHypothesis], window: AudioWindow) -> float:
        """Return the time (s) that the timeline and every row have passed."""
        frames = self._timeline.frames
        timeline_s = frames[-1].centre_s - self._options.stable_s if frames else math.inf
        return min([timeline_s, *(self._decoded_until_s(one, window) for one in hypotheses)])

    def _decoded_until_s(self, hypothesis: AlignAttHypothesis, window: AudioWindow) -> float:
        """Return the time (s) that a row has reached; inf at its end of text."""
        if hypothesis.is_stuck or hypothesis.stop_reason is StopReason.END_OF_TEXT:
            return math.inf
        if hypothesis.stop_reason is StopReason.FRONTIER:
            last = window.n_frames - self.policy.frame_threshold
        else:
            last = (hypothesis.frames or (0,))[-1]
        return window.seconds(max(0, int(last)))


def in_sequence(words: Sequence[HypothesisWord], after_s: float) -> list[HypothesisWord]:
    """Return words none of which starts before after_s or before the end of a previous one."""
    found: list[HypothesisWord] = []
    for word in words:
        found.append(word.not_before(after_s))
        after_s = max(after_s, found[-1].word.end)
    return found


def _attended_s(word: Word) -> float:
    """Return where the attention to a word began, at most where it ended."""
    return min(word.start + LEAD_S, word.end)


def _in_window(hypotheses: Sequence[AlignAttHypothesis], inputs: RowInputs) -> list[AlignAttHypothesis]:
    return [
        replace(one, frames=tuple(int(frames[frame]) for frame in one.frames))
        for one, frames in zip(hypotheses, inputs.frames, strict=True)
    ]


def _clipped(inputs: RowInputs, row: int, word: HypothesisWord, window: AudioWindow) -> HypothesisWord:
    """Return a row's word with times inside the row's own audio."""
    start_s, end_s = word.word.start - window.start_s, word.word.end - window.start_s
    start, end = inputs.clip(row, (start_s * FRAMES_PER_SECOND, end_s * FRAMES_PER_SECOND))
    return word.at(window.start_s + start / FRAMES_PER_SECOND, window.start_s + end / FRAMES_PER_SECOND)
