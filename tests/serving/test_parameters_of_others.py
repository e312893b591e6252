"""Parameters of other servers with OpenAI's API are taken, or told to have no effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai import OpenAI

from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.forms import Fields
from sottovoce.serving.recordings.requests import transcription_request


def test_hotwords_are_phrases_and_the_filter_finds_speech_first() -> None:
    plain = transcription_request(Fields([]))
    found = transcription_request(
        Fields([("hotwords", "Kowalczyk, Nowak,"), ("keywords[]", "Anna"), ("vad_filter", "true")])
    )
    assert found.transcription.phrases == ("Anna", "Kowalczyk", "Nowak")
    assert (plain.transcription.options.mode, found.transcription.options.mode) == ("seek", "vad")
    assert found.ignored == ()
    off = transcription_request(Fields([("vad_filter", "false")]))
    assert off.transcription.options.mode == "seek"


def test_hotwords_have_an_end() -> None:
    with pytest.raises(ApiError, match="hotwords: expected at most"):
        transcription_request(Fields([("hotwords", "word," * 10_000)]))


def test_what_has_no_effect_is_named_by_the_answer(client: OpenAI, english: Path) -> None:
    asked = {"min_p": 0.1, "stream_options": {"include_usage": True}, "top_p": 0.9}
    create = client.audio.transcriptions.with_raw_response.create
    answer = create(model="nano", file=english, language="en", extra_body=asked)
    assert set(answer.headers["x-ignored-parameters"].split(", ")) == set(asked)
    plain = create(model="nano", file=english, language="en")
    assert "x-ignored-parameters" not in plain.headers
    assert answer.parse().text == plain.parse().text
    with client.audio.transcriptions.with_streaming_response.create(
        model="nano", file=english, language="en", stream=True, extra_body={"top_k": 7}
    ) as streamed:
        assert streamed.headers["x-ignored-parameters"] == "top_k"


def test_a_seed_is_that_of_the_draws(client: OpenAI, english: Path) -> None:
    assert transcription_request(Fields([("seed", "7")])).transcription.options.decoding.seed == 7
    asked = {"model": "nano", "file": english, "language": "en", "temperature": 1.0}
    said = [client.audio.transcriptions.create(**asked, extra_body={"seed": 7}).text for _ in range(2)]
    assert said[0] == said[1]
    with pytest.raises(ApiError, match="seed: expected a whole number"):
        transcription_request(Fields([("seed", "1.5")]))
