"""One recording read by several processes: cut at pauses, nothing lost, nothing left behind."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.api import Model, load_model
from sottovoce.archive.multiprocess import (
    SHORTEST_PART_S,
    RecordingPart,
    parts_of,
    transcribe_parts,
    without_interrupts,
)
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import SpeechSegment
from sottovoce.cli.main import run
from sottovoce.errors import OptionError
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import SAMPLE_RATE, Segment, Word
from tests.audio.media import wav_bytes

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
LOAD: Callable[[], Model] = partial(load_model, "nano", device="cpu", dtype="float32")


@pytest.fixture(autouse=True)
def commands_load_nano_once() -> None:
    """Not here: models are pickled."""


def speech(*spans: tuple[float, float]) -> list[SpeechSegment]:
    return [SpeechSegment(int(start * SAMPLE_RATE), int(end * SAMPLE_RATE)) for start, end in spans]


def _tell_blocked(pipe: Connection) -> None:
    pipe.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal masks")
def test_processes_get_no_interrupt_while_they_start() -> None:
    """They would show a traceback each."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell_blocked, args=(theirs,))
    with without_interrupts():
        process.start()
    assert ours.recv()
    process.join()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@given(st.lists(st.floats(0.2, 20.0), max_size=40), st.integers(1, 8), st.booleans())
def test_parts_follow_each_other_and_are_cut_in_pauses(
    lengths: list[float], n_parts: int, is_open: bool
) -> None:
    ends = np.cumsum(lengths)
    heard = speech(
        *((float(end) - length * 0.9, float(end) - 0.05) for end, length in zip(ends, lengths, strict=True))
    )
    last = float(ends[-1]) if lengths else 5.0
    parts = parts_of(heard, 0.0, last, n_parts, is_open=is_open)
    assert 1 <= len(parts) <= n_parts
    assert parts[0].start_s == 0.0
    assert parts[-1].end_s == (None if is_open else last)
    assert all(a.end_s == b.start_s for a, b in pairwise(parts))
    for part in parts[1:]:
        assert all(not item.start_s < part.start_s < item.end_s for item in heard)
        assert part.start_s >= SHORTEST_PART_S


def test_the_longest_pause_near_the_even_place_is_taken() -> None:
    heard = speech((0.0, 9.5), (9.7, 11.0), (12.5, 20.0))
    assert parts_of(heard, 0.0, 20.0, 2) == [RecordingPart(0.0, 11.75), RecordingPart(11.75, None)]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clip, pause = load_audio(CLIP), np.zeros(4 * SAMPLE_RATE, np.float32)
    samples = np.concatenate([pause, clip, pause, clip, pause])
    path = tmp_path_factory.mktemp("parts") / "long.wav"
    path.write_bytes(wav_bytes(samples))
    return path


@pytest.mark.long
def test_every_part_says_its_sentence_at_its_time(recording: Path) -> None:
    model = LOAD()
    options = model.options(TranscribeOptions(), language="en")
    with closing(transcribe_parts(model, LOAD, str(recording), options, 2)) as together:
        result = list(together)
    assert together.duration == pytest.approx(18.3, abs=0.3)
    assert together.language == "en"
    assert [segment.id for segment in result] == list(range(len(result)))
    assert len(result) == 2
    assert all("garden" in segment.text for segment in result)
    assert result[0].end < result[1].start
    assert 8.0 < result[1].start < 13.0
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six sentences in four languages, 3 s apart."""
    pause = np.zeros(3 * SAMPLE_RATE, np.float32)
    clips = [load_audio(CLIP.with_name(f"{name}.flac")) for name in ("en", "de", "es", "fr", "de", "en")]
    samples = np.concatenate([part for clip in clips for part in (clip, pause)])
    path = tmp_path_factory.mktemp("parts") / "sentences.wav"
    path.write_bytes(wav_bytes(samples))
    return path


@pytest.mark.long
def test_what_several_processes_read_is_what_one_reads(sentences: Path) -> None:
    """Speech is found first, and a window is shorter than two sentences: both cut alike."""
    model = LOAD()
    wish = TranscribeOptions(mode="vad", audio_ctx=200, condition_on_previous_text=False)
    options = model.options(wish, language=["en", "de", "es", "fr"], word_timestamps=True)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = list(model.transcribe(str(sentences), options=options))
        with closing(transcribe_parts(model, LOAD, str(sentences), options, 2)) as together:
            result = list(together)
    finally:
        torch.set_num_threads(before)
    assert [(item.id, item.language, item.text) for item in result] == [
        (item.id, item.language, item.text) for item in alone
    ]
    assert [item.language for item in result] == ["en", "de", "es", "fr", "de", "en"]
    for ours, single in zip(words_of(result), words_of(alone), strict=True):
        assert ours.word == single.word
        assert (ours.start, ours.end) == pytest.approx((single.start, single.end), abs=0.1)


def words_of(segments: list[Segment]) -> list[Word]:
    return [word for segment in segments for word in segment.words or ()]


@pytest.mark.long
def test_the_command_and_its_language(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "nano", "--beam-size", "1", "--processors", "2", "--threads", "1"]
    assert run(["transcribe", str(recording), *words]) == 0
    output = capsys.readouterr()
    assert output.out.count("garden") == 2
    assert output.err == ""


class UnsendableError(Exception):
    def __init__(self, part: str, fault: str) -> None:
        super().__init__(f"{part}: {fault}")


def broken(kind: str) -> Model:
    if kind == "unsendable":
        raise UnsendableError("model", "got a fault")
    raise {"ours": OptionError, "unexpected": KeyError}[kind]("model: expected a model, got a fault")


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        pytest.param("ours", OptionError, marks=pytest.mark.long),
        pytest.param("unexpected", KeyError, marks=pytest.mark.long),
        ("unsendable", RuntimeError),
    ],
)
def test_what_a_process_says_is_said_here_and_none_is_left(
    kind: str, error: type[Exception], recording: Path
) -> None:
    model = LOAD()
    options = model.options(TranscribeOptions(), language="en")
    with (
        pytest.raises(error, match="got a fault"),
        closing(transcribe_parts(model, partial(broken, kind), str(recording), options, 2)) as together,
    ):
        list(together)
    assert multiprocessing.active_children() == []


def test_special_tokens_are_written_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["transcribe", str(CLIP), "-m", "nano", "-l", "en", "--beam-size", "1"]
    assert run([*words, "--print-special"]) == 0
    assert capsys.readouterr().out.startswith("<|0.")


def test_shorter_windows_are_encoded_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LOAD()
    lengths: list[int] = []
    encode = model.backend.encode
    monkeypatch.setattr(
        model.backend, "encode", lambda features: lengths.append(features.mel.shape[2]) or encode(features)
    )
    text = model.transcribe(CLIP, language="en", options=TranscribeOptions(audio_ctx=250)).text
    assert set(lengths) == {500}
    assert "garden" in text
