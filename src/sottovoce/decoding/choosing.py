"""Choosing tokens in the decoder step, and going on with a search without the host.

An accelerator chooses the most probable tokens in the step itself. The next steps of a greedy or beam search
depend on those alone, so the accelerator takes some steps at once. The host then searches through what was
chosen, by the same functions (`search.expanded`, `filters.allowed_after`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.decoding.filters import (
    FORBIDDEN,
    ApplyTimestampRules,
    LogitFilter,
    SuppressBlank,
    SuppressTokens,
    allowed_after,
)
from sottovoce.decoding.search import BestTokens, Fusion, expanded, fused_logprobs
from sottovoce.models.backend import (
    STEPS_AHEAD,
    AlignmentHeads,
    EndingRows,
    Outputs,
    RunningRows,
    StepGroup,
    ending_rows,
)


@dataclass(frozen=True, slots=True)
class BestTokensEnd:
    """Chooses the most probable tokens: (n, 2 * n_best) float32, log-probabilities and then tokens.

    With language models (fusion) these follow: (n, n_best) log-probabilities with their scores, and (n,
    n_models) their states after the newest token, as bits of int32. time_begin: id of the first timestamp; if
    all timestamps together are more probable than any text, one follows. columns: of each row the first text
    token, the first timestamp and the end of timestamps that may follow; whether its newest token is a
    timestamp, and the latest one; its score; with language models its log-probability, newest token and
    states before it. Sums are bits of float32. The state (n_vocab,) float32 is -inf for tokens that may
    follow no row.
    """

    n_best: int
    time_begin: int
    n_vocab: int
    eot: int
    n_beams: int
    fusion: Fusion | None = None
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

    def state(self, n_rows: int, n_frames: int, device: torch.device) -> Sequence[Tensor]:
        return (torch.zeros(self.n_vocab, device=device),)

    def __call__(self, outputs: Sequence[Tensor], columns: Tensor, state: Sequence[Tensor]) -> Outputs:
        logits, ids = outputs[0] + state[0], torch.arange(self.n_vocab, device=columns.device)
        begin = self.time_begin
        first_text, first_time, end_time = torch.split(columns[:, :3], 1, dim=1)
        text = logits[:, :begin].masked_fill(ids[:begin] < first_text, FORBIDDEN)
        if begin < self.n_vocab:
            beyond = (ids[begin:] < first_time) | (ids[begin:] >= end_time)
            times = logits[:, begin:].masked_fill(beyond, FORBIDDEN)
            forced = times.logsumexp(dim=1, keepdim=True) > text.amax(dim=1, keepdim=True)
            text = torch.cat((text.masked_fill(forced, FORBIDDEN), times), dim=1)
        logprobs = text.log_softmax(dim=1)
        if self.fusion is None:
            best, tokens = logprobs.topk(self.n_best, dim=1)
            return (torch.cat((best, tokens.to(best.dtype)), dim=1),)
        _, states = self.fusion.score(columns[:, 8:], columns[:, 7])
        best, tokens = fused_logprobs(self.fusion, states, logprobs, self.eot).topk(self.n_best, dim=1)
        if self.n_best == 1:
            tokens = tokens.masked_fill(best == FORBIDDEN, self.eot)  # as `Sampling.choose`
        results = logprobs.gather(1, tokens), tokens.to(best.dtype), best, states.int().view(torch.float32)
        return (torch.cat(results, dim=1),)

    def advance(self, outputs: Outputs, columns: Tensor) -> tuple[Tensor, Tensor]:
        best = self.best_of(outputs[0])
        sums = columns[:, 5:7].int().view(torch.float32)
        scores, logprobs = sums[:, 0], sums[:, -1]
        taken = expanded(scores, logprobs, best, self.n_beams).that_go_on(self.eot, self.n_beams)
        held = columns.index_select(0, taken.rows)
        allowed, before, latest = held[:, :2].unbind(1), held[:, 3], held[:, 4]
        last = (taken.tokens >= self.time_begin).long()
        if self.time_begin < self.n_vocab:
            latest = latest.maximum(taken.tokens)
            allowed = allowed_after(last, before, latest, self.eot, self.n_vocab)
        following = [*allowed, held[:, 2], last, latest, _bits(taken.scores)]
        if best.lm_states is not None:
            states = best.lm_states.index_select(0, taken.rows)
            following += [_bits(taken.logprobs), taken.tokens, *states.unbind(1)]
        columns.copy_(torch.stack(following, dim=1))
        return taken.tokens, taken.rows

    def best_of(self, output: Tensor) -> BestTokens:
        if self.fusion is None:
            logprobs, tokens = torch.split(output, self.n_best, dim=1)
            return BestTokens(tokens.long(), logprobs)
        sizes = [self.n_best] * 3 + [self.fusion.n_models]
        logprobs, tokens, fused, states = torch.split(output, sizes, dim=1)
        return BestTokens(tokens.long(), logprobs, fused, _bits(states))


def _bits(values: Tensor) -> Tensor:
    return values.view(torch.int32).long()


@dataclass(slots=True, eq=False)
class StepsOfSearch:
    """Steps of rows that choose the next tokens of a search themselves; the filters are data.

    forbidden: (n,) int64, tokens that may follow no row. times: None without timestamp rules.
    """

    rows: EndingRows
    end: BestTokensEnd
    forbidden: Tensor
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
        if times is not None:
            end = replace(end, time_begin=times.timestamp_begin)
        ending = ending_rows(rows, end)
        if ending is None:
            return None
        return cls(ending, end, torch.tensor(sorted({*forbidden}), dtype=torch.int64), times)

    def columns(
        self, sampled: Sequence[Sequence[int]], sums: Sequence[tuple[float, float, Sequence[int]]]
    ) -> npt.NDArray[np.int64]:
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

    @torch.no_grad()
    def run(
        self, sampled: Sequence[Sequence[int]], sums: Sequence[tuple[float, float, Sequence[int]]]
    ) -> Iterator[BestTokens]:
        """Read the newest token of each row, and yield what may follow; the rows go on by themselves with the
        tokens that the search takes.
        """
        if not self._is_begun:
            (state,) = self.rows.state(self.end)
            state.zero_().index_fill_(0, self.forbidden.to(state.device), FORBIDDEN)
            self._is_begun = True
        n_rows = len(sampled)
        group = StepGroup(self.end, range(n_rows), [(0,)] * n_rows, self.columns(sampled, sums).tolist())
        for (part,) in self.rows.steps([row[-1:] for row in sampled], [group], STEPS_AHEAD):
            yield self.end.best_of(part.outputs[0][part.places])
