"""A transcription that goes on from any of its resume points gives what it would have given anyway."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.api import Model
from sottovoce.audio.io import Recording, load_audio
from sottovoce.errors import OptionError
from sottovoce.offline.resume import (
    ChannelPoint,
    ChannelsPlace,
    DraftState,
    ResumePoint,
    segment_of_json,
)
from sottovoce.offline.transcriber import SecondModel
from sottovoce.options.decoding import DeferralOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import Samples, Segment, Turn

CLIPS = Path(__file__).parents[2] / "examples" / "clips"


def joined(names: str, *pauses_s: float) -> Samples:
    """Clips one after the other, each with a pause behind it, and faint noise over all."""
    parts: list[Samples] = []
    for index, name in enumerate(names.split()):
        pause = round(pauses_s[index % len(pauses_s)] * 16000)
        parts += [load_audio(CLIPS / f"{name}.flac"), np.zeros(pause, np.float32)]
    whole = np.concatenate(parts)
    noise = np.random.default_rng(0).standard_normal(len(whole)) * 1e-3
    return whole + noise.astype(np.float32)


GERMAN = joined("de de de de", 0.6, 3.0, 0.4)
SEVERAL = joined("mixed fr de", 1.5, 0.3)
TWICE = np.concatenate([SEVERAL, SEVERAL])


@dataclass(frozen=True, slots=True)
class Run:
    """Segments of a whole transcription, and every point of it with the number of segments before it."""

    segments: list[Segment]
    points: list[tuple[int, ResumePoint]]
    end: Mapping[str, Any]


def ended(transcription: Any) -> Mapping[str, Any]:
    names = ("language_probability", "language_probabilities", "duration", "unread", "position", "second_s")
    return {name: getattr(transcription, name) for name in (*names, "outside_languages")}


def whole_run(
    model: Model,
    samples: Samples,
    language: str | None,
    options: TranscribeOptions,
    second: SecondModel | None = None,
) -> Run:
    transcription = model.transcribe(samples, language=language, options=options, second=second)
    segments: list[Segment] = []
    points: list[tuple[int, ResumePoint]] = []

    def note() -> None:
        point = transcription.resume_point
        if point is not None and (not points or points[-1][1] is not point):
            points.append((len(segments), point))

    for segment in transcription:
        note()
        segments.append(segment)
    note()
    return Run(segments, points, ended(transcription))


def exact(segments: list[Segment]) -> list[str]:
    """Everything in segments, the tokens of words too, which their equality leaves out."""
    return [json.dumps(asdict(segment)) for segment in segments]


def some_points(run: Run, n_points: int) -> list[tuple[int, ResumePoint]]:
    """The first point and later ones: each is a transcription of what follows it."""
    places = np.linspace(0, max(0, len(run.points) - 2), n_points).round().astype(int)
    return [run.points[place] for place in sorted(set(places))]


def check_points(
    model: Model,
    samples: Samples,
    language: str | None,
    options: TranscribeOptions,
    second: SecondModel | None = None,
    n_points: int = 2,
) -> Run:
    run = whole_run(model, samples, language, options, second)
    assert run.points
    for n_segments, point in some_points(run, n_points):
        restored = ResumePoint.of_json(json.loads(json.dumps(point.to_json())))
        assert restored == point
        rest = model.transcribe(samples, language=language, options=options, second=second, resume=restored)
        assert exact(list(rest)) == exact(run.segments[n_segments:]), point.position
        assert ended(rest) == run.end
    return run


NO_END = 10**9
NEVER = DeferralOptions(min_avg_logprob=-1e3, min_word_prob=0.0)
SHORT = TranscribeOptions(audio_ctx=500)
"""Windows of ten seconds: more points for less work."""
LANGUAGES = "en,de,es,fr"
LONG = pytest.mark.long


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("samples", "language", "options"),
    [
        (GERMAN, "de", SHORT),
        (SEVERAL, LANGUAGES, replace(SHORT, word_timestamps=True)),
        pytest.param(SEVERAL, None, replace(SHORT, normalization="running", offset_s=1.5), marks=LONG),
        pytest.param(SEVERAL, LANGUAGES, replace(SHORT, mode="vad"), marks=LONG),
        (SEVERAL, LANGUAGES, replace(SHORT, mode="vad", batch_size=2, word_timestamps=True)),
    ],
    ids=["german", "several-words", "auto-part", "vad", "batched-words"],
)
def test_points_go_on_to_the_same_text(
    model: Model, samples: Samples, language: str | None, options: TranscribeOptions
) -> None:
    run = check_points(model, samples, language, options)
    result = {segment.language for segment in run.segments}
    assert result == {"de"} if samples is GERMAN else len(result) > 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("samples", "language", "options"),
    [
        pytest.param(
            SEVERAL, LANGUAGES, replace(SHORT, word_timestamps=True, clean=True, offset_s=1.5), marks=LONG
        ),
        (SEVERAL, LANGUAGES, replace(SHORT, mode="vad", batch_size=2)),
    ],
    ids=["part", "batched"],
)
def test_points_hold_what_waits_for_a_second_model(
    model: Model, samples: Samples, language: str | None, options: TranscribeOptions
) -> None:
    """The second reads alone what is in doubt; some of that is held where a window ends."""
    whole = whole_run(model, samples, language, options)
    second = model.as_second(
        replace(NEVER, min_avg_logprob=statistics.median(segment.avg_logprob for segment in whole.segments))
    )
    run = check_points(model, samples, language, options, second)
    drafts = [point.draft for _, point in run.points]
    assert any(draft is not None and draft.held for draft in drafts)
    assert 0.0 < run.end["second_s"] < run.end["duration"]
    assert any(0.0 < point.progress.second_s < run.end["second_s"] for _, point in run.points)


def test_clips_and_cleaned_segments_count_on(model: Model) -> None:
    options = replace(SHORT, clean=True, clip_timestamps=(0.5, 6.0, 7.0, 15.0))
    run = check_points(model, GERMAN, "de", options)
    assert [segment.id for segment in run.segments] == list(range(len(run.segments)))


class EverySecond:
    """A diarizer with a turn of each of three speakers every 1.3 seconds."""

    def turns(self, recording: Recording) -> list[Turn]:
        starts = 1.3 * np.arange(40)
        return [Turn(float(at), float(at) + 1.3, "ABC"[index % 3]) for index, at in enumerate(starts)]


def in_two_channels(samples: Samples) -> Samples:
    """Every other three seconds on the right."""
    is_right = np.arange(len(samples)) // 48_000 % 2
    return np.stack([samples * (1 - is_right), samples * is_right]).astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize(
    ("samples", "options", "has_second"),
    [
        pytest.param(SEVERAL, replace(SHORT, speakers=EverySecond()), False, marks=LONG),
        (SEVERAL, replace(SHORT, speakers=EverySecond(), mode="vad", clean=True, offset_s=1.5), True),
        pytest.param(in_two_channels(SEVERAL), replace(SHORT, channels="energy"), False, marks=LONG),
        pytest.param(in_two_channels(TWICE), replace(SHORT, channels="apart", mode="vad"), False, marks=LONG),
        pytest.param(in_two_channels(TWICE), replace(SHORT, channels="apart", mode="vad"), True, marks=LONG),
    ],
    ids=["diarized", "diarized-second-model", "energy", "apart", "apart-second-model"],
)
def test_points_go_on_with_the_same_speakers(
    model: Model, samples: Samples, options: TranscribeOptions, has_second: bool
) -> None:
    second = model.as_second(replace(NEVER, min_avg_logprob=-0.3)) if has_second else None
    run = check_points(model, samples, LANGUAGES, options, second)
    assert len({segment.speaker for segment in run.segments}) > 1
    assert [segment.id for segment in run.segments] == list(range(len(run.segments)))


def test_a_segment_is_the_same_out_of_json(model: Model) -> None:
    segment = next(iter(model.transcribe(CLIPS / "en.flac", language="en", word_timestamps=True)))
    odd = replace(segment, avg_logprob=-math.inf, text="\ud83c \u2028", speaker=None)
    for item in (segment, odd):
        read = segment_of_json(json.loads(json.dumps(asdict(item))))
        assert read == item
        assert exact([read]) == exact([item])
        assert [word.tokens for word in read.words or ()] == [word.tokens for word in item.words or ()]


def test_a_point_of_another_mode_is_refused(model: Model) -> None:
    (_, point), *_ = whole_run(model, GERMAN[:200_000], "de", SHORT).points
    with pytest.raises(OptionError, match="mode 'seek', got mode 'vad'"):
        model.transcribe(GERMAN, options=replace(SHORT, mode="vad"), resume=point)
    with pytest.raises(OptionError, match="expected no second model, as where it was left"):
        model.transcribe(GERMAN, options=SHORT, second=model.as_second(), resume=point)
    of_both = replace(point, draft=DraftState(point.progress, 0.0))
    with pytest.raises(OptionError, match="expected a second model"):
        model.transcribe(GERMAN, options=SHORT, resume=of_both)
    with pytest.raises(OptionError, match="mode 'seek', got channels 'apart'"):
        model.transcribe(GERMAN, options=replace(SHORT, mode="vad", channels="apart"), resume=point)
    channels = replace(point, place=ChannelsPlace((ChannelPoint(None, 0), ChannelPoint(point, 1))))
    with pytest.raises(OptionError, match="channels 'apart', got mode 'seek'"):
        model.transcribe(GERMAN, options=SHORT, resume=channels)
    apart = replace(SHORT, mode="vad", channels="apart")
    with pytest.raises(OptionError, match="expected no second model, as where it was left"):
        model.transcribe(GERMAN, options=apart, second=model.as_second(), resume=channels)
    with pytest.raises(OptionError, match="resume point: place: expected a field"):
        ResumePoint.of_json({"place": {}})


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "has_second"),
    [
        (SHORT, False),
        (replace(SHORT, speakers=EverySecond()), True),
        (replace(SHORT, mode="vad", channels="apart"), False),
        (replace(SHORT, mode="vad", batch_size=2), False),
        (SHORT, True),
        (replace(SHORT, mode="vad", batch_size=2), True),
    ],
    ids=["seek", "speakers-second-model", "channels", "batched", "seek-second-model", "batched-second-model"],
)
def test_a_kill_at_any_call_of_the_model_costs_no_word(
    model: Model, options: TranscribeOptions, has_second: bool
) -> None:
    """The interrupted run and the one that goes on from its last point give the text of one run."""
    second = model.as_second(replace(NEVER, min_avg_logprob=-0.3)) if has_second else None

    def run(n_calls: int, resume: ResumePoint | None = None) -> tuple[list[Segment], ResumePoint | None, int]:
        calls = count()
        transcription = model.transcribe(
            in_two_channels(TWICE) if options.channels == "apart" else SEVERAL,
            language=LANGUAGES,
            options=options,
            second=second,
            resume=resume,
            abort=lambda: next(calls) >= n_calls,
        )
        segments: list[Segment] = []
        done: tuple[list[Segment], ResumePoint | None] = [], resume
        for segment in transcription:
            point = transcription.resume_point
            if point is not done[1]:
                done = [*segments], point
            segments.append(segment)
        return (segments, None, next(calls)) if n_calls == NO_END else (*done, next(calls))

    whole, _, n_all = run(NO_END)

    @settings(max_examples=3, deadline=None, database=None, derandomize=True)
    @given(st.integers(1, n_all - 1), st.integers(1, n_all - 1))
    def check(first_kill: int, second_kill: int) -> None:
        before, point, _ = run(first_kill)
        more, later, _ = run(second_kill, point)
        rest, _, _ = run(NO_END, later)
        assert exact([*before, *more, *rest]) == exact(whole)

    check()
