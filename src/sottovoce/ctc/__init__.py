"""CTC decoding: labels, prefix search, and language models from files.

Public names are loaded at their first use, so that options and labels need no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.ctc.decoder import CtcDecoder
    from sottovoce.ctc.models import CtcFusionOptions, WordOrTokenModel, load_ngram

__all__ = ["CtcDecoder", "CtcFusionOptions", "WordOrTokenModel", "load_ngram"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'sottovoce.ctc' has no attribute '{name}'")
    home = importlib.import_module(f"sottovoce.ctc.{'decoder' if name == 'CtcDecoder' else 'models'}")
    value: object = getattr(home, name)
    return value
