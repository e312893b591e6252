"""The table that rows are appended to; after a crash it goes on where it was.

JSON lines are one file; a row counts when its line break is written. Parquet is a folder of parts, each of
which appears whole; rows that are in no part yet are done again. One program at a time may write to a table.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from filelock import FileLock, Timeout

from sottovoce.archive.listing import Item, Row
from sottovoce.errors import MissingExtraError, OptionError, cause_of
from sottovoce.formats.document import json_text
from sottovoce.formats.output import writable_folder

PART_ROWS = 512
"""Rows of a Parquet part, but for the last one of a run."""
_BEGINNING = b'{"id": '
"""Of every row in JSON lines."""


class ResultTable(Protocol):
    """A table being written. Methods raise OptionError for a file of something else and for a full disk."""

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the table."""
        ...

    def replace(self, rows: Sequence[Row]) -> None:
        """Write the table anew with these rows alone."""
        ...

    def append(self, row: Row) -> None:
        """Add a row."""
        ...

    def flush(self) -> None:
        """Write added rows to disk."""
        ...


@contextmanager
def open_results(place: str | Path) -> Iterator[ResultTable]:
    """Open a table to go on with, or create one: a .jsonl file, or a .parquet folder; flushed at the end.

    Raises: OptionError for another name, a place that cannot be written, a file of something else, and a
        table that another program writes to; MissingExtraError for Parquet without pyarrow.
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
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OptionError(f"output '{path}': another program writes to it") from error
    try:
        yield
    finally:
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)


class JsonLinesTable:
    """A file of JSON lines, one for each row. Half a line, which a crash left at the end, is dropped.

    Raises: OptionError for a path that is no file, or a file of something else.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise OptionError(f"output '{path}': expected a file of JSON lines")
        self._path = path
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
        partial = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.part")
        try:
            with self._named(), partial.open("x", encoding="utf-8", newline="\n") as file:
                file.writelines(json_text(row) + "\n" for row in rows)
                file.flush()
                os.fsync(file.fileno())
            self._file.close()
            os.replace(partial, self._path)
        finally:
            partial.unlink(missing_ok=True)
            self._file.close()
            self._file = self._open()

    def append(self, row: Row) -> None:
        with self._named():
            self._file.write((json_text(row) + "\n").encode())
            self._file.flush()

    def flush(self) -> None:
        with self._named(), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _open(self) -> BinaryIO:
        with self._named():
            return self._path.open("ab")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OptionError(f"output '{self._path}': cannot be written ({cause_of(error)})") from error

    def _drop_half_line(self) -> None:
        """Cut off what a crash left of the last row.

        Raises: OptionError for a file of something else, which stays as it is.
        """
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
    """A folder of Parquet parts; rows are collected until there are enough for a part.

    Raises: OptionError for a path that is no folder, or cannot be written; MissingExtraError without pyarrow.
    """

    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = _pyarrow()
        if path.exists() and not path.is_dir():
            raise OptionError(f"output '{path}': expected a folder of Parquet parts, it is a file")
        self._path = writable_folder(path)
        self._held: list[Row] = []
        for left in path.glob(".*.part"):
            left.unlink()

    def rows(self) -> Iterator[Row]:
        for part in self._parts():
            for row in self._parquet.read_table(part).to_pylist():
                if row.get("turns") is None:  # speakers were not told apart
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
        if len(self._held) >= PART_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        numbers = [int(part.stem.split("-")[1]) for part in self._parts()]
        place = self._path / f"part-{max(numbers, default=-1) + 1:06}.parquet"
        partial = place.with_name(f".{place.name}.part")
        table = self._arrow.Table.from_pylist(self._held, schema=_schema(self._arrow))
        try:
            self._parquet.write_table(table, partial, compression="zstd")
            os.replace(partial, place)
        except OSError as error:
            raise OptionError(f"output '{place}': cannot be written ({cause_of(error)})") from error
        self._held = []

    def _parts(self) -> list[Path]:
        return sorted(self._path.glob("part-[0-9]*.parquet"))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "Parquet") from None
    return pa, pq


def _schema(arrow: Any) -> Any:
    """Build the columns of `Row`, independent of what the first rows happen to hold."""
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
    """List the recordings without a row. again: rows with an error are removed, and done once more."""
    rows = list(results.rows()) if again else []
    good = [row for row in rows if row["error"] is None]
    if len(good) < len(rows):
        results.replace(good)
    done = {str(row["id"]) for row in results.rows()}
    return [item for item in items if item.id not in done]


def write_rows(rows: Iterable[Row], results: ResultTable) -> Iterator[Row]:
    """Append rows to the table as they come, one for each recording; yield each once it is written.

    Raises: OptionError before the first one where the table has rows of another model.
    """
    seen: set[str] = set()
    for row in rows:
        if not seen:
            _check_model(row, results)
        name = str(row["id"])
        if name in seen:  # work that was handed out twice: the first one to come back counts
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
