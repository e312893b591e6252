"""`/v1/listen` for recordings: raw audio, utterances, paragraphs, and what is told of the whole."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import httpx
import numpy as np
import pytest

from sottovoce.audio.io import load_audio
from sottovoce.serving.apis.deepgram import DeepgramParams, recording_document, recording_params
from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.pcm import ALAW, MULAW
from sottovoce.serving.scheduling.model_registry import ModelRegistry
from sottovoce.serving.settings import ModelSettings
from sottovoce.types import Segment, Transcript, Word
from tests.serving.servers import CLIPS
from tests.serving.test_listen import deepgram, pcm_of

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
"""Deepgram's client asks websockets for what is old there."""
SAID = (
    ("A", 0.0, " Good morning. Is it late? It"),
    ("A", 4.0, " is. Really."),
    ("B", 8.0, " Then go."),
)


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
    pairs = [(k, one) for k, v in query.items() for one in (v if isinstance(v, list) else [v])]
    return recording_params(pairs, ModelRegistry(ModelSettings("nano"), cast(Any, None), cast(Any, None)))


def test_paragraphs_are_sentences_up_to_a_pause_or_another_speaker() -> None:
    found = document(paragraphs=True, is_punctuated=True, has_speakers=True)
    (alternative,) = found["results"]["channels"][0]["alternatives"]
    told = alternative["paragraphs"]
    assert [[s["text"] for s in one["sentences"]] for one in told["paragraphs"]] == [
        ["Good morning.", "Is it late?", "It is.", "Really."],
        ["Then go."],
    ]
    assert [(one["num_words"], one["speaker"]) for one in told["paragraphs"]] == [(8, 0), (2, 1)]
    assert told["transcript"] == (
        "\nSpeaker 0: Good morning. Is it late? It is. Really.\n\nSpeaker 1: Then go."
    )
    assert (told["paragraphs"][1]["start"], told["paragraphs"][1]["end"]) == (8.0, 8.9)
    from_sdk = pytest.importorskip("deepgram.types", reason="deepgram-sdk is not installed")
    shape = from_sdk.ListenV1ResponseResultsChannelsItemAlternativesItemParagraphs
    assert shape(**told).paragraphs[0].sentences[1].text == "Is it late?"


def test_utterances_are_parted_by_pauses() -> None:
    def texts(**params: Any) -> list[str]:
        found = document(utterances=True, is_punctuated=True, **params)["results"]["utterances"]
        assert [one["id"] for one in found] == [str(i) for i in range(len(found))]
        return [one["transcript"] for one in found]

    parts = [text.strip() for _, _, text in SAID]
    assert texts() == parts
    assert texts(utt_split_s=1.0) == parts
    assert texts(utt_split_s=30.0) == [" ".join(parts[:2]), parts[2]]
    assert len(texts(utt_split_s=0.2)) == 3


def test_language_and_hash_are_told() -> None:
    found = document()
    assert found["metadata"]["sha256"] == "abc"
    (channel,) = found["results"]["channels"]
    assert (channel["detected_language"], channel["language_confidence"]) == ("en", 0.75)
    (channel,) = document(languages=("en",))["results"]["channels"]
    assert "detected_language" not in channel


def test_what_is_asked() -> None:
    assert config_of(detect_language="true").languages == ()
    assert config_of(detect_language=["en", "de-DE"]).languages == ("en", "de")
    assert config_of(detect_language="false", language="de").languages == ("de",)
    assert config_of(utt_split="1.5").utt_split_s == 1.5
    assert config_of(paragraphs="true").is_punctuated
    raw = config_of(encoding="mulaw")
    assert (raw.is_raw, raw.encoding, raw.sample_rate) == (True, "mulaw", 8000)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"encoding": "flac"}, "encoding"),
        ({"sample_rate": "16000"}, "sample_rate"),
        ({"encoding": "linear16", "sample_rate": "5"}, "sample_rate"),
        ({"encoding": "linear16", "channels": "2"}, "channels"),
        ({"detect_language": "true", "language": "de"}, "detect_language"),
        ({"detect_language": "klingon"}, "detect_language"),
        ({"utt_split": "often"}, "utt_split"),
    ],
)
def test_what_cannot_be_is_refused(query: dict[str, str], param: str) -> None:
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


@pytest.mark.parametrize("law", ["mulaw", "alaw"])
def test_telephone_recordings_without_a_header(server: ServerThread, law: str) -> None:
    table = MULAW if law == "mulaw" else ALAW
    order = np.argsort(table)
    samples = load_audio(CLIPS / "en.flac")[::2]
    codes = order[np.searchsorted(table[order], samples).clip(0, 255)].astype(np.uint8).tobytes()
    params = {"encoding": law, "language": "en"}
    answer = httpx.post(f"{server.url}/v1/listen", content=codes, params=params, timeout=120).json()
    assert "morning" in answer["results"]["channels"][0]["alternatives"][0]["transcript"]
    assert answer["metadata"]["duration"] == pytest.approx(len(codes) / 8_000, abs=0.01)
