"""The beams of one AlignAtt request: how they are extended, stopped and ranked, with or without language
models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sottovoce.backends.base import RowPrefix
from sottovoce.decoding.beam import FusedRowScores, Fusion
from sottovoce.streaming.hypothesis import (
    AlignAttHypothesis,
    BeamPath,
    DecoderPrefix,
    PrefixCache,
    StopReason,
    StopRules,
)
from sottovoce.streaming.vocabulary import LiveVocabulary


@dataclass(frozen=True, slots=True, eq=False)
class AlignAttRequest:
    """What to decode in one window.

    draft_tokens: tokens that may come next, verified in the first step (speculative decoding): they change
        the number of steps, never the result. Used with one beam.
    prefix_cache: of an earlier update, used if it applies; None: the whole prefix is computed.
    n_recomputed: return a `PrefixCache` of the prefix without this many tokens at its end; None: return none.
    """

    prefix: DecoderPrefix
    rules: StopRules
    draft_tokens: tuple[int, ...] = ()
    prefix_cache: PrefixCache | None = None
    n_recomputed: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DraftStep:
    """What a draft token gave: the frame (1,) attended to most, and the logits after it (1, n_rows)."""

    token: int
    logits: Tensor
    attended: Tensor


@dataclass(frozen=True, slots=True)
class NextTokens:
    """The best next tokens of one beam, best first, with their log-probabilities and language-model scores.

    frame: attended to most. entropy: of the whole distribution, in nats.
    """

    frame: int
    entropy: float
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    lm_scores: tuple[float, ...]

    @classmethod
    def from_values(cls, values: Sequence[float], n_best: int) -> NextTokens:
        """Parse frame, entropy, and then n_best tokens, log-probabilities and language-model scores."""
        frame, entropy, *others = values
        tokens, logprobs, lm_scores = (others[i * n_best : (i + 1) * n_best] for i in range(3))
        return cls(int(frame), entropy, tuple(map(int, tokens)), tuple(logprobs), tuple(lm_scores))

    def extend(self, path: BeamPath, n_best: int) -> list[BeamPath]:
        """Return the path with each of the n_best next tokens."""
        best = list(zip(self.tokens, self.logprobs, self.lm_scores, strict=True))[:n_best]
        return [
            path.extended(token, self.frame, logprob, self.entropy, lm_score)
            for token, logprob, lm_score in best
        ]


class LmRows:
    """Language-model states of the beams of one request; committed: text tokens (n,) before the first."""

    def __init__(
        self,
        fusion: Fusion[Tensor],
        vocabulary: LiveVocabulary,
        eot: int,
        device: torch.device,
        committed: Sequence[int],
    ) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._rows = FusedRowScores(fusion, 1, eot, device)
        for token in committed:
            self.advance([0], [token])

    def scores(self, log_probs: Tensor) -> Tensor:
        """Return what the models add to the log-probabilities (n_beams, n) of the live vocabulary, same
        shape.
        """
        nothing = log_probs.new_zeros(len(log_probs), self._vocabulary.n_vocab)
        return self._rows.add_to(nothing).index_select(1, self._vocabulary.ids)

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Let beam i continue the former beam parents[i] with tokens[i]."""
        if parents:
            self._rows.advance(self._ids(parents), self._ids(tokens))

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


class ActiveRequest:
    """A request in a batch: its beams, each a row of the decoder, and the hypotheses of those that stopped.

    n_frames: of its window. beam_size: beams at most. room: tokens that the decoder's context has left.
    lm_rows: None without language models.
    """

    def __init__(
        self,
        ticket: int,
        request: AlignAttRequest,
        *,
        n_frames: int,
        beam_size: int,
        room: int,
        eot: int,
        lm_rows: LmRows | None,
    ) -> None:
        self.ticket = ticket
        self.prefix = request.prefix
        self.n_frames = n_frames
        self.paths = [BeamPath()]
        self.logits: Tensor | None = None
        """(n_beams, n_rows) after each beam, once computed."""
        self.attended: Tensor | None = None
        """(n_beams,) int64, the frame that the newest token of each beam attends to most."""
        self.is_new = True
        cache = request.prefix_cache
        self.cache = cache if cache and cache.applies_to(self.prefix.tokens, n_frames) else None
        self.no_speech_prob = 0.0 if self.cache is None else self.cache.no_speech_prob
        self.draft_tokens = request.draft_tokens[:room] if beam_size == 1 else ()
        self.draft_steps: deque[DraftStep] = deque()
        """Draft tokens computed and not yet reached."""
        self.lm_rows = lm_rows
        self._new_cache: PrefixCache | None = None
        self._n_recomputed = request.n_recomputed
        self._beam_size = beam_size
        self._eot = eot
        self._rules = request.rules
        self._most_tokens = min(room, request.rules.max_tokens)
        self._finished: list[AlignAttHypothesis] = []

    @property
    def n_candidates(self) -> int:
        """Number of next tokens of a beam, of which the best beams are chosen."""
        return self._beam_size + 1 if self._beam_size > 1 else 1

    @property
    def n_cached(self) -> int:
        """Number of tokens of the prefix that are in the cache."""
        return 0 if self.cache is None else len(self.cache.tokens)

    @property
    def cached_state(self) -> RowPrefix | None:
        return None if self.cache is None else self.cache.state

    @property
    def n_to_cache(self) -> int:
        """Number of tokens of the prefix to cache for the next update."""
        if self._n_recomputed is None:
            return 0
        return max(self.n_cached, len(self.prefix.tokens) - max(1, self._n_recomputed))

    @property
    def computes_sot(self) -> bool:
        """Whether <|startoftranscript|>, where no speech is predicted, is not in the cache."""
        return self.prefix.sot >= self.n_cached

    @property
    def hypothesis(self) -> AlignAttHypothesis:
        """The best finished hypothesis, once no beam goes on."""
        best = max(self._finished, key=lambda one: one.ranking_key)
        return replace(best, no_speech_prob=self.no_speech_prob, prefix_cache=self._new_cache)

    def save_cache(self, state: RowPrefix | None) -> None:
        """Take the decoder's state of the first `n_to_cache` tokens; None: the backend has none."""
        if state is not None:
            tokens = self.prefix.tokens[: self.n_to_cache]
            self._new_cache = PrefixCache(tokens, state, self.n_frames, self.no_speech_prob)

    def extend(self, candidates: Sequence[NextTokens]) -> list[int]:
        """Stop or extend every beam; return the parent of each new beam, none once the request is done."""
        paths, self.paths = self.paths, []
        if len(paths[0].tokens) >= self._most_tokens:
            if not self._finished:
                self._finished.append(paths[0].stopped(StopReason.FULL))
            return []
        extended: list[tuple[BeamPath, int]] = []
        for parent, (path, following) in enumerate(zip(paths, candidates, strict=True)):
            if not self._is_done and not self._stops(path, following):
                extended += [(longer, parent) for longer in following.extend(path, self.n_candidates)]
        best = self._prune(extended)
        self.paths = [path for path, _ in best]
        parents = [parent for _, parent in best]
        if self.lm_rows is not None:
            self.lm_rows.advance(parents, [path.tokens[-1] for path in self.paths])
        return parents

    @property
    def _is_done(self) -> bool:
        return len(self._finished) >= self._beam_size

    def _stops(self, path: BeamPath, following: NextTokens) -> bool:
        """Return whether attention stops a beam before its next token; <|endoftext|> is not held back."""
        token = following.tokens[0]
        if token == self._eot:
            return False
        stopped = self._rules.stopped_by_attention(path, following.frame, self.n_frames, token)
        if stopped is not None:
            self._finished.append(stopped)
        return stopped is not None

    def _prune(self, extended: list[tuple[BeamPath, int]]) -> list[tuple[BeamPath, int]]:
        """Keep the best beams with their parents; those at the end of text or in a loop are finished."""
        extended.sort(key=lambda item: item[0].total_score, reverse=True)
        best: list[tuple[BeamPath, int]] = []
        for path, parent in extended:
            if len(best) == self._beam_size:
                break
            if path.tokens[-1] == self._eot:
                self._finished.append(path.stopped(StopReason.END_OF_TEXT, n_tokens=-1))
            elif looped := self._rules.stopped_by_loop(path, self.prefix.committed):
                self._finished.append(looped)
            else:
                best.append((path, parent))
        return [] if self._is_done else best
