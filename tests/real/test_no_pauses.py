"""Languages one right after the other: with no pause between them, nothing is lost and nothing translated."""

from __future__ import annotations

import json
from itertools import groupby, pairwise

import numpy as np
import pytest

from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import speech_segments
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.offline.pieces import LONGEST_S, PIECE_VAD
from sottovoce.types import SAMPLE_RATE, Samples
from tests.real.conftest import EXAMPLES, usual_model

pytestmark = [pytest.mark.real_weights, pytest.mark.slow]


def without_pauses() -> tuple[Samples, list[tuple[str, float]]]:
    """The parts of the mixed recording joined end to end, with half a second before them and a second after;
    the language of each, and where it begins."""
    samples = load_audio(EXAMPLES / "mixed.flac")
    parts, truth, at = [np.zeros(SAMPLE_RATE // 2, np.float32)], [], 0.5
    manifest = (EXAMPLES / "manifest.jsonl").read_text("utf-8").splitlines()
    for one in next(row for row in map(json.loads, manifest) if row["id"] == "mixed")["language"]:
        start, end = round(one["start"] * SAMPLE_RATE), round(one["end"] * SAMPLE_RATE)
        inside = speech_segments(samples[start:end], PIECE_VAD)
        parts.append(samples[start + inside[0].start_sample : start + inside[-1].end_sample])
        truth.append((one["language"], at))
        at += len(parts[-1]) / SAMPLE_RATE
    return np.concatenate([*parts, np.zeros(SAMPLE_RATE, np.float32)]), truth


def test_languages_without_a_pause_between(base: Checkpoint) -> None:
    samples, truth = without_pauses()
    pauses = pairwise(speech_segments(samples, PIECE_VAD))
    border_s = [at for _, at in truth[1:]]
    paused = [(one.end_s, other.start_s) for one, other in pauses if other.start_s - one.end_s > 0.1]
    assert not all(any(a - 0.2 < at < b + 0.2 for a, b in paused) for at in border_s), "or this shows nothing"
    model = usual_model(base)
    for listed in (None, ["en", "de", "pt"]):
        segments = list(model.transcribe(samples, language=listed))
        runs = [(code, list(group)) for code, group in groupby(segments, lambda one: one.language)]
        assert [code for code, _ in runs] == [code for code, _ in truth]
        for (_, run), at in zip(runs[1:], border_s, strict=True):
            assert run[0].start == pytest.approx(at, abs=LONGEST_S / 4)
        text = " ".join(segment.text for segment in segments).lower()
        for words in ("art of printing", "gern ganz kurz die kontakte", "anos"):
            assert words in text
