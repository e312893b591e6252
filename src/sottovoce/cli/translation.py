"""The options of translation, and what they ask for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sottovoce.errors import OptionError
from sottovoce.options.schema import Option

if TYPE_CHECKING:
    from sottovoce.api import Model
    from sottovoce.options.transcribe import TranscribeOptions
    from sottovoce.translation.chat import ChatServer, ChatTranslator, Glossary
    from sottovoce.types import Segment

KEY = "SOTTOVOCE_TRANSLATION_KEY"
SERVER = (
    Option(
        f"A server with OpenAI's chat API, as http://127.0.0.1:8080/v1; its key, if it wants one, in {KEY}.",
        key="translation_url",
        metavar="URL",
    ),
    Option("The model to ask there for.", key="translation_model", metavar="NAME"),
    Option("Terms for the server, one a line: term = translation.", key="glossary", metavar="FILE"),
)
TRANSLATION = (
    Option(
        "Write a translation beside what was said, sentence by sentence; into English by Whisper, into "
        "others by --translation-url.",
        key="translate_to",
        metavar="CODE",
    ),
    *SERVER,
)


@dataclass(frozen=True, slots=True)
class Translation:
    """Into which language, and by whom: a server, or the model itself (None)."""

    target: str
    translator: ChatTranslator | None

    def of(
        self, segments: Iterable[Segment], model: Model, source: Any, options: TranscribeOptions
    ) -> Iterator[Segment]:
        """Yield the sentences with their translations; the model's own come when all has been read.

        Raises: TranslationError, AudioError, OptionError.
        """
        if self.translator is not None:
            return self.translator.segments(segments)
        from sottovoce.translation.whisper_translate import with_english

        return iter(with_english(model, source, list(segments), options))


def translation_of(given: Mapping[str, Any], files: Iterable[str]) -> Translation | None:
    """Read what the options ask for; None without a language.

    Raises: OptionError for options that nothing would use, that exclude each other, or that cannot be done.
    """
    translation = live_translation_of(given)
    if translation is not None and translation.translator is None and "-" in files:
        raise OptionError(
            "--translate-to en: reads a recording twice, which standard input is not; give a file"
        )
    return translation


def live_translation_of(given: Mapping[str, Any]) -> Translation | None:
    """Read what the options ask for where speech is live; None without a language.

    Raises: OptionError as `translation_of`.
    """
    target = given["translate_to"]
    if target is None:
        check_unused(given)
        return None
    from sottovoce.text.languages import find_language

    code = find_language(target)
    if given["task"] == "translate":
        raise OptionError("--translate-to: cannot be combined with --task translate")
    if given["translation_url"] is not None:
        return Translation(code, server(given, code))
    if code != "en":
        raise OptionError(
            f"--translate-to {target}: needs --translation-url; Whisper itself translates into English alone"
        )
    check_unused(given)
    return Translation(code, None)


def check_unused(given: Mapping[str, Any]) -> None:
    """Raises: OptionError for an option of a translation that nothing would use."""
    for name in ("translation_url", "translation_model", "glossary"):
        if given[name] is not None:
            needed = "--translate-to" if given["translate_to"] is None else "--translation-url"
            raise OptionError(f"--{name.replace('_', '-')}: needs {needed}")


def server(given: Mapping[str, Any], code: str) -> ChatTranslator:
    from sottovoce.translation.chat import ChatTranslator

    chat, glossary = chat_server(given)
    return ChatTranslator(chat, code, glossary)


def chat_server(given: Mapping[str, Any]) -> tuple[ChatServer, Glossary]:
    """Make the server of --translation-url, and read terms for it.

    Raises: OptionError.
    """
    from sottovoce.translation.chat import ChatServer, Glossary

    if given["translation_model"] is None:
        raise OptionError("--translation-url: needs --translation-model, the name of the model there")
    chat = ChatServer(given["translation_url"], given["translation_model"], os.environ.get(KEY) or None)
    return chat, Glossary() if given["glossary"] is None else Glossary.read(given["glossary"])
