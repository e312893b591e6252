"""The errors a caller can meet.

    SottovoceError
    ├── InputError(ValueError)            what was given cannot be used
    │   ├── AudioError                    a recording that cannot be read
    │   ├── CheckpointError               a model file that cannot be read
    │   ├── ManifestError                 an evaluation or training list that cannot be read
    │   ├── LanguageModelError            an n-gram, lexicon or phrase list that cannot be read
    │   └── OptionError                   options that contradict each other or the model
    ├── ModelNotFoundError(LookupError)   no model of that name, here or where it could be fetched
    ├── OutputError(OSError)              standard output that cannot be written
    ├── TranslationError(ConnectionError) a server that does not translate
    ├── MissingExtraError(ImportError)    an optional dependency is not installed
    └── SessionClosedError(RuntimeError)  audio was pushed after close()

Every message is one line: what was given, what was expected, what came.
"""

from __future__ import annotations


class SottovoceError(Exception):
    """Base of all errors raised on purpose."""


class InputError(SottovoceError, ValueError):
    """Invalid input."""


class AudioError(InputError):
    """A recording that cannot be read or decoded."""


class CheckpointError(InputError):
    """A model file that is damaged, incomplete or of an unknown kind."""


class ManifestError(InputError):
    """A list of recordings (JSON lines) that cannot be used."""


class LanguageModelError(InputError):
    """An n-gram file, lexicon or phrase list that cannot be used."""


class OptionError(InputError):
    """Options that contradict each other, or that the model does not support."""


class ModelNotFoundError(SottovoceError, LookupError):
    """No model of that name is bundled, on disk or reachable."""


class OutputError(SottovoceError, OSError):
    """Standard output is closed or full."""


class TranslationError(SottovoceError, ConnectionError):
    """A translation server that is unreachable, or sends an invalid answer."""


class MissingExtraError(SottovoceError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'sottovoce[{extra}]'")


class SessionClosedError(SottovoceError, RuntimeError):
    """Audio was pushed into a closed session or stream."""


def cause_of(error: BaseException) -> str:
    """Return the cause of an error for the end of a message: the system's text without number and path, or
    the first line.
    """
    reason = getattr(error, "strerror", None) or str(error)
    return str(reason).strip().split("\n")[0] or type(error).__name__
