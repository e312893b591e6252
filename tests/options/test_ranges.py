"""Values out of range, and options that contradict each other, are refused; what follows from others."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import asdict
from math import inf, nan
from typing import Any

import pytest

from sottovoce.errors import OptionError
from sottovoce.evaluation.wer import ScoreOptions
from sottovoce.language.probe import ProbeOptions
from sottovoce.models.dims import EXACT, EncoderMode
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import SpeakerOptions, Speakers, TranscribeOptions, parse_speakers
from sottovoce.options.vad import VadOptions
from sottovoce.runtime.batching import Batching
from sottovoce.speakers.diarize import ClusteringDiarizer, make_diarizer
from sottovoce.streaming.options import CommitOptions, SessionOptions, StreamOptions
from tests.speakers.tones import ToneSpeakers, ToneVoices

OUT_OF_RANGE: Mapping[type, Mapping[str, tuple[float, ...]]] = {
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
    CommitOptions: {"commit_prob": (-0.1,), "agreed_s": (-1.0, nan)},
    SessionOptions: {"switch_certainty": (0.4, 1.1, nan), "first_language_s": (-1.0, nan)},
    Batching: {"encoder_frames": (0,), "max_length_ratio": (1.5,), "rows": (0,)},
    TranscribeOptions: {
        "batch_size": (0,),
        "language_windows": (0,),
        "offset_s": (-1.0, inf),
        "duration_s": (0.0, nan),
    },
}
WORDS, VERBATIM = {"word_timestamps": True}, {"verbatim": True}
TURNS = {"decoding": DecodingOptions(language="en", speaker_turns=True), "read_again": False}
REFUSED: tuple[tuple[type, Mapping[str, object], str], ...] = (
    *(
        (kind, {name: value}, name)
        for kind, own in OUT_OF_RANGE.items()
        for name in own
        for value in own[name]
    ),
    (StreamOptions, {"chunk_s": 6.0, "audio_max_len_s": 5.5, "audio_trim_s": 2.0}, "chunk_s"),
    (StreamOptions, {"encoder": EXACT, "tail_s": 5.0}, "tail_s: expected none where encoder is the full"),
    (SessionOptions, {"languages": "en"}, "string"),
    (SessionOptions, {"switching": "maybe"}, "switching"),
    (ProbeOptions, {"width_s": 0.2, "min_width_s": 0.5}, "width_s"),
    (ProbeOptions, {"opening_s": 31.0}, "opening_s"),
    (EncoderMode, {"tail_s": -1.0}, "tail_s: expected 0 to 30 seconds, got -1.0"),
    (EncoderMode, {"tail_s": 31.0}, "tail_s: expected 0 to 30"),
    (EncoderMode, {"tail_s": nan}, "tail_s: expected 0 to 30"),
    (EncoderMode, {"bucket_s": -1.0}, "bucket_s: expected 0 to 30"),
    (EncoderMode, {"recompute_s": 0.0}, r"recompute_s: expected 0.02 to 30"),
    (EncoderMode, {"refresh_s": -0.1}, "refresh_s: expected 0 to 30"),
    (EncoderMode, {"stride": 0}, "stride: expected at least 1 frame, got 0"),
    (EncoderMode, {"level_drift": nan}, "level_drift: expected 0 or more, got nan"),
    (EncoderMode, {"anchors": (5, 3)}, r"anchors: expected places that rise from 0 or later, got \(5, 3\)"),
    (EncoderMode, {"anchors": (-5, 3)}, "anchors: expected places"),
    (ScoreOptions, {"confidence": 95}, "confidence: expected between 0 and 1, got 95"),
    (ScoreOptions, {"n_resamples": -1}, "n_resamples"),
    (
        DecodingOptions,
        {"language": "fi", **VERBATIM},
        r"verbatim: expected a language that was measured \(en, de, es, fr\), got 'fi'",
    ),
    (DecodingOptions, {"task": "translate", **VERBATIM}, "verbatim: needs task 'transcribe'"),
    (DecodingOptions, {"no_repeat_ngram_size": 3, **VERBATIM}, "verbatim: .*no_repeat_ngram_size"),
    (DecodingOptions, {"repetition_penalty": 1.1, **VERBATIM}, "verbatim: .*repetition_penalty"),
    (
        TranscribeOptions,
        {"decoding": DecodingOptions(language="Finnish"), "clean": True},
        r"clean: expected a language .*got 'fi'",
    ),
    (TranscribeOptions, {**TURNS, "speakers": SpeakerOptions()}, "speaker_turns: expected neither"),
    (TranscribeOptions, {**TURNS, "channels": "energy"}, "speaker_turns: expected neither"),
    (TranscribeOptions, {"channels": "energy", "speakers": SpeakerOptions()}, "expected no speakers beside"),
    (TranscribeOptions, {"channels": "apart"}, "need mode 'vad'"),
    (TranscribeOptions, {"channels": "left"}, "expected 'mixed', 'apart' or 'energy'"),
    (TranscribeOptions, {"max_context": -1}, "max_context: expected at least 0, got -1"),
    (TranscribeOptions, {"mode": "fast"}, "mode"),
    (TranscribeOptions, {"batch_size": 4}, "needs mode 'vad'"),
    (TranscribeOptions, {"vad": VadOptions()}, "vad options"),
    (TranscribeOptions, {"decoding": DecodingOptions(prompt="x")}, "initial_prompt"),
    (TranscribeOptions, {"clip_timestamps": (3.0, 1.0)}, "ascending"),
    (TranscribeOptions, {"clip_timestamps": (1.0,), "mode": "vad"}, "clip_timestamps"),
    (TranscribeOptions, {"clip_timestamps": (nan,)}, "clip_timestamps"),
    (TranscribeOptions, {"clip_timestamps": (0.0, inf)}, "clip_timestamps"),
    (TranscribeOptions, {"duration_s": 1.0, "clip_timestamps": (1.0,)}, "cannot be combined"),
    (TranscribeOptions, {"hallucination_silence_threshold": 2.0}, "needs word_timestamps"),
    (TranscribeOptions, {"hallucination_silence_threshold": 0.0, **WORDS}, "more than 0"),
    (TranscribeOptions, {"word_threshold": 1.5, **WORDS}, "word_threshold: expected 0 to 1, got 1.5"),
    (TranscribeOptions, {"word_threshold": nan, **WORDS}, "word_threshold: expected 0 to 1"),
    (
        TranscribeOptions,
        {"follow_languages": True, "decoding": DecodingOptions(language="en")},
        "expected no language",
    ),
    *(
        (SpeakerOptions, values, "expected")
        for values in (
            *({"most": 0}, {"least": 0}, {"engine": "other"}, {"distance": 0.0}, {"distance": nan}),
            *({"least_speech_s": -1.0}, {"least_speech_s": inf}),
            *({"least": 3, "most": 2}, {"least": 3, "n_speakers": 2}),
        )
    ),
)


@pytest.mark.parametrize(("kind", "values", "message"), REFUSED)
def test_values_that_cannot_be_are_refused(kind: Any, values: Mapping[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        kind(**values)


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


@pytest.mark.parametrize(
    ("wish", "options"),
    [
        ("auto", SpeakerOptions()),
        ("3", SpeakerOptions(n_speakers=3)),
        (2, SpeakerOptions(n_speakers=2)),
        (SpeakerOptions(most=4), SpeakerOptions(most=4)),
    ],
)
def test_wishes_for_speakers(wish: Speakers, options: SpeakerOptions) -> None:
    assert parse_speakers(wish) == options


def test_what_tells_speakers_apart_may_be_given_itself() -> None:
    own = ClusteringDiarizer(ToneSpeakers(), ToneVoices(), SpeakerOptions())
    assert parse_speakers(own) is own
    assert make_diarizer(own) is own


@pytest.mark.parametrize("wish", ["", "two", "0", "-1", "2.5", "²", 0, -3])
def test_what_is_no_number_of_speakers(wish: Speakers) -> None:
    with pytest.raises(OptionError, match="speakers: expected 'auto' or "):
        parse_speakers(wish)
