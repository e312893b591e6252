"""Text made comparable before it is scored: letter case, punctuation and spelling levelled out.

Normalised text is something no one would write; it is for scores only. Which
one was used belongs beside every figure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Literal, TypeAlias

from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.text.languages import find_language

Normalizer: TypeAlias = Callable[[str], str]
Normalization: TypeAlias = Literal["whisper", "plain", "none"]

MARKED: frozenset[str] = frozenset(
    {"ar", "fa", "ur", "ps", "sd", "he", "yi", "hi", "mr", "ne", "sa", "bn", "as", "pa", "gu", "ta", "te"}
    | {"kn", "ml", "si", "th", "lo", "my", "km", "bo", "yo"}
)
"""Languages whose vowels or tones are combining marks that no composed letter holds.

Whisper's basic normaliser replaces every mark by a space, which cuts their words apart and makes
errors vanish or appear; they are normalised by `plain` instead.
"""


def normalizer_for(language: str | None, kind: Normalization = "whisper") -> Normalizer:
    """Choose the normaliser for texts of one language.

    language: code or English name; None for texts of several or unknown languages.
    kind: "whisper" is OpenAI's (English: contractions, numbers and British spelling too; others: case
    and punctuation), except that languages in MARKED and None use "plain"; "none" only joins spaces.
    Raises MissingExtraError for "whisper" without the extra `eval`, OptionError for unknown names.
    Source: appendix C of arXiv 2212.04356, through the package whisper-normalizer.
    """
    if kind not in ("whisper", "plain", "none"):
        raise OptionError(f"normalization: expected 'whisper', 'plain' or 'none', got '{kind}'")
    code = None if language is None else find_language(language)
    if kind == "none":
        return join_spaces
    if kind == "plain" or code is None or code in MARKED:
        return plain
    return _whisper_english() if code == "en" else _whisper_basic()


def join_spaces(text: str) -> str:
    """Make all white space single spaces; change nothing else."""
    return " ".join(text.split())


def plain(text: str) -> str:
    """Fold case, compose compatibility forms (NFKC), remove punctuation and symbols, keep marks.

    An apostrophe between letters goes without a gap, whichever is written ("don’t" is "dont"); all
    other punctuation separates words. The same in every language.
    """
    composed = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).casefold()
    folded = unicodedata.normalize("NFKC", composed)  # folding takes some letters apart again
    return join_spaces("".join([_levelled(folded, i) for i in range(len(folded))]))


_APOSTROPHES = str.maketrans(dict.fromkeys("’ʼ‘´`＇", "'"))


def _levelled(text: str, i: int) -> str:
    if unicodedata.category(text[i])[0] in "LNM":
        return text[i]
    inside = 0 < i < len(text) - 1 and text[i - 1].isalnum() and text[i + 1].isalnum()
    return "" if text[i] == "'" and inside else " "


@cache
def _whisper_english() -> Normalizer:
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise MissingExtraError("whisper-normalizer", "eval", "scoring with Whisper's normaliser") from error
    normalizer: Normalizer = EnglishTextNormalizer()
    return lambda text: join_spaces(normalizer(text))


@cache
def _whisper_basic() -> Normalizer:
    try:
        from whisper_normalizer.basic import BasicTextNormalizer
    except ImportError as error:
        raise MissingExtraError("whisper-normalizer", "eval", "scoring with Whisper's normaliser") from error
    normalizer: Normalizer = BasicTextNormalizer()
    return lambda text: join_spaces(normalizer(text))
