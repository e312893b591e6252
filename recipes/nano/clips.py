"""Clips of manifests, and their log-mel in one array on disk.

A manifest is JSON lines: `file` (relative to the manifest), `language`, and if known `id`, `text`, `split`,
`set`, `times`. A clip without text teaches its language alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel
from sottovoce.errors import ManifestError
from sottovoce.types import SAMPLE_RATE, Samples

MAX_CLIP_S = 15.0
LogMel = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Clip:
    """One recording of a manifest.

    text: None when it is not known. group: its set. times: how often a round over all clips has it, for the
    few that matter more.
    """

    id: str
    file: str
    language: str
    text: str | None
    split: str
    group: str = ""
    times: int = 1


def read_manifest(path: Path) -> list[Clip]:
    """The clips of a manifest, paths made absolute.

    Raises: ManifestError naming the line that is no JSON object with `file` and one `language`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: not a readable manifest ({error})") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return [_clip(line, path, number) for number, line in numbered]


def _clip(line: str, path: Path, number: int) -> Clip:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ManifestError(f"{path}, line {number}: expected a JSON object ({error})") from error
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("file", "language")):
        raise ManifestError(f"{path}, line {number}: expected an object with the strings file and language")
    times = row.get("times", 1)
    if type(times) is not int or times < 1:
        raise ManifestError(f"{path}, line {number}: times is no whole number from 1, but {times!r}")
    return Clip(
        id=str(row.get("id", f"{path.stem}-{number}")),
        file=str((path.parent / row["file"]).resolve()),
        language=row["language"],
        text=row.get("text"),
        split=str(row.get("split", "train")),
        group=str(row.get("set", f"{row['language']}-{row.get('kind', 'speech')}")),
        times=times,
    )


def trim_silence(samples: Samples) -> Samples | None:
    """The recording without the silence at its ends (38 dB below its loudest 10 ms); None when too short."""
    n_frames = len(samples) // 160
    if n_frames < 10:
        return None
    power = np.square(samples[: n_frames * 160].reshape(-1, 160)).mean(axis=1)
    level = 10 * np.log10(power + 1e-10)
    loud = np.nonzero(level > max(float(level.max()) - 38.0, -65.0))[0]
    if len(loud) < 10:
        return None
    return samples[max(0, loud[0] - 3) * 160 : min(n_frames, loud[-1] + 4) * 160]


class FeatureStore:
    """Un-normalised log-mel of many clips: one float16 array (n_frames, 80) mapped from disk."""

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / "clips.json").read_text(encoding="utf-8"))
        self.clips = [Clip(**row) for row in index["clips"]]
        self._offsets: list[int] = index["offsets"]
        self._frames: npt.NDArray[np.float16] = np.load(folder / "mel.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.clips)

    def n_frames(self, index: int) -> int:
        return self._offsets[index + 1] - self._offsets[index]

    def log_mel(self, index: int) -> LogMel:
        frames: LogMel = self._frames[self._offsets[index] : self._offsets[index + 1]]
        return frames

    @property
    def hours(self) -> float:
        return self._offsets[-1] / 360_000


def write_store(clips: Iterable[Clip], folder: Path, *, max_clip_s: float = MAX_CLIP_S) -> FeatureStore:
    """Compute the features of all clips that can be used: speech of at most so many seconds after trimming.

    Raises: AudioError for a recording that cannot be read; ManifestError when no clip can be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept: list[Clip] = []
    parts: list[LogMel] = []
    for clip in clips:
        samples = trim_silence(load_audio(clip.file))
        if samples is None or len(samples) > max_clip_s * SAMPLE_RATE:
            continue
        kept.append(clip)
        parts.append(log_mel(samples).T.astype(np.float16))
    if not parts:
        raise ManifestError(f"{folder}: none of the clips holds speech of at most {max_clip_s:g} s")
    offsets = [0, *np.cumsum([len(part) for part in parts]).tolist()]
    np.save(folder / "mel.npy", np.concatenate(parts))
    index = {"clips": [asdict(clip) for clip in kept], "offsets": offsets}
    (folder / "clips.json").write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")
    return FeatureStore(folder)
