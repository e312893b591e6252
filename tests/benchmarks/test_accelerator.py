"""The benchmark of a graphics card, of which nobody may have one when it is changed."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from benchmarks import accelerator
from benchmarks.accelerator import CHUNKS_S, CLIPS, parts
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.models.devices import Device
from sottovoce.types import SAMPLE_RATE


@pytest.mark.long
def test_every_part_runs_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "STEP_SIZES", (8,))
    monkeypatch.setattr(accelerator, "BATCHES", (2,))
    report, clips = accelerator.Report(600.0), sorted(CLIPS.glob("*.flac"))[:1]
    with torch.inference_mode():
        ((_, *cells),) = parts(report, "nano", Device("cpu"), "float32")
    assert all(float(cell) > 0 for cell in cells)
    assert all(n == "1" for _, n, _ in accelerator.equality("cpu", clips))
    model = cast(Model, load_model("nano", device="cpu", backend="torch"))
    assert all(int(n_words) > 0 for *_, n_words in accelerator.files(model, clips))
    samples = load_audio(clips[0])[: 2 * SAMPLE_RATE]
    assert len(accelerator.live_delays(model, samples, CHUNKS_S[1], 3)) == 3 * 4
    assert "failed" not in "\n".join(report.lines)
