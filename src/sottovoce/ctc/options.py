"""Options of a CTC prefix search, and weights of its language models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from sottovoce.errors import OptionError
from sottovoce.options.schema import Option, check_options

Level = Literal["auto", "token", "word"]
Case = Literal["keep", "lower", "upper"]
Combination = Literal["mean", "nbest"]

of_emissions = partial(Option, group="Emissions")
of_search = partial(Option, group="Search")
of_models = partial(Option, group="Language models")
of_words = partial(Option, group="Words")


@dataclass(frozen=True, slots=True)
class CtcOptions:
    """Emissions, width, pruning and output of a prefix search; by default only very large label sets are
    pruned.

    Raises:
        OptionError: a value is out of range.
    """

    n_best: int = 1
    """Hypotheses returned per utterance."""
    is_normalised: bool = of_emissions(
        "Emissions are unnormalised scores: do not check them.", flag="--unnormalised", negated=True
    ).as_field(True)
    """Emissions are checked to be log-probabilities; False for other scores."""
    frame_s: float = of_emissions(
        "Milliseconds of a frame.", key="frame_ms", above=0.0, cli_default=20.0, reads=lambda ms: ms / 1000
    ).as_field(0.02)
    """Seconds per frame."""
    combine: Combination = of_emissions(
        "For several networks: mean of their probabilities, or of the posteriors of their n-best lists.",
        choices=get_args(Combination),
    ).as_field("mean")
    network_weights: tuple[float, ...] | None = of_emissions(
        "Weights of the networks.",
        kind="numbers",
        unset="default: equal",
        above=0.0,
        expected="a positive number",
    ).as_field(None)
    acoustic_scale: float = of_emissions("Factor on the emissions.", above=0.0).as_field(1.0)
    blank_penalty: float = of_emissions("Penalty of the blank in nats.").as_field(0.0)
    label_priors: tuple[float, ...] | None = of_emissions(
        "File of label frequencies, one a line, to divide by.",
        kind="file",
        above=0.0,
        expected="a positive number",
    ).as_field(None)
    """(V,); their logarithms times prior_scale are subtracted from the log-probabilities."""
    prior_scale: float = of_emissions("Exponent of the priors.").as_field(1.0)
    beam_size: int = of_search("Hypotheses kept after each frame.", least=1).as_field(16)
    """Prefixes kept per utterance."""
    beam_threshold: float | None = of_search(
        "Drop hypotheses this many nats below the best.", above=0.0
    ).as_field(None)
    top_tokens: int | None = of_search(
        "Most probable labels of a frame to extend hypotheses by.", least=1
    ).as_field(None)
    """The likeliest but the blank; None: all, or 128 of more than 1024 labels."""
    blank_skip: float | None = of_search(
        "Skip runs of frames with a higher blank probability.",
        least=0.5,
        most=1.0,
        expected="a probability from 0.5 to below 1",
    ).as_field(None)
    """The first frame of a run is searched."""
    adjust_every_frames: int | None = of_models(
        "Frames between two scorings by --neural-lm; 0: only at the end.",
        key="neural_interval",
        least=0,
        cli_default=10,
        reads=lambda frames: frames or None,
    ).as_field(10)
    """How often a `HistoryScorer` (a neural model) replaces the scores of the words so far; None: only at
    the end.
    """
    adjust_threshold: float | None = of_models(
        "Drop hypotheses this many nats below the best at each scoring, and do not score those that cannot "
        "win.",
        key="neural_threshold",
        above=0.0,
    ).as_field(None)
    """None: score and keep all."""
    times: bool = True
    """Align the returned hypotheses for token frames, word times and confidences."""
    commit_frames: int | None = 500
    """With this many uncommitted frames, hypotheses that differ from the best in the older half of them are
    dropped, to bound time and memory; None: never. Shorter streams give the same results as whole
    utterances; n-best lists of longer ones only differ in newer words.
    """

    def __post_init__(self) -> None:
        for name in ("label_priors", "network_weights"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        check_options(self)
        for name in ("n_best", "adjust_every_frames", "commit_frames"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}: expected at least 1, got {value}")
        for name in ("blank_penalty", "prior_scale"):
            if not math.isfinite(getattr(self, name)):
                raise OptionError(f"{name}: expected a finite number, got {getattr(self, name)}")
        if self.blank_skip == 1:
            raise OptionError("blank_skip: expected a probability from 0.5 to below 1, got 1")


@dataclass(frozen=True, slots=True)
class CtcFusionOptions:
    """Weights of the parts of a `CtcDecoder`; scores are natural logs.

    Raises:
        OptionError: a value is out of range, or token_offset is for a model over words.
    """

    lm_weight: float = of_models("Weight of --lm.").as_field(0.5)
    """Factor on the n-gram model's log-probability."""
    level: Level = of_models(
        "Units of --lm; auto looks at its vocabulary.", key="lm_level", choices=get_args(Level)
    ).as_field("auto")
    """Whether the n-gram model is over labels or words."""
    token_offset: int | None = of_models(
        "The n-gram over labels names them chr(label + this); 100 for models by NeMo.", least=0
    ).as_field(None)
    look_ahead: bool = of_models(
        "Do not score unfinished words by unigrams.", flag="--no-look-ahead", negated=True
    ).as_field(True)
    label_lm_weight: float = of_models("Weight of --label-lm.").as_field(0.3)
    neural_weight: float = of_models("Weight of --neural-lm.").as_field(0.5)
    """Factor on the neural model's log-probability, which replaces the n-gram's over words."""
    neural_dtype: str = of_models(
        "auto, float32, bfloat16, float16 or int8 (CPU with the native kernels). auto: int8 if possible, "
        "float16 on CUDA, else float32."
    ).as_field("auto")
    """int8: linear layers with weights and activations of 8 bits."""
    neural_cache_mb: float = of_models(
        "Limit in MB for the keys and values of --neural-lm.", above=0.0
    ).as_field(512.0)
    """Scores stay the same to rounding."""
    lm_kept: float = of_models(
        "Share of the n-gram's weight that is kept with the neural model.",
        least=0.0,
        most=1.0,
        expected="a share from 0 to 1",
    ).as_field(0.0)
    word_score: float = of_words("Score added for each word.").as_field(0.0)
    unknown_score: float = of_words("Score added for each unknown word.").as_field(-10.0)
    case: Case = of_words("Case of the words of --lm and --hotwords.", choices=get_args(Case)).as_field(
        "keep"
    )
    """How words are changed before they are spelled in labels."""
    hotword_weight: float = of_words("Score added for each label of a phrase.").as_field(2.0)
    """For phrases without a weight of their own."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.token_offset is not None and self.level == "word":
            raise OptionError("token_offset: expected an n-gram model over labels, got level 'word'")
