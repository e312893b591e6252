"""Options of `sottovoce ctc` that would do nothing beside others, or without them: each is an error."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.core import ParameterSource

from sottovoce.backends.registry import choose_device
from sottovoce.ctc import CtcDecoder
from sottovoce.errors import OptionError

COMPANIONS = {
    "lm_weight": ("lm",),
    "lm_weights": ("lm",),
    "lm_level": ("lm",),
    "no_look_ahead": ("lm",),
    "label_lm_weight": ("label_lm",),
    "token_offset": ("lm", "label_lm"),
    "unknown_words": ("lexicon", "lm"),
    "unknown_score": ("lexicon", "lm"),
    "hotword_weight": ("hotwords", "vocabulary_from"),
    "hotword_weights": ("hotwords", "vocabulary_from"),
    "neural_weight": ("neural_lm",),
    "neural_weights": ("neural_lm",),
    "lm_kept": ("neural_lm",),
    "prior_scale": ("label_priors",),
}
"""Options that say something of another one, one of which must be there."""
MODELS_OWN = ("labels", "blank", "frame_ms", "logits")
"""What a model with a CTC head brings itself."""
SEARCHED = (
    *("lm", "label_lm", "lexicon", "hotwords", "vocabulary_from", "neural_lm", "nbest", "beam_size"),
    *("beam_threshold", "top_tokens", "blank_skip", "word_score", "engine"),
)
"""What needs a search."""
OF_WORDS = ("unknown_score", "unknown_words", "no_look_ahead")
"""What says something of words."""
TRIED = {
    "lm_weight": "lm_weights",
    "word_score": "word_scores",
    "neural_weight": "neural_weights",
    "hotword_weight": "hotword_weights",
}
"""Options whose values `tune` takes from a list, where there is one."""


def check_companions(context: click.Context) -> None:
    """Look at the command line by itself. Raises: OptionError for an option that would do nothing."""
    given, values = set(_given(context)), context.params
    for name, companions in COMPANIONS.items():
        if name in given and not any(values[other] for other in companions):
            raise OptionError(f"{flag(name)}: needs {' or '.join(map(flag, companions))}")
    if "case" in given and not (
        values["hotwords"] or values["vocabulary_from"] or (values["lm"] and not values["lexicon"])
    ):
        raise OptionError("--case: needs --hotwords, or --lm without --lexicon")
    if "unknown_score" in given and values["lexicon"] and not values["unknown_words"]:
        raise OptionError("--unknown-score: needs --unknown-words beside --lexicon")
    for name in MODELS_OWN:
        if name in given and values["model"] is not None:
            raise OptionError(f"{flag(name)}: a model brings its own, got --model {values['model']}")
    _check_engine(values["engine"], values["device"])


def check_greedy(context: click.Context) -> None:
    """Raises: OptionError for options that need a search, beside --greedy."""
    given = set(_given(context))
    if unused := [flag(name) for name in SEARCHED if name in given]:
        raise OptionError(f"--greedy: takes the likeliest path without a search, got {' and '.join(unused)}")


def check_tried(context: click.Context) -> None:
    """Raises: OptionError for a weight beside the list of those to try."""
    given = set(_given(context))
    for name, several in TRIED.items():
        if name in given and context.params[several] is not None:
            raise OptionError(f"{flag(name)}: tune tries the values of {flag(several)}")


def check_words(context: click.Context, decoder: CtcDecoder) -> None:
    """Raises: OptionError for options of words where the decoder turns out to have none."""
    given = set(_given(context))
    for name in OF_WORDS:
        if name in given and decoder.lexicon is None:
            raise OptionError(f"{flag(name)}: needs a model over words, got one over labels")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _given(context: click.Context) -> Iterator[str]:
    """Names of the options that the command line says."""
    for name in context.params:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield name


def _check_engine(engine: str, device: str) -> None:
    kind = choose_device(device).type
    if engine == "compiled" and kind != "cpu":
        raise OptionError(f"--engine compiled: runs on the CPU, got --device {device}")
