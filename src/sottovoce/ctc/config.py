"""`decoder.toml`: the labels, files and weights of a decoder in one file.

The keys are the arguments of `CtcDecoder` that are files or plain values, and the fields of `CtcOptions` and
`CtcFusionOptions`. Paths are relative to the folder of the file. TOML has no null: "none" is None.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

from sottovoce.ctc.labels import LabelList, labels_of
from sottovoce.ctc.options import CtcFusionOptions, CtcOptions, of_emissions, of_models, of_words
from sottovoce.errors import OptionError, cause_of
from sottovoce.text.files import read_text

_NONE = "none"
_CALLED: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What a `decoder.toml` says: files, weights and options of a decoder."""

    labels: Path | tuple[str, ...] | None = of_emissions(
        "Labels: text, JSON, .nemo, model_config.yaml, or a Hugging Face folder.", kind="file"
    ).as_field(None)
    """A file as in `labels_of`, or the names."""
    blank: int | None = of_emissions(
        "Index of the blank; -1 is the last.", unset="default: by its name in --labels, else 0"
    ).as_field(None)
    lm: Path | None = of_models("N-gram model: .trie, ARPA, ARPA.gz or KenLM binary.", kind="file").as_field(
        None
    )
    label_lm: Path | None = of_models(
        "N-gram model over labels, in addition to an --lm over words.", kind="file"
    ).as_field(None)
    neural_lm: str | None = of_models(
        "Hugging Face causal model: folder, GGUF file, name, or folder of a LoRA adapter.",
        metavar="DIR",
    ).as_field(None)
    lexicon: Path | None = of_words(
        "Words with their labels, or only words, one a line.", kind="file"
    ).as_field(None)
    unknown_words: bool | None = of_words(
        "Allow words outside the lexicon.",
        unset="default: only without --lexicon",
        switch=True,
    ).as_field(None)
    hotwords: Path | tuple[str, ...] | dict[str, float] | None = of_words(
        "File of phrases, one a line; a tab and a weight may follow, `[class] weight` is a heading.",
        kind="file",
    ).as_field(None)
    """A file, phrases, or phrases and their weights."""
    fusion: CtcFusionOptions = field(default_factory=CtcFusionOptions)
    options: CtcOptions = field(default_factory=CtcOptions)

    def label_list(self) -> LabelList:
        """Read the labels. Raises: OptionError, also without any."""
        if self.labels is None:
            raise OptionError("labels: expected a file of labels, or a list of them, got none")
        names, blank = labels_of(self.labels)
        return LabelList(names, blank if self.blank is None else self.blank)


def read_priors(path: Path) -> tuple[float, ...]:
    """Read label priors (V,), one number a line. Raises: OptionError."""
    text = read_text(path, "one number a label")
    try:
        return tuple(float(line) for line in text.split())
    except ValueError as error:
        raise OptionError(f"{path}: expected one number a label, got {cause_of(error)}") from error


def read_config(path: str | Path) -> DecoderConfig:
    """Read a `decoder.toml`.

    Raises:
        OptionError: the file cannot be read, an unknown key, or a value of another type or out of range.
    """
    path = Path(path)
    text = read_text(path, "a decoder's configuration in TOML")
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document: dict[str, object] = reader.loads(text)
    except ValueError as error:
        raise OptionError(f"{path}: expected TOML, got {cause_of(error)}") from error
    kinds = _kinds()
    values: dict[str, object] = {}
    for key, value in document.items():
        if key not in kinds:
            near = get_close_matches(key, kinds, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(kinds)}"
            raise OptionError(f"{path}: unknown key {key!r}{hint}")
        values[key] = _converted(f"{path}: {key}", value, kinds[key], path.parent)
    neural = values.get("neural_lm")
    if isinstance(neural, str) and (path.parent / neural).exists():
        values["neural_lm"] = str(path.parent / neural)
    if isinstance(values.get("label_priors"), Path):
        values["label_priors"] = read_priors(Path(str(values["label_priors"])))
    try:
        parts: dict[str, object] = {
            "fusion": CtcFusionOptions(**_of(values, CtcFusionOptions)),  # type: ignore[arg-type]
            "options": CtcOptions(**_of(values, CtcOptions)),  # type: ignore[arg-type]
        }
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from error
    return DecoderConfig(**_of(values, DecoderConfig), **parts)  # type: ignore[arg-type]


def chosen_values(config: DecoderConfig) -> dict[str, object]:
    """Return the values, by key of a `decoder.toml`, that differ from the defaults."""
    default = DecoderConfig()
    pairs = ((config, default), (config.options, default.options), (config.fusion, default.fusion))
    return {
        one.name: value
        for own, other in pairs
        for one in fields(own)
        if (value := getattr(own, one.name)) != getattr(other, one.name) and one.name in known_keys()
    }


def known_keys() -> tuple[str, ...]:
    return tuple(_kinds())


def write_config(path: str | Path, values: Mapping[str, object]) -> None:
    """Write a `decoder.toml`: values by key; paths are written relative to the folder of the file."""
    path = Path(path)
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {_written(value, path.parent)}" for key, value in plain.items()]
    for key, table in tables.items():
        lines += ["", f"[{key}]", *(f"{_written(name)} = {_written(value)}" for name, value in table.items())]
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise OptionError(f"{path}: expected a file that can be written, got {cause_of(error)}") from error


def _written(value: object, folder: Path = Path()) -> str:
    if isinstance(value, Path):
        value = Path(os.path.relpath(value, folder)).as_posix()
    value = _NONE if value is None else value
    # TOML's strings, numbers, booleans and lists are JSON's, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _kinds() -> dict[str, object]:
    found: dict[str, object] = {}
    for owner in (DecoderConfig, CtcOptions, CtcFusionOptions):
        found |= {name: kind for name, kind in get_type_hints(owner).items() if name in _names(owner)}
    for key in ("fusion", "options"):
        del found[key]
    return {**found, "label_priors": Path | found["label_priors"]}


def _names(owner: type) -> set[str]:
    return {one.name for one in fields(owner)}


def _of(values: Mapping[str, object], owner: type) -> dict[str, object]:
    return {key: value for key, value in values.items() if key in _names(owner)}


def _converted(name: str, value: object, kind: object, folder: Path) -> object:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value == _NONE and NoneType in kinds:
        return None
    for one in kinds:
        arguments = get_args(one)
        if get_origin(one) is Literal and value in arguments:
            return value
        if get_origin(one) is tuple and isinstance(value, list) and all(_is(v, arguments[0]) for v in value):
            return tuple(value)
        if get_origin(one) is dict and isinstance(value, dict) and all(_is(v, float) for v in value.values()):
            return value
        if one is Path and isinstance(value, str):
            return folder / value
        if isinstance(one, type) and _is(value, one):
            return float(value) if one is float else value  # type: ignore[arg-type]
    raise OptionError(f"{name}: expected {_expected(kinds)}, got {value!r}")


def _is(value: object, kind: object) -> bool:
    return type(value) is kind or (kind is float and type(value) is int)


def _expected(kinds: tuple[object, ...]) -> str:
    words: list[str] = []
    for one in kinds:
        arguments = get_args(one)
        if get_origin(one) is Literal:
            words += [repr(value) for value in arguments]
        elif get_origin(one) is tuple:
            words.append("a list of numbers" if arguments[0] is float else "a list of texts")
        elif get_origin(one) is dict:
            words.append("a table of numbers")
        elif one is not NoneType:
            words.append(_CALLED[one])
    return " or ".join(words)
