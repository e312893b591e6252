"""Stage 4, AlignAtt: decode until the attention comes too near to the end of the audio.

One update decodes one window of encoder states from a prefix. Before a token is taken, the frame that the
decoder attends to most is looked at: too near to the end of the audio, the token waits for the next
update. Sources: Papi et al., AlignAtt (2023), https://arxiv.org/abs/2305.11408; Wang et al.,
Simul-Whisper (2024), https://arxiv.org/abs/2406.10052.

There is one loop for all sessions (`AlignAttBatch`, continuous batching): requests of any age, window,
language and rules join it at any step and leave it when they are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.backends.base import Backend, RowPrefix
from sottovoce.decoding.alignment import median_filter
from sottovoce.decoding.filters import FORBIDDEN, suppressed_tokens
from sottovoce.decoding.search import FusedRowScores, Fusion
from sottovoce.options.decoding import NON_SPEECH
from sottovoce.streaming.hypothesis import (
    AlignAttHypothesis,
    BeamPath,
    DecoderPrefix,
    PrefixCache,
    StopReason,
    StopRules,
)
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput

FEW = 0.25
"""Up to this fraction of the vocabulary, selecting its rows costs less than computing all."""
LEAST_LOG_PROB = -1e4
"""Floor in sums of p log p: what is forbidden adds nothing."""


@dataclass(frozen=True, eq=False)
class LiveVocabulary:
    """Token ids of live decoding.

    ids: (n,) int64 ascending, allowed tokens. blank: (m,) positions in `ids` of those that may not begin a
    text. others: (k,) int64, predicted at <|startoftranscript|> only: <|nospeech|>, and languages where the
    model has them. n_vocab: rows of the model.
    """

    ids: Tensor
    blank: Tensor
    others: Tensor
    n_vocab: int

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, tokenizer: Tokenizer, n_vocab: int, device: torch.device) -> LiveVocabulary:
        """Return the vocabulary of a model with n_vocab rows, the same object for all its sessions.

        A text begins with no space. <|endoftext|> may come first: to forbid it, as offline decoding does,
        invites hallucination.
        """
        allowed = torch.full((tokenizer.eot + 1,), tokenizer.pieces is None)
        if tokenizer.pieces is not None:
            allowed[list(tokenizer.pieces.ids.values())] = True
        allowed[tokenizer.eot] = True
        allowed[[token for token in suppressed_tokens((NON_SPEECH,), tokenizer) if token < len(allowed)]] = (
            False
        )
        ids = allowed.nonzero()[:, 0]
        blank = torch.isin(ids, torch.tensor(tokenizer.encode(" "))).nonzero()[:, 0]
        languages = tokenizer.language_tokens if tokenizer.is_multilingual else ()
        others = torch.tensor((tokenizer.no_speech, *languages), dtype=torch.int64)
        return cls(ids.to(device), blank.to(device), others.to(device), n_vocab)

    @cached_property
    def rows(self) -> Tensor | None:
        """Rows (n + k,) to compute in a step, `ids` and `others`; None: all of the model."""
        few = len(self.ids) + len(self.others) <= FEW * self.n_vocab
        return torch.cat((self.ids, self.others)) if few else None

    def no_speech_probs(self, logits: Tensor) -> list[float]:
        """Return P(<|nospeech|>) of each row from the logits (R, n_rows) of `rows` at <|startoftranscript|>.

        Rows that a small model did not learn have next to no probability.
        """
        if not len(self.others):
            return [0.0] * len(logits)
        column = int(self.others[0]) if self.rows is None else len(self.ids)
        found: list[float] = logits.float().softmax(dim=-1)[:, column].tolist()
        return found

    def log_probs(self, logits: Tensor, *, first: Sequence[int] = ()) -> Tensor:
        """Return the log-probabilities (R, n) of `ids`.

        logits: (R, n_rows) of `rows`. first: indices of rows whose next token begins a text.
        """
        whole = self.rows is None
        chosen = logits.index_select(1, self.ids) if whole else logits[:, : len(self.ids)].clone()
        if first and len(self.blank):
            rows = torch.tensor(first, device=chosen.device)
            chosen[rows[:, None], self.blank] = FORBIDDEN
        return chosen.log_softmax(dim=-1)


@dataclass(frozen=True, slots=True, eq=False)
class AlignAttRequest:
    """A decode of one window.

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
    """A computed draft token: the frame (1,) attended to most, and the logits after it (1, n_rows)."""

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


@dataclass(frozen=True, slots=True)
class AlignAttDecoder:
    """Decode windows by beam search under AlignAtt; beam_size 1 is greedy.

    Each beam stops on its own, see `StopReason`. A request is done when beam_size beams have stopped, and the
    best of them by `AlignAttHypothesis.ranking_key` is its result. fusion: language models; None: none.
    """

    backend: Backend
    eot: int
    vocabulary: LiveVocabulary
    beam_size: int = 1
    fusion: Fusion[Tensor] | None = None

    @property
    def batch_key(self) -> LiveVocabulary:
        """Requests of decoders with one vocabulary may share a batch."""
        return self.vocabulary

    def new_batch(self) -> AlignAttBatch:
        return AlignAttBatch(self.backend, self.vocabulary)

    def decode(
        self, encoded: Sequence[EncoderOutput], requests: Sequence[AlignAttRequest]
    ) -> list[AlignAttHypothesis]:
        """Decode requests, each in its window (batch of 1); results are as if each were decoded alone."""
        batch = self.new_batch()
        tickets = [batch.admit(self, one, request) for one, request in zip(encoded, requests, strict=True)]
        found: dict[int, AlignAttHypothesis] = {}
        while batch.n_requests:
            found.update(batch.step())
        return [found[ticket] for ticket in tickets]

    def activate(self, ticket: int, request: AlignAttRequest, n_frames: int) -> ActiveRequest:
        """Start a request in a window of n_frames frames."""
        lm_rows = None
        if self.fusion is not None:
            lm_rows = LmRows(
                self.fusion, self.vocabulary, self.eot, self.backend.device, request.prefix.committed
            )
        room = max(0, self.backend.dims.n_text_ctx - len(request.prefix.tokens))
        return ActiveRequest(
            ticket,
            request,
            n_frames=n_frames,
            beam_size=self.beam_size,
            room=room,
            eot=self.eot,
            lm_rows=lm_rows,
        )


class AlignAttBatch:
    """All requests that one model decodes at a time: admitted before any step, removed when done.

    A step computes the prefixes of new requests and the newest token of every beam of the others in one pass.
    Decoders may differ in beam size and language models, not in model and vocabulary.
    """

    def __init__(self, backend: Backend, vocabulary: LiveVocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._rows = backend.rows()
        self._active: list[ActiveRequest] = []
        self._n_admitted = 0

    @property
    def n_requests(self) -> int:
        return len(self._active)

    @torch.inference_mode()
    def admit(self, decoder: AlignAttDecoder, encoded: EncoderOutput, request: AlignAttRequest) -> int:
        """Add a request, decoded from the next step on; return the ticket of its hypothesis."""
        assert decoder.vocabulary is self._vocabulary, "one vocabulary for all requests of a batch"
        active = decoder.activate(self._n_admitted, request, encoded.n_content_frames[0])
        self._rows.admit(encoded, active.cached_state)
        self._active.append(active)
        self._n_admitted += 1
        return active.ticket

    @torch.inference_mode()
    def step(self) -> list[tuple[int, AlignAttHypothesis]]:
        """Run one decoder step for all requests, and accept the draft tokens that match.

        Returns (ticket, hypothesis) of the requests that are done. If it raises, discard the batch.
        """
        self._compute()
        ready = list(self._active)
        finished: list[tuple[int, AlignAttHypothesis]] = []
        while ready:
            self._extend(ready)
            finished += [(one.ticket, one.hypothesis) for one in ready if not one.paths]
            ready = [one for one in ready if one.paths and self._accepts_draft(one)]
        return finished

    def _compute(self) -> None:
        tokens: list[Sequence[int]] = []
        positions: list[Sequence[int]] = []
        for one in self._active:
            if one.is_new:
                unread = one.prefix.tokens[one.n_cached :]
                first = [one.prefix.sot - one.n_cached] if one.computes_sot else []
                tokens.append([*unread, *one.draft_tokens])
                positions.append([*first, *range(len(unread) - 1, len(unread) + len(one.draft_tokens))])
            else:
                tokens += [path.tokens[-1:] for path in one.paths]
                positions += [[0]] * len(one.paths)
        heads, rows = self._backend.alignment_heads, self._vocabulary.rows
        output = self._rows.step(tokens, positions, vocabulary=rows, capture=heads)
        n_newest = [1 + len(one.draft_tokens) if one.is_new else 1 for one in self._active for _ in one.paths]
        attended = attended_frames(
            [row[:, -n:] for row, n in zip(output.attention, n_newest, strict=True)],
            [one.n_frames for one in self._active for _ in one.paths],
        )
        logits = output.logits
        for one in self._active:
            n_tokens = 1 + len(one.draft_tokens) if one.is_new else len(one.paths)
            if one.is_new and one.computes_sot:
                one.no_speech_prob = self._vocabulary.no_speech_probs(logits[:1])[0]
                logits = logits[1:]
            self._take(one, logits[:n_tokens], attended[:n_tokens])
            logits, attended = logits[n_tokens:], attended[n_tokens:]

    def _take(self, one: ActiveRequest, logits: Tensor, attended: Tensor) -> None:
        """Take the results of a step.

        logits: (n, n_rows), after each beam, or after a prefix and each of its draft tokens. attended: (n,),
        the frame that each of these tokens attends to most.
        """
        if not one.is_new:
            one.logits, one.attended = logits, attended
            return
        one.is_new = False
        one.logits, one.attended = logits[:1], attended[:1]
        for i, token in enumerate(one.draft_tokens, start=1):
            one.draft_steps.append(DraftStep(token, logits[i : i + 1], attended[i : i + 1]))

    def _accepts_draft(self, one: ActiveRequest) -> bool:
        """Return whether the newest token was drafted, so that its logits are there; else drop the draft."""
        one.logits = one.attended = None
        if not one.draft_steps:
            return False
        drafted = one.draft_steps.popleft()
        if drafted.token == one.paths[0].tokens[-1]:
            one.logits, one.attended = drafted.logits, drafted.attended
            return True
        self._rows.cut(self._first_row(one), len(one.draft_steps) + 1)
        one.draft_steps.clear()
        return False

    def _first_row(self, one: ActiveRequest) -> int:
        return sum(len(other.paths) for other in self._active[: self._active.index(one)])

    def _extend(self, ready: Sequence[ActiveRequest]) -> None:
        """Extend requests whose logits are there by a token; rows follow their beams."""
        places: dict[int, range] = {}
        at = 0
        for one in self._active:
            places[one.ticket] = range(at, at + len(one.paths))
            at += len(one.paths)
        candidates = iter(self._next_tokens(ready))
        parents = {one.ticket: one.extend([next(candidates) for _ in one.paths]) for one in ready}
        rows: list[int] = []
        for one in self._active:
            own = places[one.ticket]
            if not one.paths and one.n_to_cache:
                one.save_cache(self._rows.prefix_of(own[0], one.n_to_cache))
            rows += [own[parent] for parent in parents[one.ticket]] if one.ticket in parents else own
        self._active = [one for one in self._active if one.paths]
        if rows != list(range(at)):
            self._rows.select(rows)

    def _next_tokens(self, ready: Sequence[ActiveRequest]) -> list[NextTokens]:
        """Return the best next tokens of all beams, read back from the device at once."""
        logits = [one.logits for one in ready if one.logits is not None]
        attended = [one.attended for one in ready if one.attended is not None]
        paths = [path for one in ready for path in one.paths]
        first = [place for place, path in enumerate(paths) if not path.tokens]
        log_probs = self._vocabulary.log_probs(torch.cat(logits).float(), first=first)
        entropies = -(log_probs.exp() * log_probs.clamp(min=LEAST_LOG_PROB)).sum(dim=-1)
        n_best = max(one.n_candidates for one in ready)
        lm_scores = _lm_scores(ready, log_probs)
        best = (log_probs if lm_scores is None else log_probs + lm_scores).topk(n_best, dim=-1).indices
        logprobs = log_probs.gather(1, best)
        added = torch.zeros_like(logprobs) if lm_scores is None else lm_scores.gather(1, best)
        frames, tokens = torch.cat(attended).to(logprobs), self._vocabulary.ids[best].to(logprobs)
        values = torch.cat([frames[:, None], entropies[:, None], tokens, logprobs, added], dim=1).tolist()
        return [NextTokens.from_values(row, n_best) for row in values]


def attended_frames(attention: Sequence[Tensor], n_frames: Sequence[int]) -> Tensor:
    """Return the frame (n,) int64 that each token attends to most, in the mean over heads.

    attention: of each row (n_heads, n_tokens, n_frames or more), filtered by the median over the frames.
    n_frames: of each row, those that hold audio; attention beyond is ignored.
    """
    longest = max(n_frames)
    rows = [F.pad(one[..., :longest], (0, max(0, longest - one.shape[-1]))) for one in attention]
    weights = torch.cat(rows, dim=1)
    lengths = [n for one, n in zip(attention, n_frames, strict=True) for _ in range(one.shape[1])]
    ends = torch.tensor(lengths, device=weights.device)[:, None]
    frames = torch.arange(longest, device=weights.device)
    beyond = frames >= ends  # (n, longest)
    # The filter mirrors what it sees at the end: a shorter row at its own end.
    mirrored = torch.where(beyond, (2 * (ends - 1) - frames).clamp(min=0), frames)
    mean = median_filter(weights.gather(-1, mirrored.expand_as(weights))).mean(dim=0)
    return mean.masked_fill(beyond, -torch.inf).argmax(dim=-1)


def _lm_scores(ready: Sequence[ActiveRequest], log_probs: Tensor) -> Tensor | None:
    """Return what language models add to the log-probabilities (R, n) of all beams; None without models."""
    if all(one.lm_rows is None for one in ready):
        return None
    scores = torch.zeros_like(log_probs)
    at = 0
    for one in ready:
        own = slice(at, at + len(one.paths))
        if one.lm_rows is not None:
            scores[own] = one.lm_rows.scores(log_probs[own])
        at += len(one.paths)
    return scores
