"""A clip in Polish: openai-whisper's text greedy and with beam search, its words and its language.

English is in `test_long`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.api import Model
from sottovoce.models.checkpoint.base import Checkpoint
from tests.real.conftest import people

pytest.importorskip("whisper", reason="openai-whisper is not installed")

from benchmarks.files.parity import Engines, Report, compare_clip, rows
from benchmarks.harness.programs import openai_model

pytestmark = [pytest.mark.real_weights, pytest.mark.reference, pytest.mark.long]

WORDS_WITHIN = 0.98


def test_a_clip_has_openai_whispers_text_words_and_language(
    base: Checkpoint, exact_base: Model, data: Path | None, tmp_path: Path
) -> None:
    report = Report()
    compare_clip(Engines(exact_base, openai_model(base, tmp_path)), people(data, "pl", 1)[0], report)
    _, total = list(rows(report))[-1]
    assert [
        difference
        for difference in report.differences
        if difference.what != "word" and "tie" not in difference.reason
    ] == []
    assert total.words_within >= WORDS_WITHIN * total.words
    assert total.words > 1
