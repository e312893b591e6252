"""The text of films and damaged recordings has the times that a player shows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from sottovoce.audio.io import load_audio
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.options.transcribe import TranscribeOptions
from tests.audio.stamped import stamped_bytes
from tests.real.conftest import EXAMPLES, usual_model

pytestmark = [pytest.mark.real_weights, pytest.mark.slow]


def test_the_text_of_a_film_begins_where_its_sound_does(base: Checkpoint) -> None:
    speech = load_audio(EXAMPLES / "en.flac")
    film = stamped_bytes(speech, lambda t: t + 5.0, container="matroska", picture_s=20.0)
    model = usual_model(base)
    plain, late = (model.transcribe(one, language="en").collect() for one in (speech, film))
    assert late.text == plain.text
    assert 4.8 <= late.segments[0].start <= 5.3
    assert late.duration == pytest.approx(len(speech) / 16_000 + 5.0, abs=0.05)


@pytest.mark.parametrize("offset_s", [0.0, 80.0])
def test_a_word_behind_a_gap(offset_s: float, base: Checkpoint, shared_dir: Path) -> None:
    path = shared_dir / "fixtures" / "reports" / "gap-long.mka"
    options = TranscribeOptions(word_timestamps=True, offset_s=offset_s)
    found = usual_model(base).transcribe(path, language="en", options=options).collect()
    words = [word for segment in found.segments for word in segment.words or ()]
    (start,) = (word.start for word in words if "beautiful" in word.word)
    assert start == pytest.approx(95.8, abs=0.3)


@pytest.mark.parametrize(
    ("name", "start_s"), [("gap.ts", 18.66), ("gap.m4a", 18.66), ("chain-stereo-then-mono.opus", 9.66)]
)
def test_the_second_sentence(name: str, start_s: float, base: Checkpoint, shared_dir: Path) -> None:
    path = shared_dir / "fixtures" / "reports" / name
    found = usual_model(base).transcribe(path, language="en", word_timestamps=True).collect()
    words = [word for segment in found.segments for word in segment.words or ()]
    (start,) = (word.start for word in words if word.word.strip().lower() == "produced")
    assert start_s - 0.26 <= start <= start_s + 0.34
    assert "exhibition" in found.text.lower()
    assert "printed book" in found.text
    assert np.all(np.diff([word.start for word in words]) >= 0)


@pytest.mark.parametrize("mode", ["seek", "vad"])
@pytest.mark.parametrize("name", ["gap.ts", "gap.m4a", "gap.mka"])
def test_no_segment_reaches_across_missing_sound(
    name: str, mode: Literal["seek", "vad"], base: Checkpoint, shared_dir: Path
) -> None:
    path = shared_dir / "fixtures" / "reports" / name
    found = usual_model(base).transcribe(path, language="en", options=TranscribeOptions(mode=mode)).collect()
    (start,) = (one.start for one in found.segments if one.text.strip().lower().startswith("produced"))
    assert 18.4 <= start <= 19.0
    assert all(one.end <= 10.3 or one.start >= 18.4 for one in found.segments)
