"""The fields of whisper.cpp's `/inference`, as a request for this library. Knows no web framework."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from sottovoce.audio.vad import VadOptions
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import HOTTEST, DecodingOptions
from sottovoce.errors import OptionError
from sottovoce.offline.options import WINDOW_VAD, TranscribeOptions
from sottovoce.serving.faults import ApiError
from sottovoce.serving.fields import Fields, wrong
from sottovoce.serving.requests import TRANSLATION_FORMATS, FileRequest, Format, languages_of
from sottovoce.serving.scheduler import FileWish

VAD_FIELDS = {
    "vad_threshold": ("threshold", 1.0),
    "vad_min_speech_duration_ms": ("min_speech_ms", 60_000.0),
    "vad_min_silence_duration_ms": ("min_silence_ms", 60_000.0),
    "vad_max_speech_duration_s": ("max_speech_s", 3.5e38),
    "vad_speech_pad_ms": ("speech_pad_ms", 5_000.0),
    "vad_samples_overlap": ("overlap_s", 5.0),
}
"""Their names and ours, with the most that may be asked."""
SEARCH_FIELDS = ("beam_size", "best_of", "audio_ctx", "max_context", "entropy_thold")
SUPPRESS_FIELDS = ("suppress_nst", "suppress_non_speech")
"""Two names of one field."""
MOST_BEAM, MOST_AUDIO_CTX, MOST_CONTEXT, MOST_LEN = 16, 1_500, 100_000, 100_000
MOST_OFFSET_N = 100_000
SPECIALS_ALONE = (50_258,)
"""`<|startoftranscript|>` (`<|en|>` of English models): what is never written stays so, all else may be."""
WITHOUT_EFFECT = ("debug_mode", "token_timestamps", "encode")
"""Of how whisper.cpp times words, and what it prints."""
KNOWN = (
    *("file", "response_format", "language", "detect_language", "translate", "prompt"),
    *("carry_initial_prompt", "temperature", "temperature_inc", "logprob_thold", "no_speech_thold"),
    *("no_timestamps", "offset_t", "offset_n", "duration", "vad", *VAD_FIELDS, *WITHOUT_EFFECT),
    *(*SEARCH_FIELDS, *SUPPRESS_FIELDS, "diarize", "tinydiarize", "max_len", "split_on_word"),
    *("no_language_probabilities", "word_thold"),
)
MOST_MS = 1e9


def inference_request(fields: Fields, model: str) -> FileRequest:
    """The request of a form. Raises: ApiError 400."""
    response_format = cast(Format, fields.choice("response_format", TRANSLATION_FORMATS, "json"))
    for name in WITHOUT_EFFECT:
        fields.text(name)
    words = response_format == "verbose_json" and not fields.flag("no_timestamps")
    fields.flag("no_timestamps")
    fields.flag("split_on_word")
    max_len = whole(fields, "max_len", 0, MOST_LEN) or None
    offset_n = whole(fields, "offset_n", 0, MOST_OFFSET_N) or 0
    options = options_of(fields, words=words or max_len is not None)
    languages = () if fields.flag("detect_language") else languages_of(fields)
    fields.text("language")
    probabilities = not fields.flag("no_language_probabilities")
    fields.require_known(KNOWN)
    return FileRequest(
        options.decoding.task,
        model,
        response_format,
        FileWish(options, languages=languages),
        words=words,
        max_len=max_len,
        offset_n=offset_n if response_format == "srt" else 0,
        language_probabilities=probabilities,
    )


def options_of(fields: Fields, *, words: bool) -> TranscribeOptions:
    """How to transcribe. Raises: ApiError 400."""
    duration_ms = fields.number("duration", 0.0, MOST_MS)
    context = whole(fields, "max_context", -1, MOST_CONTEXT)
    threshold = fields.number("word_thold", 0.0, 1.0) or 0.0
    vad = vad_of(fields)
    try:
        return TranscribeOptions(
            decoding=decoding_of(fields),
            channels="energy" if fields.flag("diarize") else "mixed",
            fallback=fallback_of(fields),
            mode="seek" if vad is None else "vad",
            vad=vad,
            max_context=None if context is None or context < 0 else context,
            audio_ctx=whole(fields, "audio_ctx", 0, MOST_AUDIO_CTX) or None,
            initial_prompt=fields.text("prompt"),
            carry_initial_prompt=fields.flag("carry_initial_prompt"),
            offset_s=(fields.number("offset_t", 0.0, MOST_MS) or 0.0) / 1000,
            duration_s=duration_ms / 1000 if duration_ms else None,
            word_timestamps=words,
            word_threshold=threshold if words else 0.0,
        )
    except OptionError as error:
        raise ApiError(str(error)) from error


def decoding_of(fields: Fields) -> DecodingOptions:
    """How to decode a window; the server's own beam where no size is given. Raises: ApiError 400."""
    given = [fields.flag(name) for name in SUPPRESS_FIELDS if fields.text(name) is not None]
    if len(set(given)) > 1:
        raise wrong("suppress_nst", "the same as suppress_non_speech", "another")
    usual = DecodingOptions()
    return DecodingOptions(
        task="translate" if fields.flag("translate") else "transcribe",
        beam_size=positive(whole(fields, "beam_size", -1, MOST_BEAM)),
        suppress_tokens=SPECIALS_ALONE if given and not any(given) else usual.suppress_tokens,
        speaker_turns=fields.flag("tinydiarize"),
    )


def whole(fields: Fields, name: str, least: int, most: int) -> int | None:
    """A whole number of a range; None where it is not given. Raises: ApiError 400."""
    found = fields.number(name, least, most)
    if found is not None and not found.is_integer():
        raise wrong(name, "a whole number", f"'{found:g}'")
    return None if found is None else int(found)


def positive(number: int | None) -> int | None:
    """The number where it is above 0; whisper.cpp writes 0 and -1 for none."""
    return number if number is not None and number > 0 else None


def fallback_of(fields: Fields) -> FallbackOptions:
    """Temperatures from the first to the hottest by their step; a step of 0 tries the first alone."""
    first = fields.number("temperature", 0.0, HOTTEST) or 0.0
    given = fields.number("temperature_inc", 0.0, HOTTEST)
    step = 0.2 if given is None else given
    n_steps = math.floor((HOTTEST - first) / step + 1e-6) if step else 0
    temperatures = tuple(round(first + i * step, 6) for i in range(min(n_steps, 10) + 1))
    changes = {
        ours: value
        for theirs, ours, least, most in (
            ("logprob_thold", "logprob_threshold", -1e3, 1.0),
            ("no_speech_thold", "no_speech_threshold", 0.0, 1.0),
            ("entropy_thold", "entropy_threshold", 0.0, 1e3),
        )
        if (value := fields.number(theirs, least, most)) is not None
    }
    best_of = positive(whole(fields, "best_of", -1, MOST_BEAM))
    usual = FallbackOptions(temperatures=temperatures, best_of=best_of)
    return replace(usual, **changes)  # type: ignore[arg-type]


def vad_of(fields: Fields) -> VadOptions | None:
    """How speech is found first; None: it is not. Raises: ApiError 400."""
    given = {
        ours: value
        for theirs, (ours, most) in VAD_FIELDS.items()
        if (value := fields.number(theirs, 0.0, most)) is not None
    }
    if not fields.flag("vad"):
        return None
    if "max_speech_s" in given:  # FLT_MAX there: what is longer than a window is cut in any case
        given["max_speech_s"] = min(given["max_speech_s"], WINDOW_VAD.max_speech_s)
    try:
        return replace(WINDOW_VAD, **given)
    except OptionError as error:
        raise ApiError(str(error), param="vad", code="invalid_value") from error
