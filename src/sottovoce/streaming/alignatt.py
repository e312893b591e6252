"""AlignAtt: decode until the attention is too close to the end of the audio.

A token is accepted if the frame (20 ms) that the decoder attends to most is far enough from the end.

Sources: Papi et al. 2023, https://arxiv.org/abs/2305.11408; Simul-Whisper: Wang et al. 2024,
https://arxiv.org/abs/2406.10052.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from sottovoce.decoding.alignment import RunningStatistics, median_filter
from sottovoce.decoding.filters import LiveVocabulary
from sottovoce.decoding.search import SPREAD_FLOOR, AlignAttEnd, FusedRowScores, Fusion, best_tokens
from sottovoce.models.backend import (
    Backend,
    EncoderOutput,
    RowPrefix,
    RunningRows,
    StepEnd,
    StepGroup,
    StepPart,
    ending_rows,
)
from sottovoce.options.decoding import LONGEST_BLOCK, count_repeated
from sottovoce.streaming.options import TextEnd
from sottovoce.types import Floats, Ints

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

    statistics: kept by `AlignAttEnd`, over n_frames.
    """

    tokens: tuple[int, ...]
    state: RowPrefix
    statistics: object
    n_frames: int
    no_speech_prob: float

    def applies_to(self, tokens: tuple[int, ...], n_frames: int) -> bool:
        n_cached = len(self.tokens)
        return self.n_frames <= n_frames and n_cached < len(tokens) and tokens[:n_cached] == self.tokens


class StopReason(Enum):
    END_OF_TEXT = "end of text"
    FRONTIER = "attended too near to the end of the audio"
    REWOUND = "attention jumped back"
    REPEATED = "fell into a loop"
    FULL = "no room for more tokens"


@dataclass(frozen=True, slots=True)
class AlignAttHypothesis:
    """The text tokens that one decode found after its prefix.

    frames: attended to most at each token. avg_logprob: mean over tokens and end. held_back_token: rejected
    near the end of the audio. mean_score: avg_logprob plus language model scores.
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


class BeamPath(NamedTuple):
    """The tokens of one beam: the last n_tokens of `text`, behind the committed ones.

    frame, logprob: of the newest token, where it attends to most. score, lm_score: sums of log-probabilities.
    before: the path without the newest token.
    """

    text: tuple[int, ...]
    frame: float
    n_tokens: int = 0
    logprob: float = 0.0
    score: float = 0.0
    lm_score: float = 0.0
    before: BeamPath | None = None

    @property
    def mean_score(self) -> float:
        return (self.score + self.lm_score) / max(1, self.n_tokens)

    def steps(self) -> list[BeamPath]:
        """Return the paths that end with each token."""
        steps, path = [self] * self.n_tokens, self
        for place in reversed(range(self.n_tokens)):
            assert path.before is not None, "a path has as many before it as tokens"
            steps[place], path = path, path.before
        return steps


class StoppedBeam(NamedTuple):
    """A beam that is decoded no further. n_tokens: those that count, from the first."""

    path: BeamPath
    stop_reason: StopReason
    n_tokens: int
    held_back_token: int | None = None

    @property
    def ranking_score(self) -> float:
        """The mean score, or -inf if the beam stopped before the first token."""
        has_score = self.n_tokens or self.stop_reason is StopReason.END_OF_TEXT
        return self.path.mean_score if has_score else -math.inf


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a beam stops.

    frame_threshold: at a token attended this close to the end of the audio. rewind_threshold: at a jump back
    of attention by more frames. max_repeats: see `count_looped`. committed_until: end frame of the committed
    words.
    """

    frame_threshold: float = 25
    rewind_threshold: int = 200
    max_repeats: int = 4
    max_tokens: int = 224
    committed_until: int | None = None

    def at_frontier(self, frame: int, n_frames: int) -> bool:
        return n_frames - frame <= self.frame_threshold


def max_tokens_in(seconds: float) -> int:
    return max(1, min(MAX_TOKENS, 10 + math.ceil(TOKENS_PER_SECOND * max(0.0, seconds))))


def count_looped(tokens: Sequence[int], max_repeats: int) -> int:
    """Count the tokens at the end that belong to a loop.

    A loop is a block of at least 8 tokens that occurs more than `max_repeats` times; its first occurrence
    does not count. If `max_repeats` is below 32, so is a run of at least 32 tokens with at most 8 different
    ones.
    """
    n, n_repeated = BABBLE_TOKENS, 0
    if tokens and tokens[-1] in tokens[-LONGEST_BLOCK - 1 : -1]:
        n_repeated = count_repeated(tokens, max_repeats, least=8)
    if n_repeated or len(tokens) < n or max_repeats >= n:
        return n_repeated
    if len({*tokens[-BABBLE_DISTINCT - 1 :]}) > BABBLE_DISTINCT or len({*tokens[-n:]}) > BABBLE_DISTINCT:
        return 0
    while n < len(tokens) and len(set(tokens[-n - 1 :])) <= BABBLE_DISTINCT:
        n += 1
    return n


def frontier(statistics: RunningStatistics, last: Floats, n_frames: Ints) -> Ints:
    """Return the frame (R,) int64 that the newest token of each row attends to most.

    As for word times, each head's attention is normalised over tokens, median-filtered over frames and
    averaged over heads.

    statistics: (R, n_heads, n), of all tokens. last: attention (R, n_heads, 1, n) of the newest. n_frames:
    (R,) int64, of audio; what lies behind changes nothing.
    """
    ends = n_frames[:, None, None]  # (R, 1, 1)
    score = statistics.normalize(last, floor=(SPREAD_FLOOR / ends).astype(np.float32))
    score = np.where(statistics.n_tokens[..., None, :] > 1, score, last)
    frames = np.arange(last.shape[-1])
    beyond = frames >= ends  # (R, 1, n)
    if beyond.any():
        # The filter mirrors at the end: a shorter row at its own end.
        mirrored = np.where(beyond, np.maximum(2 * (ends - 1) - frames, 0), frames)
        score = np.take_along_axis(score, mirrored[:, :, None], axis=-1)
    score = median_filter(score).mean(axis=-3)  # (R, 1, n)
    attended: Ints = np.where(beyond, -np.inf, score).argmax(axis=-1)[:, 0]
    return attended


@dataclass(frozen=True, slots=True, eq=False)
class AlignAttRequest:
    """Decode one window after a prefix.

    n_recomputed: return a `PrefixCache` without this many tokens at the end. measures_end: return the
    `TextEnd`.
    """

    prefix: DecoderPrefix
    rules: StopRules
    prefix_cache: PrefixCache | None = None
    n_recomputed: int | None = None
    measures_end: bool = False


class NextTokens(NamedTuple):
    """Of each beam the frame that it attends to most, its best next tokens, their log-probabilities and the
    scores of language models; None: there are none.
    """

    frames: list[int]
    tokens: list[list[int]]
    logprobs: list[list[float]]
    lm_scores: list[list[float]] | None


@dataclass(eq=False)
class ActiveRequest:
    """A request of a batch: its beams, which are decoder rows, and the best of those that stopped."""

    ticket: int
    decoder: AlignAttDecoder
    request: AlignAttRequest
    n_frames: int

    def __post_init__(self) -> None:
        self.prefix, cache = self.request.prefix, self.request.prefix_cache
        committed, until = self.prefix.committed, self.request.rules.committed_until
        self.paths = [BeamPath(committed, -math.inf if until is None else until)]
        self.is_new = True
        beam_size = self.decoder.beam_size
        self.n_candidates = beam_size + 1 if beam_size > 1 else 1
        self.cache = cache if cache and cache.applies_to(self.prefix.tokens, self.n_frames) else None
        self.n_cached = 0 if self.cache is None else len(self.cache.tokens)
        n_recomputed, self.n_to_cache = self.request.n_recomputed, 0
        if n_recomputed is not None:
            self.n_to_cache = max(self.n_cached, len(self.prefix.tokens) - max(1, n_recomputed))
        self.no_speech_prob = 0.0 if self.cache is None else self.cache.no_speech_prob
        self.lm_rows = self.decoder.lm_rows(committed)
        self.prefix_statistics: object = None
        self.text_end: TextEnd | None = None
        self._new_cache: PrefixCache | None = None
        room = max(0, self.decoder.backend.dims.n_text_ctx - len(self.prefix.tokens))
        self._most_tokens = min(room, self.request.rules.max_tokens)
        self._n_stopped, self._best_score = 0, -math.inf
        self._best = StoppedBeam(self.paths[0], StopReason.FULL, 0)

    @property
    def computes_sot(self) -> bool:
        return self.prefix.sot >= self.n_cached

    @property
    def hypothesis(self) -> AlignAttHypothesis:
        best, path = self._best, self._best.path
        steps = path.steps()[: best.n_tokens]
        return AlignAttHypothesis(
            path.text[len(path.text) - path.n_tokens :][: best.n_tokens],
            tuple([int(step.frame) for step in steps]),
            tuple([step.logprob for step in steps]),
            best.stop_reason,
            avg_logprob=path.score / max(1, path.n_tokens),
            held_back_token=best.held_back_token,
            no_speech_prob=self.no_speech_prob,
            mean_score=path.mean_score,
            prefix_cache=self._new_cache,
            text_end=self.text_end,
        )

    def begin(self, at_prefix: Sequence[float]) -> None:
        """Note what was found at the prefix: P(<|nospeech|>) and the numbers of a `TextEnd`."""
        self.is_new = False
        if self.computes_sot:
            self.no_speech_prob = at_prefix[0]
        if self.request.measures_end:
            self.text_end = TextEnd(*at_prefix[1:])

    def save_cache(self, state: RowPrefix | None) -> None:
        if state is not None and self.prefix_statistics is not None:
            tokens = self.prefix.tokens[: self.n_to_cache]
            self._new_cache = PrefixCache(
                tokens, state, self.prefix_statistics, self.n_frames, self.no_speech_prob
            )

    def extend(self, first: int, following: NextTokens) -> list[int]:
        """Extend the beams, which are the rows from `first` on, or stop them; return the rows that go on."""
        paths, rules, n = self.paths, self.request.rules, self.n_candidates
        eot, beam_size = self.decoder.eot, self.decoder.beam_size
        self.paths, rows = [], list[int]()
        if paths[0].n_tokens >= self._most_tokens:
            if not self._n_stopped:
                self._stop(paths[0], StopReason.FULL)
            return rows
        totals: list[float] = []
        for row, path in enumerate(paths, first):
            if self._n_stopped >= beam_size:
                break
            frame, token = following.frames[row], following.tokens[row][0]
            if token != eot and path.frame - frame > rules.rewind_threshold:
                self._stop(path, StopReason.REWOUND)
                totals += [-math.inf] * n
            elif token != eot and self.n_frames - frame <= rules.frame_threshold:
                self._stop(path, StopReason.FRONTIER, held_back=token)
                totals += [-math.inf] * n
            elif following.lm_scores is None:
                score = path.score
                totals += [score + logprob for logprob in following.logprobs[row][:n]]
            else:
                scores = zip(following.logprobs[row][:n], following.lm_scores[row], strict=False)
                totals += [(path.score + logprob) + (path.lm_score + lm) for logprob, lm in scores]
        while len(rows) < beam_size and (total := max(totals, default=-math.inf)) > -math.inf:
            place = totals.index(total)
            totals[place] = -math.inf
            beam, choice = divmod(place, n)
            row, path = first + beam, paths[beam]
            token, logprob = following.tokens[row][choice], following.logprobs[row][choice]
            text, n_tokens = (*path.text, token), path.n_tokens + 1
            lm_score = (
                path.lm_score
                if following.lm_scores is None
                else path.lm_score + following.lm_scores[row][choice]
            )
            extended = BeamPath(
                text, following.frames[row], n_tokens, logprob, path.score + logprob, lm_score, path
            )
            if token == eot:
                self._stop(extended, StopReason.END_OF_TEXT, 1)
            elif n_looped := count_looped(text, rules.max_repeats):
                self._stop(extended, StopReason.REPEATED, n_looped)
            else:
                self.paths.append(extended)
                rows.append(row)
        if self._n_stopped >= beam_size:
            self.paths, rows = [], []
        if self.lm_rows is not None and rows:
            newest = [path.text[-1] for path in self.paths]
            self.lm_rows.advance(np.array(rows) - first, np.array(newest))
        return rows

    def _stop(self, path: BeamPath, reason: StopReason, n_cut: int = 0, held_back: int | None = None) -> None:
        """Stop a beam, of whose tokens n_cut at the end do not count; keep the best one."""
        stopped = StoppedBeam(path, reason, max(0, path.n_tokens - n_cut), held_back)
        score = stopped.ranking_score
        if not self._n_stopped or score > self._best_score:
            self._best, self._best_score = stopped, score
        self._n_stopped += 1


@dataclass(frozen=True, slots=True)
class AlignAttDecoder:
    """Beam search; beam_size 1 is greedy. A request is done when beam_size beams have stopped."""

    backend: Backend
    eot: int
    vocabulary: LiveVocabulary
    beam_size: int = 1
    fusion: Fusion | None = None

    @property
    def batch_key(self) -> LiveVocabulary:
        return self.vocabulary

    def new_batch(self) -> AlignAttBatch:
        return AlignAttBatch(self.backend, self.vocabulary)

    def lm_rows(self, committed: Sequence[int]) -> FusedRowScores | None:
        if self.fusion is None:
            return None
        rows = FusedRowScores(self.fusion, 1, self.eot)
        for token in committed:
            rows.advance(np.array([0]), np.array([token]))
        return rows


class AlignAttBatch:
    """Requests, each over its window (a batch of 1), that are decoded together (continuous batching).

    A step computes the prefixes of new requests and the newest token of all other beams in one pass.
    """

    def __init__(self, backend: Backend, vocabulary: LiveVocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._rows = backend.rows()
        self._steps = ending_rows(self._rows, AlignAttEnd(vocabulary, 1, ())) or AttendingRows(self._rows)
        self._heads = tuple(backend.alignment_heads)
        self._active: list[ActiveRequest] = []
        """New requests last."""
        self._places: list[int] = []
        """Of each row that is not new, where its statistics are in the state of the ends."""
        self._n_admitted = 0

    @property
    def n_requests(self) -> int:
        return len(self._active)

    def has_room(self, n_windows: int) -> bool:
        return self._rows.has_room(n_windows)

    def admit(self, decoder: AlignAttDecoder, encoded: EncoderOutput, request: AlignAttRequest) -> int:
        assert decoder.vocabulary is self._vocabulary, "one vocabulary for all requests of a batch"
        active = ActiveRequest(self._n_admitted, decoder, request, encoded.n_content_frames[0])
        self._rows.admit(encoded, None if active.cache is None else active.cache.state)
        self._active.append(active)
        self._n_admitted += 1
        return active.ticket

    def step(self) -> list[tuple[int, AlignAttHypothesis]]:
        """Run one decoder step; return the tickets and hypotheses of finished requests."""
        following = self._next_tokens()
        done: list[tuple[int, ActiveRequest]] = []
        rows: list[int] = []
        at = 0
        for request in self._active:
            n_rows = len(request.paths)
            rows += request.extend(at, following)
            if not request.paths:
                done.append((at, request))
            at += n_rows
        to_cache = [(row, request) for row, request in done if request.n_to_cache]
        if to_cache:
            states = self._rows.prefixes_of([(row, request.n_to_cache) for row, request in to_cache])
            for (_, request), state in zip(to_cache, states, strict=True):
                request.save_cache(state)
        self._active = [request for request in self._active if request.paths]
        if rows != list(range(at)):
            self._rows.select(rows)
            self._places = [self._places[row] for row in rows]
        return [(request.ticket, request.hypothesis) for _, request in done]

    def _next_tokens(self) -> NextTokens:
        new = [request for request in self._active if request.is_new]
        old = [request for request in self._active if not request.is_new for _ in request.paths]
        n_old, n_best = len(old), max([request.n_candidates for request in self._active])
        is_fused = any(request.lm_rows is not None for request in self._active)
        end = AlignAttEnd(self._vocabulary, n_best, self._heads, returns_log_probs=is_fused)
        tokens = [path.text[-1:] for request in self._active if not request.is_new for path in request.paths]
        tokens += [request.prefix.tokens[request.n_cached :] for request in new]
        groups, targets = [], list(range(1, n_old + 1))
        if old:
            columns = np.zeros((n_old, end.n_columns), np.int64)
            columns[:, 0], columns[:, 1], columns[:, 3] = self._places, targets, 1
            columns[:, 2] = [request.n_frames for request in old]
            groups.append(StepGroup(end, range(n_old), [(0,)] * n_old, columns))
        if new:
            first = 1 + max([n_old, *self._places])
            targets += range(first, first + len(new))
            groups.append(self._begin(new, n_old, first, end))
        (parts,) = self._steps.steps(tokens, groups)
        self._places = targets
        outputs = np.empty((len(tokens), 5 + 2 * n_best), np.float32)
        for part in parts:
            outputs[part.rows] = part.outputs[0][part.places]
            if part.kept:
                for row, kept in zip(part.rows, part.kept, strict=True):
                    new[row - n_old].prefix_statistics = kept
        for request, at_prefix in zip(new, outputs[n_old:, 1:5].tolist(), strict=True):
            request.begin(at_prefix)
        frames = outputs[:, 0].astype(np.int64).tolist()
        if is_fused:
            return NextTokens(frames, *self._with_language_models(parts, n_best))
        best = outputs[:, 5 : 5 + n_best].astype(np.int64).tolist()
        return NextTokens(frames, best, outputs[:, 5 + n_best :].tolist(), None)

    def _begin(self, new: Sequence[ActiveRequest], n_old: int, first: int, end: AlignAttEnd) -> StepGroup:
        """Return the group of new requests, whose statistics begin at `first` with those of their caches."""
        end = replace(end, reads_prefixes=True)
        places = range(first, first + len(new))
        caches = [request.cache for request in new]
        self._steps.begin(
            end,
            {place: cache and cache.statistics for place, cache in zip(places, caches, strict=True)},
        )
        wanted, columns = [], []
        for place, request in zip(places, new, strict=True):
            n_new = len(request.prefix.tokens) - request.n_cached
            sot = request.prefix.sot - request.n_cached if request.computes_sot else n_new - 1
            wanted.append((sot, n_new - 1))
            n_to_cache = max(0, request.n_to_cache - request.n_cached)
            measures = request.request.measures_end
            columns.append((place, place, request.n_frames, n_new, n_to_cache, measures))
        return StepGroup(end, range(n_old, n_old + len(new)), wanted, np.array(columns))

    def _with_language_models(
        self, parts: Sequence[StepPart], n_best: int
    ) -> tuple[list[list[int]], list[list[float]], list[list[float]]]:
        """Return the best tokens of each row, their log-probabilities and LM scores."""
        rows = [row for part in parts for row in part.rows]
        log_probs = np.concatenate([part.outputs[1][part.places] for part in parts])[np.argsort(rows)]
        lm_scores = _lm_scores(self._active, log_probs, self._vocabulary)
        best = best_tokens(log_probs + lm_scores, n_best)
        scores = [np.take_along_axis(each, best, axis=1).tolist() for each in (log_probs, lm_scores)]
        return self._vocabulary.ids[best].tolist(), scores[0], scores[1]


def _lm_scores(active: Sequence[ActiveRequest], log_probs: Floats, vocabulary: LiveVocabulary) -> Floats:
    nothing = np.zeros((len(log_probs), vocabulary.n_vocab), np.float32)
    parts = np.split(nothing, np.cumsum([len(request.paths) for request in active])[:-1])
    scores = [
        part if request.lm_rows is None else request.lm_rows.add_to(part)
        for request, part in zip(active, parts, strict=True)
    ]
    return np.take(np.concatenate(scores), vocabulary.ids, axis=1)


class AttendingRows:
    """Computes an `AlignAttEnd` on the host, over the logits and attention of rows: they are `EndingRows`.

    The state are `RunningStatistics`: n_tokens (n, 1, 1), mean and squares (n, n_heads, n_frames).
    """

    def __init__(self, rows: RunningRows) -> None:
        self._rows = rows
        self._state: Sequence[Floats] = ()

    def computes(self, end: StepEnd) -> bool:
        return isinstance(end, AlignAttEnd)

    def begin(self, end: StepEnd, kept: Mapping[int, object]) -> None:
        given = {
            place: statistics if isinstance(statistics, RunningStatistics) else None
            for place, statistics in kept.items()
        }
        widths = [each.mean.shape[-1] for each in given.values() if each is not None]
        self._grow(1 + max(given), len(end.capture), max(widths, default=0))
        for place, statistics in given.items():
            for held in self._state:
                held[place] = 0.0
            if statistics is not None:
                for held, each in zip(self._state, _arrays(statistics), strict=True):
                    held[place, :, : each.shape[-1]] = each

    def _grow(self, n_rows: int, n_heads: int, n_frames: int) -> None:
        n_held, _, longest = self._state[1].shape if self._state else (0, 0, 0)
        if n_held >= n_rows and longest >= n_frames:
            return
        size = max(2 * n_rows, n_held), n_heads, max(n_frames, longest)
        before = self._state
        self._state = [np.zeros(shape, np.float32) for shape in ((size[0], 1, 1), size, size)]
        for held, each in zip(self._state, before, strict=False):
            held[:n_held, :, : each.shape[-1]] = each

    def steps(
        self, tokens: Sequence[Sequence[int]], groups: Sequence[StepGroup], n_steps: int = 1
    ) -> Iterator[Sequence[StepPart]]:
        end = groups[0].end
        assert isinstance(end, AlignAttEnd)
        wanted = [sorted({*places}) for group in groups for places in group.wanted]
        output = self._rows.step(tokens, wanted, vocabulary=end.vocabulary.rows, capture=end.capture)
        columns = np.concatenate([group.columns for group in groups])
        n_frames = int(columns[:, 2].max())
        self._grow(1 + int(columns[:, :2].max()), len(end.capture), n_frames)
        parts: list[StepPart] = []
        starts, n_before = list(accumulate(output.n_new, initial=0)), 0
        for group in groups:
            longest = max(output.n_new[row] for row in group.rows)
            tokens_of = [
                starts[row] + min(place, output.n_new[row] - 1)
                for row in group.rows
                for place in range(longest)
            ]
            logits_of = []
            for places in group.wanted:
                distinct = sorted({*places})
                logits_of += [n_before + distinct.index(place) for place in places]
                n_before += len(distinct)
            joined = output.joined[:, tokens_of, :n_frames]
            outputs, kept = self._computed(group, output.logits[logits_of], joined)
            parts.append(StepPart(group.rows, range(len(group.rows)), outputs, kept))
        yield parts

    def _computed(
        self, group: StepGroup, logits: Floats, joined: Floats
    ) -> tuple[list[Floats], list[object]]:
        """Compute an end from logits (R or 2 * R, n_rows) and attention (n_heads, R * n_new, n_frames)."""
        end = group.end
        assert isinstance(end, AlignAttEnd)
        source, target, n_frames, n_new, n_cached, measures = group.columns.T
        n_rows, (n_heads, _, width) = len(group.columns), joined.shape
        attention = joined.reshape(n_heads, n_rows, -1, width).swapaxes(0, 1)
        before = RunningStatistics(*(each[source, :, :width] for each in self._state))
        after = before.updated(attention, _counted(attention, n_new))
        for held, each in zip(self._state, _arrays(after), strict=True):
            held[target, :, :width] = each
        newest = attention[np.arange(n_rows), :, np.maximum(n_new - 1, 0)][:, :, None]
        ends, kept = np.zeros((n_rows, 4), np.float32), list[object]()
        if end.reads_prefixes:
            at_sot, logits = logits[::2], logits[1::2]
            ends[:, 0] = end.vocabulary.no_speech_probs(at_sot)
            if measures.any():
                ends[:, 1:] = end.vocabulary.text_ends(logits)
            cached = before.updated(attention, _counted(attention, n_cached))
            kept = [
                RunningStatistics(n, mean[:, :frames], squares[:, :frames])
                for n, mean, squares, frames in zip(
                    cached.n_tokens, cached.mean, cached.squares, n_frames.tolist(), strict=True
                )
            ]
        log_probs = end.vocabulary.log_probs(logits, begins=end.reads_prefixes)
        best = best_tokens(log_probs, end.n_best)
        frames = frontier(after, newest, n_frames)
        chosen = end.vocabulary.ids[best], np.take_along_axis(log_probs, best, axis=1)
        results = np.column_stack((frames, ends, *chosen)).astype(np.float32)
        return [results, log_probs], kept


def _counted(attention: Floats, n_new: Ints) -> Floats:
    is_new: Floats = (np.arange(attention.shape[2]) < n_new[:, None])[:, None].astype(np.float32)
    return is_new


def _arrays(statistics: RunningStatistics) -> list[Floats]:
    return [statistics.n_tokens, statistics.mean, statistics.squares]
