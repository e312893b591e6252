"""The ends of static steps on an accelerator, computed by PyTorch with the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.decoding.alignment import FILTER_WIDTH, LEAST_DEVIATION, MEDIAN_NETWORK
from sottovoce.decoding.choosing import SPREAD_FLOOR, AlignAttEnd, BestTokensEnd
from sottovoce.decoding.filters import FORBIDDEN, allowed_after
from sottovoce.decoding.vocabulary import LiveVocabulary
from sottovoce.models.backend import Ints, StepEnd
from sottovoce.runtime.graphs import Outputs
from sottovoce.runtime.torch_fusion import fusion_on


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
        source, target, n_frames, n_new, n_cached = columns.unbind(1)
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
            ends = torch.cat(
                [no_speech, self._text_ends(logits) if end.measures_ends else ends[:, 1:]], dim=1
            )
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
