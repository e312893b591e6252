"""`diarized_json`, with OpenAI's own client: segments with speakers, whole and in pieces."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, NoReturn

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.audio import TranscriptionDiarized
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.errors import ModelNotFoundError
from sottovoce.serving.apis.sottovoce_live import SessionRequest, configured
from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.recordings.requests import known_speakers
from tests.serving.conversation import KnownSpeakers
from tests.serving.servers import CLIPS
from tests.serving.test_streamed_segments import events
from tests.speakers.somebody import one_speaker


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.offline.longform.make_diarizer", lambda _: KnownSpeakers())


def test_segments_have_speakers(client: OpenAI, nano: Model, english: Path) -> None:
    found = client.audio.transcriptions.create(
        model="gpt-4o-transcribe-diarize", file=english, response_format="diarized_json"
    )
    assert isinstance(found, TranscriptionDiarized)
    assert found.task == "transcribe"
    assert found.text == "".join(segment.text for segment in found.segments).strip() != ""
    assert found.segments[-1].speaker == "B"
    assert {segment.speaker for segment in found.segments} <= {"A", "B"}
    assert len({segment.id for segment in found.segments}) == len(found.segments)
    assert all(segment.type == "transcript.text.segment" for segment in found.segments)
    assert found.duration > found.segments[-1].start


def test_a_stream_tells_segments_as_they_are_found(client: OpenAI, english: Path) -> None:
    whole = client.audio.transcriptions.create(model="nano", file=english, response_format="diarized_json")
    events = list(
        client.audio.transcriptions.create(
            model="nano", file=english, response_format="diarized_json", stream=True
        )
    )
    segments = [event for event in events if event.type == "transcript.text.segment"]
    deltas = [event for event in events if event.type == "transcript.text.delta"]
    assert [(one.speaker, one.text) for one in segments] == [(s.speaker, s.text) for s in whole.segments]
    assert [delta.segment_id for delta in deltas] == [segment.id for segment in segments]
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == whole.text


def test_words_of_streamed_segments_have_the_speaker_of_their_segment(
    server: ServerThread, english: Path
) -> None:
    found = events(
        server,
        english,
        **{"response_format": "diarized_json", "timestamp_granularities[]": "word", "language": "en"},
    )
    segments = [one for one in found if one["type"] == "transcript.text.segment"]
    assert segments[-1]["speaker"] == "B"
    for segment in segments:
        assert "".join(word["word"] for word in segment["words"]) == segment["text"]
        assert {word["speaker"] for word in segment["words"]} == {segment["speaker"]}


def said(server: ServerThread, path: str, end: str) -> list[dict[str, Any]]:
    pcm = (load_audio(CLIPS / "en.flac") * 32767).astype("<i2").tobytes()
    with connect(f"ws://{server.address}{path}") as socket:
        socket.send(pcm)
        socket.send(json.dumps({"type": end}))
        return [json.loads(message) for message in socket]


def test_words_of_a_live_session_have_speakers(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.serving.scheduling.session_handle.make_live_speakers", one_speaker)
    messages = said(server, "/v1/live?languages=en&speakers=auto", "close")
    finals = [message for message in messages if message["type"] == "final"]
    assert finals
    assert {word["speaker"] for final in finals for word in final["words"]} == {"A"}
    assert configured(SessionRequest(), {"speakers": "2"}).options.speakers == "2"
    assert configured(SessionRequest(), {"speakers": False}).options.speakers == ""
    with pytest.raises(ApiError, match="expected auto"):
        configured(SessionRequest(), {"speakers": "several"})


def test_voices_go_from_session_to_session(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.serving.scheduling.session_handle.make_live_speakers", one_speaker)
    address = f"ws://{server.address}/v1/live?languages=en&speakers=auto"
    pcm = (load_audio(CLIPS / "en.flac") * 32767).astype("<i2").tobytes()
    voices: dict[str, str] = {}
    for name in ("A", "Anna"):
        with connect(address) as socket:
            if voices:
                socket.send(json.dumps({"type": "voices", "voices": {"Anna": voices["A"]}}))
            socket.send(pcm)
            socket.send(json.dumps({"type": "finalize"}))
            socket.send(json.dumps({"type": "voices"}))
            socket.send(json.dumps({"type": "close"}))
            messages = [json.loads(message) for message in socket]
        voices = [message for message in messages if message["type"] == "voices"][-1]["voices"]
        words = [word for message in messages if message["type"] == "final" for word in message["words"]]
        assert list(voices) == [name]
        assert {word["speaker"] for word in words} == {name}


@pytest.mark.parametrize(
    ("voices", "expected"),
    [
        (["A"], "an object of voices in base64 by name"),
        ({"A": 1}, "an object of voices in base64 by name"),
        ({"": "AAAA"}, "names of 1 to 50 printable characters"),
        ({"A\nB": "AAAA"}, "names of 1 to 50 printable characters"),
        ({"A": "no base64"}, "32-bit floats in base64"),
        ({"A": "AAAA"}, "32-bit floats in base64"),
        ({"A": "AAAAAA=="}, "expected 2 finite numbers"),
    ],
)
def test_what_is_no_voice_is_said(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch, voices: object, expected: str
) -> None:
    monkeypatch.setattr("sottovoce.serving.scheduling.session_handle.make_live_speakers", one_speaker)
    for query, said in (("speakers=auto", expected), ("", expected.replace("2 finite", "a session"))):
        with connect(f"ws://{server.address}/v1/live?{query}") as socket:
            socket.send(json.dumps({"type": "voices", "voices": voices}))
            socket.send(json.dumps({"type": "close"}))
            messages = [json.loads(message) for message in socket]
        assert [message["type"] for message in messages] == ["ready", "error", "closed"]
        assert said.split(" numbers")[0] in messages[1]["error"]["message"]


def unavailable(option: object) -> NoReturn:
    """What says that its weights are not there, as `speakers.weights` does."""
    raise ModelNotFoundError("voices: not in the cache (/srv/secret/voices); the index cannot be reached")


def test_missing_weights_are_told_without_their_place(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sottovoce.serving.scheduling.session_handle.make_live_speakers", unavailable)
    monkeypatch.setattr("sottovoce.offline.longform.make_diarizer", unavailable)
    with pytest.raises(InvalidStatus) as shut:
        connect(f"ws://{server.address}/v1/live?speakers=auto")
    assert shut.value.response.status_code == 503
    message = json.loads(shut.value.response.body or b"")
    with connect(f"ws://{server.address}/v1/live?languages=en") as socket:
        socket.recv()
        socket.send(json.dumps({"type": "configure", "speakers": "auto"}))
        refused = json.loads(socket.recv())
        socket.send(json.dumps({"type": "close"}))  # the session is as it was
        assert json.loads(socket.recv())["type"] == "closed"
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions",
        data={"model": "nano", "response_format": "diarized_json"},
        files={"file": (CLIPS / "en.flac").read_bytes()},
        timeout=120,
    )
    assert answer.status_code == 503
    query = "encoding=linear16&sample_rate=16000&diarize=true"
    handshake = f"ws://{server.address}/v1/listen?{query}"
    with pytest.raises(InvalidStatus) as denied, connect(handshake):
        pass
    for told in (message["error"], refused["error"], answer.json()["error"]):
        assert told["code"] == "model_unavailable"
        assert "/srv" not in str(told)
    assert b"/srv" not in (denied.value.response.body or b"")
    assert denied.value.response.status_code == 503
    reasons = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert sum("/srv/secret/voices" in reason for reason in reasons) == 4


def test_speakers_as_deepgram_tells_them(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.serving.scheduling.session_handle.make_live_speakers", one_speaker)
    query = "encoding=linear16&sample_rate=16000&language=en&diarize=true"
    messages = said(server, f"/v1/listen?{query}", "CloseStream")
    finals = [message for message in messages if message.get("is_final")]
    words = [word for final in finals for word in final["channel"]["alternatives"][0]["words"]]
    assert words
    assert words[-1]["speaker"] == 0
    answer = httpx.post(
        f"{server.url}/v1/listen?language=en&diarize=true&utterances=true",
        content=(CLIPS / "en.flac").read_bytes(),
        headers={"content-type": "audio/flac"},
        timeout=120,
    ).json()["results"]
    words = answer["channels"][0]["alternatives"][0]["words"]
    assert {word["speaker"] for word in words} == {0, 1}
    assert answer["utterances"][-1]["speaker"] == 1


def reference(path: Path) -> str:
    return "data:audio/flac;base64," + base64.b64encode(path.read_bytes()).decode()


def test_known_speakers_are_read(english: Path) -> None:
    found = known_speakers(["Anna"], [reference(english)])
    assert found.keys() == {"Anna"}
    assert found["Anna"].ndim == 1


@pytest.mark.parametrize(
    ("names", "references", "told"),
    [
        (["Anna"], [], "expected a reference for each name, got 1 and 0"),
        (["Anna"], ["speech"], "expected 'data:audio/wav;base64,…', got something else"),
        (["Anna"], ["data:audio/wav;base64,?"], "got something else"),
        (["Anna"], ["data:audio/wav;base64,AAAA"], "expected 'data:audio/wav;base64,…'"),
        (["A", "A"], ["data:,", "data:,"], "at most 4 different names"),
        (list("ABCDE"), ["data:,"] * 5, "at most 4 different names"),
    ],
)
def test_known_speakers_that_cannot_be(
    client: OpenAI, english: Path, names: list[str], references: list[str], told: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=told.replace("?", ".")):
        client.audio.transcriptions.create(
            model="nano",
            file=english,
            response_format="diarized_json",
            known_speaker_names=names,
            known_speaker_references=references,
        )
