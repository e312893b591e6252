"""Part files: an interrupted recording goes on where it was when the same call is made again.

Lines of JSON beside the document: a header that tells which recording, model and options they are of,
then segments as the library gave them and, behind those of every window, a resume point. A crash may
leave half a line, which is not read. The file is there from the first resume point until the documents
are.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from sottovoce.cli.each_file import clock
from sottovoce.cli.options import is_file
from sottovoce.engine.executor import LocalExecutor
from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.output import STANDARD_OUTPUT
from sottovoce.offline.resume import ResumePoint, segment_of_json, segment_to_json
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import Segment

FORMAT = "sottovoce part 1"
ENDING = ".part"
SYNC_S = 5.0
"""The file is brought to the disk at most so often."""
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


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartHeader:
    """What the lines of a part file depend on.

    version: of sottovoce. model: its name. options: all that change the text. size_bytes, changed_ns: of the
    recording.
    """

    version: str
    model: str
    options: str
    size_bytes: int
    changed_ns: int

    def to_json(self) -> dict[str, Any]:
        """Write the first line of the file."""
        return {"format": FORMAT, **asdict(self)}


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What a part file holds.

    is_foreign: it is no part file, and is to be left alone. matches: it is of the same recording, model and
    options; else the rest is empty. n_bytes: up to the end of the last point.
    """

    is_foreign: bool = False
    matches: bool = False
    segments: Sequence[Segment] = ()
    point: ResumePoint | None = None
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FileStart:
    """What a recording begins with.

    writer: of its part file; None where none is kept. stored: what it held. note: what to say, None: nothing.
    """

    writer: PartWriter | None = None
    stored: StoredPart = field(default_factory=StoredPart)
    note: str | None = None


def read_part(path: Path, header: PartHeader) -> StoredPart | None:
    """Read a part file up to its last whole resume point; None where there is no file.

    Raises: OptionError where it cannot be read.
    """
    try:
        with path.open("rb") as file:
            first = _row(file.readline())
            if first is None or first.get("format") != FORMAT:
                return StoredPart(is_foreign=True)
            if first != header.to_json():
                return StoredPart()
            return _read_rows(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OptionError(f"part file '{path}': cannot be read ({cause_of(error)})") from error


def _read_rows(file: BinaryIO) -> StoredPart:
    segments: list[Segment] = []
    found = StoredPart(matches=True)
    n_bytes = file.tell()
    for line in file:
        n_bytes += len(line)
        row = _row(line)
        if row is None:
            break
        try:
            if "segment" in row:
                segments.append(segment_of_json(row["segment"]))
            else:
                point = ResumePoint.of_json(row["point"])
                found = StoredPart(False, True, tuple(segments), point, n_bytes)
        except (KeyError, TypeError, ValueError, OptionError):
            break
    return found


def _row(line: bytes) -> Mapping[str, Any] | None:
    """A line of JSON; None for half a line, and for anything else."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


@dataclass(slots=True)
class PartWriter:
    """Writes a part file: nothing before the first resume point, then all up to each point at once.

    n_bytes: of the file that is there, to go on behind; 0 begins it anew. Where nothing can be written a
    warning says so, and the recording is transcribed without.
    """

    path: Path
    header: PartHeader
    n_bytes: int = 0
    _lines: list[str] = field(default_factory=list)
    _point: ResumePoint | None = None
    _file: BinaryIO | None = None
    _has_failed: bool = False
    _synced_s: float = 0.0

    def add(self, segment: Segment) -> None:
        """Take the next segment; it is written with the point behind it."""
        self._lines.append(_line({"segment": segment_to_json(segment)}))

    def note(self, point: ResumePoint | None) -> None:
        """Take where the transcription can go on, behind all segments that were added."""
        if point is None or point is self._point or self._has_failed:
            return
        self._point = point
        lines = [*self._lines, _line({"point": point.to_json()})]
        self._lines.clear()
        try:
            self._write("".join(lines).encode())
        except OSError as error:
            self._has_failed = True
            logger.warning("%s: nothing is kept in case of a break (%s)", self.path, cause_of(error))

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._opened()
        self._file.write(data)
        self._file.flush()
        if time.monotonic() - self._synced_s >= SYNC_S:
            os.fsync(self._file.fileno())
            self._synced_s = time.monotonic()

    def _opened(self) -> BinaryIO:
        if self.n_bytes:
            file = self.path.open("r+b")
            file.truncate(self.n_bytes)
            file.seek(self.n_bytes)
            return file
        begun = self.path.open("wb")
        begun.write(_line(self.header.to_json()).encode())
        return begun

    def close(self) -> None:
        """Leave the file for the next call."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def remove(self) -> None:
        """Delete the file: it has done its work, or is of no use."""
        self.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def recorded(transcription: FileTranscription, writer: PartWriter) -> Iterator[Segment]:
    """Yield the segments of a transcription; each is in the part file as soon as it can go on behind it."""
    executor = LocalExecutor(transcription.backend)

    def note() -> None:
        writer.note(transcription.resume_point)

    while (segment := executor.run(transcription.next_segment(note))) is not None:
        writer.add(segment)
        yield segment


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
