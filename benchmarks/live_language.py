"""How often the probe names the language of a window, clean and in noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.cli.evaluate import mixed_with, probed
from sottovoce.evaluation.language_id import LanguageScores
from sottovoce.evaluation.manifest import ManifestEntry
from sottovoce.language.probe import LanguageProbe

WIDTHS_S = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
LONGEST_S = 30.0


def accuracy_rows(
    model: Model, name: str, entries: Sequence[ManifestEntry], noises: Sequence[str], snr_db: float
) -> list[dict[str, Any]]:
    """A row for each width; noises: files that the recordings are mixed with in turns, if any."""
    sounds = [load_audio(noise) for noise in noises]
    probe = LanguageProbe(model.backend, model.tokenizer, model.languages)
    scores: dict[tuple[str, float], LanguageScores] = {}
    for i, entry in enumerate(entries):
        clean = load_audio(str(entry.path), duration_s=LONGEST_S)
        sides = {"clean": clean}
        if sounds:
            sides[f"{snr_db:g} dB"] = mixed_with(clean, sounds[i % len(sounds)], snr_db)
        for side, audio in sides.items():
            for width_s, said in probed(model, probe, audio, WIDTHS_S):
                scores.setdefault((side, width_s), LanguageScores()).add(entry.language or "", said)
    return [_row(name, side, width_s, score) for (side, width_s), score in sorted(scores.items(), key=_order)]


def _order(item: tuple[tuple[str, float], LanguageScores]) -> tuple[bool, float]:
    (side, width_s), _ = item
    return side != "clean", width_s


def _row(name: str, side: str, width_s: float, score: LanguageScores) -> dict[str, Any]:
    low, high = score.interval()
    shown = {"accuracy": score.accuracy, "low": low, "high": high}
    rounded = {column: round(value, 3) for column, value in shown.items()}
    return {"clips": name, "noise": side, "width_s": width_s, "n": score.n, **rounded}
