"""Stage 4, AlignAtt: decode until the attention comes too near to the end of the audio.

One update decodes one window of encoder states from a prefix. Before a token is taken, the frame that the
decoder attends to most is looked at: too near to the end of the audio, the token waits for the next update.
Sources: Papi et al., AlignAtt (2023), https://arxiv.org/abs/2305.11408; Wang et al., Simul-Whisper (2024),
https://arxiv.org/abs/2406.10052.

There is one loop for all sessions (`AlignAttBatch`, continuous batching): requests of any age, window,
language and rules join it at any step and leave it when they are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.backends.base import Backend
from sottovoce.decoding.alignment import median_filter
from sottovoce.decoding.beam import Fusion
from sottovoce.streaming.beams import ActiveRequest, AlignAttRequest, DraftStep, LmRows, NextTokens
from sottovoce.streaming.hypothesis import AlignAttHypothesis
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.types import EncoderOutput

LEAST_LOG_PROB = -1e4
"""Floor in sums of p log p: what is forbidden adds nothing."""


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
        """Make a batch without requests."""
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
        """Run the decoder once: the logits after every beam."""
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
        """Take what a step gave: logits (n, n_rows) after each beam, or after a prefix and its draft tokens.

        attended: (n,), the frame that each of these tokens attends to most.
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
