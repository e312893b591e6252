"""The errors a caller can meet. Every message is one line: what was given, what was expected, what came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SottovoceError(Exception):
    """Base of all errors of this library."""


class InputError(SottovoceError, ValueError):
    """Input that cannot be used."""


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
    """An optional dependency is missing; the message says how to install it. purpose: what needs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self.purpose = purpose
        super().__init__(f"{purpose} needs the package '{package}': pip install {_with_extra(extra)}")


@contextmanager
def needs(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Import what an extra installs. Raises: MissingExtraError."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package, extra, purpose) from error


def _with_extra(extra: str) -> str:
    """Return an argument of `pip install`, from where this package was installed: a checkout or the index."""
    import json
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(metadata.distribution("sottovoce").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    url = origin.get("url", "")
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"{editable}'{url2pathname(urlsplit(url).path)}[{extra}]'"
    if "vcs_info" in origin:
        return f"'sottovoce[{extra}] @ {origin['vcs_info']['vcs']}+{url}'"
    return f"'sottovoce[{extra}]'"


class SessionClosedError(SottovoceError, RuntimeError):
    """Audio was pushed after close()."""


def cause_of(error: BaseException) -> str:
    """Return the cause of an error, without number and path."""
    reason = getattr(error, "strerror", None) or str(error)
    return str(reason).strip().split("\n")[0] or type(error).__name__


def got(error: BaseException) -> str:
    """Return what a file is instead of what was expected, by the error of reading it."""
    if isinstance(error, IsADirectoryError):
        return "a folder"
    return "no permission to read it" if isinstance(error, PermissionError) else cause_of(error)


@contextmanager
def expecting(
    name: object,
    expected: str,
    error: type[InputError] = OptionError,
    causes: tuple[type[Exception], ...] = (ValueError,),
) -> Iterator[None]:
    """Raise what the block raises of the causes, but for errors of this library, as `error`."""
    try:
        yield
    except SottovoceError:
        raise
    except causes as cause:
        raise error(f"{name}: expected {expected}, got {got(cause)}") from cause


MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, PyTorch or the device had too little memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in MEMORY_WORDS)
