"""base's own CTC head on people's speech: letters near what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.api import Model
from sottovoce.cli.ctc import recorded_emissions
from sottovoce.ctc import CtcDecoder
from sottovoce.evaluation.scores import count_edits
from sottovoce.text.normalize import plain
from tests.real.conftest import people

pytestmark = [pytest.mark.real_weights, pytest.mark.long]


def letters_wrong(text: str, said: str) -> float:
    count = count_edits(list(plain(text)), list(said))
    return count.n_errors / count.n_reference


@pytest.mark.parametrize("language", ["en", "de"])
def test_letters_of_recordings(base_model: Model, data: Path | None, language: str) -> None:
    assert base_model.ctc_head is not None
    clips = [clip for clip in people(data, language, 4, with_text=True) if clip.text]
    decoder = CtcDecoder(list(base_model.ctc_head.labels), base_model.ctc_head.blank)
    emitted = [recorded_emissions(clip.file, base_model.network).values for clip in clips]
    rates = [
        letters_wrong(clip.text or "", decoder.greedy(rows)[0].text)
        for clip, rows in zip(clips, emitted, strict=True)
    ]
    assert sum(rates) / len(rates) < 0.4, rates
