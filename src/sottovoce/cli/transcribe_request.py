"""What `sottovoce transcribe` was asked for, as the options of the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sottovoce.audio.vad import VadOptions
from sottovoce.cli.options import hotword_text
from sottovoce.cli.parameters import numbers, times, whole_numbers
from sottovoce.cli.speakers import speakers_of
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.errors import OptionError
from sottovoce.formats.base import WriterOptions
from sottovoce.offline.options import WINDOW_VAD, Mode, TranscribeOptions

VAD = "vad_"
"""What the names of options begin with that are fields of `VadOptions`."""
SIGNS = ("prepend_punctuations", "append_punctuations")


def writer_options(given: Mapping[str, Any]) -> WriterOptions:
    """How subtitles are broken into lines.

    Raises: OptionError when that needs word times which are not asked for.
    """
    options = WriterOptions(
        max_line_width=given["max_line_width"],
        max_line_count=given["max_line_count"],
        max_words_per_line=given["max_words_per_line"],
        highlight_words=given["highlight_words"],
        reading_speed=given["reading_speed"],
        offset_n=given["offset_n"],
    )
    if options.need_words and not (
        given["word_timestamps"] or given["speakers"] or given["channels"] == "energy"
    ):
        raise OptionError("line breaking and highlighting place single words: add --word-timestamps")
    return options


def transcribe_options(given: Mapping[str, Any]) -> TranscribeOptions:
    """The options of the library from those of the command line.

    Raises: OptionError.
    """
    vad = vad_options(given)
    signs = {name: given[name] for name in SIGNS if given[name] is not None}
    mode: Mode = (
        "vad" if given["vad"] or vad or given["batch_size"] > 1 or given["channels"] == "apart" else "seek"
    )
    options = TranscribeOptions(
        decoding=decoding_options(given),
        fallback=fallback_options(given),
        mode=mode,
        vad=vad,
        batch_size=given["batch_size"],
        condition_on_previous_text=not given["no_condition_on_previous_text"],
        prompt_reset_on_temperature=given["prompt_reset_on_temperature"],
        max_context=given["max_context"],
        initial_prompt=given["initial_prompt"],
        carry_initial_prompt=given["carry_initial_prompt"],
        clip_timestamps=clips(given, mode),
        audio_ctx=given["audio_ctx"],
        offset_s=given["offset"] or 0.0,
        audio_filter=given["audio_filter"],
        duration_s=given["duration"],
        follow_languages=given["follow_languages"],
        word_timestamps=given["word_timestamps"],
        word_threshold=given["word_threshold"],
        **signs,
        hallucination_silence_threshold=given["hallucination_silence_threshold"],
        speakers=speakers_of(given),
        channels=given["channels"],
    )
    if given["regroup"] is not None and not options.needs_words:
        raise OptionError("--regroup: cuts between words; add --word-timestamps")
    if signs and not options.needs_words:
        raise OptionError(f"--{next(iter(signs)).replace('_', '-')}: joins words; add --word-timestamps")
    return options


def decoding_options(given: Mapping[str, Any]) -> DecodingOptions:
    """How to decode a window."""
    return DecodingOptions(
        beam_size=given["beam_size"] if given["beam_size"] > 1 else None,
        patience=given["patience"],
        length_penalty=given["length_penalty"],
        prefix=given["prefix"],
        hotwords=hotword_text(given),
        suppress_tokens=whole_numbers("--suppress-tokens", given["suppress_tokens"]),
        suppress_regex=given["suppress_regex"],
        without_timestamps=given["without_timestamps"],
        speaker_turns=given["tinydiarize"],
        repetition_penalty=given["repetition_penalty"],
        no_repeat_ngram_size=given["no_repeat_ngram_size"],
        seed=given["seed"],
    )


def fallback_options(given: Mapping[str, Any]) -> FallbackOptions:
    """When to decode a window again."""
    temperatures = numbers("--temperature", given["temperature"])
    return FallbackOptions(
        temperatures=temperatures[:1] if given["no_fallback"] else temperatures,
        entropy_threshold=given["entropy_threshold"],
        best_of=given["best_of"],
        compression_ratio_threshold=given["compression_ratio_threshold"],
        logprob_threshold=given["logprob_threshold"],
        no_speech_threshold=given["no_speech_threshold"],
    )


def vad_options(given: Mapping[str, Any]) -> VadOptions | None:
    """How to find speech; None where no option says anything about it."""
    named = {name.removeprefix(VAD): value for name, value in given.items() if name.startswith(VAD)}
    asked = {name: value for name, value in named.items() if value is not None}
    return replace(WINDOW_VAD, **asked) if asked else None


def clips(given: Mapping[str, Any], mode: Mode) -> tuple[float, ...]:
    """The parts of the recording to transcribe: start, end, … in seconds; empty: all, or what --offset says.

    Raises: OptionError for two ways of saying it at once, no time at all, and where speech is found first.
    """
    parts = times("--clip-timestamps", given["clip_timestamps"])
    if parts and mode == "vad":
        raise OptionError("--clip-timestamps: cannot be combined with --vad, its options and --batch-size")
    if parts and (given["offset"] is not None or given["duration"] is not None):
        raise OptionError("--clip-timestamps: expected alone, got --offset or --duration too")
    if given["duration"] == 0:
        raise OptionError("--duration: expected more than 0 seconds, got 0")
    return parts
