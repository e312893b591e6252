from __future__ import annotations

import pickle
from dataclasses import asdict

import pytest

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import VadOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, "mode"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4}, "needs mode 'vad'"),
        ({"vad": VadOptions()}, "vad options"),
        ({"decoding": DecodingOptions(prompt="x")}, "initial_prompt"),
        ({"clip_timestamps": (3.0, 1.0)}, "ascending"),
        ({"clip_timestamps": (1.0,), "mode": "vad"}, "clip_timestamps"),
        ({"hallucination_silence_threshold": 2.0}, "needs word_timestamps"),
        ({"hallucination_silence_threshold": 0.0, "word_timestamps": True}, "more than 0"),
        ({"word_threshold": 1.5, "word_timestamps": True}, "word_threshold: expected 0 to 1, got 1.5"),
        ({"word_threshold": float("nan"), "word_timestamps": True}, "word_threshold: expected 0 to 1"),
        ({"follow_languages": True, "decoding": DecodingOptions(language="en")}, "expected no language"),
        ({"language_windows": 0}, "language_windows"),
        ({"clip_timestamps": (float("nan"),)}, "clip_timestamps"),
        ({"clip_timestamps": (0.0, float("inf"))}, "clip_timestamps"),
        ({"offset_s": -1.0}, "offset_s"),
        ({"offset_s": float("inf")}, "offset_s"),
        ({"duration_s": 0.0}, "duration_s"),
        ({"duration_s": float("nan")}, "duration_s"),
        ({"duration_s": 1.0, "clip_timestamps": (1.0,)}, "cannot be combined"),
    ],
)
def test_contradictions_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TranscribeOptions(**options)  # type: ignore[arg-type]


def test_languages_are_followed_where_several_are_listed() -> None:
    def follows(*allowed: str, follow: bool | None = None) -> bool:
        decoding = DecodingOptions(allowed_languages=allowed)
        return TranscribeOptions(decoding=decoding, follow_languages=follow).follows_languages

    assert [follows(), follows("en"), follows("en", "de")] == [False, False, True]
    assert not follows("en", "de", follow=False)
    assert follows(follow=True)
    assert not TranscribeOptions(decoding=DecodingOptions(language="en")).follows_languages


def test_a_given_temperature_is_the_only_one() -> None:
    def tried(temperature: float) -> tuple[float, ...]:
        options = TranscribeOptions(DecodingOptions(temperature=temperature), FallbackOptions((0.0, 0.2)))
        return options.fallback_of_window.temperatures

    assert tried(0.0) == (0.0, 0.2)
    assert tried(0.7) == (0.7,)


def test_the_parts_of_a_recording() -> None:
    assert TranscribeOptions().clips == ((0.0, None),)
    assert TranscribeOptions(offset_s=2.0, duration_s=3.0).clips == ((2.0, 5.0),)
    assert TranscribeOptions(clip_timestamps=(1.0, 2.0, 3.0)).clips == ((1.0, 2.0), (3.0, None))


def test_options_can_be_kept_and_sent() -> None:
    options = TranscribeOptions(offset_s=1.0, language_prior={"en": 1.0})
    assert pickle.loads(pickle.dumps(options)) == options
    assert len({options, TranscribeOptions(offset_s=1.0)}) == 2
    assert asdict(options)["language_prior"] == {"en": 1.0}
