"""Greedy search, sampling and beam search over tokens, all windows of a batch at once.

Sampling uses uniform numbers drawn before the first step, so that a seed gives the same text on every device,
alone and in a batch.

The beam search extends each beam by its best beam_size + 1 tokens, so that beam_size beams remain if one
ends. Source: openai-whisper 20250625; patience from Kasai et al. 2022.

Runtimes choose the most probable tokens in the step itself (`BestTokensEnd`). The next steps of a greedy or
beam search depend on those alone, so an accelerator takes some steps at once (`runtime.static_rows`).
The host then searches through the chosen tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sottovoce.decoding.filters import (
    FORBIDDEN,
    ApplyTimestampRules,
    LiveVocabulary,
    LogitFilter,
    SuppressBlank,
    SuppressTokens,
    latest_of,
    log_softmax,
    newest_of,
)
from sottovoce.models.backend import STEPS_AHEAD, EndingRows, RunningRows, StepGroup, ending_rows
from sottovoce.models.dims import AlignmentHeads
from sottovoce.types import Bools, Floats, Ints

BLOCK = 64
"""Tokens that share a maximum."""


@dataclass(frozen=True, slots=True, eq=False)
class BestTokens:
    """The most probable tokens (R, n_best) int64 of each row, best first, and their natural log-probabilities
    (R, n_best) float32 among the tokens that may follow.

    fused: (R, n_best) float32 with the scores of language models, by which they are ranked. lm_states:
    (R, n_models) int64, of these models before the tokens, if the step computed them.
    """

    tokens: Ints
    logprobs: Floats
    fused: Floats | None = None
    lm_states: Ints | None = None

    def of_rows(self, rows: slice) -> BestTokens:
        fused = None if self.fused is None else self.fused[rows]
        states = None if self.lm_states is None else self.lm_states[rows]
        return BestTokens(self.tokens[rows], self.logprobs[rows], fused, states)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A finished hypothesis of one window.

    logprob: natural log-probability of tokens and end. score: for ranking, with language models. sums:
    log-probability of the tokens up to each one.
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    sums: tuple[float, ...] = field(default=(), repr=False, compare=False)


class Fusion(Protocol):
    """Weighted scores of language models over text tokens (natural logs), as in `lm.base.LanguageModel`.

    The states of R rows are (R, n_models) int64, or more columns if the models are not static; scores are
    float32. A row with a token that is not among the n_tokens (a timestamp) keeps its state.
    """

    @property
    def n_models(self) -> int: ...

    @property
    def is_static(self) -> bool:
        """Whether an accelerator can score without the host, so that scores are part of a recorded step."""
        ...

    @property
    def n_tokens(self) -> int:
        """Ids below are scored; all others get 0."""
        ...

    def start(self, n: int) -> Ints:
        """Make the states of n rows."""
        ...

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        """Score next tokens: (R, n_tokens) for None; for tokens (R,) also return the states after them."""
        ...

    def finish(self, states: Ints) -> Floats:
        """Return the scores (R,) of ending here."""
        ...


class FusedRowScores:
    """The states of language models in the rows of a search, moved by new tokens when scores are needed.

    states: (R, n_models) int64, before the newest tokens (R,).
    """

    def __init__(self, fusion: Fusion, n_rows: int, eot: int) -> None:
        self._fusion = fusion
        self._eot = eot
        self.states = fusion.start(n_rows)
        self._newest: Ints | None = None

    def add_to(self, logprobs: Floats) -> Floats:
        """Add the weighted scores of every next token to log-probabilities (R, n_vocab) float32."""
        self._move()
        fusion, fused = self._fusion, logprobs.copy()
        fused[:, : fusion.n_tokens] += fusion.score(self.states)[0]
        fused[:, self._eot] = logprobs[:, self._eot] + fusion.finish(self.states)
        return fused

    def advance(self, rows: Ints, tokens: Ints) -> None:
        """Continue rows (R',) by tokens (R',)."""
        self._move()
        self.states, self._newest = self.states[rows], tokens

    def _move(self) -> None:
        if self._newest is not None:
            _, self.states = self._fusion.score(self.states, self._newest)
            self._newest = None

    def moved_to(self, states: Ints) -> None:
        """Take the states (R, n_models) after the newest tokens."""
        self.states, self._newest = states, None

    def select(self, rows: Ints) -> None:
        self.states = self.states[rows]
        self._newest = None if self._newest is None else self._newest[rows]


@dataclass(slots=True, eq=False)
class SearchState:
    """The open rows of a search, and the candidates found so far.

    tokens: (R, n) int64. scores: (R,) float32, for ranking. logprobs: (R,), under the model. sums: (R, n),
    after each token. audio: the window of each row, ascending. origin: (R,) int64, the row at the start.
    candidates: of each window.
    """

    tokens: Ints
    scores: Floats
    logprobs: Floats
    sums: Floats
    audio: list[int]
    origin: Ints
    candidates: list[list[Candidate]]
    lm_scores: FusedRowScores | None = None

    @property
    def n_rows(self) -> int:
        return len(self.audio)

    def sums_of_rows(self) -> list[tuple[float, float, Sequence[int]]]:
        """Return the score and log-probability of each row, and the states of language models before its
        newest token.
        """
        states = [()] * self.n_rows if self.lm_scores is None else self.lm_scores.states.tolist()
        return list(zip(self.scores.tolist(), self.logprobs.tolist(), states, strict=True))

    def candidate(self, row: int) -> Candidate:
        return self.ended(row, float(self.logprobs[row]), float(self.scores[row]))

    def ended(self, row: int, logprob: float, score: float) -> Candidate:
        return Candidate(tuple(self.tokens[row].tolist()), logprob, score, tuple(self.sums[row].tolist()))

    def select(self, rows: Ints) -> Ints:
        self.tokens, self.sums = self.tokens[rows], self.sums[rows]
        same = self.logprobs is self.scores
        self.scores = self.scores[rows]
        self.logprobs = self.scores if same else self.logprobs[rows]
        self.origin = self.origin[rows]
        self.audio = [self.audio[row] for row in rows.tolist()]
        if self.lm_scores is not None:
            self.lm_scores.select(rows)
        return rows


def first_state(scores: Floats, fusion: Fusion | None, eot: int) -> SearchState:
    """Make the state before the first token.

    scores: (n_audio, n_hypotheses) of the rows.
    """
    n_audio, n_hypotheses = scores.shape
    n_rows, sums = n_audio * n_hypotheses, scores.ravel()
    return SearchState(
        tokens=np.zeros((n_rows, 0), np.int64),
        scores=sums,
        logprobs=sums,
        sums=np.zeros((n_rows, 0), np.float32),
        audio=[row // n_hypotheses for row in range(n_rows)],
        origin=np.arange(n_rows),
        candidates=[[] for _ in range(n_audio)],
        lm_scores=None if fusion is None else FusedRowScores(fusion, n_rows, eot),
    )


class Search(ABC):
    n_hypotheses: int
    """Rows of each window at the start."""
    n_best: int | None
    """How many of each row's most probable tokens `extend` needs; None: those that `choose` draws."""

    @abstractmethod
    def start(self, n_audio: int) -> SearchState:
        """Make the state before the first token."""

    @abstractmethod
    def choose(self, logits: Floats, state: SearchState) -> BestTokens:
        """Choose tokens for every row from its filtered logits (R, n_vocab) float32."""

    @abstractmethod
    def extend(self, best: BestTokens, state: SearchState) -> Ints | None:
        """Extend every row by one of its best tokens; finished windows leave the state.

        Returns the former rows (R',) int64 that the new ones continue; None: each continues itself.
        """

    @abstractmethod
    def stop(self, state: SearchState, audio: Sequence[int]) -> Ints:
        """Turn the open rows of these windows into candidates; return the rows (R',) that remain."""


def ranked_candidates(candidates: Sequence[Candidate], length_penalty: float | None) -> list[Candidate]:
    """Sort candidates by score per length, or per Google's ((5 + n) / 6) ** alpha, best first.

    Source: Wu et al. 2016, https://arxiv.org/abs/1609.08144, equation 14.
    """

    def ranking(candidate: Candidate) -> float:
        length = len(candidate.tokens)
        if length_penalty is None:
            return candidate.score / max(length, 1)
        return float(candidate.score / ((5 + length) / 6) ** length_penalty)

    return sorted(candidates, key=ranking, reverse=True)


def remaining_rows(state: SearchState, leaving: Sequence[int]) -> Ints:
    gone = set(leaving)
    return np.array([row for row, audio in enumerate(state.audio) if audio not in gone], np.int64)


class Sampling(Search):
    """Greedy search at temperature 0, else sampling from softmax(logits / temperature).

    uniforms: (n_audio * n_hypotheses, n_steps) float64 in [0, 1), from `draw_uniforms`; None at temperature
    0.
    """

    def __init__(
        self,
        eot: int,
        *,
        temperature: float = 0.0,
        n_hypotheses: int = 1,
        uniforms: npt.NDArray[np.float64] | None = None,
        fusion: Fusion | None = None,
    ) -> None:
        assert (uniforms is None) == (temperature == 0.0)
        self._eot = eot
        self._temperature = temperature
        self.n_hypotheses = n_hypotheses
        self.n_best = 1 if uniforms is None else None
        self._uniforms = uniforms
        self._fusion = fusion

    def start(self, n_audio: int) -> SearchState:
        return first_state(np.zeros((n_audio, self.n_hypotheses), np.float32), self._fusion, self._eot)

    def choose(self, logits: Floats, state: SearchState) -> BestTokens:
        logprobs = log_softmax(logits)
        fused = None if state.lm_scores is None else state.lm_scores.add_to(logprobs)
        scores = logits if fused is None else fused
        # The text ends if the filters and a model allow nothing.
        is_stuck = scores.max(axis=1, keepdims=True) == FORBIDDEN
        drawn = self._drawn(np.where(is_stuck, 0, scores), state)
        return _best_of(np.where(is_stuck, self._eot, drawn), logprobs, fused)

    def extend(self, best: BestTokens, state: SearchState) -> Ints | None:
        chosen = best.tokens[:, 0]
        state.logprobs = state.logprobs + best.logprobs[:, 0]
        state.scores = state.logprobs if best.fused is None else state.scores + best.fused[:, 0]
        finished = chosen == self._eot
        for row in finished.nonzero()[0].tolist():
            state.candidates[state.audio[row]].append(state.candidate(row))
        state.tokens = np.column_stack((state.tokens, chosen))
        state.sums = np.column_stack((state.sums, state.logprobs))
        rows = state.select((~finished).nonzero()[0]) if finished.any() else None
        if state.lm_scores is not None and state.n_rows:
            state.lm_scores.advance(np.arange(state.n_rows), state.tokens[:, -1])
        return rows

    def stop(self, state: SearchState, audio: Sequence[int]) -> Ints:
        for row, index in enumerate(state.audio):
            if index in audio:
                state.candidates[index].append(state.candidate(row))
        return state.select(remaining_rows(state, audio))

    def _drawn(self, logits: Floats, state: SearchState) -> Ints:
        if self._uniforms is None:
            most_likely: Ints = logits.argmax(axis=1, keepdims=True)
            return most_likely
        tempered = logits.astype(np.float64) / self._temperature
        cumulative = np.exp(tempered - tempered.max(axis=1, keepdims=True)).cumsum(axis=1)
        # The first id with a cumulative probability above the draw; never one of probability 0.
        targets = self._uniforms[state.origin, state.tokens.shape[1]] * cumulative[:, -1]
        each = zip(cumulative, targets, strict=True)
        return np.array([[np.searchsorted(row, target, side="right")] for row, target in each])


def draw_uniforms(seeds: Sequence[int], n_hypotheses: int, n_steps: int) -> npt.NDArray[np.float64]:
    """Draw uniform numbers in [0, 1) for every row and step: (len(seeds) * n_hypotheses, n_steps) float64."""
    generators = [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]
    return np.concatenate([generator.random((n_hypotheses, n_steps)) for generator in generators])


class Expansion(NamedTuple):
    """Continuations of every window, best first: (A, n) each."""

    scores: Floats
    logprobs: Floats
    tokens: Ints
    rows: Ints

    def taken(self, which: Bools | tuple[Ints, Ints]) -> Expansion:
        """Return those of a mask or of indices in one dimension."""
        scores, logprobs, tokens, rows = self
        taken = scores[which]
        same = logprobs is scores
        return Expansion(taken, taken if same else logprobs[which], tokens[which], rows[which])

    def that_go_on(self, eot: int, n: int) -> Expansion:
        """Return the n best of each window that are not its end, in one dimension."""
        first = (self.tokens == eot).argsort(axis=1, kind="stable")[:, :n]
        return self.taken((np.arange(len(first)).repeat(first.shape[1]), first.ravel()))


def expanded(scores: Floats, sums: Floats, best: BestTokens, beam_size: int) -> Expansion:
    """Rank the best tokens of all beams of a window.

    scores, sums: (R,) of the rows, for ranking and under the model; the same without language models.
    """
    fused = best.logprobs if best.fused is None else best.fused
    n_best = fused.shape[1]
    ranked = (scores[:, None] + fused).reshape(-1, beam_size * n_best)  # (A, K * n_best)
    order = (-ranked).argsort(axis=1, kind="stable")
    first_row = np.arange(0, len(scores), beam_size)[:, None]
    rows, places = first_row + order // n_best, order % n_best
    ranked = np.take_along_axis(ranked, order, axis=1)
    logprobs = ranked if best.fused is None else sums[rows] + best.logprobs[rows, places]
    return Expansion(ranked, logprobs, best.tokens[rows, places], rows)


class BeamSearch(Search):
    """Top-k beam search; a window is done at round(beam_size * patience) finished hypotheses."""

    def __init__(
        self, eot: int, beam_size: int, *, patience: float = 1.0, fusion: Fusion | None = None
    ) -> None:
        self._eot = eot
        self._beam_size = self.n_hypotheses = beam_size
        self.n_best: int = beam_size + 1
        self._max_candidates = round(beam_size * patience)
        self._fusion = fusion

    def start(self, n_audio: int) -> SearchState:
        # Initially all beams are equal: only one is open, so that none counts twice.
        scores = np.full((n_audio, self._beam_size), FORBIDDEN, np.float32)
        scores[:, 0] = 0.0
        return first_state(scores, self._fusion, self._eot)

    def choose(self, logits: Floats, state: SearchState) -> BestTokens:
        logprobs = log_softmax(logits)
        n_best = min(self.n_best, logits.shape[1])
        fused = None if state.lm_scores is None else state.lm_scores.add_to(logprobs)
        return _best_of(best_tokens(logprobs if fused is None else fused, n_best), logprobs, fused)

    def extend(self, best: BestTokens, state: SearchState) -> Ints | None:
        expansion = expanded(state.scores, state.logprobs, best, self._beam_size)
        ends = expansion.tokens == self._eot
        n_open = (~ends).cumsum(axis=1)
        # Ends only count if they rank among the beams that remain.
        ended = expansion.taken(ends & (n_open < self._beam_size) & (expansion.scores > FORBIDDEN))
        self._collect(ended, state)
        rows = self._continue(expansion.that_go_on(self._eot, self._beam_size), state)
        done = [audio for audio in dict.fromkeys(state.audio) if self._is_done(state, audio)]
        return rows if not done else rows[self.stop(state, done)]

    def stop(self, state: SearchState, audio: Sequence[int]) -> Ints:
        scores = state.scores.tolist()
        for index in audio:
            rows = [row for row, of in enumerate(state.audio) if of == index]
            missing = max(0, self._beam_size - len(state.candidates[index]))
            best = sorted(rows, key=lambda row: scores[row], reverse=True)[:missing]
            state.candidates[index].extend(state.candidate(row) for row in best)
        return state.select(remaining_rows(state, audio))

    def _collect(self, ended: Expansion, state: SearchState) -> None:
        fields = (ended.rows.tolist(), ended.logprobs.tolist(), ended.scores.tolist())
        for row, logprob, score in zip(*fields, strict=True):
            candidates = state.candidates[state.audio[row]]
            if len(candidates) < self._max_candidates:
                candidates.append(state.ended(row, logprob, score))

    def _continue(self, survivors: Expansion, state: SearchState) -> Ints:
        if state.lm_scores is not None:
            state.lm_scores.advance(survivors.rows, survivors.tokens)
        state.tokens = np.column_stack((state.tokens[survivors.rows], survivors.tokens))
        state.sums = np.column_stack((state.sums[survivors.rows], survivors.logprobs))
        state.scores, state.logprobs = survivors.scores, survivors.logprobs
        return survivors.rows

    def _is_done(self, state: SearchState, audio: int) -> bool:
        return len(state.candidates[audio]) >= self._max_candidates


def _best_of(tokens: Ints, logprobs: Floats, fused: Floats | None) -> BestTokens:
    at = np.arange(len(tokens))[:, None], tokens
    return BestTokens(tokens, logprobs[at], None if fused is None else fused[at])


def best_tokens(scores: Floats, n_best: int) -> Ints:
    """Return the tokens (R, n_best) with the best scores of each row (R, n_vocab), best first; of equal ones
    the first.

    Only tokens that reach the n_best-th of the maxima of blocks are sorted.
    """
    n_rows, n_vocab = scores.shape
    n_blocks = n_vocab // BLOCK
    least = np.full((n_rows, 1), FORBIDDEN, np.float32)
    if n_blocks >= n_best:
        # The tokens of a block are n_blocks apart, so that maxima are computed along the memory.
        maxima = scores[:, : BLOCK * n_blocks].reshape(n_rows, BLOCK, n_blocks).max(axis=1)
        least = np.partition(maxima, n_blocks - n_best, axis=1)[:, n_blocks - n_best, None]
    is_near = ~(scores < least)
    if (least == FORBIDDEN).any():
        is_near &= scores != FORBIDDEN
        is_near[:, :n_best] = True
    rows, tokens = np.divmod(np.flatnonzero(is_near), n_vocab)
    order = np.lexsort((-scores[rows, tokens], rows))
    firsts = np.searchsorted(rows, np.arange(len(scores)))
    best: Ints = tokens[order[firsts[:, None] + np.arange(n_best)]]
    return best


@dataclass(frozen=True, slots=True)
class BestTokensEnd:
    """The choice of the most probable tokens: (n, 2 * n_best) float32, log-probabilities and then tokens.

    With language models (fusion) these follow: (n, n_best) log-probabilities with their scores, and (n,
    n_models) their states after the newest token, as bits of int32. time_begin: id of the first timestamp; if
    all timestamps together are more probable than any text, one follows. columns: of each row the first text
    token, the first timestamp and the end of timestamps that may follow; whether its newest token is a
    timestamp, and the latest one; its score; with language models its log-probability, newest token and
    states before it. Sums are bits of float32. forbidden: (n,) int64, tokens that may follow no row, which
    `EndingRows.begin` passes.
    """

    n_best: int
    time_begin: int
    n_vocab: int
    eot: int
    n_beams: int
    fusion: Fusion | None = None
    forbidden: Ints = field(default_factory=lambda: np.zeros(0, np.int64), compare=False, repr=False)
    reads_prefixes = False
    capture: AlignmentHeads = ()

    @property
    def n_columns(self) -> int:
        return 6 if self.fusion is None else 8 + self.fusion.n_models

    @property
    def tables(self) -> object:
        return self.fusion

    @property
    def is_static(self) -> bool:
        return self.fusion is None or self.fusion.is_static

    @property
    def widths(self) -> list[int]:
        """Numbers of each row: log-probabilities, tokens, fused scores and states."""
        return [self.n_best] * 2 + ([] if self.fusion is None else [self.n_best, self.fusion.n_models])

    def best_of(self, output: Floats) -> BestTokens:
        logprobs, tokens, *fused = np.split(output, np.cumsum(self.widths)[:-1], axis=1)
        best = BestTokens(tokens.astype(np.int64), logprobs)
        if not fused:
            return best
        states = np.ascontiguousarray(fused[1]).view(np.int32).astype(np.int64)
        return replace(best, fused=fused[0], lm_states=states)


SPREAD_FLOOR = 0.1
"""Added to the standard deviation, as a fraction of uniform attention: without it, all frames of a peak that
only one token attends to have the same z-score.
"""


@dataclass(frozen=True, slots=True)
class AlignAttEnd:
    """The choice of tokens in a step of AlignAtt, with running statistics of attention over tokens.

    The results are float32: of each row the frontier, P(<|nospeech|>) and `LiveVocabulary.text_ends` (of
    prefixes), n_best tokens, and their log-probabilities; with returns_log_probs also all (R, n_ids). The
    statistics of the tokens of prefixes that are to be cached are kept, to begin other rows with.
    """

    vocabulary: LiveVocabulary
    n_best: int
    capture: AlignmentHeads
    reads_prefixes: bool = False
    returns_log_probs: bool = False
    n_beams: ClassVar[int] = 0
    tables: ClassVar[None] = None
    is_static: ClassVar[bool] = True
    n_columns: ClassVar[int] = 6
    """Where a row's statistics are and will be, frames of audio, how many new tokens count and are to be
    cached, and whether the text's end is read; a recorded step reads it of all prefixes.
    """


@dataclass(slots=True, eq=False)
class StepsOfSearch:
    """Steps of rows that choose the next tokens of a search themselves; the filters are data.

    times: None without timestamp rules.
    """

    rows: EndingRows
    end: BestTokensEnd
    times: ApplyTimestampRules | None
    _is_begun: bool = False

    @classmethod
    def of(
        cls, rows: RunningRows, end: BestTokensEnd, filters: Sequence[LogitFilter]
    ) -> StepsOfSearch | None:
        """Return None if the rows cannot, or a filter changes the logits of other tokens.

        end: without timestamps, which the filters tell.
        """
        forbidden: list[int] = []
        times = None
        for rule in filters:
            if isinstance(rule, SuppressTokens):
                forbidden += rule.tokens.tolist()
            elif isinstance(rule, ApplyTimestampRules):
                times = rule
                forbidden.append(rule.timestamp_begin - 1)
            elif not isinstance(rule, SuppressBlank):
                return None
        end = replace(end, forbidden=np.unique(np.array(forbidden, np.int64)))
        if times is not None:
            end = replace(end, time_begin=times.timestamp_begin)
        ending = ending_rows(rows, end)
        return None if ending is None else cls(ending, end, times)

    def columns(self, sampled: Sequence[Ints], sums: Sequence[tuple[float, float, Sequence[int]]]) -> Ints:
        """Return the columns of rows, given the sampled tokens (R_i, n_i) and `sums_of_rows` of searches."""
        end, begin, newest = self.end, self.end.time_begin, newest_of(sampled)
        columns = np.zeros((len(newest), end.n_columns), np.int64)
        columns[:, 1:3] = begin
        if self.times is not None:
            columns[:, :2], columns[:, 2] = self.times.allowed(sampled, end.n_vocab), end.n_vocab
        columns[:, 3], columns[:, 4] = newest >= begin, latest_of(sampled, begin)
        scores, logprobs, states = zip(*sums, strict=True)
        columns[:, 5] = np.asarray(scores, np.float32).view(np.int32)
        if end.fusion is not None:
            columns[:, 6] = np.asarray(logprobs, np.float32).view(np.int32)
            columns[:, 7], columns[:, 8:] = newest, states
        return columns

    def run(
        self, sampled: Sequence[Ints], sums: Sequence[tuple[float, float, Sequence[int]]]
    ) -> Iterator[BestTokens | Floats]:
        """Read the newest token of each row, and yield what may follow, or logits if the rows cannot choose;
        the rows go on by themselves with the tokens that the search takes.
        """
        if not self._is_begun:
            self.rows.begin(self.end, {})
            self._is_begun = True
        columns, newest = self.columns(sampled, sums), newest_of(sampled)[:, None].tolist()
        group = StepGroup(self.end, range(len(newest)), [(0,)] * len(newest), columns)
        for (part,) in self.rows.steps(newest, [group], STEPS_AHEAD):
            output = part.outputs[0][part.places]
            yield output if part.has_logits else self.end.best_of(output)
