"""Encoder states of windows, computed once and kept on disk in half precision.

A window is one clip or several with pauses between, changed as by another voice, room and microphone
(`recipes.nano.augment`), with the padding behind it that live windows have.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recipes.nano.augment import Augmenter, Mel, NoiseBank, Strengths, silence
from recipes.nano.clips import FeatureStore
from recipes.nano.texts import spelled
from sottovoce.models.backend import Backend
from sottovoce.types import FRAMES_PER_SECOND, Features

logger = logging.getLogger(__name__)

TAIL_FRAMES = 500
"""Log-mel frames of padding behind the speech, as `Checkpoint.tail_s` has it."""
MAX_FRAMES = 2400
"""Log-mel frames of a window's speech."""
ALONE = 0.1
"""Share of windows with one clip."""
STRENGTHS = Strengths(
    tempo=0.5, vocal_tract=0.7, colour=0.5, reverberation=0.15, noise=0.35, mask=0.0, snr_db=(8.0, 30.0)
)
States = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Said:
    """What a window says: its letters, its language, and whether to train on it or to choose by it."""

    text: str
    language: str
    group: str
    split: str


class Spoken(NamedTuple):
    """A window to encode: normalised log-mel (n_frames, 80), and what it says."""

    mel: Mel
    said: Said


class StateStore:
    """States (n_frames, d) of windows, mapped from disk, 50 frames a second."""

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / "windows.json").read_text(encoding="utf-8"))
        self.said = [Said(**row) for row in index["said"]]
        self._offsets: list[int] = index["offsets"]
        shape = (self._offsets[-1], index["d"])
        self._states: States = np.memmap(folder / "states.f16", np.float16, mode="r", shape=shape)

    def __len__(self) -> int:
        return len(self.said)

    def n_frames(self, index: int) -> int:
        return self._offsets[index + 1] - self._offsets[index]

    def states(self, index: int) -> States:
        found: States = self._states[self._offsets[index] : self._offsets[index + 1]]
        return found

    @property
    def hours(self) -> float:
        return self._offsets[-1] / FRAMES_PER_SECOND / 3600


class WindowMaker:
    """Draws windows: every clip once a round, alone or after others of its split."""

    def __init__(self, store: FeatureStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        babble = [
            np.asarray(store.log_mel(i), np.float32)
            for i in rng.sample(range(len(store)), min(60, len(store)))
        ]
        self._augmenter = Augmenter(STRENGTHS, NoiseBank(babble, rng), rng)

    def plain(self, split: str) -> Iterator[Spoken]:
        calm = Augmenter(Strengths(0, 0, 0, 0, 0, 0), None, random.Random(0))
        for index, clip in enumerate(self._store.clips):
            if clip.split == split:
                yield self._spoken([np.asarray(self._store.log_mel(index), np.float32)], [index], calm)

    def changed(self) -> Iterator[Spoken]:
        """Clips to train on, changed, each as often as its `times` says.

        A window has one language, but for those at the borders.
        """
        clips = self._store.clips
        order = [i for i, clip in enumerate(clips) if clip.split == "train" for _ in range(clip.times)]
        self._rng.shuffle(order)
        order.sort(key=lambda index: clips[index].language)
        while order:
            yield self._drawn(order)

    def _drawn(self, order: list[int]) -> Spoken:
        """Take the next clips off the order: one, or as many as a drawn length holds.

        Windows are mostly full: their padding costs as much as a clip.
        """
        room = 0 if self._rng.random() < ALONE else self._rng.randint(MAX_FRAMES // 2, MAX_FRAMES)
        parts: list[Mel] = [silence(self._rng.randint(0, 40))]
        taken: list[int] = []
        while order and (not taken or sum(map(len, parts)) + self._store.n_frames(order[-1]) <= room):
            taken.append(order.pop())
            parts.append(self._augmenter.clip(np.asarray(self._store.log_mel(taken[-1]), np.float32)))
            parts.append(silence(self._rng.randint(0, 70)))
        return self._spoken(parts, taken, self._augmenter)

    def _spoken(self, parts: Sequence[Mel], taken: Sequence[int], augmenter: Augmenter) -> Spoken:
        mel, _ = augmenter.window(np.concatenate(parts))
        clips = [self._store.clips[i] for i in taken]
        text = " ".join(spelled(clip.language, clip.text or "") for clip in clips)
        return Spoken(mel, Said(text, clips[0].language, clips[0].group, clips[0].split))


def encode_all(windows: Iterator[Spoken], backend: Backend, folder: Path) -> StateStore:
    """Encode windows one by one, and write their states and what they say into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    said: list[Said] = []
    offsets = [0]
    with (folder / "states.f16").open("wb") as file:
        for spoken in windows:
            states = _encoded(spoken.mel, backend)
            file.write(states.tobytes())
            said.append(spoken.said)
            offsets.append(offsets[-1] + len(states))
            if len(said) % 200 == 0:
                logger.info("%d windows, %.2f h", len(said), offsets[-1] / FRAMES_PER_SECOND / 3600)
    index = {"said": [asdict(one) for one in said], "offsets": offsets, "d": backend.dims.n_audio_state}
    (folder / "windows.json").write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")
    return StateStore(folder)


def _encoded(mel: Mel, backend: Backend) -> States:
    """States (n_frames, d) of a window's speech, without those of its padding."""
    n_content = len(mel)
    n_frames = min(2 * backend.dims.n_audio_ctx, n_content + TAIL_FRAMES)
    n_frames += n_frames % 2
    window = np.zeros((1, mel.shape[1], n_frames), np.float32)
    window[0, :, :n_content] = mel.T[:, :n_frames]
    encoded = backend.encode(Features(window, (n_content,)))
    found: States = encoded.states_on_host()[0, : n_content // 2].astype(np.float16)
    return found
