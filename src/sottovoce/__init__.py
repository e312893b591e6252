"""Speech recognition that follows the speaker across languages.

Public names are loaded at their first use, so that `import sottovoce` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.api import Model as Model
    from sottovoce.api import load_model as load_model
    from sottovoce.audio.io import Source as Source
    from sottovoce.ctc.decoder import CtcDecoder as CtcDecoder
    from sottovoce.errors import SottovoceError as SottovoceError
    from sottovoce.options.decoding import DecodingOptions as DecodingOptions
    from sottovoce.options.decoding import FallbackOptions as FallbackOptions
    from sottovoce.options.transcribe import TranscribeOptions as TranscribeOptions
    from sottovoce.streaming.session import Session as Session
    from sottovoce.types import Event as Event
    from sottovoce.types import Hypothesis as Hypothesis
    from sottovoce.types import Segment as Segment
    from sottovoce.types import Transcript as Transcript
    from sottovoce.types import Word as Word

_HOMES = {
    "CtcDecoder": "sottovoce.ctc.decoder",
    "DecodingOptions": "sottovoce.options.decoding",
    "Event": "sottovoce.types",
    "FallbackOptions": "sottovoce.options.decoding",
    "Hypothesis": "sottovoce.types",
    "Model": "sottovoce.api",
    "Segment": "sottovoce.types",
    "Session": "sottovoce.streaming.session",
    "SottovoceError": "sottovoce.errors",
    "Source": "sottovoce.audio.io",
    "TranscribeOptions": "sottovoce.options.transcribe",
    "Transcript": "sottovoce.types",
    "Word": "sottovoce.types",
    "load_model": "sottovoce.api",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sottovoce' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
