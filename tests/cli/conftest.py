"""A call of the command, a recording in a folder of its own, and a call that must not open a model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.capture import CaptureResult

from sottovoce.cli import transcribe
from sottovoce.cli.main import run

Call = Callable[..., CaptureResult[str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command with these words, check its exit code, and return what it wrote."""

    def called(*words: object, code: int = 0) -> CaptureResult[str]:
        assert run([*map(str, words)]) == code
        return capsys.readouterr()

    return called


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    german = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"
    return Path(shutil.copy(german, tmp_path / "clip.flac"))


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of `transcribe` that opens a model fails."""

    def opened(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(transcribe, "open_model", opened)
