"""The words of the server's own live protocol (docs/protocol.md): what a client may say, and what it is told.

Pure functions of messages; sockets are in `live`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, cast

import numpy as np

from sottovoce.errors import OptionError
from sottovoce.serving.client_json import read_json
from sottovoce.serving.faults import ApiError
from sottovoce.serving.fields import wrong
from sottovoce.serving.pcm import PcmReader
from sottovoce.serving.scheduler import LiveOptions
from sottovoce.speakers.base import Floats
from sottovoce.streaming.session import Switching
from sottovoce.text.languages import find_language
from sottovoce.types import SAMPLE_RATE, Task

T = TypeVar("T")

MOST_TERMS = 500
MOST_PROMPT = 4_000
"""Characters."""
MOST_NAME = 50
"""Characters of a speaker's name."""


@dataclass(frozen=True, slots=True)
class LiveWish:
    """What a client asks of its session: how to listen, what its audio looks like, and into which language
    what is said is translated ("": none)."""

    options: LiveOptions = field(default_factory=LiveOptions)
    model: str | None = None
    encoding: str = "s16le"
    sample_rate: int = SAMPLE_RATE
    translate_to: str = ""


@dataclass(frozen=True, slots=True)
class Configure:
    """Go on like this; only what is named changes."""

    changes: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Finalize:
    """Say now what was heard."""


@dataclass(frozen=True, slots=True)
class Voices:
    """Know these speakers, if any; say which ones are known. known: vectors by name, in base64."""

    known: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """The client is there, and has nothing to say."""


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing more comes."""


ClientMessage: TypeAlias = Configure | Finalize | Voices | KeepAlive | Close


def read_message(text: str) -> ClientMessage:
    """A text message of a client.

    Raises: ApiError 400 for anything else.
    """
    message = read_json(text)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ApiError(
            "message: expected a JSON object with a type, or audio as binary", code="invalid_message"
        )
    kind = message.pop("type")
    plain: dict[str, ClientMessage] = {"finalize": Finalize(), "keepalive": KeepAlive(), "close": Close()}
    if kind == "configure":
        return Configure(message)
    if kind == "voices":
        return Voices(voices_of(message.pop("voices", {})))
    if kind not in plain:
        raise wrong("type", "configure, finalize, voices, keepalive or close", f"'{kind[:50]}'")
    if message:
        raise ApiError(
            f"{kind}: expected no more fields, got '{next(iter(message))[:50]}'", code="invalid_message"
        )
    return plain[kind]


def voices_of(value: object) -> Mapping[str, str]:
    """Texts by name; what is in them is looked at where it is read."""
    if not isinstance(value, dict) or not all(isinstance(voice, str) for voice in value.values()):
        raise wrong("voices", "an object of voices in base64 by name", shown(value))
    for name in value:
        if not (0 < len(name) <= MOST_NAME and name.isprintable()):
            raise wrong("voices", f"names of 1 to {MOST_NAME} printable characters", shown(name))
    return value


def read_voices(voices: Mapping[str, str]) -> dict[str, Floats]:
    """Vectors (size,) float32 by name.

    Raises: ApiError 400 for what is not base64 of whole numbers of four bytes.
    """
    try:
        return {
            name: np.frombuffer(base64.b64decode(voice, validate=True), "<f4").astype(np.float32)
            for name, voice in voices.items()
        }
    except ValueError as error:
        raise wrong("voices", "32-bit floats in base64", "something else") from error


def written_voices(voices: Mapping[str, Floats]) -> dict[str, str]:
    """The same as a message holds them."""
    return {
        name: base64.b64encode(vector.astype("<f4").tobytes()).decode() for name, vector in voices.items()
    }


def configured(wish: LiveWish, changes: Mapping[str, object]) -> LiveWish:
    """The wish with what a client changed, from a message or the address of the socket.

    Raises: ApiError 400 naming the field.
    """
    unknown = [name for name in changes if name not in FIELDS]
    if unknown:
        raise wrong(unknown[0][:50], f"one of {', '.join(FIELDS)}", "an unknown field")
    values = {name: FIELDS[name](name, value) for name, value in changes.items()}
    before = wish.options
    options = LiveOptions(
        languages=cast("tuple[str, ...]", values.get("languages", before.languages)),
        switching=cast(Switching, values.get("switching", before.switching)),
        task=cast(Task, values.get("task", before.task)),
        unstable=cast(bool, values.get("unstable", before.unstable)),
        prompt=cast(str, values.get("prompt", before.prompt)),
        terms=cast("tuple[str, ...]", values.get("terms", before.terms)),
        vad=cast(bool, values.get("vad", before.vad)),
        speakers=cast(str, values.get("speakers", before.speakers)),
    )
    return checked(
        LiveWish(
            options,
            model=cast("str | None", values.get("model", wish.model)),
            encoding=cast(str, values.get("encoding", wish.encoding)),
            sample_rate=cast(int, values.get("sample_rate", wish.sample_rate)),
            translate_to=cast(str, values.get("translate_to", wish.translate_to)),
        )
    )


def checked(wish: LiveWish) -> LiveWish:
    """Raises: ApiError 400 for audio that nobody can read, and for a translation of a translation."""
    if wish.translate_to and wish.options.task == "translate":
        raise wrong("translate_to", "the task transcribe", "translate")
    try:
        PcmReader(wish.encoding, wish.sample_rate)
    except OptionError as error:
        name = str(error).partition(":")[0]
        raise ApiError(str(error), param=name, code="invalid_value") from error
    return wish


def text_of(name: str, value: object) -> str:
    """A text of a length that is of use."""
    if not isinstance(value, str) or len(value) > MOST_PROMPT:
        raise wrong(name, f"a text of at most {MOST_PROMPT} characters", shown(value))
    return value


def list_of(name: str, value: object) -> tuple[str, ...]:
    """Texts, from a list or separated by commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise wrong(name, "a list of texts", shown(value))
    if len(items) > MOST_TERMS or sum(map(len, items)) > MOST_PROMPT:
        raise wrong(name, f"at most {MOST_TERMS} texts of {MOST_PROMPT} characters in all", f"{len(items)}")
    return tuple(item.strip() for item in items if item.strip())


def languages_of(name: str, value: object) -> tuple[str, ...]:
    """Codes of languages; "auto" stands for all of the model."""
    try:
        return tuple(find_language(word) for word in list_of(name, value) if word != "auto")
    except OptionError as error:
        raise ApiError(str(error), param=name, code="invalid_value") from error


def language_of(name: str, value: object) -> str:
    """The code of one language; "" for none."""
    try:
        return find_language(text) if (text := text_of(name, value).strip()) else ""
    except OptionError as error:
        raise ApiError(str(error), param=name, code="invalid_value") from error


def flag_of(name: str, value: object) -> bool:
    """True or false, in JSON or as text."""
    known = {"true": True, "false": False, "1": True, "0": False}
    found = known.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise wrong(name, "true or false", shown(value))
    return found


def speakers_of(name: str, value: object) -> str:
    """ "auto", how many there are at most, or "" for false: as the library takes it."""
    text = str(value).lower()
    if text in ("false", "0", ""):
        return ""
    if text not in ("auto", "true") and not (text.isascii() and text.isdecimal() and len(text) < 3):
        raise wrong(name, "auto, a number of speakers below 100, or false", shown(value))
    return "auto" if text == "true" else text


def whole_of(name: str, value: object) -> int:
    """A whole number, in JSON or as text."""
    found = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 9 else value
    if not isinstance(found, int) or isinstance(found, bool):
        raise wrong(name, "a whole number", shown(value))
    return found


def one_of(*among: str) -> Callable[[str, object], str]:
    """A reader of one of a few words."""

    def read(name: str, value: object) -> str:
        if value not in among:
            raise wrong(name, f"one of {', '.join(among)}", shown(value))
        return str(value)

    return read


def shown(value: object) -> str:
    """A value as an error names it."""
    return f"'{str(value)[:50]}'"


FIELDS: Mapping[str, Callable[[str, object], object]] = {
    "model": text_of,
    "languages": languages_of,
    "switching": one_of("off", "restart", "parallel"),
    "task": one_of("transcribe", "translate"),
    "unstable": flag_of,
    "prompt": text_of,
    "terms": list_of,
    "vad": flag_of,
    "speakers": speakers_of,
    "translate_to": language_of,
    "encoding": text_of,
    "sample_rate": whole_of,
}
"""What can be configured, with how it is read."""
