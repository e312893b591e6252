"""A transcript of the bundled model, which several tests write and read."""

from __future__ import annotations

import pytest

import sottovoce
from sottovoce.types import Transcript
from tests.formats.transcripts import CLIPS


@pytest.fixture(scope="session")
def heard() -> Transcript:
    model = sottovoce.load_model("nano")
    return model.transcribe(CLIPS / "de.flac", word_timestamps=True).collect()
