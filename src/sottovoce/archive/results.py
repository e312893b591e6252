"""The recordings of a folder, also while it grows, and the resumable table of their results: one row per
recording, a document or an error.

A row of JSON lines counts once its line break is written. Parquet is a folder of atomically written parts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from sottovoce.errors import ManifestError, OptionError, SottovoceError, needs
from sottovoce.evaluation.manifest import read_manifest
from sottovoce.formats.document import Json, document, json_text
from sottovoce.formats.output import label_of, open_output, writable_folder
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.files import fitting_name, read_lines, whole_file, writing
from sottovoce.types import Transcript

if TYPE_CHECKING:
    from sottovoce.recogniser import Recogniser


_AUDIO = "aac ac3 aif aiff amr ape au caf flac m4a m4b mka mp2 mp3 oga ogg opus spx w64 wav weba wma wv"
_VIDEO = "3gp avi flv m4v mkv mov mp4 mpeg mpg mts ogv ts vob webm wmv"
SUFFIXES = frozenset(f".{kind}" for kind in f"{_AUDIO} {_VIDEO}".split())
"""Extensions of recordings in a folder."""


@dataclass(frozen=True, slots=True)
class Item:
    id: str
    path: str


def list_recordings(source: str | Path) -> list[Item]:
    """List the recordings of a folder tree, a manifest, or a .txt list of names, without duplicates.

    The id of a file in a folder is its relative path.
    Raises: ManifestError if it is empty, or two recordings have one id.
    """
    if not str(source):
        raise ManifestError("input: expected a folder or a list of recordings, got ''")
    place = Path(source)
    if place.is_dir():
        items = recordings_in(place)
        if not items:
            raise ManifestError(f"input '{source}': expected a folder with recordings, found none in it")
        return items
    if place.suffix.lower() == ".txt":
        return _each_once(_of_names(place), source)
    entries = read_manifest(place)
    return _each_once((Item(entry.id, str(entry.path.absolute())) for entry in entries), source)


def recordings_in(folder: Path) -> list[Item]:
    """List the recordings of a folder tree, and the subfolders that cannot be read, which fail as these."""
    items: list[Item] = []
    unreadable: list[OSError] = []
    for inside, folders, names in os.walk(folder, onerror=unreadable.append, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(inside, name) for name in sorted(names))
        items += [item_of(path, folder) for path in paths if is_recording(Path(path.name))]
    places = (Path(error.filename) for error in unreadable)
    return items + [item_of(path, folder) for path in places if path != folder]


def is_recording(path: Path) -> bool:
    """Whether a path within a folder has an extension of recordings, and no part of it is hidden."""
    return path.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.parts)


def item_of(path: Path, folder: Path) -> Item:
    path = path.absolute()
    return Item(label_of(path.relative_to(folder.absolute()).as_posix()), str(path))


def _of_names(place: Path) -> list[Item]:
    lines = read_lines(place, "a list of recordings", ManifestError)
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ManifestError(f"{place}: expected at least one recording, got none")
    return [Item(name, str((place.parent / name).absolute())) for name in names]


def _each_once(items: Iterable[Item], source: str | Path) -> list[Item]:
    by_id: dict[str, Item] = {}
    for item in items:
        if by_id.setdefault(item.id, item).path != item.path:
            raise ManifestError(f"{source}: expected an id for each recording, got '{item.id}' for two")
    return list(by_id.values())


Row: TypeAlias = "dict[str, Json]"
"""id, file, error (None, or one line), and the JSON document."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How recordings are transcribed.

    n_together: recordings whose windows share batches. beam_size: None: that of the model.
    """

    options: TranscribeOptions = field(default_factory=TranscribeOptions)
    language: str | None = None
    n_together: int = 8
    beam_size: int | None = None


def transcribe_items(model: Recogniser, items: Iterable[Item], batch: BatchOptions) -> Iterator[Row]:
    """Yield a row for each recording, in order.

    Raises: OptionError for options that would fail on every recording.
    """
    waiting: list[Item] = []

    def paths() -> Iterator[str]:
        for item in items:
            waiting.append(item)
            yield item.path

    outcomes = model.transcribe_files(
        paths(),
        batch_size=batch.n_together,
        language=batch.language,
        beam_size=batch.beam_size or model.beam_size,
        options=batch.options,
    )
    for _, outcome in outcomes:
        yield row_of(waiting.pop(0), outcome, model.name)


def row_of(item: Item, outcome: Transcript | Exception, model: str) -> Row:
    if isinstance(outcome, Transcript):
        # A table has no columns for these.
        plain = replace(outcome, language_probability=None, language_probabilities={})
        return {"id": item.id, "file": label_of(item.path), "error": None, **document(plain)}
    return failed_row(item, model, reason(outcome))


def failed_row(item: Item, model: str, why: str) -> Row:
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
    """Describe an error in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, SottovoceError) else f"{type(error).__name__}: {text[:300]}"


_BEGINNING = b'{"id": '


@contextmanager
def open_results(place: str | Path) -> Iterator[ResultTable]:
    """Open or create a table, a .jsonl file or a .parquet folder.

    Raises: OptionError for another extension, an unwritable place, a foreign file, and a table in use;
        MissingExtraError.
    """
    path = Path(place)
    suffix = path.suffix.lower()
    if suffix not in (".jsonl", ".parquet"):
        raise OptionError(f"output '{place}': expected a name that ends in .jsonl or .parquet")
    writable_folder(path.absolute().parent)
    with _alone(path):
        results: ResultTable = JsonLinesTable(path) if suffix == ".jsonl" else ParquetTable(path)
        try:
            yield results
        finally:
            try:
                results.flush()
            finally:
                if path.is_file() and not path.stat().st_size:
                    path.unlink()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout  # a command that transcribes imports this file

    lock = FileLock(path.with_name(fitting_name(f".{path.name}", ".lock")))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OptionError(f"output '{path}': another program writes to it") from error
    try:
        yield
    finally:
        lock.release()  # and keep its file: another program may have opened it


class JsonLinesTable:
    """A file of JSON lines; half a line at the end, left by a crash, is dropped.

    Raises: OptionError for a foreign file.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise OptionError(f"output '{path}': expected a file of JSON lines")
        self._path, self._name = path, f"output '{path}'"
        self._drop_half_line()
        self._file = self._open()

    def rows(self) -> Iterator[Row]:
        with self._path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise self._foreign(number) from error
                if not isinstance(row, dict) or not isinstance(row.get("id"), str):
                    raise self._foreign(number)
                yield row

    def replace(self, rows: Sequence[Row]) -> None:
        self._file.close()
        try:
            with open_output(self._path) as write:
                for row in rows:
                    write(json_text(row) + "\n")
        finally:
            self._file = self._open()

    def append(self, row: Row) -> None:
        with writing(self._name):
            self._file.write((json_text(row) + "\n").encode())
            self._file.flush()

    def flush(self) -> None:
        with writing(self._name), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _open(self) -> BinaryIO:
        with writing(self._name):
            return self._path.open("ab")

    def _drop_half_line(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb+") as file:
            start = file.readline()
            if not _BEGINNING.startswith(start[: len(_BEGINNING)]):
                raise self._foreign(1)
            whole = 0
            file.seek(0)
            for line in file:
                whole += len(line) if line.endswith(b"\n") else 0
            file.truncate(whole)

    def _foreign(self, number: int) -> OptionError:
        return OptionError(f"output '{self._path}', line {number}: expected rows of transcripts, got others")


class ParquetTable:
    """A folder of Parquet parts; rows are buffered until a part is full.

    Raises: OptionError for a path that is no folder, or cannot be written; MissingExtraError.
    """

    def __init__(self, path: Path) -> None:
        with needs("pyarrow", "parquet", "Parquet"):
            import pyarrow as pa
            import pyarrow.parquet as pq
        self._arrow, self._parquet = pa, pq
        if path.exists() and not path.is_dir():
            raise OptionError(f"output '{path}': expected a folder of Parquet parts, it is a file")
        self._path = writable_folder(path)
        self._held: list[Row] = []

    def rows(self) -> Iterator[Row]:
        for part in self._parts():
            for row in self._parquet.read_table(part).to_pylist():
                if row.get("turns") is None:  # speakers were not diarized
                    row.pop("turns", None)
                yield row

    def replace(self, rows: Sequence[Row]) -> None:
        before = self._parts()
        self._held = list(rows)
        self.flush()
        for part in before:
            part.unlink()

    def append(self, row: Row) -> None:
        self._held.append(row)
        if len(self._held) >= 512:  # rows of a group of the table
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        numbers = [int(part.stem.split("-")[1]) for part in self._parts()]
        place = self._path / f"part-{max(numbers, default=-1) + 1:06}.parquet"
        table = self._arrow.Table.from_pylist(self._held, schema=_schema(self._arrow))
        with writing(f"output '{place}'"), whole_file(place) as unfinished:
            self._parquet.write_table(table, unfinished, compression="zstd")
        self._held = []

    def _parts(self) -> list[Path]:
        return sorted(self._path.glob("part-[0-9]*.parquet"))


ResultTable: TypeAlias = JsonLinesTable | ParquetTable
"""A table being written. Methods raise OptionError for a foreign file and a full disk."""


def _schema(arrow: ModuleType) -> object:
    text, real, whole = arrow.string(), arrow.float64(), arrow.int64()
    word = {"word": text, "start": real, "end": real, "probability": real, "language": text, "speaker": text}
    segment = {
        "id": whole,
        "start": real,
        "end": real,
        "text": text,
        "language": text,
        "speaker": text,
        "tokens": arrow.list_(arrow.int32()),
        "temperature": real,
        "avg_logprob": real,
        "compression_ratio": real,
        "no_speech_prob": real,
        "words": arrow.list_(arrow.struct(word)),
    }
    turn = {"start": real, "end": real, "speaker": text}
    columns = {
        "id": text,
        "file": text,
        "error": text,
        "text": text,
        "language": text,
        "duration": real,
        "model": text,
        "segments": arrow.list_(arrow.struct(segment)),
        "turns": arrow.list_(arrow.struct(turn)),
    }
    return arrow.schema(list(columns.items()))


def left_to_do(items: Sequence[Item], results: ResultTable, *, again: bool = False) -> list[Item]:
    """List the recordings without a row; with `again`, also those with an error, whose rows are removed."""
    rows = list(results.rows()) if again else []
    good = [row for row in rows if row["error"] is None]
    if len(good) < len(rows):
        results.replace(good)
    done = {str(row["id"]) for row in results.rows()}
    return [item for item in items if item.id not in done]


def write_rows(rows: Iterable[Row], results: ResultTable) -> Iterator[Row]:
    """Append rows to the table; yield each one once it is written.

    Raises: OptionError if the table has rows of another model.
    """
    seen: set[str] = set()
    for row in rows:
        if not seen:
            _check_model(row, results)
        name = str(row["id"])
        if name in seen:  # of duplicate work, the first result counts
            continue
        seen.add(name)
        results.append(row)
        yield row


def _check_model(row: Row, results: ResultTable) -> None:
    before = next((str(there["model"]) for there in results.rows() if there["model"]), "")
    if before and row["model"] and row["model"] != before:
        raise OptionError(
            f"output: expected rows of the model '{before}', as those that are there; got '{row['model']}'"
        )


LOOK_S = 0.25
"""Between two looks at recordings that may still grow; new ones are reported by the system."""


def watched_recordings(folder: str | Path, *, settle_s: float = 5.0) -> Iterator[list[Item]]:
    """Yield what `recordings_in` lists, and then the recordings that are new or changed, without end.

    settle_s: a recording is complete if its size and time of change stay the same for so long.

    Raises:
        OptionError: it is no folder, or cannot be read. MissingExtraError: watchfiles is not installed.
    """
    folder = Path(folder)
    readable = [inside for inside, _, _ in os.walk(folder)]
    if not readable:
        raise OptionError(f"watch '{folder}': expected a folder that can be read")
    with needs("watchfiles", "watch", "watching a folder"):
        from watchfiles import watch
    changes = watch(
        *readable,  # a recursive watch of the tree ends at the first subfolder that cannot be read
        rust_timeout=round(1000 * LOOK_S),
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    return _watched(folder, settle_s, changes)


def _watched(
    folder: Path, settle_s: float, changes: Iterable[Iterable[tuple[object, str]]]
) -> Iterator[list[Item]]:
    waiting: dict[Path, tuple[tuple[int, int] | None, float]] = {}
    reported: dict[Path, tuple[int, int]] = {}
    is_listed = False
    for changed in changes:
        changes_here = [Path(path) for _, path in changed]
        paths = [path for path in changes_here if is_recording(path.relative_to(folder.absolute()))]
        # Listed after the watch has begun, so that no recording falls between.
        if not is_listed or any(path.is_dir() and path.name[0] != "." for path in changes_here):
            paths += [Path(item.path) for item in recordings_in(folder)]
            is_listed = True
        now_s = time.monotonic()
        for path in paths:
            waiting.setdefault(path, (None, now_s))
        ready = []
        for path, (state, since_s) in list(waiting.items()):
            new = _state(path)
            if new is None or new == reported.get(path):
                del waiting[path]
            elif new != state:
                waiting[path] = new, now_s
            elif now_s - since_s >= settle_s:
                del waiting[path]
                reported[path] = new
                ready.append(item_of(path, folder))
        if ready:
            yield sorted(ready, key=lambda item: item.id)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns
