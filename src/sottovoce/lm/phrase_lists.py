"""Files of phrases to boost: a phrase a line, with optional weights and classes.

    Saoirse Ronan
    sottovoce<TAB>3.5
    [drugs] 1.5
    amoxicillin

A heading in brackets begins a class, with the weight of its lines; without a number the weight is the
default. A weight after a tab is that of one phrase. Invalid lines are skipped with a warning.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sottovoce.errors import LanguageModelError
from sottovoce.text.files import read_lines
from sottovoce.text.normalize import composed

HOTWORD_WEIGHT = 2.0
"""Default score of each token of a hotword (nats); at 3 base begins to repeat itself (docs/lm-fusion.md)."""


logger = logging.getLogger(__name__)

_HEADING = re.compile(r"\[(?P<name>[^\[\]]+)\][ \t]*(?P<weight>\S*)")

Hotwords = str | Path | Sequence[str] | Mapping[str, float]


class ListedPhrase(NamedTuple):
    """A phrase in NFC, its weight per token, and its position, for warnings."""

    text: str
    weight: float
    place: str


def read_phrases(path: str | Path, *, default_weight: float) -> list[ListedPhrase]:
    """Raises:
    LanguageModelError: the file is unreadable or has no usable phrase.
    """
    lines = read_lines(path, "a list of phrases", LanguageModelError)
    parsed = list(_parsed(Path(path), lines, default_weight))
    found = [listed for listed in parsed if isinstance(listed, ListedPhrase)]
    faults = [fault for fault in parsed if isinstance(fault, str)]
    if not found:
        raise LanguageModelError(faults[0] if faults else f"{path}: expected at least one phrase, got none")
    for fault in faults:
        logger.warning("%s: left out", fault)
    return found


def listed_phrases(hotwords: Hotwords | None, *, default_weight: float) -> list[ListedPhrase]:
    """Return phrases of a file, a sequence, or a mapping to weights.

    Raises:
        LanguageModelError: as `read_phrases`.
    """
    if hotwords is None:
        return []
    if isinstance(hotwords, str | Path):
        return read_phrases(hotwords, default_weight=default_weight)
    given = hotwords if isinstance(hotwords, Mapping) else dict.fromkeys(hotwords, default_weight)
    return [ListedPhrase(_normal(text), weight, "hotwords") for text, weight in given.items()]


def without_faults(phrases: Iterable[tuple[ListedPhrase, LanguageModelError | None]]) -> list[ListedPhrase]:
    """Return the usable phrases; the others become warnings.

    Raises:
        LanguageModelError: the first one, if none is left.
    """
    usable: list[ListedPhrase] = []
    faults: list[tuple[ListedPhrase, LanguageModelError]] = []
    for phrase, fault in phrases:
        if fault is None:
            usable.append(phrase)
        else:
            faults.append((phrase, fault))
    if faults and not usable:
        raise faults[0][1]
    for phrase, fault in faults:
        where = "" if phrase.place == "hotwords" else f"{phrase.place}: "
        logger.warning("%s%s: left out", where, fault)
    return usable


def _parsed(path: Path, lines: Sequence[str], default_weight: float) -> Iterator[ListedPhrase | str]:
    """Yield the phrases of lines, or a message."""
    of_class = default_weight
    for number, line in enumerate(lines, start=1):
        place = f"{path}, line {number}"
        heading = _HEADING.fullmatch(line.strip())
        text, _, own = line.partition("\t")
        written = heading["weight"] if heading else own.strip()
        weight = _weight(written, default_weight if heading else of_class)
        if weight is None:
            yield f"{place}: expected a weight, got {written!r}"
        if heading:
            of_class = default_weight if weight is None else weight
        elif text.strip() and weight is not None:
            yield ListedPhrase(_normal(text), weight, place)


def _normal(text: str) -> str:
    return " ".join(composed(text).split())


def _weight(written: str, default: float) -> float | None:
    if not written:
        return default
    try:
        weight = float(written)
    except ValueError:
        return None
    return weight if math.isfinite(weight) else None
