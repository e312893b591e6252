"""Clips of two languages: openai-whisper's text greedy and with beam search, its words and its languages.

English is in `test_long` and `test_english_only`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.models.checkpoint.base import Checkpoint
from tests.real.conftest import model_of, people

pytest.importorskip("whisper", reason="openai-whisper is not installed")

from benchmarks.files.parity import Engines, Report, compare_clip, rows
from benchmarks.harness.programs import openai_model

pytestmark = [pytest.mark.real_weights, pytest.mark.reference, pytest.mark.slow]

CLIPS_A_LANGUAGE = 1
WORDS_WITHIN = 0.98


@pytest.fixture(scope="module")
def engines(base: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(model_of(base), openai_model(base, tmp_path_factory.mktemp("openai")))


@pytest.mark.parametrize("language", ["de", "pl"])
def test_a_clip_has_openai_whispers_text_words_and_language(
    engines: Engines, data: Path | None, language: str
) -> None:
    report = Report()
    chosen = people(data, language, CLIPS_A_LANGUAGE)
    for clip in chosen:
        compare_clip(engines, clip, report)
    _, total = list(rows(report))[-1]
    assert [one for one in report.differences if one.what != "word" and "tie" not in one.reason] == []
    assert total.words_within >= WORDS_WITHIN * total.words
    assert total.words > len(chosen)
