"""Short names of checkpoint formats; imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from sottovoce.errors import OptionError

KINDS = MappingProxyType(
    {"pt": "OpenAI .pt", "hf": "Hugging Face folder", "ggml": "ggml", "ct2": "CTranslate2 folder"}
)
"""Formats that can be written, and their names in messages."""


ENDINGS = MappingProxyType({".pt": "pt", ".bin": "ggml", ".ggml": "ggml"})


def kind_by_name(output: Path) -> str:
    """Choose a format by a file's ending; Hugging Face without one.

    Raises:
        OptionError: another ending.
    """
    ending = ending_of(output)
    if ending and ending not in ENDINGS:
        raise OptionError(
            f"output '{output}': expected a name that ends in .pt (OpenAI) or .bin (ggml), or a folder's "
            f"(Hugging Face, or CTranslate2 with --to ct2), got '{output.suffix}'"
        )
    return ENDINGS.get(ending, "hf")


def require_ggml_name(output: Path) -> None:
    """Raise OptionError if a file's ending is that of another format than ggml."""
    ending = ending_of(output)
    if ending and ENDINGS.get(ending) != "ggml":
        raise OptionError(
            f"output '{output}': expected a name that ends in .bin (ggml), got '{output.suffix}'"
        )


def ending_of(output: Path) -> str:
    """Return the ending of a format in lower case; "" for model names that contain a dot.

    Those end in a number (`large-v3.5`, `base.q5_0`) or a language (`small.en`).
    """
    ending = output.suffix.lower()
    return ending if ending[1:].isalpha() and ending != ".en" else ""
