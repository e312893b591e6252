"""Name the documents of several recordings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sottovoce.errors import OptionError
from sottovoce.formats.writers import FORMATS, extension_of

STANDARD_INPUT = "-"
FULL = "full.json"
"""What json-full names end in; the rest is what the recording was called."""


def label_of(name: str) -> str:
    """Encode a file's name, or a line that holds it, so that documents can hold it.

    Bytes that are no UTF-8, which old archives have in their names, are spelled out.
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def output_paths(
    inputs: Sequence[str], folder: Path, extensions: Sequence[str]
) -> Mapping[tuple[str, str], Path]:
    """Choose the paths of the documents of several inputs: {(input, extension): folder/name.extension}.

    An input given twice, however it is spelt, has one document.
    Raises: OptionError when two inputs would be written to one file all the same, or a document over an
        input.
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


def format_named(name: str) -> str | None:
    """Find the format that the name of a file ends in, as srt of talk.srt; None where it ends in none."""
    extensions = {extension_of(name_of_format).lower(): name_of_format for name_of_format in FORMATS}
    fitting = [extension for extension in extensions if _has_extension(name, extension)]
    return extensions[max(fitting, key=len)] if fitting else None


def named_document(name: str, path: Path, extension: str) -> Mapping[tuple[str, str], Path]:
    """Place the one document of an input, as `output_paths`.

    Raises: OptionError when it would be written over the input.
    """
    if name != STANDARD_INPUT and os.path.realpath(path) == os.path.realpath(name):
        raise OptionError(f"output '{path}': is the input; choose another name")
    return {(name, extension): path}


def _has_extension(name: str, extension: str) -> bool:
    base = Path(name).name.lower()
    return base.endswith(f".{extension.lower()}") and len(base) > len(extension) + 1


def document_names(inputs: Sequence[str]) -> dict[str, str]:
    """Name the documents of each input, without extension: {input: name}, in the order given.

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
    """Name a document: at level 0 without the input's extension, then with that many parts of its path."""
    if path == STANDARD_INPUT:
        return "stdin"
    if level:
        return "-".join(_parts(path)[-level:])
    name = Path(path).name
    return name[: -len(FULL) - 1] if _has_extension(name, FULL) else Path(path).stem


def _parts(path: str) -> tuple[str, ...]:
    """The folders of an absolute path and its file name, without the root."""
    return Path(path).parts[1:]
