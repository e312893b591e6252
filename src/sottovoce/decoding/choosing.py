"""Choosing tokens in the decoder step, and going on with a search without the host.

An accelerator chooses the most probable tokens in the step itself. The next steps of a greedy or beam search
depend on those alone, so the accelerator takes some steps at once. The host then searches through what was
chosen, by the same functions (`search.expanded`, `filters.allowed_after`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.decoding.filters import FORBIDDEN, allowed_after
from sottovoce.decoding.search import Fusion, expanded, fused_logprobs
from sottovoce.models.backend import (
    STEPS_AHEAD,
    AlignmentHeads,
    BestTokens,
    EndingRows,
    Outputs,
    TokenChoice,
)


@dataclass(frozen=True, slots=True)
class BestTokensEnd:
    """Chooses tokens by a `TokenChoice`: (n, 2 * n_best) float32, log-probabilities and then tokens.

    With language models (fusion) these follow: (n, n_best) log-probabilities with their scores, and (n,
    n_models) their states after the newest token, as bits of int32. columns: `AllowedTokens` and
    `SearchedRow`, sums as bits of float32. Its state (n_vocab,) float32 is -inf for tokens that may follow
    no row.
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
        found = logprobs.gather(1, tokens), tokens.to(best.dtype), best, states.int().view(torch.float32)
        return (torch.cat(found, dim=1),)

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


class ChoosingByEnd:
    """`ChoosingRows` of rows whose steps can have an end. eot, n_beams, fusion: of the search."""

    def __init__(self, rows: EndingRows, n_vocab: int, eot: int, n_beams: int, fusion: Fusion | None) -> None:
        self._rows = rows
        self._n_vocab, self._eot, self._n_beams, self._fusion = n_vocab, eot, n_beams, fusion
        self._forbidden: Tensor | None = None

    @torch.no_grad()
    def steps_best(self, tokens: Sequence[int], choice: TokenChoice) -> Iterator[BestTokens]:
        end = BestTokensEnd(
            choice.n_best, choice.time_begin, self._n_vocab, self._eot, self._n_beams, self._fusion
        )
        if choice.forbidden is not self._forbidden:
            self._forbidden, (state,) = choice.forbidden, self._rows.state(end)
            state.zero_().index_fill_(0, choice.forbidden.to(state.device, torch.int64), FORBIDDEN)
        columns = np.zeros((len(tokens), end.n_columns), np.int64)
        columns[:, :3] = choice.allowed
        if choice.searched:
            last, latest, scores, logprobs, newest, states = zip(*choice.searched, strict=True)
            columns[:, 3], columns[:, 4] = last, latest
            columns[:, 5] = np.asarray(scores, np.float32).view(np.int32)
            if self._fusion is not None:
                columns[:, 6] = np.asarray(logprobs, np.float32).view(np.int32)
                columns[:, 7], columns[:, 8:] = newest, states
        n_steps = STEPS_AHEAD if choice.searched else 1
        for found in self._rows.steps_ahead(tokens, end, columns.tolist(), n_steps):
            yield end.best_of(found)
