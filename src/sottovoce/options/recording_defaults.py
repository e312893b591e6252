"""Defaults of recordings that take more than a number to say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"
LANGUAGE_WINDOWS = 4
LANGUAGE_PRIOR: Mapping[str, float] = MappingProxyType(
    dict.fromkeys(("br", "cy", "fo", "haw", "la", "mi", "nn", "oc", "sa"), math.log(0.2))
)
"""Natural log-probabilities of languages before anything was heard: Whisper hears languages that few people
record (Latin, Nynorsk, Welsh) in the speech of their neighbours. Training hours as a prior were tried, and
cost more than they gave (docs/log.md)."""
VERBATIM_LOOPS = 5
"""A text with hesitations in its prompt is likelier to end in a loop, which the compression ratio does not
see where it is short: a text that ends with the same words more often than this is tried again."""
