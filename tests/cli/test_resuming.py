"""A call that was killed in the middle goes on with the same documents as without a break."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.cli.main import run
from sottovoce.cli.transcribe import FORMAT as PART_FORMAT
from sottovoce.cli.transcribe import PartWriter, read_part
from sottovoce.offline.resume import ResumePoint, SeekPlace, TranscriptionState
from sottovoce.types import Segment
from tests.audio.media import wav_bytes
from tests.cli.conftest import Call
from tests.fresh_process import start_command
from tests.offline.test_resume import in_two_channels, joined

FORMATS = ["json-full", "srt", "rttm"]
WORDS = ["--model", "nano", "--beam-size", "1", "-f", ",".join(FORMATS), "--audio-ctx", "250"]
SEEK = ["-l", "en,de,es,fr", "--speakers", "auto"]
VAD = ["--vad", "--clean", "--offset", "0:01", "--channels", "apart"]
SECOND_MODEL = ["--second-model", "nano", "--defer-word", "0", "--defer-logprob", "-0.4"]
SECOND = ["-l", "en,de,es,fr", "--channels", "energy", *SECOND_MODEL]
HEADER = {"format": PART_FORMAT, "model": "nano", "size_bytes": 5}
POINT = ResumePoint(TranscriptionState(position=30.0), (1, 2), False, None, SeekPlace(0, 3000, 0.0, 3001))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "talk.wav"
    samples = in_two_channels(joined("en de fr es", 0.7, 2.5, 4.0)).clip(-1, 1)
    path.write_bytes(wav_bytes(samples))
    return path


def words_of(recording: Path, folder: Path, options: list[str]) -> list[str]:
    return ["transcribe", str(recording), *WORDS, *options, "-o", str(folder)]


AT_POINT = """
import os
from sottovoce.cli.transcribe import PartWriter
note = PartWriter.note
def note_and_end(self, point):
    note(self, point)
    if self.path.is_file() and self.path.read_bytes().count(b'{"point":') >= %d:
        os.kill(os.getpid(), %d)
PartWriter.note = note_and_end
"""


def killed(recording: Path, folder: Path, options: list[str], number: signal.Signals, n_points: int) -> str:
    """What a call says that gets a signal when so many points are in its part file."""
    said = folder.with_suffix(".said")
    process = start_command(words_of(recording, folder, options), said, first=AT_POINT % (n_points, number))
    process.join()
    assert process.exitcode == (143 if number is signal.SIGTERM else -number), said.read_text()
    assert (folder / "talk.full.json.part").is_file()
    assert not any((folder / f"talk.{item}").exists() for item in ("full.json", "srt", "rttm"))
    return said.read_text()


def documents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("talk.*"))}


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [SEEK, pytest.param(VAD, marks=pytest.mark.long), pytest.param(SECOND, marks=pytest.mark.long)],
    ids=["seek", "vad", "second-model"],
)
def test_a_killed_call_goes_on_to_the_same_documents(
    recording: Path, tmp_path: Path, options: list[str], call: Call
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(words_of(recording, whole, options)) == 0
    error = killed(recording, broken, options, signal.SIGTERM, 1)
    assert "the same call goes on at 0:" in error
    assert "terminated" in error
    n_points = (broken / "talk.full.json.part").read_bytes().count(b'{"point":')
    killed(recording, broken, options, signal.SIGKILL, n_points + 1)
    with (broken / "talk.full.json.part").open("ab") as file:
        file.write(b'{"segment": {"id": 3, "sta')  # as a crash leaves it
    assert "talk.wav: going on at 0:" in call(*words_of(recording, broken, options)).err
    assert documents(broken) == documents(whole)
    assert len(documents(broken)) == len(FORMATS)


def test_other_options_begin_anew_and_other_files_are_left_alone(tmp_path: Path, call: Call) -> None:
    clip = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"
    words = ["transcribe", str(clip), "--model", "nano", "--beam-size", "1", "-l", "de", "-f", "srt"]
    part = tmp_path / "de.srt.part"
    writer = PartWriter(part, HEADER)
    writer.note(POINT)
    writer.close()
    assert "begun anew" in call(*words, "-o", tmp_path).err
    assert not part.exists()
    part.write_text("half a download")
    assert "another program's" in call(*words, "-o", tmp_path).err
    assert part.read_text() == "half a download"


def segment(number: int) -> Segment:
    return Segment(number, number / 3, number + 0.1, f" word {number}", "en", (number,))


def test_a_part_is_read_up_to_its_last_whole_point(tmp_path: Path) -> None:
    path = tmp_path / "talk.srt.part"
    assert read_part(path, HEADER) is None
    writer = PartWriter(path, HEADER)
    writer.add(segment(0))
    assert not path.exists()
    writer.note(POINT)
    writer.add(segment(1))
    later = replace(POINT, context=(3,))
    writer.note(later)
    writer.add(segment(2))
    writer.close()
    whole = path.read_bytes()
    last = whole.rindex(b'{"point":')
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    cuts = {*range(ends[0], len(whole), 17), *ends, *(end - 1 for end in ends[1:])}
    for n_bytes in sorted(cuts):
        path.write_bytes(whole[:n_bytes])
        stored = read_part(path, HEADER)
        assert stored is not None
        if n_bytes == len(whole):
            assert (stored.point, stored.segments) == (later, (segment(0), segment(1)))
        elif n_bytes >= last:
            assert (stored.point, stored.segments) == (POINT, (segment(0),))
        assert whole[: stored.n_bytes].endswith(b"\n") or stored.point is None
        again = PartWriter(path, HEADER, stored.n_bytes)
        again.note(later)
        again.close()
        read = read_part(path, HEADER)
        assert read is not None
        assert (read.point, read.segments) == (later, stored.segments)
    other = read_part(path, {**HEADER, "size_bytes": 8})
    assert other is not None
    assert (other.matches, other.point) == (False, None)


def test_a_point_is_one_line_of_plain_values() -> None:
    assert ResumePoint.of_json(json.loads(json.dumps(POINT.to_json()))) == POINT
    assert os.linesep not in json.dumps(POINT.to_json())
