"""How a recording goes on that an earlier call left in the middle: its part file, and what is said of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sottovoce.cli.options import is_file
from sottovoce.cli.part_file import ENDING, PartHeader, PartWriter, StoredPart, read_part
from sottovoce.cli.progress_bar import clock
from sottovoce.formats.output import STANDARD_OUTPUT
from sottovoce.options.transcribe import TranscribeOptions

READ_WITH = (
    "model",
    "second_model",
    "defer_logprob",
    "defer_word",
    "device",
    "dtype",
    "backend",
    "model_dir",
    "revision",
    "lm",
    "lm_weight",
    "hotwords",
    "hotword_weight",
    "vocabulary_from",
    "grammar",
    "grammar_rule",
    "grammar_penalty",
)
"""Options beside those of the library that change the text; where they name a file, that is looked at."""


@dataclass(frozen=True, slots=True)
class FileStart:
    """What a recording begins with.

    writer: of its part file; None where none is kept. stored: what it held. note: what to say, None: nothing.
    """

    writer: PartWriter | None = None
    stored: StoredPart = field(default_factory=StoredPart)
    note: str | None = None


def file_start_of(
    name: str,
    places: Sequence[Path | str],
    header: PartHeader | None,
    *,
    is_fresh: bool,
    offset_s: float = 0.0,
) -> FileStart:
    """Find out where a recording begins. places: of its documents. header: None where it cannot go on.

    Raises: OptionError where a part file cannot be read.
    """
    if header is None or str(places[0]) == STANDARD_OUTPUT:
        return FileStart()
    path = Path(f"{places[0]}{ENDING}")
    stored = read_part(path, header)
    if stored is None:
        return FileStart(PartWriter(path, header))
    if stored.is_foreign:
        return FileStart(note=f"{name}: '{path}' is another program's; nothing is kept in case of a break")
    if is_fresh or stored.point is None:
        reason = "" if is_fresh else f", '{path}' is of another recording, model or other options"
        begun = None if stored.matches and not is_fresh else f"{name}: begun anew{reason}"
        return FileStart(PartWriter(path, header), note=begun)
    writer = PartWriter(path, header, stored.n_bytes)
    return FileStart(writer, stored, f"{name}: going on at {clock(stored.point.position + offset_s)}")


def interrupted_note(name: str, writer: PartWriter, *, offset_s: float = 0.0) -> str | None:
    """Write a line about a recording that was interrupted; None where nothing of it is kept."""
    stored = read_part(writer.path, writer.header)
    if stored is None or stored.point is None:
        return None
    at = clock(stored.point.position + offset_s)
    return f"{name}: the same call goes on at {at} ('{writer.path}' has what was read)"


def header_of(
    name: str, model: str, given: Mapping[str, Any], options: TranscribeOptions
) -> PartHeader | None:
    """Make what a part file has to match; None for an input that cannot be read a second time, or go on."""
    is_resumable = options.is_resumable and given["processors"] == 1
    if not is_resumable or not os.path.isfile(name):
        return None
    about = os.stat(name)
    named = {one: _with_files(given[one]) for one in READ_WITH if one in given}
    return PartHeader(version("sottovoce"), model, f"{named!r} {options!r}", about.st_size, about.st_mtime_ns)


def _with_files(value: object) -> object:
    """A value of an option; of a file, its size and when it was changed too."""
    values = value if isinstance(value, tuple | list) else [value]
    files = [os.stat(one) for one in map(str, values) if is_file(one)]
    return value, [(one.st_size, one.st_mtime_ns) for one in files]
