"""Choosing tokens in the decoder step, and going on with a search without the host.

Runtimes choose the most probable tokens in the step itself. The next steps of a greedy or beam search depend
on those alone, so an accelerator takes some steps at once (`runtime.step_ends`). The host then searches
through the chosen tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from sottovoce.decoding.filters import ApplyTimestampRules, LogitFilter, SuppressBlank, SuppressTokens
from sottovoce.decoding.search import BestTokens, Fusion
from sottovoce.decoding.vocabulary import LiveVocabulary
from sottovoce.models.backend import (
    STEPS_AHEAD,
    AlignmentHeads,
    EndingRows,
    Floats,
    Ints,
    RunningRows,
    StepGroup,
    ending_rows,
)


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
    measures_ends: bool = False
    returns_log_probs: bool = False
    n_beams: ClassVar[int] = 0
    tables: ClassVar[None] = None
    is_static: ClassVar[bool] = True
    n_columns: ClassVar[int] = 5
    """Where a row's statistics are and will be, frames of audio, and how many new tokens count and are
    to be cached.
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

    def columns(
        self, sampled: Sequence[Sequence[int]], sums: Sequence[tuple[float, float, Sequence[int]]]
    ) -> Ints:
        """Return the columns of rows, given their sampled tokens and `SearchState.sums_of_rows`."""
        end, n_vocab = self.end, self.end.n_vocab
        begin, times = end.time_begin, self.times
        columns = np.zeros((len(sampled), end.n_columns), np.int64)
        columns[:, :3] = [
            (0, begin, begin) if times is None else times.allowed(row, n_vocab) for row in sampled
        ]
        newest = np.asarray([row[-1] for row in sampled])
        columns[:, 3], columns[:, 4] = newest >= begin, [max(*row, begin - 1) for row in sampled]
        scores, logprobs, states = zip(*sums, strict=True)
        columns[:, 5] = np.asarray(scores, np.float32).view(np.int32)
        if end.fusion is not None:
            columns[:, 6] = np.asarray(logprobs, np.float32).view(np.int32)
            columns[:, 7], columns[:, 8:] = newest, states
        return columns

    def run(
        self, sampled: Sequence[Sequence[int]], sums: Sequence[tuple[float, float, Sequence[int]]]
    ) -> Iterator[BestTokens | Floats]:
        """Read the newest token of each row, and yield what may follow, or logits if the rows cannot choose;
        the rows go on by themselves with the tokens that the search takes.
        """
        if not self._is_begun:
            self.rows.begin(self.end, {})
            self._is_begun = True
        n_rows = len(sampled)
        group = StepGroup(self.end, range(n_rows), [(0,)] * n_rows, self.columns(sampled, sums))
        for (part,) in self.rows.steps([row[-1:] for row in sampled], [group], STEPS_AHEAD):
            output = part.outputs[0][part.places]
            yield output if part.has_logits else self.end.best_of(output)
