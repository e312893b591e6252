"""A recording in a folder of its own, and a call that must end before it opens a model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sottovoce.cli import transcribe


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    german = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"
    return Path(shutil.copy(german, tmp_path / "clip.flac"))


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of `transcribe` that opens a model fails."""

    def opened(_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(transcribe, "open_model", opened)
