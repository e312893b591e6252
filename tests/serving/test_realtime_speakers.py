"""Who says what in a realtime session, told to the client of OpenAI."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from openai import OpenAI
from openai.types.realtime import ConversationItemInputAudioTranscriptionSegment

from sottovoce.serving.access.gate import ClientSecrets
from sottovoce.serving.apis.openai_realtime import RealtimeSessionConfig, speaker_runs, updated
from sottovoce.serving.http.server import ServerThread
from sottovoce.types import Word
from tests.serving.conversation import TALK, TalkModel
from tests.serving.servers import serving
from tests.serving.test_realtime import COMPLETED, append

DIARIZING = "gpt-4o-transcribe-diarize"


def heard(server: ServerThread, model: str, query: dict[str, str] | None = None) -> list[Any]:
    """Events up to the end of one turn, of all that is said in the talk."""
    events: list[Any] = []
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        client.realtime.connect(extra_query={"intent": "transcription", **(query or {})}) as connection,
    ):
        wanted: Any = {"turn_detection": None, **({"transcription": {"model": model}} if model else {})}
        connection.session.update(session={"type": "transcription", "audio": {"input": wanted}})
        for _ in range(14):
            connection.input_audio_buffer.append(audio=append(bytes(2 * 24_000))["audio"])
        connection.input_audio_buffer.commit()
        for event in connection:
            events.append(event)
            if event.type == COMPLETED:
                return events
    return events


@pytest.mark.parametrize(("model", "query"), [(DIARIZING, {}), ("", {"model": DIARIZING})])
def test_segments_of_speakers_come_before_the_whole(model: str, query: dict[str, str]) -> None:
    with serving(TalkModel()) as server:
        events = heard(server, model, query)
    segments = [one for one in events if isinstance(one, ConversationItemInputAudioTranscriptionSegment)]
    assert [(one.speaker, one.text) for one in segments] == [(speaker, text) for speaker, _, text in TALK]
    assert events[-1 - len(segments) : -1] == segments
    assert {one.item_id for one in segments} == {events[-1].item_id}
    assert len({one.id for one in segments}) == len(TALK)
    assert events[-1].transcript == " ".join(one.text for one in segments)
    times = [at for one in segments for at in (one.start, one.end)]
    assert times == sorted(times)


def test_other_models_tell_no_speakers() -> None:
    with serving(TalkModel()) as server:
        events = heard(server, "gpt-4o-transcribe")
    assert not [one for one in events if one.type.endswith(".segment")]


def test_speakers_are_asked_for_by_the_name_of_the_model() -> None:
    def named(config: RealtimeSessionConfig, name: str | None) -> RealtimeSessionConfig:
        heard = {"transcription": {"model": name}}
        return updated(config, {"type": "transcription", "audio": {"input": heard}})

    config = named(RealtimeSessionConfig(), DIARIZING)
    assert config.options.speakers == "auto"
    assert updated(config, {"type": "transcription"}).has_speakers
    assert named(config, "whisper-1").options.speakers == ""
    secrets = ClientSecrets()
    opened = secrets.session_of([secrets.make(config.document, 60.0)[0]])
    assert opened is not None
    assert updated(RealtimeSessionConfig(), opened) == config


def test_a_session_sent_back_as_it_was_told_is_the_same() -> None:
    """Clients change a field of what they got; the model has its own name there."""
    config = RealtimeSessionConfig(model="base", has_speakers=True)
    told = dict(config.document)
    assert updated(config, told) == config
    told["include"] = ["item.input_audio_transcription.logprobs"]
    assert updated(config, told) == replace(config, logprobs=True)
    other = {"transcription": {"model": "whisper-1"}}
    assert not updated(config, {"type": "transcription", "audio": {"input": other}}).has_speakers


def test_words_of_nobody_known_go_with_their_neighbours() -> None:
    words = [Word(f" {i}", i, i + 1.0, 1.0, speaker=name) for i, name in enumerate([None, "B", None, "A"])]
    assert [(name, len(own)) for name, own in speaker_runs(words)] == [("B", 3), ("A", 1)]
    assert [name for name, _ in speaker_runs(words[:1])] == ["A"]
    assert speaker_runs([]) == []
