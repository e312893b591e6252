"""The ends of static steps on an accelerator, computed by PyTorch with the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sottovoce.decoding.choosing import BestTokensEnd
from sottovoce.decoding.filters import FORBIDDEN, allowed_after
from sottovoce.models.backend import StepEnd
from sottovoce.runtime.graphs import Outputs


@runtime_checkable
class TorchEnd(Protocol):
    """Computes a `StepEnd`."""

    def state(self, n_rows: int, n_frames: int, device: torch.device) -> Sequence[Tensor]:
        """Make the tensors, with an entry for each row, that ends of this class keep from step to step."""
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


def torch_end(end: StepEnd) -> TorchEnd:
    if isinstance(end, BestTokensEnd):
        return TorchBestTokens(end)
    assert isinstance(end, TorchEnd), f"no computation of {type(end).__name__}"
    return end


@dataclass(frozen=True, slots=True)
class TorchBestTokens:
    """Computes a `BestTokensEnd`; what a search continues is as in `search.expanded` and `that_go_on`.

    The state is (n_vocab,) float32, -inf for tokens that may follow no row.
    """

    end: BestTokensEnd

    def state(self, n_rows: int, n_frames: int, device: torch.device) -> Sequence[Tensor]:
        return (torch.zeros(self.end.n_vocab, device=device),)

    def begin(self, state: Sequence[Tensor]) -> None:
        state[0].zero_()[torch.from_numpy(self.end.forbidden).to(state[0].device)] = FORBIDDEN

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
        _, states = end.fusion.score(columns[:, 8:], columns[:, 7])
        fused = logprobs.clone()
        fused[:, : end.fusion.n_tokens] += end.fusion.score(states)[0]
        fused[:, end.eot] = logprobs[:, end.eot] + end.fusion.finish(states)
        best, tokens = fused.topk(end.n_best, dim=1)
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
