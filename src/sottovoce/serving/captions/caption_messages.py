"""What publishers of captions write, read without trust: only what readers can use is handed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from sottovoce.formats.document import Json, seconds
from sottovoce.serving.captions.shared_captions import CaptionChange
from sottovoce.serving.parsing.client_values import (
    read_object,
    read_typed_message,
    read_whole,
    require_only,
    shown,
)
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import number_of, wrong

MAX_MESSAGE_CHARACTERS = 2_000_000
"""Of one message: a whole session that is published anew may take several."""
MAX_UTTERANCES = 2_000
"""In one message."""
MAX_WORDS = 2_000
"""Of one utterance."""
MAX_TEXT = 8_000
"""Characters of a word, a translation, a text that may change."""
MAX_NAMES = 100
MAX_NAME = 80
MAX_SECONDS = 1e6
MAX_NUMBER = 1_000_000
CAPTIONS = ("utterances", "now", "names", "clear")
UTTERANCE = ("id", "start", "end", "language", "words", "translation", "unstable")
WORD = ("word", "start", "end", "language", "speaker")


def read_publication(message: bytes | str) -> tuple[str, CaptionChange | None]:
    """Read a message; returns its type, and the change of `captions`.

    Raises: ApiError 400.
    """
    if isinstance(message, bytes) or len(message) > MAX_MESSAGE_CHARACTERS:
        raise ApiError(
            f"message: expected text of at most {MAX_MESSAGE_CHARACTERS} characters", code="invalid_message"
        )
    given = read_typed_message(message, "a JSON object with a type")
    kind = str(given.pop("type"))
    if kind == "captions":
        require_only(kind, given, CAPTIONS)
        return kind, read_change(given)
    if kind not in ("keepalive", "close"):
        raise wrong("type", "captions, keepalive or close", shown(kind))
    require_only(kind, given, ())
    return kind, None


def read_change(given: Mapping[str, object]) -> CaptionChange:
    """Read what is changed at once. Raises: ApiError 400."""
    utterances = [
        read_utterance(one) for one in read_items("utterances", given.get("utterances"), MAX_UTTERANCES)
    ]
    now = given.get("now")
    return CaptionChange(
        utterances={cast("int", utterance["id"]): utterance for utterance in utterances},
        now=None if now is None else read_utterance(now),
        names=read_names(given.get("names", {})),
        has_now="now" in given,
        has_names="names" in given,
        is_clear=given.get("clear") is True,
    )


def read_utterance(value: object) -> dict[str, Json]:
    """Read one utterance. Raises: ApiError 400."""
    given = read_object("utterance", value)
    require_only("utterance", given, UTTERANCE)
    number = read_whole("id", given.get("id"))
    if not 0 <= number < MAX_NUMBER:
        raise wrong("id", f"a number from 0 to {MAX_NUMBER - 1}", shown(number))
    return {
        "id": number,
        **read_times(given),
        "language": read_label("language", given.get("language")),
        "words": [read_word(word) for word in read_items("words", given.get("words"), MAX_WORDS)],
        "translation": read_line("translation", given.get("translation")),
        "unstable": read_line("unstable", given.get("unstable")),
    }


def read_word(value: object) -> dict[str, Json]:
    """Read one word of an utterance. Raises: ApiError 400."""
    given = read_object("word", value)
    require_only("word", given, WORD)
    return {
        "word": read_words_text("word", given.get("word")),
        **read_times(given),
        "language": read_label("language", given.get("language")),
        "speaker": read_label("speaker", given.get("speaker")),
    }


def read_line(name: str, value: object) -> dict[str, Json] | None:
    """Read a text in one language, or null. Raises: ApiError 400."""
    if value is None:
        return None
    given = read_object(name, value)
    require_only(name, given, ("text", "language"))
    text = read_words_text(name, given.get("text"))
    return {"text": text, "language": read_label("language", given.get("language"))}


def read_names(value: object) -> dict[str, Json]:
    """Read what speakers are called, by their letters. Raises: ApiError 400."""
    given = read_object("names", value)
    if len(given) > MAX_NAMES:
        raise wrong("names", f"at most {MAX_NAMES}", str(len(given)))
    return {str(read_label("names", letter)): read_label("names", name) for letter, name in given.items()}


def read_times(given: Mapping[str, object]) -> dict[str, Json]:
    """Read where something begins and ends, in seconds. Raises: ApiError 400."""
    return {name: seconds(number_of(name, given.get(name), 0.0, MAX_SECONDS)) for name in ("start", "end")}


def read_label(name: str, value: object) -> str | None:
    """Read a code, a letter, a name, or null. Raises: ApiError 400."""
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_NAME):
        raise wrong(name, f"a text of at most {MAX_NAME} characters, or null", shown(value))
    return value


def read_words_text(name: str, value: object) -> str:
    """Read a text that is shown. Raises: ApiError 400."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise wrong(name, f"a text of at most {MAX_TEXT} characters", shown(value))
    return value


def read_items(name: str, value: object, most: int) -> list[object]:
    """Read a list, of which none is an empty one. Raises: ApiError 400."""
    items = [] if value is None else value
    if not isinstance(items, list) or len(items) > most:
        raise wrong(name, f"a list of at most {most}", shown(value))
    return items
