"""Options of a CTC prefix search, and weights of its language models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from sottovoce.errors import OptionError

Level = Literal["auto", "token", "word"]
Case = Literal["keep", "lower", "upper"]
Combination = Literal["mean", "nbest"]


@dataclass(frozen=True, slots=True)
class CtcOptions:
    """Width, pruning and output of a prefix search; by default only very large label sets are pruned.

    beam_size: prefixes kept per utterance.
    n_best: hypotheses returned per utterance.
    beam_threshold: drop prefixes whose score is this far (nats) below the best.
    top_tokens: extend only by this many likeliest non-blank tokens of a frame; None: by all, or by 128 of
    more than 1024 labels.
    blank_skip: of a run of frames with a blank probability above this, search only the first.
    combine: how several networks are combined: "mean" of their probabilities in each frame, or "nbest",
    the mean of the posteriors of the texts in their lists of n_best.
    network_weights: of each network, above 0; None: equal ones.
    acoustic_scale: factor on the log-probabilities.
    blank_penalty: subtracted from the blank's log-probability (nats), against deletions.
    label_priors: relative frequencies (V,) above 0; their logarithms times prior_scale are subtracted from
    the log-probabilities.
    is_normalised: emissions are checked to be log-probabilities; False for other scores.
    adjust_every_frames: how often a `HistoryScorer` (a neural model) replaces the scores of the words so
    far; None: only at the end.
    adjust_threshold: when it does, drop prefixes this far (nats) below the best, and do not score those
    that would be even if it were certain of their words; None: score and keep all.
    times: align the returned hypotheses for token frames, word times and confidences.
    frame_s: seconds per frame.
    commit_frames: with this many uncommitted frames, hypotheses that differ from the best in the older
    half of them are dropped, to bound time and memory; None: never. Shorter streams give the same results
    as whole utterances; n-best lists of longer ones only differ in newer words.

    Raises:
        OptionError: a value is out of range.
    """

    beam_size: int = 16
    n_best: int = 1
    beam_threshold: float | None = None
    top_tokens: int | None = None
    blank_skip: float | None = None
    combine: Combination = "mean"
    network_weights: tuple[float, ...] | None = None
    acoustic_scale: float = 1.0
    blank_penalty: float = 0.0
    label_priors: tuple[float, ...] | None = None
    prior_scale: float = 1.0
    is_normalised: bool = True
    adjust_every_frames: int | None = 10
    adjust_threshold: float | None = None
    times: bool = True
    frame_s: float = 0.02
    commit_frames: int | None = 500

    def __post_init__(self) -> None:
        for name in ("beam_size", "n_best", "adjust_every_frames", "commit_frames", "top_tokens"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for name in ("acoustic_scale", "frame_s", "beam_threshold", "adjust_threshold"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        for name in ("blank_penalty", "prior_scale"):
            if not math.isfinite(getattr(self, name)):
                raise OptionError(f"{name}: expected a finite number, got {getattr(self, name)}")
        for name in ("label_priors", "network_weights"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
                for value in getattr(self, name):
                    _positive(name, value)
        if self.combine not in get_args(Combination):
            raise OptionError(
                f"combine: expected one of {', '.join(get_args(Combination))}, got {self.combine!r}"
            )
        if self.blank_skip is not None and not 0.5 <= self.blank_skip < 1:
            raise OptionError(
                f"blank_skip: expected a probability from 0.5 to below 1, got {self.blank_skip}"
            )


@dataclass(frozen=True, slots=True)
class CtcFusionOptions:
    """Weights of the parts of a `CtcDecoder`; scores are natural logs.

    lm_weight: factor on the n-gram model's log-probability.
    label_lm_weight: factor on that of the model over labels.
    word_score: added for every word.
    unknown_score: added for every word outside the lexicon.
    neural_weight: factor on the neural model's log-probability, which replaces the n-gram's over words.
    lm_kept: the share of lm_weight that remains with a neural model.
    neural_dtype: "float32", "bfloat16", "float16", "int8" (linear layers with weights and activations of 8
    bits; a CPU with the native kernels) or "auto": int8 where possible, float16 on CUDA, else float32.
    neural_cache_mb: bound (MB) of its keys and values; scores stay the same to rounding.
    hotword_weight: added for each label of a hotword without a weight of its own.
    look_ahead: use the n-gram's unigrams inside words.
    level: whether the n-gram model is over labels or words; "auto" decides by its vocabulary.
    token_offset: the words of an n-gram model over labels are `chr(label + token_offset)`, as in NeMo with
    100.
    case: how words of the n-gram model and of word lists are changed before they are spelled in labels.

    Raises:
        OptionError: lm_kept is not in [0, 1], neural_cache_mb is not positive, or token_offset is negative
            or for a model over words.
    """

    lm_weight: float = 0.5
    label_lm_weight: float = 0.3
    word_score: float = 0.0
    unknown_score: float = -10.0
    neural_weight: float = 0.5
    lm_kept: float = 0.0
    neural_dtype: str = "auto"
    neural_cache_mb: float = 512.0
    hotword_weight: float = 2.0
    look_ahead: bool = True
    level: Level = "auto"
    token_offset: int | None = None
    case: Case = "keep"

    def __post_init__(self) -> None:
        if not 0 <= self.lm_kept <= 1:
            raise OptionError(f"lm_kept: expected a share from 0 to 1, got {self.lm_kept}")
        _positive("neural_cache_mb", self.neural_cache_mb)
        if self.token_offset is not None and self.level == "word":
            raise OptionError("token_offset: expected an n-gram model over labels, got level 'word'")
        if self.token_offset is not None and self.token_offset < 0:
            raise OptionError(f"token_offset: expected at least 0, got {self.token_offset}")


def _at_least(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise OptionError(f"{name}: expected at least {minimum}, got {value}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise OptionError(f"{name}: expected a positive number, got {value}")
