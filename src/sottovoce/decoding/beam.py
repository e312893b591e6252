"""Beam search over all windows of a batch at once, with optional language models beside the decoder.

Each beam is extended by its best beam_size + 1 tokens, so that beam_size open beams remain even where one of
them ends. Source: openai-whisper 20250625, `BeamSearchDecoder`; patience from Kasai et al. 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from sottovoce.backends.base import BestTokens
from sottovoce.decoding.search import SearchState, remaining_rows

State = TypeVar("State")
BLOCK = 64
"""Neighbouring tokens whose maximum is looked at first."""


class Fusion(Protocol[State]):
    """Weighted scores of language models over text tokens (natural logs), as in `lm.base.LanguageModel`.

    One requirement beyond that seam: a row whose token is not among the n_tokens (a timestamp) keeps
    its state.
    """

    @property
    def n_tokens(self) -> int:
        """Ids 0 to n_tokens - 1 are scored; nothing is added to all others."""
        ...

    def start(self, n: int, device: torch.device | None = None) -> State:
        """Make the states of n rows on a device (None: the CPU)."""
        ...

    def score(self, states: State, tokens: Tensor | None = None) -> tuple[Tensor, State]:
        """Score next tokens: (R, n_tokens) for None; for tokens (R,) return the states after them too."""
        ...

    def finish(self, states: State) -> Tensor:
        """Return the scores (R,) of ending here."""
        ...

    def select(self, states: State, rows: Tensor) -> State: ...


class FusedRowScores(Generic[State]):
    """A fusion and its states of every row: the `RowScores` of a search."""

    def __init__(self, fusion: Fusion[State], n_rows: int, eot: int, device: torch.device) -> None:
        self._fusion = fusion
        self._eot = eot
        self._states = fusion.start(n_rows, device)

    def add_to(self, logprobs: Tensor) -> Tensor:
        scores, _ = self._fusion.score(self._states)
        fused = logprobs.clone()
        fused[:, : self._fusion.n_tokens] += scores.to(fused)
        fused[:, self._eot] = logprobs[:, self._eot] + self._fusion.finish(self._states).to(fused)
        return fused

    def advance(self, rows: Tensor, tokens: Tensor) -> None:
        _, self._states = self._fusion.score(self._fusion.select(self._states, rows), tokens)

    def select(self, rows: Tensor) -> None:
        self._states = self._fusion.select(self._states, rows)


class _Expansion(NamedTuple):
    """Continuations of every window, best first: (A, n) each."""

    scores: Tensor
    logprobs: Tensor
    tokens: Tensor
    rows: Tensor

    def taken(self, mask: Tensor) -> _Expansion:
        """The masked ones in one dimension, window by window, best first."""
        return _Expansion(self.scores[mask], self.logprobs[mask], self.tokens[mask], self.rows[mask])


class BeamSearch(Generic[State]):
    """True top-k beam search; a window is done at round(beam_size * patience) finished hypotheses.

    fusion: language models whose scores are added before the best tokens are chosen.
    """

    def __init__(
        self, eot: int, beam_size: int, *, patience: float = 1.0, fusion: Fusion[State] | None = None
    ) -> None:
        self._eot = eot
        self._beam_size = beam_size
        self._max_candidates = round(beam_size * patience)
        self._fusion = fusion

    @property
    def n_hypotheses(self) -> int:
        return self._beam_size

    def start(self, n_audio: int, device: torch.device) -> SearchState:
        n_rows = n_audio * self._beam_size
        # All beams are the same at first: one of them is open, so that none is counted twice.
        scores = torch.full((n_audio, self._beam_size), float("-inf"), device=device)
        scores[:, 0] = 0.0
        lm_scores = None if self._fusion is None else FusedRowScores(self._fusion, n_rows, self._eot, device)
        return SearchState(
            tokens=torch.zeros((n_rows, 0), dtype=torch.int64, device=device),
            scores=scores.flatten(),
            logprobs=scores.flatten(),
            sums=torch.zeros((n_rows, 0), device=device),
            audio=[row // self._beam_size for row in range(n_rows)],
            origin=torch.arange(n_rows, device=device),
            candidates=[[] for _ in range(n_audio)],
            lm_scores=lm_scores,
        )

    def step(self, logits: Tensor, state: SearchState) -> Tensor | None:
        return self._take(self._expand(logits, state), state)

    @property
    def n_best(self) -> int | None:
        return self._beam_size + 1 if self._fusion is None else None

    def extend(self, best: BestTokens, state: SearchState) -> Tensor | None:
        return self._take(self._ranked(best.logprobs, best.logprobs, best.tokens, state), state)

    def _take(self, expansion: _Expansion, state: SearchState) -> Tensor | None:
        ends = expansion.tokens == self._eot
        n_open = (~ends).cumsum(dim=1)
        # Ends count only if they rank among the beams that remain.
        ended = expansion.taken(ends & (n_open < self._beam_size) & (expansion.scores > float("-inf")))
        self._collect(ended, state)
        rows = self._continue(expansion.taken(~ends & (n_open <= self._beam_size)), state)
        done = [audio for audio in dict.fromkeys(state.audio) if self._is_done(state, audio)]
        return rows if not done else rows[self.stop(state, done)]

    def stop(self, state: SearchState, audio: Sequence[int]) -> Tensor:
        scores = state.scores.tolist()
        for index in audio:
            rows = [row for row, of in enumerate(state.audio) if of == index]
            missing = max(0, self._beam_size - len(state.candidates[index]))
            best = sorted(rows, key=lambda row: scores[row], reverse=True)[:missing]
            state.candidates[index].extend(state.candidate(row) for row in best)
        return state.select(remaining_rows(state, audio))

    def _expand(self, logits: Tensor, state: SearchState) -> _Expansion:
        n_best = min(self._beam_size + 1, logits.shape[1])
        logprobs = logits.float().log_softmax(dim=1)
        added = logprobs if state.lm_scores is None else state.lm_scores.add_to(logprobs)
        best, tokens = best_tokens(added, n_best)  # (R, beam_size + 1)
        return self._ranked(best, logprobs.gather(1, tokens), tokens, state)

    def _ranked(self, best: Tensor, logprobs: Tensor, tokens: Tensor, state: SearchState) -> _Expansion:
        """Rank the best tokens of all rows of a window, (R, n_best) each: scores, and what the model says."""
        n_best = best.shape[1]
        scores = (state.scores[:, None] + best).reshape(-1, self._beam_size * n_best)  # (A, K * n_best)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        sums = state.logprobs[:, None] + logprobs
        first_rows = torch.arange(0, state.n_rows, self._beam_size, device=order.device)
        return _Expansion(
            scores=scores,
            logprobs=sums.reshape(scores.shape).gather(1, order),
            tokens=tokens.reshape(scores.shape).gather(1, order),
            rows=first_rows[:, None] + order // n_best,
        )

    def _collect(self, ended: _Expansion, state: SearchState) -> None:
        """Add finished hypotheses, best first, while their window has room for them."""
        fields = (ended.rows.tolist(), ended.logprobs.tolist(), ended.scores.tolist())
        for row, logprob, score in zip(*fields, strict=True):
            candidates = state.candidates[state.audio[row]]
            if len(candidates) < self._max_candidates:
                candidates.append(state.ended(row, logprob, score))

    def _continue(self, survivors: _Expansion, state: SearchState) -> Tensor:
        """Extend the state by the beams that remain; return the rows that they continue."""
        if state.lm_scores is not None:
            state.lm_scores.advance(survivors.rows, survivors.tokens)
        state.tokens = torch.cat((state.tokens[survivors.rows], survivors.tokens[:, None]), dim=1)
        state.sums = torch.cat((state.sums[survivors.rows], survivors.logprobs[:, None]), dim=1)
        state.scores, state.logprobs = survivors.scores, survivors.logprobs
        return survivors.rows

    def _is_done(self, state: SearchState, audio: int) -> bool:
        return len(state.candidates[audio]) >= self._max_candidates


def best_tokens(scores: Tensor, n_best: int) -> tuple[Tensor, Tensor]:
    """Find the best scores of each row (R, n_vocab) and their tokens: (R, n_best) each, best first.

    On a CPU the maxima of blocks are looked at first: the best tokens lie in as many of the best blocks.
    Equal scores, which bfloat16 has now and then, are in the order of `torch.topk` everywhere.
    """
    n_blocks = scores.shape[1] // BLOCK
    if scores.device.type != "cpu" or n_blocks <= n_best:
        return torch.topk(scores, n_best, dim=1)
    best, tokens = _best_by_blocks(scores, n_best + 1)
    if bool((best[:, :-1] == best[:, 1:]).any()):
        return torch.topk(scores, n_best, dim=1)
    return best[:, :n_best], tokens[:, :n_best]


def _best_by_blocks(scores: Tensor, n_best: int) -> tuple[Tensor, Tensor]:
    n_rows, n_vocab = scores.shape
    n_blocks = n_vocab // BLOCK
    whole = scores[:, : n_blocks * BLOCK].reshape(n_rows, n_blocks, BLOCK)
    blocks = whole.amax(dim=2).topk(n_best, dim=1).indices  # (R, n_best)
    inside = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    rest = torch.arange(n_blocks * BLOCK, n_vocab).expand(n_rows, -1)
    looked_at = torch.cat((inside, rest), dim=1)
    best, places = scores.gather(1, looked_at).topk(n_best, dim=1)
    return best, looked_at.gather(1, places)
