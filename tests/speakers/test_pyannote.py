"""pyannote.audio behind the seam, with a stand-in for it: its documented interface, versions 3 and 4."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
import torch

from sottovoce.audio.io import Recording
from sottovoce.errors import MissingExtraError, ModelNotFoundError
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers.diarize import PIPELINE, PyannoteDiarizer, make_diarizer
from sottovoce.types import Turn

SILENCE = Recording(np.zeros(32_000, np.float32))


@dataclass
class Stretch:
    start: float
    end: float


class Annotation:
    def itertracks(self, *, yield_label: bool) -> Iterator[tuple[Stretch, str, str]]:
        assert yield_label
        yield Stretch(0.5, 1.0), "_", "SPEAKER_01"
        yield Stretch(0.9, 1.5), "_", "SPEAKER_00"


@dataclass
class Output:
    speaker_diarization: Annotation


class Pipeline:
    """Of version 4 where `is_new`, of version 3 else."""

    def __init__(self, is_new: bool) -> None:
        self.is_new = is_new
        self.asked: dict[str, int] = {}

    def __call__(self, audio: dict[str, object], **asked: int) -> object:
        waveform = audio["waveform"]
        assert isinstance(waveform, torch.Tensor)
        assert waveform.shape == (1, 32_000)
        assert audio["sample_rate"] == 16_000
        self.asked = asked
        return Output(Annotation()) if self.is_new else Annotation()


@pytest.mark.parametrize("is_new", [True, False])
def test_turns_of_a_pipeline(is_new: bool) -> None:
    pipeline = Pipeline(is_new)
    turns = PyannoteDiarizer(SpeakerOptions(n_speakers=2), pipeline).turns(SILENCE)
    assert turns == [Turn(0.5, 1.0, "A"), Turn(0.9, 1.5, "B")]
    assert pipeline.asked == {"num_speakers": 2}
    PyannoteDiarizer(SpeakerOptions(most=4), pipeline).turns(SILENCE)
    assert pipeline.asked == {"max_speakers": 4}


def install(monkeypatch: pytest.MonkeyPatch, pipeline: object) -> list[str]:
    """A package pyannote.audio whose pipeline is `found`, or fails with it."""
    names: list[str] = []

    class Loader:
        @staticmethod
        def from_pretrained(name: str) -> object:
            names.append(name)
            if isinstance(pipeline, Exception):
                raise pipeline
            return pipeline

    module = ModuleType("pyannote.audio")
    module.Pipeline = Loader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyannote", ModuleType("pyannote"))
    monkeypatch.setitem(sys.modules, "pyannote.audio", module)
    return names


def test_the_pipeline_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = install(monkeypatch, Pipeline(True))
    assert make_diarizer(SpeakerOptions(engine="pyannote")).turns(SILENCE)
    monkeypatch.setenv("SOTTOVOCE_PYANNOTE", "my/pipeline")
    make_diarizer(SpeakerOptions(engine="pyannote"))
    assert names == [PIPELINE, "my/pipeline"]


@pytest.mark.parametrize(
    ("pipeline", "message"), [(None, "HF_TOKEN"), (RuntimeError("no such\npipeline"), r"\(no such\)")]
)
def test_a_pipeline_that_cannot_be_loaded(
    pipeline: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, pipeline)
    with pytest.raises(ModelNotFoundError, match=message):
        make_diarizer(SpeakerOptions(engine="pyannote"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyannote.audio", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[pyannote\]'"):
        make_diarizer(SpeakerOptions(engine="pyannote"))
