"""Values of forms, addresses and JSON messages, read without trust.

Readers take the field's name and value, and raise ApiError 400. Lists in a form are `name[]`, `name` or
`name[0]`; objects are `name[key]` or JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast, get_args

from starlette.requests import HTTPConnection

from sottovoce.formats.document import Json
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, VadOptions, VadStreamOptions
from sottovoce.options.schema import Api, ApiField, Kind, Option, Values, options_of
from sottovoce.options.transcribe import TranscribeOptions, WriterOptions
from sottovoce.server.errors import ApiError, invalid_options, invalid_value
from sottovoce.streaming.options import Finals, LiveOptions, StreamOptions
from sottovoce.text.languages import find_language

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
    help: str = "",
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
_whisper_asr = partial(_of_api, "whisper_asr")
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
        whisper_asr=ApiField("language", "without a language it is detected", examples=LANGUAGE_EXAMPLES),
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
    _whisper_asr(
        "output",
        "choice",
        "`txt` (default), `srt`, `vtt`, `tsv` or `json`; subtitles are laid out as those of `transcribe`",
        choices=("txt", "srt", "vtt", "tsv", "json"),
    ),
    _whisper_asr(
        "encode", "flag", "`false`: the upload is samples without a header, s16le at 16 kHz, one channel"
    ),
    _whisper_asr("diarize", "flag", "identify [speakers](speakers.md)", key="diarize_voices"),
    _whisper_asr("min_speakers", "integer", "smallest number of speakers", least=1, most=100),
    _whisper_asr("max_speakers", "integer", "largest number of speakers", least=1, most=100),
    _whisper_asr("video_file", "any", "without effect: paths are never opened"),
)
DETECTION = (
    _whisper_asr("encode", "flag"),
    _whisper_asr("input_format", "text"),
    _whisper_asr("video_file", "any"),
    _whisper_asr("detect_lang_offset", "number", key="offset", least=0.0),
    _whisper_asr("detect_lang_length", "number", key="duration", least=1.0),
)
"""Of `/detect-language`; the last two are Subgen's, in seconds."""


MIN_RATE, MAX_RATE = 8_000, 96_000
"""Of live samples, in Hz."""
MODEL = _live("model", "text", "one of `/v1/models`; default: the server's")
LIVE_REQUEST = (
    _live(
        "translate_to",
        "language",
        "also send a translation into this language, one of the model's `translates_to` in "
        "`/v1/models` ([translation](translation.md#in-the-server-and-on-the-page))",
    ),
    _live(
        "sources",
        "texts",
        "a name for each channel of the audio, whose samples alternate; each is transcribed separately, and "
        "named as the `source` of its events",
    ),
    _live(
        "encoding", "text", "`s16le`, the default, `f32le`, `mulaw` or `alaw`; one channel without `sources`"
    ),
    _live(
        "sample_rate",
        "integer",
        f"{MIN_RATE} to {MAX_RATE} Hz; 16000 without it",
        least=MIN_RATE,
        most=MAX_RATE,
    ),
)


MAX_TERMS = 500
MAX_CHARACTERS = 4_000
"""Of a prompt, and of all terms together."""
IGNORED_HEADER = "x-ignored-parameters"
IGNORED_STATE = "ignored"
MAX_NAMES_SHOWN, MAX_NAME_LETTERS = 20, 100
UNPRINTABLE = re.compile(r"[^\x21-\x2b\x2d-\x7e]")
"""Characters that a header cannot hold, or that separate names in it."""
T = TypeVar("T")
Reader: TypeAlias = Callable[[str, object], T]
KnownFields: TypeAlias = Mapping[str, "KnownFields | Reader[object]"]
"""Fields of a JSON object by name: nested fields, or the reader of the value; {}: not checked further."""


def read_json(text: str | bytes) -> object:
    """Read JSON; None if it is invalid or too deep. Lone surrogates ("\\ud800") become U+FFFD."""
    try:
        return _without_surrogates(json.loads(text))
    except (ValueError, RecursionError):
        return None


def replace_surrogates(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(name): _without_surrogates(item) for name, item in value.items()}
    return value


def read_number(name: str, value: object, least: float, most: float, *, is_whole: bool = False) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most or (is_whole and not number.is_integer()):
        kind = "a whole number" if is_whole else "a number"
        raise invalid_value(name, f"{kind} from {least:g} to {most:g}", f"'{str(value)[:100]}'")
    return number


def read_text(name: str, value: object, most: int = MAX_CHARACTERS) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise invalid_value(name, f"a text of at most {most} characters", quoted(value))
    return value


def read_list(name: str, value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise invalid_value(name, "a list of texts", quoted(value))
    return tuple(item.strip() for item in check_terms(items, name) if item.strip())


def check_terms(terms: Sequence[str], name: str = "keyterm") -> tuple[str, ...]:
    if len(terms) > MAX_TERMS or sum(map(len, terms)) > MAX_CHARACTERS:
        expected = f"at most {MAX_TERMS} texts of {MAX_CHARACTERS} characters in all"
        raise invalid_value(name, expected, f"{len(terms)}")
    return tuple(terms)


def read_languages(name: str, value: object) -> tuple[str, ...]:
    """ "auto" means all and is left out."""
    return read_codes(name, (word for word in read_list(name, value) if word != "auto"))


def read_language(name: str, value: object) -> str:
    return read_code(name, text) if (text := read_text(name, value).strip()) else ""


def read_code(name: str, language: str) -> str:
    """Read a language's name, code or tag (en-US) as Whisper's code."""
    with invalid_options(name):
        return find_language(language[:50])


def read_codes(name: str, languages: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(read_code(name, language) for language in languages))


def read_flag(name: str, value: object) -> bool:
    flag = FLAGS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise invalid_value(name, "true or false", quoted(value))
    return flag


def read_speakers(name: str, value: object) -> str:
    """Read "auto", a largest number, or "" for false."""
    text = str(value).lower()
    if text in ("false", "0", ""):
        return ""
    if text not in ("auto", "true") and not (text.isascii() and text.isdecimal() and len(text) < 3):
        raise invalid_value(name, "auto, a number of speakers below 100, or false", quoted(value))
    return "auto" if text == "true" else text


def read_int(name: str, value: object) -> int:
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 9 else value
    if not isinstance(number, int) or isinstance(number, bool):
        raise invalid_value(name, "a whole number", quoted(value))
    return number


def one_of(*among: str) -> Reader[str]:
    def read(name: str, value: object) -> str:
        if value not in among:
            raise invalid_value(name, f"one of {', '.join(among)}", quoted(value))
        return str(value)

    return read


def read_finals(name: str, value: object) -> Finals:
    return cast(Finals, one_of(*get_args(Finals))(name, value))


def quoted(value: object) -> str:
    return f"'{str(value)[:50]}'"


def read_object(name: str, value: object, *, optional: bool = False) -> Mapping[str, object]:
    """Read an object of JSON; optional: null is an empty one."""
    if value is None and optional:
        return {}
    if not isinstance(value, Mapping):
        raise invalid_value(name, "an object or null" if optional else "an object", quoted(value))
    return cast("Mapping[str, object]", value)


def read_json_list(name: str, value: object) -> tuple[str, ...]:
    return read_list(name, value if isinstance(value, list) else None)


def read_json_languages(name: str, value: object) -> tuple[str, ...]:
    return read_languages(name, value if isinstance(value, list) else None)


def json_number(least: float, most: float) -> Reader[float]:
    """Strings are refused."""
    return lambda name, value: read_number(name, [value] if isinstance(value, str) else value, least, most)


def read_json_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid_value(name, "true or false", quoted(value))
    return value


def read_typed_message(text: str | bytes, expected: str) -> dict[str, object]:
    return require_typed(read_json(text), expected)


def require_typed(message: object, expected: str) -> dict[str, object]:
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ApiError(f"message: expected {expected}", code="invalid_message")
    return message


def read_fields(place: str, given: Mapping[str, object], readers: Mapping[str, Reader[T]]) -> dict[str, T]:
    """Read the fields that are present and not null."""
    return {
        name: read(f"{place}.{name}", given[name])
        for name, read in readers.items()
        if given.get(name) is not None
    }


def unknown_fields(given: object, known: KnownFields | Reader[object], place: str = "") -> tuple[str, ...]:
    """List unknown fields at any depth, such as "session.audio.output"."""
    if not known or callable(known) or not isinstance(given, Mapping):
        return ()
    unknown: list[str] = []
    for name, value in given.items():
        path = f"{place}.{name}" if place else str(name)
        if name in known:
            unknown += unknown_fields(value, known[name], path)
        else:
            unknown.append(path)
    return tuple(unknown)


def known_fields(*names: str) -> dict[str, KnownFields]:
    return {name: {} for name in names}


def printable_names(names: Iterable[str]) -> list[str]:
    printable = [UNPRINTABLE.sub("?", name)[:MAX_NAME_LETTERS] or "?" for name in dict.fromkeys(names)]
    return printable if len(printable) <= MAX_NAMES_SHOWN else [*printable[:MAX_NAMES_SHOWN], "..."]


def note_ignored(connection: HTTPConnection, names: Iterable[str]) -> None:
    connection.scope["state"].setdefault(IGNORED_STATE, []).extend(names)


def query_of(connection: HTTPConnection) -> dict[str, str]:
    """Return the parameters of the query. Raises: ApiError 400 for one that is repeated."""
    names = [name for name, _ in connection.query_params.multi_items()]
    for name, n in Counter(names).items():
        if n > 1:
            raise invalid_value(name[:MAX_NAME_LETTERS], "one value", f"{n}")
    return dict(connection.query_params)


def ignored_header(state: Mapping[str, object]) -> dict[str, str]:
    names = state.get(IGNORED_STATE)
    return {IGNORED_HEADER: ", ".join(printable_names(names))} if isinstance(names, list) and names else {}


MAX_TEXT_LETTERS = 8_000
MAX_ITEMS = 1_000
MAX_LIST_LETTERS = 16_000
RECORDINGS = "known_speaker_references"
"""Holds recordings; their length is checked where they are decoded."""
FLAGS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
FORM: tuple[Option, ...] = (
    *REQUEST,
    *(
        option
        for owner in (TranscribeOptions, DecodingOptions, FallbackOptions, VadOptions, WriterOptions)
        for option in options_of(owner)
    ),
)
TEXT: dict[str, Json] = {"type": "string", "maxLength": 8000}
TEXTS: dict[str, Json] = {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 1000}
LIVE: tuple[Option, ...] = (
    MODEL,
    *options_of(LiveOptions),
    *options_of(StreamOptions),
    *options_of(VadStreamOptions),
    *LIVE_REQUEST,
)
READERS: Mapping[Kind, Reader[object]] = {
    "text": read_text,
    "flag": read_flag,
    "texts": read_list,
    "language": read_language,
    "languages": read_languages,
    "speakers": read_speakers,
}


def field_name(name: str) -> str:
    """Return `name` for `name[key]`."""
    return name.partition("[")[0] or name


class Fields:
    """Text fields of one request."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = [(replace_surrogates(name), replace_surrogates(value)) for name, value in pairs]
        self._taken: set[str] = set()
        for name, value in self._pairs:
            if len(value) > MAX_TEXT_LETTERS and not name.startswith(RECORDINGS):
                raise invalid_value(name, f"at most {MAX_TEXT_LETTERS} characters", f"{len(value)}")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(self._pairs)

    def without(self, name: str) -> Fields:
        return Fields((key, value) for key, value in self._pairs if key != name)

    def text(self, name: str) -> str | None:
        """Return the single value, or None if it is missing or empty."""
        self._taken.add(name)
        values = [value for key, value in self._pairs if key == name]
        if len(values) > 1:
            raise invalid_value(name, "one value", f"{len(values)}")
        return values[0] if values and values[0] else None

    def many(self, name: str) -> list[str]:
        index = re.compile(re.escape(name) + r"(\[\d*\])?")
        keys = [key for key, _ in self._pairs if index.fullmatch(key)]
        self._taken.update(keys)
        if len(keys) > MAX_ITEMS:
            raise invalid_value(name, f"at most {MAX_ITEMS} values", f"{len(keys)}")
        among = set(keys)
        values = [value for key, value in self._pairs if key in among and value]
        n_letters = sum(map(len, values))
        if n_letters > MAX_LIST_LETTERS and name != RECORDINGS:
            raise invalid_value(name, f"at most {MAX_LIST_LETTERS} characters in all", f"{n_letters}")
        return values

    def nested(self, name: str) -> str | Mapping[str, object] | None:
        """Return a word, an object from `name[key]` fields or JSON, or None."""
        inner = re.compile(re.escape(name) + r"\[(\w+)\]")
        nested: dict[str, object] = {}
        for key, value in self._pairs:
            match = inner.fullmatch(key)
            if match:
                self._taken.add(key)
                nested[match[1]] = value
        plain = self.text(name)
        if plain is not None and nested:
            raise invalid_value(name, "a word or an object", "both")
        if plain is None or not plain.lstrip().startswith("{"):
            return plain or nested or None
        document = read_json(plain)
        return read_object(name, plain if document is None else document)

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of unread fields, `name` for `name[key]`."""
        names = (field_name(name) for name, _ in self._pairs if name not in self._taken)
        return tuple(dict.fromkeys(names))


def fields_of(api: Api, options: Sequence[Option] = FORM) -> dict[str, tuple[Option, ApiField]]:
    return {
        name: (option, option.apis[api])
        for option in options
        if api in option.apis
        for name in option.apis[api].names.split()
    }


def read_form(fields: Fields, api: Api, options: Sequence[Option] = FORM) -> Values:
    return {option.key: _read(fields, option, option.apis[api]) for option in options if api in option.apis}


def _read(fields: Fields, option: Option, field: ApiField) -> object:
    value: object
    match field.kind or option.kind:
        case "flag":
            value = _flag(fields, field)
        case "choice" | "number" | "time" | "integer" as kind:
            text = fields.text(field.name)
            if text is not None:
                return read_field(field.name, text, option, field)
            value = option.default if kind == "choice" else None
        case "texts":
            name = field.name.removesuffix("[]")
            value = texts = tuple(fields.many(name))
            if field.choices:
                read = one_of(*field.choices)
                value = tuple(dict.fromkeys(read(f"{name}[]", text) for text in texts))
        case "nested":
            value = fields.nested(field.name)
        case "file":
            return None
        case _:
            value = fields.text(field.name)
    return field.reads(value) if field.reads is not None and value is not None else value


def _flag(fields: Fields, field: ApiField) -> bool | None:
    names = field.names.split()
    given: set[bool] = set()
    for name in names:
        if (text := fields.text(name)) is not None:
            given.add(read_flag(name, text))
    if len(given) > 1:
        raise invalid_value(names[0], f"the same as {names[1]}", "another")
    return given.pop() if given else None


def range_of(option: Option, field: ApiField) -> tuple[float, float]:
    least = field.least if field.least is not None else option.least
    most = field.most if field.most is not None else option.most
    return -math.inf if least is None else least, math.inf if most is None else most


def schema_of(option: Option, field: ApiField) -> dict[str, Json]:
    match field.kind or option.kind:
        case "flag" | "any":
            return {"type": "boolean"}
        case "number" | "time":
            return {"type": "number", **_limits(option, field)}
        case "integer":
            return {"type": "integer", **_limits(option, field)}
        case "choice":
            return {"type": "string", "enum": [*(field.choices or option.choices)]}
        case "texts" if field.choices:
            return {"type": "array", "items": {"type": "string", "enum": [*field.choices]}}
        case "texts" if field.examples:
            return {"type": "array", "items": _example(field)}
        case "texts":
            return TEXTS
        case "file":
            return {"type": "string", "format": "binary"}
        case _:
            return _example(field) if field.examples else TEXT


def _example(field: ApiField) -> dict[str, Json]:
    return {"type": "string", "examples": [*field.examples], "maxLength": 50}


def _limits(option: Option, field: ApiField) -> Mapping[str, Json]:
    least, most = range_of(option, field)
    limits: dict[str, Json] = {"minimum": least, "maximum": most}
    return {name: value for name, value in limits.items() if value not in (-math.inf, math.inf)}


def read_field(name: str, value: object, option: Option, field: ApiField) -> object:
    converted: object
    match field.kind or option.kind:
        case "choice":
            converted = one_of(*(field.choices or option.choices))(name, value)
        case "number" | "time" | "integer" as kind:
            is_whole = kind == "integer"
            number = read_number(name, value, *range_of(option, field), is_whole=is_whole)
            if field.none_upto is not None and number <= field.none_upto:
                return None
            converted = int(number) if is_whole else number / field.per_unit
        case kind:
            converted = READERS[kind or "text"](name, value)
    return converted if field.reads is None else field.reads(converted)
