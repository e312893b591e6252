"""What a client asks of a recording, from the fields of OpenAI's API. Knows no web framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

from sottovoce.audio.vad import VadOptions
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import HOTTEST, DecodingOptions
from sottovoce.errors import OptionError
from sottovoce.offline.options import WINDOW_VAD, TranscribeOptions
from sottovoce.serving.faults import ApiError
from sottovoce.serving.fields import Fields, number_of, wrong
from sottovoce.serving.known_speakers import known_speakers
from sottovoce.serving.scheduler import FileWish
from sottovoce.speakers.options import SpeakerOptions
from sottovoce.text.languages import find_language
from sottovoce.types import Task

Format: TypeAlias = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]
FORMATS: tuple[Format, ...] = ("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
TRANSLATION_FORMATS: tuple[Format, ...] = ("json", "text", "srt", "verbose_json", "vtt")
STREAMED: tuple[Format, ...] = ("json", "text", "diarized_json")
KNOWN = {
    "transcribe": (
        "file",
        "model",
        "language",
        "languages[]",
        "prompt",
        "keywords[]",
        "response_format",
        "temperature",
        "timestamp_granularities[]",
        "include[]",
        "chunking_strategy",
        "known_speaker_names[]",
        "known_speaker_references[]",
        "stream",
    ),
    "translate": ("file", "model", "prompt", "response_format", "temperature"),
}
"""The documented parameters."""


@dataclass(frozen=True, slots=True)
class FileRequest:
    """One request: what is to be transcribed how, and what the answer looks like.

    max_len: letters of a segment, where longer ones are to be cut. offset_n: added to the numbers of `srt`.
    language_probabilities: tell them, where the format has them.
    """

    task: Task
    model: str | None
    response_format: Format
    wish: FileWish
    words: bool = False
    segments: bool = True
    logprobs: bool = False
    stream: bool = False
    max_len: int | None = None
    offset_n: int = 0
    language_probabilities: bool = True


def transcription_request(fields: Fields) -> FileRequest:
    """The request of `/v1/audio/transcriptions`.

    Raises: ApiError 400.
    """
    response_format = cast(Format, fields.choice("response_format", FORMATS, "json"))
    granularities = granularities_of(fields, response_format)
    logprobs = bool(fields.several_of("include", ("logprobs",)))
    stream = fields.flag("stream")
    options = options_of(fields, "transcribe", words="word" in granularities or logprobs)
    names = fields.many("known_speaker_names")
    if response_format == "diarized_json":
        known = known_speakers(names, fields.many("known_speaker_references"))
        options = replace(options, speakers=SpeakerOptions(known=known))
    wish = FileWish(
        options,
        languages=languages_of(fields),
        phrases=tuple(fields.many("keywords")),
    )
    model = fields.text("model")
    fields.require_known(KNOWN["transcribe"])
    if response_format != "diarized_json" and (names or fields.many("known_speaker_references")):
        raise wrong("known_speaker_names[]", "response_format diarized_json", response_format)
    if logprobs and response_format != "json":
        raise wrong("include[]", "logprobs with response_format json", response_format)
    if stream and response_format not in STREAMED:
        raise wrong("stream", f"response_format {' or '.join(STREAMED)}", response_format)
    return FileRequest(
        "transcribe",
        model,
        response_format,
        wish,
        words="word" in granularities,
        segments="segment" in granularities,
        logprobs=logprobs,
        stream=stream,
    )


def translation_request(fields: Fields) -> FileRequest:
    """The request of `/v1/audio/translations`.

    Raises: ApiError 400.
    """
    response_format = cast(Format, fields.choice("response_format", TRANSLATION_FORMATS, "json"))
    wish = FileWish(options_of(fields, "translate", words=False))
    model = fields.text("model")
    fields.require_known(KNOWN["translate"])
    return FileRequest("translate", model, response_format, wish)


def granularities_of(fields: Fields, response_format: Format) -> list[str]:
    """Which times are wanted; those of segments where nothing is said."""
    found = fields.several_of("timestamp_granularities", ("word", "segment"))
    if found and response_format != "verbose_json":
        raise wrong("timestamp_granularities[]", "response_format verbose_json", response_format)
    return found or ["segment"]


def languages_of(fields: Fields) -> tuple[str, ...]:
    """The language, or several among which it may change; empty: any."""
    one, several = fields.text("language"), fields.many("languages")
    if one is not None and several:
        raise wrong("language", "language or languages[]", "both")
    names = [one] if one is not None else several
    try:
        return tuple(find_language(name) for name in names if name != "auto")
    except OptionError as error:
        raise ApiError(
            str(error), param="languages[]" if several else "language", code="invalid_value"
        ) from error


def options_of(fields: Fields, task: Task, *, words: bool) -> TranscribeOptions:
    """How to transcribe."""
    strategy = fields.nested("chunking_strategy") if task == "transcribe" else None
    temperature = fields.number("temperature", 0.0, HOTTEST)
    prompt = fields.text("prompt")
    vad = vad_of(strategy)
    try:
        return TranscribeOptions(
            decoding=DecodingOptions(task=task),
            fallback=FallbackOptions(temperatures=(temperature,)) if temperature else FallbackOptions(),
            mode="seek" if strategy is None else "vad",
            vad=vad,
            initial_prompt=prompt,
            word_timestamps=words,
        )
    except OptionError as error:
        raise ApiError(str(error)) from error


def vad_of(strategy: str | Mapping[str, object] | None) -> VadOptions | None:
    """How the audio is cut: None leaves it to the library, "auto" too."""
    if strategy is None or strategy == "auto":
        return None
    if isinstance(strategy, str) or strategy.get("type") != "server_vad":
        raise wrong(
            "chunking_strategy", "'auto' or an object of type 'server_vad'", f"'{str(strategy)[:100]}'"
        )
    names = {
        "threshold": ("threshold", 1.0),
        "silence_duration_ms": ("min_silence_ms", 10_000.0),
        "prefix_padding_ms": ("speech_pad_ms", 5_000.0),
    }
    given: dict[str, float] = {}
    for key, value in strategy.items():
        if key == "type":
            continue
        if key not in names:
            raise ApiError(
                f"unknown parameter 'chunking_strategy[{key[:50]}]': expected type, {', '.join(names)}",
                param="chunking_strategy",
                code="unknown_parameter",
            )
        ours, most = names[key]
        given[ours] = number_of(f"chunking_strategy[{key}]", value, 0.0, most)
    try:
        return replace(WINDOW_VAD, **given)
    except OptionError as error:
        raise ApiError(str(error), param="chunking_strategy", code="invalid_value") from error
