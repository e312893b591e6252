"""Text, JSON and TOML are read here, and files of all kinds written whole.

Text is UTF-8, or UTF-16 or UTF-32 with a byte order mark, which is removed. Lines end with LF, CRLF or CR
only; U+0085 and U+2028 are characters of a line.
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import io
import os
import re
import secrets
import shutil
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import msgspec

from sottovoce.errors import InputError, OptionError, SottovoceError, cause_of, got

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
_ENCODINGS = {
    BOM_UTF8: "utf-8-sig",
    BOM_UTF32_LE: "utf-32",
    BOM_UTF32_BE: "utf-32",
    BOM_UTF16_LE: "utf-16",
    BOM_UTF16_BE: "utf-16",
}
"""By byte order mark; UTF-32's come first, as one of them begins with UTF-16's."""
_JSON_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
"""By msgspec's names."""
_UNDECODED = re.compile("[\udc80-\udcff]")


def text_lines(file: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a file with their LF.

    Raises: ValueError naming the line, for another encoding or a null character (except in UTF-16).
    """
    buffered = io.BufferedReader(cast(io.RawIOBase, file))  # needs only read()
    start = buffered.peek(4)
    encoding = next((name for mark, name in _ENCODINGS.items() if start.startswith(mark)), "utf-8")
    # An invalid UTF-8 byte becomes a lone surrogate, so that the error can name its line.
    with io.TextIOWrapper(buffered, encoding, errors="surrogateescape") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                _check(line, number)
                yield line
        except UnicodeDecodeError as error:
            raise ValueError(f"bytes that are not {encoding.upper()}") from error


def decode_text(data: bytes) -> str:
    return "".join(text_lines(io.BytesIO(data)))


def read_text(
    path: str | Path, expected: str, error: type[InputError] = OptionError, *, name: str | None = None
) -> str:
    """Read a text file. expected: its description for errors. Raises: error, if it cannot be read as text."""
    try:
        with open(path, "rb", buffering=0) as file:
            return "".join(text_lines(file))
    except FileNotFoundError as cause:
        raise error(f"{name or path}: no such file; expected {expected}") from cause
    except (OSError, ValueError) as cause:
        raise error(f"{name or path}: expected {expected}, got {got(cause)}") from cause


def read_lines(
    path: str | Path, expected: str, error: type[InputError] = OptionError, *, name: str | None = None
) -> list[str]:
    """Read the lines of a text file, without line ends. Raises: as `read_text`."""
    lines = read_text(path, expected, error, name=name).split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_toml(path: str | Path, expected: str, *, name: str | None = None) -> dict[str, object]:
    """Read a TOML file. Raises: OptionError, as `read_text`."""
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = read_text(path, expected, name=name)
    try:
        document: dict[str, object] = reader.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{name or path}: expected {expected}, got '{cause_of(error)}'") from error
    return document


def from_json(kind: type[T], text: str | bytes, where: str, error: type[SottovoceError] = OptionError) -> T:
    """Read JSON as a type that msgspec knows, such as a dataclass, Struct or dict[str, int].

    where: start of the message. Raises: error, naming the field, for other JSON and for what is none.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as fault:
        raise error(_located(where, fault)) from fault
    except (ValueError, RecursionError) as fault:
        raise error(f"{where}: expected JSON, got something else ({cause_of(fault)})") from fault


def from_plain(kind: type[T], value: object, where: str, error: type[SottovoceError] = OptionError) -> T:
    """Convert decoded JSON or TOML as `from_json` does."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        expected = _located(where, fault).partition(", got ")[0]
        raise error(f"{expected}, got {_at(str(fault), value)!r:.80}") from fault


def _at(fault: str, value: Any) -> object:
    """Return the part of a value that a fault names, such as `$.pages[2]`; else the whole value."""
    place = fault.rpartition(" - at `$")[2] if " - at `$" in fault else ""
    try:
        for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", place):
            value = value[key or int(index)]
    except (KeyError, IndexError, TypeError):
        pass
    return value


def _located(where: str, fault: msgspec.ValidationError) -> str:
    reason, _, place = str(fault).partition(" - at `$")
    field = place.strip(".`")
    reason = reason.replace("Object missing required field", "expected a field")
    reason = reason.replace("Object contains unknown field", "expected no field")
    reason = re.sub("`([^`]+)`", lambda kinds: _in_words(kinds[1]), reason[:1].lower() + reason[1:])
    return f"{where}: {field}: {reason}" if field else f"{where}: {reason}"


def _in_words(kinds: str) -> str:
    return " or ".join(_JSON_KINDS.get(kind, f"'{kind}'") for kind in kinds.split(" | "))


LONGEST_NAME_BYTES = 255
"""Source: NAME_MAX of ext4, XFS, Btrfs, APFS and NTFS."""


def fitting_name(name: str, ending: str) -> str:
    """Join a file's name and an ending. A name that would be too long is cut, and a digest is added."""
    if len(os.fsencode(name + ending)) <= LONGEST_NAME_BYTES:
        return name + ending
    ending = f"-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}{ending}"
    while len(os.fsencode(name + ending)) > LONGEST_NAME_BYTES:
        name = name[:-1]
    return name + ending


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path for a file or folder that replaces `path` at the end, or is removed after an error.

    It has the same name. Permissions are those of any new file. What killed processes left beside `path` is
    removed.
    """
    prefix = f".{path.name[:50]}."  # at most 200 of the 255 bytes of a name
    for leftover in path.parent.glob(f"{glob.escape(prefix)}????????.part"):
        with suppress(OSError), _lock(leftover, waits=False):
            shutil.rmtree(leftover)
    folder = path.parent / f"{prefix}{secrets.token_hex(4)}.part"
    try:  # an interrupt may come as soon as the folder is there
        with _taken(folder):
            unfinished = folder / path.name
            unfinished.touch()
            usual = unfinished.stat().st_mode
            unfinished.unlink()
            yield unfinished
            if unfinished.is_file():
                unfinished.chmod(usual)
            os.replace(unfinished, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _taken(folder: Path) -> BinaryIO:
    """Make a folder, and lock it until the file is closed."""
    while True:
        folder.mkdir(0o700)
        with suppress(FileNotFoundError):  # another process took it for a leftover
            lock = _lock(folder)
            if folder.exists():
                return lock
            lock.close()


def _lock(folder: Path, *, waits: bool = True) -> BinaryIO:
    """Lock a folder until the file is closed. Raises: OSError if another process has it, unless `waits`."""
    file = (folder / ".lock").open("ab")
    try:
        if fcntl is not None:  # Windows does not remove open files
            fcntl.flock(file, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


@contextmanager
def writing(name: str, error: type[SottovoceError] = OptionError) -> Iterator[None]:
    """Raise an OSError of the block as an error that names what cannot be written."""
    try:
        yield
    except OSError as cause:
        raise error(f"{name}: cannot be written ({cause_of(cause)})") from cause


def _check(line: str, number: int) -> None:
    if "\0" in line:
        raise ValueError(f"a null character in line {number}")
    match = None if line.isascii() else _UNDECODED.search(line)
    if match is not None:
        raise ValueError(f"the byte 0x{ord(match[0]) - 0xDC00:02x}, which is not UTF-8, in line {number}")
