"""The size and the languages of a model by its name, before it is loaded."""

from __future__ import annotations

import math
import re

from sottovoce.models.checkpoint.base import expected_shapes
from sottovoce.models.checkpoint.compact import compact_languages
from sottovoce.models.dims import ModelDims
from sottovoce.models.sources.names import NANO
from sottovoce.text.languages import language_codes

FLOAT32_BYTES = 4
N_PARAMETERS_BY_NAME = (
    (r"nano", 20.4e6),
    (r"distil-small", 166e6),
    (r"distil-medium", 394e6),
    (r"distil-large", 756e6),
    (r"tiny", 39e6),
    (r"base", 74e6),
    (r"small", 244e6),
    (r"medium", 769e6),
    (r"turbo", 809e6),
    (r"large", 1550e6),
)
"""By parts of names. Source: the model cards of Whisper and distil-whisper."""


def expected_bytes(name: str) -> int:
    """Return the bytes of float32 weights; 0: unknown."""
    found = (n for pattern, n in N_PARAMETERS_BY_NAME if re.search(pattern, name))
    return round(next(found, 0.0) * FLOAT32_BYTES)


def n_parameters(dims: ModelDims) -> int:
    return sum(math.prod(shape) for shape in expected_shapes(dims).values())


def expected_languages(name: str) -> tuple[str, ...]:
    if name == NANO:
        return compact_languages() or language_codes()
    if re.search(r"\.en\b", name):
        return ("en",)
    return language_codes(100 if re.search(r"large-v3|turbo", name) else 99)
