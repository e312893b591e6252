"""Build the row of a recording: its document, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sottovoce.api import Model
from sottovoce.archive.listing import Item
from sottovoce.errors import SottovoceError
from sottovoce.formats.document import Json, document
from sottovoce.formats.output import label_of
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import Transcript

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
