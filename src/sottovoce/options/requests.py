"""Options of a request to the server alone: what it names, and what its answer looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sottovoce.options.schema import Api, ApiField, Kind, Option

FORMATS = ("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
"""Of answers."""
TRANSLATION_FORMATS = FORMATS[:-1]
"""The same of translations, which do not say who speaks."""
LANGUAGE_EXAMPLES = ("en", "german", "auto")
WITHOUT_EFFECT = ("debug_mode", "token_timestamps", "encode")
"""Of how whisper.cpp times words, and what it prints."""
IGNORED = ("stream_options", "stream_include_usage", "without_timestamps", "top_p", "top_k", "min_p")
"""Of other servers with OpenAI's API: draws are from all tokens here, and usage comes anyway."""
MOST_COUNT = 100_000


def requested(key: str, kind: Kind, apis: Mapping[Api, ApiField], **about: Any) -> Option:
    """Declare an option of requests; its help is that of the first API that has it."""
    return Option(next(iter(apis.values())).help, key=key, kind=kind, apis=apis, **about)


REQUEST = (
    requested(
        "file",
        "file",
        {
            "openai": ApiField("file", "anything that FFmpeg reads; nothing that it names is opened"),
            "whisper_cpp": ApiField("file", "The recording."),
        },
    ),
    requested("model", "text", {"openai": ApiField("model", "one of `/v1/models`; without it the server's")}),
    requested(
        "language",
        "text",
        {
            "openai": ApiField(
                "language", "a code or name; without it, it is found once", examples=LANGUAGE_EXAMPLES
            ),
            "whisper_cpp": ApiField(
                "language",
                "without a language it is found, where whisper.cpp takes English",
                examples=LANGUAGE_EXAMPLES,
            ),
        },
    ),
    requested(
        "detect_language",
        "flag",
        {"whisper_cpp": ApiField("detect_language", "Find the language, whatever is given.")},
    ),
    requested(
        "languages",
        "texts",
        {
            "openai": ApiField(
                "languages[]", "several: changes among them are followed", examples=LANGUAGE_EXAMPLES
            )
        },
    ),
    requested(
        "phrases",
        "texts",
        {"openai": ApiField("keywords[]", "words likely to be said, boosted in the beam search")},
    ),
    requested(
        "hotwords",
        "text",
        {"openai": ApiField("hotwords", "the same, separated by commas, as other servers have them")},
    ),
    requested(
        "vad_filter",
        "flag",
        {
            "openai": ApiField(
                "vad_filter", "`true`: as `chunking_strategy` `auto`, as other servers have it", examples=()
            )
        },
    ),
    *(
        requested(
            f"ignored_{name}",
            "nested",
            {"openai": ApiField(name, "without effect, which the answer tells: `x-ignored-parameters`")},
        )
        for name in IGNORED
    ),
    requested(
        "chunking_strategy",
        "nested",
        {
            "openai": ApiField(
                "chunking_strategy",
                "`auto`, or `server_vad` with `threshold`, `silence_duration_ms` and `prefix_padding_ms`: "
                "speech is found first. Without it, windows follow each other",
                examples=("auto", '{"type": "server_vad"}'),
            )
        },
    ),
    requested(
        "response_format",
        "choice",
        {
            "openai": ApiField(
                "response_format",
                "`json`, `text`, `srt`, `vtt`, `verbose_json`, `diarized_json`: segments with "
                "[speakers](speakers.md) A, B, …",
                choices=FORMATS,
            ),
            "whisper_cpp": ApiField(
                "response_format",
                "`json`, `text`, `srt`, `vtt`, `verbose_json` (words in their segments, probabilities of "
                "languages)",
                choices=TRANSLATION_FORMATS,
            ),
        },
        default="json",
    ),
    requested(
        "granularities",
        "texts",
        {
            "openai": ApiField(
                "timestamp_granularities[]",
                "`word`, `segment`, with `verbose_json`, or `diarized_json` in a stream",
                choices=("word", "segment"),
            )
        },
    ),
    requested(
        "include",
        "texts",
        {
            "openai": ApiField(
                "include[]", "`logprobs`, with `json`: of words rather than tokens", choices=("logprobs",)
            )
        },
    ),
    requested(
        "stream",
        "flag",
        {
            "openai": ApiField(
                "stream",
                "`true`: server-sent events, `transcript.text.delta` a segment and `transcript.text.done`, "
                "with `json`, `text`, `verbose_json` or `diarized_json`; the last two add "
                "`transcript.text.segment`, with its words where `timestamp_granularities[]` asks for them",
            )
        },
    ),
    requested(
        "reference_names",
        "texts",
        {
            "openai": ApiField(
                "known_speaker_names[]",
                "with `diarized_json`: up to 4 people; with 1 to 30 seconds of the speech of each as "
                "`data:audio/wav;base64,…`; others have letters",
            )
        },
    ),
    requested(
        "references",
        "texts",
        {"openai": ApiField("known_speaker_references[]", "the speech of each, in the order of the names")},
    ),
    requested(
        "first_temperature",
        "number",
        {"whisper_cpp": ApiField("temperature", "the first that is tried", least=0.0, most=1.0)},
    ),
    requested(
        "temperature_step",
        "number",
        {
            "whisper_cpp": ApiField(
                "temperature_inc",
                "the step to the next, where the result looks wrong; 0: no other is tried",
                least=0.0,
                most=1.0,
            )
        },
    ),
    requested(
        "no_timestamps", "flag", {"whisper_cpp": ApiField("no_timestamps", "no words in `verbose_json`")}
    ),
    requested(
        "no_language_probabilities",
        "flag",
        {
            "whisper_cpp": ApiField(
                "no_language_probabilities", "no `language_probabilities` in `verbose_json`"
            )
        },
    ),
    requested(
        "max_len",
        "integer",
        {
            "whisper_cpp": ApiField(
                "max_len",
                "letters of a segment: longer ones are cut, between words in any case",
                least=0,
                most=MOST_COUNT,
                none_upto=0,
            )
        },
    ),
    requested(
        "split_on_word",
        "flag",
        {"whisper_cpp": ApiField("split_on_word", "lines are cut between words in any case")},
    ),
    *(requested(name, "any", {"whisper_cpp": ApiField(name, "without effect")}) for name in WITHOUT_EFFECT),
)
