"""`/v1/listen`, live and for recordings: Deepgram's own client, unchanged, and what it does not say."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from sottovoce.audio.io import load_audio
from sottovoce.server.apis.deepgram import (
    DeepgramParams,
    DeepgramResults,
    recording_document,
    recording_params,
)
from sottovoce.server.errors import ApiError
from sottovoce.server.models import ModelRegistry
from sottovoce.server.settings import ModelSettings, ServerLimits
from sottovoce.text.filters import Replacements
from sottovoce.types import Event, Partial, Segment, Transcript, Word
from tests.audio.test_live_container import recorded
from tests.server.conversation import TWO_SENTENCES_S, Message, connected, exchanged, received, refusal, say
from tests.server.servers import CLIPS, KEY, LOCKED, SECOND, ServerThread, SlowModel, serving

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
"""Deepgram's client asks websockets for what is old there."""
PLAIN = "encoding=linear16&sample_rate=16000"
CLOSE: Message = {"type": "CloseStream"}


@contextmanager
def deepgram(server: ServerThread) -> Iterator[Any]:
    """Deepgram's client, with no word changed but where its server is."""
    module = pytest.importorskip("deepgram", reason="deepgram-sdk is not installed")
    from deepgram.environment import DeepgramClientEnvironment

    sockets = f"ws://{server.address}"
    where = DeepgramClientEnvironment(
        base=server.url, production=sockets, agent=sockets, agent_rest=server.url
    )
    with httpx.Client(timeout=60) as requests:
        yield module.DeepgramClient(api_key="none-is-needed", environment=where, httpx_client=requests)


def pcm_of(path: Path) -> bytes:
    data: bytes = (load_audio(path) * 32767).astype("<i2").tobytes()
    return data


def heard_by_client(
    server: ServerThread, audio: bytes, *, model: str = "nova-3", version: str = "v1", **options: Any
) -> list[Any]:
    """All messages, of a client that sends as fast as it can and listens beside that."""
    messages: list[Any] = []
    with (
        deepgram(server) as client,
        getattr(client.listen, version).connect(
            model=model, encoding="linear16", sample_rate=16_000, **options
        ) as connection,
    ):

        def send() -> None:
            for start in range(0, len(audio), 2_560):  # 80 ms, as their guide for turns wants it
                connection.send_media(audio[start : start + 2_560])
            if version == "v1":
                connection.send_keep_alive()
            connection.send_close_stream()

        sender = threading.Thread(target=send)
        sender.start()
        messages += connection
        sender.join()
    return messages


def test_their_client_hears_a_recording(server: ServerThread) -> None:
    audio = pcm_of(CLIPS / "mixed.flac")[: TWO_SENTENCES_S * 32_000]
    messages = heard_by_client(
        server,
        audio,
        interim_results=True,
        punctuate=True,
        language="multi",
        language_hint=["en", "de", "es", "fr"],
        endpointing=500,
        vad_events=True,
    )
    kinds = [message.type for message in messages]
    assert set(kinds) == {"SpeechStarted", "Results", "Metadata"}
    results = [message for message in messages if message.type == "Results"]
    finals = [result for result in results if result.is_final]
    text = " ".join(final.channel.alternatives[0].transcript for final in finals).split()
    assert text[:10] == ["We", "walked", "along", "the", "river", "and", "talked", "about", "the", "summer."]
    assert "Wir haben heute viel Zeit." in " ".join(text)
    assert any(not result.is_final for result in results)
    assert sum(final.speech_final for final in finals) >= 2
    words = [word for final in finals for word in final.channel.alternatives[0].words]
    assert [word.punctuated_word for word in words] == text
    assert words[0].word == "we"
    assert {word.language for word in words} == {"en", "de"}
    assert all(a.start <= b.start for a, b in pairwise(words))
    starts = [(final.start, final.duration) for final in finals]
    assert all(b[0] == pytest.approx(a[0] + a[1], abs=0.002) for a, b in pairwise(starts))
    assert messages[-1].type == "Metadata"
    assert messages[-1].duration == pytest.approx(len(audio) / 32_000, abs=0.01)
    assert messages[-1].sha256 == hashlib.sha256(audio).hexdigest()


def test_their_client_sends_a_recording(server: ServerThread) -> None:
    with deepgram(server) as client:
        answer = client.listen.v1.media.transcribe_file(
            request=(CLIPS / "en.flac").read_bytes(), model="nova-3", smart_format=True, utterances=True
        )
    (channel,) = answer.results.channels
    assert "garden" in channel.alternatives[0].transcript
    assert channel.detected_language == "en"
    assert answer.results.utterances
    assert channel.alternatives[0].words[0].end > 0
    assert answer.metadata.duration == pytest.approx(len(load_audio(CLIPS / "en.flac")) / 16_000, abs=0.01)


def test_their_client_is_told_why_it_is_refused(fake_server: ServerThread) -> None:
    with deepgram(fake_server) as client:
        from deepgram.core.api_error import ApiError as TheirError

        with pytest.raises(TheirError) as refused:
            client.listen.v1.media.transcribe_url(url="http://127.0.0.1/secret")
    assert refused.value.status_code == 400
    assert "not fetched" in refused.value.body["err_msg"]


def talk(server: ServerThread, query: str, *messages: Message | str | bytes) -> list[Message]:
    events, socket = exchanged(server, f"/v1/listen?{query}", *messages, CLOSE)
    assert socket.close_code == 1000
    return events


def texts(messages: list[dict[str, Any]], **wanted: object) -> list[str]:
    return [
        message["channel"]["alternatives"][0]["transcript"]
        for message in messages
        if message["type"] == "Results" and wanted.items() <= message.items()
    ]


def test_words_stay_after_some_seconds_and_at_the_end(fake_server: ServerThread) -> None:
    messages = talk(fake_server, PLAIN, SECOND * 5, SECOND * 2)
    assert texts(messages, is_final=False) == []
    assert len(texts(messages)) == 2
    assert " ".join(texts(messages)).split() == ["word"] * 7
    assert messages[-1]["type"] == "Metadata"
    assert messages[-1]["duration"] == 7.0


def test_results_that_may_change_come_only_when_asked_for(fake_server: ServerThread) -> None:
    events = []
    with connected(fake_server, f"/v1/listen?{PLAIN}&interim_results=true") as client:
        for _ in range(2):
            say(client, SECOND)
            events.append(received(client))
    assert texts(events, is_final=False) == ["word", "word word"]


def test_finalize_says_so_and_the_stream_goes_on(fake_server: ServerThread) -> None:
    messages = talk(fake_server, PLAIN, SECOND * 2, {"type": "Finalize"}, SECOND)
    assert texts(messages, from_finalize=True, is_final=True) == ["word word"]
    assert texts(messages, from_finalize=False, is_final=True) == ["word"]
    results = [message for message in messages if message["type"] == "Results"]
    assert results[-1]["channel"]["alternatives"][0]["words"][0]["start"] == 2.0


def test_an_empty_message_closes_the_stream(fake_server: ServerThread) -> None:
    events, _ = exchanged(fake_server, f"/v1/listen?{PLAIN}", SECOND, b"")
    assert [message["type"] for message in events] == ["Results", "Metadata"]


def test_the_end_of_an_utterance_is_told_once() -> None:
    """After a silence of at least so long behind the last word."""
    results = DeepgramResults(DeepgramParams(utterance_end_ms=1_400.0), "req")
    said = Partial(0.0, 1.0, " word", "en", (Word(" word", 0.0, 1.0, 1.0, "en"),), 1.0)
    updates: list[tuple[float, list[Event]]] = [(1.0, [said]), (2.3, []), (2.4, []), (9.0, [])]
    reported = [list(results.render(events, at_s)) for at_s, events in updates]
    assert reported == [[], [], [{"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 1.0}], []]


def test_a_message_that_is_none_leaves_the_stream_open(fake_server: ServerThread) -> None:
    messages = talk(fake_server, PLAIN, "{", "[]", {"type": "Nothing"}, {"type": "KeepAlive"}, SECOND)
    errors = [message for message in messages if message["type"] == "Error"]
    assert [error["variant"] for error in errors] == ["SchemaError"] * 3
    assert texts(messages, is_final=True) == ["word"]


def test_terms_can_be_changed_under_way(fake_server: ServerThread) -> None:
    configure = {"type": "Configure", "keyterms": ["Tisza", "Kölcsey"]}
    messages = talk(fake_server, f"{PLAIN}&keyterm=Duna", SECOND, configure, SECOND)
    reported = [message for message in messages if message["type"] == "ConfigureSuccess"]
    assert [message["keyterms"] for message in reported] == [["Tisza", "Kölcsey"]]
    assert " ".join(texts(messages, is_final=True)) == "word word"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"keyterms": ["a" * 5000]}, "CONFIGURE_KEYTERM_LIMIT_EXCEEDED"),
        ({"keyterms": 5}, "CONFIGURE_INTERNAL_ERROR"),
        ({"features": {"numerals": True}}, "CONFIGURE_INTERNAL_ERROR"),
    ],
)
def test_a_configure_that_cannot_be_taken_fails(
    fake_server: ServerThread, message: dict[str, Any], code: str
) -> None:
    messages = talk(fake_server, PLAIN, SECOND, {"type": "Configure", **message}, SECOND)
    (reported,) = [message for message in messages if message["type"] == "ConfigureFailure"]
    assert reported["code"] == code
    assert reported["description"].startswith(("keyterm", "features"))
    assert not [message for message in messages if message["type"] in ("Error", "ConfigureSuccess")]
    assert " ".join(texts(messages, is_final=True)) == "word word"
    types = pytest.importorskip("deepgram.listen.v1.types", reason="deepgram-sdk is not installed")
    assert types.ListenV1ConfigureFailure(**reported).request_id == reported["request_id"]


REFUSED = (
    ("sample_rate=16000", "encoding"),
    ("encoding=opus", "encoding"),
    ("encoding=linear16&sample_rate=9", "sample_rate"),
    (f"{PLAIN}&channels=2", "channels"),
    (f"{PLAIN}&language=klingon", "klingon"),
    (f"{PLAIN}&endpointing=soon", "endpointing"),
    (f"{PLAIN}&utterance_end_ms=5", "utterance_end_ms"),
    (f"{PLAIN}&keyterm={'a' * 5000}", "keyterm"),
    (f"{PLAIN}&replace=a:b&replace=A:c", "replace"),
    (f"{PLAIN}&replace=/a/:b", "replace"),
)


@pytest.mark.parametrize(("query", "reported"), REFUSED)
def test_what_cannot_be_refuses_the_handshake(fake_server: ServerThread, query: str, reported: str) -> None:
    answer = refusal(fake_server, f"/v1/listen?{query}")
    assert answer.status_code == 400
    assert reported in json.loads(answer.body)["err_msg"]


def test_keys_are_asked_for_as_their_clients_send_them() -> None:
    with serving(SlowModel(), access=LOCKED, limits=ServerLimits(sessions=1)) as server:
        path = f"/v1/listen?{PLAIN}"
        assert refusal(server, path).status_code == 401
        with connected(server, path, subprotocols=["token", KEY]) as page:
            assert page.subprotocol == "token"
            busy = refusal(server, path, additional_headers={"authorization": f"Token {KEY}"})
            assert (busy.status_code, json.loads(busy.body)["err_code"]) == (429, "TOO_MANY_REQUESTS")
            assert int(busy.headers["retry-after"]) >= 1
        answer = httpx.post(f"{server.url}/v1/listen", content=b"a", headers={"authorization": "Token wrong"})
        assert answer.status_code == 401


@pytest.mark.parametrize("body", [b"", b"no audio at all", b"RIFF" + bytes(100)])
def test_a_body_that_is_no_recording_is_one_line(fake_server: ServerThread, body: bytes) -> None:
    answer = httpx.post(f"{fake_server.url}/v1/listen", content=body, params={"model": "nova-3"})
    assert answer.status_code == 400
    assert answer.json()["err_msg"]
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_a_body_that_is_too_large_or_too_slow_is_refused() -> None:
    with serving(SlowModel(), limits=ServerLimits(upload_mb=0.01, upload_s=0.3)) as server:

        def slowly() -> Iterator[bytes]:
            yield b"RIFF"
            time.sleep(1.0)
            yield b"more"

        assert httpx.post(f"{server.url}/v1/listen", content=bytes(20_000)).status_code == 413
        with suppress(httpx.HTTPError):  # the answer may come before the body has gone
            assert httpx.post(f"{server.url}/v1/listen", content=slowly()).status_code == 408
        assert server.services.n_requests == 0


def sent_by_browser(server: ServerThread, data: bytes, query: str = "") -> tuple[list[Message], int | None]:
    """Messages and close code of a recorder that sends a chunk now and then."""
    chunks = [data[start : start + 3_000] for start in range(0, len(data), 3_000)]
    events, socket = exchanged(server, f"/v1/listen?{query}", *chunks, CLOSE)
    return events, socket.close_code


@pytest.mark.parametrize(("kind", "query"), [("webm", ""), ("ogg", ""), ("ogg", "&encoding=ogg-opus")])
def test_live_containers_of_browsers_have_words(server: ServerThread, kind: str, query: str) -> None:
    samples = load_audio(CLIPS / "en.flac")
    events, code = sent_by_browser(server, recorded(samples, kind), f"language=en&punctuate=true{query}")
    assert code == 1000
    assert "garden" in " ".join(texts(events, is_final=True)).lower()
    assert events[-1]["type"] == "Metadata"
    assert events[-1]["duration"] == pytest.approx(len(samples) / 16_000, abs=0.05)


def test_what_is_no_container_ends_the_stream_with_the_reason(fake_server: ServerThread) -> None:
    events, code = sent_by_browser(fake_server, b"no audio at all" * 1000)
    assert code == 1008
    assert events[-1]["type"] == "Error"
    assert "no known format (samples without a header need encoding)" in events[-1]["description"]
    answer = httpx.post(f"{fake_server.url}/v1/listen", content=b"no audio at all" * 1000)
    assert "(samples without a header need encoding)" in answer.json()["err_msg"]


SAID = (("A", 0.0, " Good morning. Is it late? It"), ("A", 4.0, " is. Really."), ("B", 8.0, " Then go."))


def transcript() -> Transcript:
    """Three segments, a word every half second: pauses of more than a second before each but the first."""
    segments = []
    for i, (speaker, start, text) in enumerate(SAID):
        spoken = [
            Word(f" {word}", start + n / 2, start + n / 2 + 0.4, 0.9, "en", speaker)
            for n, word in enumerate(text.split())
        ]
        segments.append(Segment(i, start, start + 3, text, "en", words=tuple(spoken), speaker=speaker))
    return Transcript(tuple(segments), "en", 12.0, "nano", 0.75)


def document(**params: Any) -> Any:
    return recording_document(transcript(), DeepgramParams(model="nano", **params), "req", "abc")


def config_of(**query: str | list[str]) -> DeepgramParams:
    pairs = [(k, item) for k, v in query.items() for item in (v if isinstance(v, list) else [v])]
    return recording_params(pairs, ModelRegistry(ModelSettings("nano"), cast(Any, None), cast(Any, None)))


def test_paragraphs_are_sentences_up_to_a_pause_or_another_speaker() -> None:
    result = document(paragraphs=True, is_punctuated=True, has_speakers=True)
    (alternative,) = result["results"]["channels"][0]["alternatives"]
    reported = alternative["paragraphs"]
    assert [[s["text"] for s in item["sentences"]] for item in reported["paragraphs"]] == [
        ["Good morning.", "Is it late?", "It is.", "Really."],
        ["Then go."],
    ]
    assert [(item["num_words"], item["speaker"]) for item in reported["paragraphs"]] == [(8, 0), (2, 1)]
    assert reported["transcript"] == (
        "\nSpeaker 0: Good morning. Is it late? It is. Really.\n\nSpeaker 1: Then go."
    )
    assert (reported["paragraphs"][1]["start"], reported["paragraphs"][1]["end"]) == (8.0, 8.9)
    from_sdk = pytest.importorskip("deepgram.types", reason="deepgram-sdk is not installed")
    shape = from_sdk.ListenV1ResponseResultsChannelsItemAlternativesItemParagraphs
    assert shape(**reported).paragraphs[0].sentences[1].text == "Is it late?"


def test_utterances_are_parted_by_pauses() -> None:
    def texts(**params: Any) -> list[str]:
        result = document(utterances=True, is_punctuated=True, **params)["results"]["utterances"]
        assert [item["id"] for item in result] == [str(i) for i in range(len(result))]
        return [item["transcript"] for item in result]

    parts = [text.strip() for _, _, text in SAID]
    assert texts() == parts
    assert texts(utt_split_s=1.0) == parts
    assert texts(utt_split_s=30.0) == [" ".join(parts[:2]), parts[2]]
    assert len(texts(utt_split_s=0.2)) == 3


def test_language_and_hash_are_told() -> None:
    result = document()
    assert result["metadata"]["sha256"] == "abc"
    (channel,) = result["results"]["channels"]
    assert (channel["detected_language"], channel["language_confidence"]) == ("en", 0.75)
    (channel,) = document(languages=("en",))["results"]["channels"]
    assert "detected_language" not in channel


def test_replacements_are_those_of_a_session_and_a_recording() -> None:
    params = config_of(replace=["ada:Ada", "um"])
    assert params.options.replacements == Replacements((("ada", "Ada"), ("um", "")))
    params = config_of(numerals="true", redact=["numbers", "email_address"])
    assert (params.options.numerals, params.options.redact) == (True, ("numbers", "emails"))


def test_parameters_of_a_recording_are_read() -> None:
    assert config_of(detect_language="true").languages == ()
    assert config_of(detect_language=["en", "de-DE"]).languages == ("en", "de")
    assert config_of(detect_language="false", language="de").languages == ("de",)
    assert config_of(utt_split="1.5").utt_split_s == 1.5
    assert config_of(paragraphs="true").is_punctuated
    raw = config_of(encoding="mulaw")
    assert raw.raw == ("mulaw", 8000)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"detect_language": "true", "language": "de"}, "detect_language"),
        ({"detect_language": "klingon"}, "detect_language"),
        ({"utt_split": "often"}, "utt_split"),
    ],
)
def test_parameters_of_a_recording_that_cannot_be_are_refused(query: dict[str, str], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        config_of(**cast(Any, query))
    assert refused.value.param == param


def test_their_client_sends_raw_audio(server: ServerThread) -> None:
    audio = pcm_of(CLIPS / "en.flac")
    with deepgram(server) as client:
        answer = client.listen.v1.media.transcribe_file(
            request=audio,
            encoding="linear16",
            language="en",
            paragraphs=True,
            request_options={"additional_query_parameters": {"sample_rate": 16000}},
        )
    (channel,) = answer.results.channels
    (alternative,) = channel.alternatives
    assert "garden" in alternative.transcript
    assert alternative.paragraphs.paragraphs[0].sentences[0].text[0].isupper()
    assert answer.metadata.sha256 == hashlib.sha256(audio).hexdigest()
    assert answer.metadata.duration == pytest.approx(len(audio) / 32_000, abs=0.001)


def test_endpointing_by_an_eagerness_ends_speech_by_what_was_said(server: ServerThread) -> None:
    """The last result of the speech is `speech_final`, and `UtteranceEnd` follows it, not a second later."""
    audio = pcm_of(CLIPS / "en.flac") + bytes(4 * 32_000)
    where = f"{PLAIN}&model=nano&language=en&punctuate=true&endpointing=high&utterance_end_ms=5000"
    messages = talk(server, where, audio)
    ends = [number for number, message in enumerate(messages) if message["type"] == "UtteranceEnd"]
    assert len(ends) == 1
    before = messages[ends[0] - 1]
    assert (before["type"], before["speech_final"]) == ("Results", True)
    final = [message for message in messages if message["type"] == "Results" and message["is_final"]]
    text = " ".join(item["channel"]["alternatives"][0]["transcript"] for item in final).strip()
    assert text.endswith(".")
