"""What a caller may wish, and what is refused in one line."""

from __future__ import annotations

import pytest

from sottovoce.errors import OptionError
from sottovoce.speakers.choose import Speakers, diarizer_of, parsed
from sottovoce.speakers.diarize import OwnDiarizer
from sottovoce.speakers.options import SpeakerOptions
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
    assert parsed(wish) == options


def test_what_tells_speakers_apart_may_be_given_itself() -> None:
    own = OwnDiarizer(ToneSpeakers(), ToneVoices(), SpeakerOptions())
    assert parsed(own) is own
    assert diarizer_of(own) is own


@pytest.mark.parametrize("wish", ["", "two", "0", "-1", "2.5", "²", 0, -3])
def test_what_is_no_number_of_speakers(wish: Speakers) -> None:
    with pytest.raises(OptionError, match="speakers: expected 'auto' or "):
        parsed(wish)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("most", 0),
        ("engine", "other"),
        ("distance", 0.0),
        ("distance", float("nan")),
        ("least_speech_s", -1.0),
        ("least_speech_s", float("inf")),
    ],
)
def test_values_out_of_range(name: str, value: object) -> None:
    with pytest.raises(OptionError, match="expected"):
        SpeakerOptions(**{name: value})  # type: ignore[arg-type]
