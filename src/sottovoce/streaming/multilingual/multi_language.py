"""Decode several languages at once: a decoder row for each active language, merged by the language timeline.

Every row has its own start-of-transcript sequence, prompt and committed text, and gets the frames that the
timeline gives its language (`row_inputs`). Where words of two rows lie on the same audio, the better one wins
(`merge`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sottovoce.backends.base import EncoderMode
from sottovoce.engine.calls import AlignAttCall, CallGenerator
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.streaming.alignatt import AlignAttDecoder
from sottovoce.streaming.audio_window import SNAP_S, AudioWindow
from sottovoce.streaming.beams import AlignAttRequest
from sottovoce.streaming.commit_policy import CommitPolicy
from sottovoce.streaming.hypothesis import AlignAttHypothesis, StopReason
from sottovoce.streaming.multilingual.masks import (
    SHARE_FLOOR,
    Shares,
    interpolated_shares,
    owning_languages,
    pin_committed,
    snap_borders,
)
from sottovoce.streaming.multilingual.merge import RowWord, is_same_word, merge_rows
from sottovoce.streaming.multilingual.row_inputs import (
    FrameIndex,
    LanguageRow,
    RowInputs,
    encode_rows,
)
from sottovoce.streaming.options import ParallelOptions
from sottovoce.streaming.utterance import LiveUtterance
from sottovoce.streaming.words import LEAD_S, HypothesisWord, WordBuilder
from sottovoce.types import FRAMES_PER_SECOND, Word

JITTER_S = 0.2
"""Words of a row may be attended to this much out of order."""
SNAP_FRAMES = round(SNAP_S * FRAMES_PER_SECOND)


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    """The utterance, its window, the timeline over it (n_frames, L), and the rows."""

    utterance: LiveUtterance
    window: AudioWindow
    shares: Shares
    rows: list[LanguageRow]


class MultiLanguage:
    """A `DecodingStrategy` of several languages.

    builder_of: of a language code. timeline: read, not changed. mode: how a row's own audio is encoded.
    """

    def __init__(
        self,
        decoder: AlignAttDecoder,
        builder_of: Callable[[str], WordBuilder],
        policy: CommitPolicy,
        options: ParallelOptions,
        timeline: LanguageTimeline,
        mode: EncoderMode,
    ) -> None:
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
    ) -> CallGenerator[list[HypothesisWord]]:
        undecoded_s = window.end_s - utterance.committed.until_s
        threshold = self.policy.stop_rules(undecoded_s, final=final).frame_threshold
        shares, active = self._shares(utterance, window)
        rows = self._rows(utterance, window, shares, active)
        if threshold >= window.n_frames or not rows:
            return []
        update = _Update(utterance, window, shares, rows)
        inputs = yield from encode_rows(
            window, shares, rows, margin_s=self._options.margin_s, mode=self._mode
        )
        requests = self._requests(update, inputs, final=final)
        found: list[AlignAttHypothesis] = yield AlignAttCall(self._decoder, inputs.encoded, requests)
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
        """Return the index in a row's frames where its committed prefix ends; None: nothing is committed."""
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
        """Return the usable words of a row, which come after all that it committed."""
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

        The next word of a row may be attended to a little before the end of its last one; most of another
        row's lies after it. A committed word does not come again, from another row or within that little.
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
        """Return the timeline (n_frames, L) shared out among the active languages, and these."""
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
        """Share out each frame among the languages that were switched to."""
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
        """Return the languages with a row, by share; each owns some of the audio that is not decoded."""
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
        """Return the time (s) that a row has come to; inf at its end of text."""
        if hypothesis.is_stuck or hypothesis.stop_reason is StopReason.END_OF_TEXT:
            return math.inf
        if hypothesis.stop_reason is StopReason.FRONTIER:
            last = window.n_frames - self.policy.frame_threshold
        else:
            last = (hypothesis.frames or (0,))[-1]
        return window.seconds(max(0, int(last)))


def in_sequence(words: Sequence[HypothesisWord], after_s: float) -> list[HypothesisWord]:
    """Return words none of which starts before after_s or before the end of one before it."""
    found: list[HypothesisWord] = []
    for word in words:
        found.append(word.not_before(after_s))
        after_s = max(after_s, found[-1].word.end)
    return found


def _attended_s(word: Word) -> float:
    """Return where the attention to a word began, at most where it ended."""
    return min(word.start + LEAD_S, word.end)


def _in_window(hypotheses: Sequence[AlignAttHypothesis], inputs: RowInputs) -> list[AlignAttHypothesis]:
    """Return hypotheses with frames of the utterance's window."""
    return [
        replace(one, frames=tuple(int(frames[frame]) for frame in one.frames))
        for one, frames in zip(hypotheses, inputs.frames, strict=True)
    ]


def _clipped(inputs: RowInputs, row: int, word: HypothesisWord, window: AudioWindow) -> HypothesisWord:
    """Return a row's word with times inside the row's own audio."""
    start_s, end_s = word.word.start - window.start_s, word.word.end - window.start_s
    start, end = inputs.clip(row, (start_s * FRAMES_PER_SECOND, end_s * FRAMES_PER_SECOND))
    return word.at(window.start_s + start / FRAMES_PER_SECOND, window.start_s + end / FRAMES_PER_SECOND)
