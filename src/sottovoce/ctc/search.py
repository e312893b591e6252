"""The state of a CTC prefix beam search, and its frame loop in the native kernels.

Every prefix sums the probability of its paths, separately for those that end in a blank and in its last token
(Hannun et al. 2014, arXiv 1408.2873; Graves 2012, section 7.5).

Homophones are word sequences with the same labels and thus the same paths. If their lexicon and language
model states are equal too, their score difference is constant: the search keeps the best of a group, and
counts the others in the posteriors. At the end the word sequences of a hypothesis's labels are ranked without
emissions.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sottovoce.ctc.align import NEVER, NativeEmissions, NativeTexts, TokenTimes, n_threads
from sottovoce.ctc.labels import Speller
from sottovoce.errors import OptionError
from sottovoce.kernels import load_kernels
from sottovoce.lm.base import (
    CACHE_ENTRY,
    Automaton,
    FlatLexicon,
    HistoryWord,
    PrefixScorer,
    Records,
    WordHistory,
)


@dataclass(slots=True, eq=False)
class CommittedHistory:
    """The committed part of one utterance: a few megabytes per hour of speech.

    symbols: see `PrefixState`. first, last, peak: of each symbol, as in `TokenTimes`, in frames of the
    utterance. n_frames: dropped with them. words: those that no further token can change; word_starts,
    word_ends: [start, end) of each in `symbols`; in_lexicon: of each; text: of them all. n_closed: symbols up
    to the end of the last word. n_emitted: words sent as events. n_scored: words that a `HistoryScorer` has
    scored; past: these words. living: the beams' histories after them, which keeps their scores alive.
    """

    symbols: array[int] = field(default_factory=lambda: array("q"))
    first: array[int] = field(default_factory=lambda: array("i"))
    last: array[int] = field(default_factory=lambda: array("i"))
    peak: array[float] = field(default_factory=lambda: array("f"))
    n_frames: int = 0
    words: list[str] = field(default_factory=list)
    word_starts: array[int] = field(default_factory=lambda: array("i"))
    word_ends: array[int] = field(default_factory=lambda: array("i"))
    text: str = ""
    n_closed: int = 0
    n_emitted: int = 0
    in_lexicon: bytearray = field(default_factory=bytearray)
    n_scored: int = 0
    past: WordHistory = field(default_factory=WordHistory)
    living: list[WordHistory] = field(default_factory=list)

    def add(self, symbols: Sequence[int], times: TokenTimes, n_frames: int, speller: Speller) -> None:
        """Commit symbols and drop n_frames frames. times: relative to the frames dropped before."""
        self.symbols.extend(symbols)
        self.first.extend(self.n_frames + frame for frame in times.first)
        self.last.extend(self.n_frames + frame for frame in times.last)
        self.peak.extend(times.peak)
        self.n_frames += n_frames
        closed, n_symbols = speller.closed(self.symbols[self.n_closed :].tolist())
        for word in closed:
            self.words.append(word.text)
            self.in_lexicon.append(word.in_lexicon)
            self.word_starts.append(self.n_closed + word.first)
            self.word_ends.append(self.n_closed + word.end)
        self.text = speller.join([self.text, *(word.text for word in closed)])
        self.n_closed += n_symbols

    def history(self) -> WordHistory:
        newer = zip(self.words[self.n_scored :], self.in_lexicon[self.n_scored :], strict=True)
        return self.past.after(HistoryWord(text, bool(in_lexicon)) for text, in_lexicon in newer)

    def mark_scored(self, living: list[WordHistory]) -> None:
        """Mark the committed words as scored; living: the beams' histories after them."""
        self.past, self.living = self.history(), living
        self.past.forget_beginning()
        self.n_scored = len(self.words)

    def open_symbols(self) -> list[int]:
        """Return the committed symbols of a word that may continue."""
        return self.symbols[self.n_closed :].tolist()

    def times(self, later: TokenTimes, begin: int = 0) -> TokenTimes:
        """Return the times of committed symbols from `begin` on, and of `later` ones."""
        n = self.n_frames
        return TokenTimes(
            [*self.first[begin:], *(n + frame for frame in later.first)],
            [*self.last[begin:], *(n + frame for frame in later.last)],
            [*self.peak[begin:], *later.peak],
        )


@dataclass(slots=True, eq=False)
class PrefixState:
    """B utterances of K prefixes, best first.

    A prefix is a sequence of symbols: token + V * mark, where the mark is the word that the token ends (0:
    none). Dead slots have -inf in `blank` and `token`.

    blank, token: (B, K) float32, log-probability of all paths of the prefix that end in a blank, or in its
    last token.
    lm: (B, K) float32, weighted score of language models, including adjustments.
    adjustment: (B, K) float32, the part of `lm` from a `HistoryScorer`.
    merged: (B, K) float32, log of (probability of the prefix plus the homophones pruned for it) / its own.
    length: (B, K) int64, symbols.
    last: (B, K) int64, the last symbol; in an empty prefix the scorer's word separator, or the blank.
    symbols: (B, K, L) int64, the histories; position 0 holds the last committed symbol.
    scores: (B, K, s) int64, the states of the `PrefixScorer`.
    n_frames, n_searched: (B,) int64, frames consumed, and those that were not skipped.
    in_blank: (B,) bool, whether the last frame was in a run of blanks that can be skipped.
    acoustic_offset: (B,) float64, scores of dropped blanks, and what `renormalize` subtracted from `blank`
    and `token`.
    lm_offset: (B,) float64, what `renormalize` subtracted from `lm`.
    emissions: uncommitted emissions, for alignment: (log_probs (B, T, V), lengths (B,)) per chunk.
    committed: of each utterance; removed from `symbols`, `length` and `emissions`.
    n_shared: uncommitted symbols that all beams shared at the last check.
    flush_deadline_frames: uncommitted frames from which beams that differ early are dropped.
    """

    blank: Tensor
    token: Tensor
    lm: Tensor
    adjustment: Tensor
    merged: Tensor
    length: Tensor
    last: Tensor
    symbols: Tensor
    scores: Tensor
    n_frames: Tensor
    n_searched: Tensor
    in_blank: Tensor
    acoustic_offset: Tensor
    lm_offset: Tensor
    committed: list[CommittedHistory] = field(repr=False)
    n_shared: list[int] = field(repr=False)
    flush_deadline_frames: list[int] = field(repr=False)
    emissions: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)

    @property
    def acoustic(self) -> Tensor:
        """Log-probability (B, K) of all paths of each prefix, without skipped blanks."""
        return torch.logaddexp(self.blank, self.token)

    @property
    def is_alive(self) -> Tensor:
        return (self.blank > NEVER) | (self.token > NEVER)

    def forget_symbols(self, counts: Sequence[int]) -> None:
        """Drop the first counts[b] symbols of every history of utterance b."""
        n_taken = torch.tensor(counts)[:, None]
        self.length = (self.length - n_taken).masked_fill_(~self.is_alive, 0)
        places = n_taken[:, :, None] + torch.arange(int(self.length.max()) + 1)  # (B, 1, L')
        places = places.clamp_(max=self.symbols.shape[2] - 1).expand(-1, self.symbols.shape[1], -1)
        self.symbols = self.symbols.gather(2, places)

    def drop(self, row: int, beams: Tensor) -> None:
        """Drop beams (n,) int64 of an utterance."""
        for scores, nothing in ((self.blank, NEVER), (self.token, NEVER), (self.lm, 0.0)):
            scores[row, beams] = nothing
        self.adjustment[row, beams] = 0.0
        self.length[row, beams] = 0

    def renormalize(self) -> None:
        """Subtract the best beam's scores from all, so that long streams keep float32's precision."""
        best = (self.acoustic + self.lm).argmax(dim=1, keepdim=True)
        acoustic, lm = self.acoustic.gather(1, best), self.lm.gather(1, best)
        self.blank, self.token, self.lm = self.blank - acoustic, self.token - acoustic, self.lm - lm
        self.acoustic_offset = self.acoustic_offset + acoustic[:, 0]
        self.lm_offset = self.lm_offset + lm[:, 0]


def first_state(n_batch: int, beam_size: int, initial_symbol: int, start: Tensor) -> PrefixState:
    """Make a state with one empty prefix per utterance. start: (s,) int64 of the scorer."""
    shape = (n_batch, beam_size)
    alive = torch.zeros(shape, dtype=torch.bool)
    alive[:, 0] = True
    return PrefixState(
        blank=torch.zeros(shape).masked_fill(~alive, NEVER),
        token=torch.full(shape, NEVER),
        lm=torch.zeros(shape),
        adjustment=torch.zeros(shape),
        merged=torch.zeros(shape),
        length=torch.zeros(shape, dtype=torch.int64),
        last=torch.full(shape, initial_symbol),
        symbols=torch.full((*shape, 1), initial_symbol),
        scores=start.repeat(n_batch, beam_size, 1),
        n_frames=torch.zeros(n_batch, dtype=torch.int64),
        n_searched=torch.zeros(n_batch, dtype=torch.int64),
        in_blank=torch.zeros(n_batch, dtype=torch.bool),
        acoustic_offset=torch.zeros(n_batch, dtype=torch.float64),
        lm_offset=torch.zeros(n_batch, dtype=torch.float64),
        committed=[CommittedHistory() for _ in range(n_batch)],
        n_shared=[0] * n_batch,
        flush_deadline_frames=[0] * n_batch,
    )


LARGE, MOST_TOKENS = 1024, 128
"""Above `LARGE` labels only the `MOST_TOKENS` likeliest of a frame extend beams: the others have hardly any
probability.
"""
_WRITTEN = ("blank", "token", "lm", "adjustment", "merged", "length", "last", "scores")
"""Tensors of a state that are written in place."""


class Homophone(NamedTuple):
    """A word sequence of given labels.

    symbols: see `PrefixState`. mark: of the word that the end completes. score: of the scorer, including the
    end.
    """

    symbols: tuple[int, ...]
    mark: int
    score: float


class PrefixSearch:
    """A search of given width over emissions of n_labels labels, on as many threads as PyTorch has.

    scorer: language models, lexicon and boosting, or None. max_homophones: kept per group; None: all.
    beam_threshold, top_tokens: see `CtcOptions`. Without a scorer the beam_size + 1 likeliest tokens suffice:
    every other extension has beam_size better ones of the same prefix.

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
        self._start = torch.from_numpy(self._scorer.start)
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
        words, tokens = (
            [self._model(*each) for each in part] for part in (self._scorer.words, self._scorer.tokens)
        )
        lexicon = None if self._scorer.lexicon is None else self._lexicon(self._scorer.lexicon)
        self._native = self._kernels.Scorer(n_labels, lexicon, words, tokens)

    def start(self, n_batch: int) -> PrefixState:
        return first_state(n_batch, self._settings.beam_size, self._initial_symbol, self._start)

    def run(self, state: PrefixState, log_probs: Tensor, lengths: Tensor) -> None:
        """Advance the state over log_probs (B, T, V) float32; utterance b has lengths[b] frames."""
        n_rows, n_frames, _ = log_probs.shape
        if not n_rows or not n_frames:
            return
        for name in _WRITTEN:
            setattr(state, name, getattr(state, name).contiguous())
        symbols = state.symbols.contiguous()
        n_symbols = int(state.length.max()) + n_frames + 2
        histories = symbols.new_empty((*state.length.shape, n_symbols))
        arcs, pairs = (
            torch.zeros_like(state.last),
            torch.empty((2, *state.last.shape, state.last.shape[1]), dtype=torch.bool),
        )
        beams = self._kernels.Beams(
            **{name: getattr(state, name).data_ptr() for name in _WRITTEN},
            arc=arcs.data_ptr(),  # what no later step needs
            is_prefix=pairs[0].data_ptr(),
            is_label_prefix=pairs[1].data_ptr(),
            symbols=symbols.data_ptr(),
            histories=histories.data_ptr(),
            n_symbols=symbols.shape[2],
            n_histories=n_symbols,
        )
        given = NativeEmissions(self._kernels, log_probs, lengths)
        self._native.search(self._settings, beams, given.view, n_rows, n_threads(n_rows, n_frames))
        state.symbols = histories

    def endings(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Score the ways to end after states (N, s): scores (N, E), -inf for none, and marks (N, E)."""
        shape, states = (len(states), self._native.n_endings), states.contiguous()
        scores, marks = torch.empty(shape), torch.empty(shape, dtype=torch.int64)
        self._native.end(states.data_ptr(), len(states), scores.data_ptr(), marks.data_ptr())
        return scores, marks

    def readings(self, sequences: Sequence[Sequence[int]], most: int) -> list[list[Homophone]]:
        """Find the best word sequences of label sequences, at most `most` of each, best first.

        The beam is `most` wide: exact for fewer homophones.
        """
        tokens, lengths = padded(sequences)
        n, longest = tokens.shape
        scores, marks = torch.empty((n, most)), torch.zeros((n, most), dtype=torch.int64)
        symbols = torch.zeros((n, most, longest), dtype=torch.int64)
        texts = NativeTexts(self._kernels, tokens, lengths)
        found = (scores.data_ptr(), symbols.data_ptr(), marks.data_ptr())
        self._native.expand(self._start.data_ptr(), texts.view, most, *found, n_threads(n, longest))
        rows = zip(sequences, scores.tolist(), symbols.tolist(), marks.tolist(), strict=True)
        return [
            [
                Homophone(tuple(each[: len(labels)]), mark, score)
                for score, each, mark in zip(*of_row, strict=True)
                if score > NEVER
            ]
            for labels, *of_row in rows
        ]

    def _model(self, automaton: Automaton, weight: float) -> object:
        of_callback = {}
        if automaton.callback is not None:
            cache, address = automaton.callback
            of_callback = {"cache": _address(cache), "cache_size": len(cache), "callback": address}
        return self._kernels.ModelArrays(
            n_nodes=0 if automaton.parent is None else len(automaton.parent),
            n_ids=len(automaton.root_weights),
            silent=-1 if automaton.silent is None else automaton.silent,
            weight=weight,
            trie=0 if automaton.trie is None else ctypes.addressof(automaton.trie),
            **{name: _address(getattr(automaton, name)) for name in _ARRAYS_OF_MODELS},
            **of_callback,
        )

    def _lexicon(self, lexicon: FlatLexicon) -> object:
        return self._kernels.LexiconArrays(
            n_nodes=len(lexicon.ahead),
            n_words=len(lexicon.word_scores),
            n_words_of=_address(lexicon.n_words),
            **{name: _address(getattr(lexicon, name)) for name in _ARRAYS_OF_LEXICONS},
            **{name: getattr(lexicon, name) for name in ("unknown", "separator", "n_homophones")},
        )


def padded(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Pad sequences to one tensor (S, L) int64, with their lengths (S,)."""
    tokens = torch.zeros((len(sequences), max(map(len, sequences), default=0)), dtype=torch.int64)
    for row, labels in zip(tokens.numpy(), sequences, strict=True):
        row[: len(labels)] = labels
    return tokens, torch.tensor([len(labels) for labels in sequences], dtype=torch.int64)


_DTYPES = (np.int64, np.float32, np.bool_, CACHE_ENTRY)
_ARRAYS_OF_MODELS = (
    *("first", "keys", "weights", "targets", "backoff", "parent", "root_weights", "root_targets"),
    *("ends", "ids", "begins"),
)
_ARRAYS_OF_LEXICONS = ("keys", "words", "first_word", "ahead", "word_scores", "may_begin", "may_go_on")


def _address(values: Records | None) -> int:
    if values is None:
        return 0
    assert values.flags.c_contiguous, values.strides
    assert values.dtype in _DTYPES, values.dtype
    return int(values.ctypes.data)
