"""People whose voices a client knows: names, and some seconds of each as a `data:` address."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from sottovoce.audio.io import load_audio
from sottovoce.errors import AudioError
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.types import SAMPLE_RATE, Samples

MOST = 4
SHORTEST_S, LONGEST_S = 1.0, 30.0
NAMES, REFERENCES = "known_speaker_names[]", "known_speaker_references[]"


def known_speakers(names: Sequence[str], references: Sequence[str]) -> dict[str, Samples]:
    """Speech (n,) at 16 kHz by name.

    Raises: ApiError 400.
    """
    if len(names) != len(references):
        message = f"{NAMES}: expected a reference for each name, got {len(names)} and {len(references)}"
        raise ApiError(message, param=NAMES, code="invalid_value")
    if len(names) > MOST or len(set(names)) < len(names) or not all(name.strip() for name in names):
        message = f"{NAMES}: expected at most {MOST} different names"
        raise ApiError(message, param=NAMES, code="invalid_value")
    return {name: speech_of(reference) for name, reference in zip(names, references, strict=True)}


def speech_of(reference: str) -> Samples:
    """Return the speech in a `data:` address.

    Raises: ApiError 400.
    """
    head, _, content = reference.partition(",")
    try:
        if not head.startswith("data:") or not head.endswith(";base64"):
            raise ValueError("no data: address")
        samples = load_audio(base64.b64decode(content, validate=True), duration_s=2 * LONGEST_S)
    except (binascii.Error, ValueError) as error:
        reason = str(error) if isinstance(error, AudioError) else "something else"
        message = f"{REFERENCES}: expected 'data:audio/wav;base64,…', got {reason}"
        raise ApiError(message, param=REFERENCES, code="invalid_value") from error
    if not SHORTEST_S <= len(samples) / SAMPLE_RATE <= LONGEST_S:
        message = f"{REFERENCES}: expected {SHORTEST_S:.0f} to {LONGEST_S:.0f} seconds of speech"
        raise ApiError(message, param=REFERENCES, code="invalid_value")
    return samples
