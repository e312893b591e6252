"""Recordings of one meeting, a speaker each: their texts, in one transcript by time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio, probe_audio
from sottovoce.errors import OptionError
from sottovoce.formats.files import load_transcript
from sottovoce.types import Samples
from tests.cli.conftest import Call, call  # noqa: F401 - a fixture

CLIPS = Path(__file__).parents[2] / "examples" / "clips"


def written(path: Path, samples: Samples, **tags: str) -> Path:
    with av.open(str(path), "w", options={"write_bext": "1"} if path.suffix == ".wav" else {}) as file:
        track = file.add_stream("pcm_s16le" if path.suffix == ".wav" else "flac", 16_000, layout="mono")
        file.metadata.update(tags)
        codes = np.clip(samples * 32767, -32768, 32767).astype("<i2")[None]
        frame = av.AudioFrame.from_ndarray(codes, "s16", "mono")
        frame.sample_rate = 16_000
        for packet in (*track.encode(frame), *track.encode(None)):
            file.mux(packet)
    return path


@pytest.fixture
def meeting(tmp_path: Path) -> dict[str, Path]:
    """Two who take turns, each with a recording; the second begins two seconds later."""
    german, english = (load_audio(CLIPS / f"{code}.flac") for code in ("de", "en"))
    ada = np.concatenate((german, np.zeros_like(english), german))
    bob = np.concatenate((np.zeros(len(german) - 32_000, np.float32), english))
    return {
        "ada": written(tmp_path / "ada.wav", ada, time_reference="160000"),
        "bob": written(tmp_path / "bob.wav", bob, time_reference="192000"),
    }


def test_texts_are_those_of_each_recording_and_starts_are_moved(
    model: Model, meeting: dict[str, Path]
) -> None:
    together = model.transcribe_together(meeting, starts_s=(0.0, 2.0), beam_size=1)
    whole = together.collect()
    assert [segment.id for segment in whole.segments] == list(range(len(whole.segments)))
    assert all(before.start <= after.start for before, after in pairwise(whole.segments))
    for (speaker, path), start_s in zip(meeting.items(), (0.0, 2.0), strict=True):
        alone = model.transcribe(path, beam_size=1).collect().segments
        spoken = [segment for segment in whole.segments if segment.speaker == speaker]
        assert [segment.text for segment in spoken] == [segment.text for segment in alone]
        assert [segment.start for segment in spoken] == pytest.approx(
            [start_s + each.start for each in alone]
        )
    order = [
        speaker
        for speaker, after in pairwise([*(each.speaker for each in whole.segments), None])
        if speaker != after
    ]
    assert order == ["ada", "bob", "ada"]
    with pytest.raises(OptionError, match="expected 2"):
        model.transcribe_together(meeting, starts_s=(1.0,))


def test_the_command(meeting: dict[str, Path], tmp_path: Path, call: Call) -> None:  # noqa: F811
    assert probe_audio(meeting["bob"]).began_s == 12.0
    out = tmp_path / "meeting.json"
    words = ["transcribe", *meeting.values(), "-m", "nano", "--beam-size", "1", "--together"]
    documents = []
    for more in (
        ["--starts", "0,2"],
        ["--starts", "auto"],
        ["--speaker-names", "Ada,Bob", "--starts", "0,0:02"],
    ):
        call(*words, *more, "-o", out)
        documents.append(out.read_text())
        assert load_transcript(out).segments[0].speaker in ("ada", "Ada")
    assert documents[0] == documents[1] == documents[2].replace("Ada", "ada").replace("Bob", "bob")
    for more, expected in (
        (["--speaker-names", "Ada"], "expected 2"),
        (["--starts", "1"], "expected 2"),
        (["--speakers", "2"], "together"),
    ):
        assert expected in call(*words, *more, code=2).err
