"""AlignAtt: decode until the attention is too close to the end of the audio.

An update decodes one window from a prefix. It accepts a token if the frame that the decoder attends to most
is far enough from the end of the audio. Frames are encoder frames of 20 ms.

Sources: Papi et al. 2023, https://arxiv.org/abs/2305.11408; Simul-Whisper: Wang et al. 2024,
https://arxiv.org/abs/2406.10052.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.decoding.alignment import RunningStatistics, mean_over_heads, median_filter
from sottovoce.decoding.filters import FORBIDDEN, suppressed_tokens
from sottovoce.decoding.search import FusedRowScores, Fusion
from sottovoce.models.backend import Backend, RowPrefix
from sottovoce.options.decoding import NON_SPEECH
from sottovoce.streaming.turns import TextEnd
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput

MAX_TOKENS = 224
"""Half of Whisper's text context."""
TOKENS_PER_SECOND = 20.0
"""More than speech has; Chinese spelled in bytes has 15."""
BABBLE_TOKENS, BABBLE_DISTINCT = 32, 8
"""So many tokens with so few different ones are a loop; speech has at least 12."""


@dataclass(frozen=True, slots=True)
class DecoderPrefix:
    """Prompt, start-of-transcript sequence and committed text.

    sot: position of <|startoftranscript|>. n_committed: committed tokens, at the end.
    """

    tokens: tuple[int, ...]
    sot: int
    n_committed: int

    @property
    def committed(self) -> tuple[int, ...]:
        return self.tokens[len(self.tokens) - self.n_committed :]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixCache:
    """The decoder's state of the first tokens of a prefix, for the next update.

    attention: statistics (1, n_heads, n_frames). no_speech_prob: 0 without <|startoftranscript|>.
    """

    tokens: tuple[int, ...]
    state: RowPrefix
    attention: RunningStatistics
    no_speech_prob: float

    def applies_to(self, tokens: tuple[int, ...], n_frames: int) -> bool:
        n_cached = len(self.tokens)
        fits = self.attention.mean.shape[-1] <= n_frames
        return fits and n_cached < len(tokens) and tokens[:n_cached] == self.tokens


class StopReason(Enum):
    END_OF_TEXT = "end of text"
    FRONTIER = "attended too near to the end of the audio"
    REWOUND = "attention jumped back"
    REPEATED = "fell into a loop"
    FULL = "no room for more tokens"


@dataclass(frozen=True, slots=True)
class AlignAttHypothesis:
    """The text tokens that one decode found after its prefix.

    frames: attended to most at each token. logprobs: in nats. avg_logprob: mean over tokens and end.
    held_back_token: rejected near the end of the audio. mean_score: avg_logprob plus language model scores.
    prefix_cache, text_end: if requested.
    """

    tokens: tuple[int, ...]
    frames: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    avg_logprob: float = 0.0
    held_back_token: int | None = None
    no_speech_prob: float = 0.0
    mean_score: float = 0.0
    prefix_cache: PrefixCache | None = field(default=None, compare=False)
    text_end: TextEnd | None = None

    def followed_by(self, others: AlignAttHypothesis) -> AlignAttHypothesis:
        """Return the hypothesis with its held-back token and those decoded after it."""
        held_back = () if self.held_back_token is None else (self.held_back_token,)
        frames = (*self.frames, *self.frames[-1:] * len(held_back), *others.frames)
        return replace(
            self,
            tokens=(*self.tokens, *held_back, *others.tokens),
            frames=frames if self.frames else (0,) * len(held_back) + others.frames,
            logprobs=(*self.logprobs, *(0.0 for _ in held_back), *others.logprobs),
            stop_reason=others.stop_reason,
        )

    @property
    def is_stuck(self) -> bool:
        return self.stop_reason in (StopReason.REWOUND, StopReason.REPEATED)

    @property
    def ranking_score(self) -> float:
        """`mean_score`, or -inf if the beam stopped before the first token."""
        has_score = bool(self.logprobs) or self.stop_reason is StopReason.END_OF_TEXT
        return self.mean_score if has_score else -math.inf


@dataclass(frozen=True, slots=True)
class BeamPath:
    """The tokens of one beam. score, lm_score: sums of log-probabilities."""

    tokens: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    score: float = 0.0
    lm_score: float = 0.0

    @property
    def total_score(self) -> float:
        return self.score + self.lm_score

    def extended(self, token: int, frame: int, logprob: float, lm_score: float = 0.0) -> BeamPath:
        return BeamPath(
            (*self.tokens, token),
            (*self.frames, frame),
            (*self.logprobs, logprob),
            self.score + logprob,
            self.lm_score + lm_score,
        )

    def stopped(
        self, stop_reason: StopReason, *, n_tokens: int | None = None, held_back_token: int | None = None
    ) -> AlignAttHypothesis:
        part = slice(None, n_tokens)
        return AlignAttHypothesis(
            tokens=self.tokens[part],
            frames=self.frames[part],
            logprobs=self.logprobs[part],
            stop_reason=stop_reason,
            avg_logprob=self.score / max(1, len(self.tokens)),
            held_back_token=held_back_token,
            mean_score=self.total_score / max(1, len(self.tokens)),
        )


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a beam stops.

    frame_threshold: at a token attended this close to the end of the audio; 0: never, inf: at the first.
    rewind_threshold: at a jump back of attention by more frames. max_repeats: see `count_looped`.
    committed_until: end frame of the committed words, or None.
    """

    frame_threshold: float = 25
    rewind_threshold: int = 200
    max_repeats: int = 4
    max_tokens: int = 224
    committed_until: int | None = None

    def at_frontier(self, frame: int, n_frames: int) -> bool:
        return n_frames - frame <= self.frame_threshold

    def rewound(self, frame: int, last_frame: int | None) -> bool:
        return last_frame is not None and last_frame - frame > self.rewind_threshold

    def stopped_by_attention(
        self, path: BeamPath, frame: int, n_frames: int, token: int
    ) -> AlignAttHypothesis | None:
        """Return the hypothesis of a path that stops before `token`, attended at `frame`; else None."""
        if self.rewound(frame, path.frames[-1] if path.frames else self.committed_until):
            return path.stopped(StopReason.REWOUND)
        if self.at_frontier(frame, n_frames):
            return path.stopped(StopReason.FRONTIER, held_back_token=token)
        return None

    def stopped_by_loop(self, path: BeamPath, committed: Sequence[int] = ()) -> AlignAttHypothesis | None:
        """Return the hypothesis of a path in a loop, without the repeats; else None."""
        n_looped = count_looped((*committed, *path.tokens), self.max_repeats)
        if not n_looped:
            return None
        return path.stopped(StopReason.REPEATED, n_tokens=max(0, len(path.tokens) - n_looped))


def max_tokens_in(seconds: float) -> int:
    return max(1, min(MAX_TOKENS, 10 + math.ceil(TOKENS_PER_SECOND * max(0.0, seconds))))


def count_looped(tokens: Sequence[int], max_repeats: int) -> int:
    """Count the tokens at the end that belong to a loop.

    A loop is a block of at least 8 tokens that occurs more than `max_repeats` times, counted without the
    first, or, if `max_repeats` is below 32, a run of at least 32 tokens with at most 8 different ones.
    """
    n_repeated = count_repeated(tokens, max_repeats, least=8)
    return n_repeated or (count_babbled(tokens) if max_repeats < BABBLE_TOKENS else 0)


def count_repeated(items: Sequence[object], max_repeats: int, *, least: int = 1) -> int:
    """Count the items at the end that repeat a block of 1 to 24 items before them.

    0 unless the block occurs more than `max_repeats` times in a row, with at least `least` items in all.
    """
    for period in range(1, min(24, len(items) // 2) + 1):
        n_same = 0
        while n_same + period < len(items) and items[-1 - n_same] == items[-1 - n_same - period]:
            n_same += 1
        if n_same + period >= max(least, period * (max_repeats + 1)):
            return n_same
    return 0


def count_babbled(tokens: Sequence[int]) -> int:
    n = BABBLE_TOKENS
    if len(tokens) < n or len(set(tokens[-n:])) > BABBLE_DISTINCT:
        return 0
    while n < len(tokens) and len(set(tokens[-n - 1 :])) <= BABBLE_DISTINCT:
        n += 1
    return n


SPREAD_FLOOR = 0.1
"""Added to the standard deviation, as a fraction of uniform attention: without it, all frames of a peak that
only one token attends to have the same z-score.
"""


class AttentionTracker:
    """The frame that each decoder row attends to most.

    As for word times, each head's attention is normalised over tokens, median-filtered over frames and
    averaged over heads. Running statistics (R, n_heads, n_frames) keep the work per token constant.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._lengths: list[int] = []  # frames that hold audio
        self._n_frames = torch.zeros(0, dtype=torch.int64)  # the same, on the device of the statistics
        self._statistics: RunningStatistics | None = None
        self._last = torch.zeros(0)  # (R, n_heads, 1, longest), of each row's newest token

    @property
    def n_rows(self) -> int:
        return len(self._lengths)

    @property
    def _longest(self) -> int:
        return max(self._lengths)

    def admit(self, n_frames: int, attention: Tensor, cached: RunningStatistics | None = None) -> None:
        """Add a row with the attention (n_heads, n_tokens, n_frames or more) of its first tokens.

        n_frames: of audio. cached: see `statistics_of`.
        """
        new = statistics_of(attention, n_frames, cached)
        last = attention[None, :, -1:, :n_frames].float()
        count = torch.tensor([n_frames], device=last.device)
        others = self._statistics
        self._lengths.append(n_frames)
        if others is None:
            self._n_frames, self._statistics, self._last = count, new, last
            return
        self._n_frames = torch.cat([self._n_frames, count])
        self._last = self._joined(self._last, last)
        self._statistics = RunningStatistics(
            torch.cat([others.n_tokens, new.n_tokens]),
            self._joined(others.mean, new.mean),
            self._joined(others.squares, new.squares),
        )

    def extend(self, attention: Sequence[Tensor], joined: Tensor | None = None) -> None:
        """Add the attention (n_heads, 1, n_frames or more) of one new token of each row.

        joined: the same as one tensor (n_heads, R, the most frames or more), or None.
        """
        assert self._statistics is not None
        if joined is None:
            newest = torch.stack([self._cut(one.float()) for one in attention])
        else:
            newest = self._cut(joined.transpose(0, 1)[:, :, None].float())
        counted = newest.new_ones(self.n_rows, 1, 1)
        self._statistics, self._last = self._statistics.updated(newest, counted), newest

    def select(self, rows: Sequence[int]) -> None:
        if not rows:
            self._forget()
            return
        assert self._statistics is not None
        index = torch.tensor(rows, device=self._last.device)
        self._lengths = [self._lengths[row] for row in rows]
        self._n_frames = self._n_frames[index]
        self._last = self._cut(self._last[index])
        chosen = self._statistics.select(index)
        self._statistics = RunningStatistics(
            chosen.n_tokens, self._cut(chosen.mean), self._cut(chosen.squares)
        )

    def frontier(self) -> Tensor:
        """Return the frame (R,) int64 that each row's newest token attends to most."""
        assert self._statistics is not None
        statistics, last, n_frames = self._statistics, self._last, self._n_frames
        floor = SPREAD_FLOOR / n_frames[:, None, None]  # (R, 1, 1)
        score = statistics.normalize(last, floor=floor)
        several = statistics.n_tokens.unsqueeze(-2) > 1
        frames = torch.arange(self._longest, device=score.device)
        ends = n_frames[:, None, None]
        beyond = frames >= ends  # (R, 1, n_frames)
        # The filter mirrors at the end: a shorter row at its own end.
        mirrored = torch.where(beyond, (2 * (ends - 1) - frames).clamp(min=0), frames)
        score = torch.where(several, score, last)
        score = score.gather(-1, mirrored[:, :, None].expand_as(score))
        score = mean_over_heads(median_filter(score))  # (R, 1, n_frames)
        return score.masked_fill(beyond, -torch.inf).argmax(dim=-1)[:, 0]

    def _joined(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.cat([self._cut(old), self._cut(new)])

    def _cut(self, rows: Tensor) -> Tensor:
        """Cut or pad rows (..., n) to the longest."""
        return F.pad(rows[..., : self._longest], (0, max(0, self._longest - rows.shape[-1])))


def statistics_of(
    attention: Tensor, n_frames: int, cached: RunningStatistics | None = None
) -> RunningStatistics:
    """Return statistics (1, n_heads, n_frames) of attention (n_heads, n_tokens, n_frames or more).

    cached: of earlier tokens, over at most as many frames; or None.
    """
    rows = attention[None, ..., :n_frames].float()
    counted = rows.new_ones(1, 1, rows.shape[2])
    if cached is None:
        return RunningStatistics.of(rows, counted)
    more = (0, n_frames - cached.mean.shape[-1])
    widened = RunningStatistics(cached.n_tokens, F.pad(cached.mean, more), F.pad(cached.squares, more))
    return widened.updated(rows, counted) if rows.shape[2] else widened


FEW = 0.25
"""Up to this fraction of the vocabulary, selecting rows is cheaper than computing all."""


_VOCABULARIES = threading.Lock()


@dataclass(frozen=True, eq=False)
class LiveVocabulary:
    """Token ids of live decoding.

    ids: (n,) int64 ascending, allowed tokens, <|endoftext|> last. blank: (m,) positions in `ids` that may not
    begin a text. marks: (2, n) bool, marks that end sentences, and others. others: (k,) int64, <|nospeech|>
    and languages, predicted at <|startoftranscript|>. n_vocab: rows of the model.
    """

    ids: Tensor
    blank: Tensor
    marks: Tensor
    others: Tensor
    n_vocab: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, n_vocab: int, device: torch.device) -> LiveVocabulary:
        """Return the vocabulary of a model with n_vocab rows, one object for all sessions.

        Unlike offline, <|endoftext|> may come first: forbidding it invites hallucination.
        """
        with _VOCABULARIES:
            return cls._made(tokenizer, n_vocab, device)

    @classmethod
    @lru_cache(maxsize=8)
    def _made(cls, tokenizer: Tokenizer, n_vocab: int, device: torch.device) -> LiveVocabulary:
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
        texts = [tokenizer.token_bytes(token).decode(errors="replace").strip() for token in ids[:-1].tolist()]
        kinds = torch.tensor([*map(mark_kind, texts), 0], device=device)
        marks = torch.stack((kinds == 1, kinds == 2))
        return cls(ids.to(device), blank.to(device), marks, others.to(device), n_vocab)

    @cached_property
    def rows(self) -> Tensor | None:
        """Rows (n + k,) to compute in a step; None: all of the model."""
        few = len(self.ids) + len(self.others) <= FEW * self.n_vocab
        return torch.cat((self.ids, self.others)) if few else None

    def no_speech_probs(self, logits: Tensor) -> list[float]:
        """Return P(<|nospeech|>) of each row of logits (R, n_rows) at <|startoftranscript|>."""
        if not len(self.others):
            return [0.0] * len(logits)
        column = int(self.others[0]) if self.rows is None else len(self.ids)
        found: list[float] = logits.float().softmax(dim=-1)[:, column].tolist()
        return found

    def text_end(self, logits: Tensor) -> TextEnd:
        """Return how the text goes on, from the logits (1, n_rows) after its last word."""
        probs = self.log_probs(logits.float())[0].exp()
        sentence, other = (probs * self.marks).sum(dim=-1).tolist()
        return TextEnd(sentence, other, float(probs[-1]))

    def log_probs(self, logits: Tensor, *, first: Sequence[int] = ()) -> Tensor:
        """Return the log-probabilities (R, n) of `ids` from logits (R, n_rows).

        first: indices of rows whose next token begins a text.
        """
        whole = self.rows is None
        chosen = logits.index_select(1, self.ids) if whole else logits[:, : len(self.ids)].clone()
        if first and len(self.blank):
            rows = torch.tensor(first, device=chosen.device)
            chosen[rows[:, None], self.blank] = FORBIDDEN
        return chosen.log_softmax(dim=-1)


def mark_kind(text: str) -> int:
    """Return 1 for punctuation that ends a sentence, 2 for any other, else 0."""
    if not text or "\ufffd" in text or any(map(str.isalnum, text)):
        return 0
    return 1 if text.rstrip("\"'»”’)")[-1:] in SENTENCE_ENDS and not text.startswith(("..", "…")) else 2


@dataclass(frozen=True, slots=True, eq=False)
class AlignAttRequest:
    """Decode one window after a prefix.

    n_recomputed: return a `PrefixCache` without this many tokens at the end; None: return none. measures_end:
    return the `TextEnd` of the prefix.
    """

    prefix: DecoderPrefix
    rules: StopRules
    prefix_cache: PrefixCache | None = None
    n_recomputed: int | None = None
    measures_end: bool = False


NextTokens: TypeAlias = tuple[int, list[tuple[int, float, float]]]
"""The frame that a beam attends to most; its best next tokens with log-probabilities and LM scores."""


class ActiveRequest:
    """One request of a batch: its beams, which are decoder rows, and its finished hypotheses."""

    def __init__(
        self, ticket: int, decoder: AlignAttDecoder, request: AlignAttRequest, n_frames: int
    ) -> None:
        room = max(0, decoder.backend.dims.n_text_ctx - len(request.prefix.tokens))
        self.ticket = ticket
        self.prefix = request.prefix
        self.n_frames = n_frames
        self.paths = [BeamPath()]
        self.is_new = True
        cache = request.prefix_cache
        self.cache = cache if cache and cache.applies_to(self.prefix.tokens, n_frames) else None
        self.no_speech_prob = 0.0 if self.cache is None else self.cache.no_speech_prob
        self.lm_rows = decoder.lm_rows(request.prefix.committed)
        self.prefix_statistics: RunningStatistics | None = None
        self.measures_end = request.measures_end
        self.text_end: TextEnd | None = None
        self._new_cache: PrefixCache | None = None
        self._n_recomputed = request.n_recomputed
        self._beam_size = decoder.beam_size
        self._eot = decoder.eot
        self._device = decoder.backend.device
        self._rules = request.rules
        self._most_tokens = min(room, request.rules.max_tokens)
        self._finished: list[AlignAttHypothesis] = []

    @property
    def n_candidates(self) -> int:
        return self._beam_size + 1 if self._beam_size > 1 else 1

    @property
    def n_cached(self) -> int:
        return 0 if self.cache is None else len(self.cache.tokens)

    @property
    def n_to_cache(self) -> int:
        if self._n_recomputed is None:
            return 0
        return max(self.n_cached, len(self.prefix.tokens) - max(1, self._n_recomputed))

    @property
    def computes_sot(self) -> bool:
        return self.prefix.sot >= self.n_cached

    @property
    def hypothesis(self) -> AlignAttHypothesis:
        best = max(self._finished, key=lambda one: one.ranking_score)
        return replace(
            best,
            no_speech_prob=self.no_speech_prob,
            prefix_cache=self._new_cache,
            text_end=self.text_end,
        )

    def save_cache(self, state: RowPrefix | None) -> None:
        if state is not None and self.prefix_statistics is not None:
            tokens = self.prefix.tokens[: self.n_to_cache]
            self._new_cache = PrefixCache(tokens, state, self.prefix_statistics, self.no_speech_prob)

    def extend(self, candidates: Sequence[NextTokens]) -> list[int]:
        """Stop or extend every beam; return the parent of each new beam, none at the end."""
        paths, self.paths = self.paths, []
        if len(paths[0].tokens) >= self._most_tokens:
            if not self._finished:
                self._finished.append(paths[0].stopped(StopReason.FULL))
            return []
        extended: list[tuple[BeamPath, int]] = []
        for parent, (path, (frame, following)) in enumerate(zip(paths, candidates, strict=True)):
            if not self._is_done and not self._stops(path, frame, following[0][0]):
                for token, *scores in following[: self.n_candidates]:
                    extended.append((path.extended(token, frame, *scores), parent))
        best = self._prune(extended)
        self.paths = [path for path, _ in best]
        parents = [parent for _, parent in best]
        newest = [path.tokens[-1] for path in self.paths]
        if self.lm_rows is not None and parents:
            self.lm_rows.advance(*(torch.tensor(ids, device=self._device) for ids in (parents, newest)))
        return parents

    @property
    def _is_done(self) -> bool:
        return len(self._finished) >= self._beam_size

    def _stops(self, path: BeamPath, frame: int, token: int) -> bool:
        if token == self._eot:
            return False
        stopped = self._rules.stopped_by_attention(path, frame, self.n_frames, token)
        if stopped is not None:
            self._finished.append(stopped)
        return stopped is not None

    def _prune(self, extended: list[tuple[BeamPath, int]]) -> list[tuple[BeamPath, int]]:
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
    """Beam search; beam_size 1 is greedy. A request is done when beam_size beams have stopped."""

    backend: Backend
    eot: int
    vocabulary: LiveVocabulary
    beam_size: int = 1
    fusion: Fusion[Tensor] | None = None

    @property
    def batch_key(self) -> LiveVocabulary:
        return self.vocabulary

    def new_batch(self) -> AlignAttBatch:
        return AlignAttBatch(self.backend, self.vocabulary)

    def decode(
        self, encoded: Sequence[EncoderOutput], requests: Sequence[AlignAttRequest]
    ) -> list[AlignAttHypothesis]:
        """Decode requests, each over its window (a batch of 1); results do not depend on the batch."""
        batch = self.new_batch()
        tickets = [batch.admit(self, one, request) for one, request in zip(encoded, requests, strict=True)]
        found: dict[int, AlignAttHypothesis] = {}
        while batch.n_requests:
            found.update(batch.step())
        return [found[ticket] for ticket in tickets]

    def lm_rows(self, committed: Sequence[int]) -> FusedRowScores[Tensor] | None:
        if self.fusion is None:
            return None
        rows = FusedRowScores(self.fusion, 1, self.eot, self.backend.device)
        for token in committed:
            rows.advance(*(torch.tensor([number], device=self.backend.device) for number in (0, token)))
        return rows


class AlignAttBatch:
    """Requests that are decoded together (continuous batching).

    A step computes the prefixes of new requests and the newest token of all other beams in one pass. Decoders
    may differ in beam size and language models.
    """

    def __init__(self, backend: Backend, vocabulary: LiveVocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._rows = backend.rows()
        self._tracker = AttentionTracker()
        self._active: list[ActiveRequest] = []
        self._n_admitted = 0

    @property
    def n_requests(self) -> int:
        return len(self._active)

    def has_room(self, n_windows: int) -> bool:
        return self._rows.has_room(n_windows)

    @torch.inference_mode()
    def admit(self, decoder: AlignAttDecoder, encoded: EncoderOutput, request: AlignAttRequest) -> int:
        """Add a request; return the ticket of its hypothesis."""
        assert decoder.vocabulary is self._vocabulary, "one vocabulary for all requests of a batch"
        active = ActiveRequest(self._n_admitted, decoder, request, encoded.n_content_frames[0])
        self._rows.admit(encoded, None if active.cache is None else active.cache.state)
        self._active.append(active)
        self._n_admitted += 1
        return active.ticket

    @torch.inference_mode()
    def step(self) -> list[tuple[int, AlignAttHypothesis]]:
        """Run one decoder step; return the tickets and hypotheses of finished requests.

        After an error, none of the requests can continue.
        """
        candidates = iter(self._next_tokens(self._compute()))
        finished: list[tuple[int, AlignAttHypothesis]] = []
        rows: list[int] = []
        at = 0
        for one in self._active:
            n_rows = len(one.paths)
            rows += [at + parent for parent in one.extend([next(candidates) for _ in one.paths])]
            if not one.paths:
                if one.n_to_cache:
                    one.save_cache(self._rows.prefix_of(at, one.n_to_cache))
                finished.append((one.ticket, one.hypothesis))
            at += n_rows
        self._active = [one for one in self._active if one.paths]
        if rows != list(range(at)):
            self._rows.select(rows)
            self._tracker.select(rows)
        return finished

    def _compute(self) -> Tensor:
        tokens: list[Sequence[int]] = []
        positions: list[Sequence[int]] = []
        for one in self._active:
            if one.is_new:
                unread = one.prefix.tokens[one.n_cached :]
                first = [one.prefix.sot - one.n_cached] if one.computes_sot else []
                tokens.append(unread)
                positions.append([*first, len(unread) - 1])
            else:
                tokens += [path.tokens[-1:] for path in one.paths]
                positions += [[0]] * len(one.paths)
        heads, vocabulary = self._backend.alignment_heads, self._vocabulary
        output = self._rows.step(tokens, positions, vocabulary=vocabulary.rows, capture=heads)
        n_old = self._tracker.n_rows
        if n_old:
            joined = None if output.joined is None else output.joined[:, :n_old]
            self._tracker.extend(output.attention[:n_old], joined)
        attention = iter(output.attention[n_old:])
        after: list[int] = []
        at_sot: dict[int, ActiveRequest] = {}
        at = 0
        for one in self._active:
            if one.is_new and one.computes_sot:
                at_sot[at] = one
                at += 1
            after += range(at, at + len(one.paths))
            at += len(one.paths)
        if not at_sot:
            logits = output.logits
        else:
            logits = _rows(output.logits, after)
            found = vocabulary.no_speech_probs(_rows(output.logits, list(at_sot)))
            for one, probability in zip(at_sot.values(), found, strict=True):
                one.no_speech_prob = probability
        at = 0
        for one in self._active:
            if one.is_new:
                self._begin(one, next(attention))
                if one.measures_end:
                    one.text_end = vocabulary.text_end(logits[at : at + 1])
            at += len(one.paths)
        return logits

    def _begin(self, one: ActiveRequest, attention: Tensor) -> None:
        one.is_new = False
        cached = None if one.cache is None else one.cache.attention
        self._tracker.admit(one.n_frames, attention, cached)
        if one.n_to_cache:
            n_new = one.n_to_cache - one.n_cached
            one.prefix_statistics = statistics_of(attention[:, :n_new], one.n_frames, cached)

    def _next_tokens(self, logits: Tensor) -> list[NextTokens]:
        paths = [path for one in self._active for path in one.paths]
        first = [place for place, path in enumerate(paths) if not path.tokens]
        log_probs = self._vocabulary.log_probs(logits.float(), first=first)
        n_best = max(one.n_candidates for one in self._active)
        lm_scores = _lm_scores(self._active, log_probs, self._vocabulary)
        best = (log_probs if lm_scores is None else log_probs + lm_scores).topk(n_best, dim=-1).indices
        logprobs = log_probs.gather(1, best)
        added = torch.zeros_like(logprobs) if lm_scores is None else lm_scores.gather(1, best)
        frames, tokens = self._tracker.frontier().to(logprobs), self._vocabulary.ids[best].to(logprobs)
        values = torch.stack([tokens, logprobs, added], dim=2).flatten(1)
        rows = torch.cat([frames[:, None], values], dim=1).tolist()  # one transfer from the device
        return [
            (int(row[0]), [(int(row[i]), row[i + 1], row[i + 2]) for i in range(1, len(row), 3)])
            for row in rows
        ]


def _rows(logits: Tensor, places: Sequence[int]) -> Tensor:
    return logits.index_select(0, torch.tensor(places, device=logits.device))


def _lm_scores(
    active: Sequence[ActiveRequest], log_probs: Tensor, vocabulary: LiveVocabulary
) -> Tensor | None:
    if all(one.lm_rows is None for one in active):
        return None
    nothing = log_probs.new_zeros(len(log_probs), vocabulary.n_vocab)
    parts = zip(active, nothing.split_with_sizes([len(one.paths) for one in active]), strict=True)
    scores = [part if one.lm_rows is None else one.lm_rows.add_to(part) for one, part in parts]
    return torch.cat(scores).index_select(1, vocabulary.ids)
