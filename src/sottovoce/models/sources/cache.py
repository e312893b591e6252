"""The cache of fetched models: folders that appear whole or not at all, and are checked at every use.

Sizes are compared at every use, hashes only where a file's size or time differs from those of the last check,
which a stamp in the folder records (hashing `base` takes longer than loading it).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from sottovoce.errors import cause_of
from sottovoce.models.checkpoint.writing import whole_file
from sottovoce.models.sources.index_table import IndexFile
from sottovoce.models.sources.progress import say

STAMP = ".checked.json"
CHUNK = 1 << 20


def cache_root() -> Path:
    """Return the folder of all caches: $SOTTOVOCE_CACHE, or `sottovoce` in the user's cache folder."""
    own = os.environ.get("SOTTOVOCE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(own) if own else Path(shared) / "sottovoce").expanduser()


def cache_folder() -> Path:
    """Return the folder of fetched models."""
    return cache_root() / "models"


def fault(folder: Path, files: Sequence[IndexFile]) -> str | None:
    """Check the files of a folder; return the first fault as text, None without any."""
    stamp = _read_stamp(folder)
    checked = {}
    for file in files:
        path = folder / file.name
        try:
            status = path.stat()
        except OSError as error:
            return f"{path}: {cause_of(error)}"
        if status.st_size != file.size:
            return f"{path} has {status.st_size} bytes, expected {file.size}"
        seen = [file.sha256, status.st_size, status.st_mtime_ns]
        if stamp.get(file.name) != seen:
            found = sha256_of(path)
            if found != file.sha256:
                return f"{path} has SHA-256 {found}, expected {file.sha256}"
        checked[file.name] = seen
    if checked != stamp:
        with suppress(OSError):  # a cache that others filled: it is hashed each time
            write_stamp(folder, checked)
    return None


def is_stamped(folder: Path) -> bool:
    """Tell whether a folder was written by this cache."""
    return (folder / STAMP).exists()


def write_stamp(folder: Path, checked: dict[str, list[object]]) -> None:
    """Record [SHA-256, size, time of change] of the files that were checked."""
    with whole_file(folder / STAMP) as unfinished:
        unfinished.write_text(json.dumps(checked), encoding="utf-8")


def _read_stamp(folder: Path) -> dict[str, object]:
    try:
        found = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def sha256_of(path: Path) -> str:
    """Hash a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder while it is made; a second process prints that it waits."""
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


@contextmanager
def workshop(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`, removed at the end together with those of killed processes.

    Only inside `alone`.
    """
    beginning = f".{folder.name}.part-"
    for left in folder.parent.glob(f"{beginning}*"):
        shutil.rmtree(left, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=beginning, dir=folder.parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def appear(made: Path, folder: Path, place: Path) -> None:
    """Rename a folder made in the temporary folder `place` to `folder`, in the place of what was there."""
    if folder.exists():
        folder.rename(place / "before")
    made.rename(folder)
