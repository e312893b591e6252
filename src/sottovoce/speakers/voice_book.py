"""Voices that are kept by name, for later recordings and sessions: a folder with a WAV file of each."""

from __future__ import annotations

import os
import wave
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from sottovoce.audio.io import load_audio
from sottovoce.errors import OptionError
from sottovoce.text.files import fitting_name, whole_file, writing
from sottovoce.types import SAMPLE_RATE, Samples

FOLDER = "SOTTOVOCE_VOICES"
"""Environment variable of the folder."""


def voice_folder() -> Path:
    """Return the user's folder of voices. Source: XDG Base Directory Specification."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get(FOLDER) or Path(data, "sottovoce", "voices"))


@dataclass(frozen=True, slots=True)
class VoiceBook:
    folder: Path = field(default_factory=voice_folder)

    @property
    def names(self) -> list[str]:
        return sorted(unquote(path.stem) for path in self.folder.glob("*.wav"))

    @property
    def voices(self) -> dict[str, Samples]:
        """Speech (n,) by name, for `SpeakerOptions.known`. Raises: AudioError."""
        return {name: load_audio(self._path(name)) for name in self.names}

    def add(self, name: str, speech: Samples) -> None:
        """Keep a voice, or replace it. Raises: OptionError for a name that is empty or not one line."""
        if not name.strip() or not name.isprintable():
            raise OptionError(f"voice: expected a name, got '{name}'")
        path = self._path(name)
        with writing(f"voice '{path}'"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # voices are personal data
            with whole_file(path) as place, wave.open(str(place), "wb") as file:
                file.setparams((1, 2, SAMPLE_RATE, len(speech), "NONE", ""))
                file.writeframes((np.clip(speech, -1, 1) * 32767).astype("<i2").tobytes())

    def remove(self, name: str) -> None:
        """Raises: OptionError for an unknown name."""
        path = self._path(name)
        if not path.is_file():
            raise OptionError(f"voice '{name}': expected one of {', '.join(self.names) or 'no voices'}")
        path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / fitting_name(quote(name.strip(), safe=" "), ".wav")
