"""A minute in one recording: openai-whisper's text, segments and words."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.models.checkpoint.base import Checkpoint
from tests.real.conftest import model_of

pytest.importorskip("whisper", reason="openai-whisper is not installed")

from benchmarks.files.parity import Engines, Report, compare_long, rows
from benchmarks.harness.programs import openai_model

pytestmark = [pytest.mark.real_weights, pytest.mark.reference, pytest.mark.long, pytest.mark.shared]

SECONDS = 65.0
"""Three windows: text goes on over two borders."""


def test_a_minute_is_openai_whispers(tiny_en: Checkpoint, shared_dir: Path, tmp_path: Path) -> None:
    report = Report()
    engines = Engines(model_of(tiny_en), openai_model(tiny_en, tmp_path))
    compare_long(engines, shared_dir / "data", "en", True, report, seconds=SECONDS)
    _, total = list(rows(report))[-1]
    assert report.differences == []
    assert total.greedy == 1
    assert total.words > 100
