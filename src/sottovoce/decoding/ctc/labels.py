"""The labels of a CTC model, from files and from other toolkits' objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from sottovoce.errors import OptionError, cause_of
from sottovoce.text.files import read_lines, read_text


class LabelList(NamedTuple):
    """One name per output, and the blank's index; None where the source does not name it."""

    names: tuple[str, ...]
    blank: int | None


class VocabularyTokenizer(Protocol):
    """The part of a Hugging Face CTC tokenizer that is used."""

    @property
    def pad_token_id(self) -> int | None: ...

    def get_vocab(self) -> Mapping[str, int]: ...


class Processor(Protocol):
    """The part of a Hugging Face processor, such as `Wav2Vec2Processor`, that is used."""

    @property
    def tokenizer(self) -> VocabularyTokenizer: ...


def labels_of_processor(processor: Processor | VocabularyTokenizer) -> LabelList:
    """Read the labels of a Hugging Face processor or its tokenizer; its padding token is the blank.

    Raises: OptionError for ids with gaps, or no padding token.
    """
    # Not `isinstance`: from Python 3.12 on it does not see what a tokenizer answers by `__getattr__`.
    tokenizer = cast(VocabularyTokenizer, getattr(processor, "tokenizer", None) or processor)
    names = _by_id(tokenizer.get_vocab())
    if tokenizer.pad_token_id is None:
        raise OptionError("processor: expected a padding token (the blank), got none")
    return LabelList(names, tokenizer.pad_token_id)


def labels_of_nemo(vocabulary: Sequence[str]) -> LabelList:
    """Make labels of a NeMo CTC model's `decoder.vocabulary`: the blank comes after them."""
    return LabelList((*vocabulary, "<blank>"), len(vocabulary))


def read_labels(path: str | Path) -> LabelList:
    """Read the labels of a file.

    Text: one label a line, spaces kept. JSON: a list; {"vocab": [...], "blank": n}; or a vocabulary
    {label: id} as Hugging Face's `vocab.json`, where the blank is "<pad>" or "[PAD]".
    Raises: OptionError for a file that cannot be read, or holds no labels.
    """
    path = Path(path)
    if path.suffix != ".json":
        return LabelList(tuple(read_lines(path, "labels")), None)
    try:
        return _of_json(json.loads(read_text(path, "labels")))
    except OptionError:
        raise
    except ValueError as error:
        raise OptionError(f"{path}: expected labels, got {cause_of(error)}") from error


def _of_json(document: object) -> LabelList:
    if isinstance(document, list):
        return LabelList(tuple(str(name) for name in document), None)
    if isinstance(document, dict) and isinstance(document.get("vocab"), list):
        return LabelList(tuple(str(name) for name in document["vocab"]), document.get("blank"))
    if isinstance(document, dict) and all(isinstance(value, int) for value in document.values()):
        names = _by_id(document)
        pad = next((i for i, name in enumerate(names) if name.lower() in ("<pad>", "[pad]")), None)
        return LabelList(names, pad)
    raise ValueError("neither a list, nor 'vocab' and 'blank', nor a vocabulary")


def _by_id(vocabulary: Mapping[str, int]) -> tuple[str, ...]:
    names = sorted(vocabulary, key=lambda name: vocabulary[name])
    if [vocabulary[name] for name in names] != list(range(len(names))):
        raise OptionError(f"labels: expected ids 0 to {len(names) - 1}, each once, got others")
    return tuple(names)
