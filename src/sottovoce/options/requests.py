"""Options of a request to the server alone: what it names, and what its answer looks like."""

from __future__ import annotations

from sottovoce.options.schema import ApiField, Option

FORMATS = ("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
"""Of answers."""
TRANSLATION_FORMATS = FORMATS[:-1]
"""The same of translations, which do not say who speaks."""
LANGUAGE_EXAMPLES = ("en", "german", "auto")
WITHOUT_EFFECT = ("debug_mode", "token_timestamps", "encode")
"""Of how whisper.cpp times words, and what it prints."""
MOST_COUNT = 100_000
REQUEST = (
    Option(
        "The recording.",
        key="file",
        kind="file",
        apis={
            "openai": ApiField("file", "anything that FFmpeg reads; nothing that it names is opened"),
            "whisper_cpp": ApiField("file"),
        },
    ),
    Option(
        "The model.",
        key="model",
        kind="text",
        apis={"openai": ApiField("model", "one of `/v1/models`; without it the server's")},
    ),
    Option(
        "A code or name.",
        key="language",
        kind="text",
        apis={
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
    Option(
        "Find the language, whatever is given.",
        key="detect_language",
        kind="flag",
        apis={"whisper_cpp": ApiField("detect_language")},
    ),
    Option(
        "Languages among which it may change.",
        key="languages",
        kind="texts",
        apis={
            "openai": ApiField(
                "languages[]", "several: changes among them are followed", examples=LANGUAGE_EXAMPLES
            )
        },
    ),
    Option(
        "Words likely to be said.",
        key="phrases",
        kind="texts",
        apis={"openai": ApiField("keywords[]", "words likely to be said, boosted in the beam search")},
    ),
    Option(
        "What speech is cut by.",
        key="chunking_strategy",
        kind="nested",
        apis={
            "openai": ApiField(
                "chunking_strategy",
                "`auto`, or `server_vad` with `threshold`, `silence_duration_ms` and `prefix_padding_ms`: "
                "speech is found first. Without it, windows follow each other",
                examples=("auto", '{"type": "server_vad"}'),
            )
        },
    ),
    Option(
        "What the answer looks like.",
        key="response_format",
        kind="choice",
        default="json",
        apis={
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
    ),
    Option(
        "What has times.",
        key="granularities",
        kind="texts",
        apis={
            "openai": ApiField(
                "timestamp_granularities[]",
                "`word`, `segment`, with `verbose_json`",
                choices=("word", "segment"),
            )
        },
    ),
    Option(
        "What else is answered.",
        key="include",
        kind="texts",
        apis={
            "openai": ApiField(
                "include[]", "`logprobs`, with `json`: of words rather than tokens", choices=("logprobs",)
            )
        },
    ),
    Option(
        "Answer while the recording is read.",
        key="stream",
        kind="flag",
        apis={
            "openai": ApiField(
                "stream",
                "`true`: server-sent events, `transcript.text.delta` a segment and `transcript.text.done`, "
                "with `json`, `text` or `diarized_json`, which adds `transcript.text.segment`",
            )
        },
    ),
    Option(
        "People who may speak.",
        key="reference_names",
        kind="texts",
        apis={
            "openai": ApiField(
                "known_speaker_names[]",
                "with `diarized_json`: up to 4 people; with 1 to 30 seconds of the speech of each as "
                "`data:audio/wav;base64,…`; others have letters",
            )
        },
    ),
    Option(
        "Their voices.",
        key="references",
        kind="texts",
        apis={
            "openai": ApiField("known_speaker_references[]", "the speech of each, in the order of the names")
        },
    ),
    Option(
        "The first temperature.",
        key="first_temperature",
        kind="number",
        least=0.0,
        most=1.0,
        apis={"whisper_cpp": ApiField("temperature", "the first that is tried")},
    ),
    Option(
        "The step to the next.",
        key="temperature_step",
        kind="number",
        least=0.0,
        most=1.0,
        apis={
            "whisper_cpp": ApiField(
                "temperature_inc", "the step to the next, where the result looks wrong; 0: no other is tried"
            )
        },
    ),
    Option(
        "Words without times.",
        key="no_timestamps",
        kind="flag",
        apis={"whisper_cpp": ApiField("no_timestamps", "no words in `verbose_json`")},
    ),
    Option(
        "Answer without how likely languages are.",
        key="no_language_probabilities",
        kind="flag",
        apis={
            "whisper_cpp": ApiField(
                "no_language_probabilities", "no `language_probabilities` in `verbose_json`"
            )
        },
    ),
    Option(
        "Letters of a segment.",
        key="max_len",
        kind="integer",
        least=0,
        most=MOST_COUNT,
        apis={
            "whisper_cpp": ApiField(
                "max_len", "letters of a segment: longer ones are cut, between words in any case", none_upto=0
            )
        },
    ),
    Option(
        "Cut between words.",
        key="split_on_word",
        kind="flag",
        apis={"whisper_cpp": ApiField("split_on_word", "lines are cut between words in any case")},
    ),
    *(
        Option("Nothing.", key=name, kind="any", apis={"whisper_cpp": ApiField(name, "without effect")})
        for name in WITHOUT_EFFECT
    ),
)
