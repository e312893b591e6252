"""Decoder rows on an accelerator, over static memory, and the ends of their steps.

Steps of few tokens have few shapes (`StepShape`). None depends on the text, so the operators of a step can be
recorded as a CUDA graph, with its end (`TorchEnd`), which chooses the next tokens, and with language models
(`TorchFusion`).
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.decoding.alignment import FILTER_WIDTH, LEAST_DEVIATION, MEDIAN_NETWORK
from sottovoce.decoding.filters import FORBIDDEN, LiveVocabulary, allowed_after
from sottovoce.decoding.search import SPREAD_FLOOR, AlignAttEnd, BestTokensEnd, Fusion
from sottovoce.errors import OptionError
from sottovoce.lm.boosting import BackoffTable, WholeWordBooster
from sottovoce.lm.fusion import ShallowFusion, TokenNgram
from sottovoce.models.backend import STEPS_AHEAD, StepEnd, StepGroup, StepPart
from sottovoce.models.devices import MOST_RECORDINGS, encoder_work
from sottovoce.models.dims import AlignmentHeads, ModelDims, aligned
from sottovoce.models.whisper import TextDecoder, attention_plans
from sottovoce.runtime.rows import (
    NewTokens,
    RowAudio,
    RowMemory,
    RowsAttention,
    Run,
    TorchRows,
    indices,
    selected,
)
from sottovoce.runtime.torch_encoder import Outputs, Record, StaticEncoder, eagerly
from sottovoce.types import Floats, Ints

_fusions: WeakKeyDictionary[ShallowFusion, dict[torch.device, TorchFusion]] = WeakKeyDictionary()


def fusion_on(fusion: Fusion, device: torch.device) -> TorchFusion:
    """Return the models on a device; they are copied there once."""
    assert isinstance(fusion, ShallowFusion)
    of_devices = _fusions.setdefault(fusion, {})
    if device not in of_devices:
        of_devices[device] = TorchFusion(fusion, device)
    return of_devices[device]


class TorchFusion:
    """A static `ShallowFusion` on a device.

    Raises:
        OptionError: a model that only the host can score.
    """

    def __init__(self, fusion: ShallowFusion, device: torch.device) -> None:
        self.n_tokens = fusion.n_tokens
        self._models: list[tuple[_Ngram | _Booster, float]] = []
        for model, weight in fusion.models:
            if isinstance(model, TokenNgram):
                self._models.append((_Ngram(model, device), weight))
            elif isinstance(model, WholeWordBooster):
                self._models.append((_Booster(model, device), weight))
            else:
                raise OptionError(f"fusion: expected n-grams and phrases, got {type(model).__name__}")

    def after(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states (R, n_models) after tokens (R,); those above n_tokens keep their row's state."""
        is_known = (tokens < self.n_tokens)[:, None]
        known = tokens.masked_fill(~is_known[:, 0], 0)
        moved = [model.after(states[:, i], known) for i, (model, _) in enumerate(self._models)]
        return torch.where(is_known, torch.stack(moved, dim=1), states)

    def fused(self, states: Tensor, logprobs: Tensor, eot: int) -> Tensor:
        """Add the weighted scores of every next token to log-probabilities (R, n_vocab) float32."""
        fused, end = logprobs.clone(), logprobs[:, eot].clone()
        for i, (model, weight) in enumerate(self._models):
            fused[:, : self.n_tokens] += _weighted(model.scores(states[:, i]), weight)
            end += _weighted(model.ends_of(states[:, i]), weight)
        fused[:, eot] = end
        return fused


def _weighted(scores: Tensor, weight: float) -> Tensor:
    # -inf stays -inf, which a weight of 0 would make NaN.
    return torch.where(scores.isneginf(), scores, scores * weight)


class _Arcs(NamedTuple):
    """A `BackoffTable` as tensors. depth: most steps from a node to the root. width: most arcs of a node."""

    first: Tensor
    keys: Tensor
    weights: Tensor
    targets: Tensor
    backoff: Tensor
    parent: Tensor
    root_weights: Tensor
    root_targets: Tensor
    depth: int
    width: int

    @classmethod
    def of(cls, table: BackoffTable, device: torch.device) -> _Arcs:
        tensors = (torch.from_numpy(array).to(device) for array in table)
        depth, nodes = 1, table.parent
        while nodes.any():
            depth, nodes = depth + 1, table.parent[nodes]
        return cls._make((*tensors, depth, int((table.first[1:] - table.first[:-1]).max())))

    def follow(self, nodes: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (N,) and next nodes (N,) of tokens (N,) after nodes (N,)."""
        weight, target = torch.zeros(nodes.shape, device=nodes.device), torch.zeros_like(nodes)
        is_open = torch.ones_like(nodes, dtype=torch.bool)
        for context in self._contexts(nodes):
            wanted = context * len(self.root_weights) + tokens
            place = torch.searchsorted(self.keys, wanted).clamp_max_(len(self.keys) - 1)
            is_arc = (self.keys[place] == wanted) & is_open
            weight = torch.where(is_arc, weight + self.weights[place], weight)
            target = torch.where(is_arc, self.targets[place], target)
            is_open = is_open & ~is_arc
            weight = torch.where(is_open, weight + self.backoff[context], weight)
        weight = torch.where(is_open, weight + self.root_weights[tokens], weight)
        return weight, torch.where(is_open, self.root_targets[tokens], target)

    def row_weights(self, nodes: Tensor) -> Tensor:
        """Return the weights (N, V) of every token after nodes (N,)."""
        contexts, paid = list(self._contexts(nodes)), [torch.zeros(nodes.shape, device=nodes.device)]
        for context in contexts:
            paid.append(paid[-1] + self.backoff[context])
        n_tokens, arc = len(self.root_weights), torch.arange(self.width, device=nodes.device)
        # The last column takes what lies behind the arcs of a node.
        weight = F.pad(self.root_weights, (0, 1)) + paid[-1][:, None]
        for context, price in zip(reversed(contexts), reversed(paid[:-1]), strict=True):
            first = self.first[context][:, None]
            place = (first + arc).clamp_max_(len(self.keys) - 1)
            is_behind = arc >= self.first[context + 1][:, None] - first
            tokens = (self.keys[place] % n_tokens).masked_fill(is_behind, n_tokens)
            weight.scatter_(1, tokens, self.weights[place] + price[:, None])
        return weight[:, :n_tokens]

    def _contexts(self, nodes: Tensor) -> Iterator[Tensor]:
        for _ in range(self.depth if len(self.keys) else 0):
            yield nodes
            nodes = self.parent[nodes]


class _Ngram:
    def __init__(self, ngram: TokenNgram, device: torch.device) -> None:
        model = ngram.model
        self._arcs = _Arcs.of(model.table(), device)
        self._ids = torch.from_numpy(ngram.ids).to(device)
        self._end = model.ids(["</s>"])[0] if "</s>" in model else None

    def scores(self, states: Tensor) -> Tensor:
        return self._arcs.row_weights(states)[:, self._ids]

    def after(self, states: Tensor, tokens: Tensor) -> Tensor:
        return self._arcs.follow(states, self._ids[tokens])[1]

    def ends_of(self, states: Tensor) -> Tensor:
        if self._end is None:
            return torch.zeros(states.shape, device=states.device)
        return self._arcs.follow(states, torch.full_like(states, self._end))[0]


class _Booster:
    """See `WholeWordBooster`."""

    def __init__(self, booster: WholeWordBooster, device: torch.device) -> None:
        inside = booster.inside
        self._arcs, self._n_nodes = _Arcs.of(inside.table, device), inside.n_nodes
        arrays = (*booster.edges, inside.gained, inside.after, inside.ends)
        tensors = (torch.from_numpy(array).to(device) for array in arrays)
        self._before, self._ends_word, self._gained, self._moved, self._ends = tensors

    def scores(self, states: Tensor) -> Tensor:
        ended, nodes = self._after_word(states)
        gained, next_nodes = self._between(nodes, states < self._n_nodes)
        plain = self._arcs.row_weights(nodes)[:, :-1]
        apart = self._arcs.row_weights(next_nodes)[:, :-1] + gained[:, None]
        return torch.where(self._before, apart, plain) + ended[:, None]

    def after(self, states: Tensor, tokens: Tensor) -> Tensor:
        _, nodes = self._after_word(states)
        _, next_nodes = self._between(nodes, states < self._n_nodes)
        _, nodes = self._arcs.follow(torch.where(self._before[tokens], next_nodes, nodes), tokens)
        return nodes + self._n_nodes * self._ends_word[tokens]

    def ends_of(self, states: Tensor) -> Tensor:
        ended, nodes = self._after_word(states)
        return ended + self._ends[nodes]

    def _after_word(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self._between(states % self._n_nodes, states >= self._n_nodes)

    def _between(self, nodes: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        return self._gained[nodes].masked_fill(~where, 0.0), torch.where(where, self._moved[nodes], nodes)


class TorchEnd(Protocol):
    """Computes a `StepEnd` on a device. n_results: outputs that the host reads; those after them are kept."""

    @property
    def n_results(self) -> int: ...

    def state(self, n_rows: int, n_frames: int) -> Sequence[Tensor]:
        """Make the tensors, with an entry for each row, that ends of this class keep from step to step."""
        ...

    def begin(self, state: Sequence[Tensor], kept: Mapping[int, object], /) -> None:
        """Set entries of the state, as `EndingRows.begin`."""
        ...

    def kept(self, outputs: Outputs, places: Ints, columns: Ints, /) -> Sequence[object]:
        """Return what `StepPart.kept` has of rows at places (n,); columns: (n, n_columns)."""
        ...

    def __call__(self, outputs: Sequence[Tensor], columns: Tensor, state: Sequence[Tensor], /) -> Outputs:
        """Compute the results, each with an entry for each row.

        outputs: logits (n_rows, n_vocab), or 2 * n_rows; and attention (n_heads, n_rows * n_new, n_frames),
        if heads are captured. columns: (n_rows, n_columns) int64, 0 without a row. state: changed in place.
        """
        ...

    def advance(self, outputs: Outputs, columns: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the next tokens (n_rows,) int64, and the rows (n_rows,) int64 that they follow.

        outputs: of the end. columns: changed in place to those of the next step.
        """
        ...


def torch_end(end: StepEnd, device: torch.device) -> TorchEnd:
    if isinstance(end, BestTokensEnd):
        return TorchBestTokens(end, device)
    assert isinstance(end, AlignAttEnd), f"no computation of {type(end).__name__}"
    return TorchAlignAtt(end, _vocabulary_on(end.vocabulary, device))


@dataclass(frozen=True, slots=True)
class TorchBestTokens:
    """Computes a `BestTokensEnd`; what a search continues is as in `search.expanded` and `that_go_on`.

    The state is (n_vocab,) float32, -inf for tokens that may follow no row.
    """

    end: BestTokensEnd
    device: torch.device
    n_results: ClassVar[int] = 1

    def state(self, n_rows: int, n_frames: int) -> Sequence[Tensor]:
        return (torch.zeros(self.end.n_vocab, device=self.device),)

    def begin(self, state: Sequence[Tensor], kept: Mapping[int, object]) -> None:
        state[0].zero_()[torch.from_numpy(self.end.forbidden).to(self.device)] = FORBIDDEN

    def kept(self, outputs: Outputs, places: Ints, columns: Ints) -> Sequence[object]:
        return ()

    def __call__(self, outputs: Sequence[Tensor], columns: Tensor, state: Sequence[Tensor]) -> Outputs:
        end, logits = self.end, outputs[0] + state[0]
        begin, ids = end.time_begin, torch.arange(end.n_vocab, device=columns.device)
        first_text, first_time, end_time = torch.split(columns[:, :3], 1, dim=1)
        text = logits[:, :begin].masked_fill(ids[:begin] < first_text, FORBIDDEN)
        if begin < end.n_vocab:
            beyond = (ids[begin:] < first_time) | (ids[begin:] >= end_time)
            times = logits[:, begin:].masked_fill(beyond, FORBIDDEN)
            forced = times.logsumexp(dim=1, keepdim=True) > text.amax(dim=1, keepdim=True)
            text = torch.cat((text.masked_fill(forced, FORBIDDEN), times), dim=1)
        logprobs = text.log_softmax(dim=1)
        if end.fusion is None:
            best, tokens = logprobs.topk(end.n_best, dim=1)
            return (torch.cat((best, tokens.to(best.dtype)), dim=1),)
        fusion = fusion_on(end.fusion, columns.device)
        states = fusion.after(columns[:, 8:], columns[:, 7])
        best, tokens = fusion.fused(states, logprobs, end.eot).topk(end.n_best, dim=1)
        if end.n_best == 1:
            tokens = tokens.masked_fill(best == FORBIDDEN, end.eot)  # as `Sampling.choose`
        results = logprobs.gather(1, tokens), tokens.to(best.dtype), best, states.int().view(torch.float32)
        return (torch.cat(results, dim=1),)

    def advance(self, outputs: Outputs, columns: Tensor) -> tuple[Tensor, Tensor]:
        end, n_beams = self.end, self.end.n_beams
        logprobs, tokens, *fused = torch.split(outputs[0], end.widths, dim=1)
        sums = columns[:, 5:7].int().view(torch.float32)
        ranked = (sums[:, :1] + (fused[0] if fused else logprobs)).view(-1, n_beams * end.n_best)
        ranked, order = ranked.sort(dim=1, descending=True, stable=True)
        following = tokens.reshape(ranked.shape).gather(1, order)
        first = (following == end.eot).int().argsort(dim=1, stable=True)[:, :n_beams]
        chosen, places = following.gather(1, first).flatten().long(), order.gather(1, first)
        first_rows = torch.arange(0, len(columns), n_beams, device=columns.device)
        rows = (first_rows[:, None] + places // end.n_best).flatten()
        held = columns.index_select(0, rows)
        allowed, before, latest = held[:, :2].unbind(1), held[:, 3], held[:, 4]
        last = (chosen >= end.time_begin).long()
        if end.time_begin < end.n_vocab:
            latest = latest.maximum(chosen)
            allowed = allowed_after(last, before, latest, end.eot, end.n_vocab)
        moved = [*allowed, held[:, 2], last, latest, _bits(ranked.gather(1, first).flatten())]
        if fused:
            summed = (sums[:, 1:] + logprobs).view(ranked.shape).gather(1, places).flatten()
            states = _bits(fused[1]).index_select(0, rows)
            moved += [_bits(summed), chosen, *states.unbind(1)]
        columns.copy_(torch.stack(moved, dim=1))
        return chosen, rows


def _bits(values: Tensor) -> Tensor:
    return values.view(torch.int32).long()


class _Vocabulary(NamedTuple):
    """A `LiveVocabulary` on a device. rows: None: all are computed."""

    ids: Tensor
    blank: Tensor
    marks: Tensor
    rows: Tensor | None
    no_speech_row: Tensor


@lru_cache(maxsize=8)
def _vocabulary_on(vocabulary: LiveVocabulary, device: torch.device) -> _Vocabulary:
    ids, blank, marks = (
        torch.from_numpy(array).to(device) for array in (vocabulary.ids, vocabulary.blank, vocabulary.marks)
    )
    rows = None if vocabulary.rows is None else torch.from_numpy(vocabulary.rows).to(device)
    return _Vocabulary(ids, blank, marks, rows, torch.tensor([vocabulary.no_speech_row], device=device))


class _Statistics(NamedTuple):
    """Running statistics of attention over tokens, as `decoding.alignment.RunningStatistics`.

    n_tokens: (R, 1, 1). mean, squares: (R, n_heads, n_frames).
    """

    n_tokens: Tensor
    mean: Tensor
    squares: Tensor

    def updated(self, attention: Tensor, is_new: Tensor) -> _Statistics:
        """Add tokens of attention (R, n_heads, n, n_frames), where is_new (R, n)."""
        weight = is_new[:, None, :, None].float()
        n_new = weight.sum(dim=2)
        mean = (attention * weight).sum(dim=2) / n_new.clamp_min(1)
        squares = ((attention - mean.unsqueeze(2)).square() * weight).sum(dim=2)
        total = self.n_tokens + n_new
        some, delta = total.clamp_min(1), mean - self.mean
        return _Statistics(
            total,
            self.mean + delta * (n_new / some),
            self.squares + squares + delta.square() * (self.n_tokens * n_new / some),
        )


def _frontier(statistics: _Statistics, newest: Tensor, n_frames: Tensor) -> Tensor:
    """Compute `streaming.alignatt.frontier` (R,) int64, of the newest attention (R, n_heads, n)."""
    ends = n_frames[:, None, None]
    deviation = (statistics.squares / statistics.n_tokens).sqrt() + SPREAD_FLOOR / ends
    score = (newest - statistics.mean) / deviation.clamp_min(LEAST_DEVIATION)
    frames = torch.arange(newest.shape[-1], device=newest.device)
    beyond = frames >= ends  # (R, 1, n)
    # The filter mirrors at the end: a shorter row at its own end.
    mirrored = torch.where(beyond, (2 * (ends - 1) - frames).clamp(min=0), frames)
    score = torch.where(statistics.n_tokens > 1, score, newest).gather(-1, mirrored.expand_as(score))
    return _median_filter(score).mean(dim=1).masked_fill(beyond[:, 0], FORBIDDEN).argmax(dim=-1)


def _median_filter(values: Tensor) -> Tensor:
    half, n_values = FILTER_WIDTH // 2, values.shape[-1]
    if n_values <= half:
        return values
    rows = F.pad(values, (half, half), mode="reflect")
    shifted = [rows[..., offset : offset + n_values] for offset in range(FILTER_WIDTH)]
    for low, high in MEDIAN_NETWORK:
        shifted[low], shifted[high] = (
            torch.minimum(shifted[low], shifted[high]),
            torch.maximum(shifted[low], shifted[high]),
        )
    return shifted[half]


@dataclass(frozen=True, slots=True)
class TorchAlignAtt:
    """Computes an `AlignAttEnd`. The state are `_Statistics`, of no token at first."""

    end: AlignAttEnd
    vocabulary: _Vocabulary

    @property
    def n_results(self) -> int:
        return 1 + self.end.returns_log_probs

    def state(self, n_rows: int, n_frames: int) -> Sequence[Tensor]:
        of_frames, device = (n_rows, len(self.end.capture), n_frames), self.vocabulary.ids.device
        return [torch.zeros(size, device=device) for size in ((n_rows, 1, 1), of_frames, of_frames)]

    def begin(self, state: Sequence[Tensor], kept: Mapping[int, object]) -> None:
        into: list[Tensor] = []
        given: list[Tensor] = []
        for each in state:
            each[min(kept) : max(kept) + 1].zero_()
        for place, statistics in kept.items():
            if isinstance(statistics, _Statistics):
                into += [
                    mine[place, :, : theirs.shape[-1]] for mine, theirs in zip(state, statistics, strict=True)
                ]
                given += statistics
        if into:
            torch._foreach_copy_(into, given)

    def kept(self, outputs: Outputs, places: Ints, columns: Ints) -> Sequence[object]:
        if not outputs:
            return ()
        rows = torch.from_numpy(places).to(outputs[0].device)
        n_tokens, mean, squares = (each.index_select(0, rows) for each in outputs)
        return [
            _Statistics(n_tokens[row], mean[row, :, :n_frames], squares[row, :, :n_frames])
            for row, n_frames in enumerate(columns[:, 2].tolist())
        ]

    def __call__(self, outputs: Sequence[Tensor], columns: Tensor, state: Sequence[Tensor]) -> Outputs:
        end, vocabulary, (logits, joined) = self.end, self.vocabulary, outputs
        source, target, n_frames, n_new, n_cached, _ = columns.unbind(1)
        n_rows, width = len(columns), joined.shape[-1]
        attention = joined.view(len(joined), n_rows, -1, width).transpose(0, 1)  # (R, n_heads, n, width)
        places = torch.arange(attention.shape[2], device=columns.device)
        before = _Statistics(*(each[..., :width].index_select(0, source) for each in state))
        after = before.updated(attention, places < n_new[:, None])
        for held, each in zip(state, after, strict=True):
            held[..., :width].index_copy_(0, target, each)
        newest = attention[:, :, 0]
        if end.reads_prefixes:
            last = (n_new - 1).clamp(min=0)[:, None, None, None].expand(-1, len(joined), 1, width)
            newest = attention.gather(2, last)[:, :, 0]
        if vocabulary.rows is not None:
            logits = logits.index_select(1, vocabulary.rows)
        ends = logits.new_zeros(n_rows, 4)
        statistics: tuple[Tensor, ...] = ()
        if end.reads_prefixes:
            at_sot, logits = logits[::2], logits[1::2]
            no_speech = at_sot.softmax(dim=1).index_select(1, vocabulary.no_speech_row)
            ends = torch.cat((no_speech, self._text_ends(logits)), dim=1)
            statistics = before.updated(attention, places < n_cached[:, None])
        log_probs = self._log_probs(logits, begins=end.reads_prefixes)
        best, chosen = log_probs.topk(end.n_best, dim=1)
        tokens = vocabulary.ids.index_select(0, chosen.flatten()).view_as(chosen)
        frames = _frontier(after, newest, n_frames)[:, None]
        results = torch.cat([frames.float(), ends, tokens.float(), best], dim=1)
        return results, *([log_probs] if end.returns_log_probs else []), *statistics

    def _log_probs(self, logits: Tensor, *, begins: bool) -> Tensor:
        ids, blank, _, rows, _ = self.vocabulary
        chosen = logits.index_select(1, ids) if rows is None else logits[:, : len(ids)]
        return (chosen.masked_fill(blank, FORBIDDEN) if begins else chosen).log_softmax(dim=1)

    def _text_ends(self, logits: Tensor) -> Tensor:
        probs = self._log_probs(logits, begins=False).exp()
        marks = [(probs * kind).sum(dim=1) for kind in self.vocabulary.marks]
        return torch.stack([*marks, probs[:, -1]], dim=1)

    def advance(self, outputs: Outputs, columns: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("the host tells which tokens follow a step of AlignAtt")


class StaticMemory(RowMemory):
    """The memory of rows on an accelerator, with their audio; steps are computed in place.

    audio: (n_layers, 2, n_recordings, H, n_frames, d_head), of an aligned full window. frame_bias:
    (n_recordings, n_frames) float32, added to the attention logits, -inf beyond a window. most_rows: of a
    recording in any step so far, so that beams that end give no new shapes.
    """

    def __init__(self, dims: ModelDims, dtype: torch.dtype, device: torch.device, n_recordings: int) -> None:
        super().__init__(dims, dtype, device, n_recordings, aligned(1 + dims.n_text_ctx) - 1)
        n_frames, (*size, _, d_head) = aligned(dims.n_audio_ctx), self.text.shape
        with torch.inference_mode(False):
            self.audio = torch.zeros((*size, n_frames, d_head), dtype=dtype, device=device)
            self.frame_bias = torch.zeros(n_recordings, n_frames, device=device)
        self.steps: dict[StepShape, StaticStep] = {}
        self.most_rows = 1
        self._states: dict[type[StepEnd], tuple[StepEnd, Sequence[Tensor]]] = {}

    def grow(self, n_recordings: int, n_cells: int) -> None:
        assert n_recordings <= self.n_recordings, "a larger memory is another one"
        before = self.n_cells
        super().grow(n_recordings, n_cells)
        if self.n_cells != before:
            self.steps.clear()

    def grow_rows(self, most_rows: int) -> None:
        """Make room for the states of so many rows of each recording."""
        if most_rows > self.most_rows:
            self.most_rows = most_rows
            before, self._states = self._states, {}
            self._copy_states(before)
            self.steps = {shape: step for shape, step in self.steps.items() if shape.end is None}

    def state(self, end: StepEnd) -> Sequence[Tensor]:
        """Return what the ends of this class keep from step to step, zeros at first."""
        kind = type(end)
        if kind not in self._states:
            n_rows = 1 + self.n_recordings * (1 + self.most_rows)  # old rows, and those that join in a step
            with torch.inference_mode(False):
                tensors = torch_end(end, self.text.device).state(n_rows, self.audio.shape[4])
                self._states[kind] = end, tensors
        return self._states[kind][1]

    def _copy_states(self, states: Mapping[type[StepEnd], tuple[StepEnd, Sequence[Tensor]]]) -> None:
        for end, tensors in states.values():
            for ours, theirs in zip(self.state(end), tensors, strict=True):
                ours[: len(theirs)] = theirs

    def keep(self, step: StaticStep) -> None:
        """Keep a recorded step; of those with tables, only the ones with its own."""
        tables = step.shape.tables
        if tables is not None:
            self.steps = {
                shape: step_of_shape
                for shape, step_of_shape in self.steps.items()
                if shape.tables in (None, tables)
            }
        self.steps[step.shape] = step

    def take_over(self, other: StaticMemory) -> None:
        """Copy the contents of a smaller memory."""
        n = other.n_recordings
        self.grow(n, other.n_cells)
        self.grow_rows(other.most_rows)
        self._copy_states(other._states)
        self.text[:, :, :n, :, : 1 + other.n_cells] = other.text
        self.audio[:, :, :n], self.frame_bias[:n] = other.audio, other.frame_bias

    def place(self, recordings: Sequence[tuple[RowAudio, Tensor | None]]) -> None:
        """Begin recordings, each with the keys and values of its window and of a prefix, or None."""
        slots = [recording.slot for recording, _ in recordings]
        # A masked key must be finite.
        torch._foreach_zero_([each[:, :, slot] for slot in slots for each in (self.text, self.audio)])
        bias = torch.full((len(recordings), self.frame_bias.shape[1]), -torch.inf)
        into: list[Tensor] = []
        given: list[Tensor] = []
        for row, (recording, prefix) in zip(bias, recordings, strict=True):
            row[: recording.n_frames] = 0.0 if recording.log_weights is None else recording.log_weights
            for kept, pair in zip(
                self.audio[:, :, recording.slot, :, : recording.n_frames], recording.keys_values, strict=True
            ):
                into += kept.unbind()
                given += [each[recording.index] for each in pair]
            if prefix is not None:
                into.append(self.text[:, :, recording.slot, :, 1 : 1 + prefix.shape[3]])
                given.append(prefix)
        torch._foreach_copy_(into, given)
        device = self.text.device
        self.frame_bias.index_copy_(0, torch.tensor(slots, device=device), bias.to(device))


STEP_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Recordings of a static step; more are multiples of the last."""
MEMORY_SIZES = (16, 64)
"""Recordings of a static memory; more are multiples of the last."""
FRAME_PARTS = 3
"""A static step attends to a third, two thirds or all frames of a full window."""
FEW_QUERIES = (1, 8, 16)
"""New tokens of a recording in a step that is recorded, if its rows read several."""
FEW_WANTED = 2
"""Logits of a recording in a step; others compute those of all new tokens."""


def step_sizes(n_recordings: int, sizes: Sequence[int] = STEP_SIZES) -> list[int]:
    """Return the sizes of static steps up to the smallest that has room for so many recordings."""
    largest = sizes[-1]
    all_sizes = [*sizes, *range(2 * largest, n_recordings + largest, largest)]
    return all_sizes[: 1 + next(place for place, size in enumerate(all_sizes) if size >= n_recordings)]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the operators of a static step depend on.

    n_queries, n_wanted: new tokens of each recording, and those with logits. first: slot of the first
    recording. has_spans: each token attends to frames of its own. end: None: the step returns logits.
    """

    n_recordings: int
    n_queries: int
    n_wanted: int
    n_frames: int
    first: int = 0
    capture: AlignmentHeads = ()
    has_spans: bool = False
    end: StepEnd | None = None

    @property
    def tables(self) -> object:
        return None if self.end is None else self.end.tables


class StaticStep:
    """A decoder step over static memory: one upload, one replay.

    Token `k` of the recording in slot `first + s` is at `s * n_queries + k`. Of the new tokens taken, chosen
    and with_logits are the indices of those computed and of those with logits; places and outputs are where
    these are among all tokens and all logits. columns: (n_rows, n_columns) int64, of an end.
    """

    chosen: Ints
    with_logits: Ints
    places: Ints
    outputs: Ints

    def __init__(self, decoder: TextDecoder, memory: StaticMemory, shape: StepShape, record: Record) -> None:
        self._decoder, self._memory, self.shape = decoder, memory, shape
        self._end = None if shape.end is None else torch_end(shape.end, memory.text.device)
        n, n_head, n_total = shape.n_recordings * shape.n_queries, memory.dims.n_text_head, 1 + memory.n_cells
        self._reads_prefixes = shape.end is not None and shape.end.reads_prefixes
        columns = shape.n_recordings if self._reads_prefixes else n, shape.end.n_columns if shape.end else 0
        spans, wanted = (n, 2 * shape.has_spans), (shape.n_recordings * shape.n_wanted,)
        ahead = n, STEPS_AHEAD * bool(shape.end and shape.end.n_beams)
        self._shapes = ((n,), (n,), (n, n_head), spans, wanted, columns, ahead, (n, n_total))
        n_bytes = sum(8 * math.prod(size) for size in self._shapes[:-1]) + n * n_total
        device, is_pinned = memory.text.device, memory.text.is_cuda
        with torch.inference_mode(False):
            self._host = torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=is_pinned)
            self._device = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
            self._frames = torch.arange(shape.n_frames, device=device)
            self._hidden = torch.tensor([-torch.inf, 0.0], dtype=memory.text.dtype, device=device).unbind()
        inputs = [part.numpy() for part in self._inputs(self._host)]
        self._tokens, self._positions, self._entries, self._spans, self._wanted, self.columns = inputs[:6]
        self._ahead, self._visible = inputs[6], inputs[7].view(np.bool_)
        slots = shape.first + np.arange(n)[:, None] // shape.n_queries
        self._entries[:] = (slots * n_head + np.arange(n_head)) * n_total
        self._spans[:, 1:] = shape.n_frames
        self._visible[:, 0] = True
        self._idle = self._host.numpy().copy()
        self._uploaded = torch.cuda.Event() if is_pinned else None  # type: ignore[no-untyped-call]
        self._device.copy_(self._host)
        with torch.inference_mode(False), torch.no_grad():
            self._replay = record(self._compute)
            self._advance: Callable[[], Outputs] | None = None
            if shape.end is not None and shape.end.n_beams:
                self._first_entries = self._inputs(self._device)[2].clone()
                self._outputs = self._replay()
                self._advance = record(self._next)
                self._kept = self._outputs[0].new_zeros(STEPS_AHEAD, *self._outputs[0].shape)

    def _inputs(self, packed: Tensor) -> list[Tensor]:
        """Return the tensors in a memory: tokens, positions, entries, spans, wanted, columns, cells of the
        next steps, and visible.
        """
        kinds = [torch.int64] * (len(self._shapes) - 1) + [torch.bool]
        sizes = [kind.itemsize * math.prod(size) for kind, size in zip(kinds, self._shapes, strict=True)]
        parts = zip(torch.split(packed, sizes), kinds, self._shapes, strict=True)
        return [part.view(kind).view(shape) for part, kind, shape in parts]

    def take(self, new: NewTokens, chosen: Ints, with_logits: Ints) -> None:
        """Take new tokens as the input of the next run; all other places compute nothing."""
        if self._uploaded is not None:
            self._uploaded.synchronize()
        np.copyto(self._host.numpy(), self._idle)
        shape, self.chosen, self.with_logits = self.shape, chosen, with_logits
        places = self.places = (new.slots[chosen] - shape.first) * shape.n_queries + new.ranks[chosen]
        wanted = self.outputs = places[np.searchsorted(chosen, new.with_logits[with_logits])]
        if self._reads_prefixes:
            self.outputs = 2 * (wanted // shape.n_queries) + np.arange(len(wanted)) % 2
        elif shape.n_wanted < shape.n_queries:
            self.outputs = np.arange(len(wanted))
        self._tokens[places], self._positions[places] = new.tokens[chosen], new.positions[chosen]
        self._entries[places] += 1 + new.cells[chosen, None]
        self._visible[places, 0], self._visible[places, 1:] = False, new.visible[chosen]
        self._wanted[self.outputs] = wanted
        self._ahead[places, : new.ahead.shape[1]] = 1 + new.ahead[chosen]
        if shape.has_spans:
            self._spans[places] = new.frames[chosen]

    def run(self) -> Outputs:
        """Compute the step: the outputs of its end, or logits and captured attention.

        Logits: (n_recordings * n_wanted, n_vocab) float32. Attention: (n_captured, n, n_frames) float32. They
        are valid until the next run.
        """
        self._device.copy_(self._host, non_blocking=True)
        if self._uploaded is not None:
            self._uploaded.record()
        with attention_plans(self._device.device, False):
            self._outputs = self._replay()
        return self._outputs

    def run_ahead(self, n_steps: int) -> Floats:
        """Compute steps, each with the tokens that the end before chose; return the first result of each
        (n_steps, n, …), on the host.
        """
        first = self.run()[0]
        if n_steps == 1 or self._advance is None:
            return first.cpu().numpy()[None]
        for step, kept in enumerate(self._kept[:n_steps]):
            if step:
                self._advance()
                self._outputs = self._replay()
            kept.copy_(self._outputs[0])
        return self._kept[:n_steps].cpu().numpy()

    def _next(self) -> Outputs:
        tokens, positions, entries, _, _, columns, ahead, visible = self._inputs(self._device)
        assert self._end is not None, "a step without an end tells no next tokens"
        following, parents = self._end.advance(self._outputs, columns)
        cells = ahead[:, :1]
        entries.copy_(self._first_entries + cells)
        visible.copy_(visible.index_select(0, parents).scatter(1, cells, True))
        ahead.copy_(ahead.roll(-1, 1))
        return tokens.copy_(following), positions.add_(1)

    def _compute(self) -> Outputs:
        shape, memory = self.shape, self._memory
        tokens, positions, entries, spans, wanted, columns, _, visible = self._inputs(self._device)
        floor, zero = self._hidden
        slots, frames = slice(shape.first, shape.first + shape.n_recordings), slice(0, shape.n_frames)
        bias = memory.frame_bias[slots, None, None, frames]
        if shape.has_spans:
            begin, end_frame = torch.split(spans.view(shape.n_recordings, 1, shape.n_queries, 2), 1, dim=3)
            outside = (self._frames < begin) | (self._frames >= end_frame)
            bias = bias.masked_fill(outside, -torch.inf)
        run = Run(
            slots=slots,
            windows=slots,
            keys_values=memory.audio,
            tokens=slice(0, len(tokens)),
            cells=slice(0, 1 + memory.n_cells),
            frames=frames,
            mask=torch.where(visible, zero, floor).view(shape.n_recordings, 1, shape.n_queries, -1),
            bias=bias,
            audio_mask=bias.to(memory.text.dtype),
        )
        attention = RowsAttention(memory, [run], positions, entries.flatten(), shape.capture)
        hidden = self._decoder(tokens, attention)
        if self._reads_prefixes or shape.n_wanted < shape.n_queries:
            hidden = hidden.index_select(0, wanted)
        outputs = [self._decoder.logits(hidden), *([attention.captured(0)] if shape.capture else [])]
        if shape.end is None or self._end is None:
            return tuple(outputs)
        return self._end(outputs, columns, memory.state(shape.end))


class RowPool:
    """The static memories of a model, which rows borrow. most_recordings: limit over all memories."""

    def __init__(
        self,
        dims: ModelDims,
        dtype: torch.dtype,
        device: torch.device,
        record: Record,
        most_recordings: int = MOST_RECORDINGS,
    ) -> None:
        self._dims, self.dtype, self.device = dims, dtype, device
        self.record = record
        self._most = most_recordings
        self.nothing = StaticMemory(dims, dtype, device, 0)
        self.encoder: StaticEncoder | None = None
        """Made by the first call of the encoder."""
        self.free: list[StaticMemory] = []
        self._n_lent = 0
        self._lock = threading.Lock()

    @property
    def room(self) -> int:
        """Recordings that a memory may be borrowed for now."""
        return self._most - self._n_lent

    def borrow(self, n_recordings: int) -> StaticMemory:
        """Return a memory with room for so many recordings.

        Raises:
            OptionError: there is no room.
        """
        with self._lock:
            fitting = [memory for memory in self.free if memory.n_recordings >= n_recordings]
            memory = min(fitting, key=lambda memory: memory.n_recordings, default=None)
            if memory is not None:
                self.free.remove(memory)
            else:
                memory = self._new_memory(n_recordings)
            self._n_lent += memory.n_recordings
        return memory

    def _new_memory(self, n_recordings: int) -> StaticMemory:
        size = min(step_sizes(n_recordings, MEMORY_SIZES)[-1], self.room)
        if size < n_recordings:
            raise OptionError(
                f"decoder rows: {n_recordings} recordings given, expected at most {size}, which the memory "
                "of the device has room for"
            )
        while sum(memory.n_recordings for memory in self.free) > self.room - size:
            self.free.pop(0)
        return StaticMemory(self._dims, self.dtype, self.device, size)

    def give_back(self, memory: StaticMemory) -> None:
        with self._lock:
            self._n_lent -= memory.n_recordings
            self.free.append(memory)


class StaticRows(TorchRows):
    """Rows on an accelerator, whose steps are static: they are `EndingRows` too."""

    _memory: StaticMemory

    def __init__(self, decoder: TextDecoder, pool: RowPool, name: str) -> None:
        super().__init__(decoder, pool.nothing, name)
        self._pool = pool
        self._borrowed: list[StaticMemory] = []
        self._begun: list[tuple[RowAudio, Tensor | None]] = []
        """Recordings with prefixes that the next step places in the memory, all at once."""
        weakref.finalize(self, _give_back, pool, self._borrowed)

    def has_room(self, n_windows: int) -> bool:
        return max(self._free_slots(n_windows), default=-1) < max(self._memory.n_recordings, self._pool.room)

    def _reserve(self, n_recordings: int, n_cells: int) -> None:
        if n_recordings > self._memory.n_recordings:
            larger = self._pool.borrow(n_recordings)
            larger.take_over(self._memory)
            _give_back(self._pool, self._borrowed)
            self._borrowed.append(larger)
            self._memory = larger
        super()._reserve(self._memory.n_recordings, n_cells)

    def _begin(self, recording: RowAudio, prefix: Tensor | None) -> RowAudio:
        self._begun.append((recording, prefix))
        return replace(recording, keys_values=(), log_weights=None)

    def _computed(self, new: NewTokens, vocabulary: Tensor | None) -> tuple[Tensor, Tensor | None]:
        owners, computed, logits, captured = [], [], [], []
        for step in self._steps(new, np.arange(len(new.tokens))):
            results = step.run()
            owners.append(step.with_logits)
            computed.append(step.chosen)
            logits.append(results[0].index_select(0, indices(step.outputs, self._device)))
            captured += [
                attention.index_select(1, indices(step.places, self._device)) for attention in results[1:]
            ]
        joined = _in_order(owners, logits, 0)
        if vocabulary is not None:
            joined = joined.index_select(1, vocabulary)
        return joined, _in_order(computed, captured, 1) if captured else None

    @torch.no_grad()
    def begin(self, end: StepEnd, kept: Mapping[int, object]) -> None:
        self._memory.grow_rows(int(np.bincount([recording.slot for recording in self._recordings]).max()))
        torch_end(end, self._device).begin(self._memory.state(end), kept)

    def computes(self, end: StepEnd) -> bool:
        return end.is_static

    @torch.no_grad()
    def steps(
        self, tokens: Sequence[Sequence[int]], groups: Sequence[StepGroup], n_steps: int = 1
    ) -> Iterator[Sequence[StepPart]]:
        if groups[0].end.n_beams:
            yield from self._steps_ahead(tokens, groups[0], n_steps)
            return
        wanted: list[Sequence[int]] = [()] * self.n_rows
        for group in groups:
            for row, places in zip(group.rows, group.wanted, strict=True):
                wanted[row] = places
        new = self._new_tokens(tokens, wanted)
        parts: list[StepPart] = []
        computed: list[Outputs] = []
        for group in groups:
            of_group = replace(new, capture=group.end.capture)
            columns = np.zeros((self.n_rows, group.end.n_columns), np.int64)
            columns[list(group.rows)] = group.columns
            chosen = np.flatnonzero(np.isin(new.rows, list(group.rows)))
            for step in self._steps(of_group, chosen, group.end):
                rows, firsts = np.unique(new.rows[step.chosen], return_index=True)
                at = step.places[firsts] // (step.shape.n_queries if group.end.reads_prefixes else 1)
                step.columns[at] = columns[rows]
                outputs = step.run()
                end = torch_end(group.end, self._device)
                computed.append(outputs[: end.n_results])
                kept = end.kept(outputs[end.n_results :], at, columns[rows])
                parts.append(StepPart(rows.tolist(), at.tolist(), (), kept))
        self._table = new.table
        read = [
            np.split(torch.cat(of_parts).cpu().numpy(), np.cumsum([len(each) for each in of_parts])[:-1])
            for of_parts in zip(*computed, strict=True)
        ]  # each is one transfer
        yield [
            part._replace(outputs=outputs)
            for part, outputs in zip(parts, zip(*read, strict=True), strict=True)
        ]

    def _steps_ahead(
        self, tokens: Sequence[Sequence[int]], group: StepGroup, n_steps: int
    ) -> Iterator[Sequence[StepPart]]:
        n_steps = min(n_steps, STEPS_AHEAD, self._dims.n_text_ctx - int(self._table.max()))
        new = self._new_tokens(tokens, group.wanted, n_steps=max(1, n_steps))
        (step,) = self._steps(new, np.arange(self.n_rows), group.end)
        step.columns[step.places] = group.columns[new.rows]
        of_steps = step.run_ahead(1 + new.ahead.shape[1])
        cells = np.zeros((of_steps.shape[1], len(of_steps)), np.int64)
        cells[step.places] = np.column_stack((new.cells, new.ahead))
        for results, cells_of_step in zip(of_steps, cells.T, strict=True):
            slots = np.asarray([recording.slot for recording in self._recordings])
            order = np.argsort(slots, kind="stable")
            places = slots * group.end.n_beams
            places[order] += np.arange(len(slots)) - np.searchsorted(slots[order], slots[order])
            self._table[np.arange(len(slots)), cells_of_step[places]] = 1 + self._table.max(axis=1)
            yield [StepPart(range(len(slots)), places.tolist(), (results,))]

    def _steps(self, new: NewTokens, chosen: Ints, end: StepEnd | None = None) -> Iterator[StaticStep]:
        """Divide chosen new tokens into steps that are ready to run.

        Recordings with few new tokens take a step together, which is recorded; those with many, as of
        prompts, share others, whose captured attention takes no more memory than a batch of the encoder.
        """
        if self._begun:
            self._memory.place(self._begun)
            self._begun = []
        n_of = np.bincount(new.slots[chosen])
        is_few = n_of[new.slots[chosen]] <= FEW_QUERIES[-1]
        few, many = chosen[is_few], chosen[~is_few]
        most = encoder_work(self._dims, self._dtype.itemsize) // (
            4 * max(1, len(new.capture)) * max(self._n_frames)
        )
        if len(few):
            n = min(step_sizes(1 + int(new.slots[few[-1]]))[-1], self._memory.n_recordings)
            yield self._step(new, few, range(n), end)
        while len(many):
            slots = new.slots[many]
            n_taken = np.searchsorted(slots, slots[0] + max(1, most // aligned(int(n_of.max()))))
            taken = range(int(slots[0]), 1 + int(slots[n_taken - 1]))
            yield self._step(new, many[:n_taken], taken, end)
            many = many[n_taken:]

    def _step(self, new: NewTokens, chosen: Ints, slots: range, end: StepEnd | None) -> StaticStep:
        memory, n_longest = self._memory, 1 + int(new.ranks[chosen].max())
        with_logits = np.flatnonzero(np.isin(new.with_logits, chosen))
        is_recorded = n_longest <= FEW_QUERIES[-1]
        n_queries = next((n for n in FEW_QUERIES if n >= n_longest), aligned(n_longest))
        if end is not None and end.n_beams:
            n_queries = end.n_beams
        elif len(chosen) == len(np.unique(new.rows[chosen])) and not new.has_spans and is_recorded:
            # A token a row: beams that end give no new shapes.
            memory.grow_rows(n_longest)
            n_queries = 1 if n_longest == 1 else memory.most_rows
        n_wanted = n_queries
        if end is None and len(with_logits) <= FEW_WANTED * len(slots):
            n_wanted = min(FEW_WANTED, n_queries)
        shape = StepShape(
            n_recordings=len(slots),
            n_queries=n_queries,
            n_wanted=2 if end is not None and end.reads_prefixes else n_wanted,
            n_frames=self._frames_of_step(),
            first=slots.start,
            capture=new.capture,
            has_spans=new.has_spans,
            end=end,
        )
        record = self._pool.record if is_recorded else eagerly
        step = memory.steps.get(shape) or StaticStep(self._decoder, memory, shape, record)
        if is_recorded:
            memory.keep(step)
        step.take(new, chosen, with_logits)
        return step

    def _frames_of_step(self) -> int:
        n_full, longest = self._dims.n_audio_ctx, max(self._n_frames)
        parts = (aligned(-(-n_full * part // FRAME_PARTS)) for part in range(1, FRAME_PARTS + 1))
        return next(n_frames for n_frames in parts if n_frames >= longest)


def _in_order(places: Sequence[Ints], parts: Sequence[Tensor], dim: int) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return selected(torch.cat(list(parts), dim=dim), np.argsort(np.concatenate(places)), dim)


def _give_back(pool: RowPool, borrowed: list[StaticMemory]) -> None:
    while borrowed:
        pool.give_back(borrowed.pop())
