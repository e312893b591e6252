"""Writers (begin a document, add segments one by one, end it), and their output: names of files, and files
that appear atomically, or standard output.

A new format is a class of this interface, and one line of `files.WRITERS`.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from sottovoce.errors import OptionError
from sottovoce.text.files import fitting_name, whole_file, writing
from sottovoce.types import Segment, Span, Transcript, Turn

Piece: TypeAlias = "str | bytes"


@dataclass(frozen=True, slots=True)
class TranscriptInfo:
    """A `Transcript` without its segments, whose fields may be unknown at the beginning.

    audio, spectrogram: addresses for a page, relative or `data:`. translation: language code of translations.
    token_text: the text of a token id, or None.
    """

    model: str
    language: str | None = None
    duration: float | None = None
    source: str | None = None
    audio: str | None = None
    spectrogram: str | None = None
    translation: str | None = None
    turns: tuple[Turn, ...] = ()
    unread: tuple[Span, ...] | None = None
    language_probability: float | None = None
    language_probabilities: Mapping[str, float] = field(default_factory=dict)
    token_text: Callable[[int], str | None] | None = None


class Writer(Protocol):
    """Writes a document: each method returns its next piece, by default an empty one.

    Segments come in the order of their starts.
    """

    extension: str

    def begin(self, info: TranscriptInfo) -> Piece:
        return ""

    def segment(self, segment: Segment) -> Piece:
        return ""

    def end(self, info: TranscriptInfo) -> Piece:
        return ""


def info_of(transcript: Transcript, source: str | None = None) -> TranscriptInfo:
    """Return the information of a transcript; translations have the language "und" (undetermined, BCP 47)."""
    is_translated = any(segment.translation is not None for segment in transcript.segments)
    return TranscriptInfo(
        model=transcript.model,
        language=transcript.language,
        duration=transcript.duration,
        source=source,
        translation="und" if is_translated else None,
        turns=transcript.turns,
        unread=transcript.unread,
        language_probability=transcript.language_probability,
        language_probabilities=transcript.language_probabilities,
        token_text=transcript.token_texts.get,
    )


def write_transcript(writer: Writer, transcript: Transcript, *, source: str | None = None) -> str:
    """Write a document of text. source: the recording's name. Raises: OptionError for a binary format."""
    pieces = list(pieces_of(writer, transcript, info_of(transcript, source)))
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) < len(pieces):
        raise OptionError(f"output format '{writer.extension}': is no text; write_document gives its bytes")
    return "".join(texts)


def write_document(writer: Writer, transcript: Transcript, *, source: str | None = None) -> bytes:
    return b"".join(map(as_bytes, pieces_of(writer, transcript, info_of(transcript, source))))


def pieces_of(writer: Writer, transcript: Transcript, info: TranscriptInfo) -> Iterator[Piece]:
    yield writer.begin(info)
    yield from map(writer.segment, sorted(transcript.segments, key=lambda segment: segment.start))
    yield writer.end(info)


def as_bytes(piece: Piece) -> bytes:
    return piece.encode("utf-8") if isinstance(piece, str) else piece


STANDARD_OUTPUT = "-"


Write: TypeAlias = Callable[[Piece], None]
"""Takes the next piece of a document."""


@contextmanager
def open_output(path: Path | str, *, live: bool = False) -> Iterator[Write]:
    """Open an output for one document: a file (text as UTF-8), or standard output for "-".

    The document appears when the block ends without an error; an interrupted run keeps an earlier file.
    Pieces go out at once with `live` on standard output, and to paths that are no regular file. Raises:
    OptionError if the path cannot be written.
    """
    if str(path) == STANDARD_OUTPUT:
        held: list[Piece] = []
        yield _print if live else held.append
        for piece in held:
            _print(piece)
        return
    real = Path(path)
    if not is_device(real):  # such as /dev/fd/3, a link to what is no path
        real = Path(os.path.realpath(path))  # replace the target of a link, not the link
    with ExitStack() as stack:

        def write(piece: Piece) -> None:
            with writing(f"output '{real}'"):
                file.write(as_bytes(piece))

        def close() -> None:
            with suppress(OSError):  # of pieces that could not be written before
                file.close()

        with writing(f"output '{real}'"):
            if real.is_dir():
                raise OptionError(f"output '{real}': expected a file, it is a directory")
            if real.exists() and not os.access(real, os.W_OK):
                raise OptionError(f"output '{real}': exists and may not be written")
            place = real if is_device(real) else stack.enter_context(whole_file(real))
            file = place.open("wb")
        stack.callback(close)
        yield write
        with writing(f"output '{real}'"):
            file.flush()
            if place != real:
                os.fsync(file.fileno())
            stack.close()


@contextmanager
def open_outputs(places: Sequence[Path | str], *, live: bool = False) -> Iterator[list[Write]]:
    with ExitStack() as stack:
        opened = [stack.enter_context(open_output(place, live=live)) for place in reversed(places)]
        yield opened[::-1]


def writable_folder(folder: Path) -> Path:
    with writing(f"output '{folder}'"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # permissions do not show a read-only disk
            pass
    return folder


def _print(piece: Piece) -> None:
    if isinstance(piece, str):
        sys.stdout.write(piece)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.buffer.write(piece)
    else:
        raise OptionError("standard output: expected a stream that takes bytes; write the document to a file")
    sys.stdout.flush()


def is_device(path: Path) -> bool:
    """Whether a path is there and neither a file nor a folder, such as /dev/null or a named pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


STANDARD_INPUT = "-"
FULL = ".full.json"


def label_of(name: str) -> str:
    """Encode a file's name for documents: bytes that are no UTF-8 are spelled out."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def output_paths(
    inputs: Sequence[str], folder: Path, extensions: Sequence[str], *, suffix: str = ""
) -> Mapping[tuple[str, str], Path]:
    """Choose the document paths of inputs: {(input, extension): folder/name + suffix.extension}.

    An input given twice has one document. Raises: OptionError if two inputs still share a file, or a document
    would overwrite an input.
    """
    paths: dict[tuple[str, str], Path] = {}
    owners: dict[Path, str] = {}
    originals = {Path(os.path.realpath(name)) for name in inputs if name != STANDARD_INPUT}
    for name, document in document_names(inputs).items():
        for extension in extensions:
            path = folder / fitting_name(document, f"{suffix}.{extension}")
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


def named_document(name: str, path: Path, extension: str) -> Mapping[tuple[str, str], Path]:
    if name != STANDARD_INPUT and os.path.realpath(path) == os.path.realpath(name):
        raise OptionError(f"output '{path}': is the input; choose another name")
    return {(name, extension): path}


def document_names(inputs: Sequence[str]) -> dict[str, str]:
    """Name the documents of each input, without extension: {input: name}.

    `talk` for talk.mp3; inputs that would share it become `talk.mp3` and `talk.wav`, then `monday-talk.mp3`
    and `friday-talk.mp3` by their folders. Case is ignored, as in some file systems.
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
    if path == STANDARD_INPUT:
        return "stdin"
    if level:
        return "-".join(_parts(path)[-level:])
    name = Path(path).name
    return name[: -len(FULL)] if name.lower().endswith(FULL) and len(name) > len(FULL) else Path(path).stem


def _parts(path: str) -> tuple[str, ...]:
    return Path(path).parts[1:]
