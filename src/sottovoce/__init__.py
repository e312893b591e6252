"""Speech recognition that follows the speaker across languages.

Public names are loaded at their first use, so that `import sottovoce` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.alignment import Match as Match
    from sottovoce.api import Model as Model
    from sottovoce.api import load_model as load_model
    from sottovoce.audio.io import AudioSource as AudioSource
    from sottovoce.audio.io import Source as Source
    from sottovoce.audio.io import load_audio as load_audio
    from sottovoce.ctc.decoder import CtcDecoder as CtcDecoder
    from sottovoce.ctc.network import AcousticModel as AcousticModel
    from sottovoce.decoding.decode import LanguageDetection as LanguageDetection
    from sottovoce.errors import SottovoceError as SottovoceError
    from sottovoce.network_model import CtcModel as CtcModel
    from sottovoce.network_model import ctc_model as ctc_model
    from sottovoce.offline.pipeline import LanguageSpan as LanguageSpan
    from sottovoce.offline.transcription import FileTranscription as FileTranscription
    from sottovoce.options.decoding import DecodingOptions as DecodingOptions
    from sottovoce.options.decoding import FallbackOptions as FallbackOptions
    from sottovoce.options.decoding import VadOptions as VadOptions
    from sottovoce.options.transcribe import SpeakerOptions as SpeakerOptions
    from sottovoce.options.transcribe import TranscribeOptions as TranscribeOptions
    from sottovoce.options.transcribe import WriterOptions as WriterOptions
    from sottovoce.recogniser import Recogniser as Recogniser
    from sottovoce.streaming.options import LiveOptions as LiveOptions
    from sottovoce.streaming.options import StreamOptions as StreamOptions
    from sottovoce.streaming.session import Session as Session
    from sottovoce.types import Event as Event
    from sottovoce.types import Final as Final
    from sottovoce.types import Hypothesis as Hypothesis
    from sottovoce.types import LanguageChanged as LanguageChanged
    from sottovoce.types import Partial as Partial
    from sottovoce.types import Segment as Segment
    from sottovoce.types import Transcript as Transcript
    from sottovoce.types import Turn as Turn
    from sottovoce.types import Unstable as Unstable
    from sottovoce.types import Word as Word

_NAMES = {
    "alignment": "Match",
    "api": "Model load_model",
    "audio.io": "AudioSource Source load_audio",
    "ctc.decoder": "CtcDecoder",
    "ctc.network": "AcousticModel",
    "decoding.decode": "LanguageDetection",
    "errors": "SottovoceError",
    "network_model": "CtcModel ctc_model",
    "offline.pipeline": "LanguageSpan",
    "offline.transcription": "FileTranscription",
    "options.decoding": "DecodingOptions FallbackOptions VadOptions",
    "options.transcribe": "SpeakerOptions TranscribeOptions WriterOptions",
    "recogniser": "Recogniser",
    "streaming.options": "LiveOptions StreamOptions",
    "streaming.session": "Session",
    "types": "Event Final Hypothesis LanguageChanged Partial Segment Transcript Turn Unstable Word",
}
"""Public names by their module."""
_HOMES = {name: f"sottovoce.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sottovoce' has no attribute '{name}'")
    globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
