"""What a caller may wish, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from sottovoce.errors import OptionError
from sottovoce.options.transcribe import SpeakerOptions, Speakers, parse_speakers
from sottovoce.speakers.diarize import ClusteringDiarizer, make_diarizer
from tests.speakers.tones import ToneSpeakers, ToneVoices


@pytest.mark.parametrize(
    ("wish", "options"),
    [
        ("auto", SpeakerOptions()),
        ("3", SpeakerOptions(n_speakers=3)),
        (2, SpeakerOptions(n_speakers=2)),
        (SpeakerOptions(most=4), SpeakerOptions(most=4)),
    ],
)
def test_wishes(wish: Speakers, options: SpeakerOptions) -> None:
    assert parse_speakers(wish) == options


def test_what_tells_speakers_apart_may_be_given_itself() -> None:
    own = ClusteringDiarizer(ToneSpeakers(), ToneVoices(), SpeakerOptions())
    assert parse_speakers(own) is own
    assert make_diarizer(own) is own


@pytest.mark.parametrize("wish", ["", "two", "0", "-1", "2.5", "²", 0, -3])
def test_what_is_no_number_of_speakers(wish: Speakers) -> None:
    with pytest.raises(OptionError, match="speakers: expected 'auto' or "):
        parse_speakers(wish)


@pytest.mark.parametrize(
    "values",
    [
        {"most": 0},
        {"engine": "other"},
        {"distance": 0.0},
        {"distance": float("nan")},
        {"least_speech_s": -1.0},
        {"least_speech_s": float("inf")},
        {"least": 0},
        {"least": 3, "most": 2},
        {"least": 3, "n_speakers": 2},
    ],
)
def test_values_out_of_range_or_that_contradict_each_other(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected"):
        SpeakerOptions(**values)
