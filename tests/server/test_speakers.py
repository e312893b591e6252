"""Segments of a recording with their speakers and words, whole and in pieces; speakers of live sessions."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI
from openai.types.audio import TranscriptionDiarized

from sottovoce.api import Model
from sottovoce.cli.serve import voices_of
from sottovoce.errors import ModelNotFoundError, OptionError
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.server.apis.openai_files import known_speakers
from sottovoce.server.apis.sottovoce_live import SessionRequest, with_changes
from sottovoce.server.errors import ApiError
from sottovoce.server.settings import ModelSettings
from sottovoce.speakers.diarize import VoiceBook
from sottovoce.types import SAMPLE_RATE
from tests.server.conversation import KnownSpeakers, Message, exchanged, refusal
from tests.server.servers import CLIPS, ServerThread, post, serving
from tests.server.test_live import clip
from tests.speakers.somebody import one_speaker

LIVE = "/v1/live?languages=en&speakers=auto"


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.offline.transcription.make_diarizer", lambda _: KnownSpeakers())
    monkeypatch.setattr("sottovoce.server.scheduler.make_live_speakers", one_speaker)


def test_segments_have_speakers_whole_and_in_a_stream(client: OpenAI, english: Path) -> None:
    asked: Any = {"file": english, "response_format": "diarized_json", "language": "en"}
    whole = client.audio.transcriptions.create(model="gpt-4o-transcribe-diarize", **asked)
    assert isinstance(whole, TranscriptionDiarized)
    assert whole.task == "transcribe"
    assert whole.text == "".join(segment.text for segment in whole.segments).strip() != ""
    assert whole.segments[-1].speaker == "B"
    assert {segment.speaker for segment in whole.segments} <= {"A", "B"}
    assert len({segment.id for segment in whole.segments}) == len(whole.segments)
    assert all(segment.type == "transcript.text.segment" for segment in whole.segments)
    assert whole.duration > whole.segments[-1].start
    *result, done = client.audio.transcriptions.create(model="nano", stream=True, **asked)
    segments = [event for event in result if event.type == "transcript.text.segment"]
    deltas = [event for event in result if event.type == "transcript.text.delta"]
    assert [(item.speaker, item.text) for item in segments] == [(s.speaker, s.text) for s in whole.segments]
    assert [delta.segment_id for delta in deltas] == [segment.id for segment in segments]
    assert (done.type, done.text) == ("transcript.text.done", whole.text)


def events(server: ServerThread, recording: Path, **given: str) -> list[dict[str, Any]]:
    answer = post(server, data=recording.read_bytes(), stream="true", **given)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("with_words", [True, False])
def test_segments_come_with_their_words_and_language(
    server: ServerThread, english: Path, with_words: bool
) -> None:
    asked = {"timestamp_granularities[]": "word"} if with_words else {}
    *result, done = events(server, english, response_format="verbose_json", **asked)
    segments = [item for item in result if item["type"] == "transcript.text.segment"]
    assert segments
    assert "".join(item["text"] for item in segments).strip() == done["text"]
    assert {item["language"] for item in segments} == {"en"}
    assert "speaker" not in segments[0]
    for segment in segments:
        assert ("words" in segment) is with_words
        if with_words:
            assert "".join(word["word"] for word in segment["words"]) == segment["text"]
            times = [time for word in segment["words"] for time in (word["start"], word["end"])]
            assert times == sorted(times)


def test_words_of_streamed_segments_have_the_speaker_of_their_segment(
    server: ServerThread, english: Path
) -> None:
    words = {"timestamp_granularities[]": "word"}
    result = events(server, english, response_format="diarized_json", language="en", **words)
    segments = [item for item in result if item["type"] == "transcript.text.segment"]
    assert segments[-1]["speaker"] == "B"
    for segment in segments:
        assert "".join(word["word"] for word in segment["words"]) == segment["text"]
        assert {word["speaker"] for word in segment["words"]} == {segment["speaker"]}


def test_words_of_a_live_session_have_speakers(server: ServerThread) -> None:
    messages, _ = exchanged(server, LIVE, clip("en"), {"type": "close"})
    finals = [message for message in messages if message["type"] == "final"]
    assert finals
    assert {word["speaker"] for final in finals for word in final["words"]} == {"A"}
    assert with_changes(SessionRequest(), {"speakers": "2"}).options.speakers == "2"
    assert with_changes(SessionRequest(), {"speakers": False}).options.speakers == ""
    with pytest.raises(ApiError, match="expected auto"):
        with_changes(SessionRequest(), {"speakers": "several"})


def test_voices_go_from_session_to_session(server: ServerThread) -> None:
    voices: dict[str, str] = {}
    for name in ("A", "Anna"):
        known: list[Message] = [{"type": "voices", "voices": {"Anna": voices["A"]}}] if voices else []
        ends: list[Message] = [{"type": kind} for kind in ("finalize", "voices", "close")]
        messages, _ = exchanged(server, LIVE, *known, clip("en"), *ends)
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
def test_what_is_no_voice_is_said(server: ServerThread, voices: object, expected: str) -> None:
    for query, said in (("speakers=auto", expected), ("", expected.replace("2 finite", "a session"))):
        given: Message = {"type": "voices", "voices": voices}
        messages, _ = exchanged(server, f"/v1/live?{query}", given, {"type": "close"})
        assert [message["type"] for message in messages] == ["ready", "error", "closed"]
        assert said.split(" numbers")[0] in messages[1]["error"]["message"]


def unavailable(option: object) -> NoReturn:
    """What says that its weights are not there, as `speakers.weights` does."""
    raise ModelNotFoundError("voices: not in the cache (/srv/secret/voices); the index cannot be reached")


def test_missing_weights_are_told_without_their_place(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sottovoce.server.scheduler.make_live_speakers", unavailable)
    monkeypatch.setattr("sottovoce.offline.transcription.make_diarizer", unavailable)
    shut = refusal(server, "/v1/live?speakers=auto")
    assert shut.status_code == 503
    configure: Message = {"type": "configure", "speakers": "auto"}
    (_, refused, closed), _ = exchanged(server, "/v1/live?languages=en", configure, {"type": "close"})
    assert closed["type"] == "closed", "the session is as it was"
    english = (CLIPS / "en.flac").read_bytes()
    answer = post(server, data=english, model="nano", response_format="diarized_json")
    assert answer.status_code == 503
    denied = refusal(server, "/v1/listen?encoding=linear16&sample_rate=16000&diarize=true")
    for reported in (json.loads(shut.body)["error"], refused["error"], answer.json()["error"]):
        assert reported["code"] == "model_unavailable"
        assert "/srv" not in str(reported)
    assert b"/srv" not in denied.body
    assert denied.status_code == 503
    reasons = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert sum("/srv/secret/voices" in reason for reason in reasons) == 4


def test_speakers_as_deepgram_tells_them(server: ServerThread) -> None:
    query = "encoding=linear16&sample_rate=16000&language=en&diarize=true"
    messages, _ = exchanged(server, f"/v1/listen?{query}", clip("en"), {"type": "CloseStream"})
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
    result = known_speakers(["Anna"], [reference(english)])
    assert result.keys() == {"Anna"}
    assert result["Anna"].ndim == 1


@pytest.mark.parametrize(
    ("names", "references", "reported"),
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
    client: OpenAI, english: Path, names: list[str], references: list[str], reported: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=reported.replace("?", ".")):
        client.audio.transcriptions.create(
            model="nano",
            file=english,
            response_format="diarized_json",
            known_speaker_names=names,
            known_speaker_references=references,
        )


def test_kept_voices_are_known_to_sessions_and_recordings(
    nano: Model, english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    VoiceBook(tmp_path).add("Ada", np.full(SAMPLE_RATE, 0.5, np.float32))
    wishes: list[SpeakerOptions] = []

    def asked(make: Callable[[], object]) -> Callable[[SpeakerOptions], object]:
        def made(wish: SpeakerOptions) -> object:
            wishes.append(wish)
            return make()

        return made

    monkeypatch.setattr("sottovoce.offline.transcription.make_diarizer", asked(KnownSpeakers))
    monkeypatch.setattr("sottovoce.server.scheduler.make_live_speakers", asked(one_speaker))
    with serving(nano, models=ModelSettings("nano", voices=voices_of(str(tmp_path)))) as server:
        exchanged(server, LIVE, clip("en"), {"type": "close"})
        assert post(server, data=english.read_bytes(), response_format="diarized_json").status_code == 200
    assert [list(wish.known) for wish in wishes] == [["Ada"], ["Ada"]]
    with pytest.raises(OptionError, match="expected a folder with voices"):
        voices_of(str(tmp_path / "none"))
