"""OpenAI's own client, unchanged: what the library finds, in every format, whole and in pieces."""

from __future__ import annotations

import math
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.audio import TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent, TranscriptionVerbose

from sottovoce.api import Model
from sottovoce.formats.files import writer_for
from sottovoce.formats.output import write_transcript
from sottovoce.server.apis.openai_files import transcription_request, verbose_document
from sottovoce.server.fields import Fields
from sottovoce.types import Transcript
from tests.server.servers import CLIPS


@pytest.fixture(scope="module")
def expected(nano: Model) -> Transcript:
    return nano.transcribe(CLIPS / "en.flac", beam_size=5, word_timestamps=True).collect()


@pytest.fixture(scope="module")
def without_words(nano: Model) -> Transcript:
    return nano.transcribe(CLIPS / "en.flac", beam_size=5).collect()


def test_json_is_the_text_of_the_library(client: OpenAI, english: Path, expected: Transcript) -> None:
    result = client.audio.transcriptions.create(model="nano", file=english)
    assert result.text == expected.text
    assert result.languages is not None
    assert [language.code for language in result.languages] == ["en"]
    assert result.usage is not None
    assert result.usage.type == "duration"
    assert result.usage.seconds == pytest.approx(expected.duration, abs=0.001)


@pytest.mark.parametrize("name", ["srt", "vtt", "text"])
def test_formats_of_text_are_those_of_the_library(
    client: OpenAI, without_words: Transcript, english: Path, name: str
) -> None:
    result = client.audio.transcriptions.create(model="nano", file=english, response_format=name)  # type: ignore[call-overload]
    is_text = name == "text"
    assert result == (
        without_words.text + "\n" if is_text else write_transcript(writer_for(name), without_words)
    )


def test_verbose_json_has_segments_and_words(client: OpenAI, english: Path, expected: Transcript) -> None:
    result = client.audio.transcriptions.create(
        model="nano",
        file=english,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert isinstance(result, TranscriptionVerbose)
    assert (result.text, result.language) == (expected.text, "english")
    assert result.duration == pytest.approx(expected.duration, abs=0.001)
    assert result.segments is not None
    assert result.words is not None
    assert [s.text for s in result.segments] == [s.text for s in expected.segments]
    assert [s.tokens for s in result.segments] == [list(s.tokens) for s in expected.segments]
    words = [word for segment in expected.segments for word in segment.words or ()]
    assert [word.word for word in result.words] == [word.word.strip() for word in words]
    assert [word.end for word in result.words] == [round(word.end, 3) for word in words]


def test_segments_are_translated(client: OpenAI) -> None:
    result = client.audio.transcriptions.create(
        model="nano",
        file=CLIPS / "es.flac",
        language="es",
        response_format="verbose_json",
        extra_body={"translate_to": "en"},
    )
    assert result.segments is not None
    assert all(segment.model_dump()["translation"] for segment in result.segments)


@pytest.mark.parametrize(
    ("wanted", "has_words", "has_segments"),
    [([], False, True), (["segment"], False, True), (["word"], True, False)],
)
def test_times_are_given_where_they_are_asked_for(
    wanted: list[str], has_words: bool, has_segments: bool
) -> None:
    fields = [("timestamp_granularities[]", item) for item in wanted]
    request = transcription_request(Fields([("response_format", "verbose_json"), *fields]))
    document = verbose_document(Transcript((), "en", 1.0, "nano"), request)
    assert ("words" in document, "segments" in document) == (has_words, has_segments)


def test_a_stream_has_deltas_that_join_to_the_text(
    client: OpenAI, english: Path, expected: Transcript
) -> None:
    *deltas, done = list(client.audio.transcriptions.create(model="nano", file=english, stream=True))
    assert deltas
    assert all(isinstance(event, TranscriptionTextDeltaEvent) for event in deltas)
    assert isinstance(done, TranscriptionTextDoneEvent)
    joined = "".join(event.delta for event in deltas if isinstance(event, TranscriptionTextDeltaEvent))
    assert joined == done.text == expected.text
    usage = done.usage
    assert usage is not None
    assert usage.input_token_details is not None
    assert usage.input_token_details.audio_tokens == math.ceil(expected.duration * 50)
    assert usage.output_tokens == sum(len(segment.tokens) for segment in expected.segments)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def test_logprobs_are_of_words(client: OpenAI, english: Path, expected: Transcript) -> None:
    result = client.audio.transcriptions.create(model="nano", file=english, include=["logprobs"])
    words = [word for segment in expected.segments for word in segment.words or ()]
    assert result.logprobs is not None
    assert [each.token for each in result.logprobs] == [word.word for word in words]
    assert [each.logprob for each in result.logprobs] == pytest.approx(
        [math.log(word.probability) for word in words], abs=1e-5
    )
    assert [bytes(map(int, each.bytes or [])).decode() for each in result.logprobs] == [w.word for w in words]


@pytest.mark.long
def test_languages_among_which_it_changes(client: OpenAI, nano: Model) -> None:
    path = CLIPS / "mixed.flac"
    result = client.audio.transcriptions.create(model="nano", file=path, languages=["en", "de", "es", "fr"])
    library = nano.transcribe(path, language=["en", "de", "es", "fr"], beam_size=5).collect()
    assert result.text == library.text
    assert result.languages is not None
    assert {each.code for each in result.languages} == {s.language for s in library.segments}
    assert len(result.languages) > 1


def test_every_other_parameter_is_taken(client: OpenAI, english: Path) -> None:
    result = client.audio.transcriptions.create(
        model="nano",
        file=english,
        language="en",
        prompt="A garden.",
        keywords=["garden", "morning"],
        temperature=0.2,
        chunking_strategy={"type": "server_vad", "threshold": 0.4, "silence_duration_ms": 300},
    )
    assert "arden" in result.text
    auto = client.audio.transcriptions.create(model="nano", file=english, chunking_strategy="auto")
    assert "arden" in auto.text


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_translations(client: OpenAI, english: Path) -> None:
    result = client.audio.translations.create(model="nano", file=english, prompt="A garden.", temperature=0)
    assert result.text
    verbose = client.audio.translations.create(model="nano", file=english, response_format="verbose_json")
    assert verbose.language == "english"
    assert verbose.segments


def test_the_models(client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == "nano"
    assert "whisper-1" in names
    assert client.models.retrieve("whisper-1").owned_by == "sottovoce"
    with pytest.raises(openai.NotFoundError, match="expected one of nano"):
        client.models.retrieve("other")


@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")  # in openai 2
@pytest.mark.parametrize(
    ("given", "param", "reported"),
    [
        ({"known_speaker_names": ["a"]}, "known_speaker_names[]", "diarized_json"),
        ({"response_format": "docx"}, "response_format", "expected one of json"),
        ({"language": "klingon"}, "language", "klingon"),
        ({"languages": ["en", "klingon"]}, "languages[]", "klingon"),
        ({"language": "en", "languages": ["de"]}, "language", "got both"),
        ({"temperature": 3}, "temperature", "from 0 to 1"),
        ({"temperature": "nan"}, "temperature", "from 0 to 1"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities[]", "verbose_json"),
        ({"extra_body": {"translate_to": "en"}}, "translate_to", "with segments, got json"),
        ({"extra_body": {"translate_to": "fr"}}, "translate_to", "en"),
        (
            {"response_format": "diarized_json", "timestamp_granularities": ["word"]},
            "timestamp_granularities[]",
            "expected response_format verbose_json, got diarized_json",
        ),
        ({"include": ["everything"]}, "include[]", "logprobs"),
        ({"include": ["logprobs"], "response_format": "text"}, "include[]", "json"),
        ({"stream": True, "response_format": "srt"}, "stream", "json or text or diarized_json"),
        ({"chunking_strategy": "never"}, "chunking_strategy", "server_vad"),
        (
            {"chunking_strategy": {"type": "server_vad", "threshold": 7}},
            "chunking_strategy[threshold]",
            "from 0 to 1",
        ),
    ],
)
def test_wrong_parameters_are_one_line_in_the_shape_of_openai(
    client: OpenAI, english: Path, given: dict[str, object], param: str, reported: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model="nano", file=english, **given)  # type: ignore[call-overload]
    error = caught.value
    assert (error.param, error.code, error.type) == (param, "invalid_value", "invalid_request_error")
    assert isinstance(error.body, dict)
    assert reported in error.body["message"]
    assert "\n" not in error.body["message"]
    assert error.request_id


def test_a_language_that_the_model_lacks(client: OpenAI, english: Path) -> None:
    with pytest.raises(openai.BadRequestError, match="this model knows en, de, es, fr, zh"):
        client.audio.transcriptions.create(model="nano", file=english, language="pl")
