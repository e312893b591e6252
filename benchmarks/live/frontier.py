"""Other ways to read from the attention where the decoder is, each within a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from benchmarks.live.runs import CountingBackend
from sottovoce.backends.torch import upper_half_heads
from sottovoce.decoding.alignment import RunningStatistics
from sottovoce.streaming import attention_tracker

MOST_IN_PADDING = 0.5


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    usual = owner.__dict__.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if usual is None:
            delattr(owner, name)
        else:
            setattr(owner, name, usual)


def upper_half() -> AbstractContextManager[None]:
    """Every head of the upper half of the layers, as openai-whisper has it where none are known."""
    heads = property(lambda backend: upper_half_heads(backend.dims))
    return replaced(CountingBackend, "alignment_heads", heads)


def raw_attention() -> AbstractContextManager[None]:
    """The attention itself, not its z-score over tokens: sinks, to which every token attends, count."""

    def normalize(_: RunningStatistics, attention: Tensor, *, floor: object = 0.0) -> Tensor:
        return attention

    return replaced(RunningStatistics, "normalize", normalize)


def unfiltered() -> AbstractContextManager[None]:
    """No median over neighbouring frames."""
    return replaced(attention_tracker, "median_filter", lambda values: values)


def no_floor() -> AbstractContextManager[None]:
    """Nothing added to the deviation."""
    return replaced(attention_tracker, "SPREAD_FLOOR", 0.0)


def padding_waits() -> AbstractContextManager[None]:
    """A token that attends mostly to the padding is at the end of the audio."""
    usual = attention_tracker.AttentionTracker.frontier

    def reached(tracker: attention_tracker.AttentionTracker, rows: Sequence[int] | None = None) -> Tensor:
        at = usual(tracker, rows)
        index = list(range(tracker.n_rows) if rows is None else rows)
        heard = tracker._last[index].sum(dim=-1).mean(dim=1)[:, 0]  # the share of the audio itself, (n,)
        return torch.where(heard < 1 - MOST_IN_PADDING, tracker._n_frames[index] - 1, at)

    return replaced(attention_tracker.AttentionTracker, "frontier", reached)


FRONTIERS: Mapping[str, Callable[[], AbstractContextManager[None]]] = MappingProxyType(
    {
        "all heads of the upper half": upper_half,
        "attention without z-score": raw_attention,
        "no median filter": unfiltered,
        "no floor under the deviation": no_floor,
        "attention to padding waits": padding_waits,
    }
)
