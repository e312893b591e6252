"""Recordings of people, and which of them may choose a setting: one rule for every benchmark and test.

A set with a `test` split reports on that and chooses on the rest (`train` parts included). A set without
one is cut by the order of the manifest: clips of even number choose, those of odd number report. What the
demo shows is never used to choose. Synthetic speech, noises and single digits are left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from sottovoce.audio.io import load_audio
from sottovoce.types import SAMPLE_RATE, Samples

Part: TypeAlias = Literal["dev", "test"]

DEMO = (
    *("smoke-multi/jfk", "smoke-multi/fleurs_*", "smoke-multi/mfa_common_voice_ja_*"),
    *("ljspeech-mini/LJ001-0005", "kerstin-de/de_rhasspy-1210"),
)
"""Names of the clips that the demo shows, whole or within a longer one."""
PAUSES_S = (0.3, 1.5, 0.7, 3.0, 0.5)
"""Silence between the clips of a long recording, over and over."""
LEFT_OUT = ("fsdd-en",)
NOISE, VOXLINGUA = "noise-rir", "voxlingua107-dev"
UNSPACED = ("zh", "ja")
"""Languages written without spaces, whose errors are counted in characters."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording: its name in the manifest, and what is known of it.

    languages: in the order in which they are spoken, one for most. text: what is said, None if nobody
    wrote it down. speaker: None if unknown.
    """

    name: str
    file: Path
    languages: tuple[str, ...]
    text: str | None
    speaker: str | None

    @property
    def group(self) -> str:
        return self.name.split("/")[0]

    @property
    def language(self) -> str:
        """The first language, for clips of one."""
        return self.languages[0]


def clips(
    data: Path,
    part: Part,
    *,
    sets: Collection[str] | None = None,
    language: str | None = None,
    with_text: bool = False,
) -> list[Clip]:
    """Clips of a part, in the manifest's order.

    data: the folder of `manifest.jsonl`. sets: names of sets, all when None. language: the only one
    spoken in the clip; None takes clips of several too. with_text: only those whose text is known.
    """
    return [
        clip
        for clip, result in _parts(_rows(data), data)
        if result == part
        and (sets is None or clip.group in sets)
        and (language is None or clip.languages == (language,))
        and not (with_text and clip.text is None)
    ]


def shown(folder: Path) -> list[Clip]:
    """Clips of one language that the project carries itself, for its demo: they report only.

    folder: of `manifest.jsonl`.
    """
    result = [_clip(row | {"id": f"examples/{row['id']}"}, folder) for row in _lines(folder)]
    return [clip for clip in result if len(clip.languages) == 1]


def spread(chosen: Sequence[Clip], n_clips: int) -> list[Clip]:
    """At most `n_clips`, the same share of every set where it has them, evenly within each set."""
    by_set: dict[str, list[Clip]] = {}
    for clip in chosen:
        by_set.setdefault(clip.group, []).append(clip)
    picked: list[list[Clip]] = []
    left = n_clips
    for index, group in enumerate(sorted(by_set.values(), key=len)):
        share = min(len(group), left // (len(by_set) - index))
        picked.append([group[i * len(group) // share] for i in range(share)])
        left -= share
    return [clip for turn in zip_longest(*picked) for clip in turn if clip is not None]


def joined(chosen: Sequence[Clip], seconds: float) -> Samples:
    """Clips one after the other with pauses between, up to `seconds`."""
    pieces: list[Samples] = []
    n_left = int(seconds * SAMPLE_RATE)
    for index, clip in enumerate(chosen):
        pause = np.zeros(int(PAUSES_S[index % len(PAUSES_S)] * SAMPLE_RATE), np.float32)
        for piece in (load_audio(clip.file), pause):
            pieces.append(piece[:n_left])
            n_left -= len(pieces[-1])
    return np.concatenate(pieces)


def _lines(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def _rows(data: Path) -> list[dict[str, Any]]:
    rows = _lines(data)
    return [row for row in rows if row.get("human") and row.get("file") and _group(row) not in LEFT_OUT]


def _parts(rows: Sequence[Mapping[str, Any]], data: Path) -> Iterator[tuple[Clip, Part]]:
    tested = {_group(row) for row in rows if _is_test(row)}
    counted: dict[str, int] = {}
    for row in rows:
        group = _group(row)
        number = counted[group] = counted.get(group, -1) + 1
        reports = _is_test(row) if group in tested else number % 2 == 1
        yield _clip(row, data), "test" if reports or _is_shown(row) else "dev"


def _clip(row: Mapping[str, Any], data: Path) -> Clip:
    spoken = row.get("language") or ()
    listed = (spoken,) if isinstance(spoken, str) else spoken
    languages = tuple(item if isinstance(item, str) else item["language"] for item in listed)
    return Clip(row["id"], data / row["file"], languages, row.get("text") or None, row.get("speaker"))


def _group(row: Mapping[str, Any]) -> str:
    return str(row["id"]).split("/")[0]


def _is_test(row: Mapping[str, Any]) -> bool:
    return str(row.get("split") or "").startswith("test")


def _is_shown(row: Mapping[str, Any]) -> bool:
    segments = row.get("segments") or ()
    names = [str(row["id"]), *(str(item["source_id"]) for item in segments if "source_id" in item)]
    return any(fnmatch(name, shown) for name in names for shown in DEMO)
