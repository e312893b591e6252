"""The fields of whisper.cpp's `/inference`, as a request for this library. Knows no web framework."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from sottovoce.audio.vad import VadOptions
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.errors import OptionError
from sottovoce.offline.options import WINDOW_VAD, TranscribeOptions
from sottovoce.serving.faults import ApiError
from sottovoce.serving.fields import Fields
from sottovoce.serving.requests import TRANSLATION_FORMATS, FileRequest, Format, languages_of
from sottovoce.serving.scheduler import FileWish

VAD_FIELDS = {
    "vad_threshold": ("threshold", 1.0),
    "vad_min_speech_duration_ms": ("min_speech_ms", 60_000.0),
    "vad_min_silence_duration_ms": ("min_silence_ms", 60_000.0),
    "vad_max_speech_duration_s": ("max_speech_s", 30.0),
    "vad_speech_pad_ms": ("speech_pad_ms", 5_000.0),
    "vad_samples_overlap": ("overlap_s", 5.0),
}
"""Their names and ours, with the most that may be asked."""
WITHOUT_EFFECT = (
    *("beam_size", "best_of", "audio_ctx", "max_context", "word_thold", "entropy_thold", "debug_mode"),
    *("no_language_probabilities", "suppress_nst", "suppress_non_speech"),
    *("token_timestamps", "encode"),
)
"""Of whisper.cpp's own search: the server's settings hold here."""
NOT_DONE = ("split_on_word", "max_len", "offset_n")
"""Refused unless they are off."""
KNOWN = (
    *("file", "response_format", "language", "detect_language", "translate", "prompt"),
    *("carry_initial_prompt", "temperature", "temperature_inc", "logprob_thold", "no_speech_thold"),
    *("no_timestamps", "offset_t", "duration", "vad", *VAD_FIELDS, *WITHOUT_EFFECT, *NOT_DONE),
    *("diarize", "tinydiarize"),
)
MOST_MS = 1e9


def inference_request(fields: Fields, model: str) -> FileRequest:
    """The request of a form. Raises: ApiError 400."""
    response_format = cast(Format, fields.choice("response_format", TRANSLATION_FORMATS, "json"))
    for name in NOT_DONE:
        if (fields.text(name) or "0").lower() not in ("0", "false"):
            raise ApiError(f"{name}: not done here", param=name, code="unsupported_value")
    for name in WITHOUT_EFFECT:
        fields.text(name)
    words = response_format == "verbose_json" and not fields.flag("no_timestamps")
    fields.flag("no_timestamps")
    options = options_of(fields, words=words)
    languages = () if fields.flag("detect_language") else languages_of(fields)
    fields.text("language")
    fields.require_known(KNOWN)
    task = options.decoding.task
    return FileRequest(task, model, response_format, FileWish(options, languages=languages), words=words)


def options_of(fields: Fields, *, words: bool) -> TranscribeOptions:
    """How to transcribe. Raises: ApiError 400."""
    duration_ms = fields.number("duration", 0.0, MOST_MS)
    vad = vad_of(fields)
    try:
        return TranscribeOptions(
            decoding=DecodingOptions(
                task="translate" if fields.flag("translate") else "transcribe",
                speaker_turns=fields.flag("tinydiarize"),
            ),
            channels="energy" if fields.flag("diarize") else "mixed",
            fallback=fallback_of(fields),
            mode="seek" if vad is None else "vad",
            vad=vad,
            initial_prompt=fields.text("prompt"),
            carry_initial_prompt=fields.flag("carry_initial_prompt"),
            offset_s=(fields.number("offset_t", 0.0, MOST_MS) or 0.0) / 1000,
            duration_s=duration_ms / 1000 if duration_ms else None,
            word_timestamps=words,
        )
    except OptionError as error:
        raise ApiError(str(error)) from error


def fallback_of(fields: Fields) -> FallbackOptions:
    """Temperatures from the first to 1 by their step; a step of 0 tries the first alone."""
    first = fields.number("temperature", 0.0, 1.0) or 0.0
    given = fields.number("temperature_inc", 0.0, 1.0)
    step = 0.2 if given is None else given
    n_steps = math.floor((1.0 - first) / step + 1e-6) if step else 0
    temperatures = tuple(round(first + i * step, 6) for i in range(min(n_steps, 10) + 1))
    changes = {
        ours: value
        for theirs, ours, least in (
            ("logprob_thold", "logprob_threshold", -1e3),
            ("no_speech_thold", "no_speech_threshold", 0.0),
        )
        if (value := fields.number(theirs, least, 1.0)) is not None
    }
    return replace(FallbackOptions(temperatures=temperatures), **changes)  # type: ignore[arg-type]


def vad_of(fields: Fields) -> VadOptions | None:
    """How speech is found first; None: it is not. Raises: ApiError 400."""
    given = {
        ours: value
        for theirs, (ours, most) in VAD_FIELDS.items()
        if (value := fields.number(theirs, 0.0, most)) is not None
    }
    if not fields.flag("vad"):
        return None
    try:
        return replace(WINDOW_VAD, **given)
    except OptionError as error:
        raise ApiError(str(error), param="vad", code="invalid_value") from error
