"""What the documents of several recordings are called."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sottovoce.errors import OptionError

STANDARD_INPUT = "-"


def label_of(name: str) -> str:
    """A file's name, or a line that holds it, as documents can hold it.

    Bytes that are no UTF-8, which old archives have in their names, are spelled out.
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def output_paths(
    inputs: Sequence[str], folder: Path, extensions: Sequence[str]
) -> Mapping[tuple[str, str], Path]:
    """Where the documents of several inputs go: {(input, extension): folder/name.extension}.

    An input given twice, however it is spelt, has one document.
    Raises OptionError when two inputs would be written to one file all the same, or a document over an input.
    """
    paths: dict[tuple[str, str], Path] = {}
    owners: dict[Path, str] = {}
    originals = {Path(os.path.realpath(name)) for name in inputs if name != STANDARD_INPUT}
    for name, document in document_names(inputs).items():
        for extension in extensions:
            path = folder / f"{document}.{extension}"
            real = Path(os.path.realpath(path))
            if real in owners:
                raise OptionError(
                    f"output '{path}': both '{owners[real]}' and '{name}' would be written there"
                )
            if real in originals:
                raise OptionError(f"output '{path}': is one of the inputs; choose another folder")
            owners[real] = name
            paths[name, extension] = path
    return paths


def document_names(inputs: Sequence[str]) -> dict[str, str]:
    """A name without extension for the documents of each input: {input: name}, in the order given.

    `talk` of talk.mp3; of inputs that would share it, `talk.mp3` and `talk.wav`; of those that share this
    too, `monday-talk.mp3` and `friday-talk.mp3` by their folders, and so on up the folders. Names that
    differ in capitals alone are the same: on some systems they are one file. The order given does not count.
    """
    distinct: dict[str, str] = {}
    for name in inputs:
        distinct.setdefault(name if name == STANDARD_INPUT else os.path.abspath(name), name)
    levels = dict.fromkeys(distinct, 0)
    while True:
        names = {path: _name(path, level) for path, level in levels.items()}
        counts = Counter(name.casefold() for name in names.values())
        raised = [
            path
            for path, name in names.items()
            if counts[name.casefold()] > 1 and levels[path] < len(_parts(path))
        ]
        if not raised:
            return {name: names[path] for path, name in distinct.items()}
        for path in raised:
            levels[path] += 1


def _name(path: str, level: int) -> str:
    """The name of a document: at level 0 without the input's extension, then with that many parts of it."""
    if path == STANDARD_INPUT:
        return "stdin"
    return "-".join(_parts(path)[-level:]) if level else Path(path).stem


def _parts(path: str) -> tuple[str, ...]:
    """The folders of an absolute path and its file name, without the root."""
    return Path(path).parts[1:]
