"""The fields of whisper.cpp's `/inference`, as a request for this library. Knows no web framework."""

from __future__ import annotations

import math
from dataclasses import replace

from sottovoce.errors import OptionError
from sottovoce.options.decoding import HOTTEST, DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.schema import Values, made, options_of
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import WINDOW_VAD, VadOptions
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import Fields
from sottovoce.serving.parsing.forms import fields_of, read_form
from sottovoce.serving.recordings.requests import FileRequest, languages_of
from sottovoce.serving.scheduling.scheduler import TranscriptionRequest

SUPPORTED = tuple(fields_of("whisper_cpp"))
"""The documented fields."""
USUAL_STEP = 0.2
"""From one temperature to the next. Source: whisper.cpp."""
MOST_STEPS = 10


def inference_request(fields: Fields, model: str) -> FileRequest:
    """Read the request of a form. Raises: ApiError 400."""
    values = read_form(fields, "whisper_cpp")
    response_format = values["response_format"]
    words = response_format == "verbose_json" and not values["no_timestamps"]
    options = transcribe_options(values, words=words or values["max_len"] is not None)
    return FileRequest(
        options.decoding.task,
        model,
        response_format,
        TranscriptionRequest(options, languages=() if values["detect_language"] else languages_of(values)),
        words=words,
        max_len=values["max_len"],
        offset_n=(values["offset_n"] or 0) if response_format == "srt" else 0,
        language_probabilities=not values["no_language_probabilities"],
        ignored=fields.untaken,
    )


def transcribe_options(values: Values, *, words: bool) -> TranscribeOptions:
    """Read how to transcribe; the server's own beam where no size is given. Raises: ApiError 400."""
    threshold = values["word_threshold"] or 0.0
    try:
        return made(
            TranscribeOptions,
            values,
            decoding=made(DecodingOptions, values),
            fallback=made(FallbackOptions, values, temperatures=temperatures(values)),
            vad=vad_options(values),
            word_timestamps=words,
            word_threshold=threshold if words else 0.0,
        )
    except OptionError as error:
        raise ApiError(str(error)) from error


def temperatures(values: Values) -> tuple[float, ...]:
    """Temperatures from the first to the hottest by their step; a step of 0 tries the first alone."""
    first = values["first_temperature"] or 0.0
    step = USUAL_STEP if values["temperature_step"] is None else values["temperature_step"]
    n_steps = min((HOTTEST - first) / step + 1e-6, MOST_STEPS) if step else 0  # of a tiny one without end
    return tuple(round(first + i * step, 6) for i in range(math.floor(n_steps) + 1))


def vad_options(values: Values) -> VadOptions | None:
    """Read how speech is found first; None: it is not. Raises: ApiError 400."""
    if values["mode"] is None:
        return None
    given = {one.field: values[one.key] for one in options_of(VadOptions) if values.get(one.key) is not None}
    try:
        return replace(WINDOW_VAD, **given)
    except OptionError as error:
        raise ApiError(str(error), param="vad", code="invalid_value") from error
