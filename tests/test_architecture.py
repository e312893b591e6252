"""Imports between packages point one way, and heavy dependencies stay in their packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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
"""Packages from the lowest layer up; each imports from layers below its own, and from itself."""
SERVING_FLOORS = [
    {"settings", "telemetry", "health_check"},
    {"parsing"},
    {"access", "scheduling"},
    {"captions", "recordings"},
    {"webhooks"},
    {"jobs"},
    {"live"},
    {"apis"},
    {"http"},
    {"ray"},
]
"""Packages of the server, likewise. `services`, the state of a running server, is on the layer of `live`; all
may import it."""
BASE_ONLY = {"decoding", "language", "streaming", "offline", "engine", "alignment"}
"""Packages that see runtimes and language models through their interface alone."""
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


IMPORTS = {
    path: set(imports(path))
    for path in sorted(SOURCE.rglob("*.py"))
    if path.name != "__main__.py" and path != SOURCE / "__init__.py"
}
"""Of all modules but the package's own face, which imports on demand; imports within functions and those for
types alone count too."""


def test_imports_point_down() -> None:
    floors = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    assert {room_of(path) for path in IMPORTS} <= floors.keys()
    for path, names in IMPORTS.items():
        room = room_of(path)
        for name in names:
            top, *inner = name.split(".")
            assert top not in FORBIDDEN, f"{path}: {name} is a reference for tests"
            assert room in CONFINED.get(top, {room}), f"{path}: {name} belongs in {CONFINED[top]}"
            if top != "sottovoce" or not inner or inner[0] == room:
                continue
            assert inner[0] in floors, f"{path}: unknown package {name}"
            assert floors[inner[0]] < floors[room], f"{path}: {room} must not import {name}"
            if room in BASE_ONLY and inner[0] in {"backends", "lm"} and len(inner) > 1:
                is_interface = ".".join(name.split(".")[:3]) in SEAMS
                assert is_interface, f"{path}: {room} sees only the interface, not {name}"


def test_imports_point_down_in_the_server() -> None:
    floors = {room: floor for floor, rooms in enumerate(SERVING_FLOORS) for room in rooms}
    floors["services"] = floors["live"]
    for path, names in IMPORTS.items():
        if room_of(path) != "serving":
            continue
        room = path.relative_to(SOURCE / "serving").parts[0].removesuffix(".py")
        for name in names:
            other = name.removeprefix("sottovoce.serving.").partition(".")[0]
            if name.startswith("sottovoce.serving.") and other not in {room, "services"}:
                assert room in floors
                assert floors[other] < floors[room], f"{path}: {room} must not import {name}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    def module_of(path: Path) -> str:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        return ".".join(("sottovoce", *parts)).removesuffix(".__init__")

    arrows = {module_of(path): names for path, names in IMPORTS.items()}
    circles = []
    for module in arrows:
        seen, waiting = set[str](), [module]
        while waiting:
            new = (arrows[waiting.pop()] & arrows.keys()) - seen
            seen |= new
            waiting += new
        circles += [module] if module in seen else []
    assert not circles, f"modules that import one another: {', '.join(circles)}"
