"""New recordings of a watched folder, once they are complete."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from sottovoce.archive.results import Item, is_recording, item_of, recordings_in
from sottovoce.errors import MissingExtraError, OptionError

LOOK_S = 0.25
"""Between two looks at recordings that may still grow; new ones are reported by the system."""


def watched_recordings(folder: str | Path, *, settle_s: float = 5.0) -> Iterator[list[Item]]:
    """Yield the recordings of a folder tree, and then those that are new or changed, without end.

    settle_s: a recording is complete if its size and time of change stay the same for so long.

    Raises:
        OptionError: it is no folder. MissingExtraError: watchfiles is not installed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise OptionError(f"watch '{folder}': expected a folder")
    try:
        from watchfiles import watch
    except ImportError as error:
        raise MissingExtraError("watchfiles", "watch", "watching a folder") from error
    return _watched(folder, settle_s, watch(folder, rust_timeout=round(1000 * LOOK_S), yield_on_timeout=True))


def _watched(
    folder: Path, settle_s: float, changes: Iterable[Iterable[tuple[object, str]]]
) -> Iterator[list[Item]]:
    waiting: dict[Path, tuple[tuple[int, int] | None, float]] = {}
    reported: dict[Path, tuple[int, int]] = {}
    is_listed = False
    for changed in changes:
        paths = [Path(path) for _, path in changed]
        # Listed after the watch has begun, so that no recording falls between.
        if not is_listed or any(path.is_dir() and path.name[0] != "." for path in paths):
            paths += [Path(item.path) for item in recordings_in(folder)]
            is_listed = True
        now_s = time.monotonic()
        for path in paths:
            if is_recording(path.relative_to(folder.absolute())):
                waiting.setdefault(path, (None, now_s))
        ready = []
        for path, (state, since_s) in list(waiting.items()):
            new = _state(path)
            if new is None or new == reported.get(path):
                del waiting[path]
            elif new != state:
                waiting[path] = new, now_s
            elif now_s - since_s >= settle_s:
                del waiting[path]
                reported[path] = new
                ready.append(item_of(path, folder))
        if ready:
            yield sorted(ready, key=lambda item: item.id)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns
