"""Options of live speech and of batches: values out of range are refused, and the error names the field."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from sottovoce.errors import OptionError
from sottovoce.runtime.batching import Batching
from sottovoce.streaming.options import CommitOptions, SessionOptions, StreamOptions

OUT_OF_RANGE: dict[type, dict[str, tuple[float, ...]]] = {
    StreamOptions: {
        "chunk_s": (0.0, nan, inf),
        "audio_max_len_s": (nan, 31.0),
        "audio_trim_s": (nan, 30.0),
        "no_speech_threshold": (nan, -3.0, 1.5),
        "logprob_threshold": (nan,),
        "beam_size": (0, 2.5, nan),
        "max_repeats": (1.5,),
        "recompute_tokens": (0, 1.5),
        "max_context_tokens": (0.5, 224),
        "frame_threshold": (-1, nan),
        "max_pause_s": (-1.0,),
        "stall_timeout_s": (0.5,),
        "sentence_s": (0.0,),
        "longest_final_s": (nan,),
        "tail_s": (-1.0,),
    },
    CommitOptions: {
        "commit_prob": (-0.1,),
        "agreed_s": (-1.0, nan),
    },
    SessionOptions: {"switch_certainty": (0.4, 1.1, nan), "first_language_s": (-1.0, nan)},
    Batching: {"encoder_frames": (0,), "max_length_ratio": (1.5,), "rows": (0,)},
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (kind, name, value)
        for kind, fields in OUT_OF_RANGE.items()
        for name, values in fields.items()
        for value in values
    ],
)
def test_a_value_out_of_range_is_refused(kind: Any, name: str, value: float) -> None:
    with pytest.raises(OptionError, match=name):
        kind(**{name: value})


def test_an_update_may_not_be_longer_than_the_audio_that_is_held() -> None:
    with pytest.raises(OptionError, match="chunk_s"):
        StreamOptions(chunk_s=6.0, audio_max_len_s=5.5, audio_trim_s=2.0)
