"""Options of a CTC prefix search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from sottovoce.errors import OptionError

SearchEngine = Literal["auto", "compiled", "tensors"]


@dataclass(frozen=True, slots=True)
class CtcOptions:
    """Width, pruning and output of a prefix search; by default only very large label sets are pruned.

    beam_size: prefixes kept per utterance.
    n_best: hypotheses returned per utterance.
    beam_threshold: drop prefixes whose score is this far (nats) below the best.
    top_tokens: extend only by this many likeliest non-blank tokens of a frame; None: by all, or by 128 of
    more than 1024 labels.
    blank_skip: of a run of frames with a blank probability above this, search only the first.
    acoustic_scale: factor on the log-probabilities.
    blank_penalty: subtracted from the blank's log-probability (nats), against deletions.
    label_priors: relative frequencies (V,) above 0; their logarithms times prior_scale are subtracted from
    the log-probabilities.
    is_normalised: emissions are checked to be log-probabilities; False for other scores.
    adjust_every_frames: how often a `HistoryScorer` replaces the scores of the words so far.
    times: align the returned hypotheses for token frames, word times and confidences.
    frame_s: seconds per frame.
    commit_frames: with this many uncommitted frames, hypotheses that differ from the best in the older
    half of them are dropped, to bound time and memory; None: never. Shorter streams give the same results
    as whole utterances; n-best lists of longer ones only differ in newer words.
    engine: "compiled" (machine code on the CPU, extra `fast`), "tensors" (any device), or "auto" (compiled
    if possible). Results are the same.

    Raises:
        OptionError: a value is out of range.
    """

    beam_size: int = 16
    n_best: int = 1
    beam_threshold: float | None = None
    top_tokens: int | None = None
    blank_skip: float | None = None
    acoustic_scale: float = 1.0
    blank_penalty: float = 0.0
    label_priors: tuple[float, ...] | None = None
    prior_scale: float = 1.0
    is_normalised: bool = True
    adjust_every_frames: int = 10
    times: bool = True
    frame_s: float = 0.02
    engine: SearchEngine = "auto"
    commit_frames: int | None = 500

    def __post_init__(self) -> None:
        for name in ("beam_size", "n_best", "adjust_every_frames"):
            _at_least(name, getattr(self, name), 1)
        if self.commit_frames is not None:
            _at_least("commit_frames", self.commit_frames, 1)
        if self.top_tokens is not None:
            _at_least("top_tokens", self.top_tokens, 1)
        for name in ("acoustic_scale", "frame_s"):
            _positive(name, getattr(self, name))
        if self.beam_threshold is not None:
            _positive("beam_threshold", self.beam_threshold)
        for name in ("blank_penalty", "prior_scale"):
            if not math.isfinite(getattr(self, name)):
                raise OptionError(f"{name}: expected a finite number, got {getattr(self, name)}")
        if self.label_priors is not None:
            object.__setattr__(self, "label_priors", tuple(map(float, self.label_priors)))
            for prior in self.label_priors:
                _positive("label_priors", prior)
        if self.engine not in get_args(SearchEngine):
            raise OptionError(
                f"engine: expected one of {', '.join(get_args(SearchEngine))}, got {self.engine!r}"
            )
        if self.blank_skip is not None and not 0.5 <= self.blank_skip < 1:
            raise OptionError(
                f"blank_skip: expected a probability from 0.5 to below 1, got {self.blank_skip}"
            )


def _at_least(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise OptionError(f"{name}: expected at least {minimum}, got {value}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise OptionError(f"{name}: expected a positive number, got {value}")
