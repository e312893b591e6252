"""The CTC prefix beam search: its language models, its state, its frame loop in the native kernels, and
commits.

Every prefix sums the probability of its paths, separately for those that end in a blank and in its last token
(Hannun et al. 2014, arXiv 1408.2873; Graves 2012, section 7.5).

Homophones are word sequences with the same labels. If their lexicon and language model states are equal too,
the search keeps the best and counts the others in the posteriors; at the end the word sequences of given
labels are ranked.

The common prefix of all beams is final. It leaves the state as committed words, so time and memory of a chunk
depend on the rest only.
"""

from __future__ import annotations

import ctypes
import itertools
from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sottovoce.ctc.emissions import (
    NEVER,
    NO_CUT,
    Cut,
    IdleSeparators,
    NativeEmissions,
    NativeTexts,
    TokenSpans,
    TokenTimes,
    align,
    common_cut,
    threads_for,
    token_times,
)
from sottovoce.ctc.labels import SpelledWord, SymbolReader
from sottovoce.errors import InputError, OptionError
from sottovoce.kernels import load_kernels
from sottovoce.lm.base import Automaton, Bools, Doubles, Floats, Ints, Records
from sottovoce.lm.lexicon import ROOT, Lexicon
from sottovoce.lm.rescoring import HistoryWord, WordHistory

if TYPE_CHECKING:
    import sottovoce_kernels.ctc

IMPOSSIBLE = -228.0
"""About log10 -99, as in ARPA files."""
UNKNOWN_SHARE = 0.7
"""Share of an unknown word's cost that is due at its beginning."""
WeightedModel = tuple[Automaton, float]


class PrefixScorer:
    """The language models, lexicon and boosting of a search over n_tokens labels.

    tokens, words: models over labels, and over the words of the lexicon, with their weights. word_score,
    unknown_score: added for every word, and every unknown word. unigrams: (n_words,) weighted scores for
    look-ahead, or None.

    Look-ahead (Ortmanns et al. 1997; flashlight's smearing) adds the best score of the words that are still
    possible inside a word, and subtracts it where the word ends. It changes pruning alone.

    start: (s,) int64, the first state: the lexicon's node if there is one, then the states of the models over
    words, then of those over labels.
    """

    def __init__(
        self,
        n_tokens: int,
        tokens: Sequence[WeightedModel] = (),
        *,
        lexicon: Lexicon | None = None,
        words: Sequence[WeightedModel] = (),
        word_score: float = 0.0,
        unknown_score: float = 0.0,
        unigrams: Floats | None = None,
    ) -> None:
        self.n_tokens = n_tokens
        self.lexicon = lexicon
        self._tokens, self._words = ([_bounded(*each) for each in part] for part in (tokens, words))
        before = [] if lexicon is None else [ROOT]
        self.start = np.array([*before, *(model.start for model, _ in (*words, *tokens))], np.int64)
        if lexicon is None:
            return
        self._word_scores = np.full(len(lexicon.words), word_score, np.float32)
        if lexicon.unknown is not None:
            self._word_scores[lexicon.unknown] += np.float32(unknown_score)
        self.ahead = np.zeros(lexicon.n_nodes, np.float32)
        if unigrams is not None:
            scores = unigrams.copy()
            if lexicon.unknown is not None:
                whole = scores[lexicon.unknown] + self._word_scores[lexicon.unknown]
                scores[lexicon.unknown] = np.float32(UNKNOWN_SHARE) * whole
            self.ahead = lexicon.look_ahead(scores)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of labels, nodes of the lexicon, and ids and nodes of each model."""
        models = [model for model, _ in (*self._words, *self._tokens)]
        per_model = ((len(m.root_weights), 0 if m.parent is None else len(m.parent), m.start) for m in models)
        n_nodes = 0 if self.lexicon is None else self.lexicon.n_nodes
        return self.n_tokens, n_nodes, *itertools.chain.from_iterable(per_model)

    @property
    def n_arcs(self) -> int:
        """The largest number of ways to append a label."""
        if self.lexicon is None:
            return 1
        n = self.lexicon.n_homophones
        return n if self.lexicon.separator is not None else 1 + n + 2 * (self.lexicon.unknown is not None)

    @property
    def word_separator(self) -> int | None:
        """The label between words, or None. Repeated, or first, it appends nothing."""
        return None if self.lexicon is None else self.lexicon.separator

    def native(self, kernels: ModuleType) -> sottovoce_kernels.ctc.Scorer:
        words, tokens = ([_model(kernels, *each) for each in part] for part in (self._words, self._tokens))
        scorer: sottovoce_kernels.ctc.Scorer = kernels.Scorer(
            self.n_tokens, self._tree(kernels), words, tokens
        )
        return scorer

    def _tree(self, kernels: ModuleType) -> object:
        tree = self.lexicon
        if tree is None:
            return None
        arrays: dict[str, Records] = {
            "words": tree.words_of,
            "ahead": self.ahead,
            "word_scores": self._word_scores,
        }
        arrays |= {name: getattr(tree, name) for name in _ARRAYS_OF_TREES}
        return kernels.LexiconArrays(
            n_nodes=tree.n_nodes,
            n_words=len(tree.words),
            unknown=-1 if tree.unknown is None else tree.unknown,
            separator=-1 if tree.separator is None else tree.separator,
            n_homophones=tree.n_homophones,
            **{name: _address(array) for name, array in arrays.items()},
        )


def _bounded(model: Automaton, weight: float) -> WeightedModel:
    if model.keys is not None or weight >= 0:
        return model, weight
    # Upper bounds times a negative weight are no upper bounds.
    unbounded = np.full_like(model.root_weights, -1e30)
    return model._replace(root_weights=unbounded), weight


_ARRAYS_OF_TREES = ("keys", "first_word", "n_words_of", "may_begin", "may_go_on")
_ARRAYS = (
    *("first", "keys", "weights", "targets", "backoff", "parent", "root_weights", "root_targets"),
    *("ends", "ids", "begins"),
)


def _model(kernels: ModuleType, model: Automaton, weight: float) -> object:
    return kernels.ModelArrays(
        n_nodes=0 if model.parent is None else len(model.parent),
        n_ids=len(model.root_weights),
        silent=-1 if model.silent is None else model.silent,
        weight=weight,
        trie=0 if model.trie is None else ctypes.addressof(model.trie),
        probing=model.probing,
        **{name: _address(getattr(model, name)) for name in _ARRAYS},
    )


def _address(values: Records | None) -> int:
    if values is None:
        return 0
    assert values.flags.c_contiguous, values.strides
    assert values.dtype in (np.int64, np.float32, np.bool_), values.dtype
    return int(values.ctypes.data)


@dataclass(slots=True, eq=False)
class CommittedHistory:
    """The committed part of one utterance: a few megabytes per hour of speech.

    symbols: see `PrefixState`. first, last, peak: as in `TokenTimes`. n_frames: their frames. words:
    complete words, with positions in `symbols`. text: of all words. n_closed: symbols up to the last word.
    n_emitted: words sent as events. n_scored: words scored by a neural model. past: their history. living:
    histories of the beams, whose scores stay cached. n_shared: symbols that all beams shared at the last
    check. flush_deadline_frames: uncommitted frames after which differing beams are dropped.
    """

    symbols: array[int] = field(default_factory=lambda: array("q"))
    first: array[int] = field(default_factory=lambda: array("i"))
    last: array[int] = field(default_factory=lambda: array("i"))
    peak: array[float] = field(default_factory=lambda: array("f"))
    n_frames: int = 0
    words: list[SpelledWord] = field(default_factory=list)
    text: str = ""
    n_closed: int = 0
    n_emitted: int = 0
    n_scored: int = 0
    past: WordHistory | None = None
    living: list[WordHistory] = field(default_factory=list)
    n_shared: int = 0
    flush_deadline_frames: int = 0

    def __copy__(self) -> CommittedHistory:
        parts = {name: getattr(self, name)[:] for name in ("symbols", "first", "last", "peak", "words")}
        return replace(self, **parts)

    def add(self, symbols: Sequence[int], times: TokenTimes, n_frames: int, reader: SymbolReader) -> None:
        """Commit symbols, and drop n_frames frames."""
        self.symbols.extend(symbols)
        self.first.extend(self.n_frames + frame for frame in times.first)
        self.last.extend(self.n_frames + frame for frame in times.last)
        self.peak.extend(times.peak)
        self.n_frames += n_frames
        closed, n_symbols = reader.closed(self.open_symbols())
        self.words += (
            word._replace(first=self.n_closed + word.first, end=self.n_closed + word.end) for word in closed
        )
        self.text = reader.join([self.text, *(word.text for word in closed)])
        self.n_closed += n_symbols

    def history(self) -> WordHistory:
        newer = self.words[self.n_scored :]
        return (self.past or WordHistory()).after(HistoryWord(word.text, word.in_lexicon) for word in newer)

    def mark_scored(self, living: list[WordHistory]) -> None:
        """Mark the committed words as scored. living: the beams' histories after them."""
        self.past, self.living = self.history(), living
        self.past.forget_beginning()
        self.n_scored = len(self.words)

    def open_symbols(self) -> list[int]:
        """Return the symbols of a word that may continue."""
        return self.symbols[self.n_closed :].tolist()

    def times(self, later: TokenTimes, begin: int = 0) -> TokenTimes:
        """Return the times of symbols from `begin` on, and of `later` ones."""
        n = self.n_frames
        return TokenTimes(
            [*self.first[begin:], *(n + frame for frame in later.first)],
            [*self.last[begin:], *(n + frame for frame in later.last)],
            [*self.peak[begin:], *later.peak],
        )


@dataclass(slots=True, eq=False)
class PrefixState:
    """B utterances of K prefixes, best first, in float32 and int64.

    A prefix is a sequence of symbols: token + V * mark, where the mark is the word that the token ends (0:
    none, w + 1: word w, larger ones: unknown words). Dead slots have -inf in `blank` and `token`.

    blank, token: (B, K), log-probability of all paths that end in a blank, or in the last token.
    lm: (B, K), weighted score of language models, including adjustments.
    adjustment: (B, K), the part of `lm` from a neural model.
    merged: (B, K), log of (probability of the prefix plus the homophones pruned for it) / its own.
    length: (B, K), symbols.
    last: (B, K), the last symbol; in an empty prefix the scorer's word separator, or the blank.
    symbols: (B, K, L), the histories; position 0 holds the last committed symbol.
    scores: (B, K, s), the states of the `PrefixScorer`.
    n_frames, n_searched: (B,), frames consumed, and those that were not skipped.
    in_blank: (B,) bool, whether the last frame was in a run of blanks that can be skipped.
    acoustic_offset: (B,) float64, scores of dropped blanks, and what `renormalize` subtracted.
    lm_offset: (B,) float64, what `renormalize` subtracted from `lm`.
    sizes: of the search that made it, which alone may advance it.
    committed: of each utterance; removed from `symbols`, `length` and `emissions`.
    emissions: uncommitted: (log_probs (B, T, V), lengths (B,)) per chunk.
    """

    blank: Floats
    token: Floats
    lm: Floats
    adjustment: Floats
    merged: Floats
    length: Ints
    last: Ints
    symbols: Ints
    scores: Ints
    n_frames: Ints
    n_searched: Ints
    in_blank: Bools
    acoustic_offset: Doubles
    lm_offset: Doubles
    sizes: tuple[int, ...] = field(repr=False)
    committed: list[CommittedHistory] = field(repr=False)
    emissions: list[tuple[Floats, Ints]] = field(default_factory=list, repr=False)

    @classmethod
    def first(cls, n_batch: int, sizes: tuple[int, ...], initial_symbol: int, start: Ints) -> PrefixState:
        """Make the state before the first frame. sizes: the first is the number of beams."""
        shape = (n_batch, sizes[0])
        blank = np.full(shape, NEVER, np.float32)
        blank[:, :1] = 0.0
        return cls(
            blank=blank,
            token=np.full(shape, NEVER, np.float32),
            lm=np.zeros(shape, np.float32),
            adjustment=np.zeros(shape, np.float32),
            merged=np.zeros(shape, np.float32),
            length=np.zeros(shape, np.int64),
            last=np.full(shape, initial_symbol, np.int64),
            symbols=np.full((*shape, 1), initial_symbol, np.int64),
            scores=np.tile(start, (*shape, 1)),
            n_frames=np.zeros(n_batch, np.int64),
            n_searched=np.zeros(n_batch, np.int64),
            in_blank=np.zeros(n_batch, np.bool_),
            acoustic_offset=np.zeros(n_batch),
            lm_offset=np.zeros(n_batch),
            sizes=sizes,
            committed=[CommittedHistory() for _ in range(n_batch)],
        )

    @property
    def acoustic(self) -> Floats:
        """Log-probability (B, K) of all paths, without skipped blanks."""
        return np.logaddexp(self.blank, self.token)

    def alive(self, row: int) -> Ints:
        return np.flatnonzero((self.blank[row] > NEVER) | (self.token[row] > NEVER))

    def forget_symbols(self, counts: Sequence[int]) -> None:
        """Drop the first counts[b] symbols of every prefix of utterance b."""
        n_taken = np.array(counts)[:, None]
        is_alive = (self.blank > NEVER) | (self.token > NEVER)
        self.length = np.where(is_alive, self.length - n_taken, 0)
        places = n_taken[:, :, None] + np.arange(self.length.max() + 1)  # (B, 1, L')
        self.symbols = np.take_along_axis(self.symbols, places.clip(max=self.symbols.shape[2] - 1), axis=2)

    def drop(self, row: int, beams: Ints) -> None:
        for scores, nothing in ((self.blank, NEVER), (self.token, NEVER), (self.lm, 0.0)):
            scores[row, beams] = nothing
        self.adjustment[row, beams] = 0.0
        self.length[row, beams] = 0

    def renormalize(self) -> None:
        """Subtract the best beam's scores, so that long streams keep float32's precision."""
        best = (self.acoustic + self.lm).argmax(axis=1)[:, None]
        acoustic, lm = (np.take_along_axis(part, best, axis=1) for part in (self.acoustic, self.lm))
        self.blank, self.token, self.lm = self.blank - acoustic, self.token - acoustic, self.lm - lm
        self.acoustic_offset = self.acoustic_offset + acoustic[:, 0]
        self.lm_offset = self.lm_offset + lm[:, 0]

    def without_blank_runs(
        self, scores: Floats, lengths: Ints, *, blank: int, is_likely: Bools
    ) -> tuple[Floats, Ints]:
        """Drop all but the first frame of runs of likely blanks, also across chunks; return the rest of
        scores (B, T, V) and lengths (B,). is_likely: (B, T) bool.
        """
        n_batch, n_frames, _ = scores.shape
        if not n_frames:
            return scores, lengths
        valid = np.arange(n_frames) < lengths[:, None]
        is_blank = is_likely & valid
        dropped = is_blank & np.column_stack((self.in_blank, is_blank[:, :-1]))
        of_blanks = np.where(dropped, scores[:, :, blank], np.float32(0)).sum(axis=1)
        self.acoustic_offset = self.acoustic_offset + of_blanks
        last = is_blank[np.arange(n_batch), (lengths - 1).clip(min=0)]
        self.in_blank = np.where(lengths > 0, last, self.in_blank)
        remains = valid & ~dropped
        n_remaining = remains.sum(axis=1)
        order = (~remains).argsort(axis=1, kind="stable")[:, : n_remaining.max(initial=0)]
        return scores[np.arange(n_batch)[:, None], order], n_remaining

    def __copy__(self) -> PrefixState:
        """Return a state that can be advanced on its own."""
        copied = replace(self, committed=list(map(copy, self.committed)), emissions=[*self.emissions])
        for name in _WRITTEN:
            setattr(copied, name, getattr(self, name).copy())
        return copied

    def joined(self) -> tuple[Floats, Ints]:
        if len(self.emissions) == 1:
            return self.emissions[0]
        lengths = self.n_frames - np.array([each.n_frames for each in self.committed])
        n_labels = self.emissions[0][0].shape[2]
        whole = np.full((len(lengths), lengths.max(initial=0), n_labels), NEVER, np.float32)
        for row, n_frames in enumerate(lengths):
            parts = [chunk[row, : n_valid[row]] for chunk, n_valid in self.emissions]
            whole[row, :n_frames] = np.concatenate(parts)
        return whole, lengths


LARGE, MOST_TOKENS = 1024, 128
"""Above `LARGE` labels only the `MOST_TOKENS` likeliest of a frame extend beams."""
_WRITTEN = ("blank", "token", "lm", "adjustment", "merged", "length", "last", "scores")


class Homophone(NamedTuple):
    """A word sequence of given labels. mark: of the word that the end completes."""

    symbols: tuple[int, ...]
    mark: int
    score: float


class PrefixSearch:
    """A search over n_labels labels.

    max_homophones: kept per group; None: all. Without a scorer the beam_size + 1 likeliest tokens suffice:
    others have beam_size better ones of the same prefix.

    Raises:
        OptionError: the kernels package is not installed.
    """

    def __init__(
        self,
        n_labels: int,
        blank: int,
        beam_size: int,
        *,
        scorer: PrefixScorer | None = None,
        max_homophones: int | None = None,
        beam_threshold: float | None = None,
        top_tokens: int | None = None,
    ) -> None:
        try:
            load_kernels("kenlm")  # kernels before 0.4 write more arrays
            self._kernels = load_kernels("ctc").ctc
        except ImportError as error:
            raise OptionError(f"the CTC search needs the native kernels: {error}") from error
        if top_tokens is None and n_labels > LARGE:
            top_tokens = MOST_TOKENS
        limits = [n_labels - 1]
        limits += [] if top_tokens is None else [top_tokens]
        limits += [] if scorer is not None else [beam_size + 1]
        self._scorer = scorer or PrefixScorer(n_labels)
        separator = self._scorer.word_separator
        self._initial_symbol = blank if separator is None else separator
        self._start = self._scorer.start
        self._settings = self._kernels.Settings(
            blank=blank,
            initial_symbol=self._initial_symbol,
            n_labels=n_labels,
            beam_size=beam_size,
            n_tokens=min(limits),
            # If each token has one arc, labels have one word sequence.
            max_homophones=max_homophones or 0 if self._scorer.n_arcs > 1 else 0,
            threshold=float("inf") if beam_threshold is None else beam_threshold,
        )
        self._native = self._scorer.native(self._kernels)
        self._sizes = beam_size, *self._scorer.sizes

    def start(self, n_batch: int) -> PrefixState:
        return PrefixState.first(n_batch, self._sizes, self._initial_symbol, self._start)

    def check(self, state: PrefixState, n_rows: int) -> None:
        """Raise InputError for a state of another search or of another number of streams."""
        if state.sizes != self._sizes:
            raise InputError("state: expected one that this decoder made, got that of another decoder")
        n_streams = len(state.length)
        if n_streams != n_rows:
            raise InputError(f"emissions: expected those of {n_streams} streams, as the state, got {n_rows}")

    def run(self, state: PrefixState, log_probs: Floats, lengths: Ints) -> None:
        """Advance the state over log_probs (B, T, V) float32 of lengths (B,)."""
        n_rows, n_frames, _ = log_probs.shape
        if not n_rows or not n_frames:
            return
        for name in _WRITTEN:
            setattr(state, name, np.ascontiguousarray(getattr(state, name)))
        symbols = np.ascontiguousarray(state.symbols)
        n_symbols = int(state.length.max()) + n_frames + 2
        histories = np.empty((*state.length.shape, n_symbols), np.int64)
        beams = self._kernels.Beams(
            **{name: getattr(state, name).ctypes.data for name in _WRITTEN},
            symbols=symbols.ctypes.data,
            histories=histories.ctypes.data,
            n_symbols=symbols.shape[2],
            n_histories=n_symbols,
        )
        given = NativeEmissions(self._kernels, log_probs, lengths)
        self._native.search(self._settings, beams, given.view, n_rows, threads_for(n_rows, n_frames))
        state.symbols = histories
        state.n_searched = state.n_searched + lengths

    def endings(self, states: Ints) -> tuple[Floats, Ints]:
        """Score the ways to end after states (N, s): scores (N, E), -inf for none, and marks."""
        shape, states = (len(states), self._native.n_endings), np.ascontiguousarray(states)
        scores, marks = np.empty(shape, np.float32), np.empty(shape, np.int64)
        self._native.end(states.ctypes.data, len(states), scores.ctypes.data, marks.ctypes.data)
        return scores, marks

    def readings(self, sequences: Sequence[Sequence[int]], most: int) -> list[list[Homophone]]:
        """Find the `most` best word sequences of each label sequence, with a beam as wide."""
        tokens, lengths = padded(sequences)
        n, longest = tokens.shape
        scores, marks = np.empty((n, most), np.float32), np.zeros((n, most), np.int64)
        symbols = np.zeros((n, most, longest), np.int64)
        texts = NativeTexts(self._kernels, tokens, lengths)
        outputs = (scores.ctypes.data, symbols.ctypes.data, marks.ctypes.data)
        self._native.expand(self._start.ctypes.data, texts.view, most, *outputs, threads_for(n, longest))
        rows = zip(sequences, scores.tolist(), symbols.tolist(), marks.tolist(), strict=True)
        return [
            [
                Homophone(tuple(each[: len(labels)]), mark, score)
                for score, each, mark in zip(*of_row, strict=True)
                if score > NEVER
            ]
            for labels, *of_row in rows
        ]


def padded(sequences: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Pad sequences to an array (S, L); also return their lengths."""
    tokens = np.zeros((len(sequences), max(map(len, sequences), default=0)), np.int64)
    for row, labels in zip(tokens, sequences, strict=True):
        row[: len(labels)] = labels
    return tokens, np.array([len(labels) for labels in sequences], np.int64)


LEAST_SHARED = 8
"""Symbols in addition to twice those of the last commit, so that the alignment of commits is rare."""
_LEAST_SCORE = -1000.0
"""Nats of the best beam below which scores are renormalised."""


class Committer:
    """Commits the common prefix of all beams of a state.

    has_times: states hold emissions; else symbols are committed without times. most_frames: see
    `CtcOptions.commit_frames`.
    """

    def __init__(
        self, reader: SymbolReader, idle: IdleSeparators, *, has_times: bool, most_frames: int | None
    ) -> None:
        self._most_frames = most_frames
        self._reader = reader
        self._idle = idle
        self._has_times = has_times

    def commit(self, state: PrefixState, ahead: PrefixState | None = None) -> None:
        """Commit prefixes that have grown, those of too many uncommitted frames, and words on which the best
        beam of `ahead`, a copy of the state after further frames, is based.
        """
        due: list[int | None] = []
        late = [self._is_late(state, row) for row in range(len(state.committed))]
        for row, (history, is_late) in enumerate(zip(state.committed, late, strict=True)):
            if is_late:
                self._drop_stragglers(state, row)
            elif ahead is not None:
                late[row] = is_late = self._keep_words(state, ahead, row)
            n_shared = shared_symbols(state, row)
            due.append(n_shared if is_late or n_shared >= 2 * history.n_shared + LEAST_SHARED else None)
        if all(n is None for n in due):
            return
        cuts = self._commit_aligned(state, due, late) if self._has_times else self._commit_untimed(state, due)
        state.forget_symbols([cut.n_tokens for cut in cuts])
        for row, (history, n, cut) in enumerate(zip(state.committed, due, cuts, strict=True)):
            if n is not None:
                history.n_shared = n - cut.n_tokens
                history.flush_deadline_frames = 3 * _n_held(state, row) // 2
        if (state.acoustic + state.lm).max(axis=1).min() < _LEAST_SCORE:
            state.renormalize()

    def _is_late(self, state: PrefixState, row: int) -> bool:
        most, deadline = self._most_frames, state.committed[row].flush_deadline_frames
        return most is not None and _n_held(state, row) >= max(most, deadline)

    def _keep_words(self, state: PrefixState, ahead: PrefixState, row: int) -> bool:
        """Drop beams that lack a complete word of the best beam of `ahead` within the frames of a state;
        return whether there is one.
        """
        best = (ahead.acoustic + ahead.lm)[row].argmax(keepdims=True)
        n_tokens = ahead.length[row, best]
        read = ahead.symbols[row, best, 1 : int(n_tokens[0]) + 1]
        if not (self._has_times and n_tokens[0]):
            return False
        emissions, lengths = ahead.joined()
        frames = self._idle.emissions(emissions[row : row + 1, : int(lengths[row])])
        spans = self._aligned(ahead, row, best, frames, read % len(self._reader.labels), n_tokens)
        n_early = int((spans.first[0] < _n_held(state, row)).sum())
        history, alive = state.committed[row], state.alive(row)
        n_open = len(history.symbols) - history.n_closed
        n_kept = self._reader.closed([*history.open_symbols(), *read[0, :n_early].tolist()])[1] - n_open
        alive_symbols = state.symbols[row, alive, 1:]
        if not 0 < n_kept <= alive_symbols.shape[1]:
            return False
        has_words = (alive_symbols[:, :n_kept] == read[:, :n_kept]).all(axis=1)
        has_words &= state.length[row, alive] >= n_kept
        if has_words.any():
            state.drop(row, alive[~has_words])
        return bool(has_words.any())

    def _drop_stragglers(self, state: PrefixState, row: int) -> None:
        """Drop beams that differ from the best one in the older half of the frames."""
        alive = state.alive(row)
        if len(alive) < 2:
            return
        ranked = (state.acoustic + state.lm)[row, alive]
        alive = alive[(-ranked).argsort(kind="stable")]
        n_tokens = state.length[row, alive]
        symbols = state.symbols[row, alive, 1 : int(n_tokens.max()) + 1]
        places = np.arange(symbols.shape[1])
        is_same = (symbols == symbols[:1]) & (places < np.minimum(n_tokens, n_tokens[:1])[:, None])
        n_same = is_same.cumprod(axis=1).sum(axis=1)
        n_early = n_tokens // 2
        if self._has_times and symbols.shape[1]:
            emissions, lengths = state.joined()
            n_frames = int(lengths[row])
            seen = self._idle.emissions(emissions[row : row + 1, :n_frames])
            spans = self._aligned(state, row, alive, seen, symbols % len(self._reader.labels), n_tokens)
            n_early = ((spans.first < n_frames // 2) & (places < n_tokens[:, None])).sum(axis=1)
        survives = n_same >= np.maximum(n_early, n_early[:1])
        state.drop(row, alive[~survives])

    def _commit_untimed(self, state: PrefixState, due: Sequence[int | None]) -> list[Cut]:
        cuts = []
        for row, n in enumerate(due):
            cuts.append(NO_CUT if n is None else Cut(_n_held(state, row), n))
            self._add(state, row, cuts[row], TokenTimes([], [], []))
        return cuts

    def _commit_aligned(
        self, state: PrefixState, due: Sequence[int | None], late: Sequence[bool]
    ) -> list[Cut]:
        emissions, lengths = state.joined()
        seen, cuts, n_frames = self._idle.emissions(emissions), [], lengths.tolist()
        for row, (n, most, is_late) in enumerate(zip(n_frames, due, late, strict=True)):
            cut, alive = NO_CUT, state.alive(row)
            n_tokens = state.length[row, alive]
            if most is not None:
                tokens = state.symbols[row, alive, 1 : int(n_tokens.max()) + 1] % len(self._reader.labels)
                blank = self._blanks(state, row, alive, tokens)
                frames = seen[row, :n]
                cut = common_cut(frames, tokens, n_tokens, n_shared=most, is_late=is_late, blank=blank)
            cuts.append(cut)
            if cut.n_frames:
                frames, counts = seen[row : row + 1, : cut.n_frames], np.array([cut.n_tokens])
                spans = self._aligned(state, row, alive[:1], frames, tokens[:1, : cut.n_tokens], counts)
                self._add(state, row, cut, token_times(spans, [cut.n_tokens])[0])
        held = [n - cut.n_frames for n, cut in zip(n_frames, cuts, strict=True)]
        rest = np.zeros((len(held), max(held), emissions.shape[2]), np.float32)
        for row, (n, cut) in enumerate(zip(held, cuts, strict=True)):
            rest[row, :n] = emissions[row, cut.n_frames : cut.n_frames + n]
        state.emissions = [(rest, np.array(held))]
        return cuts

    def _aligned(
        self, state: PrefixState, row: int, beams: Ints, frames: Floats, tokens: Ints, n_tokens: Ints
    ) -> TokenSpans:
        lengths, blank = np.array([frames.shape[1]]), self._blanks(state, row, beams, tokens)
        return align(frames, lengths, tokens, n_tokens, rows=np.zeros_like(beams), blank=blank)

    def _blanks(self, state: PrefixState, row: int, beams: Ints, tokens: Ints) -> int | Ints:
        n_labels = len(self._reader.labels)
        return self._idle.blanks(tokens, state.symbols[row, beams, 0] % n_labels, n_labels)

    def _add(self, state: PrefixState, row: int, cut: Cut, times: TokenTimes) -> None:
        symbols = state.symbols[row, state.alive(row)[:1], 1 : cut.n_tokens + 1].flatten().tolist()
        state.committed[row].add(symbols, times, cut.n_frames, self._reader)


def _n_held(state: PrefixState, row: int) -> int:
    return int(state.n_frames[row]) - state.committed[row].n_frames


def shared_symbols(state: PrefixState, row: int) -> int:
    """Count the symbols that all living beams begin with."""
    alive = state.alive(row)
    if not len(alive):
        return 0
    symbols = state.symbols[row, alive, 1 : int(state.length[row, alive].min()) + 1]
    differs = np.flatnonzero((symbols != symbols[:1]).any(axis=0))
    return int(differs[0]) if len(differs) else symbols.shape[1]
