"""Recordings of people with real weights: times as a player shows them, languages without a pause between
them, and no invented words.
"""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from benchmarks.harness.clips import shown
from benchmarks.harness.sounds import SILENCE_S, Sound, around_speech, music, repeated
from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import speech_segments
from sottovoce.evaluation.scores import ScoredUtterance, count_errors
from sottovoce.offline.windows import LONGEST_S, PIECE_VAD
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.normalize import normalizer_for
from sottovoce.types import SAMPLE_RATE, Samples
from tests.audio.stamped import stamped_bytes
from tests.real.conftest import EXAMPLES, usual_model

pytestmark = [pytest.mark.real_weights, pytest.mark.long]


def test_the_text_of_a_film_begins_where_its_sound_does(base_model: Model) -> None:
    speech = load_audio(EXAMPLES / "en.flac")
    film = stamped_bytes(speech, lambda t: t + 5.0, container="matroska", picture_s=20.0)
    plain, late = (base_model.transcribe(item, language="en").collect() for item in (speech, film))
    normalize = normalizer_for("en")
    assert normalize(late.text) == normalize(plain.text)  # rounding moves a comma
    assert 4.8 <= late.segments[0].start <= 5.3
    assert late.duration == pytest.approx(len(speech) / 16_000 + 5.0, abs=0.05)


@pytest.mark.parametrize("offset_s", [0.0, 80.0])
def test_a_word_behind_a_gap(offset_s: float, base_model: Model, shared_dir: Path) -> None:
    path = shared_dir / "fixtures" / "reports" / "gap-long.mka"
    options = TranscribeOptions(word_timestamps=True, offset_s=offset_s)
    result = base_model.transcribe(path, language="en", options=options).collect()
    words = [word for segment in result.segments for word in segment.words or ()]
    (start,) = (word.start for word in words if "beautiful" in word.word)
    assert start == pytest.approx(95.8, abs=0.3)


@pytest.mark.parametrize(
    ("name", "start_s"), [("gap.ts", 18.66), ("gap.m4a", 18.66), ("chain-stereo-then-mono.opus", 9.66)]
)
def test_the_second_sentence(name: str, start_s: float, base_model: Model, shared_dir: Path) -> None:
    path = shared_dir / "fixtures" / "reports" / name
    result = base_model.transcribe(path, language="en", word_timestamps=True).collect()
    words = [word for segment in result.segments for word in segment.words or ()]
    (start,) = (word.start for word in words if word.word.strip().lower() == "produced")
    assert start_s - 0.26 <= start <= start_s + 0.34
    assert "exhibition" in result.text.lower()
    assert "printed book" in result.text
    assert np.all(np.diff([word.start for word in words]) >= 0)


@pytest.mark.parametrize(("name", "mode"), [("gap.ts", "seek"), ("gap.mka", "seek"), ("gap.m4a", "vad")])
def test_no_segment_reaches_across_missing_sound(
    name: str, mode: Literal["seek", "vad"], base_model: Model, shared_dir: Path
) -> None:
    path = shared_dir / "fixtures" / "reports" / name
    result = base_model.transcribe(path, language="en", options=TranscribeOptions(mode=mode)).collect()
    (start,) = (
        segment.start for segment in result.segments if segment.text.strip().lower().startswith("produced")
    )
    assert 18.4 <= start <= 19.0
    assert all(segment.end <= 10.3 or segment.start >= 18.4 for segment in result.segments)


def without_pauses() -> tuple[Samples, list[tuple[str, float]]]:
    """The parts of the mixed recording joined end to end, with half a second before them and a second after;
    the language of each, and where it begins."""
    samples = load_audio(EXAMPLES / "mixed.flac")
    parts, truth, at = [np.zeros(SAMPLE_RATE // 2, np.float32)], [], 0.5
    manifest = (EXAMPLES / "manifest.jsonl").read_text("utf-8").splitlines()
    for item in next(row for row in map(json.loads, manifest) if row["id"] == "mixed")["language"]:
        start, end = round(item["start"] * SAMPLE_RATE), round(item["end"] * SAMPLE_RATE)
        inside = speech_segments(samples[start:end], PIECE_VAD)
        parts.append(samples[start + inside[0].start_sample : start + inside[-1].end_sample])
        truth.append((item["language"], at))
        at += len(parts[-1]) / SAMPLE_RATE
    return np.concatenate([*parts, np.zeros(SAMPLE_RATE, np.float32)]), truth


def test_languages_without_a_pause_between(base_model: Model) -> None:
    samples, truth = without_pauses()
    pauses = pairwise(speech_segments(samples, PIECE_VAD))
    border_s = [at for _, at in truth[1:]]
    paused = [(item.end_s, other.start_s) for item, other in pauses if other.start_s - item.end_s > 0.1]
    assert not all(any(a - 0.2 < at < b + 0.2 for a, b in paused) for at in border_s), "or this shows nothing"
    for listed in (None, ["en", "de", "pt"]):
        segments = list(base_model.transcribe(samples, language=listed))
        runs = [(code, list(group)) for code, group in groupby(segments, lambda item: item.language)]
        assert [code for code, _ in runs] == [code for code, _ in truth]
        for (_, run), at in zip(runs[1:], border_s, strict=True):
            assert run[0].start == pytest.approx(at, abs=LONGEST_S / 4)
        text = " ".join(segment.text for segment in segments).lower()
        for words in ("art of printing", "gern ganz kurz die kontakte", "anos"):
            assert words in text


SPOKEN = TranscribeOptions(mode="vad")
CLIP = next(clip for clip in shown(EXAMPLES) if clip.language == "en")


@pytest.fixture(scope="module", params=["base", "tiny_en"])
def model(request: pytest.FixtureRequest) -> Model:
    if request.param == "base":
        return request.getfixturevalue("base_model")
    return usual_model(request.getfixturevalue("tiny_en"))


def text(model: Model, samples: Samples) -> str:
    return model.transcribe(samples, language="en", options=SPOKEN).text


@pytest.mark.parametrize("sound", [*music()], ids=lambda sound: sound.name)
def test_music_has_no_words(model: Model, sound: Sound) -> None:
    assert text(model, sound.samples) == ""


def test_silence_around_speech_adds_and_takes_nothing(model: Model) -> None:
    alone = text(model, load_audio(CLIP.file))
    assert len(alone.split()) > 15
    for created in around_speech([CLIP]):
        assert len(created.samples) > (SILENCE_S + 10) * SAMPLE_RATE
        result = count_errors(ScoredUtterance(alone, text(model, created.samples), "en")).word
        assert (result.insertions, result.deletions) == (0, 0), created.name


def test_what_is_said_six_times_is_written_six_times(exact_base: Model) -> None:
    """Neither once, as Whisper writes it, nor cut short as a loop."""
    (clip,) = (clip for clip in shown(EXAMPLES) if clip.language == "de")
    (created,) = repeated([clip])
    said = exact_base.transcribe(created.samples, language="de", options=SPOKEN).text
    result = count_errors(ScoredUtterance(created.text, said, "de")).word
    assert result.deletions + result.insertions + result.substitutions <= 3
