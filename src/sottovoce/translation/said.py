"""What is handed to whoever translates live speech, and what that must be able to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of an utterance so far: its text, language, and where it lies (seconds of the stream).

    is_whole: the utterance has ended with it.
    """

    start: float
    end: float
    text: str
    language: str
    is_whole: bool


class Interpreter(Protocol):
    """Translates what is said live; `Translator` asks a server, `OwnTranslator` Whisper itself."""

    @property
    def target(self) -> str:
        """Code of the language that it translates into."""
        ...

    def spoken(self, said: Said) -> str:
        """The translation.

        Raises: TranslationError.
        """
        ...
