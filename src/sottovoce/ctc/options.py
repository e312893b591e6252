"""Options of a CTC prefix search, weights of its language models, and `decoder.toml`, whose keys are these
options and the arguments of `CtcDecoder`. Its paths are relative to its folder; "none" is None.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from sottovoce.ctc.labels import LabelList, labels_of
from sottovoce.errors import OptionError, expecting
from sottovoce.options.schema import Option, check_options
from sottovoce.text.files import read_text, read_toml, whole_file, writing

Level = Literal["auto", "token", "word"]
Case = Literal["keep", "lower", "upper"]
Combination = Literal["mean", "nbest"]

of_emissions = partial(Option, group="Emissions")
of_search = partial(Option, group="Search")
of_models = partial(Option, group="Language models")
of_words = partial(Option, group="Words")


@dataclass(frozen=True, slots=True)
class CtcOptions:
    """Emissions, width, pruning and output of a prefix search.

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
    """How often a neural model replaces the scores of the words so far; None: only at
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
    dropped, to bound time and memory; None: never. Shorter streams give the results of whole utterances;
    n-best lists of longer ones differ in newer words.
    """

    def __post_init__(self) -> None:
        for name in ("label_priors", "network_weights"):
            given = getattr(self, name)
            try:
                numbers = None if given is None else tuple(map(float, given))
            except (TypeError, ValueError) as error:
                raise OptionError(f"{name}: expected numbers, got {given!r:.80}") from error
            object.__setattr__(self, name, numbers)
        check_options(self)
        for name in ("n_best", "adjust_every_frames", "commit_frames"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}: expected at least 1, got {value}")
        if self.blank_skip == 1:
            raise OptionError("blank_skip: expected a probability from 0.5 to below 1, got 1")


def weighted_files(given: Sequence[Path]) -> Path | dict[str, float] | None:
    """Read files FILE or FILE=WEIGHT of the command line. Raises: OptionError."""
    if len(given) == 1 and ("=" not in str(given[0]) or given[0].exists()):
        return given[0]
    weights: dict[str, float] = {}
    for path in given:
        name, _, weight = str(path).rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise OptionError(f"--lm: expected FILE=WEIGHT, got '{path}'") from None
    return weights or None


@dataclass(frozen=True, slots=True)
class CtcFusionOptions:
    """Weights of the parts of a `CtcDecoder`; scores are natural logs.

    Raises:
        OptionError: a value is out of range, or token_offset is for a model over words.
    """

    lm_weight: float = of_models("Weight of an --lm without its own.").as_field(0.5)
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


_NONE = "none"
_KINDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    tuple[str, ...]: "a list of texts",
    tuple[float, ...]: "a list of numbers",
    dict[str, float]: "a table of numbers",
}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Files, weights and options of a decoder."""

    labels: Path | tuple[str, ...] | None = of_emissions(
        "Labels: text, JSON, .nemo, model_config.yaml, or a Hugging Face folder.", kind="file"
    ).as_field(None)
    """A file as in `labels_of`, or the names."""
    blank: int | None = of_emissions(
        "Index of the blank; -1 is the last.",
        unset="default: by its name in --labels, else the label that is likeliest in most frames",
    ).as_field(None)
    lm: Path | dict[str, float] | None = of_models(
        "N-gram model: .trie, ARPA, ARPA.gz or KenLM binary; several with their weights.",
        kind="file",
        many=True,
        metavar="FILE[=WEIGHT]",
        reads=weighted_files,
    ).as_field(None)
    """A file, or files and their weights."""
    label_lm: Path | None = of_models(
        "N-gram model over labels, in addition to an --lm over words.", kind="file"
    ).as_field(None)
    neural_lm: str | None = of_models(
        "Hugging Face causal model: folder, GGUF file, name, or folder of a LoRA adapter.", metavar="DIR"
    ).as_field(None)
    lexicon: Path | None = of_words(
        "Words with their labels, or only words, one a line.", kind="file"
    ).as_field(None)
    unknown_words: bool | None = of_words(
        "Allow words outside the lexicon.", unset="default: only without --lexicon", switch=True
    ).as_field(None)
    hotwords: Path | tuple[str, ...] | dict[str, float] | None = of_words(
        "File of phrases, one a line; a tab and a weight may follow, `[class] weight` is a heading.",
        kind="file",
    ).as_field(None)
    """A file, phrases, or phrases and their weights."""
    fusion: CtcFusionOptions = field(default_factory=CtcFusionOptions)
    options: CtcOptions = field(default_factory=CtcOptions)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `CtcDecoder`, without the labels."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in ("labels", "blank")
        }

    def label_list(self) -> LabelList:
        """Read the labels. Raises: OptionError, also without any."""
        if self.labels is None:
            raise OptionError("labels: expected a file of labels, or a list of them, got none")
        names, blank = labels_of(self.labels)
        return LabelList(names, blank if self.blank is None else self.blank)


def read_priors(path: Path) -> tuple[float, ...]:
    """Read label priors (V,), one number a line. Raises: OptionError."""
    with expecting(path, "one number a label"):
        return tuple(float(line) for line in read_text(path, "one number a label").split())


def read_config(path: str | Path) -> DecoderConfig:
    """Read a `decoder.toml`.

    Raises:
        OptionError: the file cannot be read, an unknown key, or a value of another type or out of range.
    """
    path = Path(path)
    document = read_toml(path, "a decoder's configuration in TOML")
    kinds = _kinds()
    values: dict[str, object] = {}
    for key, value in document.items():
        if key not in kinds:
            near = get_close_matches(key, kinds, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(kinds)}"
            raise OptionError(f"{path}: unknown key {key!r}{hint}")
        values[key] = _converted(f"{path}: {key}", value, kinds[key], path.parent)
    neural, priors = values.get("neural_lm"), values.get("label_priors")
    if isinstance(neural, str) and (path.parent / neural).exists():
        values["neural_lm"] = str(path.parent / neural)
    if isinstance(ngrams := values.get("lm"), dict):
        values["lm"] = {str(path.parent / name): weight for name, weight in ngrams.items()}
    if isinstance(priors, Path):
        values["label_priors"] = read_priors(priors)
    try:
        parts: dict[str, object] = {
            "fusion": CtcFusionOptions(**_of(values, CtcFusionOptions)),  # type: ignore[arg-type]
            "options": CtcOptions(**_of(values, CtcOptions)),  # type: ignore[arg-type]
        }
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from error
    return DecoderConfig(**_of(values, DecoderConfig), **parts)  # type: ignore[arg-type]


def chosen_values(config: DecoderConfig) -> dict[str, object]:
    """Return the values that differ from the defaults, by key."""
    default = DecoderConfig()
    pairs = ((config, default), (config.options, default.options), (config.fusion, default.fusion))
    return {
        field.name: value
        for chosen, other in pairs
        for field in fields(chosen)
        if (value := getattr(chosen, field.name)) != getattr(other, field.name) and field.name in known_keys()
    }


def known_keys() -> tuple[str, ...]:
    return tuple(_kinds())


def write_config(path: str | Path, values: Mapping[str, object]) -> None:
    """Write values by key, with paths relative to the file's folder."""
    path = Path(path)
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {_written(value, path.parent)}" for key, value in plain.items()]
    for key, table in tables.items():
        lines += [
            "",
            f"[{key}]",
            *(f"{_written(name, path.parent)} = {_written(value)}" for name, value in table.items()),
        ]
    with writing(str(path)), whole_file(path) as unfinished:
        unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _written(value: object, folder: Path = Path()) -> str:
    if isinstance(value, Path):
        value = Path(os.path.relpath(value, folder)).as_posix()
    value = _NONE if value is None else value
    # TOML's strings, numbers, booleans and lists are JSON's, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _kinds() -> dict[str, object]:
    kinds: dict[str, object] = {}
    for owner in (DecoderConfig, CtcOptions, CtcFusionOptions):
        kinds |= {name: kind for name, kind in get_type_hints(owner).items() if name in _names(owner)}
    del kinds["fusion"], kinds["options"]
    return {**kinds, "label_priors": Path | kinds["label_priors"]}


def _names(owner: type) -> set[str]:
    return {field.name for field in fields(owner)}


def _of(values: Mapping[str, object], owner: type) -> dict[str, object]:
    return {key: value for key, value in values.items() if key in _names(owner)}


def _converted(name: str, value: object, kind: object, folder: Path) -> object:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value == _NONE and NoneType in kinds:
        return None
    try:
        plain: object = Union.__getitem__(tuple(str if each is Path else each for each in kinds))
        converted: object = msgspec.convert(value, plain)
    except msgspec.ValidationError as error:
        named = (_KINDS.get(each) or " or ".join(map(repr, get_args(each))) for each in kinds)
        expected = " or ".join(filter(None, named))
        raise OptionError(f"{name}: expected {expected}, got {value!r}") from error
    return folder / converted if Path in kinds and isinstance(converted, str) else converted
