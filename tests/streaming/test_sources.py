"""Several sources in one session: each is an ordinary session, and their events leave by time."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.cli.main import run
from sottovoce.errors import AudioError, OptionError
from sottovoce.runtime.calls import Steps
from sottovoce.streaming.live_session import LiveSession
from sottovoce.streaming.options import Finals
from sottovoce.streaming.sources import SourcesSession
from sottovoce.types import Event, Final, LanguageChanged, Partial, Samples
from tests.audio.media import wav_bytes

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
GIVEN = {"languages": ["en", "de"], "vad": False}


@pytest.fixture(scope="module")
def channels() -> Samples:
    """Two people who speak at once."""
    english, german = load_audio(CLIPS / "en.flac"), load_audio(CLIPS / "de.flac")
    n_samples = max(len(english), len(german))
    return np.stack([np.pad(each, (0, n_samples - len(each))) for each in (english, german)])


def listen(session: LiveSession | SourcesSession, pcm: Samples) -> list[Event]:
    pushed = [session.push(pcm[..., at : at + 6000]) for at in range(0, pcm.shape[-1], 6000)]
    return [*(event for events in pushed for event in events), *session.close()]


def unnamed(event: Event) -> Event:
    event = replace(event, seq=0, utterance=None, source=None)
    if isinstance(event, Partial | Final):
        event = replace(event, words=tuple(replace(word, speaker=None) for word in event.words))
    return event


@pytest.mark.parametrize("finals", ["committed", pytest.param("read", marks=pytest.mark.long)])
def test_each_source_has_the_events_of_a_session_of_its_own(
    model: Model, channels: Samples, finals: Finals
) -> None:
    events = listen(model.sources_session(["Ada", "Ben"], finals=finals, **GIVEN), channels)
    assert [event.seq for event in events] == list(range(len(events)))
    for place, name in enumerate(["Ada", "Ben"]):
        alone = listen(model.session(finals=finals, **GIVEN), channels[place])  # type: ignore[arg-type]
        of_source = [event for event in events if event.source == name]
        assert any(isinstance(event, Final) for event in of_source)
        if finals == "committed":
            assert list(map(unnamed, of_source)) == list(map(unnamed, alone))
        words = [word for event in of_source if isinstance(event, Partial | Final) for word in event.words]
        assert {word.speaker for word in words} == {name}
    assert len({event.utterance for event in events if isinstance(event, Final)}) == 2


def test_events_of_a_push_leave_by_time(model: Model, channels: Samples) -> None:
    with model.sources_session(["Ada", "Ben"], **GIVEN) as session:
        events = session.push(channels)
    times = [e.confirmed_at if isinstance(e, LanguageChanged) else e.emission_time for e in events]
    assert times == sorted(times)
    assert {event.source for event in events} == {"Ada", "Ben"}


def test_an_error_of_one_source_loses_no_events(
    model: Model, channels: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.sources_session(["Ada", "Ben"], **GIVEN)
    failing, push = session._sessions[1], LiveSession.push_request

    def fails_once(self: LiveSession, *given: object, **options: object) -> Steps[list[Event]]:
        events = yield from push(self, *given, **options)  # type: ignore[arg-type]
        if self is failing:
            monkeypatch.undo()
            raise RuntimeError("a model that fails")
        return events

    monkeypatch.setattr(LiveSession, "push_request", fails_once)
    with pytest.raises(RuntimeError):
        session.push(channels)
    assert any(isinstance(event, Partial) and event.source == "Ada" for event in session.close())


@pytest.mark.parametrize("n_failing", [1, 2])
def test_only_errors_that_are_not_raised_are_logged(
    model: Model,
    channels: Samples,
    n_failing: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = model.sources_session(["Ada", "Ben"], **GIVEN)
    failing, advance = session._sessions[-n_failing:], LiveSession._advance

    def fails(self: LiveSession, **options: bool) -> Steps[None]:
        yield from advance(self, **options)
        if self in failing:
            with self._attempt:
                raise RuntimeError("a model that fails")

    monkeypatch.setattr(LiveSession, "_advance", fails)
    with pytest.raises(RuntimeError):
        session.push(channels)
    assert caplog.messages == ["an update failed: RuntimeError"] * (n_failing - 1)


def test_bad_input(model: Model, channels: Samples) -> None:
    for names, given, message in (
        (["A", "A"], {}, "'A' twice"),
        ([], {}, "a name for each"),
        (["A", "B"], {"speakers": "auto"}, "each source is a speaker"),
    ):
        with pytest.raises(OptionError, match=message):
            model.sources_session(names, **given)
    with pytest.raises(AudioError, match=r"expected samples \(2, n\), got"):
        model.sources_session(["A", "B"]).push(channels[0])


def test_a_command_names_the_channels_of_a_file(
    channels: Samples, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "call.wav").write_bytes(wav_bytes(channels))
    words = [
        "-m",
        "nano",
        "-l",
        "en,de",
        "--sources",
        "Ada,Ben",
        "--jsonl",
        "-o",
        str(tmp_path / "call.json"),
    ]
    assert (
        run(["stream", str(tmp_path / "call.wav"), *words, "--save-audio", str(tmp_path / "copy.wav")]) == 0
    )
    finals = [
        event
        for line in capsys.readouterr().out.splitlines()
        if (event := json.loads(line))["type"] == "final"
    ]
    assert {event["source"] for event in finals} == {"Ada", "Ben"}
    segments = json.loads((tmp_path / "call.json").read_text(encoding="utf-8"))["segments"]
    assert [each["start"] for each in segments] == sorted(each["start"] for each in segments)
    assert {each["speaker"] for each in segments} == {"Ada", "Ben"}
    np.testing.assert_allclose(load_audio(tmp_path / "copy.wav", channel=1), channels[1], atol=1e-4)


def test_a_command_reads_a_pipe_for_each_source(
    channels: Samples, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One ends before the other."""
    lengths = {"Ada": channels.shape[1], "Ben": channels.shape[1] - 24_000}
    writers = []
    for samples, (name, n_samples) in zip(channels, lengths.items(), strict=True):
        os.mkfifo(tmp_path / name)
        data = (samples[:n_samples] * 32767).astype("<i2").tobytes()
        writers.append(threading.Thread(target=(tmp_path / name).write_bytes, args=(data,)))
        writers[-1].start()
    sources = ",".join(f"{name}={tmp_path / name}" for name in lengths)
    words = ["-m", "nano", "-l", "en,de", "--sources", sources, "--unaware", "--jsonl"]
    assert run(["stream", *words, "--save-audio", str(tmp_path / "copy.wav")]) == 0
    for writer in writers:
        writer.join()
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {event["source"] for event in events if event["type"] == "final"} == {"Ada", "Ben"}
    np.testing.assert_allclose(load_audio(tmp_path / "copy.wav", channel=0), channels[0], atol=1e-4)
    assert not load_audio(tmp_path / "copy.wav", channel=1)[lengths["Ben"] :].any()


@pytest.mark.parametrize(
    ("source", "names", "message"),
    [
        ("-", "A,B", "got a pipe"),
        ("", "A=here,B=there", "the path of a pipe, got 'here'"),
        ("en.flac", "A,B=2", "got the device '2'"),
        ("en.flac", "A,B", "channel"),
    ],
)
def test_bad_sources_are_one_line(
    source: str, names: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(CLIPS / source) if source.endswith("flac") else source
    assert run(["stream", *filter(None, [name]), "-m", "nano", "--sources", names]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
