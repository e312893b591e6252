"""CTC decoding. Names are loaded at their first use, so that options need no PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.ctc.decoder import CtcDecoder
    from sottovoce.ctc.options import CtcFusionOptions, CtcOptions
    from sottovoce.lm.ngram import load_ngram

__all__ = ["CtcDecoder", "CtcFusionOptions", "CtcOptions", "load_ngram"]

_HOMES = {
    "CtcDecoder": "ctc.decoder",
    "CtcFusionOptions": "ctc.options",
    "CtcOptions": "ctc.options",
    "load_ngram": "lm.ngram",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'sottovoce.ctc' has no attribute '{name}'")
    home = importlib.import_module(f"sottovoce.{_HOMES[name]}")
    return getattr(home, name)
