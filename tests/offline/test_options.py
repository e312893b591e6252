from __future__ import annotations

import pytest

from sottovoce.audio.vad import VadOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.errors import OptionError
from sottovoce.offline.options import TranscribeOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, "mode"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4}, "needs mode 'vad'"),
        ({"vad": VadOptions()}, "vad options"),
        ({"carry_initial_prompt": True}, "needs an initial_prompt"),
        ({"decoding": DecodingOptions(prompt="x")}, "initial_prompt"),
        ({"clip_timestamps": (3.0, 1.0)}, "ascending"),
        ({"clip_timestamps": (1.0,), "mode": "vad"}, "clip_timestamps"),
        ({"hallucination_silence_threshold": 2.0}, "needs word_timestamps"),
        ({"hallucination_silence_threshold": 0.0, "word_timestamps": True}, "more than 0"),
        ({"per_window_language": True, "decoding": DecodingOptions(language="en")}, "expected no language"),
    ],
)
def test_contradictions_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TranscribeOptions(**options)  # type: ignore[arg-type]
