"""The house keeps its shape: imports point one way, heavy packages stay in their rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sottovoce

SOURCE = Path(sottovoce.__file__).parent
FLOORS = [
    {"types", "errors", "jit", "threads"},
    {"text"},
    {"options"},
    {"audio"},
    {"models"},
    {"backends", "lm"},
    {"decoding"},
    {"language", "speakers"},
    {"engine"},
    {"streaming", "offline"},
    {"evaluation", "formats", "alignment"},
    {"api", "ctc"},
    {"archive", "pictures", "translation"},
    {"serving"},
    {"cli"},
]
"""From the ground up; a room sees the floors below its own, and itself."""
SERVING_FLOORS = [
    {"settings", "telemetry", "health_check"},
    {"parsing"},
    {"access", "scheduling"},
    {"captions", "recordings"},
    {"jobs"},
    {"live"},
    {"apis"},
    {"http"},
    {"ray"},
]
"""Rooms of the server, likewise. `services`, what a running server shares, stands below `live`, and whoever
answers a request may ask it."""
BASE_ONLY = {"decoding", "language", "streaming", "offline", "engine", "alignment"}
"""Rooms that see runtimes and language models through their seam alone."""
SEAMS = {"sottovoce.backends.base", "sottovoce.lm.base"}
CONFINED = {
    "click": {"cli"},
    "rich": {"cli"},
    "starlette": {"serving"},
    "uvicorn": {"serving"},
    "anyio": {"serving"},
    "websockets": {"serving"},
    "prometheus_client": {"serving"},
    "ray": {"serving"},
    "opentelemetry": {"serving"},
    "pyarrow": {"archive"},
    "av": {"audio"},
    "docx": {"formats"},
}
FORBIDDEN = {"whisper", "faster_whisper", "ctranslate2", "pyctcdecode", "flashlight"}
"""References of the tests, never of the product."""


def modules() -> list[Path]:
    """All modules but the package's own face, which imports on demand."""
    return sorted(
        path
        for path in SOURCE.rglob("*.py")
        if path.name not in {"__main__.py"} and path != SOURCE / "__init__.py"
    )


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""
            if node.module in {"sottovoce", "sottovoce.lm", "sottovoce.backends"}:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(path: Path) -> str:
    return ".".join(("sottovoce", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def floor_of(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in modules()} <= set().union(*FLOORS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    for name in imports(path):
        parts = name.split(".")
        top = parts[0]
        assert top not in FORBIDDEN, f"{path}: {name} is a reference for tests"
        assert room in CONFINED.get(top, {room}), f"{path}: {name} belongs in {CONFINED[top]}"
        if top != "sottovoce" or len(parts) < 2 or parts[1] == room:
            continue
        assert parts[1] in set().union(*FLOORS), f"{path}: unknown room {name}"
        assert floor_of(parts[1]) < floor_of(room), f"{path}: {room} must not import {name}"
        if room in BASE_ONLY and parts[1] in {"backends", "lm"} and len(parts) > 2:
            assert ".".join(parts[:3]) in SEAMS, f"{path}: {room} sees only the seam, not {name}"


@pytest.mark.parametrize(
    "path", [one for one in modules() if room_of(one) == "serving"], ids=lambda one: one.stem
)
def test_imports_point_down_in_the_server(path: Path) -> None:
    floors = {room: floor for floor, rooms in enumerate(SERVING_FLOORS) for room in rooms}
    room = path.relative_to(SOURCE / "serving").parts[0].removesuffix(".py")
    floor = floors["live"] if room == "services" else floors.get(room)
    for name in imports(path):
        other = name.removeprefix("sottovoce.serving.").partition(".")[0]
        if name.startswith("sottovoce.serving.") and other not in {room, "services"}:
            assert floor is not None
            assert floors[other] < floor, f"{path}: {room} must not import {name}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports within a function and those for types alone count too."""
    arrows = {module_of(path): set(imports(path)) for path in modules()}
    reached: dict[str, set[str]] = {}
    for module in arrows:
        seen, waiting = set[str](), [module]
        while waiting:
            new = (arrows[waiting.pop()] & arrows.keys()) - seen
            seen |= new
            waiting += new
        reached[module] = seen
    circles = sorted(module for module, seen in reached.items() if module in seen)
    assert not circles, f"modules that import one another: {', '.join(circles)}"
