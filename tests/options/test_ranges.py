"""Values out of range, and options that contradict each other, are refused; what follows from others."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib import import_module
from math import inf, nan
from pathlib import Path
from typing import Any

import click
import pytest

import sottovoce
from sottovoce.cli.main import cli
from sottovoce.cli.options import SectionedCommand
from sottovoce.ctc import CtcFusionOptions, CtcOptions
from sottovoce.errors import OptionError
from sottovoce.evaluation.scores import ScoreOptions
from sottovoce.language.probe import ProbeOptions
from sottovoce.models.dims import EXACT, EncoderMode
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, VadOptions
from sottovoce.options.schema import Option, options_of
from sottovoce.options.transcribe import SpeakerOptions, Speakers, TranscribeOptions, parse_speakers
from sottovoce.runtime.batching import Batching
from sottovoce.speakers.diarize import ClusteringDiarizer, make_diarizer
from sottovoce.streaming.options import CommitOptions, LiveOptions, StreamOptions
from tests.speakers.tones import ToneSpeakers, ToneVoices

SOURCE = Path(sottovoce.__file__).parent
NEEDED = {"folder": "jobs", "model": "nano"}
"""Fields without a default."""


def declared() -> Iterator[tuple[type, Option]]:
    """Classes of Python's interface with each option that has a range."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("sottovoce", *path.relative_to(SOURCE).with_suffix("").parts))
        if ".as_field(" in path.read_text(encoding="utf-8") and not name.startswith("sottovoce.cli."):
            for owner in vars(import_module(name)).values():
                if isinstance(owner, type) and is_dataclass(owner) and owner.__module__ == name:
                    yield from ((owner, option) for option in options_of(owner) if option.is_ranged)


def outside(option: Option) -> Iterator[object]:
    """Values that an option does not have, on each side of those that it has."""
    if option.choices:
        yield "another"
        return
    if option.least is not None:
        yield option.least - 1
    if option.above is not None:
        yield option.above
    if option.most is not None:
        yield 2 * option.most + 1
    yield from (nan, -inf) if option.may_be_infinite else (nan, -inf, inf)
    if option.kind == "integer":
        yield (option.least or option.above or 0) + 0.5


def test_every_declared_option_refuses_what_is_outside_its_range() -> None:
    tried = 0
    for owner, option in declared():
        (field,) = (each for each in fields(owner) if each.name == option.field)
        needed = {each.name: NEEDED[each.name] for each in fields(owner) if each.name in NEEDED}
        for value in outside(option):
            given = (value,) if "tuple[" in str(field.type) else value
            with pytest.raises(OptionError, match="expected"):
                owner(**{**needed, option.field: given})
            tried += 1
    assert tried > 300


def commands(
    group: click.Group, parent: click.Context | None = None
) -> Iterator[tuple[click.Context, SectionedCommand]]:
    context = click.Context(group, parent, info_name=group.name, **group.context_settings)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, context)
        elif isinstance(command, SectionedCommand):
            yield context, command


def test_whole_floats_are_whole_numbers() -> None:
    chosen = CtcOptions(beam_size=16.0, n_best=2.0)  # type: ignore[arg-type]
    assert (type(chosen.beam_size), type(chosen.n_best)) == (int, int)


def test_every_flag_refuses_what_is_outside_its_range() -> None:
    tried = 0
    for context, command in commands(cli):
        for option in command.declared:
            kinds = ("integer", "number", "choice")
            for value in outside(option) if option.is_ranged and option.kind in kinds else ():
                with pytest.raises(click.BadParameter) as refused:
                    command.make_context(command.name, [f"{option.flags}={value}"], parent=context)
                assert str(option.flags) in refused.value.format_message()
                tried += 1
    assert tried > 300


WORDS, VERBATIM = {"word_timestamps": True}, {"verbatim": True}
TURNS = {"decoding": DecodingOptions(language="en", speaker_turns=True), "read_again": False}
REFUSED: tuple[tuple[type, Mapping[str, object], str], ...] = (
    (CtcFusionOptions, {"lm_weight": nan}, "lm_weight: expected a finite number, got nan"),
    (CtcFusionOptions, {"word_score": -inf}, "word_score: expected a finite number, got -inf"),
    (CtcOptions, {"blank_penalty": inf}, "blank_penalty: expected a finite number, got inf"),
    (CtcOptions, {"beam_size": 16.5}, "beam_size: expected a whole number, got 16.5"),
    (CtcOptions, {"commit_frames": 2.5}, "commit_frames: expected a whole number, got 2.5"),
    (FallbackOptions, {"logprob_threshold": nan}, "logprob_threshold: expected a number, got nan"),
    (StreamOptions, {"logprob_threshold": nan}, "logprob_threshold: expected a number, got nan"),
    (CommitOptions, {"commit_prob": -0.1}, "commit_prob"),
    (CommitOptions, {"agreed_s": nan}, "agreed_s"),
    (LiveOptions, {"switch_certainty": 0.4}, "switch_certainty"),
    (LiveOptions, {"switch_certainty": nan}, "switch_certainty"),
    (LiveOptions, {"first_language_s": -1.0}, "first_language_s"),
    (Batching, {"encoder_frames": 0}, "encoder_frames"),
    (Batching, {"max_length_ratio": 1.5}, "max_length_ratio"),
    (Batching, {"rows": 0}, "rows"),
    (StreamOptions, {"chunk_s": 6.0, "audio_max_len_s": 5.5, "audio_trim_s": 2.0}, "chunk_s"),
    (StreamOptions, {"encoder": EXACT, "tail_s": 5.0}, "tail_s: expected none where encoder is the full"),
    (LiveOptions, {"languages": "en"}, "languages: expected a tuple"),
    (LiveOptions, {"switching": "maybe"}, "switching"),
    (ProbeOptions, {"width_s": 0.2, "min_width_s": 0.5}, "width_s"),
    (ProbeOptions, {"opening_s": 31.0}, "opening_s"),
    (EncoderMode, {"tail_s": -1.0}, "tail_s: expected 0 to 30 seconds, got -1.0"),
    (EncoderMode, {"tail_s": 31.0}, "tail_s: expected 0 to 30"),
    (EncoderMode, {"tail_s": nan}, "tail_s: expected 0 to 30"),
    (EncoderMode, {"bucket_s": -1.0}, "bucket_s: expected 0 to 30"),
    (EncoderMode, {"recompute_s": 0.0}, r"recompute_s: expected 0.02 to 30"),
    (EncoderMode, {"refresh_s": -0.1}, "refresh_s: expected 0 to 30"),
    (EncoderMode, {"between_s": 0.0}, "between_s: expected 0.02 to 30"),
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
    diarizer = ClusteringDiarizer(ToneSpeakers(), ToneVoices(), SpeakerOptions())
    assert parse_speakers(diarizer) is diarizer
    assert make_diarizer(diarizer) is diarizer


@pytest.mark.parametrize("wish", ["", "two", "0", "-1", "2.5", "²", 0, -3])
def test_what_is_no_number_of_speakers(wish: Speakers) -> None:
    with pytest.raises(OptionError, match="speakers: expected 'auto' or "):
        parse_speakers(wish)
