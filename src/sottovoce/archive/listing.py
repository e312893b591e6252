"""List the recordings of a folder or of a manifest, and build the row of each: its document, or an error."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sottovoce.errors import ManifestError, SottovoceError
from sottovoce.evaluation.manifest import read_manifest
from sottovoce.formats.document import Json, document
from sottovoce.formats.output import label_of
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.files import read_lines
from sottovoce.types import Transcript

if TYPE_CHECKING:
    from sottovoce.api import Model


_AUDIO = "aac ac3 aif aiff amr ape au caf flac m4a m4b mka mp2 mp3 oga ogg opus spx w64 wav weba wma wv"
_VIDEO = "3gp avi flv m4v mkv mov mp4 mpeg mpg mts ogv ts vob webm wmv"
SUFFIXES = frozenset(f".{kind}" for kind in f"{_AUDIO} {_VIDEO}".split())
"""Of files in a folder that are taken for recordings; a list may name any file."""


@dataclass(frozen=True, slots=True)
class Item:
    """One recording. id: its name in the results, once in a listing. path: where it is read."""

    id: str
    path: str


def list_recordings(source: str | Path) -> list[Item]:
    """List the recordings of a folder and the folders in it, or those of a manifest, in order.

    In a folder the id is the path within it. A manifest is JSON lines with a `file` each, relative to the
    manifest, and maybe an `id`; or, where it ends in .txt, a file name a line. A recording listed twice is
    done once.

    Raises: ManifestError where there is nothing, or two recordings have one id.
    """
    place = Path(source)
    if place.is_dir():
        items = _of_folder(place)
        if not items:
            raise ManifestError(f"input '{source}': expected a folder with recordings, found none in it")
        return items
    if place.suffix.lower() == ".txt":
        return _each_once(_of_names(place), source)
    entries = read_manifest(place)
    return _each_once((Item(entry.id, str(entry.path.absolute())) for entry in entries), source)


def _of_folder(folder: Path) -> list[Item]:
    found: list[Item] = []
    for inside, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(inside, name)
            if path.suffix.lower() in SUFFIXES and not name.startswith("."):
                found.append(Item(label_of(path.relative_to(folder).as_posix()), str(path.absolute())))
    return found


def _of_names(place: Path) -> list[Item]:
    lines = read_lines(place, "a list of recordings", ManifestError)
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ManifestError(f"{place}: expected at least one recording, got none")
    return [Item(name, str((place.parent / name).absolute())) for name in names]


def _each_once(items: Iterable[Item], source: str | Path) -> list[Item]:
    """Drop repetitions.

    Raises: ManifestError for one id of two recordings.
    """
    found: dict[str, Item] = {}
    for item in items:
        if found.setdefault(item.id, item).path != item.path:
            raise ManifestError(f"{source}: expected an id for each recording, got '{item.id}' for two")
    return list(found.values())


Row: TypeAlias = "dict[str, Json]"
"""id, file, error (None, or one line), and the JSON document: text, language, duration, model, segments;
turns, where speakers were told apart."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How recordings are transcribed.

    options: as of `Model.transcribe`. language: as there; kept apart since it is checked against a model that
    is not loaded yet. n_together: recordings whose windows share the batches of the model.
    """

    options: TranscribeOptions = field(default_factory=TranscribeOptions)
    language: str | None = None
    n_together: int = 8


def transcribe_items(model: Model, items: Iterable[Item], batch: BatchOptions) -> Iterator[Row]:
    """Transcribe recordings: a row for each, in their order; one that fails has a row with its error.

    Raises: OptionError for options that no recording could be transcribed with.
    """
    waiting: list[Item] = []

    def paths() -> Iterator[str]:
        for item in items:
            waiting.append(item)
            yield item.path

    outcomes = model.transcribe_files(
        paths(), batch_size=batch.n_together, language=batch.language, options=batch.options
    )
    for _, outcome in outcomes:
        yield row_of(waiting.pop(0), outcome, model.name)


def row_of(item: Item, outcome: Transcript | Exception, model: str) -> Row:
    """Build the row of a transcript or error.

    Raises: the error itself, where it is a fault of the program.
    """
    if isinstance(outcome, Transcript):
        # A table has no columns for these.
        plain = replace(outcome, language_probability=None, language_probabilities={})
        return {"id": item.id, "file": label_of(item.path), "error": None, **document(plain)}
    return failed_row(item, model, reason(outcome))


def failed_row(item: Item, model: str, why: str) -> Row:
    """Build the row of a recording that failed. why: one line."""
    nothing: Sequence[Json] = []
    return {
        "id": item.id,
        "file": label_of(item.path),
        "error": label_of(why),
        "text": "",
        "language": "",
        "duration": None,
        "model": model,
        "segments": nothing,
    }


def reason(error: Exception) -> str:
    """Describe an error in one line.

    Raises: the error itself, where it is a fault of the program rather than of the recording.
    """
    if isinstance(error, SottovoceError):
        return str(error)
    if isinstance(error, MemoryError | RuntimeError):
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    raise error
