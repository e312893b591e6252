"""Options of server requests only."""

from __future__ import annotations

from functools import partial
from typing import Any

from sottovoce.options.schema import Api, ApiField, Kind, Option

FORMATS = ("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
TRANSLATION_FORMATS = FORMATS[:-1]
LANGUAGE_EXAMPLES = ("en", "german", "auto")
WITHOUT_EFFECT = ("debug_mode", "token_timestamps", "encode")
"""Of whisper.cpp."""
requested = partial(Option, "")
"""Declares an option of requests; each `ApiField` has its own help."""


def _of_api(
    api: Api,
    name: str,
    kind: Kind,
    help: str,
    key: str = "",
    *,
    least: float | None = None,
    most: float | None = None,
    none_upto: float | None = None,
    choices: tuple[str, ...] = (),
    examples: tuple[str, ...] = (),
) -> Option:
    field = ApiField(name, help, least, most, none_upto=none_upto, choices=choices, examples=examples)
    declared: dict[str, Any] = {"key": key or name.removesuffix("[]"), "kind": kind, api: field}
    return requested(**declared)


_openai = partial(_of_api, "openai")
_whisper_cpp = partial(_of_api, "whisper_cpp")
_live = partial(_of_api, "sottovoce")


REQUEST = (
    requested(
        key="file",
        kind="file",
        openai=ApiField("file", "any format of FFmpeg; files that a playlist names are not opened"),
        whisper_cpp=ApiField("file", "the recording"),
    ),
    _openai("model", "text", "one of `/v1/models`; default: the server's"),
    requested(
        key="language",
        kind="text",
        openai=ApiField(
            "language",
            "a code (pt, por), tag (pt-BR) or name; without it, detected once",
            examples=LANGUAGE_EXAMPLES,
        ),
        whisper_cpp=ApiField(
            "language", "without a language it is detected (whisper.cpp: English)", examples=LANGUAGE_EXAMPLES
        ),
    ),
    _whisper_cpp("detect_language", "flag", "detect the language, whatever `language` is"),
    _openai(
        "languages[]",
        "texts",
        "several languages: changes among them are followed",
        examples=LANGUAGE_EXAMPLES,
    ),
    _openai("keywords[]", "texts", "expected words, boosted in the beam search", key="phrases"),
    _openai("hotwords", "text", "the same, separated by commas"),
    _openai("vad_filter", "flag", "`true`: same as `chunking_strategy` `auto`"),
    _openai(
        "chunking_strategy",
        "nested",
        "`auto`, or `server_vad` with `threshold`, `silence_duration_ms` and "
        "`prefix_padding_ms`: detect speech first",
        examples=("auto", '{"type": "server_vad"}'),
    ),
    requested(
        key="response_format",
        kind="choice",
        openai=ApiField(
            "response_format",
            "`json`, `text`, `srt`, `vtt`, `verbose_json`, `diarized_json`: segments with "
            "[speakers](speakers.md) A, B, …",
            choices=FORMATS,
        ),
        whisper_cpp=ApiField(
            "response_format",
            "`json`, `text`, `srt`, `vtt`, `verbose_json` (words in their segments, probabilities of "
            "languages)",
            choices=TRANSLATION_FORMATS,
        ),
        default="json",
    ),
    _openai(
        "timestamp_granularities[]",
        "texts",
        "`word`, `segment`, with `verbose_json`, or `diarized_json` in a stream",
        key="granularities",
        choices=("word", "segment"),
    ),
    _openai(
        "include[]", "texts", "`logprobs`, with `json`: of words rather than tokens", choices=("logprobs",)
    ),
    _openai(
        "stream",
        "flag",
        "`true`: server-sent events, `transcript.text.delta` a segment and `transcript.text.done`, "
        "with `json`, `text`, `verbose_json` or `diarized_json`; the last two add "
        "`transcript.text.segment`, with its words where `timestamp_granularities[]` asks for them",
    ),
    _openai(
        "known_speaker_names[]",
        "texts",
        "with `diarized_json`: up to 4 people; with 1 to 30 seconds of the speech of each as "
        "`data:audio/wav;base64,…`; others have letters",
        key="reference_names",
    ),
    _openai(
        "known_speaker_references[]",
        "texts",
        "the speech of each, in the order of the names",
        key="references",
    ),
    _whisper_cpp(
        "temperature", "number", "the first temperature", key="first_temperature", least=0.0, most=1.0
    ),
    _whisper_cpp(
        "temperature_inc",
        "number",
        "step to the next one if the result looks wrong; 0: only the first",
        key="temperature_step",
        least=0.0,
        most=1.0,
    ),
    _whisper_cpp("no_timestamps", "flag", "no words in `verbose_json`"),
    _whisper_cpp("no_language_probabilities", "flag", "no `language_probabilities` in `verbose_json`"),
    _whisper_cpp(
        "max_len",
        "integer",
        "characters of a segment; longer ones are split between words",
        least=0,
        most=100_000,
        none_upto=0,
    ),
    _whisper_cpp("split_on_word", "flag", "without effect: segments are always split between words"),
    *(_whisper_cpp(name, "any", "without effect") for name in WITHOUT_EFFECT),
)


MODEL = _live("model", "text", "one of `/v1/models`; default: the server's")
LIVE_REQUEST = (
    _live(
        "translate_to",
        "language",
        "also send a translation into this language, one of the model's `translates_to` in "
        "`/v1/models` ([translation](translation.md#in-the-server-and-on-the-page))",
    ),
    _live("encoding", "text", "`s16le`, the default, `f32le`, `mulaw` or `alaw`, one channel"),
    _live("sample_rate", "integer", "8000 to 96000 Hz; 16000 without it"),
)
